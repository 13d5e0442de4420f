//! The other side of `pinion-builder`: how its process is found, started, limited in time and listened to ([`process`]), and what the
//! two say to each other ([`protocol`]), a guest's metrics among it ([`metrics`]).
//!
//! Used by the node, and by the `pinion` command, which wants to know what a node would say of a module. It has no compiler in it, and no
//! engine.
#![forbid(unsafe_code)]

pub mod metrics;
pub mod process;
pub mod protocol;

/// Exit status of a builder that refuses the module; the last sentence on standard error says why.
pub const EXIT_REFUSED: i32 = 2;
