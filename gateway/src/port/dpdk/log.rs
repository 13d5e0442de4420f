//! Forwards DPDK's log to `tracing`, and into the errors of what is being opened.
//!
//! Drivers log errors that are none (a tap that finds no traffic control in the kernel), and describe real errors only
//! in their log. So while DPDK is started or a device is opened, their messages are collected. If that fails, they
//! become part of the error. At all other times they are warnings, limited in number per second, because a driver may
//! log something for each frame.
#![allow(unsafe_code)] // Called by DPDK.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pinion_dpdk_sys as sys;

/// The most messages that are collected for one opening.
const COLLECTED_MAX: usize = 16;
/// The most messages that an error repeats.
const TOLD_MAX: usize = 3;

/// The most warnings that are logged per second.
const WARNINGS_PER_SECOND: u32 = 20;

/// Allows one opening at a time, so that messages can be attributed to it.
static OPENING: Mutex<()> = Mutex::new(());
/// The messages of the current opening, if there is one.
static COLLECTED: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// How many warnings were logged recently.
static LOGGED: Mutex<Option<Logged>> = Mutex::new(None);

struct Logged {
    since: Instant,
    count: u32,
    /// Messages suppressed since the last one that was logged.
    left_out: u64,
}

impl Logged {
    /// Returns how many messages were suppressed before this one, or `None` if this one is to be suppressed as well.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.count) = (now, 0);
        }
        if self.count >= WARNINGS_PER_SECOND {
            self.left_out += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Collects DPDK's log messages until it is dropped.
pub(crate) struct Collector {
    _turn: MutexGuard<'static, ()>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let turn = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        *collected() = Some(Vec::new());
        Self { _turn: turn }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        *collected() = None;
    }
}

/// Returns a summary of DPDK's messages since the collection began; empty if there are none.
pub(crate) fn told() -> String {
    let messages = collected().clone().unwrap_or_default();
    // Messages of DPDK's core only repeat that something failed.
    let (core, drivers): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.starts_with("EAL: "));
    let telling = if drivers.is_empty() { core } else { drivers };
    telling[..telling.len().min(TOLD_MAX)].join("; ")
}

/// Redirects DPDK's log to this module. Must be called once, before DPDK is started.
pub(crate) fn capture() {
    // SAFETY: DPDK is not running; `take` does not unwind.
    if unsafe { sys::pinion_log_to(Some(take)) } != 0 {
        tracing::debug!("DPDK logs to standard error");
    }
}

fn collected() -> MutexGuard<'static, Option<Vec<String>>> {
    COLLECTED.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" fn take(text: *const c_char, len: usize, level: u32) {
    // SAFETY: DPDK passes `len` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let message = String::from_utf8_lossy(bytes).trim().to_owned();
    match &mut *collected() {
        Some(messages) => {
            tracing::debug!(target: "dpdk", level, "{message}");
            if messages.len() < COLLECTED_MAX {
                messages.push(message);
            }
        }
        None => {
            let now = Instant::now();
            let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
            let logged = logged.get_or_insert(Logged { since: now, count: 0, left_out: 0 });
            if let Some(left_out) = logged.admit(now) {
                tracing::warn!(target: "dpdk", level, left_out, "{message}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_logs_for_each_frame_is_limited_to_some_messages_a_second() {
        let start = Instant::now();
        let mut logged = Logged { since: start, count: 0, left_out: 0 };
        let mut heard = |now| (0..100).filter_map(|_| logged.admit(now)).collect::<Vec<_>>();
        assert_eq!(heard(start), [0; 20]);
        let mut next = vec![80];
        next.resize(20, 0);
        assert_eq!(heard(start + Duration::from_secs(1)), next);
        assert_eq!(heard(start + Duration::from_millis(1500)), []);
    }
}
