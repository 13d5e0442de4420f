//! Why the gateway drops frames, and how often. Only the gateway's thread counts; any thread may read.
//!
//! No received frame vanishes without one of these reasons. Frames that a device does not accept for transmission are
//! counted with the port ([`crate::port::PortCounters`]). The names are stable, because operators see them and alert on
//! them.

use std::fmt;

use pinion_mma::accounts::counters::Counter;

use crate::id::{CHAINS_MAX, ChainIndex};

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// A header claims more bytes than the frame has.
    Truncated,
    /// The IP version contradicts the Ethernet type.
    BadVersion,
    /// A length field contradicts another one.
    BadLength,
    /// The checksum of the IPv4 header, or of a neighbour discovery message, is wrong.
    BadChecksum,
    /// The sender's hardware address, or the sender's address in a neighbour message, is that of a group, which no
    /// sender can have.
    BadSource,
    /// An IP address that no packet on a link can have as its source, or as its destination: see
    /// `assign/addresses.rs`.
    Martian,
    /// A packet for one host in a frame for a group of stations (RFC 1122, section 3.3.6).
    UnicastToGroup,
    /// The Ethernet type is neither ARP, IPv4 nor IPv6.
    UnknownEthertype,
    /// More than two VLAN tags.
    TooManyTags,
    /// ARP or neighbour discovery in a VLAN in which the port has no addresses.
    VlanNeighbor,
    /// More IPv6 extension headers than [`crate::headers::EXTENSIONS_MAX`].
    TooManyExtensions,
    /// The sender prescribes the packet's route: a routing header of type 0 (RFC 5095), or an IPv4 option for source
    /// routes.
    SourceRoute,
    /// The destination is another station's hardware address, or the message is about an address that is not this
    /// port's.
    NotForUs,
    /// A malformed ARP or neighbour discovery message.
    BadNeighborMessage,
    /// Another station claims one of this port's addresses.
    AddressConflict,
    /// More requests of a station, or of all together, than are answered in a second.
    NeighborRate,
    /// A fragment of a datagram whose first fragment did not come in time: its flow is unknown.
    FragmentWithoutFirst,
    /// A fragment with bytes that another fragment of its datagram had, or that is the second first one. It ends its
    /// datagram (RFC 5722).
    OverlappingFragment,
    /// A fragment of a datagram that another fragment has ended.
    DatagramEnded,
    /// An empty fragment, or one before the last whose length is no multiple of 8 bytes.
    FragmentLength,
    /// A fragment that ends beyond the longest packet, of 65,535 bytes.
    FragmentTooFar,
    /// A fragment by which its datagram ends before bytes that were seen, or elsewhere than by another one.
    FragmentEnd,
    /// A first fragment without the whole header by which its datagram is classified (RFC 1858, RFC 7112).
    TinyFragment,
    /// A fragment that leaves more gaps in its datagram than the gateway keeps account of.
    ScatteredFragments,
    /// There is no room for a fragment to wait for the first one of its datagram, or for another datagram in fragments.
    FragmentsFull,
    /// An ICMP redirect. Functions reply to the stations that frames came from, and have no routes to change.
    Redirect,
    /// An ICMP error that does not quote enough of a packet to tell its flow, or quotes one that no error may be about;
    /// or an error in fragments.
    BadQuote,
    /// An ICMP error to another address than the source of the packet that it quotes.
    ForgedError,
    /// An ICMP error about a flow without an instance.
    ErrorWithoutFlow,
    /// A packet for a group or a broadcast address that no rule names as its destination.
    GroupNotAsked,
    /// The source address is not reached by the network that the packet came in by (`reverse_path`).
    ReversePath,
    /// No rule matches.
    NoRule,
    /// The matching rule's chain is unavailable.
    ChainUnavailable,
    /// A TCP segment of a client without an instance that resets a connection, closes it without data, or acknowledges
    /// without data in one that is not known: no instance is started for it.
    NoConnection,
    /// A packet of a new client whose source prefix has as many of the tenant's FWPs as one may have.
    SourceLimit,
    /// No chain instance became ready within the time that a frame may wait for one.
    NoInstance,
    /// Too many frames wait for chain instances, in total or of one client.
    PendingFull,
    /// The launcher does not keep up with the gateway's events, so nothing new can start.
    LauncherBusy,
    /// The MMA does not keep up: it holds as many of the gateway's buffers as it may.
    MmaBusy,
    /// A frame that was to leave is no IP packet, or a header claims more bytes than it has.
    Malformed,
    /// A frame that was to leave carries neither IPv4 nor IPv6.
    NotIp,
    /// A frame that was to leave is of a kind that only the node sends: ARP, router or neighbour discovery, a redirect, or a
    /// message between bridges.
    NodeOnly,
    /// A frame that was to leave was to do so by a port that its tenant is not granted.
    ForeignPort,
    /// A frame that was to leave has another station as its source than the port's.
    ForeignStation,
    /// A frame that was to leave is in a VLAN that no rule of its chain names.
    ForeignVlan,
    /// A packet that was to leave has a source address that neither is its tenant's nor came in by its chain, or that no host
    /// can have.
    ForgedSource,
    /// No route of the port leads to the address that a packet was to leave for.
    NoRoute,
    /// The next hop of a packet that was to leave does not answer, or too many are asked for.
    UnresolvedNeighbor,
    /// A packet of an outbound flow that has ended, or whose instance has.
    FlowClosed,
}

impl DropReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 49] = [
        Self::Truncated,
        Self::BadVersion,
        Self::BadLength,
        Self::BadChecksum,
        Self::BadSource,
        Self::Martian,
        Self::UnicastToGroup,
        Self::UnknownEthertype,
        Self::TooManyTags,
        Self::VlanNeighbor,
        Self::TooManyExtensions,
        Self::SourceRoute,
        Self::NotForUs,
        Self::BadNeighborMessage,
        Self::AddressConflict,
        Self::NeighborRate,
        Self::FragmentWithoutFirst,
        Self::OverlappingFragment,
        Self::DatagramEnded,
        Self::FragmentLength,
        Self::FragmentTooFar,
        Self::FragmentEnd,
        Self::TinyFragment,
        Self::ScatteredFragments,
        Self::FragmentsFull,
        Self::Redirect,
        Self::BadQuote,
        Self::ForgedError,
        Self::ErrorWithoutFlow,
        Self::GroupNotAsked,
        Self::ReversePath,
        Self::NoRule,
        Self::ChainUnavailable,
        Self::NoConnection,
        Self::SourceLimit,
        Self::NoInstance,
        Self::PendingFull,
        Self::LauncherBusy,
        Self::MmaBusy,
        Self::Malformed,
        Self::NotIp,
        Self::NodeOnly,
        Self::ForeignPort,
        Self::ForeignStation,
        Self::ForeignVlan,
        Self::ForgedSource,
        Self::NoRoute,
        Self::UnresolvedNeighbor,
        Self::FlowClosed,
    ];

    /// Returns the reason's name in status reports and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadVersion => "bad-version",
            Self::BadLength => "bad-length",
            Self::BadChecksum => "bad-checksum",
            Self::BadSource => "bad-source",
            Self::Martian => "martian",
            Self::UnicastToGroup => "unicast-to-group",
            Self::UnknownEthertype => "unknown-ethertype",
            Self::TooManyTags => "too-many-tags",
            Self::VlanNeighbor => "vlan-neighbor",
            Self::TooManyExtensions => "too-many-extensions",
            Self::SourceRoute => "source-route",
            Self::NotForUs => "not-for-us",
            Self::BadNeighborMessage => "bad-neighbor-message",
            Self::AddressConflict => "address-conflict",
            Self::NeighborRate => "neighbor-rate",
            Self::FragmentWithoutFirst => "fragment-without-first",
            Self::OverlappingFragment => "overlapping-fragment",
            Self::DatagramEnded => "datagram-ended",
            Self::FragmentLength => "fragment-length",
            Self::FragmentTooFar => "fragment-too-far",
            Self::FragmentEnd => "fragment-end",
            Self::TinyFragment => "tiny-fragment",
            Self::ScatteredFragments => "scattered-fragments",
            Self::FragmentsFull => "fragments-full",
            Self::Redirect => "redirect",
            Self::BadQuote => "bad-quote",
            Self::ForgedError => "forged-error",
            Self::ErrorWithoutFlow => "error-without-flow",
            Self::GroupNotAsked => "group-not-asked",
            Self::ReversePath => "reverse-path",
            Self::NoRule => "no-rule",
            Self::ChainUnavailable => "chain-unavailable",
            Self::NoConnection => "no-connection",
            Self::SourceLimit => "source-limit",
            Self::NoInstance => "no-instance",
            Self::PendingFull => "pending-full",
            Self::LauncherBusy => "launcher-busy",
            Self::MmaBusy => "mma-busy",
            Self::Malformed => "malformed",
            Self::NotIp => "not-ip",
            Self::NodeOnly => "node-only",
            Self::ForeignPort => "foreign-port",
            Self::ForeignStation => "foreign-station",
            Self::ForeignVlan => "foreign-vlan",
            Self::ForgedSource => "forged-source",
            Self::NoRoute => "no-route",
            Self::UnresolvedNeighbor => "unresolved-neighbor",
            Self::FlowClosed => "flow-closed",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One port's dropped frames by reason. Only the gateway's thread writes it.
#[derive(Debug)]
pub struct DropCounters {
    counts: [Counter; DropReason::ALL.len()],
}

impl Default for DropCounters {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| Counter::default()) }
    }
}

impl DropCounters {
    /// Counts frames. Only the gateway that owns the port may call this.
    pub(crate) fn add(&self, reason: DropReason, count: u64) {
        self.counts[reason as usize].add(count);
    }

    /// Returns how many frames were dropped for this reason so far.
    #[must_use]
    pub fn count(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize].value()
    }

    /// Returns every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.count(reason)))
    }

    /// Returns how many frames were dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}

/// The reasons that are counted by chain: those for frames whose chain is known.
const OF_CHAINS: [DropReason; 18] = [
    DropReason::NoConnection,
    DropReason::SourceLimit,
    DropReason::NoInstance,
    DropReason::PendingFull,
    DropReason::LauncherBusy,
    DropReason::MmaBusy,
    DropReason::ErrorWithoutFlow,
    DropReason::OverlappingFragment,
    DropReason::Malformed,
    DropReason::NotIp,
    DropReason::NodeOnly,
    DropReason::ForeignPort,
    DropReason::ForeignStation,
    DropReason::ForeignVlan,
    DropReason::ForgedSource,
    DropReason::NoRoute,
    DropReason::UnresolvedNeighbor,
    DropReason::FlowClosed,
];

/// Dropped frames of one chain, which are also among the port's drops. Only the gateway's thread writes it.
#[derive(Debug, Default)]
pub struct ChainDrops {
    counts: [Counter; OF_CHAINS.len()],
}

/// A snapshot of a chain's drops, by reason.
pub type ChainDropCounts = [(DropReason, u64); OF_CHAINS.len()];

impl ChainDrops {
    /// Counts frames. Only the gateway may call this.
    pub fn add(&self, reason: DropReason, count: u64) {
        // For any other reason, the frame's chain was not known when it was dropped.
        if let Some(at) = OF_CHAINS.iter().position(|of_chains| *of_chains == reason) {
            self.counts[at].add(count);
        }
    }

    /// Returns every reason with its count.
    #[must_use]
    pub fn counts(&self) -> ChainDropCounts {
        std::array::from_fn(|at| (OF_CHAINS[at], self.counts[at].value()))
    }
}

/// Dropped frames by chain. The counts of a chain's index stay when another chain gets that index.
#[derive(Debug)]
pub struct DropsByChain {
    chains: Box<[ChainDrops]>,
}

impl Default for DropsByChain {
    fn default() -> Self {
        Self { chains: (0..CHAINS_MAX).map(|_| ChainDrops::default()).collect() }
    }
}

impl DropsByChain {
    /// Returns one chain's drops.
    ///
    /// # Panics
    /// If the index is not below [`CHAINS_MAX`].
    #[must_use]
    pub fn chain(&self, chain: ChainIndex) -> &ChainDrops {
        &self.chains[chain.0 as usize]
    }

    /// Counts a frame. Only the gateway may call this.
    pub(crate) fn add(&self, chain: Option<ChainIndex>, reason: DropReason) {
        if let Some(drops) = chain.and_then(|chain| self.chains.get(chain.0 as usize)) {
            drops.add(reason, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_reason_has_its_own_place_and_its_own_kebab_case_name() {
        for (place, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{reason}");
            assert!(reason.name().bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()), "{reason}");
        }
        let names: HashSet<_> = DropReason::ALL.map(DropReason::name).into();
        assert_eq!(names.len(), DropReason::ALL.len());
    }

    #[test]
    fn a_count_goes_to_its_reason_only() {
        let drops = DropCounters::default();
        drops.add(DropReason::NoRule, 3);
        assert_eq!((drops.count(DropReason::NoRule), drops.total()), (3, 3));
    }
}
