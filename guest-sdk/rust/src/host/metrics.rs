//! Counters and gauges that the node shows: `pinion metrics` prints them for Prometheus, with the tenant, chain, stage and module of each.
//!
//! They are declared in [`Function::init`](crate::Function::init), once for all instances. Counting costs no call of the node: it writes to
//! a word of the function's own memory, which the node reads ten times a second, and when the instance ends. The node adds up a counter
//! over all instances that have ever existed, and a gauge over those that exist.
//!
//! ```
//! use pinion_sdk::metrics::{Counter, Gauge};
//! use pinion_sdk::testing::Harness;
//! use pinion_sdk::{InitError, Packet, PacketFunction};
//!
//! /// Counts short frames and other frames, and passes all.
//! struct Count {
//!     short: Counter,
//!     other: Counter,
//!     longest: Gauge,
//! }
//!
//! impl PacketFunction for Count {
//!     fn init(_config: &[u8]) -> Result<Self, InitError> {
//!         let frames = |length| Counter::with_labels("frames", "Frames that have passed.", &[("length", length)]);
//!         Ok(Self {
//!             short: frames("short"),
//!             other: frames("other"),
//!             longest: Gauge::new("longest_bytes", "The longest frame so far."),
//!         })
//!     }
//!
//!     fn handle(&mut self, packet: Packet<'_>) {
//!         let frames = if packet.len() <= 64 { &self.short } else { &self.other };
//!         frames.increment();
//!         self.longest.set(self.longest.value().max(packet.len() as i64));
//!         packet.send();
//!     }
//! }
//!
//! pinion_sdk::export!(Count);
//!
//! let mut harness = Harness::<Count>::new(b"").unwrap();
//! harness.deliver(&[&[0; 60], &[0; 60], &[0; 1000]]);
//! assert_eq!(harness.metric("frames", &[("length", "short")]), Some(2));
//! assert_eq!(harness.metric("longest_bytes", &[]), Some(1000));
//! ```
//!
//! A node shows, for a chain `web` of a tenant `demo`:
//!
//! ```text
//! # HELP pinion_function_frames_total Frames that have passed.
//! # TYPE pinion_function_frames_total counter
//! pinion_function_frames_total{tenant="demo",chain="web",stage="0",module="count",length="short"} 2
//! ```
//!
//! Names and labels follow Prometheus' rules, and the labels `tenant`, `chain`, `stage` and `module` are reserved for the node. A function
//! may have 128 metrics. If a metric breaks these rules, the node refuses the function when it is built into a template, and names the
//! metric; in a test, [`Harness::new`](crate::testing::Harness::new) panics.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::sync::atomic::{Ordering, compiler_fence};
use std::rc::Rc;

use pinion_abi::{METRIC_TEXT_BYTES_MAX, MetricKind};

const TEXT_BYTES_MAX: usize = METRIC_TEXT_BYTES_MAX as usize;

thread_local! {
    static DECLARED: RefCell<Vec<Declared>> = const { RefCell::new(Vec::new()) };
    /// Set when the node, or a fake one, has read the declarations: it would not see later ones.
    static IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// A declared metric.
#[cfg_attr(not(target_family = "wasm"), derive(Debug))]
pub(crate) struct Declared {
    pub(crate) kind: MetricKind,
    pub(crate) name: String,
    pub(crate) help: String,
    /// In the contract's format: one per line.
    pub(crate) labels: String,
    pub(crate) value: Rc<Cell<u64>>,
    pub(crate) text: Option<Rc<Text>>,
}

/// A label's value that changes, as the contract lays it out.
#[repr(C, align(4))]
#[derive(Debug)]
pub(crate) struct Text {
    len: Cell<u32>,
    bytes: Cell<[u8; TEXT_BYTES_MAX]>,
}

impl Text {
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn value(&self) -> String {
        String::from_utf8_lossy(&self.bytes.get()[..self.len.get() as usize]).into_owned()
    }
}

/// A number that only grows.
#[derive(Clone)]
pub struct Counter {
    value: Rc<Cell<u64>>,
}

impl Counter {
    /// Declares a counter without labels, which starts at 0. Its name needs no `_total` at its end: the node appends that to the series.
    ///
    /// # Panics
    ///
    /// If it is not called in [`Function::init`](crate::Function::init); so for all functions that declare a metric.
    #[must_use]
    pub fn new(name: &str, help: &str) -> Self {
        Self::with_labels(name, help, &[])
    }

    /// Declares one of several counters with this name, with these labels, each a name and a value.
    ///
    /// # Panics
    ///
    /// As [`Counter::new`].
    #[must_use]
    pub fn with_labels(name: &str, help: &str, labels: &[(&str, &str)]) -> Self {
        Self { value: declare(MetricKind::Counter, name, help, encoded(labels), None) }
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.value.set(self.value.get().wrapping_add(count));
    }

    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Returns this instance's count.
    #[inline]
    #[must_use]
    pub fn value(&self) -> u64 {
        self.value.get()
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counter").field(&self.value()).finish()
    }
}

/// A number that goes up and down.
#[derive(Clone)]
pub struct Gauge {
    value: Rc<Cell<u64>>,
}

impl Gauge {
    /// Declares a gauge without labels, which starts at 0. Its name must not end in `_total`.
    ///
    /// # Panics
    ///
    /// As [`Counter::new`].
    #[must_use]
    pub fn new(name: &str, help: &str) -> Self {
        Self::with_labels(name, help, &[])
    }

    /// Declares one of several gauges with this name, with these labels, each a name and a value.
    ///
    /// # Panics
    ///
    /// As [`Counter::new`].
    #[must_use]
    pub fn with_labels(name: &str, help: &str, labels: &[(&str, &str)]) -> Self {
        Self { value: declare(MetricKind::Gauge, name, help, encoded(labels), None) }
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, value: i64) {
        self.value.set(value as u64);
    }

    /// Adds to the value, or subtracts from it.
    #[inline]
    pub fn add(&self, difference: i64) {
        self.value.set(self.value.get().wrapping_add(difference as u64));
    }

    /// Returns the value in this instance.
    #[inline]
    #[must_use]
    pub fn value(&self) -> i64 {
        self.value.get() as i64
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauge").field(&self.value()).finish()
    }
}

/// A gauge with one label that changes: for example, the name of the client that a number is about, such as one of those that send most.
///
/// Each value that the label ever has is a series of its own to Prometheus. So use it for what lasts for minutes, not for each new client.
/// A function may have 32 of these gauges. To make sums meaningful, give each a further label for its rank:
///
/// ```
/// use pinion_sdk::metrics::NamedGauge;
/// use pinion_sdk::testing::Harness;
/// use pinion_sdk::{Batch, Function, InitError};
///
/// /// Shows the length of the last batch's last frame, and its first byte.
/// struct Last(NamedGauge);
///
/// impl Function for Last {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self(NamedGauge::new("last_bytes", "The last frame of a batch.", &[("rank", "1")], "began_with")))
///     }
///
///     fn handle(&mut self, batch: Batch<'_>) {
///         for packet in batch {
///             self.0.set(&format!("{:02x}", packet.data()[0]), packet.len() as i64);
///         }
///     }
/// }
///
/// let mut harness = Harness::<Last>::new(b"").unwrap();
/// assert_eq!(harness.metric("last_bytes", &[("rank", "1"), ("began_with", "07")]), None);
/// harness.deliver(&[&[7; 60]]);
/// assert_eq!(harness.metric("last_bytes", &[("rank", "1"), ("began_with", "07")]), Some(60));
/// ```
pub struct NamedGauge {
    value: Rc<Cell<u64>>,
    text: Rc<Text>,
}

impl NamedGauge {
    /// Declares a gauge with these labels and one more, called `label`, that changes. The gauge is not shown until it is set.
    ///
    /// # Panics
    ///
    /// As [`Counter::new`].
    #[must_use]
    pub fn new(name: &str, help: &str, labels: &[(&str, &str)], label: &str) -> Self {
        let text = Rc::new(Text { len: Cell::new(0), bytes: Cell::new([0; TEXT_BYTES_MAX]) });
        let mut lines = encoded(labels);
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(label);
        Self { value: declare(MetricKind::Gauge, name, help, lines, Some(Rc::clone(&text))), text }
    }

    /// Sets label and value. Keeps the first 124 bytes of the label. An empty label has the effect of [`NamedGauge::clear`].
    pub fn set(&self, label: &str, value: i64) {
        // The node may read at any time: it sees the old label, an empty one, or the new one.
        self.clear();
        let kept = &label.as_bytes()[..label.floor_char_boundary(TEXT_BYTES_MAX)];
        let mut bytes = [0; TEXT_BYTES_MAX];
        bytes[..kept.len()].copy_from_slice(kept);
        self.text.bytes.set(bytes);
        self.value.set(value as u64);
        compiler_fence(Ordering::SeqCst);
        self.text.len.set(kept.len() as u32);
    }

    /// Hides the gauge until it is set again.
    pub fn clear(&self) {
        self.text.len.set(0);
        compiler_fence(Ordering::SeqCst);
    }
}

impl fmt::Debug for NamedGauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NamedGauge").field(&(self.value.get() as i64)).finish_non_exhaustive()
    }
}

fn declare(kind: MetricKind, name: &str, help: &str, labels: String, text: Option<Rc<Text>>) -> Rc<Cell<u64>> {
    assert!(!IS_TOLD.get(), "metric {name}: a function declares its metrics when it is initialised");
    let value = Rc::new(Cell::new(0));
    let (name, help) = (name.to_owned(), help.to_owned());
    DECLARED.with_borrow_mut(|all| all.push(Declared { kind, name, help, labels, value: Rc::clone(&value), text }));
    value
}

/// Returns one line per label. A control character in a value is replaced by a space, so that it cannot end the line.
fn encoded(labels: &[(&str, &str)]) -> String {
    let mut lines = String::new();
    for (name, value) in labels {
        if !lines.is_empty() {
            lines.push('\n');
        }
        lines.push_str(name);
        lines.push('=');
        lines.extend(value.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    lines
}

/// Writes the declarations in the contract's layout, which stays in memory for good. Returns the address of the header.
#[cfg(target_family = "wasm")]
pub(crate) fn publish() -> u32 {
    use pinion_abi::{METRICS_MAGIC, MetricEntry, MetricsHeader};

    fn address<T: ?Sized>(place: &T) -> u32 {
        core::ptr::from_ref(place).cast::<u8>().expose_provenance() as u32
    }
    IS_TOLD.set(true);
    let entry = |declared: &Declared| MetricEntry {
        kind: declared.kind as u32,
        value: declared.value.as_ptr().expose_provenance() as u32,
        name: address(declared.name.as_str()),
        name_len: declared.name.len() as u32,
        help: address(declared.help.as_str()),
        help_len: declared.help.len() as u32,
        labels: address(declared.labels.as_str()),
        labels_len: declared.labels.len() as u32,
        text: declared.text.as_deref().map_or(0, address),
        reserved: 0,
    };
    let entries: Box<[MetricEntry]> = DECLARED.with_borrow(|all| all.iter().map(entry).collect());
    let (count, entries) = (entries.len() as u32, address(Box::leak(entries)));
    let header = MetricsHeader { magic: METRICS_MAGIC, count, entries, reserved: 0 };
    address(Box::leak(Box::new(header)))
}

/// Returns what was declared since the last call, on this thread.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn take() -> Vec<Declared> {
    DECLARED.take()
}

/// Runs `work` with declarations disabled, as on a node after `pinion_init`.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn told<R>(work: impl FnOnce() -> R) -> R {
    struct Untold;
    impl Drop for Untold {
        fn drop(&mut self) {
            IS_TOLD.set(false);
        }
    }
    IS_TOLD.set(true);
    let _untold = Untold;
    work()
}
