//! Names of things that must not be mixed up.

use std::fmt;

/// An FWP of this node: a place in every table, and which of the FWPs that had this place over time.
///
/// A holder of an old id never reaches the place's next tenant: tables compare generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FwpId {
    /// The place, below the node's maximum of FWPs.
    pub index: u32,
    /// Counts the place's tenants.
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
    /// Which of the node's `mmas` MMAs moves this FWP's packets: its place tells, so that nobody has to look it up.
    #[must_use]
    #[inline]
    pub fn mma(self, mmas: usize) -> MmaIndex {
        // One is what most nodes have, and a division what most packets can do without.
        MmaIndex(if mmas == 1 { 0 } else { self.index as usize % mmas })
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
    fn every_place_has_one_of_the_mmas_whoever_is_its_tenant_and_each_has_as_many_as_the_others() {
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
