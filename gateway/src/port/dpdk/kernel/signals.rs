//! Keeps `net_tap` from receiving a signal for every frame.
//!
//! The driver looks for an unused real-time signal and asks the kernel to send it to the process for each frame. Thus
//! it can poll without a system call while no frame comes. But the signal interrupts any thread, even a worker on a
//! guest's stack, and costs more than it saves. If every such signal is in use, the driver does without.
#![allow(unsafe_code)] // Changes what signals do.

use std::ffi::c_int;
use std::mem::MaybeUninit;

/// While this lives, no real-time signal is unused: those that were are ignored.
pub(crate) struct NoFreeSignals {
    ignored: Vec<c_int>,
}

impl NoFreeSignals {
    pub(crate) fn take() -> Self {
        let free = (libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(|signal| is_free(*signal));
        // SAFETY: ignoring a signal runs no code.
        Self { ignored: free.inspect(|signal| unsafe { set(*signal, libc::SIG_IGN) }).collect() }
    }
}

impl Drop for NoFreeSignals {
    fn drop(&mut self) {
        for signal in &self.ignored {
            // SAFETY: restores the disposition that it had before.
            unsafe { set(*signal, libc::SIG_DFL) };
        }
    }
}

fn is_free(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only queries, and writes the structure.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all of it was zeroed and some of it written.
    code == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_DFL
}

/// # Safety
/// The disposition must be allowed at any time on any thread.
unsafe fn set(signal: c_int, disposition: libc::sighandler_t) {
    // SAFETY: as the caller promises; does not fail for a real-time signal.
    unsafe { libc::signal(signal, disposition) };
}
