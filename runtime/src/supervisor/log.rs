//! The supervisor's lines in the node's log: on standard error, unless that takes none now.

use std::io;
use std::os::fd::AsFd;

use jiff::Timestamp;
use pinion_text::{SENTENCE_BYTES_MAX, printable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Writes a line in the form of the node's log. A reader that does not read must not hold up the supervisor, so the line is lost then.
pub(super) fn say(text: &str) {
    let stderr = io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0) {
        let line = format!("{:.6}  WARN supervisor: {}\n", Timestamp::now(), printable(text, SENTENCE_BYTES_MAX));
        let _ = rustix::io::write(stderr.as_fd(), line.as_bytes());
    }
}
