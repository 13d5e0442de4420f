//! Turns a UDP datagram into its echo, in place. It has no state, does not allocate, and does not panic on any bytes.
//!
//! The frame's length, VLAN tags, IP options, the traffic class and the payload stay unchanged. So does the UDP
//! checksum: it covers addresses and ports, but swapping them does not change the sum.

use pinion_sdk::Checksum;
use pinion_sdk::wire::{
    EthernetAddress, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet, Ipv6Address, Ipv6Packet, UdpPacket,
};

/// Hop limit of answers.
const HOP_LIMIT: u8 = 64;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

/// Most VLAN tags that are skipped: one, or a provider's and a customer's.
const VLAN_TAGS_MAX: usize = 2;

/// Why a frame gets no answer. The frame may be partly turned then, and must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Shorter than its headers say.
    Truncated,
    /// Its destination is a group address, or its source is not a valid host address.
    NotUnicast,
    /// One of its ports is 0; port 0 cannot be answered.
    NoPort,
    /// A fragment of an IPv4 datagram.
    Fragment,
    /// The checksum of the IPv4 header or of the datagram is wrong.
    BadChecksum,
    /// It is not a UDP datagram.
    OtherTraffic,
}

/// Turns the frame of a datagram into that of its answer. `found` is what the device reported about its checksum.
///
/// # Errors
///
/// The frame gets no answer.
pub fn turn(frame: &mut [u8], found: Checksum) -> Result<(), Ignored> {
    let (addresses, rest) = frame.split_at_mut_checked(12).ok_or(Ignored::Truncated)?;
    let (ethertype, packet) = network_layer(rest)?;
    match ethertype {
        ETHERTYPE_IPV4 => turn_ipv4(packet, found)?,
        ETHERTYPE_IPV6 => turn_ipv6(packet, found)?,
        _ => return Err(Ignored::OtherTraffic),
    }
    turn_ethernet(addresses)
}

/// Skips up to two VLAN tags; returns the EtherType and its payload.
fn network_layer(rest: &mut [u8]) -> Result<([u8; 2], &mut [u8]), Ignored> {
    let mut rest = rest;
    for _ in 0..=VLAN_TAGS_MAX {
        let (ethertype, payload) = rest.split_first_chunk_mut::<2>().ok_or(Ignored::Truncated)?;
        if !matches!(*ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) {
            return Ok((*ethertype, payload));
        }
        rest = payload.get_mut(2..).ok_or(Ignored::Truncated)?;
    }
    Err(Ignored::OtherTraffic)
}

fn turn_ethernet(addresses: &mut [u8]) -> Result<(), Ignored> {
    let (destination, source) = addresses.split_at_mut_checked(6).ok_or(Ignored::Truncated)?;
    if !EthernetAddress::from_bytes(destination).is_unicast() || !EthernetAddress::from_bytes(source).is_unicast() {
        return Err(Ignored::NotUnicast);
    }
    destination.swap_with_slice(source);
    Ok(())
}

fn turn_ipv4(packet: &mut [u8], found: Checksum) -> Result<(), Ignored> {
    let mut ip = Ipv4Packet::new_checked(packet).map_err(|_| Ignored::Truncated)?;
    if ip.version() != 4 || ip.next_header() != IpProtocol::Udp {
        return Err(Ignored::OtherTraffic);
    }
    if ip.more_frags() || ip.frag_offset() != 0 {
        return Err(Ignored::Fragment);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    if !is_host_ipv4(source) || !is_host_ipv4(destination) {
        return Err(Ignored::NotUnicast);
    }
    if !ip.verify_checksum() {
        return Err(Ignored::BadChecksum);
    }
    turn_udp(ip.payload_mut(), source.into(), destination.into(), found)?;
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(HOP_LIMIT);
    ip.fill_checksum();
    Ok(())
}

fn turn_ipv6(packet: &mut [u8], found: Checksum) -> Result<(), Ignored> {
    let mut ip = Ipv6Packet::new_checked(packet).map_err(|_| Ignored::Truncated)?;
    if ip.version() != 6 || ip.next_header() != IpProtocol::Udp {
        return Err(Ignored::OtherTraffic);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    if !is_host_ipv6(source) || !is_host_ipv6(destination) {
        return Err(Ignored::NotUnicast);
    }
    turn_udp(ip.payload_mut(), source.into(), destination.into(), found)?;
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(HOP_LIMIT);
    Ok(())
}

fn turn_udp(datagram: &mut [u8], source: IpAddress, destination: IpAddress, found: Checksum) -> Result<(), Ignored> {
    let mut udp = UdpPacket::new_checked(datagram).map_err(|_| Ignored::Truncated)?;
    let (from, to) = (udp.src_port(), udp.dst_port());
    if from == 0 || to == 0 {
        return Err(Ignored::NoPort);
    }
    // Over IPv6 the checksum is mandatory.
    let lacks_checksum = udp.checksum() == 0 && matches!(source, IpAddress::Ipv6(_));
    let right = match found {
        Checksum::Good => true,
        Checksum::Bad => false,
        Checksum::Unknown => udp.verify_checksum(&source, &destination),
    };
    if lacks_checksum || !right {
        return Err(Ignored::BadChecksum);
    }
    udp.set_src_port(to);
    udp.set_dst_port(from);
    Ok(())
}

fn is_host_ipv4(address: Ipv4Address) -> bool {
    !(address.is_multicast() || address.is_broadcast() || address.is_unspecified())
}

fn is_host_ipv6(address: Ipv6Address) -> bool {
    !(address.is_multicast() || address.is_unspecified())
}
