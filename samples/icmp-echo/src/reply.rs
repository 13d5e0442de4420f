//! Turns an echo request into its reply, in place. It has no state, does not allocate, and does not panic on any bytes.
//!
//! The frame's length, VLAN tags, IP options, the traffic class and the payload stay unchanged. So a reply takes one
//! pass over the message, to verify the request's checksum. The reply's checksum follows from the request's, as only
//! the type differs. If the message sums up to zero, which at most one in 65,536 does, the reply's checksum is computed
//! anew: a message of zeros has 0xffff, any other has 0x0000.

use pinion_sdk::checksum;
use pinion_sdk::wire::{
    EthernetAddress, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv6Address, Ipv6Packet,
};

/// Hop limit of replies.
const HOP_LIMIT: u8 = 64;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

/// Most VLAN tags that are skipped: one, or a provider's and a customer's.
const VLAN_TAGS_MAX: usize = 2;

/// Why a frame gets no reply. The frame may be partly turned then, and must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// Shorter than its headers say.
    Truncated,
    /// Its destination is a group address, or its source is not a valid host address.
    NotUnicast,
    /// A fragment of an IPv4 datagram.
    Fragment,
    /// The checksum of the IPv4 header or of the message is wrong.
    BadChecksum,
    /// It is not an echo request.
    OtherTraffic,
}

/// Turns the frame of an echo request into that of its reply.
///
/// # Errors
///
/// The frame gets no reply.
pub fn turn(frame: &mut [u8]) -> Result<(), Ignored> {
    let (addresses, rest) = frame.split_at_mut_checked(12).ok_or(Ignored::Truncated)?;
    let (ethertype, datagram) = network_layer(rest)?;
    match ethertype {
        ETHERTYPE_IPV4 => turn_ipv4(datagram)?,
        ETHERTYPE_IPV6 => turn_ipv6(datagram)?,
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

fn turn_ipv4(datagram: &mut [u8]) -> Result<(), Ignored> {
    let mut ip = Ipv4Packet::new_checked(datagram).map_err(|_| Ignored::Truncated)?;
    if ip.version() != 4 || ip.next_header() != IpProtocol::Icmp {
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
    turn_icmpv4(ip.payload_mut())?;
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(HOP_LIMIT);
    ip.fill_checksum();
    Ok(())
}

fn turn_icmpv4(message: &mut [u8]) -> Result<(), Ignored> {
    let mut icmp = Icmpv4Packet::new_checked(message).map_err(|_| Ignored::Truncated)?;
    if icmp.msg_type() != Icmpv4Message::EchoRequest || icmp.msg_code() != 0 {
        return Err(Ignored::OtherTraffic);
    }
    if !icmp.verify_checksum() {
        return Err(Ignored::BadChecksum);
    }
    icmp.set_msg_type(Icmpv4Message::EchoReply);
    let (request, reply) = (Icmpv4Message::EchoRequest.into(), Icmpv4Message::EchoReply.into());
    match checksum::update(icmp.checksum(), first_word(request), first_word(reply)) {
        // The difference does not tell which of the two representations of zero is right.
        0 | 0xffff => icmp.fill_checksum(),
        sum => icmp.set_checksum(sum),
    }
    Ok(())
}

fn turn_ipv6(datagram: &mut [u8]) -> Result<(), Ignored> {
    let mut ip = Ipv6Packet::new_checked(datagram).map_err(|_| Ignored::Truncated)?;
    if ip.version() != 6 || ip.next_header() != IpProtocol::Icmpv6 {
        return Err(Ignored::OtherTraffic);
    }
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    if !is_host_ipv6(source) || !is_host_ipv6(destination) {
        return Err(Ignored::NotUnicast);
    }
    turn_icmpv6(ip.payload_mut(), source, destination)?;
    ip.set_src_addr(destination);
    ip.set_dst_addr(source);
    ip.set_hop_limit(HOP_LIMIT);
    Ok(())
}

fn turn_icmpv6(message: &mut [u8], source: Ipv6Address, destination: Ipv6Address) -> Result<(), Ignored> {
    let mut icmp = Icmpv6Packet::new_checked(message).map_err(|_| Ignored::Truncated)?;
    if icmp.msg_type() != Icmpv6Message::EchoRequest || icmp.msg_code() != 0 {
        return Err(Ignored::OtherTraffic);
    }
    if !icmp.verify_checksum(&source, &destination) {
        return Err(Ignored::BadChecksum);
    }
    icmp.set_msg_type(Icmpv6Message::EchoReply);
    // The sum covers the addresses, but swapping them does not change it. As the pseudo header makes the data never all
    // zero,
    // their checksum is never 0xffff.
    icmp.set_checksum(checksum::update(
        icmp.checksum(),
        first_word(Icmpv6Message::EchoRequest.into()),
        first_word(Icmpv6Message::EchoReply.into()),
    ));
    Ok(())
}

/// Returns the first word of a message of this type, with code zero.
fn first_word(message_type: u8) -> u16 {
    u16::from_be_bytes([message_type, 0])
}

fn is_host_ipv4(address: Ipv4Address) -> bool {
    !(address.is_multicast() || address.is_broadcast() || address.is_unspecified())
}

fn is_host_ipv6(address: Ipv6Address) -> bool {
    !(address.is_multicast() || address.is_unspecified())
}
