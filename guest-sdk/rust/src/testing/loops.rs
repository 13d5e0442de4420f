//! A fake node for functions with a loop of their own.
//!
//! ```text
//!   test's thread    LoopHarness --an order: frames, or time--> FakeNode, in the function's wait    function's thread
//!                                <--its decisions, once it waits without packets------
//! ```
//!
//! One of the two threads always waits for the other, so a test runs the same each time. Clock and log are the test's.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use pinion_abi::LogLevel;

use super::metrics::{Metrics, Value};
use super::slots::{Described, NodeSlots};
use super::{Verdict, due_ns};
use crate::functions::looping::Node;
use crate::host::{calls, finished};
use crate::packets::pool::{Pool, PoolMemory, SLOT_COUNT_DEFAULT};
use crate::{InitError, Io, Looping, metrics};

/// A command of the test.
enum Order {
    Deliver { described: Described, frames: Vec<Vec<u8>> },
    LetPass { until_ns: u64 },
}

/// The result of a command.
struct Answer {
    verdicts: Vec<Verdict>,
    log: Vec<(LogLevel, String)>,
    metrics: Vec<Value>,
    clock_ns: u64,
    /// Until when the function waits for packets at most.
    deadline_ns: Option<u64>,
    finished: bool,
}

/// The panic payload that ends a function's thread once its harness is gone.
struct Over;

/// Like [`Harness`](super::Harness), for a [`Looping`] function: it runs on a thread of its own, and gets frames and time while it waits.
///
/// ```
/// use pinion_sdk::testing::{LoopHarness, Outcome};
/// use pinion_sdk::{InitError, Io, Looping};
///
/// /// Sends three batches on, and then returns.
/// struct Three;
///
/// impl Looping for Three {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///
///     fn run(&mut self, io: &mut Io<'_>) {
///         for _ in 0..3 {
///             io.wait().for_each(pinion_sdk::Packet::send);
///         }
///     }
/// }
///
/// let mut harness = LoopHarness::<Three>::new(b"").unwrap();
/// for _ in 0..3 {
///     assert_eq!(harness.deliver(&[&[7; 60]])[0].outcome, Outcome::Sent);
/// }
/// assert!(harness.finished());
/// assert_eq!(harness.deliver(&[&[7; 60]])[0].outcome, Outcome::InstanceEnded);
/// ```
pub struct LoopHarness<F> {
    /// Dropped before the thread is joined.
    orders: Option<Sender<(u64, Order)>>,
    answers: Receiver<Result<Answer, InitError>>,
    thread: Option<JoinHandle<()>>,
    metrics: Vec<Value>,
    deadline_ns: Option<u64>,
    finished: bool,
    function: PhantomData<fn() -> F>,
}

impl<F: Looping> LoopHarness<F> {
    /// Prepares and starts the function as a node does, and runs it to its first wait.
    ///
    /// # Errors
    ///
    /// The function refuses the configuration.
    ///
    /// # Panics
    ///
    /// If the function panics, or declares metrics that a node would refuse.
    pub fn new(config: &[u8]) -> Result<Self, InitError> {
        let (orders, received) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let (config, clock_ns) = (config.to_owned(), calls::exact_clock_ns());
        let thread = thread::spawn(move || serve::<F>(&config, clock_ns, received, answer));
        let (orders, thread) = (Some(orders), Some(thread));
        let (metrics, deadline_ns, finished) = (Vec::new(), None, false);
        let mut harness = Self { orders, answers, thread, metrics, deadline_ns, finished, function: PhantomData };
        harness.answer()?;
        Ok(harness)
    }

    /// Delivers frames from port 0. Returns the function's decisions, in the order in which it made them, until it waits for more.
    ///
    /// # Panics
    ///
    /// If a frame does not fit into a slot, or the function panics or transmits a descriptor for which a node would end it.
    pub fn deliver(&mut self, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(&Described::default(), frames)
    }

    /// Delivers frames from the port with this index.
    ///
    /// # Panics
    ///
    /// As [`LoopHarness::deliver`].
    pub fn deliver_from(&mut self, ingress_port: u16, frames: &[&[u8]]) -> Vec<Verdict> {
        self.deliver_described(&Described { ingress_port, ..Described::default() }, frames)
    }

    pub(super) fn deliver_described(&mut self, described: &Described, frames: &[&[u8]]) -> Vec<Verdict> {
        let frames = frames.iter().map(|frame| frame.to_vec()).collect();
        self.order(Order::Deliver { described: *described, frames })
    }

    /// Lets time pass on this thread's [`clock`](crate::clock) and the function's. Returns the function's decisions at each deadline within
    /// it.
    ///
    /// Time stands still while the function runs. A deadline that has already passed is due in the clock's next step.
    ///
    /// # Panics
    ///
    /// As [`LoopHarness::deliver`].
    pub fn let_pass_ns(&mut self, duration_ns: u64) -> Vec<Verdict> {
        self.order(Order::LetPass { until_ns: calls::exact_clock_ns() + duration_ns })
    }

    /// Returns when the function's wait ends, if no packets come.
    pub(super) fn due_ns(&self) -> Option<u64> {
        due_ns(self.deadline_ns?)
    }

    /// Returns whether the function has returned: it gets no more frames.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Returns the value of the metric with this name and these labels: see [`Harness::metric`](super::Harness::metric).
    #[must_use]
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<i64> {
        Value::find(self.metrics.iter().cloned(), name, labels)
    }

    fn order(&mut self, order: Order) -> Vec<Verdict> {
        let order = (calls::exact_clock_ns(), order);
        if let Some(orders) = &self.orders {
            // Fails if the function has panicked, which `answer` reports.
            let _ = orders.send(order);
        }
        self.answer().expect("only its initialisation is refused")
    }

    fn answer(&mut self) -> Result<Vec<Verdict>, InitError> {
        match self.answers.recv() {
            Ok(answer) => {
                let Answer { verdicts, log, metrics, clock_ns, deadline_ns, finished } = answer?;
                log.iter().for_each(|(level, line)| calls::log(*level, line));
                calls::advance_clock_ns(clock_ns - calls::exact_clock_ns());
                (self.metrics, self.deadline_ns, self.finished) = (metrics, deadline_ns, finished);
                Ok(verdicts)
            }
            Err(_) => match self.thread.take().map(JoinHandle::join) {
                Some(Err(panicked)) => panic::resume_unwind(panicked),
                _ => panic!("the function's thread has ended"),
            },
        }
    }
}

impl<F> Drop for LoopHarness<F> {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It ends with `Over`, or its panic was reported before.
            let _ = thread.join();
        }
    }
}

/// Runs the function's thread.
fn serve<F: Looping>(
    config: &[u8],
    clock_ns: u64,
    orders: Receiver<(u64, Order)>,
    answers: Sender<Result<Answer, InitError>>,
) {
    calls::advance_clock_ns(clock_ns);
    metrics::take();
    let mut function = match F::init(config) {
        Ok(function) => function,
        Err(refusal) => {
            // Fails if the harness is gone.
            let _ = answers.send(Err(refusal));
            return;
        }
    };
    let mut node = FakeNode {
        orders,
        answers,
        metrics: Metrics::take(),
        slots: NodeSlots::new(F::OWN_SLOTS),
        described: Described::default(),
        frames: VecDeque::new(),
        until_ns: None,
        verdicts: Vec::new(),
    };
    let memory: Box<PoolMemory<SLOT_COUNT_DEFAULT>> = Box::default();
    finished::take();
    metrics::told(|| {
        function.start();
        let mut io = Io::new(memory.open(F::OWN_SLOTS), &mut node);
        function.run(&mut io);
        io.pool.give_back_dropped();
        drop(io);
        node.go_on_without(&mut memory.open(F::OWN_SLOTS));
    });
}

/// The node's side of the function's waits.
struct FakeNode {
    orders: Receiver<(u64, Order)>,
    answers: Sender<Result<Answer, InitError>>,
    metrics: Metrics,
    /// The node's own record.
    slots: NodeSlots,
    described: Described,
    /// Frames that wait for a free slot, with their indices.
    frames: VecDeque<(usize, Vec<u8>)>,
    /// The end of the time that is passing.
    until_ns: Option<u64>,
    verdicts: Vec<Verdict>,
}

impl Node for FakeNode {
    fn wait(&mut self, pool: &mut Pool<'_>, deadline_ns: Option<u64>) -> u32 {
        loop {
            self.slots.collect(pool, &mut self.verdicts);
            let fresh = self.slots.give_back(pool) + self.publish(pool);
            if fresh > 0 {
                return fresh;
            }
            assert!(self.frames.is_empty(), "the function holds all {} slots for ever", self.slots.lent());
            if self.passes(deadline_ns) {
                return 0;
            }
            self.answer(deadline_ns, false);
            self.hear();
        }
    }
}

impl FakeNode {
    /// Publishes frames as long as slots are free. Returns how many.
    fn publish(&mut self, pool: &mut Pool<'_>) -> u32 {
        let mut published = 0;
        while let Some((number, frame)) = self.frames.front()
            && self.slots.publish(pool, &self.described, *number, frame)
        {
            self.frames.pop_front();
            published += 1;
        }
        published
    }

    /// Lets time pass to the deadline, or to the end of the test's step. Returns whether the deadline was reached.
    fn passes(&mut self, deadline_ns: Option<u64>) -> bool {
        let Some(until_ns) = self.until_ns else { return false };
        let due_ns = deadline_ns.and_then(due_ns).filter(|at_ns| *at_ns <= until_ns);
        calls::advance_clock_ns(due_ns.unwrap_or(until_ns) - calls::exact_clock_ns());
        if due_ns.is_none() {
            self.until_ns = None;
        }
        due_ns.is_some()
    }

    /// Takes the test's next command. Does not return if the test is over.
    fn hear(&mut self) {
        let Ok((clock_ns, order)) = self.orders.recv() else { panic::resume_unwind(Box::new(Over)) };
        calls::advance_clock_ns(clock_ns - calls::exact_clock_ns());
        match order {
            Order::Deliver { described, frames } => {
                self.described = described;
                self.frames.extend(frames.into_iter().enumerate());
            }
            Order::LetPass { until_ns } => self.until_ns = Some(until_ns),
        }
    }

    fn answer(&mut self, deadline_ns: Option<u64>, finished: bool) {
        let (verdicts, metrics) = (std::mem::take(&mut self.verdicts), self.metrics.values().collect());
        let (log, clock_ns) = (calls::take_log(), calls::exact_clock_ns());
        let answer = Answer { verdicts, log, metrics, clock_ns, deadline_ns, finished };
        // Fails if the harness is gone, which the next command shows.
        let _ = self.answers.send(Ok(answer));
    }

    /// Serves the test after the function has returned: collects what it has sent, and reports further frames as gone.
    fn go_on_without(&mut self, pool: &mut Pool<'_>) {
        self.slots.collect(pool, &mut self.verdicts);
        loop {
            let gone = |(number, bytes)| Verdict::gone(number, &self.described, bytes);
            self.verdicts.extend(self.frames.drain(..).map(gone));
            if let Some(until_ns) = self.until_ns.take() {
                calls::advance_clock_ns(until_ns - calls::exact_clock_ns());
            }
            self.answer(None, true);
            self.hear();
        }
    }
}
