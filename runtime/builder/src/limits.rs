//! Resource limits of the builder. It sets them itself before it reads a byte of the module. [`crate::watch`] ends the builder with a
//! message a little before it reaches these limits, and the node adds a limit on elapsed time.

use std::fmt;
use std::time::Duration;

use pinion_builder_client::{CPU_TIME_MAX, MEMORY_BYTES_MAX};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Time for the watch to notice and to report a limit, in seconds.
const CPU_SECONDS_MORE: u64 = 2;
/// Memory that may be allocated between two checks of the watch, in bytes.
const MEMORY_BYTES_MORE: u64 = 1 << 30;

/// Lower priority than all else that the node does, but enough to make progress. Beside busy threads, as workers and gateways under load
/// are, a process of this niceness gets a tenth of a core. At the lowest priority (19) it would get a seventieth, too little to build a
/// large module in an acceptable time.
const NICENESS: i32 = 10;

/// A limit that was reached, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// CPU time.
    CpuTime(Duration),
    /// Elapsed time.
    Time(Duration),
    /// Memory, in bytes.
    Memory(u64),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CpuTime(time) => write!(f, "{} s of processor time", time.as_secs_f64()),
            Self::Time(time) => write!(f, "{} s", time.as_secs_f64()),
            Self::Memory(bytes) => write!(f, "{} MiB of memory", bytes >> 20),
        }
    }
}

/// Limits CPU time, memory, files, core dumps and priority of this process.
///
/// # Errors
/// The operating system's, if it refuses.
pub fn impose() -> std::io::Result<()> {
    let limit = |resource, value: u64| {
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).map_err(std::io::Error::from)
    };
    limit(Resource::Cpu, CPU_TIME_MAX.as_secs() + CPU_SECONDS_MORE)?;
    limit(Resource::As, MEMORY_BYTES_MAX + MEMORY_BYTES_MORE)?;
    limit(Resource::Fsize, 0)?;
    limit(Resource::Core, 0)?;
    // All other work of the machine comes first.
    rustix::process::nice(NICENESS).map(|_| ()).map_err(std::io::Error::from)
}
