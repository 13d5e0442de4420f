//! Frames of both IP versions, by addresses, ports and what is special about them.

#![allow(dead_code)] // each test uses a part

use pinion_sdk::testing::Frame;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Returns a segment without data, with 0 as its sequence number.
pub(crate) fn tcp(from: &str, from_port: u16, to: &str, to_port: u16, flags: u8) -> Frame {
    Frame::tcp((from, from_port), (to, to_port)).sequence(0).tcp_flags(flags)
}

pub(crate) fn udp(from: &str, from_port: u16, to: &str, to_port: u16) -> Frame {
    Frame::udp((from, from_port), (to, to_port)).payload(&[7; 16])
}

pub(crate) fn request(from: &str, to: &str, id: u16) -> Frame {
    Frame::echo_request(from, to).echo(id, 1)
}

pub(crate) fn reply(from: &str, to: &str, id: u16) -> Frame {
    Frame::echo_reply(from, to).echo(id, 1)
}
