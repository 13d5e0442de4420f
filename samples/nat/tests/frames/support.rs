//! Frames between two ends, and the ends of a translated frame.

use std::net::Ipv4Addr;

use pinion_sdk::headers::{Addresses, Headers, Pair};
use pinion_sdk::testing::Frame;

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

pub(crate) fn udp(from: End, to: End, payload: &[u8]) -> Frame {
    Frame::udp(from, to).payload(payload)
}

/// The number that segments begin with, and that they acknowledge: both sides have sent nothing but SYN and FIN.
pub(crate) const NUMBER: u32 = 0x0102_0304;

pub(crate) fn tcp(from: End, to: End, flags: u8, payload: &[u8]) -> Frame {
    tcp_with(from, to, flags, [NUMBER; 2], payload)
}

/// Returns a TCP segment with a sequence number, and the number that it acknowledges. It must not be fragmented.
pub(crate) fn tcp_with(from: End, to: End, flags: u8, [sequence, acknowledged]: [u32; 2], payload: &[u8]) -> Frame {
    let segment = Frame::tcp(from, to).sequence(sequence).acknowledged(acknowledged).tcp_flags(flags);
    segment.dont_fragment().payload(payload)
}

/// Returns an ICMP message: `word` follows the checksum, and `payload` that.
pub(crate) fn icmp(from: Ipv4Addr, to: Ipv4Addr, kind: u8, word: [u8; 4], payload: &[u8]) -> Frame {
    Frame::icmp(from, to, kind, 0, word).payload(payload)
}

pub(crate) fn request(from: Ipv4Addr, to: Ipv4Addr, id: u16, payload: &[u8]) -> Frame {
    Frame::echo_request(from, to).echo(id, 1).payload(payload)
}

pub(crate) fn reply(from: Ipv4Addr, to: Ipv4Addr, id: u16, payload: &[u8]) -> Frame {
    Frame::echo_reply(from, to).echo(id, 1).payload(payload)
}

/// Returns source and destination of a translated frame. The port of an echo is its identifier.
pub(crate) fn ends(frame: &[u8]) -> (End, End) {
    let headers = Headers::of(frame).unwrap();
    let Addresses::V4(addresses) = headers.addresses else { panic!("{headers:?}") };
    let id = headers.icmp.and_then(|icmp| icmp.echo).map_or(0, |echo| echo.id);
    let ports = headers.ports.unwrap_or(Pair { source: id, destination: id });
    ((addresses.source.into(), ports.source), (addresses.destination.into(), ports.destination))
}
