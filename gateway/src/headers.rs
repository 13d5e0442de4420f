//! Reads a frame's headers, once: what it is and which flow it belongs to. Called by the gateway for each frame.
//!
//! Every byte here is foreign. All fields are read through smoltcp's views after their lengths have been checked, so
//! no input can make this panic, and each way to be malformed has its [`DropReason`]. Not verified:
//! * **TCP, UDP and ICMP checksums.** A virtual Ethernet pair or a TAP device hands over frames whose transport
//!   checksum the sender's kernel left for hardware that isn't there; and whoever ends a connection checks its own.
//! * **Fragments are not put together.** Only the first one carries ports, so the others are a flow of their own with
//!   ports 0; a policy or rule that looks at ports will not see them as part of the first one's flow.
//!
//! Allocates nothing; the work is bounded by [`EXTENSIONS_MAX`].

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use pinion_mma::id::PortIndex;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6FragmentHeader,
    Ipv6Packet, TcpPacket, UdpPacket,
};

use crate::drops::DropReason;

/// IPv6 extension headers read before a frame is given up; all that RFC 8200 defines, once each, are fewer.
pub const EXTENSIONS_MAX: usize = 8;

const IPV4_HEADER_MIN: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER_MIN: usize = 20;
const UDP_HEADER: usize = 8;
/// IEEE 802.1Q and 802.1ad.
const VLAN_ETHERTYPES: [u16; 2] = [0x8100, 0x88a8];

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// An ARP message.
    Arp,
    /// Router or neighbour discovery over IPv6 (ICMPv6 types 133 to 137): the link's own business, never an FWP's.
    NeighborDiscovery,
    /// Anything else over IP.
    Flow(FlowKey),
}

/// What tells one flow from another: addresses, protocol, ports, and where it came in.
///
/// Ports are 0 where there are none: in ICMP and other protocols, and in all fragments but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// Who sent it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// The IP protocol's number.
    pub protocol: u8,
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// The port of the gateway it was received by.
    pub ingress: PortIndex,
}

impl FlowKey {
    /// The flow, wherever it came in.
    #[must_use]
    pub fn five_tuple(&self) -> FiveTuple {
        FiveTuple {
            source: self.source,
            destination: self.destination,
            protocol: self.protocol,
            source_port: self.source_port,
            destination_port: self.destination_port,
        }
    }
}

impl Hash for FlowKey {
    // One write of all fields: several times cheaper than the derived implementation's many small ones.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&packed(&self.five_tuple(), self.ingress.0));
    }
}

/// Addresses, protocol and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiveTuple {
    /// Who sent it.
    pub source: IpAddr,
    /// Whom it is for.
    pub destination: IpAddr,
    /// The IP protocol's number.
    pub protocol: u8,
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
}

impl Hash for FiveTuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&packed(self, 0));
    }
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, protocol, source_port, destination_port } = self;
        match IpProtocol::from(*protocol) {
            known @ (IpProtocol::Tcp | IpProtocol::Udp) => {
                let name = if known == IpProtocol::Tcp { "tcp" } else { "udp" };
                let (from, to) = ((*source, *source_port), (*destination, *destination_port));
                write!(f, "{name} {} -> {}", std::net::SocketAddr::from(from), std::net::SocketAddr::from(to))
            }
            IpProtocol::Icmp => write!(f, "icmp {source} -> {destination}"),
            IpProtocol::Icmpv6 => write!(f, "icmpv6 {source} -> {destination}"),
            _ => write!(f, "protocol {protocol} {source} -> {destination}"),
        }
    }
}

fn packed(tuple: &FiveTuple, ingress: u16) -> [u8; 40] {
    let mut bytes = [0; 40];
    bytes[..16].copy_from_slice(&wide(tuple.source).octets());
    bytes[16..32].copy_from_slice(&wide(tuple.destination).octets());
    bytes[32..34].copy_from_slice(&tuple.source_port.to_ne_bytes());
    bytes[34..36].copy_from_slice(&tuple.destination_port.to_ne_bytes());
    bytes[36..38].copy_from_slice(&ingress.to_ne_bytes());
    bytes[38] = tuple.protocol;
    bytes[39] = u8::from(tuple.source.is_ipv4());
    bytes
}

fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Reads a frame that came in by `ingress`, whose hardware address is `station`.
///
/// # Errors
/// Why the frame is to be dropped.
pub fn parse(frame: &[u8], ingress: PortIndex, station: EthernetAddress) -> Result<Headers, DropReason> {
    let ethernet = EthernetFrame::new_checked(frame).map_err(|_| DropReason::Truncated)?;
    let receiver = ethernet.dst_addr();
    // Multicast includes broadcast.
    if receiver != station && !receiver.is_multicast() {
        return Err(DropReason::NotForUs);
    }
    if ethernet.src_addr().is_multicast() {
        return Err(DropReason::BadSource);
    }
    match ethernet.ethertype() {
        EthernetProtocol::Arp => Ok(Headers::Arp),
        EthernetProtocol::Ipv4 => parse_ipv4(ethernet.payload(), ingress),
        EthernetProtocol::Ipv6 => parse_ipv6(ethernet.payload(), ingress),
        EthernetProtocol::Unknown(other) if VLAN_ETHERTYPES.contains(&other) => Err(DropReason::VlanTagged),
        EthernetProtocol::Unknown(_) => Err(DropReason::UnknownEthertype),
    }
}

fn parse_ipv4(bytes: &[u8], ingress: PortIndex) -> Result<Headers, DropReason> {
    if bytes.len() < IPV4_HEADER_MIN {
        return Err(DropReason::Truncated);
    }
    let packet = Ipv4Packet::new_unchecked(bytes);
    let (header_len, total_len) = (usize::from(packet.header_len()), usize::from(packet.total_len()));
    if packet.version() != 4 {
        return Err(DropReason::BadVersion);
    }
    if header_len < IPV4_HEADER_MIN || total_len < header_len {
        return Err(DropReason::BadLength);
    }
    if bytes.len() < total_len {
        return Err(DropReason::Truncated);
    }
    let packet = Ipv4Packet::new_checked(bytes).map_err(|_| DropReason::BadLength)?;
    if !packet.verify_checksum() {
        return Err(DropReason::BadChecksum);
    }
    let source = packet.src_addr();
    if source.is_multicast() || source.is_broadcast() {
        return Err(DropReason::BadSource);
    }
    let fragment = match (packet.frag_offset(), packet.more_frags()) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    let ports = ports(packet.next_header(), packet.payload(), fragment)?;
    Ok(Headers::Flow(FlowKey {
        source: source.into(),
        destination: packet.dst_addr().into(),
        protocol: packet.next_header().into(),
        source_port: ports.0,
        destination_port: ports.1,
        ingress,
    }))
}

fn parse_ipv6(bytes: &[u8], ingress: PortIndex) -> Result<Headers, DropReason> {
    if bytes.len() < IPV6_HEADER {
        return Err(DropReason::Truncated);
    }
    let packet = Ipv6Packet::new_unchecked(bytes);
    if packet.version() != 6 {
        return Err(DropReason::BadVersion);
    }
    let packet = Ipv6Packet::new_checked(bytes).map_err(|_| DropReason::Truncated)?;
    let source = packet.src_addr();
    if source.is_multicast() {
        return Err(DropReason::BadSource);
    }
    let Transport { protocol, payload, fragment } = skip_extensions(packet.next_header(), packet.payload())?;
    if protocol == IpProtocol::Icmpv6 && fragment != Fragment::Later {
        let message = payload.first().ok_or(DropReason::Truncated)?;
        if (133..=137).contains(message) {
            return Ok(Headers::NeighborDiscovery);
        }
    }
    let ports = ports(protocol, payload, fragment)?;
    Ok(Headers::Flow(FlowKey {
        source: source.into(),
        destination: packet.dst_addr().into(),
        protocol: protocol.into(),
        source_port: ports.0,
        destination_port: ports.1,
        ingress,
    }))
}

/// What follows the last extension header.
struct Transport<'a> {
    protocol: IpProtocol,
    payload: &'a [u8],
    fragment: Fragment,
}

#[derive(Clone, Copy, PartialEq)]
enum Fragment {
    Whole,
    First,
    Later,
}

fn skip_extensions(first: IpProtocol, bytes: &[u8]) -> Result<Transport<'_>, DropReason> {
    let mut at = Transport { protocol: first, payload: bytes, fragment: Fragment::Whole };
    for _ in 0..=EXTENSIONS_MAX {
        match at.protocol {
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                let header = Ipv6ExtHeader::new_checked(at.payload).map_err(|_| DropReason::Truncated)?;
                let len = (usize::from(header.header_len()) + 1) * 8;
                at.protocol = header.next_header();
                at.payload = at.payload.get(len..).ok_or(DropReason::Truncated)?;
            }
            IpProtocol::Ipv6Frag => {
                let (header, rest) = at.payload.split_at_checked(8).ok_or(DropReason::Truncated)?;
                let fields = Ipv6FragmentHeader::new_checked(&header[2..]).map_err(|_| DropReason::Truncated)?;
                at.protocol = IpProtocol::from(header[0]);
                at.payload = rest;
                at.fragment = match (fields.frag_offset(), fields.more_frags()) {
                    // A packet in one fragment (RFC 6946) is whole.
                    (0, false) => at.fragment,
                    (0, true) => Fragment::First,
                    // What follows is a piece from the middle of something: no header to be read there.
                    _ => return Ok(Transport { fragment: Fragment::Later, ..at }),
                };
            }
            _ => return Ok(at),
        }
    }
    Err(DropReason::TooManyExtensions)
}

fn ports(protocol: IpProtocol, payload: &[u8], fragment: Fragment) -> Result<(u16, u16), DropReason> {
    match (protocol, fragment) {
        (_, Fragment::Later) => Ok((0, 0)),
        (IpProtocol::Tcp, _) => {
            if payload.len() < TCP_HEADER_MIN {
                return Err(DropReason::Truncated);
            }
            let tcp = TcpPacket::new_checked(payload).map_err(|_| DropReason::BadLength)?;
            Ok((tcp.src_port(), tcp.dst_port()))
        }
        (IpProtocol::Udp, _) => {
            if payload.len() < UDP_HEADER {
                return Err(DropReason::Truncated);
            }
            let udp = UdpPacket::new_unchecked(payload);
            // The length of a datagram in fragments is over that of the first one.
            if fragment == Fragment::Whole && udp.check_len().is_err() {
                return Err(DropReason::BadLength);
            }
            Ok((udp.src_port(), udp.dst_port()))
        }
        _ => Ok((0, 0)),
    }
}

#[cfg(test)]
mod tests;
