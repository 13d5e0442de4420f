//! The cores that a test may use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns two cores that this process may use; the same one twice if there is only one.
///
/// # Panics
/// If the kernel does not list them.
#[must_use]
pub fn two_cores() -> (usize, usize) {
    let allowed = sched_getaffinity(None).expect("a process may ask for its cores");
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let first = cores.next().expect("a process runs on some core");
    (first, cores.next().unwrap_or(first))
}

/// Keeps the calling thread on this core.
///
/// # Panics
/// If this process may not run on it.
pub fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).expect("the core is the process's");
}
