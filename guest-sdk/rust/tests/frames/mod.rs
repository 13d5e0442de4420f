//! Frames, with checksums computed in full.

use pinion_sdk::checksum;
use pinion_sdk::headers::{Addresses, ICMP, ICMPV6, Pair, TCP, UDP};

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// The payload's kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Tcp,
    Udp,
    /// An echo request; the source port is its identifier.
    Echo,
}

pub(crate) fn ethernet(tags: &[u8], ethertype: [u8; 2], datagram: &[u8]) -> Vec<u8> {
    [&MACS[..], tags, &ethertype, datagram].concat()
}

pub(crate) fn ipv4(protocol: u8, addresses: Addresses, fragment: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let Addresses::V4(Pair { source, destination }) = addresses else { panic!("these are no addresses of IPv4") };
    let len = (20 + payload.len() as u16).to_be_bytes();
    let start = [0x45, 0, len[0], len[1], 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0];
    let mut header = [&start[..], &source.to_be_bytes(), &destination.to_be_bytes()].concat();
    let sum = checksum::of(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header[..], payload].concat()
}

pub(crate) fn ipv6(next_header: u8, addresses: Addresses, payload: &[u8]) -> Vec<u8> {
    let Addresses::V6(Pair { source, destination }) = addresses else { panic!("these are no addresses of IPv6") };
    let len = (payload.len() as u16).to_be_bytes();
    let start = [0x60, 0, 0, 0, len[0], len[1], next_header, 64];
    [&start[..], &source.to_be_bytes(), &destination.to_be_bytes(), payload].concat()
}

/// Makes a whole packet with correct checksums.
pub(crate) fn packet(kind: Kind, addresses: Addresses, source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = (source.to_be_bytes(), destination.to_be_bytes());
    let is_v4 = matches!(addresses, Addresses::V4(_));
    let (protocol, sum_at, header) = match kind {
        Kind::Tcp => (TCP, 16, vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]),
        Kind::Udp => {
            let len = (8 + payload.len() as u16).to_be_bytes();
            (UDP, 6, vec![0, 0, 0, 0, len[0], len[1], 0, 0])
        }
        Kind::Echo if is_v4 => (ICMP, 2, vec![8, 0, 0, 0, source[0], source[1], 0, 1]),
        Kind::Echo => (ICMPV6, 2, vec![128, 0, 0, 0, source[0], source[1], 0, 1]),
    };
    let mut transport = [&header[..], payload].concat();
    if kind != Kind::Echo {
        transport[..4].copy_from_slice(&[source, destination].concat());
    }
    let covered =
        if protocol == ICMP { transport.clone() } else { with_pseudo_header(protocol, addresses, &transport) };
    let sum = match checksum::of(&covered) {
        0 if kind == Kind::Udp => 0xffff,
        sum => sum,
    };
    transport[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    match addresses {
        Addresses::V4(_) => ethernet(&[], [0x08, 0], &ipv4(protocol, addresses, [0, 0], &transport)),
        Addresses::V6(_) => ethernet(&[], [0x86, 0xdd], &ipv6(protocol, addresses, &transport)),
    }
}

fn with_pseudo_header(protocol: u8, addresses: Addresses, transport: &[u8]) -> Vec<u8> {
    let addresses = match addresses {
        Addresses::V4(pair) => [pair.source.to_be_bytes(), pair.destination.to_be_bytes()].concat(),
        Addresses::V6(pair) => [pair.source.to_be_bytes(), pair.destination.to_be_bytes()].concat(),
    };
    let len = (transport.len() as u32).to_be_bytes();
    [&addresses[..], &len, &[0, 0, 0, protocol], transport].concat()
}

/// Makes a router's error about a packet with this beginning: destination unreachable.
pub(crate) fn quoting(datagram: &[u8]) -> Vec<u8> {
    let is_v4 = datagram[0] >> 4 == 4;
    let message = [&[if is_v4 { 3 } else { 1 }, 0, 0, 0, 0, 0, 0, 0][..], datagram].concat();
    if is_v4 {
        let back_to = u32::from_be_bytes(datagram[12..16].try_into().unwrap());
        let addresses = Addresses::V4(Pair { source: 0x0a0b_0c0d, destination: back_to });
        return ethernet(&[], [0x08, 0], &ipv4(ICMP, addresses, [0, 0], &message));
    }
    let back_to = u128::from_be_bytes(datagram[8..24].try_into().unwrap());
    let addresses = Addresses::V6(Pair { source: 0xabcd, destination: back_to });
    ethernet(&[], [0x86, 0xdd], &ipv6(ICMPV6, addresses, &message))
}
