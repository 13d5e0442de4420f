//! `ping`, the client that everybody has.

use std::process::Command;

use crate::namespace::Namespace;
use crate::process::{errors, output};

/// How one `ping` went.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Answers that came more than once.
    pub duplicates: u64,
    /// Errors that others reported.
    pub errors: u64,
    /// Mean time to an answer; none if there was none.
    pub mean_ms: Option<f64>,
}

impl Summary {
    /// The one that says: each of `count` requests was answered once.
    ///
    /// # Panics
    /// If it says anything else.
    #[track_caller]
    pub fn assert_all(&self, count: u64) {
        let counted = (self.sent, self.received, self.duplicates, self.errors);
        assert_eq!(counted, (count, count, 0, 0), "sent, received, duplicates and errors of {count} pings");
    }
}

/// How long a flood may take.
const FLOOD_SECONDS: u64 = 120;

/// Runs `ping` in a namespace, with these words. After the last request it waits for twice the longest time an answer took, and no
/// less than the interval of `-i`: that should be longer than a busy machine may let anybody wait.
///
/// # Panics
/// If it can't be run or doesn't understand the words; an unanswered request is no reason.
#[track_caller]
#[must_use]
pub fn ping(from: &Namespace, words: &str) -> Summary {
    summary(from.command("ping").args(words.split_whitespace()))
}

/// `count` requests, each sent as soon as the one before is answered, or after 10 ms. If the last answer is late, it sends more until it has
/// `count`: without, it would wait for twice the longest time an answer took, which is less than a busy machine lets a thread wait.
///
/// # Panics
/// If `ping` can't be run.
#[track_caller]
#[must_use]
pub fn flood(from: &Namespace, to: &str, count: u64) -> Summary {
    ping(from, &format!("-f -q -c {count} -w {FLOOD_SECONDS} {to}"))
}

/// One request that needs no answer.
///
/// # Panics
/// If `ping` can't be run.
#[track_caller]
pub fn poke(from: &Namespace, to: &str) {
    let _ = ping(from, &format!("-q -c 1 -W 0.1 {to}"));
}

#[track_caller]
fn summary(command: &mut Command) -> Summary {
    let output = output(command);
    let text = String::from_utf8_lossy(&output.stdout);
    let summary = text.lines().find(|line| line.contains(" packets transmitted, ")).map(|line| parse(line, &text));
    summary.flatten().unwrap_or_else(|| panic!("{command:?} gave no summary: {text}{}", errors(&output)))
}

/// `3 packets transmitted, 2 received, +1 duplicates, 33% packet loss, time 402ms`
fn parse(counts: &str, text: &str) -> Option<Summary> {
    let count = |what: &str| -> Option<u64> {
        let part = counts.split(", ").find_map(|part| part.trim().strip_suffix(what))?;
        part.trim().trim_start_matches('+').parse().ok()
    };
    let mean = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    Some(Summary {
        sent: count("packets transmitted")?,
        received: count("received")?,
        duplicates: count("duplicates").unwrap_or(0),
        errors: count("errors").unwrap_or(0),
        mean_ms: mean.and_then(|times| times.split('/').nth(1)?.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_with_and_without_its_rare_parts() {
        let counts = "3 packets transmitted, 2 received, +1 duplicates, +4 errors, 33% packet loss, time 402ms";
        let text = format!("PING\n{counts}\nrtt min/avg/max/mdev = 0.021/0.025/0.030/0.001 ms, ipg/ewma 0.1/0.0 ms\n");
        let expected = Summary { sent: 3, received: 2, duplicates: 1, errors: 4, mean_ms: Some(0.025) };
        assert_eq!(parse(counts, &text), Some(expected));
        let counts = "1 packets transmitted, 0 received, 100% packet loss, time 0ms";
        let expected = Summary { sent: 1, received: 0, duplicates: 0, errors: 0, mean_ms: None };
        assert_eq!(parse(counts, counts), Some(expected));
    }
}
