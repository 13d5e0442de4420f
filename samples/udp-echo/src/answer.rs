//! Turns a UDP datagram into its echo, in place. It has no state, does not allocate, and does not panic on any bytes.
//!
//! The frame's length, VLAN tags, IP options, the traffic class and the payload stay unchanged. So does the UDP
//! checksum: it covers addresses and ports, but swapping them does not change the sum.

use pinion_sdk::Checksum;
use pinion_sdk::headers::{Addresses, Headers, macs, swap_macs};

/// Hop limit of answers.
const HOP_LIMIT: u8 = 64;

/// Offset of the checksum in UDP's header.
const CHECKSUM_AT: usize = 6;

/// Why a frame gets no answer. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is not a whole UDP datagram directly behind an IP header.
    OtherTraffic,
    /// Its destination is a group address, or its source is not a valid host address.
    NotUnicast,
    /// One of its ports is 0; port 0 cannot be answered.
    NoPort,
    /// The checksum of the IPv4 header or of the datagram is wrong.
    BadChecksum,
}

/// Turns the frame of a datagram into that of its answer. `found` is what the device reported about its checksum.
///
/// # Errors
///
/// The frame gets no answer.
pub fn turn(frame: &mut [u8], found: Checksum) -> Result<(), Ignored> {
    let mut headers = Headers::of_udp(frame).ok().flatten().ok_or(Ignored::OtherTraffic)?;
    let is_for_one = macs(frame).is_some_and(|macs| !macs.source.is_group() && !macs.destination.is_group());
    if !is_for_one || !headers.addresses.are_unicast() {
        return Err(Ignored::NotUnicast);
    }
    if headers.ports.is_none_or(|ports| ports.source == 0 || ports.destination == 0) {
        return Err(Ignored::NoPort);
    }
    let ip = headers.ip();
    if ip.checksum(frame) == Checksum::Bad || !is_right(&headers, frame, found) {
        return Err(Ignored::BadChecksum);
    }
    let turned = headers.reverse(frame).and_then(|()| ip.set_hop_limit(frame, HOP_LIMIT));
    turned.and_then(|()| swap_macs(frame)).map_err(|_| Ignored::OtherTraffic)
}

/// Returns whether the datagram's checksum is right, or is missing over IPv4. Over IPv6 it is mandatory.
fn is_right(headers: &Headers, frame: &[u8], found: Checksum) -> bool {
    match (found, headers.addresses) {
        (Checksum::Good, Addresses::V4(_)) => true,
        (Checksum::Good, Addresses::V6(_)) => frame[headers.at.transport + CHECKSUM_AT..][..2] != [0, 0],
        (Checksum::Bad, _) => false,
        (Checksum::Unknown, _) => headers.l4_checksum(frame) != Checksum::Bad,
    }
}
