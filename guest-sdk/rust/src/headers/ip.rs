//! IPv4 and IPv6, with the latter's extension headers: whose packet it is, and where its transport header begins.

use super::{Addresses, Extent, Fragment, Headers, Offsets, Pair, TCP, Unreadable, transport};

const IPV4_HEADER_MIN: usize = 20;
const IPV6_HEADER: usize = 40;

/// IPv6 extension headers looked past; all that RFC 8200 defines, once each, are fewer.
const EXTENSIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

#[inline]
pub(super) fn read_v4(frame: &[u8], network: usize, extent: Extent) -> Result<Headers, Unreadable> {
    let rest = frame.get(network..).ok_or(Unreadable::Malformed)?;
    let header = rest.first_chunk::<IPV4_HEADER_MIN>().ok_or(Unreadable::Malformed)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total_len = usize::from(u16_at(header, 2));
    if header[0] >> 4 != 4 || header_len < IPV4_HEADER_MIN || header_len > total_len {
        return Err(Unreadable::Malformed);
    }
    let end = end_of(frame, network, total_len, extent)?;
    let (flags, id) = (u16_at(header, 6), u16_at(header, 4));
    let fragment = fragment(id.into(), (flags & 0x1fff) * 8, flags & 0x2000 != 0);
    let source = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
    let destination = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
    let addresses = Addresses::V4(Pair { source, destination });
    let at = Offsets { network, transport: network + header_len, payload: network + header_len, end };
    behind(frame, addresses, header[9], fragment, at, extent)
}

pub(super) fn read_v6(frame: &[u8], network: usize, extent: Extent) -> Result<Headers, Unreadable> {
    let rest = frame.get(network..).ok_or(Unreadable::Malformed)?;
    let header = rest.first_chunk::<IPV6_HEADER>().ok_or(Unreadable::Malformed)?;
    if header[0] >> 4 != 6 {
        return Err(Unreadable::Malformed);
    }
    let end = end_of(frame, network, IPV6_HEADER + usize::from(u16_at(header, 4)), extent)?;
    let address = |at: usize| rest[at..].first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes));
    let addresses = Addresses::V6(Pair { source: address(8), destination: address(24) });
    let packet = frame.get(..end).ok_or(Unreadable::Malformed)?;
    let (protocol, transport, fragment) = skip_extensions(packet, header[6], network + IPV6_HEADER)?;
    let at = Offsets { network, transport, payload: transport, end };
    behind(frame, addresses, protocol, fragment, at, extent)
}

#[inline]
fn behind(
    frame: &[u8],
    addresses: Addresses,
    protocol: u8,
    fragment: Option<Fragment>,
    at: Offsets,
    extent: Extent,
) -> Result<Headers, Unreadable> {
    let headers = Headers { addresses, protocol, ports: None, tcp_flags: None, icmp: None, fragment, vlan_tags: 0, at };
    match fragment {
        Some(later) if !later.is_first() => {
            let overlaps = protocol == TCP && usize::from(later.offset) < transport::TCP_HEADER_MIN;
            if overlaps { Err(Unreadable::OverlappingFragment) } else { Ok(headers) }
        }
        _ => transport::read(frame, headers, extent),
    }
}

#[inline]
fn end_of(frame: &[u8], network: usize, len: usize, extent: Extent) -> Result<usize, Unreadable> {
    match network + len {
        end if end <= frame.len() => Ok(end),
        _ if extent == Extent::Quoted => Ok(frame.len()),
        _ => Err(Unreadable::Malformed),
    }
}

/// The protocol behind the extension headers, and where it begins.
fn skip_extensions(packet: &[u8], first: u8, start: usize) -> Result<(u8, usize, Option<Fragment>), Unreadable> {
    let (mut protocol, mut at, mut part) = (first, start, None);
    for _ in 0..=EXTENSIONS_MAX {
        let header = packet.get(at..).and_then(<[u8]>::first_chunk::<8>);
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                let header = header.ok_or(Unreadable::Malformed)?;
                protocol = header[0];
                at += (usize::from(header[1]) + 1) * 8;
            }
            FRAGMENT => {
                let header = header.ok_or(Unreadable::Malformed)?;
                let (offset, id) = (u16_at(header, 2), [header[4], header[5], header[6], header[7]]);
                protocol = header[0];
                at += 8;
                part = fragment(u32::from_be_bytes(id), offset & 0xfff8, offset & 1 != 0).or(part);
                // Behind another fragment's start there is no header to be read, nor is one to be trusted.
                if part.is_some_and(|part| !part.is_first()) {
                    return Ok((protocol, at, part));
                }
            }
            _ if at > packet.len() => return Err(Unreadable::Malformed),
            _ => return Ok((protocol, at, part)),
        }
    }
    Err(Unreadable::TooManyHeaders)
}

/// A fragment that is all of its datagram is none.
#[inline]
fn fragment(id: u32, offset: u16, more: bool) -> Option<Fragment> {
    (more || offset != 0).then_some(Fragment { id, offset, more })
}

#[inline]
fn u16_at(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}
