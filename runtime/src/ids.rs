//! Keys that several rooms share.

use pinion_control::model::{ChainName, ModuleName, TenantName};

/// A chain, by its owner and its name.
pub type ChainKey = (TenantName, ChainName);

/// A module, by its owner and its name.
pub type ModuleKey = (TenantName, ModuleName);

/// Where an FWP's linear memory lies in its engine's reservation. Never dereferenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlace {
    pub(crate) address: usize,
    /// The current size of the memory, in bytes.
    pub(crate) bytes: usize,
    /// The template that it belongs to: [`crate::fwp::template::Template::mark`].
    pub(crate) template: usize,
}

/// Where the memory of an FWP lay that has been dismantled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftPlace {
    pub(crate) place: MemoryPlace,
    /// How many bytes its pages have that were written to and are still there, reset.
    pub(crate) present_bytes: usize,
}
