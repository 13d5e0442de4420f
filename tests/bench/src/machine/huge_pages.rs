//! The machine's huge pages, as the kernel reports them.

use anyhow::ensure;

/// What `/proc/meminfo` reports about them; none without huge pages.
struct HugePages {
    page_kib: u64,
    free: u64,
    total: u64,
}

impl HugePages {
    fn now() -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let value = |key: &str| -> u64 {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        Self { page_kib: value("Hugepagesize"), free: value("HugePages_Free"), total: value("HugePages_Total") }
    }

    fn free_mib(&self) -> u64 {
        self.free * self.page_kib / 1024
    }
}

/// Returns how many MiB are free in huge pages.
pub(crate) fn free_mib() -> u64 {
    HugePages::now().free_mib()
}

/// Fails if less is free, with a message that says what to do.
pub(crate) fn require(needed_mib: u64) -> anyhow::Result<()> {
    let pages = HugePages::now();
    let (free_mib, page_kib) = (pages.free_mib(), pages.page_kib.max(1));
    ensure!(
        free_mib >= needed_mib,
        "{free_mib} MiB of huge pages are free, and {needed_mib} are needed: \
         echo {} > /proc/sys/vm/nr_hugepages",
        pages.total + (needed_mib - free_mib) * 1024 / page_kib
    );
    Ok(())
}
