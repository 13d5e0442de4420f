//! Turns a UDP datagram into its echo, in place. No state, no allocation, and no panic on any bytes.
//!
//! The frame's length, VLAN tags, IP options, the traffic class and the payload stay as they are. The UDP checksum does too: it
//! covers addresses and ports, but a sum does not mind them swapped.

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

/// VLAN tags looked past: one, or a provider's and a customer's.
const VLAN_TAGS_MAX: usize = 2;

/// Why a frame gets no answer. It may be half turned then, and is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Shorter than its headers say.
    Truncated,
    /// To a group, or from an address that nobody can have.
    NotUnicast,
    /// From port 0, which nobody can be answered at, or to it.
    NoPort,
    /// A part of an IPv4 datagram only.
    Fragment,
    /// The IPv4 header's checksum or the datagram's is wrong.
    BadChecksum,
    /// No UDP datagram.
    OtherTraffic,
}

/// Turns the frame of a datagram into that of its answer. `found` is what is known of the datagram's checksum.
///
/// # Errors
///
/// The frame deserves no answer.
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

/// What follows the MAC addresses, and perhaps VLAN tags: the EtherType and its payload.
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
    // Over IPv6 there is no doing without.
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
