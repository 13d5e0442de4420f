//! Frames and the segments in them: what is to be read before a connection is known ([`Segment`]), and what an answer begins
//! with ([`Link`]).
//!
//! Nobody is asked for a hardware address. An answer goes to the station that the peer's frame came from, from the one that it was sent to, with the
//! same VLAN tags.

use core::net::{IpAddr, SocketAddr};

use smoltcp::wire::{Ipv4Packet, TcpPacket};

use crate::headers::{Addresses, Headers, Pair, TCP, TcpFlags};
use crate::{Checksum, Packet};

/// Addresses, two VLAN tags, and the type of what follows.
const HEADER_MAX: usize = 12 + 2 * 4 + 2;
const IPV6_HEADER: usize = 40;

/// Who speaks with whom, as the peer's frames have it: it is the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    addresses: Addresses,
    ports: Pair<u16>,
}

impl Flow {
    pub(super) fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.source(), self.ports.source)
    }

    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.destination(), self.ports.destination)
    }
}

/// The Ethernet header of frames to a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    bytes: [u8; HEADER_MAX],
    len: u8,
}

impl Link {
    /// That of an answer to a frame with this header. None if it came from or to a group: such a frame is answered by nobody.
    fn answering(header: &[u8]) -> Option<Self> {
        let mut link = Self { bytes: [0; HEADER_MAX], len: header.len() as u8 };
        link.bytes.get_mut(..header.len())?.copy_from_slice(header);
        let (addresses, _) = link.bytes.split_first_chunk_mut::<12>()?;
        addresses.rotate_left(6);
        (addresses[0] & 1 == 0 && addresses[6] & 1 == 0).then_some(link)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A whole TCP segment with right checksums, between hosts that can answer each other.
pub(super) struct Segment<'p> {
    pub(super) flow: Flow,
    pub(super) flags: TcpFlags,
    pub(super) link: Link,
    /// From the IP header to the end of the payload.
    pub(super) ip: &'p [u8],
}

impl<'p> Segment<'p> {
    pub(super) fn of(packet: &'p Packet<'_>) -> Option<Self> {
        let frame = packet.data();
        let headers = Headers::of(frame).ok()?;
        if headers.protocol != TCP || headers.fragment.is_some() || has_extensions(&headers) {
            return None;
        }
        let flow = Flow { addresses: headers.addresses, ports: headers.ports? };
        let (peer, local) = (flow.peer(), flow.local());
        if !is_host(peer.ip()) || !is_host(local.ip()) || peer.port() == 0 || local.port() == 0 || peer == local {
            return None;
        }
        let link = Link::answering(&frame[..headers.at.network])?;
        let segment = Self { flow, flags: headers.tcp_flags?, link, ip: &frame[headers.at.network..headers.at.end] };
        (segment.ip_is_right(packet.ip_checksum()) && segment.tcp_is_right(packet.l4_checksum(), &headers))
            .then_some(segment)
    }

    /// Whether a connection is to begin.
    pub(super) fn opens(&self) -> bool {
        self.flags.syn() && !self.flags.ack() && !self.flags.rst() && !self.flags.fin()
    }

    fn ip_is_right(&self, found: Checksum) -> bool {
        match (self.flow.addresses, found) {
            (Addresses::V6(_), _) | (Addresses::V4(_), Checksum::Good) => true,
            (Addresses::V4(_), Checksum::Bad) => false,
            (Addresses::V4(_), Checksum::Unknown) => {
                Ipv4Packet::new_checked(self.ip).is_ok_and(|packet| packet.verify_checksum())
            }
        }
    }

    fn tcp_is_right(&self, found: Checksum, headers: &Headers) -> bool {
        match found {
            Checksum::Good => true,
            Checksum::Bad => false,
            Checksum::Unknown => {
                let segment = &self.ip[headers.at.transport - headers.at.network..];
                let (source, destination) = (self.flow.peer().ip().into(), self.flow.local().ip().into());
                TcpPacket::new_checked(segment).is_ok_and(|segment| segment.verify_checksum(&source, &destination))
            }
        }
    }
}

fn has_extensions(headers: &Headers) -> bool {
    matches!(headers.addresses, Addresses::V6(_)) && headers.at.transport != headers.at.network + IPV6_HEADER
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}
