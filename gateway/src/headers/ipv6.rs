//! IPv6 and its extension headers (RFC 8200).
//!
//! Hop-by-hop options, routing, fragment and destination options are skipped: the protocol is that of the header behind
//! them. All other headers are protocols without ports, among them those of authentication (51) and encryption (50), as
//! in IPv4, and of mobility, HIP and Shim6 (135, 139, 140).

use std::net::Ipv6Addr;

use super::fragment::{self, Extent, Fragment, Part};
use super::key::{FlowKey, ICMPV6, Ingress, Receiver};
use super::quote::MESSAGE_HEADER;
use super::{Headers, be16, transport};
use crate::drops::DropReason;

/// The most IPv6 extension headers that are read; a packet with more is dropped. All that RFC 8200 defines, once each,
/// are fewer.
pub const EXTENSIONS_MAX: usize = 8;

const HEADER: usize = 40;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// The type of routing header by which a sender can make a packet go to and fro (RFC 5095).
const SOURCE_ROUTE: u8 = 0;
/// Router and neighbour discovery (RFC 4861).
const DISCOVERY_TYPES: std::ops::RangeInclusive<u8> = 133..=137;

#[inline(always)]
pub(super) fn parse(bytes: &[u8], ingress: Ingress, receiver: Receiver) -> Result<Headers, DropReason> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>().ok_or(DropReason::Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(DropReason::BadVersion);
    }
    // Padding behind the packet is not part of it.
    let payload = rest.get(..usize::from(be16(header[4], header[5]))).ok_or(DropReason::Truncated)?;
    let Transport { protocol, payload, piece } = match header[6] {
        HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => skip_extensions(header[6], payload)?,
        protocol => Transport { protocol, payload, piece: None },
    };
    let flow = portless(header, protocol, ingress).received_by(receiver);
    if let Some(piece) = piece {
        return parse_fragment(&piece, payload, flow);
    }
    if protocol == ICMPV6 && DISCOVERY_TYPES.contains(payload.first().ok_or(DropReason::Truncated)?) {
        return Ok(Headers::NeighborDiscovery(ingress.vlan));
    }
    Ok(Headers::of(flow, transport::read(protocol, ICMPV6, payload, Part::Whole)?))
}

#[inline(never)]
fn parse_fragment(piece: &Piece, payload: &[u8], portless: FlowKey) -> Result<Headers, DropReason> {
    let Piece { identification, start, len, is_last, header_len } = *piece;
    let extent = Extent::new(start, len, is_last, header_len)?;
    let part = if start == 0 { Part::First } else { Part::Later };
    if part == Part::First && portless.protocol() == ICMPV6 {
        let message_type = payload.first().ok_or(DropReason::TinyFragment)?;
        if DISCOVERY_TYPES.contains(message_type) {
            return Ok(Headers::NeighborDiscovery(portless.ingress().vlan));
        }
    }
    let told = transport::read(portless.protocol(), ICMPV6, payload, part).map_err(fragment::of_first)?;
    Ok(Headers::Fragment(Fragment { flow: told.add_to(portless), identification, part, extent }))
}

/// Returns the payload of a whole packet that [`parse`] has accepted, behind all extension headers.
pub(super) fn message(packet: &[u8]) -> Option<&[u8]> {
    let (header, rest) = packet.split_first_chunk::<HEADER>()?;
    let payload = rest.get(..usize::from(be16(header[4], header[5])))?;
    skip_extensions(header[6], payload).ok().map(|found| found.payload)
}

/// Returns the flow of a quoted packet, of which there may be no more than the start. `None` if the quote does not say
/// it.
pub(super) fn quoted_flow(quote: &[u8], ingress: Ingress) -> Option<FlowKey> {
    let (header, rest) = quote.split_first_chunk::<HEADER>()?;
    let Transport { protocol, payload, piece } = skip_extensions(header[6], rest).ok()?;
    let is_readable = header[0] >> 4 == 6 && piece.is_none_or(|piece| piece.start == 0);
    let flow = portless(header, protocol, ingress);
    is_readable.then(|| transport::add_quoted(flow, ICMPV6, payload)).flatten()
}

/// Returns whether a packet that [`parse`] has accepted ends within its first bytes, `start`, but for padding.
pub(super) fn is_whole(start: &[u8]) -> bool {
    let header = start.first_chunk::<HEADER>();
    header.is_some_and(|header| HEADER + usize::from(be16(header[4], header[5])) <= start.len())
}

/// Returns whether the headers of a packet end within `start`, its first bytes, up to those that [`parse`] reads of the last one;
/// or it is none.
pub(super) fn headers_end_in(start: &[u8]) -> bool {
    headers_end(start, transport::fields_read)
}

/// Returns whether those of the packet that an error quotes do, as far as [`quoted_flow`] reads them. Those of the error do.
pub(super) fn quoted_headers_end_in(start: &[u8]) -> bool {
    let quote = start.split_first_chunk::<HEADER>().and_then(|(header, rest)| {
        let message = skip_extensions(header[6], rest).ok()?.payload;
        message.get(MESSAGE_HEADER..)
    });
    quote.is_some_and(|quote| headers_end(quote, transport::fields_quoted))
}

/// Returns whether a packet's headers end within its start. `fields` says how much is read behind extension headers.
fn headers_end(start: &[u8], fields: impl Fn(u8, u8) -> usize) -> bool {
    let Some((header, rest)) = start.split_first_chunk::<HEADER>() else { return false };
    match skip_extensions(header[6], rest) {
        Ok(Transport { piece: Some(Piece { start: 1.., .. }), .. }) => true,
        Ok(Transport { protocol, payload, .. }) => payload.len() >= fields(protocol, ICMPV6),
        Err(DropReason::Truncated | DropReason::TinyFragment) => false,
        // What stops the reader is within the start.
        Err(_) => true,
    }
}

#[inline(always)]
fn portless(header: &[u8; HEADER], protocol: u8, ingress: Ingress) -> FlowKey {
    FlowKey::ipv6(address(header, 8), address(header, 24), protocol, ingress)
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
    /// What the fragment header says; `None` for a whole packet.
    piece: Option<Piece>,
}

/// What a fragment header says.
struct Piece {
    identification: u32,
    /// Where the fragment begins in its datagram, in bytes.
    start: u16,
    /// Bytes of the datagram in the packet: all behind the fragment header.
    len: usize,
    is_last: bool,
    /// Bytes of headers in front of them that count for the length of the packet.
    header_len: usize,
}

#[inline(never)]
fn skip_extensions(first: u8, bytes: &[u8]) -> Result<Transport<'_>, DropReason> {
    let mut at = Transport { protocol: first, payload: bytes, piece: None };
    // A first fragment has all headers (RFC 7112).
    let cut = |at: &Transport<'_>| if at.piece.is_some() { DropReason::TinyFragment } else { DropReason::Truncated };
    for _ in 0..=EXTENSIONS_MAX {
        match at.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                let header = at.payload.first_chunk::<8>().ok_or_else(|| cut(&at))?;
                if at.protocol == ROUTING && header[2] == SOURCE_ROUTE {
                    return Err(DropReason::SourceRoute);
                }
                let len = (usize::from(header[1]) + 1) * 8;
                at.payload = at.payload.get(len..).ok_or_else(|| cut(&at))?;
                at.protocol = header[0];
            }
            // A fragment of a fragment: no host makes one.
            FRAGMENT if at.piece.is_some() => return Err(DropReason::TooManyExtensions),
            FRAGMENT => {
                let (header, rest) = at.payload.split_first_chunk::<8>().ok_or_else(|| cut(&at))?;
                let (offset_more, [.., a, b, c, d]) = (be16(header[2], header[3]), *header);
                (at.protocol, at.payload) = (header[0], rest);
                let (start, is_last) = (offset_more & 0xfff8, offset_more & 1 == 0);
                // A packet in one fragment (RFC 6946) is whole.
                if start == 0 && is_last {
                    continue;
                }
                let identification = u32::from_be_bytes([a, b, c, d]);
                let header_len = bytes.len() - 8 - rest.len();
                at.piece = Some(Piece { identification, start, len: rest.len(), is_last, header_len });
                // What follows is from the middle of the datagram: there is no header to read.
                if start > 0 {
                    return Ok(at);
                }
            }
            _ => return Ok(at),
        }
    }
    Err(DropReason::TooManyExtensions)
}
