//! Names of things that must not be mixed up, beside those of [`pinion_mma::id`].

use std::fmt;

/// Chains that a node can have: tables indexed by [`ChainIndex`] are made in this size at start.
pub const CHAINS_MAX: u32 = 16_384;

/// A chain's place in the node's tables, below [`CHAINS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainIndex(pub u32);

impl fmt::Display for ChainIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One running copy of a chain, named by the launcher; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Which of the chains that have had the same place in the tables one after another; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenure(pub u32);

/// A chain as somebody invokes it. It never means another chain that later has the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// Its place.
    pub chain: ChainIndex,
    /// Its time there.
    pub tenure: Tenure,
}
