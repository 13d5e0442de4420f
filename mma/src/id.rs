//! Identifiers, one type for each kind of thing.

use std::fmt;

/// An FWP of this node: its index in every table, and a generation number.
///
/// Tables compare generations. So a holder of an old id never reaches a later FWP at the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FwpId {
    /// The index, below the node's maximum of FWPs.
    pub index: u32,
    /// Counts the FWPs that have had this index.
    pub generation: u32,
}

impl fmt::Display for FwpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// One of the node's MMAs, by its order in the core plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MmaIndex(pub usize);

/// One of the node's workers, by its order in the core plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerIndex(pub usize);

impl FwpId {
    /// Returns which of the node's `mmas` MMAs moves this FWP's packets. It follows from the index, so that no look-up
    /// is needed.
    #[must_use]
    #[inline]
    pub fn mma(self, mmas: usize) -> MmaIndex {
        // Most nodes have one MMA, and for these the division is not needed.
        MmaIndex(if mmas == 1 { 0 } else { self.index as usize % mmas })
    }
}

/// The most tenants that a node distinguishes.
pub const TENANTS_MAX: usize = 4096;

/// A tenant's number on this node, below [`TENANTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantIndex(pub u16);

/// Which chain instance has sent a frame, by the gateway's names. The MMA passes it on and does not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sender {
    /// The chain's tenant.
    pub tenant: TenantIndex,
    /// The index of the chain.
    pub chain: u16,
    /// The lowest bits of the instance's number.
    pub instance: u32,
}

impl Sender {
    /// Returns a sender of a tenant whose chain and instance are not known.
    #[must_use]
    pub const fn of(tenant: TenantIndex) -> Self {
        Self { tenant, chain: 0, instance: 0 }
    }
}

/// A gateway port of this node, in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PortIndex(pub u16);

/// A slot within one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u16);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_index_determines_the_mma_and_indices_are_spread_evenly() {
        for mmas in 1..=5 {
            let mut places = vec![0; mmas];
            for index in 0..60 {
                let mma = FwpId { index, generation: 0 }.mma(mmas);
                places[mma.0] += 1;
                assert!([1, 2, u32::MAX].iter().all(|&generation| FwpId { index, generation }.mma(mmas) == mma));
            }
            assert_eq!(places, vec![60 / mmas; mmas]);
            assert!(FwpId { index: u32::MAX, generation: 0 }.mma(mmas).0 < mmas);
        }
    }
}
