//! Reads a frame's headers, once: what it is and which flow it belongs to. Called by the gateway for each frame.
//!
//! ```text
//!   frame --> parse --> tags    up to two VLAN tags
//!                   --> ipv4    header, checksum, fragment?  --\
//!                   --> ipv6    header, extension headers    ---> transport   ports, ICMP type --> key
//! ```
//!
//! Every byte here is foreign. A field is read from a slice or array whose length has been checked just before, never by
//! an index that came in a frame; no input can make this panic, and each way to be malformed has its [`DropReason`]. Not
//! done:
//! * **TCP, UDP and ICMP checksums are not verified.** A virtual Ethernet pair or a TAP device hands over frames whose
//!   transport checksum the sender's kernel left for hardware that isn't there; and whoever ends a connection checks
//!   its own.
//! * **Fragments are not put together.** Only a datagram's first fragment says which flow it is of; the others follow it
//!   (`flows/fragments.rs`).
//!
//! Allocates nothing; the work is bounded by [`EXTENSIONS_MAX`] and [`TAGS_MAX`]. It is on the way of every packet, so
//! the readers are plain loads and compares, and the usual frame (untagged, no IPv4 options, no extension headers) takes
//! no loop. They are inlined where they are used, since a key that is handed on through memory costs more than making it.

mod ipv4;
mod ipv6;
mod key;
pub(crate) mod plain;
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
pub use transport::Milestone;

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// An ARP message on the untagged network.
    Arp,
    /// Router or neighbour discovery over IPv6 (ICMPv6 types 133 to 137) on the untagged network: the link's own
    /// business, never an FWP's.
    NeighborDiscovery,
    /// A whole packet over IP, and what it says of the life of its TCP connection.
    Flow(FlowKey, Option<Milestone>),
    /// A piece of one.
    Fragment(Fragment),
}

/// One fragment of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The datagram's flow if this is its first fragment, else as much of it as every fragment says: it lacks ports and
    /// ICMP type.
    pub flow: FlowKey,
    /// What the fragments of one datagram have in common, beside what [`Fragment::flow`] says.
    pub identification: u32,
    /// Which part it is.
    pub part: Part,
}

/// How much of a datagram a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The fragment with the transport header.
    First,
    /// Any other.
    Later,
}

impl Headers {
    /// `portless` is the flow as far as the IP header tells it.
    #[inline(always)]
    fn of(portless: FlowKey, told: transport::Told, part: Part, identification: u32) -> Self {
        let flow = told.add_to(portless);
        match part {
            Part::Whole => Self::Flow(flow, told.milestone()),
            Part::First | Part::Later => Self::Fragment(Fragment { flow, identification, part }),
        }
    }
}

/// Reads a frame that came in by `port`, whose hardware address is `station`.
///
/// # Errors
/// Why the frame is to be dropped.
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

/// What a frame that was read before says of its connection's life.
pub(crate) fn milestone(frame: &[u8]) -> Option<Milestone> {
    let station = EthernetAddress(*frame.first_chunk()?);
    match parse(frame, PortIndex(0), station) {
        Ok(Headers::Flow(_, milestone)) => milestone,
        _ => None,
    }
}

/// Whether a station takes the frame. Multicast includes broadcast.
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
