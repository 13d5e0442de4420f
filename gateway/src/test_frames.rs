//! Frames for tests, built byte by byte, on purpose without the library with which the code under test reads and writes
//! frames.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;

pub(crate) const STATION: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
pub(crate) const CLIENT: [u8; 6] = [0x02, 0, 0, 0, 0, 0xc1];

pub(crate) fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &ethertype.to_be_bytes(), payload].concat()
}

/// An IP packet from the client's station to the gateway's.
pub(crate) fn to_station(packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 4 { IPV4 } else { IPV6 };
    ethernet(STATION, CLIENT, ethertype, packet)
}

/// The frame with these tags between addresses and type. Each tag has a type and fields.
pub(crate) fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|(tag, fields)| [tag.to_be_bytes(), fields.to_be_bytes()].concat());
    [&frame[..12], &tags.collect::<Vec<u8>>(), &frame[12..]].concat()
}

/// The checksum of RFC 1071.
pub(crate) fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut bytes = parts.concat();
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

pub(crate) fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ipv4_fragment(from, to, protocol, [0x40, 0], payload)
}

/// A packet with these bytes as flags and fragment offset.
pub(crate) fn ipv4_fragment(
    from: Ipv4Addr,
    to: Ipv4Addr,
    protocol: u8,
    flags_offset: [u8; 2],
    payload: &[u8],
) -> Vec<u8> {
    let [len_high, len_low] = (20 + payload.len() as u16).to_be_bytes();
    let mut header = vec![0x45, 0, len_high, len_low, 0x12, 0x34, flags_offset[0], flags_offset[1], 64, protocol, 0, 0];
    header.extend([from.octets(), to.octets()].concat());
    reseal_ipv4(&mut header);
    header.extend(payload);
    header
}

/// Corrects the checksum of a header of 20 bytes.
pub(crate) fn reseal_ipv4(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = checksum(&[&packet[..20]]);
    packet[10..12].copy_from_slice(&sum);
}

pub(crate) fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let [len_high, len_low] = (payload.len() as u16).to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, len_high, len_low, next, hop_limit];
    packet.extend([from.octets(), to.octets()].concat());
    packet.extend(payload);
    packet
}

/// A datagram without a checksum, as IPv4 allows.
pub(crate) fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len() as u16;
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &len.to_be_bytes(), &[0, 0], payload].concat()
}

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// A segment within a connection.
pub(crate) fn tcp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    segment(from, to, ACK, payload)
}

/// A segment with these flags.
pub(crate) fn segment(from: u16, to: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let rest = [0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &rest, payload].concat()
}

/// A segment with these flags, sequence number and acknowledged number.
pub(crate) fn numbered(from: u16, to: u16, flags: u8, [sequence, acknowledged]: [u32; 2]) -> Vec<u8> {
    let mut segment = segment(from, to, flags, b"");
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledged.to_be_bytes());
    segment
}

pub(crate) fn icmp_echo(sequence: u16) -> Vec<u8> {
    let mut message = [&[8, 0, 0, 0, 0x77, 0x77][..], &sequence.to_be_bytes(), b"are you there?"].concat();
    let sum = checksum(&[&message]);
    message[2..4].copy_from_slice(&sum);
    message
}

/// An ICMPv6 message with its checksum filled in.
pub(crate) fn icmpv6(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[2..4].fill(0);
    let len = (message.len() as u32).to_be_bytes();
    let sum = checksum(&[&from.octets(), &to.octets(), &len, &[0, 0, 0, ICMPV6], &message]);
    message[2..4].copy_from_slice(&sum);
    message
}

pub(crate) fn arp(operation: u8, from: ([u8; 6], Ipv4Addr), about: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &from.0, &from.1.octets(), &about.0, &about.1.octets()].concat()
}

/// A broadcast request for the station that has `address`.
pub(crate) fn arp_request(from: ([u8; 6], Ipv4Addr), address: Ipv4Addr) -> Vec<u8> {
    ethernet([0xff; 6], from.0, ARP, &arp(1, from, ([0; 6], address)))
}

pub(crate) fn solicited_node(address: Ipv6Addr) -> ([u8; 6], Ipv6Addr) {
    let [.., a, b, c] = address.octets();
    let mut group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
    group[13..].copy_from_slice(&[a, b, c]);
    ([0x33, 0x33, 0xff, a, b, c], group.into())
}

/// A neighbour solicitation, with a source link-layer address unless it is a probe from `::`.
pub(crate) fn solicitation(from: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let (station, group) = solicited_node(target);
    let mut message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    if !from.is_unspecified() {
        message.extend([&[1, 1][..], &CLIENT].concat());
    }
    ethernet(station, CLIENT, IPV6, &ipv6(from, group, ICMPV6, 255, &icmpv6(from, group, &message)))
}
