//! The journal of functions' log lines: the latest lines of each tenant.
//!
//! The data plane's log thread writes it ([`Journal::push`]), and the API reads it for its callers ([`Reader`]). A
//! reader holds the lock while it looks at each tenant and copies a page of lines; with a tail, it also looks at each
//! line once. No writer waits for a slow reader: such a reader finds fewer lines, and is told how many it has missed.
//!
//! ```text
//!   push --> tenant a   | lost | line line line |   at most TENANT_BYTES_MAX each,
//!            tenant b   | lost | line |             JOURNAL_BYTES_MAX together:
//!                                                   the tenant with most loses its older half first
//! ```
//!
//! A tenant that logs much loses its own oldest lines. Nothing here is durable.

use std::cmp::Reverse;
use std::collections::vec_deque::Iter;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::iter::Peekable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Serialize, Serializer};
use tokio::sync::watch;

use crate::model::{ChainName, ModuleName, TenantName};

#[cfg(test)]
mod tests;

/// The maximum memory of one tenant's lines.
pub const TENANT_BYTES_MAX: usize = 256 << 10;
/// The maximum memory of all lines.
pub const JOURNAL_BYTES_MAX: usize = 64 << 20;
/// The memory of a line besides its text: its own size, and its share of the names of its origin.
const LINE_BYTES: usize = 256;
/// The maximum number of tenants whose lines are kept: the maximum number of chains, and room for tenants that no
/// longer exist.
const TENANTS_MAX: usize = 16_384;
/// The number of lines that a reader gets at a time.
const PAGE_LINES: usize = 256;

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// An operation failed.
    Error,
    /// A possible problem.
    Warn,
    /// A normal event.
    Info,
    /// Details for debugging.
    Debug,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// Where a line comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The tenant.
    pub tenant: TenantName,
    /// The chain.
    pub chain: ChainName,
    /// The index of the stage in the chain, from 0.
    pub stage: u32,
    /// The module that the stage runs.
    pub module: ModuleName,
    /// The FWP's id; `template` for lines from the build of a template.
    pub fwp: String,
}

/// A line as it was logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLine {
    /// Milliseconds since 1970-01-01 00:00:00 UTC.
    pub time_unix_ms: u64,
    /// Its severity.
    pub level: Level,
    /// The function that logged it, or that it is about.
    #[serde(flatten, serialize_with = "as_itself")]
    pub origin: Arc<Origin>,
    /// The text. It has no control characters except for the line feeds between the lines of a trap's backtrace.
    #[serde(serialize_with = "as_itself")]
    pub text: Arc<str>,
    /// The number of lines of the same tenant before this one that are lost.
    pub lost: u64,
}

fn as_itself<T: Serialize + ?Sized, S: Serializer>(shared: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
    shared.serialize(serializer)
}

/// Which lines to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantName>,
    /// Only those of chains of this name.
    pub chain: Option<ChainName>,
    /// The number of latest lines to return of those that exist already.
    pub tail: Option<u64>,
}

impl LogFilter {
    fn wants_tenant(&self, tenant: &TenantName) -> bool {
        self.tenant.as_ref().is_none_or(|wanted| wanted == tenant)
    }

    fn wants(&self, line: &LogLine) -> bool {
        self.chain.as_ref().is_none_or(|wanted| *wanted == line.origin.chain)
    }
}

/// The latest lines of all tenants.
#[derive(Debug)]
pub struct Journal {
    rings: Mutex<Rings>,
    news: watch::Sender<News>,
}

/// The value that readers wait on.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    pushed: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Rings {
    by_tenant: BTreeMap<TenantName, Ring>,
    bytes: usize,
    pushed: u64,
}

/// The lines of one tenant, numbered from 0.
#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Kept>,
    bytes: usize,
    /// The number of the oldest line that is kept, which is the number of lines that were removed.
    first: u64,
}

#[derive(Debug)]
struct Kept {
    /// Its sequence number among all tenants' lines.
    sequence: u64,
    line: LogLine,
}

impl Kept {
    fn bytes(&self) -> usize {
        LINE_BYTES + self.line.text.len()
    }
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Removes the oldest line, and returns how many bytes that freed. The next line takes over its count of lost
    /// lines.
    fn forget_oldest(&mut self) -> usize {
        let Some(oldest) = self.lines.pop_front() else { return 0 };
        if let Some(next) = self.lines.front_mut() {
            next.line.lost += oldest.line.lost;
        }
        self.first += 1;
        self.bytes -= oldest.bytes();
        oldest.bytes()
    }
}

impl Rings {
    fn push(&mut self, line: LogLine) {
        self.make_place_for(&line.origin.tenant);
        let ring = self.by_tenant.entry(line.origin.tenant.clone()).or_default();
        let kept = Kept { sequence: self.pushed, line };
        self.pushed += 1;
        ring.bytes += kept.bytes();
        self.bytes += kept.bytes();
        ring.lines.push_back(kept);
        while ring.bytes > TENANT_BYTES_MAX {
            self.bytes -= ring.forget_oldest();
        }
        while self.bytes > JOURNAL_BYTES_MAX {
            let Some(largest) = self.by_tenant.values_mut().max_by_key(|ring| ring.bytes) else { return };
            for _ in 0..largest.lines.len().div_ceil(2) {
                self.bytes -= largest.forget_oldest();
            }
        }
    }

    /// Removes the tenant that has logged nothing for the longest time, if there are too many tenants.
    fn make_place_for(&mut self, tenant: &TenantName) {
        if self.by_tenant.len() < TENANTS_MAX || self.by_tenant.contains_key(tenant) {
            return;
        }
        let latest = |ring: &Ring| ring.lines.back().map(|kept| kept.sequence);
        let oldest = self.by_tenant.iter().min_by_key(|(_, ring)| latest(ring)).map(|(tenant, _)| tenant.clone());
        if let Some(ring) = oldest.and_then(|oldest| self.by_tenant.remove(&oldest)) {
            self.bytes -= ring.bytes;
        }
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self { rings: Mutex::default(), news: watch::Sender::new(News::default()) }
    }
}

impl Journal {
    /// Adds a line, and wakes the readers that wait for it. Does not wait for readers.
    pub fn push(&self, line: LogLine) {
        self.rings().push(line);
        self.news.send_modify(|news| news.pushed += 1);
    }

    /// Ends the waiting of all readers, when the node stops.
    pub fn close(&self) {
        self.news.send_modify(|news| news.closed = true);
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of the journal: returns first the existing lines, and then new ones.
#[derive(Debug)]
pub struct Reader {
    journal: Arc<Journal>,
    filter: LogFilter,
    /// The position in each tenant's lines.
    at: BTreeMap<TenantName, Cursor>,
    /// The sequence number of the first line to read.
    from: u64,
    news: watch::Receiver<News>,
}

/// The position in a tenant's lines.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// The number of the next line to read.
    next: u64,
    /// Lines that the reader has missed and that are not reported yet.
    lost: u64,
}

impl Reader {
    /// Creates a reader, which starts at the oldest line, or with a tail in the filter so many lines before the end.
    #[must_use]
    pub fn new(journal: Arc<Journal>, filter: LogFilter) -> Self {
        let news = journal.news.subscribe();
        let mut reader = Self { journal, filter, at: BTreeMap::new(), from: 0, news };
        if let Some(tail) = reader.filter.tail {
            reader.skip_to_tail(tail);
        }
        reader
    }

    /// Moves to `tail` lines before the end. Lines that were lost before that are not reported.
    fn skip_to_tail(&mut self, tail: u64) {
        let rings = self.journal.rings();
        let mut wanted: Vec<u64> = Vec::new();
        for (tenant, ring) in rings.by_tenant.iter().filter(|(tenant, _)| self.filter.wants_tenant(tenant)) {
            self.at.insert(tenant.clone(), Cursor { next: ring.first, lost: 0 });
            wanted.extend(ring.lines.iter().filter(|kept| self.filter.wants(&kept.line)).map(|kept| kept.sequence));
        }
        wanted.sort_unstable();
        let skipped = wanted.len() - wanted.len().min(usize::try_from(tail).unwrap_or(usize::MAX));
        self.from = wanted.get(skipped).copied().unwrap_or(rings.pushed);
    }

    /// Returns the next lines in the order in which they were logged, at most a few hundred; empty if there are none
    /// yet.
    pub fn read(&mut self) -> Vec<LogLine> {
        self.news.mark_unchanged();
        loop {
            let (page, seen) = self.read_page();
            if !page.is_empty() || seen < PAGE_LINES {
                return page;
            }
        }
    }

    /// Returns the wanted lines out of the next page of all tenants' lines, and the size of that page.
    fn read_page(&mut self) -> (Vec<LogLine>, usize) {
        let Self { journal, filter, at, from, .. } = self;
        let rings = journal.rings();
        let mut unread = Vec::new();
        for (tenant, ring) in rings.by_tenant.iter().filter(|(tenant, _)| filter.wants_tenant(tenant)) {
            let place = at.entry(tenant.clone()).or_default();
            if place.next > ring.end() {
                // The tenant was removed, and has logged again.
                *place = Cursor::default();
            }
            let missed = ring.first.saturating_sub(place.next);
            *place = Cursor { next: place.next.max(ring.first), lost: place.lost + missed };
            unread.push(ring.lines.range((place.next - ring.first) as usize..).peekable());
        }
        let found = merged(&mut unread);
        let take = |kept: &&Kept| {
            let place = at.get_mut(&kept.line.origin.tenant)?;
            place.next += 1;
            if kept.sequence < *from {
                return None;
            }
            place.lost += kept.line.lost;
            filter.wants(&kept.line).then(|| LogLine { lost: std::mem::take(&mut place.lost), ..kept.line.clone() })
        };
        (found.iter().filter_map(take).collect(), found.len())
    }

    /// Waits until there may be more to read. Returns false if there will be nothing more.
    pub async fn more(&mut self) -> bool {
        !self.news.borrow().closed && self.news.changed().await.is_ok() && !self.news.borrow().closed
    }
}

/// Merges the oldest lines of all tenants in their order, at most a page.
fn merged<'a>(tenants: &mut [Peekable<Iter<'a, Kept>>]) -> Vec<&'a Kept> {
    let first = |(at, lines): (usize, &mut Peekable<Iter<'a, Kept>>)| Some(Reverse((lines.peek()?.sequence, at)));
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = tenants.iter_mut().enumerate().filter_map(first).collect();
    let mut page = Vec::new();
    while page.len() < PAGE_LINES
        && let Some(Reverse((_, at))) = next.pop()
    {
        page.extend(tenants[at].next());
        next.extend(first((at, &mut tenants[at])));
    }
    page
}
