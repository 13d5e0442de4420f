//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use super::key::{FlowKey, ICMP, Ingress};
use super::{Headers, Part, be16, transport};
use crate::drops::DropReason;

/// Length of a header without options.
const HEADER_MIN: usize = 20;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

#[inline(always)]
pub(super) fn parse(bytes: &[u8], ingress: Ingress) -> Result<Headers, DropReason> {
    let header = bytes.first_chunk::<HEADER_MIN>().ok_or(DropReason::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(DropReason::BadVersion);
    }
    let (header_len, total_len) = (usize::from(header[0] & 0xf) * 4, usize::from(be16(header[2], header[3])));
    if header_len < HEADER_MIN || total_len < header_len {
        return Err(DropReason::BadLength);
    }
    // Padding behind the packet is not part of it.
    let packet = bytes.get(..total_len).ok_or(DropReason::Truncated)?;
    let (options, payload) = packet[HEADER_MIN..].split_at(header_len - HEADER_MIN);
    if !checksum_holds(header, options) {
        return Err(DropReason::BadChecksum);
    }
    let source = address(header, 12);
    if source.is_multicast() || source.is_broadcast() {
        return Err(DropReason::BadSource);
    }
    let fragmentation = be16(header[6], header[7]);
    let part = match (fragmentation & FRAGMENT_OFFSET, fragmentation & MORE_FRAGMENTS) {
        (0, 0) => Part::Whole,
        (0, _) => Part::First,
        _ => Part::Later,
    };
    let told = transport::read(header[9], ICMP, payload, part)?;
    let flow = FlowKey::ipv4(source, address(header, 16), header[9], ingress);
    let boundary = match part {
        Part::Later => (fragmentation & FRAGMENT_OFFSET) * 8,
        Part::First | Part::Whole => told.header_bytes(),
    };
    Ok(Headers::of(flow, told, part, u32::from(be16(header[4], header[5])), boundary))
}

#[inline(always)]
fn address(header: &[u8; HEADER_MIN], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3])
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
