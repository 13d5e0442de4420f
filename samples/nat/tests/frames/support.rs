//! Frames built from scratch, with computed checksums: the oracle for translated frames.

use std::net::Ipv4Addr;

use pinion_sdk::checksum;

pub(crate) const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x77];
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;

pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const RST: u8 = 0x04;

/// An address and a port.
pub(crate) type End = (Ipv4Addr, u16);

pub(crate) fn end(text: &str) -> End {
    let socket: std::net::SocketAddrV4 = text.parse().unwrap();
    (*socket.ip(), socket.port())
}

fn pseudo_header(from: End, to: End, protocol: u8, len: usize) -> Vec<u8> {
    let len = (len as u16).to_be_bytes();
    [&from.0.octets()[..], &to.0.octets(), &[0, protocol], &len].concat()
}

pub(crate) fn udp(from: End, to: End, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len();
    let mut datagram = [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &(len as u16).to_be_bytes(), &[0, 0]].concat();
    datagram.extend(payload);
    let sum = match checksum::of(&[&pseudo_header(from, to, UDP, len)[..], &datagram].concat()) {
        0 => 0xffff_u16,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    ip(from.0, to.0, UDP, &datagram)
}

/// The number that segments begin with, and that they acknowledge: both sides have sent nothing but SYN and FIN.
pub(crate) const NUMBER: u32 = 0x0102_0304;

pub(crate) fn tcp(from: End, to: End, flags: u8, payload: &[u8]) -> Vec<u8> {
    tcp_with(from, to, flags, [NUMBER; 2], payload)
}

/// Returns a TCP segment with a sequence number, and the number that it acknowledges.
pub(crate) fn tcp_with(from: End, to: End, flags: u8, numbers: [u32; 2], payload: &[u8]) -> Vec<u8> {
    let [sequence, acknowledged] = numbers.map(u32::to_be_bytes);
    let mut segment = [&from.1.to_be_bytes()[..], &to.1.to_be_bytes(), &sequence, &acknowledged].concat();
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    let sum = checksum::of(&[&pseudo_header(from, to, TCP, segment.len())[..], &segment].concat());
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ip(from.0, to.0, TCP, &segment)
}

/// Returns an ICMP message: `word` follows the checksum, and `payload` that.
pub(crate) fn icmp(from: Ipv4Addr, to: Ipv4Addr, kind: u8, word: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &word, payload].concat();
    let sum = checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip(from, to, ICMP, &message)
}

pub(crate) fn echo(from: Ipv4Addr, to: Ipv4Addr, kind: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let id = id.to_be_bytes();
    icmp(from, to, kind, [id[0], id[1], 0, 1], payload)
}

pub(crate) fn ip(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    ip_part(from, to, protocol, [0x40, 0], payload)
}

pub(crate) fn ip_part(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, fragment: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len() as u16).to_be_bytes();
    let mut header = vec![0x45, 0, len[0], len[1], 0xab, 0xcd, fragment[0], fragment[1], 64, protocol, 0, 0];
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum::of(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header[..], payload].concat()
}

pub(crate) fn frame(datagram: &[u8]) -> Vec<u8> {
    [&MACS[..], &[8, 0], datagram].concat()
}

/// Returns source and destination of a translated frame.
pub(crate) fn ends(frame: &[u8]) -> (End, End) {
    let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if frame[23] == ICMP {
        return ((address(26), word(38)), (address(30), word(38)));
    }
    ((address(26), word(34)), (address(30), word(36)))
}
