//! Counters and gauges on a fake node: the values it shows, and the declarations it refuses as a node does.

use pinion_sdk::metrics::{Counter, Gauge, NamedGauge};
use pinion_sdk::testing::Harness;
use pinion_sdk::{Batch, Function, InitError};

/// Declares a counter labelled by its configuration, and two gauges, and counts frames.
struct Counting {
    frames: Counter,
    last: NamedGauge,
    depth: Gauge,
}

impl Function for Counting {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).map_err(InitError::new)?;
        Ok(Self {
            frames: Counter::with_labels("frames", "Frames.", &[("name", text)]),
            last: NamedGauge::new("last_bytes", "The last frame.", &[], "began_with"),
            depth: Gauge::new("depth", "How deep."),
        })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            self.frames.increment();
            self.depth.add(-1);
            match packet.data()[0] {
                0 => self.last.clear(),
                first => self.last.set(&(first as char).to_string().repeat(200), packet.len() as i64),
            }
        }
    }
}

#[test]
fn a_node_sees_counts_by_name_and_labels() {
    let mut harness = Harness::<Counting>::new(b"x=1").unwrap();
    assert_eq!(harness.metric("frames", &[("name", "x=1")]), Some(0));
    harness.deliver(&[&[0; 60], &[0; 60]]);
    assert_eq!(harness.metric("frames", &[("name", "x=1")]), Some(2));
    assert_eq!(harness.metric("depth", &[]), Some(-2));
    assert_eq!(harness.metric("frames", &[]), None);
    assert_eq!(harness.metric("frames", &[("name", "x=2")]), None);
}

#[test]
fn a_label_that_changes_is_cut_and_not_shown_while_it_is_empty() {
    let mut harness = Harness::<Counting>::new(b"").unwrap();
    let label = "a".repeat(124);
    assert_eq!(harness.metric("last_bytes", &[("began_with", &label)]), None);
    harness.deliver(&[&[b'a'; 70]]);
    assert_eq!(harness.metric("last_bytes", &[("began_with", &label)]), Some(70));
    harness.deliver(&[&[0; 60]]);
    assert_eq!(harness.metric("last_bytes", &[("began_with", &label)]), None);
}

#[test]
fn a_value_cannot_bring_another_label() {
    let harness = Harness::<Counting>::new(b"a\ntenant=other").unwrap();
    assert_eq!(harness.metric("frames", &[("name", "a tenant=other")]), Some(0));
}

/// Declares counters with names and labels from its configuration.
struct Declares;

impl Function for Declares {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let text = str::from_utf8(config).map_err(InitError::new)?;
        for declared in text.split(' ') {
            let (name, label) = declared.split_once('/').unwrap_or((declared, "label"));
            let _ = Counter::with_labels(name, "", &[(label, "value")]);
        }
        Ok(Self)
    }

    fn handle(&mut self, _batch: Batch<'_>) {
        let _ = Counter::new("late", "");
    }
}

fn refusal(config: &str) -> String {
    let refused = std::panic::catch_unwind(|| Harness::<Declares>::new(config.as_bytes()).map(|_| ()).unwrap());
    *refused.expect_err("it is refused").downcast::<String>().expect("with a sentence")
}

#[test]
fn metrics_that_a_node_would_refuse_are_refused_by_name() {
    let many: Vec<String> = (0..129).map(|number| format!("a{number}")).collect();
    let cases = [
        ("1st", "metric \"1st\": a name must"),
        ("with-dash", "metric \"with-dash\": a name must"),
        ("a/tenant", "metric a: label \"tenant\" is reserved for the node"),
        ("a/__a", "metric a: label \"__a\": a name must"),
        ("a b a", "metric a: there is another of the same name and labels"),
        ("a a_total", "metric a_total: there is another of the same name and labels"),
        (&many.join(" "), "129 metrics"),
    ];
    for (config, expected) in cases {
        let refusal = refusal(config);
        assert!(refusal.contains(expected), "{refusal:?} does not say {expected:?}");
    }
}

#[test]
#[should_panic(expected = "metric late: a function declares its metrics when it is initialised")]
fn a_metric_cannot_be_declared_after_init() {
    let mut harness = Harness::<Declares>::new(b"a").unwrap();
    harness.deliver(&[&[0; 60]]);
}
