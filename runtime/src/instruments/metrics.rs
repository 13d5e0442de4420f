//! Functions' counters and gauges, read from their memories while they are suspended.
//!
//! ```text
//!   worker    an FWP has had a turn: its reading is due 100 ms later, unless one is due already (Rounds)
//!             reading due, or FWP released: its values --copied--> Readings      shared with those who report them
//! ```
//!
//! The contract bounds what a function declares, and so what is read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use pinion_abi::{METRIC_TEXT_BYTES_MAX, MetricText};
use pinion_builder_client::metrics::Metric;
use pinion_text::{SENTENCE_BYTES_MAX, printable};

/// The shortest time between two readings of an FWP, unless it ends.
const INTERVAL_NS: u64 = 100_000_000;
/// FWPs read per poll.
const READS: usize = 4;

const TEXT_WORDS: usize = size_of::<MetricText>() / 8;

/// The values of an FWP's metrics when they were last read. Only its worker writes here; a reader gets values of one point in time.
///
/// After the values, one word each, follow the labels that change, `TEXT_WORDS` each.
pub struct Readings {
    metrics: Arc<[Arc<Metric>]>,
    /// Odd while the worker writes.
    version: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl Readings {
    /// Creates the readings of an FWP with these metrics, which was not read yet.
    #[must_use]
    pub fn new(metrics: &Arc<[Arc<Metric>]>) -> Self {
        let texts = metrics.iter().filter(|metric| metric.text.is_some()).count();
        let words = (0..metrics.len() + texts * TEXT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { metrics: Arc::clone(metrics), version: AtomicU64::new(0), words }
    }

    /// Reads all metrics; `word` returns the word of the FWP's memory at an address. Bounded by the contract: a few hundred words.
    pub(crate) fn take(&self, word: impl Fn(u32) -> u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let values = self.metrics.iter().map(|metric| metric.value);
        let texts = self.metrics.iter().filter_map(|metric| metric.text.as_ref());
        let of_texts = texts.flat_map(|text| (0..TEXT_WORDS as u32).map(|at| text.address + at * 8));
        for (to, from) in self.words.iter().zip(values.chain(of_texts)) {
            to.store(word(from), Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// Returns the words of one point in time.
    fn words(&self) -> Vec<u64> {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let words = self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
            fence(Ordering::Acquire);
            // Retries are rare: the worker writes for less than a microsecond, ten times a second.
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return words;
            }
            std::hint::spin_loop();
        }
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> &[Arc<Metric>] {
        &self.metrics
    }

    /// Returns each metric with its value, except metrics with an empty changing label.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&Arc<Metric>, Option<String>, u64)> {
        let words = self.words();
        let mut texts = self.metrics.len();
        self.metrics.iter().enumerate().filter_map(move |(at, metric)| {
            let text = metric.text.as_ref().map(|_| {
                texts += TEXT_WORDS;
                shown(&words[texts - TEXT_WORDS..texts])
            });
            (text.as_deref() != Some("")).then(|| (metric, text, words[at]))
        })
    }
}

/// Returns a [`MetricText`] in a form that may be shown.
fn shown(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).min(METRIC_TEXT_BYTES_MAX);
    printable(&bytes[4..4 + len as usize], SENTENCE_BYTES_MAX)
}

/// Which of a worker's FWPs are to be read, and when. Allocates all of its memory at creation.
pub(crate) struct Rounds {
    /// The next one first, by index among the node's FWPs.
    due: VecDeque<(u64, u32)>,
    is_due: Box<[bool]>,
}

impl Rounds {
    /// Creates an empty schedule for FWPs of index below `fwps_max`.
    pub(crate) fn new(fwps_max: usize) -> Self {
        Self { due: VecDeque::with_capacity(fwps_max), is_due: vec![false; fwps_max].into() }
    }

    /// Notes that the FWP of this index has had a turn.
    #[inline]
    pub(crate) fn ran(&mut self, index: u32, now_ns: u64) {
        if !std::mem::replace(&mut self.is_due[index as usize], true) {
            self.due.push_back((now_ns + INTERVAL_NS, index));
        }
    }

    /// Returns when the next reading is due.
    #[inline]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        Some(self.due.front()?.0)
    }

    /// Takes the FWPs that are due, a few at most.
    pub(crate) fn take(&mut self, now_ns: u64) -> impl Iterator<Item = u32> {
        let next = move || {
            let (_, index) = self.due.pop_front_if(|(due_ns, _)| *due_ns <= now_ns)?;
            self.is_due[index as usize] = false;
            Some(index)
        };
        std::iter::from_fn(next).take(READS)
    }
}

#[cfg(test)]
mod tests {
    use pinion_builder_client::metrics::{Kind, TextLabel};

    use super::*;

    /// Returns a gauge at 0 with its changing label at 8.
    fn top() -> Arc<[Arc<Metric>]> {
        let text = Some(TextLabel { name: "who".into(), address: 8 });
        let (name, help) = ("top".into(), "Help.".into());
        [Arc::new(Metric { kind: Kind::Gauge, name, help, labels: Vec::new(), value: 0, text })].into()
    }

    #[test]
    fn a_reader_during_a_write_gets_values_of_one_point_in_time() {
        let readings = Readings::new(&top());
        std::thread::scope(|scope| {
            scope.spawn(|| (0..200_000).for_each(|round| readings.take(|_| round)));
            for _ in 0..20_000 {
                let words = readings.words();
                assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
            }
        });
    }

    #[test]
    fn a_changing_label_may_hold_any_bytes_and_is_shown_as_text() {
        let bytes = |len: u32, text: &[u8]| {
            let mut bytes = [&len.to_le_bytes(), text].concat();
            bytes.resize(TEXT_WORDS * 8, 0);
            super::shown(&bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect::<Vec<_>>())
        };
        assert_eq!(bytes(3, b"abcd"), "abc");
        assert_eq!(bytes(u32::MAX, &[b'a'; 124]), "a".repeat(124));
        assert_eq!(bytes(4, b"a\n\xff\""), "a\\n\u{fffd}\"");
    }

    #[test]
    fn a_busy_fwp_is_read_ten_times_a_second() {
        let mut rounds = Rounds::new(8);
        let mut reads = 0;
        for now_ns in (0..1_000_000_000).step_by(1_000_000) {
            rounds.ran(3, now_ns);
            reads += rounds.take(now_ns).count();
        }
        assert_eq!(reads, 9);
        assert_eq!(rounds.next_ns(), Some(1_009_000_000));
        for index in 0..8 {
            rounds.ran(index, 2_000_000_000);
        }
        let taken = |rounds: &mut Rounds| rounds.take(5_000_000_000).collect::<Vec<_>>();
        assert_eq!(
            [taken(&mut rounds), taken(&mut rounds), taken(&mut rounds)],
            [vec![3, 0, 1, 2], vec![4, 5, 6, 7], vec![]]
        );
    }
}
