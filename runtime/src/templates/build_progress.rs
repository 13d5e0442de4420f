//! The registry of builds under way, shown by `pinion status`, and by `pinion apply` while it waits.
//!
//! A thread that builds a template calls [`Builds::begin`] and reports its phases through the returned [`Build`]. Dropping that removes the
//! entry, however the build ended. Written by threads that may block, never by a data-plane thread, and read by the control threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pinion_control::model::TenantName;
use pinion_control::node::BuildStatus;

pub use pinion_control::node::BuildPhase;

/// See the module. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Builds {
    entries: Arc<Mutex<Entries>>,
}

#[derive(Default)]
struct Entries {
    /// In the order in which they began.
    under_way: BTreeMap<u64, Entry>,
    begun: u64,
}

struct Entry {
    tenant: TenantName,
    module: String,
    phase: BuildPhase,
    began: Instant,
}

impl Builds {
    /// Lists the build of a tenant's template as [`BuildPhase::Queued`]. `module` says what it is built from, such as `echo/0 icmp-echo`
    /// for a chain's stage.
    #[must_use = "the entry goes when this is dropped"]
    pub fn begin(&self, tenant: &TenantName, module: impl Into<String>) -> Build {
        let mut entries = self.entries();
        let number = entries.begun;
        entries.begun += 1;
        let entry =
            Entry { tenant: tenant.clone(), module: module.into(), phase: BuildPhase::Queued, began: Instant::now() };
        entries.under_way.insert(number, entry);
        drop(entries);
        Build { builds: self.clone(), number }
    }

    /// Returns all builds under way, the oldest first.
    #[must_use]
    pub fn statuses(&self) -> Vec<BuildStatus> {
        let status = |entry: &Entry| BuildStatus {
            tenant: entry.tenant.clone(),
            module: entry.module.clone(),
            phase: entry.phase,
            age_ms: entry.began.elapsed().as_millis() as u64,
        };
        self.entries().under_way.values().map(status).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A build under way: its entry in the registry.
pub struct Build {
    builds: Builds,
    number: u64,
}

impl Build {
    /// Sets the current phase.
    pub fn set_phase(&self, phase: BuildPhase) {
        if let Some(entry) = self.builds.entries().under_way.get_mut(&self.number) {
            entry.phase = phase;
        }
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        self.builds.entries().under_way.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(builds: &Builds) -> Vec<String> {
        builds.statuses().iter().map(|build| format!("{} {} {}", build.tenant, build.module, build.phase)).collect()
    }

    #[test]
    fn a_build_is_listed_with_its_phase_until_it_is_dropped_and_the_oldest_comes_first() {
        let builds = Builds::default();
        let (lab, shop) = ("lab".parse().unwrap(), "shop".parse().unwrap());
        let first = builds.begin(&shop, "echo/0 icmp-echo");
        let second = builds.begin(&lab, "web/1 filter");
        assert_eq!(shown(&builds), ["shop echo/0 icmp-echo queued", "lab web/1 filter queued"]);
        first.set_phase(BuildPhase::Compiling);
        assert_eq!(shown(&builds), ["shop echo/0 icmp-echo compiling", "lab web/1 filter queued"]);
        drop(first);
        assert_eq!(shown(&builds), ["lab web/1 filter queued"]);
        drop(second);
        assert_eq!(shown(&builds), Vec::<String>::new());
    }

    #[test]
    fn a_build_that_panics_is_no_longer_listed() {
        let builds = Builds::default();
        let inner = builds.clone();
        let panicked = std::thread::spawn(move || {
            let _build = inner.begin(&"lab".parse().unwrap(), "m");
            panic!("a test's own");
        });
        assert!(panicked.join().is_err());
        assert_eq!(shown(&builds), Vec::<String>::new());
    }
}
