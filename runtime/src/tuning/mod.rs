//! Code whose only reason is a cache: prefetches of what a turn is about to touch. Behaviour is the same without it.
//!
//! The gateway's, the MMA's and the worker's own prefetches lie with them; one switch is for all ([`pinion_mma::tuning`]).

use serde::Deserialize;

pub(crate) mod engine_parts;
pub(crate) mod footprint;
mod own_memory;
pub(crate) mod stack_end;

/// How much a node does for its processors' caches, in its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tuning {
    /// Prefetches what will be touched soon, rehearses the instances that the next clients get, and provides the pages that new instances
    /// are known to write.
    #[default]
    Full,
    /// Nothing: to see what it is worth, or whether it is at fault.
    Off,
}

impl From<Tuning> for pinion_mma::tuning::Tuning {
    fn from(tuning: Tuning) -> Self {
        match tuning {
            Tuning::Full => Self::Full,
            Tuning::Off => Self::Off,
        }
    }
}
