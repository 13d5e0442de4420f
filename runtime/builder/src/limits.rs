//! What the builder may use. Set by itself before it looks at a byte of the module; the node adds a limit in wall time.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Processor time for one module, in seconds.
pub const CPU_SECONDS_MAX: u64 = 30;
/// Address space, in bytes: a compiler's working set for the largest module with room to spare.
pub const MEMORY_BYTES_MAX: u64 = 4 << 30;

/// The lowest priority there is.
const NICENESS: i32 = 19;

/// Gives up everything above the limits: processor time, memory, files, core dumps, priority.
///
/// # Errors
/// The operating system's, if it refuses.
pub fn impose() -> std::io::Result<()> {
    let limit = |resource, value: u64| {
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) }).map_err(std::io::Error::from)
    };
    limit(Resource::Cpu, CPU_SECONDS_MAX)?;
    limit(Resource::As, MEMORY_BYTES_MAX)?;
    limit(Resource::Fsize, 0)?;
    limit(Resource::Core, 0)?;
    // Whatever else the machine does comes first.
    rustix::process::nice(NICENESS).map(|_| ()).map_err(std::io::Error::from)
}
