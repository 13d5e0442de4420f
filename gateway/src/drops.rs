//! Why the gateway drops frames, and how often it did: counted by the gateway's thread, read by anybody.
//!
//! No received frame vanishes without one of these reasons; frames that a device does not take for transmission are
//! counted with the port ([`crate::port::PortCounters`]). The names are stable: they are what operators see and alert
//! on.

use std::fmt;

use pinion_mma::counters::Counter;

use crate::id::{CHAINS_MAX, ChainIndex};

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Some header promises more bytes than came.
    Truncated,
    /// An IP version that contradicts the Ethernet type.
    BadVersion,
    /// A length field that contradicts another one.
    BadLength,
    /// Wrong checksum of the IPv4 header, or of a neighbour discovery message.
    BadChecksum,
    /// A source address that no sender can have (multicast, broadcast).
    BadSource,
    /// Neither ARP, IPv4 nor IPv6.
    UnknownEthertype,
    /// More than two VLAN tags.
    TooManyTags,
    /// ARP or neighbour discovery in a VLAN: the node's addresses are on the untagged network, and an answer would join
    /// networks kept apart on purpose.
    VlanNeighbor,
    /// More IPv6 extension headers than anybody needs.
    TooManyExtensions,
    /// To another station's hardware address, or about an address that isn't this port's.
    NotForUs,
    /// A malformed ARP or neighbour discovery message.
    BadNeighborMessage,
    /// Another station claims an address of this port's.
    AddressConflict,
    /// A fragment of a datagram whose first fragment was not seen, or not lately: whose it is can't be told.
    FragmentWithoutFirst,
    /// No rule matches.
    NoRule,
    /// The chain of the rule that matches cannot be in force.
    ChainNotInForce,
    /// No chain instance came within the time a frame may wait for one.
    NoInstance,
    /// Too many frames wait for chain instances, in all or of one client.
    PendingFull,
    /// The launcher doesn't keep up with the gateway's events, so nothing new can be started.
    LauncherBusy,
    /// The MMA doesn't keep up: it holds as many frames as may be under way.
    MmaBusy,
}

impl DropReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 19] = [
        Self::Truncated,
        Self::BadVersion,
        Self::BadLength,
        Self::BadChecksum,
        Self::BadSource,
        Self::UnknownEthertype,
        Self::TooManyTags,
        Self::VlanNeighbor,
        Self::TooManyExtensions,
        Self::NotForUs,
        Self::BadNeighborMessage,
        Self::AddressConflict,
        Self::FragmentWithoutFirst,
        Self::NoRule,
        Self::ChainNotInForce,
        Self::NoInstance,
        Self::PendingFull,
        Self::LauncherBusy,
        Self::MmaBusy,
    ];

    /// The reason's name in status reports and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadVersion => "bad-version",
            Self::BadLength => "bad-length",
            Self::BadChecksum => "bad-checksum",
            Self::BadSource => "bad-source",
            Self::UnknownEthertype => "unknown-ethertype",
            Self::TooManyTags => "too-many-tags",
            Self::VlanNeighbor => "vlan-neighbor",
            Self::TooManyExtensions => "too-many-extensions",
            Self::NotForUs => "not-for-us",
            Self::BadNeighborMessage => "bad-neighbor-message",
            Self::AddressConflict => "address-conflict",
            Self::FragmentWithoutFirst => "fragment-without-first",
            Self::NoRule => "no-rule",
            Self::ChainNotInForce => "chain-not-in-force",
            Self::NoInstance => "no-instance",
            Self::PendingFull => "pending-full",
            Self::LauncherBusy => "launcher-busy",
            Self::MmaBusy => "mma-busy",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One port's dropped frames by reason. Written by the gateway's thread alone.
#[derive(Debug, Default)]
pub struct DropCounters {
    counts: [Counter; DropReason::ALL.len()],
}

impl DropCounters {
    /// Counts frames; only for the gateway that owns the port.
    pub(crate) fn add(&self, reason: DropReason, count: u64) {
        self.counts[reason as usize].add(count);
    }

    /// Frames dropped for this reason so far.
    #[must_use]
    pub fn count(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize].value()
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.count(reason)))
    }

    /// Frames dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }
}

/// What the gateway dropped of one chain's frames. They are among the port's drops, too. Written by the gateway's thread
/// alone.
#[derive(Debug, Default)]
pub struct ChainDrops {
    /// [`DropReason::NoInstance`].
    pub no_instance: Counter,
    /// [`DropReason::PendingFull`].
    pub pending_full: Counter,
    /// [`DropReason::LauncherBusy`].
    pub launcher_busy: Counter,
    /// [`DropReason::MmaBusy`].
    pub mma_busy: Counter,
}

/// The drops of a chain as they stand, by reason.
pub type ChainDropCounts = [(DropReason, u64); 4];

impl ChainDrops {
    fn add(&self, reason: DropReason, count: u64) {
        match reason {
            DropReason::NoInstance => self.no_instance.add(count),
            DropReason::PendingFull => self.pending_full.add(count),
            DropReason::LauncherBusy => self.launcher_busy.add(count),
            DropReason::MmaBusy => self.mma_busy.add(count),
            // No chain's: nothing was known of the frame's when it was dropped.
            _ => {}
        }
    }

    /// Every reason with its count.
    #[must_use]
    pub fn counts(&self) -> ChainDropCounts {
        [
            (DropReason::NoInstance, self.no_instance.value()),
            (DropReason::PendingFull, self.pending_full.value()),
            (DropReason::LauncherBusy, self.launcher_busy.value()),
            (DropReason::MmaBusy, self.mma_busy.value()),
        ]
    }
}

/// What the gateway dropped, by chain. A chain's place keeps its counts when another chain gets it.
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
    /// One chain's.
    ///
    /// # Panics
    /// If the index is not below [`CHAINS_MAX`].
    #[must_use]
    pub fn chain(&self, chain: ChainIndex) -> &ChainDrops {
        &self.chains[chain.0 as usize]
    }

    /// Counts a frame; only for the gateway.
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
