//! What guests say, on its way from a worker, which must not wait, to the node's log and to its tenant.
//!
//! A line costs its FWP a token; without one it is counted and lost. Lines wait in a bounded queue for the log thread, of which each
//! tenant may have a part only; when that is full, likewise. Control characters are escaped: a tenant cannot forge lines or drive a
//! terminal. Why an instance failed goes the same way, from the launcher, and costs no token; the node's log has that already.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender};
use pinion_abi::LogLevel;
use pinion_control::journal::{Journal, Level, LogLine};
use pinion_control::model::TenantName;
use pinion_guest::fault::escaped;

pub use pinion_control::journal::Origin;

/// Lines an FWP may log at once.
const BURST_LINES: f64 = 50.0;
/// Lines per second an FWP may log in the long run.
const LINES_PER_SECOND: f64 = 20.0;
/// Lines under way from all workers.
const QUEUE_LINES: usize = 4096;
/// Lines under way of one tenant's.
const TENANT_QUEUE_LINES: usize = 512;

struct Line {
    line: LogLine,
    of: Kind,
    share: Arc<Share>,
}

/// Where a line comes from.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Its guest.
    Guest,
    /// The node, which has logged it as it sees fit.
    End,
}

/// What a tenant has of the queue.
#[derive(Default)]
struct Share {
    under_way: AtomicUsize,
    /// Lines of the node's own that found no place.
    lost: AtomicU64,
}

/// What travels to the log thread.
enum Message {
    Line(Line),
    End,
}

/// An FWP's end of the log.
pub struct GuestLog {
    origin: Arc<Origin>,
    lines: Sender<Message>,
    share: Arc<Share>,
    tokens: f64,
    filled: Instant,
    lost: u64,
}

/// Makes logs for FWPs; the node has one.
#[derive(Clone)]
pub struct LogHub {
    lines: Sender<Message>,
    shares: Arc<Mutex<HashMap<TenantName, Arc<Share>>>>,
}

/// The log thread's end.
pub struct LogDrain {
    lines: Receiver<Message>,
    journal: Arc<Journal>,
}

/// Makes the two ends. What is said is kept in `journal`.
#[must_use]
pub fn hub(journal: Arc<Journal>) -> (LogHub, LogDrain) {
    let (tx, rx) = crossbeam_channel::bounded(QUEUE_LINES);
    (LogHub { lines: tx, shares: Arc::default() }, LogDrain { lines: rx, journal })
}

impl LogHub {
    /// A log for one FWP.
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

    /// Tells the tenant why an FWP of its failed. Never waits.
    pub fn failed(&self, origin: Origin, account: &str) {
        let share = self.share(&origin.tenant);
        let lost = share.lost.swap(0, Ordering::Relaxed);
        let line = line(Arc::new(origin), Level::Error, account.into(), lost);
        if !send(&self.lines, Line { line, of: Kind::End, share: Arc::clone(&share) }) {
            share.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    /// Ends the log thread, once it has written what came before.
    pub fn end(&self) {
        let _ = self.lines.send(Message::End);
    }

    fn share(&self, tenant: &TenantName) -> Arc<Share> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(tenant) {
            return Arc::clone(share);
        }
        // Whoever is new makes room for itself: of tenants without FWPs and lines nothing is to be known.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        Arc::clone(shares.entry(tenant.clone()).or_default())
    }
}

impl GuestLog {
    /// Takes a line, if the FWP has a token for it. Never waits.
    pub fn line(&mut self, level: LogLevel, text: &[u8]) {
        let elapsed = self.filled.elapsed();
        self.filled += elapsed;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * LINES_PER_SECOND).min(BURST_LINES);
        if self.tokens < 1.0 {
            self.lost += 1;
            return;
        }
        self.tokens -= 1.0;
        let line = line(Arc::clone(&self.origin), shown(level), escaped(text).into(), self.lost);
        let taken = send(&self.lines, Line { line, of: Kind::Guest, share: Arc::clone(&self.share) });
        self.lost = if taken { 0 } else { self.lost + 1 };
    }
}

fn line(origin: Arc<Origin>, level: Level, text: Arc<str>, lost: u64) -> LogLine {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    LogLine { time_unix_ms: time.as_millis() as u64, level, origin, text, lost }
}

/// Whether there was a place for the line.
fn send(lines: &Sender<Message>, line: Line) -> bool {
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
    /// The log thread's loop: writes lines to the journal and the node's log until the hub ends it.
    pub fn run(self) {
        while let Ok(Message::Line(Line { line, of, share })) = self.lines.recv() {
            share.under_way.fetch_sub(1, Ordering::Relaxed);
            self.journal.push(line.clone());
            if of == Kind::Guest {
                write(&line);
            }
        }
    }
}

fn write(LogLine { level, origin, text, lost, .. }: &LogLine) {
    let Origin { tenant, chain, module, fwp, .. } = &**origin;
    macro_rules! emit {
        ($level:ident) => {
            tracing::$level!(target: "guest", %tenant, %chain, %module, %fwp, lost, "{text}")
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

    /// What tenants see of what was said so far.
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
    fn a_tenant_whose_instances_flood_and_fail_leaves_the_others_their_places() {
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
    fn what_found_no_place_is_said_with_the_tenants_next_failure() {
        let (hub, drain) = hub(Arc::default());
        for _ in 0..TENANT_QUEUE_LINES + 3 {
            hub.failed(origin("loud"), "it trapped");
        }
        let Ok(Message::Line(Line { share, .. })) = drain.lines.recv() else { panic!("a line is under way") };
        share.under_way.fetch_sub(1, Ordering::Relaxed);
        hub.failed(origin("loud"), "it trapped again");
        assert_eq!(seen(&hub, drain).last().unwrap().lost, 3);
    }
}
