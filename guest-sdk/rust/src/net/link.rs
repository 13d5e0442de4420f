//! Frames and their segments: [`Segment`] reads what is needed before the connection is known, and [`Link`] is the Ethernet header of an
//! answer.
//!
//! No hardware address is resolved. An answer goes to the source address of the peer's frame, from its destination address, with the same
//! VLAN tags, by the way by which that frame came.

use core::net::{IpAddr, SocketAddr};

use smoltcp::wire::{Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};

use super::cookie::Offer;
use super::sequence::{Arrived, Changes};
use crate::headers::{Addresses, Headers, Pair, TCP, TcpFlags};
use crate::{Checksum, Direction, Packet, Way};

/// Addresses, two VLAN tags, and the type of what follows.
const HEADER_MAX: usize = 12 + 2 * 4 + 2;
/// The same without tags.
const HEADER_MIN: usize = 12 + 2;
const IPV6_HEADER: usize = 40;

/// Which side a flow's peer is on, by the node's own record of each packet: no address says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A port of the node's.
    Network,
    /// A later stage of the chain. Its answers are replies that go backwards.
    NextStage,
}

impl Origin {
    /// Returns the origin of a packet; `None` for replies of earlier stages, which are for no socket.
    fn of(packet: &Packet<'_>) -> Option<Self> {
        if !packet.is_reply() {
            return Some(Self::Network);
        }
        (packet.direction() == Some(Direction::Backward)).then_some(Self::NextStage)
    }
}

/// The two endpoints of a connection, in the peer's direction: the peer is the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    addresses: Addresses,
    ports: Pair<u16>,
    origin: Origin,
}

impl Flow {
    /// Returns the flow of a packet of the network with these headers, if it has ports.
    pub(super) fn of(headers: &Headers) -> Option<Self> {
        Some(Self { addresses: headers.addresses, ports: headers.ports?, origin: Origin::Network })
    }

    /// Returns the flow of a packet with these headers, if it has ports and its origin has sockets. Headers that it quotes are of the same
    /// origin.
    pub(super) fn by(packet: &Packet<'_>, headers: &Headers) -> Option<Self> {
        Some(Self { origin: Origin::of(packet)?, ..Self::of(headers)? })
    }

    /// Returns the flow of a connection to the next stage that continues this one: between the same hosts, from `local_port` of the peer to
    /// `port`.
    pub(super) fn onwards(&self, port: u16, local_port: u16) -> Self {
        let ports = Pair { source: port, destination: local_port };
        Self { addresses: self.addresses.reversed(), ports, origin: Origin::NextStage }
    }

    /// Returns whether the peer is the chain's next stage.
    pub(super) fn is_of_next_stage(&self) -> bool {
        self.origin == Origin::NextStage
    }

    /// Returns the flow between a peer and a local end; `None` if they are of two versions of IP.
    pub(super) fn between(peer: SocketAddr, local: SocketAddr) -> Option<Self> {
        let addresses = match (peer.ip(), local.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Addresses::V4(Pair { source: source.to_bits(), destination: destination.to_bits() })
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Addresses::V6(Pair { source: source.to_bits(), destination: destination.to_bits() })
            }
            _ => return None,
        };
        let ports = Pair { source: peer.port(), destination: local.port() };
        Some(Self { addresses, ports, origin: Origin::Network })
    }

    /// Returns whether both ends are those of hosts that can answer each other.
    pub(super) fn is_between_hosts(&self) -> bool {
        let (peer, local) = (self.peer(), self.local());
        is_host(peer.ip()) && is_host(local.ip()) && peer.port() != 0 && local.port() != 0 && peer != local
    }

    /// Returns the same flow in the opposite direction.
    pub(super) fn reversed(&self) -> Self {
        Self { addresses: self.addresses.reversed(), ports: self.ports.reversed(), origin: self.origin }
    }

    /// Returns addresses and ports, and a byte that tells the versions of IP and the origins apart.
    pub(super) fn to_bytes(self) -> [u8; 37] {
        let mut bytes = [0; 37];
        match self.addresses {
            Addresses::V4(pair) => {
                bytes[..4].copy_from_slice(&pair.source.to_be_bytes());
                bytes[4..8].copy_from_slice(&pair.destination.to_be_bytes());
            }
            Addresses::V6(pair) => {
                bytes[..16].copy_from_slice(&pair.source.to_be_bytes());
                bytes[16..32].copy_from_slice(&pair.destination.to_be_bytes());
                bytes[36] = 1;
            }
        }
        bytes[32..34].copy_from_slice(&self.ports.source.to_be_bytes());
        bytes[34..36].copy_from_slice(&self.ports.destination.to_be_bytes());
        bytes[36] |= u8::from(self.is_of_next_stage()) << 1;
        bytes
    }

    pub(super) fn is_v4(&self) -> bool {
        matches!(self.addresses, Addresses::V4(_))
    }

    pub(super) fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.source(), self.ports.source)
    }

    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.destination(), self.ports.destination)
    }
}

/// The Ethernet header of frames to a peer, and the way by which they go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    bytes: [u8; HEADER_MAX],
    len: u8,
    way: Way,
    /// That of the peer's frames, in a chain with a way back.
    direction: Option<Direction>,
    exit: Exit,
}

/// How frames leave the function by a link.
#[derive(Clone, Copy, Debug)]
enum Exit {
    /// Towards the port of the link's way.
    Reply,
    /// By the stage's first output.
    NextStage,
}

impl Link {
    /// That of no peer: nothing is sent by it.
    pub(super) const NONE: Self =
        Self { bytes: [0; HEADER_MAX], len: 0, way: Way { number: 0, port: 0 }, direction: None, exit: Exit::Reply };

    /// Returns the link of frames with this header. `None` if it is no Ethernet header with two VLAN tags at most.
    pub(super) fn with_header(header: &[u8], way: Way) -> Option<Self> {
        let mut link = Self { len: header.len() as u8, way, ..Self::NONE };
        link.bytes.get_mut(..header.len())?.copy_from_slice(header);
        (header.len() >= HEADER_MIN).then_some(link)
    }

    /// Returns the link of an answer to a frame with this header that came by this way. `None` if the frame came from or to a group
    /// address: such a frame is not answered.
    pub(super) fn answering(header: &[u8], way: Way) -> Option<Self> {
        let mut link = Self::with_header(header, way)?;
        let (addresses, _) = link.bytes.split_first_chunk_mut::<12>()?;
        addresses.rotate_left(6);
        (addresses[0] & 1 == 0 && addresses[6] & 1 == 0).then_some(link)
    }

    /// Returns the link of a flow that the function has opened, with this VLAN and by this way. The node writes the hardware addresses.
    pub(super) fn of_flow(flow: &Flow, vlan: u16, way: Way) -> Self {
        let mut link = Self { way, len: 14, ..Self::NONE };
        let ethertype: [u8; 2] = if flow.is_v4() { [0x08, 0x00] } else { [0x86, 0xdd] };
        if vlan == 0 {
            link.bytes[12..14].copy_from_slice(&ethertype);
        } else {
            let [high, low] = vlan.to_be_bytes();
            link.bytes[12..18].copy_from_slice(&[0x81, 0x00, high, low, ethertype[0], ethertype[1]]);
            link.len = 18;
        }
        link
    }

    /// Returns the link by which the next stage gets what seems to come from this link's peer. `None` if its answers would not come back:
    /// the peer's frames do not go forwards through a chain with a way back.
    pub(super) fn onwards(&self) -> Option<Self> {
        let mut link = Self { direction: None, exit: Exit::NextStage, ..*self };
        let (addresses, _) = link.bytes.split_first_chunk_mut::<12>()?;
        addresses.rotate_left(6);
        (self.direction == Some(Direction::Forward)).then_some(link)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// Sends a packet that was made for this link's [way](Link::way).
    pub(super) fn send(&self, packet: Packet<'_>) {
        match self.exit {
            Exit::Reply => packet.reply(),
            Exit::NextStage => packet.send(),
        }
    }
}

/// A whole TCP segment with correct checksums, between hosts that can answer each other.
pub(super) struct Segment<'p> {
    pub(super) flow: Flow,
    pub(super) flags: TcpFlags,
    pub(super) link: Link,
    /// From the IP header to the end of the payload.
    pub(super) ip: &'p [u8],
    /// Offsets of the TCP header and of the payload in `ip`.
    tcp_at: usize,
    payload_at: usize,
}

impl<'p> Segment<'p> {
    /// Returns a packet with these headers as a segment. `None` if it is none, or damaged, or cannot be answered.
    pub(super) fn of(packet: &'p Packet<'_>, headers: &Headers) -> Option<Self> {
        let frame = packet.data();
        if headers.protocol != TCP || headers.fragment.is_some() || has_extensions(headers) {
            return None;
        }
        let flow = Flow::by(packet, headers).filter(Flow::is_between_hosts)?;
        let link = Link::answering(&frame[..headers.at.network], packet.way())?;
        let link = Link { direction: packet.direction(), ..link };
        let start = headers.at.network;
        let segment = Self {
            flow,
            flags: headers.tcp_flags?,
            link,
            ip: &frame[start..headers.at.end],
            tcp_at: headers.at.transport - start,
            payload_at: headers.at.payload - start,
        };
        (ip_is_right(segment.ip, packet.ip_checksum()) && segment.tcp_is_right(packet.l4_checksum())).then_some(segment)
    }

    /// Returns the fields by which the segment is judged.
    pub(super) fn arrived(&self) -> Arrived {
        let tcp = self.tcp();
        Arrived {
            flags: self.flags,
            seq: tcp.seq_number().0 as u32,
            ack: tcp.ack_number().0 as u32,
            len: (self.ip.len() - self.payload_at) as u32,
            window: tcp.window_len(),
        }
    }

    /// Returns what it offers, if it is a SYN.
    pub(super) fn offer(&self) -> Offer {
        Offer::of(&self.tcp())
    }

    /// Writes the segment with changes. Its checksums are wrong afterwards.
    pub(super) fn write_changed(&self, changes: &Changes, ip: &mut Vec<u8>) {
        let is_cut = changes.without_payload || changes.only_reset;
        let end = if is_cut { self.payload_at } else { self.ip.len() };
        ip.clear();
        ip.extend_from_slice(&self.ip[..end]);
        match self.flow.addresses {
            Addresses::V4(_) => Ipv4Packet::new_unchecked(&mut ip[..]).set_total_len(end as u16),
            Addresses::V6(_) => Ipv6Packet::new_unchecked(&mut ip[..]).set_payload_len((end - IPV6_HEADER) as u16),
        }
        let mut tcp = TcpPacket::new_unchecked(&mut ip[self.tcp_at..]);
        if let Some(ack) = changes.ack {
            tcp.set_ack_number(TcpSeqNumber(ack as i32));
        }
        if let Some(seq) = changes.fin_at {
            tcp.set_seq_number(TcpSeqNumber(seq as i32));
        }
        if changes.without_fin {
            tcp.set_fin(false);
        }
        if changes.only_reset {
            tcp.clear_flags();
            tcp.set_rst(true);
        }
    }

    fn tcp(&self) -> TcpPacket<&'p [u8]> {
        TcpPacket::new_unchecked(&self.ip[self.tcp_at..])
    }

    /// Returns whether the segment opens a connection.
    pub(super) fn opens(&self) -> bool {
        self.flags.syn() && !self.flags.ack() && !self.flags.rst() && !self.flags.fin()
    }

    fn tcp_is_right(&self, found: Checksum) -> bool {
        match found {
            Checksum::Good => true,
            Checksum::Bad => false,
            Checksum::Unknown => {
                let (source, destination) = (self.flow.peer().ip().into(), self.flow.local().ip().into());
                let segment = TcpPacket::new_checked(&self.ip[self.tcp_at..]);
                segment.is_ok_and(|segment| segment.verify_checksum(&source, &destination))
            }
        }
    }
}

/// Returns whether an IP packet's own checksum is right, if it has one, with what the device has found.
pub(super) fn ip_is_right(ip: &[u8], found: Checksum) -> bool {
    match found {
        _ if ip.first().is_some_and(|first| first >> 4 == 6) => true,
        Checksum::Good => true,
        Checksum::Bad => false,
        Checksum::Unknown => Ipv4Packet::new_checked(ip).is_ok_and(|packet| packet.verify_checksum()),
    }
}

fn has_extensions(headers: &Headers) -> bool {
    matches!(headers.addresses, Addresses::V6(_)) && headers.at.transport != headers.at.network + IPV6_HEADER
}

fn is_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}
