//! What filters refused: counted by kind of thread, for whoever reports it. The call fails with EPERM.
#![allow(unsafe_code)] // Handles the signal of a refused call.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::THREAD_KINDS_MAX;
use crate::every_thread;

/// System calls by their number; larger numbers are counted as the last one.
const CALLS_MAX: usize = 512;

/// Calls that were refused, by kind of thread and number. Static, as a signal handler must not allocate.
static REFUSED: [[AtomicU32; CALLS_MAX]; THREAD_KINDS_MAX] =
    [const { [const { AtomicU32::new(0) }; CALLS_MAX] }; THREAD_KINDS_MAX];

/// A system call that threads of a kind were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedCall {
    /// The kind of thread.
    pub kind: usize,
    /// The number of the system call; [`crate::system_calls::name`] names it.
    pub number: usize,
    /// How often.
    pub count: u32,
}

/// Returns all calls that were refused since the process started.
#[must_use]
pub fn refused() -> Vec<RefusedCall> {
    let mut refused = Vec::new();
    for (kind, calls) in REFUSED.iter().enumerate() {
        let calls = calls.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
        let made = calls.filter(|(_, count)| *count > 0);
        refused.extend(made.map(|(number, count)| RefusedCall { kind, number, count }));
    }
    refused
}

/// From now on, a call that a filter refuses ([`crate::system_calls::Otherwise::Refuse`]) is counted and fails with EPERM.
///
/// # Errors
/// The kernel's.
pub fn count() -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty mask.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = on_refused as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler is async-signal-safe: it touches atomics, a plain thread-local, and what the kernel hands to it.
    match unsafe { libc::sigaction(libc::SIGSYS, action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `si_code` of a signal that a filter raised.
const SYS_SECCOMP: c_int = 1;

/// The kernel's `siginfo_t` of a refused call.
#[repr(C)]
struct RefusedInfo {
    signal: c_int,
    errno: c_int,
    code: c_int,
    call_address: *const c_void,
    number: c_int,
    arch: u32,
}

extern "C" fn on_refused(_: c_int, info: *const RefusedInfo, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes a `siginfo_t`, which has this form if a filter raised the signal; its first three fields always do.
    let (code, number) = unsafe { ((*info).code, (*info).number) };
    if code != SYS_SECCOMP {
        return;
    }
    let number = usize::try_from(number).unwrap_or(CALLS_MAX).min(CALLS_MAX - 1);
    REFUSED[every_thread::kind()][number].fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel passes the registers that it restores when this returns; this one has the result of the call.
    unsafe { set_result(&mut (*context).uc_mcontext, -i64::from(libc::EPERM)) };
}

#[cfg(target_arch = "x86_64")]
fn set_result(registers: &mut libc::mcontext_t, result: i64) {
    registers.gregs[libc::REG_RAX as usize] = result;
}

#[cfg(target_arch = "aarch64")]
fn set_result(registers: &mut libc::mcontext_t, result: i64) {
    registers.regs[0] = result as u64;
}
