//! A fake node, so that `cargo test` of a function needs neither Wasm nor Pinion. Native targets only.
//!
//! [`Harness`], or [`LoopHarness`] for a [`Looping`](crate::Looping) function, drives the same pool, rings and batches as a node, and
//! checks the function's transmit descriptors as a node would. Log, clock and random bytes belong to the test's thread. [`Frame`] makes
//! the frames, and [`Chain`] runs several functions as the stages of a chain.

use core::time::Duration;

use pinion_abi::{
    CLOCK_STEP_NS, LogLevel, MESSAGE_ETHERTYPE, MESSAGE_HEADER_BYTES, MESSAGE_TOKEN_AT, MESSAGE_VERSION,
    MESSAGE_VERSION_AT, RX_BACKWARD, RX_FORWARD, RX_REPLY, STATE_VALUE_BYTES_MAX,
};

#[cfg(feature = "pcap")]
mod capture;
mod chain;
mod flows;
mod frame;
mod loops;
mod metrics;
mod slots;

use crate::functions::guest;
use crate::host::{calls, finished};
use crate::packets::pool::{PoolMemory, SLOT_COUNT_DEFAULT};
use crate::{Direction, Function, InitError};

#[cfg(feature = "pcap")]
pub use capture::{Capture, Captured};
pub use chain::{Chain, Departure, Edge, Exit};
pub use flows::{FlowNode, closed, opened, refused};
pub use frame::{Address, Frame};
pub use loops::LoopHarness;
use metrics::{Metrics, Value};
use slots::{Described, NodeSlots};

/// The function's decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Sent along the chain, by the first output.
    Sent,
    /// Sent by an output other than the first.
    SentTo(u16),
    /// Sent back out of its ingress port.
    Replied,
    /// Dropped, explicitly or by going out of scope.
    Dropped,
    /// Not handled: the function had [finished](crate::finish) before.
    InstanceEnded,
}

/// The result for one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The frame's index among those delivered together; `None` if the function made the packet.
    pub frame: Option<usize>,
    /// The function's decision on it.
    pub outcome: Outcome,
    /// The port of its [way](crate::Way): the ingress port of its frame, or of the packet whose way a made packet was given. A reply leaves
    /// by this port.
    pub ingress_port: u16,
    /// The direction of its way; `None` in a chain without a way back.
    pub direction: Option<Direction>,
    /// A node would [complete](crate::Packet::complete_checksums) its checksums. Here they are as the function left them.
    pub completes_checksums: bool,
    /// The frame as the function left it.
    pub bytes: Vec<u8>,
}

impl Verdict {
    /// Returns the verdict on a frame that came when the function had finished.
    fn gone(frame: usize, described: &Described, bytes: Vec<u8>) -> Self {
        let (ingress_port, direction) = (described.ingress_port, described.direction());
        Self {
            frame: Some(frame),
            outcome: Outcome::InstanceEnded,
            ingress_port,
            direction,
            completes_checksums: false,
            bytes,
        }
    }
}

/// Makes a message as a node does, with a test's token.
///
/// # Panics
///
/// If the payload is longer than [`crate::PAYLOAD_BYTES_MAX`].
#[must_use]
pub fn message(payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() <= crate::PAYLOAD_BYTES_MAX, "a payload of {} bytes is no message's", payload.len());
    let mut frame = vec![0; MESSAGE_HEADER_BYTES];
    frame[12..14].copy_from_slice(&MESSAGE_ETHERTYPE.to_be_bytes());
    frame[MESSAGE_VERSION_AT] = MESSAGE_VERSION;
    frame[MESSAGE_TOKEN_AT..MESSAGE_TOKEN_AT + 8].copy_from_slice(b"a token!");
    frame.extend_from_slice(payload);
    frame
}

/// Returns the payload of an answer to a [`message`].
///
/// # Panics
///
/// If it is not an answer: it lacks the message's token, so a node would drop it.
#[must_use]
pub fn payload(answer: &[u8]) -> &[u8] {
    let token = answer.get(MESSAGE_TOKEN_AT..MESSAGE_TOKEN_AT + 8);
    assert_eq!(token, Some(&b"a token!"[..]), "this answers no message of a test's");
    &answer[MESSAGE_HEADER_BYTES..]
}

/// A function on a fake node, in a chain that gives it every possible output.
///
/// ```
/// use pinion_sdk::{Batch, Function, InitError};
/// use pinion_sdk::testing::{Harness, Outcome};
///
/// struct Mirror;
///
/// impl Function for Mirror {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///     fn handle(&mut self, batch: Batch<'_>) {
///         for mut packet in batch {
///             packet.data_mut().reverse();
///             packet.reply();
///         }
///     }
/// }
///
/// let mut harness = Harness::<Mirror>::new(b"").unwrap();
/// let verdicts = harness.deliver(&[&[1, 2, 3], &[4, 5]]);
/// assert_eq!(verdicts[0].outcome, Outcome::Replied);
/// assert_eq!(verdicts[0].bytes, [3, 2, 1]);
/// assert_eq!(verdicts[1].bytes, [5, 4]);
/// ```
pub struct Harness<F> {
    memory: Box<PoolMemory<SLOT_COUNT_DEFAULT>>,
    /// The fake node's own record.
    slots: NodeSlots,
    finished: bool,
    metrics: Metrics,
    function: F,
}

impl<F: Function> Harness<F> {
    /// Prepares and starts the function as a node does.
    ///
    /// # Errors
    ///
    /// The function refuses the configuration.
    ///
    /// # Panics
    ///
    /// If the function declares [metrics](crate::metrics) that a node would refuse.
    pub fn new(config: &[u8]) -> Result<Self, InitError> {
        crate::metrics::take();
        let mut function = calls::initialising(|| F::init(config))?;
        let metrics = Metrics::take();
        finished::take();
        calls::forget_keep_alive();
        crate::metrics::told(|| function.start());
        let finished = finished::take();
        let (memory, slots) = (Box::new(PoolMemory::new()), NodeSlots::new(F::OWN_SLOTS));
        Ok(Self { memory, slots, finished, metrics, function })
    }

    /// Delivers frames from port 0. Returns the function's decisions, in the order in which it made them.
    ///
    /// # Panics
    ///
    /// If a frame does not fit into a slot, or the function transmits a descriptor for which a node would end it.
    pub fn deliver(&mut self, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_from(0, frames)
    }

    /// Delivers frames from the port with this index.
    ///
    /// # Panics
    ///
    /// As [`Harness::deliver`].
    pub fn deliver_from(&mut self, ingress_port: u16, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(&Described { ingress_port, ..Described::default() }, frames)
    }

    /// Delivers frames from port 0 that came so many nanoseconds ago, and have waited since.
    ///
    /// # Panics
    ///
    /// As [`Harness::deliver`].
    pub fn deliver_late(&mut self, waited_ns: u64, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(&Described { waited_ns, ..Described::default() }, frames)
    }

    /// Delivers frames with a device's checksum results: see the `RX_` bits of a descriptor.
    ///
    /// # Panics
    ///
    /// As [`Harness::deliver`].
    pub fn deliver_checked(&mut self, flags: u16, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(&Described { flags, ..Described::default() }, frames)
    }

    /// Delivers frames in this direction of a chain with a way back, from the port with this index.
    ///
    /// # Panics
    ///
    /// As [`Harness::deliver`].
    pub fn deliver_direction(&mut self, direction: Direction, ingress_port: u16, frames: &[&[u8]]) -> Vec<Verdict> {
        let flags = direction_flag(direction);
        self.deliver_described(&Described { ingress_port, flags, ..Described::default() }, frames)
    }

    /// Delivers frames that another stage has sent as replies to packets from that port.
    ///
    /// # Panics
    ///
    /// As [`Harness::deliver`].
    pub fn deliver_reply(&mut self, direction: Direction, ingress_port: u16, frames: &[&[u8]]) -> Vec<Verdict> {
        let flags = direction_flag(direction) | RX_REPLY;
        self.deliver_described(&Described { ingress_port, flags, ..Described::default() }, frames)
    }

    fn deliver_described(&mut self, described: &Described, frames: &[&[u8]]) -> Vec<Verdict> {
        let mut pool = self.memory.open(F::OWN_SLOTS);
        let mut verdicts = Vec::with_capacity(frames.len());
        let mut number = 0;
        while number < frames.len() && !self.finished {
            let returned = self.slots.give_back(&pool);
            let mut fresh = 0;
            while number < frames.len() && self.slots.publish(&mut pool, described, number, frames[number]) {
                number += 1;
                fresh += 1;
            }
            assert!(fresh > 0, "the function holds all {} slots for ever", self.slots.lent());
            let left = crate::metrics::told(|| guest::serve(&mut self.function, &pool, returned + fresh));
            self.finished = finished::take();
            self.slots.collect(&mut pool, &mut verdicts);
            number -= left.min(fresh) as usize;
        }
        verdicts.extend((number..frames.len()).map(|frame| Verdict::gone(frame, described, frames[frame].to_vec())));
        verdicts
    }

    /// Lets time pass on this thread's [`clock`](crate::clock), and calls the function at each [deadline](Function::deadline_ns) within it.
    /// Returns the function's decisions on packets that it held.
    ///
    /// Time stands still while the function runs. A deadline that has already passed is due in the clock's next step.
    ///
    /// # Panics
    ///
    /// As [`Harness::deliver`].
    pub fn let_pass_ns(&mut self, duration_ns: u64) -> Vec<Verdict> {
        let until_ns = calls::exact_clock_ns() + duration_ns;
        let mut verdicts = Vec::new();
        while let Some(due_ns) = self.due_ns().filter(|at_ns| *at_ns <= until_ns) {
            calls::advance_clock_ns(due_ns - calls::exact_clock_ns());
            let mut pool = self.memory.open(F::OWN_SLOTS);
            let returned = self.slots.give_back(&pool);
            crate::metrics::told(|| guest::serve(&mut self.function, &pool, returned));
            self.finished = finished::take();
            self.slots.collect(&mut pool, &mut verdicts);
        }
        calls::advance_clock_ns(until_ns - calls::exact_clock_ns());
        verdicts
    }

    /// Returns when the function is called next, if no packets come.
    fn due_ns(&self) -> Option<u64> {
        if self.finished {
            return None;
        }
        due_ns(self.function.deadline_ns()?)
    }

    /// Returns whether the function has [finished](crate::finish): it gets no more frames.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Returns the value of the metric with this name and these labels, including a gauge's label that changes. `None` if there is no such
    /// metric.
    #[must_use]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<i64> {
        Value::find(self.metrics.values(), name, labels)
    }

    /// Returns the function.
    pub fn function(&mut self) -> &mut F {
        &mut self.function
    }
}

/// Returns when a deadline is noticed: at a step of the clock, and later than now. `None` if that is never.
fn due_ns(deadline_ns: u64) -> Option<u64> {
    let next_step_ns = calls::clock_ns() + CLOCK_STEP_NS;
    Some(deadline_ns.checked_next_multiple_of(CLOCK_STEP_NS)?.max(next_step_ns))
}

fn direction_flag(direction: Direction) -> u16 {
    match direction {
        Direction::Forward => RX_FORWARD,
        Direction::Backward => RX_BACKWARD,
    }
}

/// What a [`FakeModel`] does with the bytes of its inputs: returns those of its outputs, or none if the run fails.
type FakeRun = Box<dyn Fn(&[Vec<u8>]) -> Option<Vec<Vec<u8>>>>;

/// A [model](crate::nn), as a test replaces it.
pub struct FakeModel {
    pub(crate) name: String,
    pub(crate) run: FakeRun,
}

impl FakeModel {
    /// Returns a model of this name whose outputs are what the closure makes of its inputs, in bytes. With none, the run fails.
    #[must_use]
    pub fn new(name: &str, run: impl Fn(&[Vec<u8>]) -> Option<Vec<Vec<u8>>> + 'static) -> Self {
        Self { name: name.to_owned(), run: Box::new(run) }
    }
}

/// Grants a model to the functions of this thread. One of the same name is replaced.
pub fn grant_model(model: FakeModel) {
    calls::grant_model(model);
}

/// How a [`FakeKey`] signs: returns the signature of a message by a scheme, or none if it refuses.
type FakeSign = Box<dyn Fn(u16, &[u8]) -> Option<Vec<u8>>>;

/// A [private key](crate::keys), as a test replaces it. What a node refuses to sign, a test's closure may sign.
pub struct FakeKey {
    pub(crate) name: String,
    pub(crate) sign: FakeSign,
}

impl FakeKey {
    /// Returns a key of this name that signs by the closure, from scheme and message.
    #[must_use]
    pub fn new(name: &str, sign: impl Fn(u16, &[u8]) -> Option<Vec<u8>> + 'static) -> Self {
        Self { name: name.to_owned(), sign: Box::new(sign) }
    }
}

/// Grants a key to the functions of this thread. One of the same name is replaced, and its tickets are still opened.
pub fn grant_key(key: FakeKey) {
    calls::grant_key(key);
}

/// A field of state, as a manifest declares it and grants it to the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateField {
    /// Its name.
    pub name: &'static str,
    /// The function may only read it.
    pub read_only: bool,
    /// The longest value, in bytes.
    pub value_bytes: usize,
    /// The most entries. A node may have room for more.
    pub entries: usize,
    /// The time to live of an entry after it was written.
    pub ttl: Option<Duration>,
    /// When the field is full, evicts the entry that was written longest ago. A node evicts the oldest of a few entries only.
    pub evicts: bool,
}

impl StateField {
    /// Makes a writable field with room for 1,000 entries of up to 1,024 bytes, which do not expire.
    #[must_use]
    pub fn writable(name: &'static str) -> Self {
        let (value_bytes, entries) = (STATE_VALUE_BYTES_MAX, 1000);
        Self { name, read_only: false, value_bytes, entries, ttl: None, evicts: false }
    }
}

/// Grants a field of [state](crate::state) to the functions of this thread. A field that is granted again, read-only for example, keeps its
/// entries.
///
/// ```
/// use pinion_sdk::state::{Field, StateError};
/// use pinion_sdk::testing::{StateField, grant_state};
///
/// grant_state(StateField::writable("blocked"));
/// let blocked = Field::open("blocked").unwrap();
/// blocked.put(b"10.0.0.1", b"yes").unwrap();
/// grant_state(StateField { read_only: true, ..StateField::writable("blocked") });
/// assert_eq!(blocked.get(b"10.0.0.1", &mut [0; 8]), Ok(Some(&b"yes"[..])));
/// assert_eq!(blocked.delete(b"10.0.0.1"), Err(StateError::Denied));
/// ```
pub fn grant_state(field: StateField) {
    calls::grant_state(field);
}

/// Returns the time until which this thread's function is [kept alive](crate::keep_alive_until), as granted. `None` if it has not asked, or
/// the time has passed.
#[must_use]
pub fn kept_until_ns() -> Option<u64> {
    calls::kept_until_ns()
}

/// Sets the operator's limit on keeping functions of this thread alive; by default a day.
pub fn set_keep_alive_max_ns(max_ns: u64) {
    calls::set_keep_alive_max_ns(max_ns);
}

/// Returns the lines logged on this thread since the last call.
///
/// ```
/// pinion_sdk::warn!("low on {}", "memory");
/// let log = pinion_sdk::testing::take_log();
/// assert_eq!(log, [(pinion_sdk::LogLevel::Warn, "low on memory".to_owned())]);
/// ```
#[must_use]
pub fn take_log() -> Vec<(LogLevel, String)> {
    calls::take_log()
}

/// Lets time pass on this thread's [`clock`](crate::clock).
///
/// ```
/// pinion_sdk::testing::advance_clock_ns(1_500);
/// assert_eq!(pinion_sdk::clock::now_ns(), 1_000, "in steps of a microsecond");
/// ```
pub fn advance_clock_ns(duration_ns: u64) {
    calls::advance_clock_ns(duration_ns);
}
