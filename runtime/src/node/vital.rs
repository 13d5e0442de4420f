//! Vital threads: if one ends, by a panic or by returning, the process aborts. Panics in contained work
//! ([`crate::containment`]) end no thread, and are only reported.
//!
//! Otherwise half a node would run on with clients that it no longer serves, unnoticed by its supervisor. So nothing may delay the abort.
//! The panic hook of a vital thread hands its report to the log's thread, waits a fifth of a second at most, and aborts. It runs no
//! destructor and takes no lock that another thread may hold. A standard error that does not accept data (a full disk, a pipe that is not
//! read) does not matter.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::process::abort;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pinion_text::{SENTENCE_BYTES_MAX, TEXT_BYTES_MAX, indented, printable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::containment::contains_panic;
use crate::lockdown::thread_role::ThreadRole;

/// The log that takes reports of panics.
pub(crate) trait PanicLog: Sync {
    /// Queues a line. Never blocks.
    fn line(&self, text: &str);

    /// Queues a line and waits for a limited time until it is written: the process is about to abort.
    fn last_words(&self, text: &str);
}

/// The log of this process, once there is one.
static LOG: OnceLock<&dyn PanicLog> = OnceLock::new();

/// What the end of a thread means for the process.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Nothing.
    Other,
    /// The process aborts.
    Vital,
    /// The process aborts, and the log's thread cannot report it, as it is that thread.
    Log,
}

thread_local! {
    static KIND: Cell<Kind> = const { Cell::new(Kind::Other) };
}

/// Starts a vital thread: when it ends, the process aborts, unless it returns while `ending` is set.
///
/// # Errors
/// Returns the operating system's error if the thread cannot be started.
pub fn spawn(name: &str, ending: Arc<AtomicBool>, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    start(name, Kind::Vital, ending, run)
}

/// Starts the log's thread. It lives as long as the process and is never joined.
pub(crate) fn spawn_log_thread(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // It returns only when all senders are gone, as in tests. Nothing is lost then, so `ending` is set.
    start("log", Kind::Log, Arc::new(AtomicBool::new(true)), run).map(drop)
}

fn start(
    name: &str,
    kind: Kind,
    ending: Arc<AtomicBool>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    report_panics();
    let named = name.to_owned();
    let (has_role, begun) = mpsc::channel();
    let guarded = move || {
        KIND.set(kind);
        ThreadRole::of(&named).enter();
        // The node may give up its rights from now on, each thread those that its role has no use for.
        let _ = has_role.send(());
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            // Reached only if the panic hook was replaced: ours would have aborted.
            abort();
        }
        if !ending.load(Ordering::SeqCst) {
            end_process(&format!("thread {named} has ended; the node cannot go on without it"));
        }
        KIND.set(Kind::Other);
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(guarded)?;
    // Fails if it has ended already.
    let _ = begun.recv();
    Ok(thread)
}

/// Reports panics of all threads in this log from now on. The first log stays.
pub(crate) fn report_to(log: &'static dyn PanicLog) {
    let _ = LOG.set(log);
    report_panics();
}

/// Installs the panic hook, once: it reports panics in the node's log, if there is one, and aborts the process if a vital thread panics.
fn report_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if contains_panic() {
                return report_contained(info);
            }
            if KIND.get() != Kind::Other {
                end_process(&format!("{}; the node cannot go on without it", report(info)));
            }
            match LOG.get() {
                Some(log) => log.line(&format!("ERROR {}{}", report(info), backtrace())),
                None => before(info),
            }
        }));
    });
}

/// Most contained panics that are logged in a second: what causes them may happen again and again.
const CONTAINED_MAX: u32 = 10;

/// Reports a contained panic, without a backtrace, which would take long on a thread that others wait for.
fn report_contained(info: &PanicHookInfo<'_>) {
    static LOGGED: Mutex<(Option<Instant>, u32)> = Mutex::new((None, 0));
    // Another thread that has it logs a panic now.
    let Ok(mut logged) = LOGGED.try_lock() else { return };
    let (since, count) = &mut *logged;
    if since.is_none_or(|since| since.elapsed() >= Duration::from_secs(1)) {
        (*since, *count) = (Some(Instant::now()), 0);
    }
    *count += 1;
    if *count <= CONTAINED_MAX
        && let Some(log) = LOG.get()
    {
        log.line(&format!("ERROR {}; the node goes on", report(info)));
    }
}

/// `thread core-0 panicked at runtime/src/worker/mod.rs:1:2: why`
fn report(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let why = info.payload_as_str().unwrap_or("it gives no reason");
    format!(
        "thread {} panicked{place}: {}",
        thread.name().unwrap_or("without a name"),
        printable(why, SENTENCE_BYTES_MAX)
    )
}

/// Returns the backtrace, if the environment enables it (`RUST_BACKTRACE`).
fn backtrace() -> String {
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => indented(format!("\n{backtrace}"), TEXT_BYTES_MAX),
        _ => String::new(),
    }
}

fn end_process(report: &str) -> ! {
    let report = format!("ERROR {report}");
    match LOG.get() {
        Some(log) if KIND.get() != Kind::Log => log.last_words(&report),
        _ => write_if_ready(format!("{report}\n").as_bytes()),
    }
    abort()
}

/// Writes a line to standard error unless that would block. For when the log's thread cannot write it.
fn write_if_ready(line: &[u8]) {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0) {
        let _ = rustix::io::write(stderr.as_fd(), line);
    }
}
