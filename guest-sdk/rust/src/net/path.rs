//! What routers say about the path to a peer: ICMP errors about a connection's segments, and the MTU that they leave.
//!
//! An error is believed only if it quotes a segment that may still be on its way (RFC 5927, section 4): who does not see the connection would
//! have to guess its sequence number. Of what an error may say, only a smaller MTU changes something: a connection outlives routes that
//! come and go (RFC 5461).

use super::link::Flow;
use crate::headers::{Headers, ICMP, TCP};
use crate::{Checksum, Packet};

/// The least MTU that is believed: with less, headers would be most of the traffic. For IPv6 it is the least that there is (RFC 8200).
const MTU_MIN_V4: u16 = 552;
/// See [`MTU_MIN_V4`].
const MTU_MIN_V6: u16 = 1280;
/// What is tried if a router says nothing of its MTU (RFC 1191, section 7).
const PLATEAUS: [u16; 4] = [1492, 1006, 576, MTU_MIN_V4];

/// *Fragmentation needed* and *packet too big*: type and code.
const TOO_BIG_V4: (u8, u8) = (3, 4);
/// See [`TOO_BIG_V4`].
const TOO_BIG_V6: (u8, u8) = (2, 0);

/// An ICMP error about a segment that was sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The segment's flow, in the peer's direction.
    pub(super) flow: Flow,
    /// The segment's sequence number.
    pub(super) seq: u32,
    /// If the segment was too big: the MTU of the next hop, 0 if the router does not say.
    next_hop_mtu: Option<u16>,
}

impl Report {
    /// Returns a packet with these headers as a report. `None` if it is none, or damaged, or quotes no segment.
    pub(super) fn of(packet: &Packet<'_>, headers: &Headers) -> Option<Self> {
        let icmp = headers.icmp.filter(|icmp| icmp.is_error && headers.fragment.is_none())?;
        let frame = packet.data();
        let quoted = headers.reported(frame).ok()??;
        let flow = Flow::of(&quoted).filter(|_| quoted.protocol == TCP)?.reversed();
        let seq = u32::from_be_bytes(*frame[..headers.at.end].get(quoted.at.transport + 4..)?.first_chunk()?);
        let message = &frame[headers.at.transport..headers.at.end];
        let is_too_big = match headers.protocol {
            ICMP => (icmp.kind, icmp.code) == TOO_BIG_V4,
            _ => (icmp.kind, icmp.code) == TOO_BIG_V6,
        };
        let mtu = if headers.protocol == ICMP {
            u16::from_be_bytes(*message[6..].first_chunk()?)
        } else {
            u16::try_from(u32::from_be_bytes(*message[4..].first_chunk()?)).unwrap_or(u16::MAX)
        };
        let is_right = headers.l4_checksum(frame) == Checksum::Good;
        is_right.then_some(Self { flow, seq, next_hop_mtu: is_too_big.then_some(mtu) })
    }

    /// Returns the MTU of the path, if the report says that it is smaller than `mtu`.
    pub(super) fn smaller_mtu(&self, mtu: u16) -> Option<u16> {
        let said = self.next_hop_mtu?;
        let least = if self.flow.is_v4() { MTU_MIN_V4 } else { MTU_MIN_V6 };
        let believed = match said {
            0 => PLATEAUS.into_iter().find(|plateau| *plateau < mtu)?,
            said => said,
        };
        Some(believed.max(least)).filter(|believed| *believed < mtu)
    }
}
