use std::collections::VecDeque;
use std::sync::Condvar;

use super::*;

/// An output that accepts as much as the test allows.
#[derive(Clone, Default)]
struct Output(Arc<(Mutex<Outcome>, Condvar)>);

#[derive(Default)]
struct Outcome {
    written: Vec<u8>,
    /// Whether writes block.
    blocks: bool,
    /// The results of the next writes. Further writes succeed.
    next: VecDeque<Result<usize, io::ErrorKind>>,
    /// The error of all writes after these, if they are to fail.
    fails: Option<io::ErrorKind>,
}

impl Output {
    fn change(&self, change: impl FnOnce(&mut Outcome)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn written(&self) -> String {
        String::from_utf8(self.0.0.lock().unwrap().written.clone()).unwrap()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut outcome = self.0.1.wait_while(self.0.0.lock().unwrap(), |outcome| outcome.blocks).unwrap();
        let taken = match outcome.next.pop_front() {
            Some(Ok(count)) => count.min(bytes.len()),
            Some(Err(kind)) => return Err(kind.into()),
            None => match outcome.fails {
                Some(kind) => return Err(kind.into()),
                None => bytes.len(),
            },
        };
        outcome.written.extend(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_to(output: &Output) -> NodeLog {
    NodeLog::to(output.clone()).unwrap()
}

/// Waits until all queued lines are written; blocks for ever if they never are.
fn settle(log: &NodeLog) {
    let (done, is_done) = crossbeam_channel::bounded(1);
    log.messages.send(Message::Flush(done)).unwrap();
    is_done.recv().unwrap();
}

/// Returns the lines, without time and module path of those that the log adds.
fn lines(output: &Output) -> Vec<String> {
    let line = |line: &str| line.split_once("node_log: ").map_or(line, |(_, said)| said).to_owned();
    output.written().lines().map(line).collect()
}

#[test]
fn lines_are_written_in_their_order() {
    let output = Output::default();
    let log = log_to(&output);
    ["one", "two", "three"].iter().for_each(|line| log.line(line));
    settle(&log);
    assert_eq!(output.written(), "one\ntwo\nthree\n");
    assert_eq!(log.state.status(), LogStatus::default());
}

#[test]
fn an_interrupted_or_partial_write_is_continued() {
    let output = Output::default();
    output.change(|outcome| outcome.next = [Ok(1), Err(io::ErrorKind::Interrupted), Ok(1)].into());
    let log = log_to(&output);
    log.line("one");
    settle(&log);
    assert_eq!(output.written(), "one\n");
}

#[test]
fn lines_that_cannot_be_written_are_counted_and_reported_once_writes_succeed() {
    let output = Output::default();
    output.change(|outcome| outcome.fails = Some(io::ErrorKind::StorageFull));
    let log = log_to(&output);
    (0..3).for_each(|number| log.line(&format!("lost {number}")));
    settle(&log);
    let LogStatus { lost_lines, warning } = log.state.status();
    assert_eq!(lost_lines, 3);
    assert!(warning.unwrap().contains("cannot be written (no storage space), and 3 lines are lost so far"));
    output.change(|outcome| outcome.fails = None);
    log.line("back");
    settle(&log);
    assert_eq!(
        lines(&output),
        ["3 lines of this log are lost here: it could not be written: no storage space", "back"]
    );
    assert_eq!(log.state.status(), LogStatus { lost_lines: 3, warning: None });
}

#[test]
fn a_line_that_was_written_in_part_is_ended_before_the_next() {
    let output = Output::default();
    output.change(|outcome| outcome.next = [Ok(2), Err(io::ErrorKind::StorageFull)].into());
    let log = log_to(&output);
    log.line("torn");
    log.line("whole");
    settle(&log);
    let found = lines(&output);
    assert_eq!((&*found[0], &*found[2], found.len()), ("to", "whole", 3), "{found:?}");
}

#[test]
fn an_output_that_accepts_nothing_blocks_no_thread_that_logs() {
    let output = Output::default();
    output.change(|outcome| outcome.blocks = true);
    let log = log_to(&output);
    // One line may be with the thread; the queue is full of others.
    let count = LINES_MAX as u64 + 10;
    (0..count).for_each(|number| log.line(&number.to_string()));
    let lost = log.state.status().lost_lines;
    assert!((9..=10).contains(&lost), "{lost}");
    log.last_words("and one more");
    assert_eq!(log.state.status().lost_lines, lost + 1);
    output.change(|outcome| outcome.blocks = false);
    settle(&log);
    let found = lines(&output);
    assert_eq!(found.len() as u64, count - lost + 1);
    assert_eq!(
        found.last().unwrap(),
        &format!("{} lines of this log are lost here: it was not read in time", lost + 1)
    );
}

#[test]
fn lost_lines_are_reported_where_they_would_have_been() {
    let output = Output::default();
    output.change(|outcome| outcome.blocks = true);
    let log = log_to(&output);
    (0..LINES_MAX + 1).for_each(|_| log.line("kept"));
    while log.state.status().lost_lines == 0 {
        log.line("too much");
    }
    output.change(|outcome| outcome.blocks = false);
    while !log.messages.is_empty() {
        std::thread::yield_now();
    }
    log.line("later");
    settle(&log);
    let found = lines(&output);
    let place = found.iter().position(|line| line.contains("are lost here")).unwrap();
    assert!(found[..place].iter().all(|line| line == "kept" || line == "too much"));
    assert_eq!(found.last().unwrap(), "later");
}

#[test]
fn long_lines_are_bounded_by_bytes() {
    let output = Output::default();
    output.change(|outcome| outcome.blocks = true);
    let log = log_to(&output);
    let long = "x".repeat(BYTES_MAX / 4);
    (0..10).for_each(|_| log.line(&long));
    assert!(log.state.status().lost_lines >= 6, "{:?}", log.state.status());
    output.change(|outcome| outcome.blocks = false);
    settle(&log);
    assert_eq!(log.state.queued_bytes.load(Ordering::Relaxed), 0);
    log.line("and then");
    settle(&log);
    assert!(output.written().ends_with("\nand then\n"));
}

#[test]
fn a_write_that_takes_long_is_a_warning() {
    let state = State::new();
    state.writing_since_ms.store(state.now_ms(), Ordering::Relaxed);
    assert_eq!(state.status().warning, None);
    let state = State { started: Instant::now().checked_sub(Duration::from_secs(7)).unwrap(), ..State::new() };
    state.writing_since_ms.store(1, Ordering::Relaxed);
    assert!(state.status().warning.unwrap().contains("has taken nothing for 7 s"));
}

#[test]
fn text_of_events_cannot_begin_a_line_or_control_a_terminal() {
    let output = Output::default();
    let log = log_to(&output);
    let events = tracing_subscriber::fmt()
        .with_ansi(false)
        .fmt_fields(format::debug_fn(write_field).delimited(" "))
        .log_internal_errors(false)
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::with_default(events, || {
        let foreign = "a\u{1b}[2J\nERROR forged\r\u{202e}\u{2028}";
        tracing::warn!(count = 3, %foreign, text = foreign, "it says {foreign}");
    });
    settle(&log);
    let written = output.written();
    assert!(written.chars().all(|c| pinion_text::is_printable(c) || c == '\n'), "{written:?}");
    assert_eq!(written.lines().filter(|line| !line.starts_with("    ")).count(), 1, "{written}");
    assert!(written.contains("it says a\\u{1b}[2J\n    ERROR forged\\r\\u{202e}\\u{2028} count=3 "), "{written}");
}
