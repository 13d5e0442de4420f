//! Guests' log lines, on their way from a worker, which must not wait, to the node's log.
//!
//! A line costs its FWP a token; without one it is counted and lost. Lines wait in a bounded queue for the log thread;
//! when it is full, likewise. Control characters are escaped: a tenant cannot forge lines or drive a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use pinion_abi::LogLevel;
use pinion_guest::fault::escaped;

/// Lines an FWP may log at once.
const BURST_LINES: f64 = 50.0;
/// Lines per second an FWP may log in the long run.
const LINES_PER_SECOND: f64 = 20.0;
/// Lines under way from all workers.
const QUEUE_LINES: usize = 4096;

/// Whose line it is.
#[derive(Debug)]
pub struct Origin {
    /// The tenant.
    pub tenant: String,
    /// The chain.
    pub chain: String,
    /// The module.
    pub module: String,
    /// The FWP.
    pub fwp: String,
}

struct Line {
    origin: Arc<Origin>,
    level: LogLevel,
    text: String,
    /// Lines of this FWP that were lost before this one.
    lost: u64,
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
    tokens: f64,
    filled: Instant,
    lost: Arc<AtomicU64>,
}

/// Makes logs for FWPs; the node has one.
#[derive(Clone)]
pub struct LogHub {
    lines: Sender<Message>,
}

/// The log thread's end.
pub struct LogDrain {
    lines: Receiver<Message>,
}

/// Makes the two ends.
#[must_use]
pub fn hub() -> (LogHub, LogDrain) {
    let (tx, rx) = crossbeam_channel::bounded(QUEUE_LINES);
    (LogHub { lines: tx }, LogDrain { lines: rx })
}

impl LogHub {
    /// A log for one FWP.
    #[must_use]
    pub fn log(&self, origin: Origin) -> GuestLog {
        GuestLog {
            origin: Arc::new(origin),
            lines: self.lines.clone(),
            tokens: BURST_LINES,
            filled: Instant::now(),
            lost: Arc::default(),
        }
    }

    /// Ends the log thread, once it has written what came before.
    pub fn end(&self) {
        let _ = self.lines.send(Message::End);
    }
}

impl GuestLog {
    /// Takes a line, if the FWP has a token for it. Never waits.
    pub fn line(&mut self, level: LogLevel, text: &[u8]) {
        let elapsed = self.filled.elapsed();
        self.filled += elapsed;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * LINES_PER_SECOND).min(BURST_LINES);
        if self.tokens < 1.0 {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.tokens -= 1.0;
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let line = Line { origin: Arc::clone(&self.origin), level, text: escaped(text), lost };
        if self.lines.try_send(Message::Line(line)).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

impl LogDrain {
    /// The log thread's loop: writes lines to the node's log until the hub ends it.
    pub fn run(self) {
        while let Ok(Message::Line(Line { origin, level, text, lost })) = self.lines.recv() {
            let Origin { tenant, chain, module, fwp } = &*origin;
            macro_rules! emit {
                ($level:ident) => {
                    tracing::$level!(target: "guest", %tenant, %chain, %module, %fwp, lost, "{text}")
                };
            }
            match level {
                LogLevel::Error => emit!(error),
                LogLevel::Warn => emit!(warn),
                LogLevel::Info => emit!(info),
                LogLevel::Debug => emit!(debug),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        let word = || "x".to_owned();
        Origin { tenant: word(), chain: word(), module: word(), fwp: word() }
    }

    #[test]
    fn a_flood_is_cut_to_the_burst_and_counted() {
        let (hub, drain) = hub();
        let mut log = hub.log(origin());
        for _ in 0..10_000 {
            log.line(LogLevel::Info, b"again");
        }
        let taken = drain.lines.len();
        assert!((50..100).contains(&taken), "{taken} lines of a burst of 50 were taken");
        assert_eq!(log.lost.load(Ordering::Relaxed) as usize, 10_000 - taken - lost_reported(&drain));
    }

    fn lost_reported(drain: &LogDrain) -> usize {
        let lost = |message| if let Message::Line(line) = message { line.lost as usize } else { 0 };
        drain.lines.try_iter().map(lost).sum()
    }
}
