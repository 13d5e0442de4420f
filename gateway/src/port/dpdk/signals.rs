//! Keeps `net_tap` from having the kernel signal every frame.
//!
//! The driver looks for a real-time signal that nobody uses, and has it sent to the process for each frame, so as to
//! poll without a system call while nothing comes. The signal hits any thread, a worker on a guest's stack too, and
//! costs more than it saves. If every such signal is in use, the driver does without.
#![allow(unsafe_code)] // Changes what signals do.

use std::ffi::c_int;
use std::mem::MaybeUninit;

/// While this lives, no real-time signal is free: those that were are ignored.
pub(super) struct NoFreeSignals {
    ignored: Vec<c_int>,
}

impl NoFreeSignals {
    pub(super) fn take() -> Self {
        let free = (libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(|signal| is_free(*signal));
        // SAFETY: ignoring a signal runs no code.
        Self { ignored: free.inspect(|signal| unsafe { set(*signal, libc::SIG_IGN) }).collect() }
    }
}

impl Drop for NoFreeSignals {
    fn drop(&mut self) {
        for signal in &self.ignored {
            // SAFETY: as it was before.
            unsafe { set(*signal, libc::SIG_DFL) };
        }
    }
}

fn is_free(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, and writes the structure.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all of it was zeroed and some of it written.
    code == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_DFL
}

/// # Safety
/// What is to be done at the signal must be allowed at any time on any thread.
unsafe fn set(signal: c_int, disposition: libc::sighandler_t) {
    // SAFETY: as the caller promises; fails for no real-time signal.
    unsafe { libc::signal(signal, disposition) };
}
