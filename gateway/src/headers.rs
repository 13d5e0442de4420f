//! Reads a frame's headers, once: what it is and which flow it belongs to. The gateway calls this for each frame.
//!
//! ```text
//!   frame --> parse --> tags    up to two VLAN tags
//!                   --> ipv4    header, checksum, fragment?  --\
//!                   --> ipv6    header, extension headers    ---> transport   ports, ICMP type --> key
//! ```
//!
//! No byte here is trusted. A field is read from a slice or array whose length has just been checked, never by an index
//! that came in a frame. No input can cause a panic, and each kind of malformed frame has its [`DropReason`]. Not done:
//! * **TCP, UDP and ICMP checksums are not verified.** The endpoint of a connection checks its own. Those that a sender's
//!   kernel left to hardware were computed by the port ([`crate::checksums`]).
//! * **Fragments are not reassembled.** Only a datagram's first fragment says which flow it belongs to; the others
//!   follow it (`flows/fragments.rs`).
//! * **Addresses are not judged.** That depends on the port's own ones (`assign/addresses.rs`).
//!
//! Allocates nothing; the work is bounded by [`EXTENSIONS_MAX`] and [`TAGS_MAX`]. Every packet passes through here, so
//! the readers are plain loads and compares. The usual frame (untagged, no IPv4 options, no extension headers) takes no
//! loop. The readers are inlined, because to pass a key through memory costs more than to make it.

mod fragment;
pub(crate) mod hosts;
mod ipv4;
mod ipv6;
mod key;
pub(crate) mod plain;
mod quote;
pub(crate) mod stray;
mod tags;
mod transport;

use pinion_mma::id::PortIndex;
use smoltcp::wire::EthernetAddress;

use self::key::Receiver;
use crate::drops::DropReason;

pub use fragment::{Extent, Fragment, Part};
pub use ipv6::EXTENSIONS_MAX;
pub(crate) use key::{BeyondDatagram, Field, ICMP_TYPE_THERE, Wanted};
pub use key::{FiveTuple, FlowKey, Ingress, Vlan};
pub use quote::answered_flow;
pub use tags::TAGS_MAX;
pub(crate) use tags::payload_offset;
pub(crate) use transport::Segment;
pub use transport::TcpEvent;

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// An ARP message in this VLAN.
    Arp(Vlan),
    /// Router or neighbour discovery over IPv6 (ICMPv6 types 133 to 137) in this VLAN. It concerns the link only, never an
    /// FWP.
    NeighborDiscovery(Vlan),
    /// A whole IP packet, and the TCP event that it carries, if any.
    Flow(FlowKey, Option<TcpEvent>),
    /// A whole ICMP or ICMPv6 message that reports an error about a packet, which it quotes, and the flow of the message
    /// itself.
    IcmpError(FlowKey),
    /// A fragment of an IP packet.
    Fragment(Fragment),
}

impl Headers {
    /// Combines the results of the readers of a whole packet. `portless` is the flow as far as the IP header tells it.
    #[inline(always)]
    fn of(portless: FlowKey, told: transport::TransportInfo) -> Self {
        let flow = told.add_to(portless);
        match told {
            transport::TransportInfo::IcmpError(_) => Self::IcmpError(flow),
            _ => Self::Flow(flow, told.milestone()),
        }
    }
}

/// Reads a frame that came in by `port`, whose hardware address is `station`.
///
/// # Errors
/// The reason why the frame is dropped.
pub fn parse(frame: &[u8], port: PortIndex, station: EthernetAddress) -> Result<Headers, DropReason> {
    let (ethernet, rest) = frame.split_first_chunk::<14>().ok_or(DropReason::Truncated)?;
    if !is_for(ethernet, station) {
        return Err(DropReason::NotForUs);
    }
    if ethernet[6] & 1 != 0 {
        return Err(DropReason::BadSource);
    }
    let ethertype = be16(ethernet[12], ethernet[13]);
    let ingress = Ingress { port, vlan: Vlan::UNTAGGED };
    let receiver = if is_for_group(ethernet) { Receiver::Group } else { Receiver::Station };
    match ethertype {
        IPV4 => ipv4::parse(rest, ingress, receiver),
        IPV6 => ipv6::parse(rest, ingress, receiver),
        ARP => Ok(Headers::Arp(Vlan::UNTAGGED)),
        tag if tags::is_tag(tag) => parse_tagged(tag, rest, port, receiver),
        _ => Err(DropReason::UnknownEthertype),
    }
}

/// Reads an IP packet, of this Ethernet type, as if it had come in here for one station.
///
/// # Errors
/// The reason why it would be dropped.
pub(crate) fn parse_packet(ethertype: u16, packet: &[u8], ingress: Ingress) -> Result<Headers, DropReason> {
    match ethertype {
        IPV4 => ipv4::parse(packet, ingress, Receiver::Station),
        IPV6 => ipv6::parse(packet, ingress, Receiver::Station),
        _ => Err(DropReason::UnknownEthertype),
    }
}

/// Returns the numbers of a whole TCP segment over IP of this Ethernet type, which was read before.
pub(crate) fn segment_in_packet(ethertype: u16, packet: &[u8]) -> Option<Segment> {
    Segment::of(match ethertype {
        IPV4 => ipv4::message(packet)?,
        IPV6 => ipv6::message(packet)?,
        _ => return None,
    })
}

/// Returns the numbers of a whole TCP segment in a frame that was read before.
pub(crate) fn segment_in_frame(frame: &[u8]) -> Option<Segment> {
    let offset = payload_offset(frame);
    let (ethertype, packet) = (frame.get(offset - 2..offset)?, frame.get(offset..)?);
    segment_in_packet(be16(ethertype[0], ethertype[1]), packet)
}

/// Returns whether all headers that [`parse`] has read of a frame end within its first `max` bytes; of an error, also those of
/// the packet that it quotes. Only extension headers of IPv6 take more than 180 bytes.
#[inline]
pub(crate) fn end_within(frame: &[u8], read: &Headers, max: usize) -> bool {
    let (Headers::Flow(flow, _) | Headers::IcmpError(flow) | Headers::Fragment(Fragment { flow, .. })) = read else {
        return true;
    };
    if frame.len() <= max || !flow.is_ipv6() {
        return true;
    }
    let Some(start) = frame.get(payload_offset(frame)..max) else { return false };
    let quotes = matches!(read, Headers::IcmpError(_));
    ipv6::is_whole(start) || ipv6::headers_end_in(start) && (!quotes || ipv6::quoted_headers_end_in(start))
}

/// Returns the VLAN of a frame, and the type and the bytes of what is behind its tags. `ethertype` and `bytes` are what
/// follows its addresses.
///
/// # Errors
/// If it has more tags than [`TAGS_MAX`], or ends within one.
#[inline(always)]
pub(crate) fn untagged(ethertype: u16, bytes: &[u8]) -> Result<(Vlan, u16, &[u8]), DropReason> {
    if tags::is_tag(ethertype) { tags::read(ethertype, bytes) } else { Ok((Vlan::UNTAGGED, ethertype, bytes)) }
}

/// Returns the TCP event of a frame that was read before, if any.
pub(crate) fn milestone(frame: &[u8]) -> Option<TcpEvent> {
    let station = EthernetAddress(*frame.first_chunk()?);
    match parse(frame, PortIndex(0), station) {
        Ok(Headers::Flow(_, milestone)) => milestone,
        _ => None,
    }
}

/// Returns whether a station receives the frame. Multicast includes broadcast.
#[inline(always)]
fn is_for(ethernet: &[u8; 14], station: EthernetAddress) -> bool {
    ethernet[..6] == station.0 || is_for_group(ethernet)
}

#[inline(always)]
fn is_for_group(ethernet: &[u8; 14]) -> bool {
    ethernet[0] & 1 != 0
}

fn parse_tagged(tag: u16, bytes: &[u8], port: PortIndex, receiver: Receiver) -> Result<Headers, DropReason> {
    let (vlan, ethertype, payload) = tags::read(tag, bytes)?;
    let ingress = Ingress { port, vlan };
    match ethertype {
        IPV4 => ipv4::parse(payload, ingress, receiver),
        IPV6 => ipv6::parse(payload, ingress, receiver),
        ARP => Ok(Headers::Arp(vlan)),
        _ => Err(DropReason::UnknownEthertype),
    }
}

#[inline]
fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests;
