//! Counters and gauges as a fake node sees them: what it shows, and what it refuses as a node does.

use pinion_sdk::metrics::{Counter, Gauge, NamedGauge};
use pinion_sdk::testing::Harness;
use pinion_sdk::{Batch, Function, InitError};

/// Declares what its configuration names, and counts frames by it.
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
fn a_node_sees_what_is_counted_by_name_and_labels() {
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

/// Declares a counter of this name with a label of that.
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
fn what_a_node_would_refuse_is_refused_by_name() {
    let many: Vec<String> = (0..129).map(|number| format!("a{number}")).collect();
    let cases = [
        ("1st", "metric \"1st\": a name is"),
        ("with-dash", "metric \"with-dash\": a name is"),
        ("a/tenant", "metric a: label \"tenant\" is the node's own"),
        ("a/__a", "metric a: label \"__a\": a name is"),
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
fn what_is_declared_later_would_be_seen_by_nobody() {
    let mut harness = Harness::<Declares>::new(b"a").unwrap();
    harness.deliver(&[&[0; 60]]);
}
