//! IPv6 and its extension headers (RFC 8200).

use std::net::Ipv6Addr;

use super::key::{FlowKey, ICMPV6, Ingress};
use super::{Headers, Part, be16, transport};
use crate::drops::DropReason;

/// IPv6 extension headers read before a frame is given up; all that RFC 8200 defines, once each, are fewer.
pub const EXTENSIONS_MAX: usize = 8;

const HEADER: usize = 40;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// Router and neighbour discovery (RFC 4861).
const DISCOVERY_TYPES: std::ops::RangeInclusive<u8> = 133..=137;

#[inline(always)]
pub(super) fn parse(bytes: &[u8], ingress: Ingress) -> Result<Headers, DropReason> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(DropReason::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(DropReason::BadVersion);
    }
    // Padding behind the packet is not part of it.
    let payload = rest.get(..usize::from(be16(header[4], header[5]))).ok_or(DropReason::Truncated)?;
    let source = address(header, 8);
    if source.is_multicast() {
        return Err(DropReason::BadSource);
    }
    let Transport { protocol, payload, part, identification } = match header[6] {
        HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => skip_extensions(header[6], payload)?,
        protocol => Transport { protocol, payload, part: Part::Whole, identification: 0 },
    };
    if protocol == ICMPV6 && part != Part::Later {
        let message_type = payload.first().ok_or(DropReason::Truncated)?;
        if DISCOVERY_TYPES.contains(message_type) {
            return Ok(Headers::NeighborDiscovery);
        }
    }
    let told = transport::read(protocol, ICMPV6, payload, part)?;
    let flow = FlowKey::ipv6(source, address(header, 24), protocol, ingress);
    Ok(Headers::of(flow, told, part, identification))
}

#[inline(always)]
fn address(header: &[u8; HEADER], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&header[at..at + 16]);
    octets.into()
}

/// What follows the last extension header.
struct Transport<'a> {
    protocol: u8,
    payload: &'a [u8],
    part: Part,
    identification: u32,
}

#[inline(never)]
fn skip_extensions(first: u8, bytes: &[u8]) -> Result<Transport<'_>, DropReason> {
    let mut at = Transport { protocol: first, payload: bytes, part: Part::Whole, identification: 0 };
    for _ in 0..=EXTENSIONS_MAX {
        match at.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                let header = at.payload.first_chunk::<8>().ok_or(DropReason::Truncated)?;
                let len = (usize::from(header[1]) + 1) * 8;
                at.protocol = header[0];
                at.payload = at.payload.get(len..).ok_or(DropReason::Truncated)?;
            }
            FRAGMENT => {
                let (header, rest) = at.payload.split_first_chunk::<8>().ok_or(DropReason::Truncated)?;
                let offset_more = be16(header[2], header[3]);
                at.protocol = header[0];
                at.payload = rest;
                let part = match (offset_more >> 3, offset_more & 1) {
                    // A packet in one fragment (RFC 6946) is whole.
                    (0, 0) => continue,
                    (0, _) => Part::First,
                    _ => Part::Later,
                };
                let [.., a, b, c, d] = *header;
                (at.part, at.identification) = (part, u32::from_be_bytes([a, b, c, d]));
                // What follows is a piece from the middle of something: no header to be read there.
                if part == Part::Later {
                    return Ok(at);
                }
            }
            _ => return Ok(at),
        }
    }
    Err(DropReason::TooManyExtensions)
}
