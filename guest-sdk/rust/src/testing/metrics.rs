//! The fake node's metrics: refuses what a node would refuse, and reads the values.

use std::collections::HashSet;

use pinion_abi::{
    METRIC_HELP_BYTES_MAX, METRIC_LABELS_BYTES_MAX, METRIC_LABELS_MAX, METRIC_LABELS_RESERVED, METRIC_NAME_BYTES_MAX,
    METRIC_TEXTS_MAX, METRICS_MAX, MetricKind,
};

use crate::metrics::Declared;

/// A function's metrics.
pub(super) struct Metrics(Vec<Declared>);

impl Metrics {
    /// Takes the metrics that were declared since the last call, on this thread.
    ///
    /// # Panics
    ///
    /// If a node would refuse them.
    pub(super) fn take() -> Self {
        let metrics = crate::metrics::take();
        let texts = metrics.iter().filter(|metric| metric.text.is_some()).count();
        assert!(
            metrics.len() <= METRICS_MAX as usize && texts <= METRIC_TEXTS_MAX as usize,
            "{} metrics, {texts} of them with a label that changes: a function may have {METRICS_MAX} and {METRIC_TEXTS_MAX}",
            metrics.len()
        );
        let mut series = HashSet::new();
        for metric in &metrics {
            check(metric);
            let mut labels: Vec<&str> = metric.labels.lines().collect();
            labels.sort_unstable();
            // All counters are shown with that suffix.
            let name = match metric.kind {
                MetricKind::Counter => metric.name.strip_suffix("_total").unwrap_or(&metric.name),
                MetricKind::Gauge => &metric.name,
            };
            let is_new = series.insert((name, metric.kind as u32, labels));
            assert!(is_new, "metric {}: there is another of the same name and labels", metric.name);
        }
        Self(metrics)
    }

    /// Returns each metric with its labels and its value.
    pub(super) fn values(&self) -> impl Iterator<Item = Value> {
        self.0.iter().filter_map(|metric| {
            let text = metric.text.as_ref().map(|text| text.value());
            let label = |line: &str| match line.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (line.to_owned(), text.clone().unwrap_or_default()),
            };
            let labels = metric.labels.lines().map(label).collect();
            let is_shown = text.as_deref() != Some("");
            is_shown.then(|| Value { name: metric.name.clone(), labels, value: metric.value.get() as i64 })
        })
    }
}

/// A metric's name, labels and value.
#[derive(Clone, Debug)]
pub(super) struct Value {
    name: String,
    labels: Vec<(String, String)>,
    value: i64,
}

impl Value {
    /// Returns the value of the metric with this name and these labels, in any order.
    pub(super) fn find(mut values: impl Iterator<Item = Self>, name: &str, labels: &[(&str, &str)]) -> Option<i64> {
        let is_it = |value: &Self| {
            let has =
                |(name, wanted): &(&str, &str)| value.labels.iter().any(|label| label.0 == *name && label.1 == *wanted);
            value.name == name && value.labels.len() == labels.len() && labels.iter().all(has)
        };
        values.find(is_it).map(|value| value.value)
    }
}

fn check(metric: &Declared) {
    let Declared { kind, name, help, labels, .. } = metric;
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    assert!(
        is_word(name, |c| first(c) || c == ':'),
        "metric {name:?}: a name must consist of letters, digits, _ and :"
    );
    let is_gauge = *kind == MetricKind::Gauge;
    assert!(!is_gauge || !name.ends_with("_total"), "metric {name}: a gauge's name must not end in _total");
    assert!(
        help.len() <= METRIC_HELP_BYTES_MAX as usize,
        "metric {name}: its help is over {METRIC_HELP_BYTES_MAX} bytes"
    );
    assert!(!help.contains(char::is_control), "metric {name}: its help must be one line");
    assert!(
        labels.len() <= METRIC_LABELS_BYTES_MAX as usize && labels.lines().count() <= METRIC_LABELS_MAX as usize,
        "metric {name}: {METRIC_LABELS_MAX} labels of {METRIC_LABELS_BYTES_MAX} bytes together are the most"
    );
    let mut names = HashSet::new();
    for line in labels.lines() {
        let label = line.split_once('=').map_or(line, |(label, _)| label);
        assert!(
            is_word(label, first) && !label.starts_with("__"),
            "metric {name}: label {label:?}: a name must consist of letters, digits and _, and must not begin with __"
        );
        assert!(!METRIC_LABELS_RESERVED.contains(&label), "metric {name}: label {label:?} is reserved for the node");
        assert!(names.insert(label), "metric {name}: label {label:?} is there twice");
    }
}

fn is_word(word: &str, first: impl Fn(char) -> bool) -> bool {
    word.len() <= METRIC_NAME_BYTES_MAX as usize
        && word.starts_with(&first)
        && word.chars().all(|c| first(c) || c.is_ascii_digit())
}
