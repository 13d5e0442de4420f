//! Judges frames that are to leave.
//!
//! The usual frame takes a short way: the port's own station as source, IP without options, and a source address that was
//! judged just before for the same chain. No byte of the frame is trusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pinion_abi::FLOW_ETHERTYPE;
use pinion_mma::id::PortIndex;
use smoltcp::wire::EthernetAddress;

use super::origins::{Address, Origins, Owner};
use super::terms::SenderTerms;
use crate::drops::DropReason;
use crate::headers::hosts::is_of_host;
use crate::headers::{self, Headers, Ingress, Vlan};

/// Sources that were judged of late, and the time after which one is judged anew.
const RECENT: usize = 256;
const RECENT_NS: u64 = 1_000_000_000;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
/// Control of the link: pause frames.
const MAC_CONTROL: u16 = 0x8808;
/// Below this, the Ethernet type is a length: of a message between bridges or routers, or of a packet in another wrapping
/// (RFC 1042).
const TYPES_MIN: u16 = 0x0600;
/// Tags besides those of 802.1Q and 802.1ad that a VLAN is named by.
const OTHER_TAGS: [u16; 6] = [0x9100, 0x9200, 0x9300, 0x88e7, 0x8926, 0x893f];
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// A redirect; router discovery (RFC 1256).
const ICMP_NODE_ONLY: [u8; 3] = [5, 9, 10];
/// IPv6's headers before another one: hop-by-hop, routing, fragment, authentication, destination options, and others
/// (RFC 7045).
const EXTENSIONS: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];
const DISCOVERY_TYPES: std::ops::RangeInclusive<u8> = 133..=137;
/// Groups that no bridge forwards: spanning tree, pause, link aggregation, LLDP (IEEE 802.1Q, table 8-1).
const LINK_GROUP: [u8; 5] = [0x01, 0x80, 0xc2, 0x00, 0x00];
/// Those of messages between bridges that some forward: registration of groups and VLANs (IEEE 802.1Q, table 10-1), and of
/// one maker's bridges.
const BRIDGE_GROUPS: std::ops::RangeInclusive<u8> = 0x20..=0x2f;
const MAKERS_BRIDGES: [[u8; 6]; 2] = [[0x01, 0, 0x0c, 0xcc, 0xcc, 0xcc], [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcd]];
const NO_STATION: [u8; 6] = [0; 6];

/// How a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// As it is.
    AsItIs,
    /// With Ethernet addresses of the node: to the next hop on the way to this address, in this VLAN.
    ByNode { vlan: Vlan, to: IpAddr },
    /// It does not: it is a request about a flow.
    Request,
}

/// A packet that is to leave.
#[derive(Clone, Copy)]
pub(crate) struct Leaving<'a> {
    pub(crate) vlan: Vlan,
    pub(crate) ethertype: u16,
    pub(crate) packet: &'a [u8],
    pub(crate) source: IpAddr,
}

#[derive(Clone, Copy)]
struct Recent {
    owner: Owner,
    source: Address,
    until_ns: u64,
}

/// See the module.
pub(crate) struct Judge {
    recent: Box<[Option<Recent>]>,
}

impl Judge {
    pub(crate) fn new() -> Self {
        Self { recent: vec![None; RECENT].into() }
    }

    /// Forgets what was judged. To be called when rules change.
    pub(crate) fn forget(&mut self) {
        self.recent.fill(None);
    }

    /// Returns how a frame leaves by a port with this station. `sender` is `None` if its chain is not in force any more.
    /// `is_of_flow` says whether a packet is of an outbound flow of the sender, and fails if it is of another's.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        origins: &mut Origins,
        frame: &[u8],
        (sender, port, station): (Option<&SenderTerms>, PortIndex, EthernetAddress),
        is_of_flow: impl FnOnce(Leaving<'_>) -> Result<bool, DropReason>,
        now_ns: u64,
    ) -> Result<Exit, DropReason> {
        let terms = sender.ok_or(DropReason::ChainUnavailable)?;
        if !terms.may_send.ports.contains(port) {
            return Err(DropReason::ForeignPort);
        }
        // The port counts what is too short for a header.
        let Some((ethernet, rest)) = frame.split_first_chunk::<14>() else { return Ok(Exit::AsItIs) };
        if ethernet[..5] == LINK_GROUP && ethernet[5] < 0x10 {
            return Err(DropReason::NodeOnly);
        }
        if ethernet[12..] == FLOW_ETHERTYPE.to_be_bytes() && terms.may_ask_for_flows() {
            return Ok(Exit::Request);
        }
        let (vlan, ethertype, packet) = headers::untagged(u16::from_be_bytes([ethernet[12], ethernet[13]]), rest)
            .map_err(|_| DropReason::Malformed)?;
        if !terms.vlans.contains(&vlan) {
            return Err(DropReason::ForeignVlan);
        }
        let by_node = terms.may_send.routed || ethernet[..6] == NO_STATION;
        if !by_node && ethernet[6..12] != station.0 && !terms.may_send.transparent {
            return Err(DropReason::ForeignStation);
        }
        let (source, to) = match ethertype {
            IPV4 => ipv4(packet)?,
            IPV6 => ipv6(packet)?,
            ARP => return Err(DropReason::NodeOnly),
            _ if terms.may_send.transparent && !by_node => return judge_other(ethernet, ethertype),
            _ => return Err(DropReason::NotIp),
        };
        // Of all senders: one that may open no flow must not send as another's.
        let is_of_flow = match is_of_flow(Leaving { vlan, ethertype, packet, source: source.into() }) {
            Err(reason) if !terms.may_send.transparent => return Err(reason),
            found => found.unwrap_or(false),
        };
        if !terms.may_send.transparent && !is_of_flow {
            self.judge_source(origins, terms, (source, to), now_ns)?;
        }
        Ok(if by_node { Exit::ByNode { vlan, to: to.into() } } else { Exit::AsItIs })
    }

    #[inline]
    fn judge_source(
        &mut self,
        origins: &mut Origins,
        terms: &SenderTerms,
        (source, to): (Source, Source),
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let (address, owner) = (source.address(), terms.owner);
        let recent = &mut self.recent[source.low_byte() as usize ^ (owner.chain.0 as usize % RECENT)];
        if recent.is_some_and(|it| it.owner == owner && it.source == address && now_ns < it.until_ns) {
            return Ok(());
        }
        if !is_of_host(source.into()) {
            // A host without an address asks all others for one.
            let asks = matches!((source, to), (Source::V4(0), Source::V4(u32::MAX)));
            return if asks && origins.has(owner, address, now_ns) { Ok(()) } else { Err(DropReason::ForgedSource) };
        }
        let is_assigned = || terms.may_send.sources.iter().any(|net| net.contains(&IpAddr::from(source)));
        if !origins.has(owner, address, now_ns) && !is_assigned() {
            return Err(DropReason::ForgedSource);
        }
        *recent = Some(Recent { owner, source: address, until_ns: now_ns + RECENT_NS });
        Ok(())
    }
}

/// An address in a packet.
#[derive(Clone, Copy)]
enum Source {
    V4(u32),
    V6(u128),
}

impl Source {
    #[inline(always)]
    fn address(self) -> Address {
        match self {
            Self::V4(bits) => Address::v4(bits),
            Self::V6(bits) => Address::v6(bits),
        }
    }

    #[inline(always)]
    fn low_byte(self) -> u8 {
        match self {
            Self::V4(bits) => bits as u8,
            Self::V6(bits) => bits as u8,
        }
    }
}

impl From<Source> for IpAddr {
    fn from(source: Source) -> Self {
        match source {
            Source::V4(bits) => Ipv4Addr::from_bits(bits).into(),
            Source::V6(bits) => Ipv6Addr::from_bits(bits).into(),
        }
    }
}

/// Judges what is no IP packet, of a chain that may send such.
#[inline(never)]
fn judge_other(ethernet: &[u8; 14], ethertype: u16) -> Result<Exit, DropReason> {
    let receiver = &ethernet[..6];
    let is_of_bridges = receiver[..5] == LINK_GROUP && BRIDGE_GROUPS.contains(&receiver[5])
        || MAKERS_BRIDGES.iter().any(|group| receiver == group);
    if is_of_bridges || ethertype == MAC_CONTROL || ethertype < TYPES_MIN {
        return Err(DropReason::NodeOnly);
    }
    // The VLAN that it names is none that rules name.
    if OTHER_TAGS.contains(&ethertype) {
        return Err(DropReason::ForeignVlan);
    }
    Ok(Exit::AsItIs)
}

/// Returns the source and the destination of a packet, whose lengths are those that its header says.
#[inline(always)]
fn ipv4(packet: &[u8]) -> Result<(Source, Source), DropReason> {
    let header = packet.first_chunk::<20>().ok_or(DropReason::Malformed)?;
    let (header_len, total_len) =
        (usize::from(header[0] & 0xf) * 4, usize::from(u16::from_be_bytes([header[2], header[3]])));
    if header[0] >> 4 != 4 || header_len < 20 || total_len < header_len || total_len > packet.len() {
        return Err(DropReason::Malformed);
    }
    if header[9] == ICMP {
        icmp(header, &packet[header_len..total_len])?;
    }
    let address = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    Ok((Source::V4(address(12)), Source::V4(address(16))))
}

/// Judges an ICMP message of IPv4. Later fragments have no header of it.
#[inline]
fn icmp(header: &[u8; 20], message: &[u8]) -> Result<(), DropReason> {
    let is_first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
    let is_refused = is_first && message.first().is_none_or(|kind| ICMP_NODE_ONLY.contains(kind));
    if is_refused { Err(DropReason::NodeOnly) } else { Ok(()) }
}

/// The same for IPv6.
#[inline(always)]
fn ipv6(packet: &[u8]) -> Result<(Source, Source), DropReason> {
    let (header, rest) = packet.split_first_chunk::<40>().ok_or(DropReason::Malformed)?;
    if header[0] >> 4 != 6 || usize::from(u16::from_be_bytes([header[4], header[5]])) > rest.len() {
        return Err(DropReason::Malformed);
    }
    match header[6] {
        ICMPV6 if rest.first().is_none_or(|kind| DISCOVERY_TYPES.contains(kind)) => return Err(DropReason::NodeOnly),
        next if EXTENSIONS.contains(&next) => behind_extensions(packet)?,
        _ => {}
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        u128::from_be_bytes(octets)
    };
    Ok((Source::V6(address(8)), Source::V6(address(24))))
}

/// Judges a packet with extension headers by what is behind them.
#[inline(never)]
fn behind_extensions(packet: &[u8]) -> Result<(), DropReason> {
    let anywhere = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
    match headers::parse_packet(IPV6, packet, anywhere) {
        Ok(Headers::NeighborDiscovery(_)) => Err(DropReason::NodeOnly),
        Ok(_) => Ok(()),
        Err(_) => Err(DropReason::Malformed),
    }
}
