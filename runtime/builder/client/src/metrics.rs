//! A guest's declaration of its counters and gauges: reads it from the guest's memory, and checks it.
//!
//! The builder does this when a template is made, so that the tenant learns of errors. The node checks again what the builder reports, and
//! reads the declaration itself if a guest has no snapshot. All of it may be hostile: every length has a limit, and every address is
//! compared with the memory's size.

use std::collections::HashSet;
use std::ops::Range;

use pinion_abi::{
    METRIC_HELP_BYTES_MAX, METRIC_LABELS_BYTES_MAX, METRIC_LABELS_MAX, METRIC_LABELS_RESERVED, METRIC_NAME_BYTES_MAX,
    METRIC_TEXTS_MAX, METRICS_MAGIC, METRICS_MAX, MetricEntry, MetricKind, MetricText, MetricsHeader, PoolHeader,
};
use serde::{Deserialize, Serialize};

/// The suffix of a counter's name in a series.
const TOTAL: &str = "_total";
const VALUE_BYTES: u32 = 8;
const TEXT_BYTES: u32 = size_of::<MetricText>() as u32;

/// What is wrong with a guest's metrics: a sentence that names the first bad one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its pinion_metrics is unusable: {0}")]
pub struct BadMetrics(String);

/// Whether a metric only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// It only grows, and is summed over all past and present instances.
    Counter,
    /// It may fall, and is summed over present instances.
    Gauge,
}

/// A counter or a gauge of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Counter or gauge.
    pub kind: Kind,
    /// Its name; a counter's without `_total`.
    pub name: String,
    /// What it counts.
    pub help: String,
    /// Its labels and their values.
    pub labels: Vec<(String, String)>,
    /// Address of its value in the guest's memory, 8 bytes.
    pub value: u32,
    /// A label with a value that the guest changes; only gauges have one.
    pub text: Option<TextLabel>,
}

/// A label with a value that the guest changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextLabel {
    /// Its name.
    pub name: String,
    /// Address of its value in the guest's memory, a [`MetricText`].
    pub address: u32,
}

/// Reads the metrics that a guest describes at this address, and checks them.
///
/// # Errors
/// The first error in them.
pub fn read(memory: &[u8], address: u32, pool: &PoolHeader) -> Result<Vec<Metric>, BadMetrics> {
    let outside = || BadMetrics(format!("it names {address:#x}, which is outside its memory"));
    let [magic, count, entries, _] =
        words::<{ size_of::<MetricsHeader>() / 4 }>(memory, address).ok_or_else(outside)?;
    if magic != METRICS_MAGIC {
        return Err(BadMetrics(format!("it names {magic:#010x} where a header starts with {METRICS_MAGIC:#010x}")));
    }
    if count > METRICS_MAX {
        return Err(BadMetrics(format!("it has {count} metrics, and a function may have {METRICS_MAX}")));
    }
    let metric = |number: u32| {
        let at = entries.checked_add(number * size_of::<MetricEntry>() as u32);
        let words = at.and_then(|at| words(memory, at));
        let words = words.ok_or_else(|| BadMetrics(format!("metric {number} is outside its memory")))?;
        Entry { memory, number, words }.metric()
    };
    let metrics: Vec<Metric> = (0..count).map(metric).collect::<Result<_, _>>()?;
    check(&metrics, pool, memory.len() as u64)?;
    Ok(metrics)
}

/// An entry, as it lies in memory.
struct Entry<'m> {
    memory: &'m [u8],
    number: u32,
    words: [u32; size_of::<MetricEntry>() / 4],
}

impl Entry<'_> {
    fn metric(&self) -> Result<Metric, BadMetrics> {
        let [kind, value, name, name_len, help, help_len, labels, labels_len, text, _] = self.words;
        let kind = match kind {
            kind if kind == MetricKind::Counter as u32 => Kind::Counter,
            kind if kind == MetricKind::Gauge as u32 => Kind::Gauge,
            other => return Err(self.wrong(format_args!("{other} is no kind of metric"))),
        };
        let name = self.text("name", name, name_len, METRIC_NAME_BYTES_MAX)?;
        let name = if kind == Kind::Counter { name.strip_suffix(TOTAL).unwrap_or(name) } else { name };
        let help = self.text("help", help, help_len, METRIC_HELP_BYTES_MAX)?;
        let lines = self.text("labels", labels, labels_len, METRIC_LABELS_BYTES_MAX)?;
        let mut labels: Vec<(String, String)> = Vec::new();
        let mut changes = None;
        for line in lines.split('\n').filter(|_| !lines.is_empty()) {
            match line.split_once('=') {
                Some((label, value)) if changes.is_none() => labels.push((label.to_owned(), value.to_owned())),
                None if text != 0 && changes.is_none() => changes = Some(line.to_owned()),
                _ => return Err(self.wrong(format_args!("its label {line:?} has to be NAME=VALUE"))),
            }
        }
        let text = match (text, changes) {
            (0, _) => None,
            (address, Some(name)) => Some(TextLabel { name, address }),
            (_, None) => return Err(self.wrong(format_args!("the label that changes has no name"))),
        };
        Ok(Metric { kind, name: name.to_owned(), help: help.to_owned(), labels, value, text })
    }

    fn text(&self, what: &str, at: u32, len: u32, max: u32) -> Result<&str, BadMetrics> {
        if len > max {
            return Err(self.wrong(format_args!("its {what} has {len} bytes, and {max} are the most")));
        }
        let bytes = self.memory.get(at as usize..).and_then(|from| from.get(..len as usize));
        let bytes = bytes.ok_or_else(|| self.wrong(format_args!("its {what} at {at:#x} is outside its memory")))?;
        str::from_utf8(bytes).map_err(|error| self.wrong(format_args!("its {what} is no text: {error}")))
    }

    fn wrong(&self, what: impl std::fmt::Display) -> BadMetrics {
        BadMetrics(format!("metric {}: {what}", self.number))
    }
}

/// Checks metrics against Prometheus' rules, and their addresses against a memory of this size.
///
/// # Errors
/// The first error in them.
pub fn check(metrics: &[Metric], pool: &PoolHeader, memory_bytes: u64) -> Result<(), BadMetrics> {
    let texts = metrics.iter().filter(|metric| metric.text.is_some()).count();
    if metrics.len() > METRICS_MAX as usize || texts > METRIC_TEXTS_MAX as usize {
        return Err(BadMetrics(format!(
            "it has {} metrics and {texts} labels that change, and a function may have {METRICS_MAX} and {METRIC_TEXTS_MAX}",
            metrics.len()
        )));
    }
    let slots_end = u64::from(pool.slots) + u64::from(pool.slot_count) * u64::from(pool.slot_size);
    let places = MemoryLayout { memory_bytes, slots: pool.slots.into()..slots_end };
    let mut series = HashSet::new();
    for (number, metric) in metrics.iter().enumerate() {
        let wrong = |what: String| BadMetrics(format!("metric {number} ({:?}): {what}", metric.name));
        metric.check_words().map_err(wrong)?;
        places.check("value", metric.value, VALUE_BYTES, 8).map_err(wrong)?;
        if let Some(text) = &metric.text {
            places.check("label that changes", text.address, TEXT_BYTES, 4).map_err(wrong)?;
        }
        let mut labels: Vec<_> = metric.labels.iter().collect();
        labels.sort();
        if !series.insert((&metric.name, metric.kind, labels)) {
            return Err(wrong("there is another of the same name and labels".to_owned()));
        }
    }
    Ok(())
}

impl Metric {
    fn check_words(&self) -> Result<(), String> {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !is_word(&self.name, |c| first(c) || c == ':') {
            return Err("a name is made of letters, digits, _ and :, and begins with no digit".to_owned());
        }
        if self.kind == Kind::Gauge && self.name.ends_with(TOTAL) {
            return Err("a gauge's name does not end in _total, which is how counters' do".to_owned());
        }
        if self.kind == Kind::Counter && self.text.is_some() {
            return Err("a label of a counter does not change".to_owned());
        }
        if let Some(bad) = self.help.chars().find(|c| c.is_control()) {
            return Err(format!("its help has {bad:?} in it"));
        }
        let names = self.labels.iter().map(|(name, _)| name).chain(self.text.iter().map(|text| &text.name));
        let names: Vec<&String> = names.collect();
        if names.len() > METRIC_LABELS_MAX as usize {
            return Err(format!("it has {} labels, and {METRIC_LABELS_MAX} are the most", names.len()));
        }
        for (number, name) in names.iter().enumerate() {
            if !is_word(name, first) || name.starts_with("__") {
                return Err(format!(
                    "label {name:?}: a name is made of letters, digits and _, and begins with no digit, nor with __"
                ));
            }
            if METRIC_LABELS_RESERVED.contains(&name.as_str()) {
                return Err(format!("label {name:?} is the node's own"));
            }
            if names[..number].contains(name) {
                return Err(format!("label {name:?} is there twice"));
            }
        }
        match self.labels.iter().find(|(_, value)| value.chars().any(char::is_control)) {
            Some((name, value)) => Err(format!("label {name:?}: {value:?} has a control character in it")),
            None => Ok(()),
        }
    }
}

/// Returns whether `name` is a valid name; `first` says which characters may begin it.
fn is_word(name: &str, first: impl Fn(char) -> bool) -> bool {
    name.len() <= METRIC_NAME_BYTES_MAX as usize
        && name.starts_with(&first)
        && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// Where metrics may lie.
struct MemoryLayout {
    memory_bytes: u64,
    /// The MMA writes here while the guest is suspended.
    slots: Range<u64>,
}

impl MemoryLayout {
    fn check(&self, what: &str, address: u32, bytes: u32, align: u32) -> Result<(), String> {
        let (start, end) = (u64::from(address), u64::from(address) + u64::from(bytes));
        if end > self.memory_bytes {
            return Err(format!("its {what} at {address:#x} is outside its memory"));
        }
        if !address.is_multiple_of(align) {
            return Err(format!("its {what} at {address:#x} has to be at a multiple of {align}"));
        }
        if start < self.slots.end && self.slots.start < end {
            return Err(format!("its {what} at {address:#x} is in a slot of its pool"));
        }
        Ok(())
    }
}

/// Returns `COUNT` words at an address, if they are within the memory.
fn words<const COUNT: usize>(memory: &[u8], address: u32) -> Option<[u32; COUNT]> {
    let bytes = memory.get(address as usize..)?.get(..COUNT * 4)?;
    let mut words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    Some(std::array::from_fn(|_| words.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolHeader = PoolHeader {
        magic: 0,
        slot_count: 2,
        slot_size: 1600,
        slots: 8192,
        ring_entries: 2,
        rx_ring: 0,
        tx_ring: 0,
        own_slots: 0,
    };
    const ENTRY: [u32; 10] = [1, 512, 600, 4, 700, 4, 800, 9, 0, 0];

    /// Returns a memory with these entries; the texts of the first are at 600, 700 and 800.
    fn memory(entries: &[[u32; 10]], texts: [&str; 3]) -> Vec<u8> {
        let mut memory = vec![0; 65536];
        let header = [METRICS_MAGIC, entries.len() as u32, 32, 0];
        for (at, word) in header.iter().chain(entries.iter().flatten()).enumerate() {
            let at = if at < 4 { 16 + at * 4 } else { 32 + (at - 4) * 4 };
            memory[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        for (at, text) in [600, 700, 800].into_iter().zip(texts) {
            memory[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        memory
    }

    fn refusal(entry: [u32; 10], texts: [&str; 3]) -> String {
        read(&memory(&[entry], texts), 16, &POOL).map_or_else(|bad| bad.to_string(), |_| "taken".to_owned())
    }

    const TEXTS: [&str; 3] = ["hits", "Hits", "way=inner"];

    #[test]
    fn a_counter_and_a_gauge_are_read_as_they_were_written() {
        let gauge = [2, 520, 600, 4, 700, 4, 800, 13, 1024, 0];
        let metrics = read(&memory(&[ENTRY, gauge], ["hits", "Hits", "way=inner\nwho"]), 16, &POOL).unwrap();
        let labels = vec![("way".to_owned(), "inner".to_owned())];
        let counter = Metric {
            kind: Kind::Counter,
            name: "hits".into(),
            help: "Hits".into(),
            labels: labels.clone(),
            value: 512,
            text: None,
        };
        let text = Some(TextLabel { name: "who".into(), address: 1024 });
        let gauge = Metric { kind: Kind::Gauge, value: 520, text, ..counter.clone() };
        assert_eq!(metrics, [counter, gauge]);
    }

    #[test]
    fn a_counters_total_suffix_is_not_added_twice() {
        let metrics = read(&memory(&[[1, 512, 600, 10, 0, 0, 0, 0, 0, 0]], ["hits_total", "", ""]), 16, &POOL).unwrap();
        assert_eq!(metrics[0].name, "hits");
    }

    #[test]
    fn every_error_names_what_is_wrong() {
        let with = |at: usize, word: u32| {
            let mut entry = ENTRY;
            entry[at] = word;
            entry
        };
        let gauge = |at: usize, word: u32| {
            let mut entry = [2, 520, 600, 4, 700, 4, 800, 13, 1024, 0];
            entry[at] = word;
            entry
        };
        let cases = [
            (with(0, 3), TEXTS, "metric 0: 3 is no kind of metric"),
            (with(1, 65532), TEXTS, "its value at 0xfffc is outside its memory"),
            (with(1, u32::MAX), TEXTS, "its value at 0xffffffff is outside its memory"),
            (with(1, 516), TEXTS, "its value at 0x204 has to be at a multiple of 8"),
            (with(1, 8184 + 8), TEXTS, "its value at 0x2000 is in a slot of its pool"),
            (with(3, 65), TEXTS, "its name has 65 bytes, and 64 are the most"),
            (with(2, u32::MAX), TEXTS, "its name at 0xffffffff is outside its memory"),
            (with(5, 257), TEXTS, "its help has 257 bytes"),
            (with(7, 513), TEXTS, "its labels has 513 bytes"),
            (with(8, 1024), TEXTS, "the label that changes has no name"),
            (ENTRY, ["1hit", "Hits", "way=inner"], "(\"1hit\"): a name is made of letters"),
            (ENTRY, ["hi{}", "Hits", "way=inner"], "(\"hi{}\"): a name is made of letters"),
            (ENTRY, ["hits", "Hi\ns", "way=inner"], "its help has '\\n' in it"),
            (ENTRY, ["hits", "Hits", "way inner"], "its label \"way inner\" has to be NAME=VALUE"),
            (ENTRY, ["hits", "Hits", "tenant=ab"], "label \"tenant\" is the node's own"),
            (ENTRY, ["hits", "Hits", "__a=inner"], "label \"__a\": a name is made of"),
            (ENTRY, ["hits", "Hits", "a=in\nb\"=r"], "label \"b\\\"\": a name is made of"),
            (ENTRY, ["hits", "Hits", "a=i\na=ner"], "label \"a\" is there twice"),
            (ENTRY, ["hits", "Hits", "a=in\u{1b}ner"], "has a control character in it"),
            (gauge(8, 65500), ["hits", "Hits", "way=inner\nwho"], "its label that changes at 0xffdc is outside"),
            (gauge(8, 8000), ["hits", "Hits", "way=inner\nwho"], "taken"),
            (gauge(8, 8068), ["hits", "Hits", "way=inner\nwho"], "at 0x1f84 is in a slot of its pool"),
            (gauge(0, 1), ["hits", "Hits", "way=inner\nwho"], "a label of a counter does not change"),
            (gauge(3, 6), ["_total", "Hits", "way=inner\nwho"], "a gauge's name does not end in _total"),
        ];
        for (entry, texts, expected) in cases {
            let refusal = refusal(entry, texts);
            assert!(refusal.contains(expected), "{refusal:?} does not say {expected:?}");
        }
    }

    #[test]
    fn two_equal_series_are_refused_and_series_that_differ_in_a_label_are_not() {
        let other = [1, 512, 600, 4, 700, 4, 800, 0, 0, 0];
        assert!(read(&memory(&[ENTRY, other], TEXTS), 16, &POOL).is_ok());
        let alike = read(&memory(&[ENTRY, ENTRY], TEXTS), 16, &POOL).unwrap_err();
        assert!(alike.to_string().contains("metric 1 (\"hits\"): there is another"), "{alike}");
    }

    #[test]
    fn an_invalid_header_and_too_many_metrics_are_refused() {
        assert!(read(&[0; 64], 16, &POOL).unwrap_err().to_string().contains("it names 0x00000000 where a header"));
        assert!(read(&[0; 64], 60, &POOL).unwrap_err().to_string().contains("it names 0x3c, which is outside"));
        let mut many = memory(&[ENTRY], TEXTS);
        many[20..24].copy_from_slice(&129_u32.to_le_bytes());
        assert!(read(&many, 16, &POOL).unwrap_err().to_string().contains("it has 129 metrics"));
        many[20..24].copy_from_slice(&2_u32.to_le_bytes());
        many[24..28].copy_from_slice(&65496_u32.to_le_bytes());
        assert!(read(&many, 16, &POOL).unwrap_err().to_string().contains("metric 0: 0 is no kind"));
        many[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read(&many, 16, &POOL).unwrap_err().to_string().contains("metric 0 is outside its memory"));
    }
}
