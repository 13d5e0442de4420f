//! The machine's resources that a process holds, to find leaks.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::Pid;

/// The growth of a node that is no leak: pages that allocators keep, depending on the order of events.
const GROWTH_MAX_KIB: u64 = 16 * 1024;
/// Threads that the API's server keeps for a while for blocking calls, and the files that these have open. A leak of one per round soon
/// exceeds this.
const COUNT_GROWTH_MAX: usize = 4;

const LOOKS: u32 = 5;
const LOOK_INTERVAL: Duration = Duration::from_millis(40);

/// The resources of a process that may leak.
#[derive(Clone, Copy, Debug)]
pub struct Holdings {
    resident_kib: u64,
    descriptors: usize,
    threads: usize,
    mappings: usize,
}

impl Holdings {
    /// Returns the holdings of a node at rest: the minimum of several samples, as one of them may coincide with the end of an API call.
    ///
    /// # Panics
    /// If the process has ended.
    #[must_use]
    pub fn of(process: Pid) -> Self {
        let look = |_| {
            thread::sleep(LOOK_INTERVAL);
            Self::now(process)
        };
        (1..LOOKS).map(look).fold(Self::now(process), Self::min)
    }

    fn now(process: Pid) -> Self {
        let process = format!("/proc/{}", process.as_raw_nonzero());
        let read = |name: &str| fs::read_to_string(format!("{process}/{name}")).expect("the node runs");
        let entries = |name: &str| fs::read_dir(format!("{process}/{name}")).expect("the node runs").count();
        let status = read("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Self {
            resident_kib: resident.and_then(|kib| kib.parse().ok()).expect("the kernel says how much is resident"),
            descriptors: entries("fd"),
            threads: entries("task"),
            mappings: read("maps").lines().count(),
        }
    }

    /// Returns the minimum of each field.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.each(&other, Ord::min, Ord::min)
    }

    /// Returns the maximum of each field.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.each(&other, Ord::max, Ord::max)
    }

    fn each(&self, other: &Self, of_memory: fn(u64, u64) -> u64, of_counts: fn(usize, usize) -> usize) -> Self {
        Self {
            resident_kib: of_memory(self.resident_kib, other.resident_kib),
            descriptors: of_counts(self.descriptors, other.descriptors),
            threads: of_counts(self.threads, other.threads),
            mappings: of_counts(self.mappings, other.mappings),
        }
    }

    /// Fails if there is more than before, by more than the normal variation. So many instances were made meanwhile: each needs a place, which
    /// keeps its mappings when it is used for the first time, and most have one that was used before.
    ///
    /// # Panics
    /// If so.
    pub fn assert_not_grown_from(&self, before: &Self, instances: u64) {
        let mappings_max = before.mappings + (before.mappings / 10).max(instances as usize / 2);
        let grown = self.resident_kib > before.resident_kib + GROWTH_MAX_KIB
            || self.descriptors > before.descriptors + COUNT_GROWTH_MAX
            || self.threads > before.threads + COUNT_GROWTH_MAX
            || self.mappings > mappings_max;
        assert!(!grown, "the node has grown from {before:?} to {self:?}");
    }
}
