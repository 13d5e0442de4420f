//! IPv6 and its extension headers (RFC 8200).

use std::net::Ipv6Addr;

use super::key::{FlowKey, ICMPV6, Ingress};
use super::{Headers, Part, be16, transport};
use crate::drops::DropReason;

/// The most IPv6 extension headers that are read; a packet with more is dropped. All that RFC 8200 defines, once each,
/// are fewer.
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
    let Transport { protocol, payload, part, identification, boundary } = match header[6] {
        HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => skip_extensions(header[6], payload)?,
        protocol => Transport { protocol, payload, part: Part::Whole, identification: 0, boundary: 0 },
    };
    if protocol == ICMPV6 && part != Part::Later {
        let message_type = payload.first().ok_or(DropReason::Truncated)?;
        if DISCOVERY_TYPES.contains(message_type) {
            return Ok(Headers::NeighborDiscovery);
        }
    }
    let told = transport::read(protocol, ICMPV6, payload, part)?;
    let flow = FlowKey::ipv6(source, address(header, 24), protocol, ingress);
    let boundary = match part {
        Part::First => boundary.saturating_add(told.header_bytes()),
        Part::Later | Part::Whole => boundary,
    };
    Ok(Headers::of(flow, told, part, identification, boundary))
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
    /// For a first fragment, the bytes of its datagram before the payload; for a later one, the bytes before its part.
    boundary: u16,
}

#[inline(never)]
fn skip_extensions(first: u8, bytes: &[u8]) -> Result<Transport<'_>, DropReason> {
    let mut at = Transport { protocol: first, payload: bytes, part: Part::Whole, identification: 0, boundary: 0 };
    let mut fragmented_len = 0;
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
                (at.boundary, fragmented_len) = (offset_more & 0xfff8, rest.len());
                // What follows is from the middle of the datagram: there is no header to read.
                if part == Part::Later {
                    return Ok(at);
                }
            }
            _ => {
                if at.part == Part::First {
                    at.boundary = (fragmented_len - at.payload.len()) as u16;
                }
                return Ok(at);
            }
        }
    }
    Err(DropReason::TooManyExtensions)
}
