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
//!
//! Allocates nothing; the work is bounded by [`EXTENSIONS_MAX`] and [`TAGS_MAX`]. Every packet passes through here, so
//! the readers are plain loads and compares. The usual frame (untagged, no IPv4 options, no extension headers) takes no
//! loop. The readers are inlined, because to pass a key through memory costs more than to make it.

mod ipv4;
mod ipv6;
mod key;
pub(crate) mod plain;
pub(crate) mod stray;
mod tags;
mod transport;

use pinion_mma::id::PortIndex;
use smoltcp::wire::EthernetAddress;

use crate::drops::DropReason;

pub use ipv6::EXTENSIONS_MAX;
pub(crate) use key::{Field, ICMP_TYPE_THERE};
pub use key::{FiveTuple, FlowKey, Ingress, Vlan};
pub use tags::TAGS_MAX;
pub(crate) use tags::payload_offset;
pub use transport::TcpEvent;

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// An ARP message on the untagged network.
    Arp,
    /// Router or neighbour discovery over IPv6 (ICMPv6 types 133 to 137) on the untagged network. It concerns the link
    /// only, never an FWP.
    NeighborDiscovery,
    /// A whole IP packet, and the TCP event that it carries, if any.
    Flow(FlowKey, Option<TcpEvent>),
    /// A fragment of an IP packet.
    Fragment(Fragment),
}

/// One fragment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram's flow if this is its first fragment. Otherwise the part of it that every fragment has, without
    /// ports and ICMP type.
    pub flow: FlowKey,
    /// What the fragments of one datagram share in addition to [`Fragment::flow`].
    pub identification: u32,
    /// Which part of the datagram it is.
    pub part: Part,
    /// In bytes of the datagram. For the first fragment, the end of the headers that [`Fragment::flow`] was read from;
    /// for any other, its own beginning. So a fragment that begins before that end would overwrite headers by which the
    /// datagram was classified.
    pub boundary: u16,
}

/// How much of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The fragment with the transport header.
    First,
    /// Any later fragment.
    Later,
}

impl Headers {
    /// Combines the results of the readers. `portless` is the flow as far as the IP header tells it.
    #[inline(always)]
    fn of(portless: FlowKey, told: transport::TransportInfo, part: Part, identification: u32, boundary: u16) -> Self {
        let flow = told.add_to(portless);
        match part {
            Part::Whole => Self::Flow(flow, told.milestone()),
            Part::First | Part::Later => Self::Fragment(Fragment { flow, identification, part, boundary }),
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
    match ethertype {
        IPV4 => ipv4::parse(rest, ingress),
        IPV6 => ipv6::parse(rest, ingress),
        ARP => Ok(Headers::Arp),
        tag if tags::is_tag(tag) => parse_tagged(tag, rest, port),
        _ => Err(DropReason::UnknownEthertype),
    }
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
    ethernet[..6] == station.0 || ethernet[0] & 1 != 0
}

fn parse_tagged(tag: u16, bytes: &[u8], port: PortIndex) -> Result<Headers, DropReason> {
    let (vlan, ethertype, payload) = tags::read(tag, bytes)?;
    let ingress = Ingress { port, vlan };
    let headers = match ethertype {
        IPV4 => ipv4::parse(payload, ingress)?,
        IPV6 => ipv6::parse(payload, ingress)?,
        ARP => Headers::Arp,
        _ => return Err(DropReason::UnknownEthertype),
    };
    match headers {
        Headers::Arp | Headers::NeighborDiscovery if vlan != Vlan::UNTAGGED => Err(DropReason::VlanNeighbor),
        other => Ok(other),
    }
}

#[inline]
fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests;
