//! Runs `ping`.

use std::collections::BTreeSet;
use std::process::Command;

use crate::machine::process::{errors, output};
use crate::network::namespace::Namespace;

/// The results of one `ping`.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered.
    pub received: u64,
    /// Answers that came more than once.
    pub duplicates: u64,
    /// ICMP errors that came back.
    pub errors: u64,
    /// Shortest time to an answer; none if there was none.
    pub min_ms: Option<f64>,
    /// Mean time to an answer; none if there was none.
    pub mean_ms: Option<f64>,
    /// Sequence numbers of the answers, in their order; none if `ping` was told to be quiet.
    answered: Vec<u64>,
}

impl Summary {
    /// Checks that the first `count` requests were answered, each once, however late, and that no error was reported.
    ///
    /// # Panics
    /// If this is not so.
    #[track_caller]
    pub fn assert_all(&self, count: u64) {
        let answered: BTreeSet<u64> = self.answered.iter().copied().collect();
        let missing: Vec<u64> = (1..=count).filter(|number| !answered.contains(number)).collect();
        let Self { sent, duplicates, errors, .. } = self;
        assert!(
            missing.is_empty() && *duplicates == 0 && *errors == 0,
            "of {count} pings (sent {sent}) {} were not answered, with {duplicates} duplicates and {errors} errors: {missing:?}",
            missing.len()
        );
    }
}

/// The longest wait for answers, in seconds. Only a failing test waits as long.
const PATIENCE_SECONDS: u64 = 300;

/// Runs `ping` in a namespace, with these words. After the last request it waits for twice the longest time of an answer, and at least for
/// the interval of `-i`. Use it for requests that are not expected to be answered, and [`pings`] for the others.
///
/// # Panics
/// If it cannot be run or does not understand the words. An unanswered request is no reason to panic.
#[track_caller]
#[must_use]
pub fn ping(from: &Namespace, words: &str) -> Summary {
    summary(from.command("ping").args(words.split_whitespace()))
}

/// Runs `ping` with these words in a namespace until it has `count` answers, however late they come, or five minutes are over. It continues
/// to send meanwhile, so a lost request shows as a missing number among the first `count`.
///
/// # Panics
/// If `ping` cannot be run or does not understand the words.
#[track_caller]
#[must_use]
pub fn pings(from: &Namespace, count: u64, words: &str) -> Summary {
    ping(from, &format!("-c {count} -w {PATIENCE_SECONDS} {words}"))
}

/// As [`pings`], with each request sent as soon as the one before is answered or is late.
///
/// # Panics
/// If `ping` cannot be run.
#[track_caller]
#[must_use]
pub fn flood(from: &Namespace, to: &str, count: u64) -> Summary {
    pings(from, count, &format!("-A {to}"))
}

/// Sends one request and does not need an answer.
///
/// # Panics
/// If `ping` cannot be run.
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
    let times = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    let time_ms = |nth: usize| times.and_then(|times| times.split('/').nth(nth)?.parse().ok());
    Some(Summary {
        sent: count("packets transmitted")?,
        received: count("received")?,
        duplicates: count("duplicates").unwrap_or(0),
        errors: count("errors").unwrap_or(0),
        min_ms: time_ms(0),
        mean_ms: time_ms(1),
        answered: text.lines().filter_map(answer).collect(),
    })
}

/// `64 bytes from 10.77.0.2: icmp_seq=3 ttl=64 time=0.007 ms`
fn answer(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(" bytes from ")?.1.split_once("icmp_seq=")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "1 were not answered, with 0 duplicates and 0 errors: [2]")]
    fn a_missing_number_is_a_lost_request_though_a_later_one_was_answered() {
        let answers = [1, 3, 4].map(|number| format!("64 bytes from fd77::2: icmp_seq={number} ttl=64 time=9 ms"));
        let counts = "4 packets transmitted, 3 received, 25% packet loss, time 402ms";
        parse(counts, &answers.join("\n")).unwrap().assert_all(3);
    }

    #[test]
    fn a_summary_is_read_with_and_without_its_rare_parts() {
        let counts = "3 packets transmitted, 2 received, +1 duplicates, +4 errors, 33% packet loss, time 402ms";
        let answers = "64 bytes from 10.77.0.2: icmp_seq=1 ttl=64 time=0.025 ms\n64 bytes from 10.77.0.2: icmp_seq=3 ttl=64 time=0.02 ms (DUP!)";
        let text = format!(
            "PING\n{answers}\n{counts}\nrtt min/avg/max/mdev = 0.021/0.025/0.030/0.001 ms, ipg/ewma 0.1/0.0 ms\n"
        );
        let expected = Summary {
            sent: 3,
            received: 2,
            duplicates: 1,
            errors: 4,
            min_ms: Some(0.021),
            mean_ms: Some(0.025),
            answered: vec![1, 3],
        };
        assert_eq!(parse(counts, &text), Some(expected));
        let counts = "1 packets transmitted, 0 received, 100% packet loss, time 0ms";
        let expected =
            Summary { sent: 1, received: 0, duplicates: 0, errors: 0, min_ms: None, mean_ms: None, answered: vec![] };
        assert_eq!(parse(counts, counts), Some(expected));
    }
}
