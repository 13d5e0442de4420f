//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use super::fragment::{self, Extent, Fragment, Part};
use super::key::{FlowKey, ICMP, Ingress, Receiver};
use super::{Headers, be16, transport};
use crate::drops::DropReason;

/// Length of a header without options.
const HEADER_MIN: usize = 20;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The options that end the list, fill it up, and prescribe the packet's route, loosely or strictly.
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const SOURCE_ROUTES: [u8; 2] = [131, 137];

#[inline(always)]
pub(super) fn parse(bytes: &[u8], ingress: Ingress, receiver: Receiver) -> Result<Headers, DropReason> {
    let header = bytes.first_chunk::<HEADER_MIN>().ok_or(DropReason::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(DropReason::BadVersion);
    }
    let (header_len, total_len) = (header_len(header), usize::from(be16(header[2], header[3])));
    if header_len < HEADER_MIN || total_len < header_len {
        return Err(DropReason::BadLength);
    }
    // Padding behind the packet is not part of it.
    let packet = bytes.get(..total_len).ok_or(DropReason::Truncated)?;
    let (options, payload) = packet[HEADER_MIN..].split_at(header_len - HEADER_MIN);
    if !checksum_holds(header, options) {
        return Err(DropReason::BadChecksum);
    }
    if !options.is_empty() && has_source_route(options) {
        return Err(DropReason::SourceRoute);
    }
    let flow = portless(header, ingress).received_by(receiver);
    if fragmentation(header) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        return parse_fragment(header, header_len, payload, flow);
    }
    Ok(Headers::of(flow, transport::read(header[9], ICMP, payload, Part::Whole)?))
}

#[inline(never)]
fn parse_fragment(
    header: &[u8; HEADER_MIN],
    header_len: usize,
    payload: &[u8],
    portless: FlowKey,
) -> Result<Headers, DropReason> {
    let fragmentation = fragmentation(header);
    let (start, is_last) = ((fragmentation & FRAGMENT_OFFSET) * 8, fragmentation & MORE_FRAGMENTS == 0);
    let extent = Extent::new(start, payload.len(), is_last, header_len)?;
    let part = if start == 0 { Part::First } else { Part::Later };
    let told = transport::read(header[9], ICMP, payload, part).map_err(fragment::of_first)?;
    let identification = u32::from(be16(header[4], header[5]));
    Ok(Headers::Fragment(Fragment { flow: told.add_to(portless), identification, part, extent }))
}

/// Returns the payload of a whole packet that [`parse`] has accepted.
pub(super) fn message(packet: &[u8]) -> Option<&[u8]> {
    let header = packet.first_chunk::<HEADER_MIN>()?;
    packet.get(header_len(header)..usize::from(be16(header[2], header[3])))
}

/// Returns the flow of a quoted packet, of which there may be no more than the start. `None` if the quote does not say
/// it.
pub(super) fn quoted_flow(quote: &[u8], ingress: Ingress) -> Option<FlowKey> {
    let header = quote.first_chunk::<HEADER_MIN>()?;
    let header_len = header_len(header);
    let is_readable = header[0] >> 4 == 4 && header_len >= HEADER_MIN && fragmentation(header) & FRAGMENT_OFFSET == 0;
    let payload = quote.get(header_len..).filter(|_| is_readable)?;
    transport::add_quoted(portless(header, ingress), ICMP, payload)
}

#[inline(always)]
fn header_len(header: &[u8; HEADER_MIN]) -> usize {
    usize::from(header[0] & 0xf) * 4
}

#[inline(always)]
fn fragmentation(header: &[u8; HEADER_MIN]) -> u16 {
    be16(header[6], header[7])
}

#[inline(always)]
fn portless(header: &[u8; HEADER_MIN], ingress: Ingress) -> FlowKey {
    FlowKey::ipv4(address(header, 12), address(header, 16), header[9], ingress)
}

#[inline(always)]
fn address(header: &[u8; HEADER_MIN], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3])
}

/// Returns whether one of the options is a source route. What is behind a malformed option is not read, as no host can.
#[cold]
fn has_source_route(mut options: &[u8]) -> bool {
    while let Some((&option, rest)) = options.split_first() {
        match option {
            END_OF_OPTIONS => return false,
            NO_OPERATION => options = rest,
            _ if SOURCE_ROUTES.contains(&option) => return true,
            _ => match rest.first().and_then(|len| options.get(usize::from(*len).max(2)..)) {
                Some(behind) => options = behind,
                None => return false,
            },
        }
    }
    false
}

/// The checksum of RFC 1071, which comes out the same in either byte order and in words of any size.
#[inline(always)]
fn checksum_holds(header: &[u8; HEADER_MIN], options: &[u8]) -> bool {
    let sum_of = |bytes: &[u8]| -> u64 {
        let words = bytes.as_chunks::<4>().0;
        words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum()
    };
    let mut sum = sum_of(header);
    if !options.is_empty() {
        sum += sum_of(options);
    }
    // At most 15 words: two rounds leave 17 bits, the third leaves 16.
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum == 0xffff
}
