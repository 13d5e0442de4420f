//! The client of `pinion-builder`: finds its process, starts it, limits its time and reads its messages ([`process`]). Their protocol is in
//! [`protocol`], a guest's metrics in [`metrics`], and how a supervisor starts the process in [`supervised`].
//!
//! Used by the node, and by the `pinion` command to check modules as a node would. It contains no compiler and no engine.
#![forbid(unsafe_code)]

use std::time::Duration;

pub mod metrics;
pub mod process;
pub mod protocol;
pub mod supervised;

/// Exit status of a builder that refuses the module; the last sentence on standard error says why.
pub const EXIT_REFUSED: i32 = 2;

/// CPU time of the builder for one module; this limit decides about modules.
pub const CPU_TIME_MAX: Duration = Duration::from_secs(30);
/// Elapsed time of the builder. It depends on the load of the machine, which must not make a module be refused. So it is twice the time
/// that the CPU time takes in the tenth of a core that the builder gets beside busy threads.
pub const BUILD_TIME_MAX: Duration = Duration::from_secs(600);
/// Address space of the builder, in bytes: a compiler's working set for the largest module, with a margin.
pub const MEMORY_BYTES_MAX: u64 = 4 << 30;
/// CPU time of the builder for one model.
pub const MODEL_CPU_TIME_MAX: Duration = Duration::from_secs(20);
/// Address space of the builder for one model, in bytes: several copies of the largest, with a margin.
pub const MODEL_MEMORY_BYTES_MAX: u64 = 3 << 30;
/// The largest native code of a template, in bytes.
pub const NATIVE_BYTES_MAX: usize = 256 << 20;
