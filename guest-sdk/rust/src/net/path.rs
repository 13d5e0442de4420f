//! What routers and hosts say about the path to a peer: ICMP errors about what was sent there.
//!
//! An error about TCP is believed only if it quotes a segment that may still be on its way (RFC 5927, section 4): a sender that does not see
//! the connection would have to guess its sequence number. Only a smaller MTU changes an open connection, which outlives routes that come
//! and go (RFC 5461). Where big packets vanish without any error, smaller ones are tried (RFC 4821, in its simplest form). One that is
//! being opened fails. About UDP, only errors that quote a flow of the function's own are believed: the node chooses its port at random.

use super::link::Flow;
use crate::headers::{Headers, ICMP, TCP, UDP};
use crate::{Checksum, Packet};

/// The least MTU that is believed: with less, headers would be most of the traffic. For IPv6 it is the least that there is (RFC 8200).
const MTU_MIN_V4: u16 = 552;
/// See [`MTU_MIN_V4`].
const MTU_MIN_V6: u16 = 1280;
/// What is tried if a router says nothing of its MTU (RFC 1191, section 7).
const PLATEAUS: [u16; 4] = [1492, 1006, 576, MTU_MIN_V4];

/// Sizes of packets that are tried if larger ones seem to vanish without an error.
const FALLBACKS_V4: [u16; 2] = [1280, MTU_MIN_V4];
/// See [`FALLBACKS_V4`].
const FALLBACKS_V6: [u16; 1] = [MTU_MIN_V6];

/// How often a packet is sent again before it is taken for too big (RFC 4821, section 7.7: a full stop), and once it was made smaller.
pub(super) const REPEATS_MIN: u8 = 2;
/// See [`REPEATS_MIN`].
pub(super) const REPEATS_MIN_AGAIN: u8 = 1;

/// Returns the MTU to try for a path on which a packet of so many bytes has vanished again and again. `None` if it is small enough for
/// every path.
pub(super) fn fallback_mtu(flow: &Flow, bytes: u16) -> Option<u16> {
    let fallbacks: &[u16] = if flow.is_v4() { &FALLBACKS_V4 } else { &FALLBACKS_V6 };
    fallbacks.iter().copied().find(|fallback| *fallback < bytes)
}

/// What has become of a packet, as an ICMP error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// *Fragmentation needed* or *packet too big*, with the MTU of the next hop; 0 if the router does not say.
    TooBig(u16),
    /// The host, or its network, cannot be reached.
    Unreachable,
    /// The host has no socket at the port, or does not know the protocol.
    NoSocket,
    Other,
}

impl Cause {
    /// Returns what a message of ICMP (RFC 792, RFC 1812, section 5.2.7) or ICMPv6 (RFC 4443) says.
    fn of(protocol: u8, kind: u8, code: u8, message: &[u8]) -> Option<Self> {
        Some(match (protocol == ICMP, kind, code) {
            (true, 3, 4) => Self::TooBig(u16::from_be_bytes(*message.get(6..)?.first_chunk()?)),
            (true, 3, 2 | 3) | (false, 1, 4) => Self::NoSocket,
            (true, 3 | 11, _) | (false, 1 | 3, _) => Self::Unreachable,
            (false, 2, 0) => {
                Self::TooBig(u16::try_from(u32::from_be_bytes(*message.get(4..)?.first_chunk()?)).unwrap_or(u16::MAX))
            }
            _ => Self::Other,
        })
    }
}

/// What an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoted {
    /// A TCP segment with this sequence number.
    Segment(u32),
    Datagram,
}

/// An ICMP error about a packet that was sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// The packet's flow, in the peer's direction.
    pub(super) flow: Flow,
    pub(super) quoted: Quoted,
    pub(super) cause: Cause,
}

impl Report {
    /// Returns a packet with these headers as a report. `None` if it is none, or damaged, or quotes neither a segment nor a datagram.
    pub(super) fn of(packet: &Packet<'_>, headers: &Headers) -> Option<Self> {
        let icmp = headers.icmp.filter(|icmp| icmp.is_error && headers.fragment.is_none())?;
        let frame = packet.data();
        let quoted = headers.reported(frame).ok()??;
        let flow = Flow::by(packet, &quoted)?.reversed();
        let quoted = match quoted.protocol {
            TCP => {
                let seq = frame[..headers.at.end].get(quoted.at.transport + 4..)?.first_chunk()?;
                Quoted::Segment(u32::from_be_bytes(*seq))
            }
            UDP => Quoted::Datagram,
            _ => return None,
        };
        let cause = Cause::of(headers.protocol, icmp.kind, icmp.code, &frame[headers.at.transport..headers.at.end])?;
        let is_right = headers.l4_checksum(frame) == Checksum::Good;
        is_right.then_some(Self { flow, quoted, cause })
    }

    /// Returns the MTU of the path, if the report says that it is smaller than `mtu`.
    pub(super) fn smaller_mtu(&self, mtu: u16) -> Option<u16> {
        let Cause::TooBig(said) = self.cause else { return None };
        let least = if self.flow.is_v4() { MTU_MIN_V4 } else { MTU_MIN_V6 };
        let believed = match said {
            0 => PLATEAUS.into_iter().find(|plateau| *plateau < mtu)?,
            said => said,
        };
        Some(believed.max(least)).filter(|believed| *believed < mtu)
    }
}
