//! Types for identifiers that must not be mixed up, in addition to those of [`pinion_mma::id`].

use std::fmt;

/// The most chains that a node can have. Tables indexed by [`ChainIndex`] have this size from the start.
pub const CHAINS_MAX: u32 = 16_384;

/// A chain's index in the node's tables, below [`CHAINS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainIndex(pub u32);

impl fmt::Display for ChainIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One running copy of a chain. The launcher assigns the number and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The generation of a chain's index: it tells a chain from earlier ones that had the same index. Later ones are
/// greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainGeneration(pub u32);

/// A chain as a caller names it. The generation protects against reuse of the index by another chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRef {
    /// The chain's index.
    pub chain: ChainIndex,
    /// The generation of that index.
    pub generation: ChainGeneration,
}
