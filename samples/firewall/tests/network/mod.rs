//! Frames of both IP versions, by addresses, ports and protocol. Their checksums are zero, as the firewall does not
//! check them.

#![allow(dead_code)] // each test uses a part

use core::net::IpAddr;

/// A frame's bytes.
pub(crate) type Frame = Vec<u8>;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Types of echo messages of IPv4 and IPv6.
pub(crate) const REQUEST: [u8; 2] = [8, 128];
pub(crate) const REPLY: [u8; 2] = [0, 129];

pub(crate) fn tcp(from: &str, from_port: u16, to: &str, to_port: u16, flags: u8) -> Frame {
    let mut header = vec![0; 20];
    header[..4].copy_from_slice(&ports(from_port, to_port));
    (header[12], header[13]) = (0x50, flags);
    packet(from, to, [6, 6], &header)
}

pub(crate) fn udp(from: &str, from_port: u16, to: &str, to_port: u16) -> Frame {
    packet(from, to, [17, 17], &[&ports(from_port, to_port)[..], &[0, 24, 0, 0], &[7; 16]].concat())
}

pub(crate) fn echo(from: &str, to: &str, kind: [u8; 2], id: u16) -> Frame {
    let id = id.to_be_bytes();
    let kind = kind[usize::from(is_v6(from))];
    packet(from, to, [1, 58], &[kind, 0, 0, 0, id[0], id[1], 0, 1])
}

/// Returns an ICMP error that a packet did not reach its destination; it quotes the packet's first bytes.
pub(crate) fn error(from: &str, to: &str, about: &Frame) -> Frame {
    let header = if is_v6(from) { 40 } else { 20 };
    let kind = if is_v6(from) { 1 } else { 3 };
    packet(from, to, [1, 58], &[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &about[14..14 + header + 8]].concat())
}

/// Splits an IPv4 packet into two fragments: the second starts after the first 16 bytes of the payload.
pub(crate) fn fragments(whole: &Frame, id: u16) -> [Frame; 2] {
    let part = |start: usize, end: usize, flags: u16| {
        let mut frame = [&whole[..34], &whole[34 + start..34 + end]].concat();
        frame[16..18].copy_from_slice(&((20 + end - start) as u16).to_be_bytes());
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[20..22].copy_from_slice(&(flags | (start / 8) as u16).to_be_bytes());
        frame
    };
    [part(0, 16, 0x2000), part(16, whole.len() - 34, 0)]
}

fn ports(from: u16, to: u16) -> [u8; 4] {
    ((u32::from(from) << 16) | u32::from(to)).to_be_bytes()
}

fn is_v6(address: &str) -> bool {
    address.contains(':')
}

fn packet(from: &str, to: &str, protocols: [u8; 2], payload: &[u8]) -> Frame {
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = (20 + payload.len() as u16).to_be_bytes();
            let ip = [0x45, 0, len[0], len[1], 0, 1, 0, 0, 64, protocols[0], 0, 0];
            [&ethernet[..], &[0x08, 0], &ip, &from.octets(), &to.octets(), payload].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = (payload.len() as u16).to_be_bytes();
            let ip = [0x60, 0, 0, 0, len[0], len[1], protocols[1], 64];
            [&ethernet[..], &[0x86, 0xdd], &ip, &from.octets(), &to.octets(), payload].concat()
        }
        _ => panic!("no packet has addresses of two versions"),
    }
}
