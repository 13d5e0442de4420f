//! The node's own log: lines on standard error, written by a thread of their own.
//!
//! ```text
//!   any thread --tracing: formatted--> line --queue of LINES_MAX--> thread "log" --write(2)--> standard error
//!                                       |                                |
//!                                       '--------- counted, lost --------'   full queue; full disk, closed pipe
//! ```
//!
//! Standard error may be a pipe that is not read, a file on a full disk, or closed. None of that may affect the threads that log. A thread
//! that logs formats a line and puts it into a queue; if the queue is full, the line is lost. The thread that writes may block for ever;
//! only [`NodeLog::finish`] waits for it, for a limited time. Lost lines are counted. The status shows the count, and so does the log, in
//! place of the missing lines, once it can be written again.
//!
//! Nothing else in a node writes to standard error, and nothing holds the lock of [`std::io::stderr`] while it writes, so that a thread
//! that panics cannot block on it. Text of tenants and clients is made printable when events are formatted, and cannot begin a line.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use pinion_text::{NAME_BYTES_MAX, TEXT_BYTES_MAX, indented, printable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{self, Writer as Formatted};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::cores::plan::{CoreId, stay_on};
use crate::node::vital::{self, PanicLog};

/// Most lines in the queue to the thread.
const LINES_MAX: usize = 4096;
/// Most bytes of lines in the queue.
const BYTES_MAX: usize = 4 << 20;
/// The interval of attempts to write again after a failure, while no new line comes.
const RETRY: Duration = Duration::from_secs(5);
/// How long one write may take before the status warns of it.
const STALL: Duration = Duration::from_secs(2);
/// How long the end of the process waits for lines to be written.
const FINISH_MAX: Duration = Duration::from_secs(1);
/// How long an abnormal end of the process waits for that.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// The log of this process, once it has been started.
static STARTED: OnceLock<NodeLog> = OnceLock::new();

/// The node's log; see the module. Clones share one log.
#[derive(Clone)]
pub struct NodeLog {
    messages: Sender<Message>,
    state: Arc<State>,
}

/// A message to the thread.
enum Message {
    Line {
        bytes: Vec<u8>,
        /// Lines before this one that were lost because the queue was full.
        lost: u64,
    },
    StayOn(Vec<CoreId>),
    Flush(Sender<()>),
}

/// State shared by the writing thread and the threads that log.
struct State {
    started: Instant,
    queued_bytes: AtomicUsize,
    /// Lines that will never be written.
    lost: AtomicU64,
    /// Lost lines for lack of room that the log does not report yet.
    dropped: AtomicU64,
    /// When the current write began, in milliseconds since the start and never 0; 0 if no write is under way.
    writing_since_ms: AtomicU64,
    is_failing: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// The status of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// Lines lost since the start.
    pub lost_lines: u64,
    /// What is wrong now, and what to do.
    pub warning: Option<String>,
}

/// Returns the log of this process, if it has been started.
#[must_use]
pub fn started() -> Option<&'static NodeLog> {
    STARTED.get()
}

/// Returns the status of the log of this process.
#[must_use]
pub fn status() -> LogStatus {
    started().map(|log| log.state.status()).unwrap_or_default()
}

impl NodeLog {
    /// Starts the log of this process on standard error. From then on tracing events and panics go there. A log that was started before is
    /// returned as it is.
    ///
    /// # Errors
    /// Fails if the log's thread cannot be started.
    pub fn start(filter: EnvFilter, ansi: bool) -> io::Result<Self> {
        if let Some(log) = started() {
            return Ok(log.clone());
        }
        let log = Self::to(StandardError)?;
        vital::report_to(STARTED.get_or_init(|| log.clone()));
        let events = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(ansi)
            .fmt_fields(format::debug_fn(write_field).delimited(" "))
            // The subscriber would write these to standard error itself, and panic if that fails.
            .log_internal_errors(false)
            .with_writer(log.clone());
        // Fails if the program that embeds the node has its own subscriber, which then stays in use.
        let _ = events.try_init();
        Ok(log)
    }

    fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (messages, received) = crossbeam_channel::bounded(LINES_MAX);
        let state = Arc::new(State::new());
        let writer = LineWriter { output, state: Arc::clone(&state), unsaid: 0, is_torn: false };
        vital::spawn_log_thread(move || writer.run(&received))?;
        Ok(Self { messages, state })
    }

    /// Queues a line of any text, or drops it if the queue is full. Never blocks.
    pub fn line(&self, text: &str) {
        self.put([text.as_bytes(), b"\n"].concat());
    }

    fn put(&self, bytes: Vec<u8>) {
        let (len, state) = (bytes.len(), &*self.state);
        let has_room = state.queued_bytes.fetch_add(len, Ordering::Relaxed) + len <= BYTES_MAX;
        let lost = state.dropped.swap(0, Ordering::Relaxed);
        if !has_room || self.messages.try_send(Message::Line { bytes, lost }).is_err() {
            state.queued_bytes.fetch_sub(len, Ordering::Relaxed);
            state.dropped.fetch_add(lost + 1, Ordering::Relaxed);
            state.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Restricts the log's thread to these cores.
    pub fn stay_on(&self, cores: Vec<CoreId>) {
        // If the queue is full, the thread's cores stay as they are.
        let _ = self.messages.try_send(Message::StayOn(cores));
    }

    /// Waits until all queued lines are written, for a second at most. For a normal end of the process.
    pub fn finish(&self) {
        self.flush(FINISH_MAX);
    }

    fn flush(&self, time_max: Duration) {
        let deadline = Instant::now() + time_max;
        let (done, is_done) = crossbeam_channel::bounded(1);
        if self.messages.send_deadline(Message::Flush(done), deadline).is_ok() {
            let _ = is_done.recv_deadline(deadline);
        }
    }
}

impl PanicLog for NodeLog {
    fn line(&self, text: &str) {
        Self::line(self, text);
    }

    fn last_words(&self, text: &str) {
        self.line(text);
        self.flush(LAST_WORDS_MAX);
    }
}

/// Each event arrives as one write.
impl Write for &NodeLog {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.put(event.to_vec());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for NodeLog {
    type Writer = &'a NodeLog;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

/// Writes a field of an event. Its text may be a tenant's or a client's, so it is made printable.
fn write_field(to: &mut Formatted<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = indented(format!("{value:?}"), TEXT_BYTES_MAX);
    match field.name() {
        "message" => to.write_str(&text),
        // These fields name the place in a library's source.
        name if name.starts_with("log.") => Ok(()),
        name => write!(to, "{name}={text}"),
    }
}

impl State {
    fn new() -> Self {
        Self {
            started: Instant::now(),
            queued_bytes: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            writing_since_ms: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    fn failed(&self, failure: Option<String>) {
        if failure.is_some() || self.is_failing.load(Ordering::Relaxed) {
            self.is_failing.store(failure.is_some(), Ordering::Relaxed);
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        }
    }

    fn status(&self) -> LogStatus {
        let lost_lines = self.lost.load(Ordering::Relaxed);
        let waits_ms = match self.writing_since_ms.load(Ordering::Relaxed) {
            0 => 0,
            since => self.now_ms().saturating_sub(since),
        };
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let warning = match failure {
            _ if u128::from(waits_ms) >= STALL.as_millis() => Some(format!(
                "the node's log: standard error has taken nothing for {} s, and {lost_lines} lines are lost so far: read it, or send it to a \
                 file",
                waits_ms / 1000
            )),
            Some(failure) => Some(format!(
                "the node's log: standard error cannot be written ({failure}), and {lost_lines} lines are lost so far: make room where it \
                 goes, or send it elsewhere"
            )),
            None => None,
        };
        LogStatus { lost_lines, warning }
    }
}

/// The thread's side of the log.
struct LineWriter<W> {
    output: W,
    state: Arc<State>,
    /// Lost lines that the log does not report yet.
    unsaid: u64,
    /// The last line was written only in part.
    is_torn: bool,
}

impl<W: Write> LineWriter<W> {
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = match self.unsaid {
                0 => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => messages.recv_timeout(RETRY),
            };
            match message {
                Ok(Message::Line { bytes, lost }) => {
                    self.unsaid += lost;
                    self.line(&bytes);
                    self.state.queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                }
                Ok(Message::StayOn(cores)) => stay_on(&cores),
                Ok(Message::Flush(done)) => {
                    self.say_dropped();
                    let _ = done.try_send(());
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.say_lost();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if messages.is_empty() {
                self.say_dropped();
            }
        }
    }

    fn line(&mut self, bytes: &[u8]) {
        if !self.say_lost() || !self.put(bytes) {
            self.unsaid += 1;
            self.state.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reports lines that were lost because the queue was full: the next line, which would report them, may not come for long.
    fn say_dropped(&mut self) {
        if self.state.dropped.load(Ordering::Relaxed) > 0 {
            self.unsaid += self.state.dropped.swap(0, Ordering::Relaxed);
            self.say_lost();
        }
    }

    /// Writes how many lines are missing at this point, if any are. Returns whether all lost lines are reported.
    fn say_lost(&mut self) -> bool {
        if self.unsaid == 0 {
            return true;
        }
        let failure = self.state.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let why = failure.map_or_else(
            || "it was not read in time".to_owned(),
            |failure| format!("it could not be written: {failure}"),
        );
        let mut line = String::new();
        let _ = SystemTime.format_time(&mut Formatted::new(&mut line));
        line.push_str(&format!("  WARN {}: {} lines of this log are lost here: {why}\n", module_path!(), self.unsaid));
        let is_said = self.put(line.as_bytes());
        if is_said {
            self.unsaid = 0;
        }
        is_said
    }

    fn put(&mut self, bytes: &[u8]) -> bool {
        self.state.writing_since_ms.store(self.state.now_ms(), Ordering::Relaxed);
        let written = self.write(bytes);
        self.state.writing_since_ms.store(0, Ordering::Relaxed);
        let is_written = written.is_ok();
        self.state.failed(written.err().map(|error| printable(error.to_string(), NAME_BYTES_MAX)));
        is_written
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.output.write_all(b"\n")?;
            self.is_torn = false;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.output.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Standard error, written without the lock of [`std::io::stderr`].
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match rustix::io::write(stderr.as_fd(), bytes) {
                // Another process that shares the file description has made it non-blocking.
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?;
                }
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
