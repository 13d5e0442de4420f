//! Reads IPv4 and IPv6 headers, including IPv6 extension headers: addresses, protocol, and the offset of the transport header.

use super::{Addresses, Extent, Fragment, Headers, IPV6_FRAGMENT, Ip, Offsets, Pair, TCP, Unreadable, transport};

pub(super) const IPV4_HEADER_MIN: usize = 20;
pub(super) const IPV6_HEADER: usize = 40;
const IPV6_NEXT_HEADER_AT: usize = 6;

/// Bits of an IPv4 header's word about fragments: the offset in units of eight bytes, and whether more follow.
const IPV4_OFFSET: u16 = 0x1fff;
const IPV4_MORE: u16 = 0x2000;

/// IPv6 extension headers that are skipped: more than if each one of RFC 8200 occurred once.
const EXTENSIONS_MAX: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;

/// The first bytes of an IPv6 datagram, which must hold the fields that its first fragment is judged by, including extension headers after
/// the fragment header. No later fragment may begin there: its own Next Header does not count, only that of the first fragment (RFC 8200,
/// 4.5).
const JUDGED_MAX_V6: usize = 24;

/// Reads an IPv4 header without looking at what follows it. Returns its first bytes as well.
#[inline(always)]
fn header_v4(frame: &[u8], network: usize, extent: Extent) -> Result<(&[u8; IPV4_HEADER_MIN], Ip), Unreadable> {
    let rest = frame.get(network..).ok_or(Unreadable::Malformed)?;
    let header = rest.first_chunk::<IPV4_HEADER_MIN>().ok_or(Unreadable::Malformed)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total_len = usize::from(u16_at(header, 2));
    if header[0] >> 4 != 4 || header_len < IPV4_HEADER_MIN || header_len > total_len {
        return Err(Unreadable::Malformed);
    }
    let end = end_of(frame, network, total_len, extent)?;
    let source = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
    let destination = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
    let addresses = Addresses::V4(Pair { source, destination });
    Ok((header, Ip { addresses, at: network, header_len, len: end - network }))
}

/// Reads an IPv6 header without looking at what follows it. Returns its bytes as well.
#[inline(always)]
fn header_v6(frame: &[u8], network: usize, extent: Extent) -> Result<(&[u8; IPV6_HEADER], Ip), Unreadable> {
    let rest = frame.get(network..).ok_or(Unreadable::Malformed)?;
    let header = rest.first_chunk::<IPV6_HEADER>().ok_or(Unreadable::Malformed)?;
    if header[0] >> 4 != 6 {
        return Err(Unreadable::Malformed);
    }
    let end = end_of(frame, network, IPV6_HEADER + usize::from(u16_at(header, 4)), extent)?;
    let address = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u128::from_be_bytes(*bytes));
    let addresses = Addresses::V6(Pair { source: address(8), destination: address(24) });
    Ok((header, Ip { addresses, at: network, header_len: IPV6_HEADER, len: end - network }))
}

/// See [`Ip::of`].
#[inline]
pub(super) fn only_v4(frame: &[u8], network: usize) -> Result<Ip, Unreadable> {
    header_v4(frame, network, Extent::Whole).map(|(_, ip)| ip)
}

/// See [`Ip::of`].
#[inline]
pub(super) fn only_v6(frame: &[u8], network: usize) -> Result<Ip, Unreadable> {
    header_v6(frame, network, Extent::Whole).map(|(_, ip)| ip)
}

/// Reads an IPv4 header. `None` if the packet is a fragment, or of another protocol.
#[inline(always)]
pub(super) fn whole_v4(frame: &[u8], network: usize, protocol: u8) -> Result<Option<Headers>, Unreadable> {
    let (header, Ip { addresses, header_len, len, .. }) = header_v4(frame, network, Extent::Whole)?;
    let is_fragment = u16_at(header, 6) & (IPV4_OFFSET | IPV4_MORE) != 0;
    let transport = network + header_len;
    let at = Offsets { network, transport, payload: transport, end: network + len };
    Ok((header[9] == protocol && !is_fragment).then(|| headers(addresses, protocol, None, at)))
}

/// Reads an IPv6 header. `None` if the packet has extension headers, or is of another protocol.
#[inline(always)]
pub(super) fn whole_v6(frame: &[u8], network: usize, protocol: u8) -> Result<Option<Headers>, Unreadable> {
    let (header, Ip { addresses, len, .. }) = header_v6(frame, network, Extent::Whole)?;
    let transport = network + IPV6_HEADER;
    let at = Offsets { network, transport, payload: transport, end: network + len };
    Ok((header[IPV6_NEXT_HEADER_AT] == protocol).then(|| headers(addresses, protocol, None, at)))
}

#[inline]
pub(super) fn read_v4(frame: &[u8], network: usize, extent: Extent) -> Result<Headers, Unreadable> {
    let (header, Ip { addresses, header_len, len, .. }) = header_v4(frame, network, extent)?;
    let (flags, id) = (u16_at(header, 6), u16_at(header, 4));
    let fragment = fragment(id.into(), (flags & IPV4_OFFSET) * 8, flags & IPV4_MORE != 0);
    let at = Offsets { network, transport: network + header_len, payload: network + header_len, end: network + len };
    let headers = headers(addresses, header[9], fragment, at);
    match fragment {
        Some(later) if !later.is_first() => {
            // All fragments of a datagram share the protocol.
            let overlaps = header[9] == TCP && usize::from(later.offset) < transport::TCP_HEADER_MIN;
            refuse_if(overlaps && extent == Extent::Whole, Unreadable::OverlappingFragment).map(|()| headers)
        }
        _ => transport::read(frame, headers, extent),
    }
}

pub(super) fn read_v6(frame: &[u8], network: usize, extent: Extent) -> Result<Headers, Unreadable> {
    let (header, Ip { addresses, len, .. }) = header_v6(frame, network, extent)?;
    let end = network + len;
    let packet = frame.get(..end).ok_or(Unreadable::Malformed)?;
    let (protocol, transport, part) = skip_extensions(packet, header[IPV6_NEXT_HEADER_AT], network + IPV6_HEADER)?;
    let at = Offsets { network, transport, payload: transport, end };
    let headers = headers(addresses, protocol, part.map(|(fragment, _)| fragment), at);
    match part {
        Some((later, _)) if !later.is_first() => {
            let overlaps = usize::from(later.offset) < JUDGED_MAX_V6;
            refuse_if(overlaps && extent == Extent::Whole, Unreadable::OverlappingFragment).map(|()| headers)
        }
        Some((_, start)) => {
            // Otherwise a later fragment could overwrite the rest.
            let judged = transport - start + transport::judged_bytes(protocol);
            refuse_if(judged > JUDGED_MAX_V6 && extent == Extent::Whole, Unreadable::TooManyHeaders)?;
            transport::read(frame, headers, extent)
        }
        None => transport::read(frame, headers, extent),
    }
}

#[inline]
fn headers(addresses: Addresses, protocol: u8, fragment: Option<Fragment>, at: Offsets) -> Headers {
    Headers { addresses, protocol, ports: None, tcp_flags: None, icmp: None, fragment, vlan_tags: 0, at }
}

#[inline]
fn refuse_if(holds: bool, reason: Unreadable) -> Result<(), Unreadable> {
    if holds { Err(reason) } else { Ok(()) }
}

#[inline]
fn end_of(frame: &[u8], network: usize, len: usize, extent: Extent) -> Result<usize, Unreadable> {
    match network + len {
        end if end <= frame.len() => Ok(end),
        _ if extent == Extent::Quoted => Ok(frame.len()),
        _ => Err(Unreadable::Malformed),
    }
}

/// Returns the offset in the frame of a fragment's part of the datagram.
pub(super) fn part_start(frame: &[u8], headers: &Headers) -> Option<usize> {
    let packet = frame.get(..headers.at.end)?;
    match headers.addresses {
        Addresses::V4(_) => Some(headers.at.transport),
        Addresses::V6(_) => {
            let first = *packet.get(headers.at.network + IPV6_NEXT_HEADER_AT)?;
            let (_, _, part) = skip_extensions(packet, first, headers.at.network + IPV6_HEADER).ok()?;
            part.map(|(_, start)| start)
        }
    }
}

/// Returns whether an IPv6 packet has stops of a routing header to come: the transport's checksum is of the last one's address (RFC 8200,
/// 8.1). `packet` begins with the Ethernet header.
pub(super) fn has_stops_to_come(packet: &[u8], headers: &Headers) -> bool {
    let mut at = headers.at.network + IPV6_HEADER;
    let mut protocol = packet.get(headers.at.network + IPV6_NEXT_HEADER_AT).copied();
    while at < headers.at.transport {
        let Some(header) = packet.get(at..).and_then(<[u8]>::first_chunk::<4>) else { return false };
        if protocol == Some(ROUTING) && header[3] != 0 {
            return true;
        }
        at += if protocol == Some(IPV6_FRAGMENT) { 8 } else { (usize::from(header[1]) + 1) * 8 };
        protocol = Some(header[0]);
    }
    false
}

/// Finds the protocol after the extension headers, and its offset. For a fragment, also returns the fragment, and the offset of its part of
/// the datagram.
#[expect(clippy::type_complexity, reason = "taken apart where it is returned")]
fn skip_extensions(
    packet: &[u8],
    first: u8,
    start: usize,
) -> Result<(u8, usize, Option<(Fragment, usize)>), Unreadable> {
    let (mut protocol, mut at, mut part, mut fragment_headers) = (first, start, None, 0);
    for _ in 0..=EXTENSIONS_MAX {
        let header = packet.get(at..).and_then(<[u8]>::first_chunk::<8>);
        match protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                let header = header.ok_or(Unreadable::Malformed)?;
                protocol = header[0];
                at += (usize::from(header[1]) + 1) * 8;
            }
            IPV6_FRAGMENT => {
                let header = header.ok_or(Unreadable::Malformed)?;
                fragment_headers += 1;
                // A fragment of a fragment: no host sends one, and a careful host refuses it.
                refuse_if(fragment_headers > 1, Unreadable::TooManyHeaders)?;
                let (offset, id) = (u16_at(header, 2), [header[4], header[5], header[6], header[7]]);
                protocol = header[0];
                at += 8;
                part = fragment(u32::from_be_bytes(id), offset & 0xfff8, offset & 1 != 0).map(|part| (part, at));
                // A later fragment contains no header, and nothing that looks like one can be trusted.
                if part.is_some_and(|(part, _)| !part.is_first()) {
                    return Ok((protocol, at, part));
                }
            }
            _ if at > packet.len() => return Err(Unreadable::Malformed),
            _ => return Ok((protocol, at, part)),
        }
    }
    Err(Unreadable::TooManyHeaders)
}

/// Returns a fragment, or `None` for a whole datagram.
#[inline]
fn fragment(id: u32, offset: u16, more: bool) -> Option<Fragment> {
    (more || offset != 0).then_some(Fragment { id, offset, more })
}

#[inline]
fn u16_at(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}
