//! What functions say, kept for those who ask: each tenant's latest lines.
//!
//! Written by the data plane's log thread ([`Journal::push`]), read by the API for whoever wants to see them ([`Reader`]). A reader has the lock
//! for a look at each tenant and a page of lines, and for a look at each line once if it wants a tail. Nobody waits for one that is slow: it
//! finds fewer lines, and is told how many it has missed.
//!
//! ```text
//!   push --> tenant a   | lost | line line line |   at most TENANT_BYTES_MAX each,
//!            tenant b   | lost | line |             JOURNAL_BYTES_MAX together:
//!                                                   who has most loses the older half of it first
//! ```
//!
//! A tenant that says much loses its own oldest lines. Nothing here is durable.

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

/// What the lines of one tenant may take.
pub const TENANT_BYTES_MAX: usize = 256 << 10;
/// What all lines may take.
pub const JOURNAL_BYTES_MAX: usize = 64 << 20;
/// What a line takes beside its text: its own size, and its share of what names its origin.
const LINE_BYTES: usize = 256;
/// Tenants whose lines are kept: as many as there can be chains, and some that are gone.
const TENANTS_MAX: usize = 16_384;
/// Lines that a reader gets at a time.
const PAGE_LINES: usize = 256;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something failed.
    Error,
    /// Something may be wrong.
    Warn,
    /// Something happened.
    Info,
    /// For whoever looks into it.
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

/// Whose line it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The tenant.
    pub tenant: TenantName,
    /// The chain.
    pub chain: ChainName,
    /// The stage's place in the chain, from 0.
    pub stage: u32,
    /// What it runs.
    pub module: ModuleName,
    /// The FWP's id; `template` while one is built.
    pub fwp: String,
}

/// A line, as it was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLine {
    /// When, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// How much it matters.
    pub level: Level,
    /// Who said it, or of whom it is said.
    #[serde(flatten, serialize_with = "as_itself")]
    pub origin: Arc<Origin>,
    /// What was said. It has no control characters, but for the line feeds between the lines of a trap's backtrace.
    #[serde(serialize_with = "as_itself")]
    pub text: Arc<str>,
    /// Lines of the same tenant before this one that nobody will see any more.
    pub lost: u64,
}

fn as_itself<T: Serialize + ?Sized, S: Serializer>(shared: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
    shared.serialize(serializer)
}

/// Which lines somebody wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantName>,
    /// Only those of chains of this name.
    pub chain: Option<ChainName>,
    /// Of what there is already, only so many of the latest.
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

/// What readers wait for.
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

/// The lines of one tenant, which it numbers from 0.
#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Kept>,
    bytes: usize,
    /// The number of the oldest line that is kept; so many are gone.
    first: u64,
}

#[derive(Debug)]
struct Kept {
    /// Its place among all tenants' lines.
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

    /// Lets go of the oldest line; how many bytes that gave back. What it says of lines before it the next one says from now on.
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

    /// Forgets who has said nothing for the longest time, if there are too many tenants.
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
    /// Keeps a line, and wakes who waits for it. Waits for no reader.
    pub fn push(&self, line: LogLine) {
        self.rings().push(line);
        self.news.send_modify(|news| news.pushed += 1);
    }

    /// Ends the waiting of all readers: the node stops.
    pub fn close(&self) {
        self.news.send_modify(|news| news.closed = true);
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who reads the journal, line by line: what there is, and then what comes.
#[derive(Debug)]
pub struct Reader {
    journal: Arc<Journal>,
    filter: LogFilter,
    /// How far it is in each tenant's lines.
    at: BTreeMap<TenantName, Place>,
    /// Where it began, among all tenants' lines.
    from: u64,
    news: watch::Receiver<News>,
}

/// How far a reader is in a tenant's lines.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The number of the line to be read next.
    next: u64,
    /// Lines that it has missed and has not been told of.
    lost: u64,
}

impl Reader {
    /// Somebody who has read nothing yet.
    #[must_use]
    pub fn new(journal: Arc<Journal>, filter: LogFilter) -> Self {
        let news = journal.news.subscribe();
        let mut reader = Self { journal, filter, at: BTreeMap::new(), from: 0, news };
        if let Some(tail) = reader.filter.tail {
            reader.skip_to_tail(tail);
        }
        reader
    }

    /// Begins so many lines before the end; what was lost before that is none of its business.
    fn skip_to_tail(&mut self, tail: u64) {
        let rings = self.journal.rings();
        let mut wanted: Vec<u64> = Vec::new();
        for (tenant, ring) in rings.by_tenant.iter().filter(|(tenant, _)| self.filter.wants_tenant(tenant)) {
            self.at.insert(tenant.clone(), Place { next: ring.first, lost: 0 });
            wanted.extend(ring.lines.iter().filter(|kept| self.filter.wants(&kept.line)).map(|kept| kept.sequence));
        }
        wanted.sort_unstable();
        let skipped = wanted.len() - wanted.len().min(usize::try_from(tail).unwrap_or(usize::MAX));
        self.from = wanted.get(skipped).copied().unwrap_or(rings.pushed);
    }

    /// The next lines, in the order in which they were said, some hundred at most; none if there are none yet.
    pub fn read(&mut self) -> Vec<LogLine> {
        self.news.mark_unchanged();
        loop {
            let (page, seen) = self.read_page();
            if !page.is_empty() || seen < PAGE_LINES {
                return page;
            }
        }
    }

    /// Lines that are wanted out of the next ones of all tenants that are, and how many these were.
    fn read_page(&mut self) -> (Vec<LogLine>, usize) {
        let Self { journal, filter, at, from, .. } = self;
        let rings = journal.rings();
        let mut unread = Vec::new();
        for (tenant, ring) in rings.by_tenant.iter().filter(|(tenant, _)| filter.wants_tenant(tenant)) {
            let place = at.entry(tenant.clone()).or_default();
            if place.next > ring.end() {
                // It was forgotten, and has begun anew.
                *place = Place::default();
            }
            let missed = ring.first.saturating_sub(place.next);
            *place = Place { next: place.next.max(ring.first), lost: place.lost + missed };
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

    /// Waits until there may be more to read. False if there will be nothing any more.
    pub async fn more(&mut self) -> bool {
        !self.news.borrow().closed && self.news.changed().await.is_ok() && !self.news.borrow().closed
    }
}

/// The oldest lines of all tenants' together, a page at most, in their order.
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
