//! Guests' log lines, on their way from a worker, which must not block, to the node's log and to the tenant.
//!
//! A line costs its FWP a token; without a token it is counted and dropped. Lines wait in a bounded queue for the log thread, and each
//! tenant may fill a part of it only; beyond that they are counted and dropped as well. Lines are made printable: a tenant cannot forge
//! lines or control a terminal. The reason why an instance failed takes the same way, from the launcher, and costs no token; the node's log
//! has it already. The node's log takes a limited amount of all of this, per tenant and in total (`allowance`).

mod allowance;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use pinion_abi::LogLevel;
use pinion_control::journal::{Journal, Level, LogLine};
use pinion_control::model::TenantName;
use pinion_text::{SENTENCE_BYTES_MAX, printable};

pub use self::allowance::LineAccount;
use self::allowance::{NodeAllowance, TenantAllowance};

pub use pinion_control::journal::Origin;

/// Lines that an FWP may log in a burst.
const BURST_LINES: f64 = 50.0;
/// Lines per second that an FWP may log in the long run.
const LINES_PER_SECOND: f64 = 20.0;
/// Queued lines of all workers.
const QUEUE_LINES: usize = 4096;
/// Queued lines of one tenant.
const TENANT_QUEUE_LINES: usize = 512;
/// The shortest time between two reports in the node's log that lines were left out.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(10);

struct QueuedLine {
    line: LogLine,
    of: Kind,
    share: Arc<QueueShare>,
}

/// The source of a line.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The guest.
    Guest,
    /// The node, which has logged the line already, if it did at all.
    End,
}

/// A tenant's use of the queue.
#[derive(Default)]
struct QueueShare {
    under_way: AtomicUsize,
    /// The node's own lines for which the queue had no room.
    lost: AtomicU64,
    /// What the tenant may write to the node's log.
    allowance: TenantAllowance,
}

/// A message to the log thread.
enum Message {
    Line(QueuedLine),
    End,
}

/// An FWP's end of the log.
pub struct GuestLog {
    origin: Arc<Origin>,
    lines: Sender<Message>,
    share: Arc<QueueShare>,
    tokens: f64,
    filled: Instant,
    lost: u64,
}

/// Makes logs for FWPs; a node has one.
#[derive(Clone)]
pub struct LogHub {
    lines: Sender<Message>,
    shares: Arc<Mutex<HashMap<TenantName, Arc<QueueShare>>>>,
    allowance: Arc<NodeAllowance>,
}

/// The log thread's end.
pub struct LogDrain {
    lines: Receiver<Message>,
    journal: Arc<Journal>,
    allowance: Arc<NodeAllowance>,
    /// Lines left out of the node's log when it last reported that, and when it may report again.
    summary: (u64, Instant),
}

/// Makes both ends. Lines are kept in `journal`.
#[must_use]
pub fn hub(journal: Arc<Journal>) -> (LogHub, LogDrain) {
    let (tx, rx) = crossbeam_channel::bounded(QUEUE_LINES);
    let allowance = Arc::<NodeAllowance>::default();
    let drain = LogDrain { lines: rx, journal, allowance: Arc::clone(&allowance), summary: (0, Instant::now()) };
    (LogHub { lines: tx, shares: Arc::default(), allowance }, drain)
}

impl LogHub {
    /// Makes a log for one FWP.
    #[must_use]
    pub fn log(&self, origin: Origin) -> GuestLog {
        GuestLog {
            share: self.share(&origin.tenant),
            origin: Arc::new(origin),
            lines: self.lines.clone(),
            tokens: BURST_LINES,
            filled: Instant::now(),
            lost: 0,
        }
    }

    /// Tells the tenant why one of its FWPs failed. Never blocks.
    pub fn failed(&self, origin: Origin, account: &str) {
        let share = self.share(&origin.tenant);
        let lost = share.lost.swap(0, Ordering::Relaxed);
        let line = line(Arc::new(origin), Level::Error, account.into(), lost);
        if !send(&self.lines, QueuedLine { line, of: Kind::End, share: Arc::clone(&share) }) {
            share.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether the node's log takes this sentence about a function of the tenant; if so, how many of the tenant's lines were left
    /// out before.
    #[must_use]
    pub fn admit(&self, tenant: &TenantName, sentence: &str) -> Option<u64> {
        self.allowance.admit(&self.share(tenant).allowance, sentence.len(), Instant::now())
    }

    /// Returns how many lines of functions were left out of the node's log since the start.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.allowance.left_out()
    }

    /// Returns what of a tenant's functions' lines the node's log has taken.
    #[must_use]
    pub fn account(&self, tenant: &TenantName) -> LineAccount {
        let shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.get(tenant).map(|share| share.allowance.account()).unwrap_or_default()
    }

    /// Ends the log thread, once it has written the lines before.
    pub fn end(&self) {
        let _ = self.lines.send(Message::End);
    }

    fn share(&self, tenant: &TenantName) -> Arc<QueueShare> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(tenant) {
            return Arc::clone(share);
        }
        // A new tenant makes room for its entry: tenants without FWPs and lines need none.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        Arc::clone(shares.entry(tenant.clone()).or_default())
    }
}

impl GuestLog {
    /// Queues a line, if the FWP has a token for it. Never blocks.
    pub fn line(&mut self, level: LogLevel, text: &[u8]) {
        let elapsed = self.filled.elapsed();
        self.filled += elapsed;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * LINES_PER_SECOND).min(BURST_LINES);
        if self.tokens < 1.0 {
            self.lost += 1;
            return;
        }
        self.tokens -= 1.0;
        let line = line(Arc::clone(&self.origin), shown(level), printable(text, SENTENCE_BYTES_MAX).into(), self.lost);
        let taken = send(&self.lines, QueuedLine { line, of: Kind::Guest, share: Arc::clone(&self.share) });
        self.lost = if taken { 0 } else { self.lost + 1 };
    }

    /// Counts a line that the FWP was not allowed to write.
    pub fn lose_line(&mut self) {
        self.lost += 1;
    }
}

fn line(origin: Arc<Origin>, level: Level, text: Arc<str>, lost: u64) -> LogLine {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LogLine { time_unix_ms: time.as_millis() as u64, level, origin, text, lost }
}

/// Returns whether the queue had room for the line.
fn send(lines: &Sender<Message>, line: QueuedLine) -> bool {
    let share = Arc::clone(&line.share);
    let has_place = share.under_way.fetch_add(1, Ordering::Relaxed) < TENANT_QUEUE_LINES;
    let is_sent = has_place && lines.try_send(Message::Line(line)).is_ok();
    if !is_sent {
        share.under_way.fetch_sub(1, Ordering::Relaxed);
    }
    is_sent
}

fn shown(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::Error,
        LogLevel::Warn => Level::Warn,
        LogLevel::Info => Level::Info,
        LogLevel::Debug => Level::Debug,
    }
}

impl LogDrain {
    /// Runs the log thread's loop: writes lines to the journal and the node's log until the hub ends it.
    pub fn run(mut self) {
        loop {
            match self.next() {
                Ok(Message::Line(QueuedLine { line, of, share })) => {
                    share.under_way.fetch_sub(1, Ordering::Relaxed);
                    if line.lost > 0 {
                        share.allowance.count_lost(line.lost);
                    }
                    self.journal.push(line.clone());
                    if of == Kind::Guest
                        && let Some(left_out) = self.allowance.admit(&share.allowance, line.text.len(), Instant::now())
                    {
                        write(&line, left_out);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
            self.summarise();
        }
    }

    fn next(&self) -> Result<Message, RecvTimeoutError> {
        let (said, at) = self.summary;
        if self.allowance.left_out() > said {
            return self.lines.recv_deadline(at);
        }
        self.lines.recv().map_err(|_| RecvTimeoutError::Disconnected)
    }

    /// Reports how many lines were left out, if a report is due.
    fn summarise(&mut self) {
        let (left_out, now) = (self.allowance.left_out(), Instant::now());
        let (said, at) = &mut self.summary;
        if left_out > *said && now >= *at {
            let lines = left_out - *said;
            tracing::warn!(target: "guest", lines, "functions said more than this log takes of them: pinion logs has the latest of it");
            (*said, *at) = (left_out, now + SUMMARY_INTERVAL);
        }
    }
}

fn write(LogLine { level, origin, text, lost, .. }: &LogLine, left_out: u64) {
    let Origin { tenant, chain, module, fwp, .. } = &**origin;
    macro_rules! emit {
        ($level:ident) => {
            tracing::$level!(target: "guest", %tenant, %chain, %module, %fwp, lost, left_out, "{text}")
        };
    }
    match level {
        Level::Error => emit!(error),
        Level::Warn => emit!(warn),
        Level::Info => emit!(info),
        Level::Debug => emit!(debug),
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::journal::{LogFilter, Reader};

    use super::*;

    fn origin(tenant: &str) -> Origin {
        let (chain, module) = ("web".parse().unwrap(), "m".parse().unwrap());
        Origin { tenant: tenant.parse().unwrap(), chain, stage: 0, module, fwp: "7".into() }
    }

    /// Returns what tenants see of the lines so far.
    fn seen(hub: &LogHub, drain: LogDrain) -> Vec<LogLine> {
        let mut reader = Reader::new(Arc::clone(&drain.journal), LogFilter::default());
        hub.end();
        drain.run();
        std::iter::from_fn(|| Some(reader.read()).filter(|page| !page.is_empty())).flatten().collect()
    }

    #[test]
    fn a_flood_is_cut_to_the_burst_and_counted() {
        let (hub, drain) = hub(Arc::default());
        let mut log = hub.log(origin("loud"));
        for _ in 0..10_000 {
            log.line(LogLevel::Info, b"again");
        }
        let lost = log.lost;
        let lines = seen(&hub, drain);
        assert!((50..100).contains(&lines.len()), "{} lines of a burst of 50 were taken", lines.len());
        let reported: u64 = lines.iter().map(|line| line.lost).sum();
        assert_eq!(lost + reported, 10_000 - lines.len() as u64);
    }

    #[test]
    fn a_tenant_that_floods_the_log_queue_leaves_room_for_others() {
        let (hub, drain) = hub(Arc::default());
        for _ in 0..QUEUE_LINES {
            hub.log(origin("loud")).line(LogLevel::Info, b"again");
            hub.failed(origin("loud"), "it trapped");
        }
        hub.log(origin("quiet")).line(LogLevel::Warn, b"a word");
        let lines = seen(&hub, drain);
        assert_eq!(lines.len(), TENANT_QUEUE_LINES + 1);
        assert_eq!(*lines[TENANT_QUEUE_LINES].text, *"a word");
    }

    #[test]
    fn lost_lines_are_reported_with_the_tenants_next_failure() {
        let (hub, drain) = hub(Arc::default());
        for _ in 0..TENANT_QUEUE_LINES + 3 {
            hub.failed(origin("loud"), "it trapped");
        }
        let Ok(Message::Line(QueuedLine { share, .. })) = drain.lines.recv() else { panic!("a line is under way") };
        share.under_way.fetch_sub(1, Ordering::Relaxed);
        hub.failed(origin("loud"), "it trapped again");
        assert_eq!(seen(&hub, drain).last().unwrap().lost, 3);
    }
}
