//! Rights that every thread of a process gives up, whoever started it: also those of libraries, such as DPDK's.
//!
//! Linux keeps capabilities, filters and file rules for each thread, and has no call that changes them for all threads of a process (but for
//! filters, which would then be the same for all). So each thread is sent a signal, and gives up its rights in the handler, as the C library
//! does for `setuid`.
#![allow(unsafe_code)] // System calls that no safe interface has, some within a signal handler.

use std::cell::Cell;
use std::ffi::c_int;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::THREAD_KINDS_MAX;
use crate::system_calls::Filter;

thread_local! {
    static KIND: Cell<usize> = const { Cell::new(0) };
}

/// Sets the kind of the calling thread, which chooses its filter. Threads without one are of kind 0.
///
/// # Panics
/// If the number is not below [`THREAD_KINDS_MAX`].
pub fn set_kind(kind: usize) {
    assert!(kind < THREAD_KINDS_MAX, "{kind} is no kind of thread");
    KIND.set(kind);
}

/// Returns the kind of the calling thread.
#[must_use]
pub fn kind() -> usize {
    KIND.get()
}

/// What threads give up.
#[derive(Debug, Default)]
pub struct Rights {
    /// All capabilities.
    pub capabilities: bool,
    /// Privileges that executing a program could give. Filters and file rules need this.
    pub privileges: bool,
    /// Files and connections outside these rules ([`crate::files::FileRules`]).
    pub files: Option<OwnedFd>,
    /// All other system calls than these, by the kind of thread.
    pub filters: Vec<Option<Filter>>,
}

/// Why not every thread has given up its rights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// A thread was not allowed to.
    #[error("a thread could not give up {what}: {source}")]
    Failed {
        /// What it is about.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A thread does not react.
    #[error("thread {thread} does not react to the signal by which it is to give up its rights")]
    Silent {
        /// Its number.
        thread: i32,
    },
    /// New threads start again and again.
    #[error("the process starts threads faster than they can give up their rights")]
    Restless,
    /// The threads cannot be listed or signalled.
    #[error("the threads of the process: {0}")]
    Threads(#[from] io::Error),
}

/// How long a thread has to react. It does so as soon as it has a core.
const REACTION_MAX: Duration = Duration::from_secs(10);
/// How often all threads are looked for: a thread that was not confined yet may have started another one.
const ROUNDS_MAX: usize = 16;

/// What the handler does, while threads are being confined.
static RIGHTS: AtomicPtr<Rights> = AtomicPtr::new(std::ptr::null_mut());
/// Whether threads without new privileges are those that were confined, or were started by one.
static IS_MARKED: AtomicBool = AtomicBool::new(false);
/// The threads that have handled the signal, the latest one.
static HANDLED: AtomicI32 = AtomicI32::new(0);
/// The first failure: a step and the error's number.
static FAILURE: AtomicU32 = AtomicU32::new(0);

/// Has every thread of the process give up these rights, the calling one last. Once for a process; the rights stay in memory.
///
/// # Errors
/// Some threads may have given them up then, and others not.
pub fn confine(rights: Rights) -> Result<(), ConfineError> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let signal = libc::SIGRTMAX() - 1;
    // A thread that has it then has inherited all of it from one that was confined, and could not give up more.
    IS_MARKED.store(rights.privileges && !has_no_new_privileges(), Ordering::SeqCst);
    RIGHTS.store(Box::leak(Box::new(rights)), Ordering::SeqCst);
    let before = install(signal)?;
    let own = rustix::thread::gettid().as_raw_pid();
    let mut confined = vec![own];
    let mut rounds = 0;
    loop {
        let new: Vec<i32> = threads()?.into_iter().filter(|thread| !confined.contains(thread)).collect();
        if new.is_empty() {
            break;
        }
        rounds += 1;
        if rounds > ROUNDS_MAX {
            return Err(ConfineError::Restless);
        }
        for thread in new {
            confine_other(thread, signal)?;
            confined.push(thread);
        }
    }
    // No thread that comes now is less confined than the one that starts it, and the signal means nothing any more.
    // SAFETY: restores what was there.
    unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
    confine_this();
    match FAILURE.load(Ordering::SeqCst) {
        0 => Ok(()),
        failure => Err(ConfineError::Failed {
            what: STEPS[(failure >> 16) as usize],
            source: io::Error::from_raw_os_error((failure & 0xffff) as i32),
        }),
    }
}

fn threads() -> io::Result<Vec<i32>> {
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(fs::read_dir("/proc/self/task")?.filter_map(number).collect())
}

/// Signals a thread, and waits until it has handled that or has ended.
fn confine_other(thread: i32, signal: c_int) -> Result<(), ConfineError> {
    HANDLED.store(0, Ordering::SeqCst);
    // SAFETY: signals a thread of this process; its handler is installed.
    let code = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    if code != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error.into()) };
    }
    let since = Instant::now();
    while HANDLED.load(Ordering::SeqCst) != thread {
        if !fs::exists(format!("/proc/self/task/{thread}"))? {
            return Ok(());
        }
        if since.elapsed() > REACTION_MAX {
            return Err(ConfineError::Silent { thread });
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

fn install(signal: c_int) -> io::Result<libc::sigaction> {
    let [mut action, mut before] = [MaybeUninit::<libc::sigaction>::zeroed(); 2];
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty mask.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe: it makes system calls and touches atomics.
    match unsafe { libc::sigaction(signal, action, before.as_mut_ptr()) } {
        // SAFETY: written by the call.
        0 => Ok(unsafe { before.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_signal(_: c_int) {
    // SAFETY: the C library's errno of this thread, which the interrupted code may be about to read.
    let (errno, thread) = unsafe { (*libc::__errno_location(), libc::gettid()) };
    confine_this();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    HANDLED.store(thread, Ordering::SeqCst);
}

/// What is given up, in this order, by the numbers in [`FAILURE`].
const STEPS: [&str; 5] = ["", "its capabilities", "privileges of programs", "files", "system calls"];

/// Gives up the rights of the calling thread. Async-signal-safe: allocates nothing and takes no lock.
fn confine_this() {
    // SAFETY: null, or leaked.
    let Some(rights) = (unsafe { RIGHTS.load(Ordering::SeqCst).as_ref() }) else { return };
    if IS_MARKED.load(Ordering::SeqCst) && has_no_new_privileges() {
        return;
    }
    let check = |step: u32, result: io::Result<()>| {
        if let Err(error) = result {
            let failure = step << 16 | error.raw_os_error().unwrap_or(0).cast_unsigned();
            let _ = FAILURE.compare_exchange(0, failure, Ordering::SeqCst, Ordering::SeqCst);
        }
    };
    if rights.capabilities {
        check(1, drop_capabilities());
    }
    if rights.privileges {
        check(2, set_no_new_privileges());
    }
    if let Some(ruleset) = &rights.files {
        check(3, restrict_files(ruleset));
    }
    if let Some(filter) = rights.filters.get(kind()).and_then(Option::as_ref) {
        check(4, filter.programs.iter().try_for_each(|program| enter(program)));
    }
}

/// Returns what the kernel said of a call that returns 0 if it succeeds.
fn done(code: i64) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;

pub(crate) fn drop_capabilities() -> io::Result<()> {
    let (header, none) = ([CAPABILITY_VERSION, 0], [0_u32; 6]);
    // SAFETY: a header (version, and this thread), and two sets of three words each.
    done(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) })
}

fn has_no_new_privileges() -> bool {
    // SAFETY: an option without arguments.
    (unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) }) == 1
}

pub(crate) fn set_no_new_privileges() -> io::Result<()> {
    // SAFETY: an option with numbers as arguments.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

pub(crate) fn restrict_files(ruleset: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes two numbers.
    done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })
}

fn enter(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies the program, which lives until it has; both types of an instruction are the kernel's.
    done(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}
