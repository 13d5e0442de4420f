//! DPDK's log: into `tracing`, and into the errors of what is being opened.
//!
//! Drivers report as errors what is none (a tap that finds no traffic control in the kernel), and say what is wrong
//! only in their log. So while something is being started or opened, their messages are collected; if it fails they
//! become part of the error. At all other times they are warnings.
#![allow(unsafe_code)] // Called by DPDK.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pinion_dpdk_sys as sys;

/// Most messages that are kept, of one opening.
const COLLECTED_MAX: usize = 16;
/// Most messages that an error repeats.
const TOLD_MAX: usize = 3;

/// One opening at a time, so that messages belong to it.
static OPENING: Mutex<()> = Mutex::new(());
/// Its messages, while there is one.
static COLLECTED: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Collects what DPDK logs until it is dropped.
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

/// What DPDK has said since the collection began, in a few words; empty if nothing.
pub(crate) fn told() -> String {
    let messages = collected().clone().unwrap_or_default();
    // DPDK's core only repeats that something failed.
    let (core, drivers): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.starts_with("EAL: "));
    let telling = if drivers.is_empty() { core } else { drivers };
    telling[..telling.len().min(TOLD_MAX)].join("; ")
}

/// Hands DPDK's log to this module. To be called once, before DPDK is started.
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
        None => tracing::warn!(target: "dpdk", level, "{message}"),
    }
}
