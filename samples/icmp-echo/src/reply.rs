//! Turns an echo request into its reply, in place. It has no state, does not allocate, and does not panic on any bytes.
//!
//! The frame's length, VLAN tags, IP options, the traffic class and the payload stay unchanged. So a reply takes one
//! pass over the message, to verify the request's checksum. The reply's checksum follows from the request's, as only
//! the type differs.

use pinion_sdk::Checksum;
use pinion_sdk::headers::{Addresses, Headers, macs, swap_macs};

/// Hop limit of replies.
const HOP_LIMIT: u8 = 64;

/// Types of echo replies (RFC 792, RFC 4443).
const ECHO_REPLY: u8 = 0;
const ECHO_REPLY_V6: u8 = 129;

/// Why a frame gets no reply. It is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is not a whole echo request directly behind an IP header.
    OtherTraffic,
    /// Its destination is a group address, or its source is not a valid host address.
    NotUnicast,
    /// The checksum of the IPv4 header or of the message is wrong.
    BadChecksum,
}

/// Turns the frame of an echo request into that of its reply.
///
/// # Errors
///
/// The frame gets no reply.
pub fn turn(frame: &mut [u8]) -> Result<(), Ignored> {
    let mut headers = Headers::of_icmp(frame).ok().flatten().ok_or(Ignored::OtherTraffic)?;
    let is_request = headers.icmp.is_some_and(|icmp| icmp.code == 0 && icmp.echo.is_some_and(|echo| echo.is_request));
    if !is_request {
        return Err(Ignored::OtherTraffic);
    }
    let is_for_one = macs(frame).is_some_and(|macs| !macs.source.is_group() && !macs.destination.is_group());
    if !is_for_one || !headers.addresses.are_unicast() {
        return Err(Ignored::NotUnicast);
    }
    let ip = headers.ip();
    if ip.checksum(frame) == Checksum::Bad || headers.l4_checksum(frame) != Checksum::Good {
        return Err(Ignored::BadChecksum);
    }
    let kind = match headers.addresses {
        Addresses::V4(_) => ECHO_REPLY,
        Addresses::V6(_) => ECHO_REPLY_V6,
    };
    let turned = headers.set_icmp(frame, kind, 0).and_then(|()| headers.reverse(frame));
    let turned = turned.and_then(|()| ip.set_hop_limit(frame, HOP_LIMIT)).and_then(|()| swap_macs(frame));
    turned.map_err(|_| Ignored::OtherTraffic)
}
