//! How much functions may write to the node's own log: a burst, and a rate in the long run. The excess is in the tenants' journals all the
//! same, and the node's log says how much it was.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The limits.
pub(super) struct Bounds {
    pub(super) lines_at_once: f64,
    pub(super) lines_per_second: f64,
    pub(super) bytes_at_once: f64,
    pub(super) bytes_per_second: f64,
}

/// For the functions of one tenant: 350 MB a day.
pub(super) const OF_TENANT: Bounds = Bounds {
    lines_at_once: 200.0,
    lines_per_second: 10.0,
    bytes_at_once: 64.0 * 1024.0,
    bytes_per_second: 4.0 * 1024.0,
};
/// For all functions: 5.7 GB a day.
pub(super) const OF_ALL: Bounds = Bounds {
    lines_at_once: 4000.0,
    lines_per_second: 200.0,
    bytes_at_once: 1024.0 * 1024.0,
    bytes_per_second: 64.0 * 1024.0,
};
/// Size of a line besides its text: its time and its origin.
const LINE_BYTES: usize = 192;

/// The unused part of the limits.
struct Allowance {
    lines: f64,
    bytes: f64,
    filled: Instant,
}

impl Allowance {
    fn new(bounds: &Bounds, now: Instant) -> Self {
        Self { lines: bounds.lines_at_once, bytes: bounds.bytes_at_once, filled: now }
    }

    fn fill(&mut self, bounds: &Bounds, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        self.filled = now;
        self.lines = (self.lines + seconds * bounds.lines_per_second).min(bounds.lines_at_once);
        self.bytes = (self.bytes + seconds * bounds.bytes_per_second).min(bounds.bytes_at_once);
    }

    fn has(&self, bytes: f64) -> bool {
        self.lines >= 1.0 && self.bytes >= bytes
    }

    fn take(&mut self, bytes: f64) {
        self.lines -= 1.0;
        self.bytes -= bytes;
    }
}

/// One tenant's.
pub(super) struct TenantAllowance(Mutex<Left>);

struct Left {
    allowance: Allowance,
    /// Lines left out since the last one that was written.
    left_out: u64,
    account: LineAccount,
}

/// A tenant's lines in the node's log, as long as it has FWPs or lines on their way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LineAccount {
    /// Those that were written.
    pub written: u64,
    /// Those that were left out, or lost before; what an FWP has lost since its last line is not counted yet.
    pub left_out: u64,
}

impl Default for TenantAllowance {
    fn default() -> Self {
        let allowance = Allowance::new(&OF_TENANT, Instant::now());
        Self(Mutex::new(Left { allowance, left_out: 0, account: LineAccount::default() }))
    }
}

impl TenantAllowance {
    /// Counts lines that did not come as far as here.
    pub(super) fn count_lost(&self, lines: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).account.left_out += lines;
    }

    /// Returns what was written and what was not.
    pub(super) fn account(&self) -> LineAccount {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).account
    }
}

/// The whole node's.
pub(super) struct NodeAllowance {
    allowance: Mutex<Allowance>,
    /// Lines of all tenants left out since the start.
    left_out: AtomicU64,
}

impl Default for NodeAllowance {
    fn default() -> Self {
        Self { allowance: Mutex::new(Allowance::new(&OF_ALL, Instant::now())), left_out: AtomicU64::new(0) }
    }
}

impl NodeAllowance {
    /// Returns whether a tenant's line of this many bytes may be written; if so, how many of its lines were left out before.
    pub(super) fn admit(&self, tenant: &TenantAllowance, bytes: usize, now: Instant) -> Option<u64> {
        let bytes = (bytes + LINE_BYTES) as f64;
        let mut left = tenant.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.allowance.fill(&OF_TENANT, now);
        let is_admitted = left.allowance.has(bytes) && {
            let mut of_all = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
            of_all.fill(&OF_ALL, now);
            of_all.has(bytes).then(|| of_all.take(bytes)).is_some()
        };
        if is_admitted {
            left.allowance.take(bytes);
            left.account.written += 1;
            return Some(std::mem::take(&mut left.left_out));
        }
        left.left_out += 1;
        left.account.left_out += 1;
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Returns how many lines were left out since the start.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tenant_that_logs_much_gets_its_share_and_is_told_how_much_was_left_out() {
        let (node, tenant, now) = (NodeAllowance::default(), TenantAllowance::default(), Instant::now());
        let written = (0..1000).filter(|_| node.admit(&tenant, 10, now).is_some()).count();
        assert_eq!(written, 200);
        assert_eq!(node.left_out(), 800);
        assert_eq!(tenant.account(), LineAccount { written: 200, left_out: 800 });
        // Ten lines a second; the first one reports how many are missing before it.
        let later = now + Duration::from_secs(1);
        assert_eq!(node.admit(&tenant, 10, later), Some(800));
        assert_eq!((0..1000).filter(|_| node.admit(&tenant, 10, later).is_some()).count(), 9);
    }

    #[test]
    fn long_lines_are_bounded_by_their_bytes_in_the_long_run() {
        let (node, tenant, start) = (NodeAllowance::default(), TenantAllowance::default(), Instant::now());
        let (seconds, line) = (1000, 1000);
        let at = |step: u64| start + Duration::from_millis(step * 100);
        let written = (0..seconds * 10).filter(|step| node.admit(&tenant, line, at(*step)).is_some()).count();
        let bytes = written as u64 * (line + LINE_BYTES) as u64;
        let bound = 64 * 1024 + seconds * 4 * 1024;
        assert!(bytes <= bound && bytes > bound * 9 / 10, "{bytes} of {bound}");
    }

    #[test]
    fn all_tenants_together_are_bounded_and_a_quiet_one_is_written_again_later() {
        let (node, now) = (NodeAllowance::default(), Instant::now());
        let loud: Vec<TenantAllowance> = (0..1000).map(|_| TenantAllowance::default()).collect();
        let written = loud.iter().flat_map(|tenant| (0..200).map(move |_| tenant));
        let written = written.filter(|tenant| node.admit(tenant, 100, now).is_some()).count();
        assert_eq!(written, 1024 * 1024 / (100 + LINE_BYTES));
        let quiet = TenantAllowance::default();
        assert_eq!(node.admit(&quiet, 100, now), None);
        assert_eq!(node.admit(&quiet, 100, now + Duration::from_secs(1)), Some(1));
    }
}
