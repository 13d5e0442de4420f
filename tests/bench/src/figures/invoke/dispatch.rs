//! The figure's dispatcher: a port of the node that receives no frames, but calls functions by the node's own interface each time the
//! gateway's thread polls it. It thus takes no core from the functions, which matters on a machine with two cores.
//!
//! It times calls by its own clock, from before it stages a call until it has polled the answer. The node has no part in that.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, ensure};
use pinion_gateway::invoke::{Dispatcher, Failure, FunctionRef};
use pinion_gateway::port::{BufferPool, LinkState, Port, PortCounters, PortFacts};
use pinion_mma::buffer::Frame;
use pinion_mma::stopwatch::Stopwatch;

use crate::measurement::percentiles::Percentiles;

const NAME: &str = "uplink";
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
/// A call without an answer for so long is lost.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest delay of a measurement beyond its planned time; more means that something is stuck.
const SLACK: Duration = Duration::from_secs(120);

/// Which functions are called, and how fast.
pub(super) enum Plan {
    /// Calls each of these, when the previous one has been answered and this long has passed. Times each call.
    Each { functions: Vec<FunctionRef>, pause: Duration },
    /// Calls some of these at random, with so many calls in flight, for so long.
    Flood { functions: Vec<FunctionRef>, under_way: usize, time: Duration },
}

/// The results of the calls.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) answered: u64,
    /// Until the last answer.
    pub(super) took: Duration,
    pub(super) failed: u64,
    pub(super) first_failure: Option<Failure>,
    /// Answers that differed from what was sent.
    pub(super) wrong: u64,
    /// From before each call of [`Plan::Each`] until its answer was there.
    pub(super) times: Percentiles,
}

impl Tally {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.failed == 0, "{} calls failed, the first: {:?}", self.failed, self.first_failure);
        ensure!(self.wrong == 0, "{} of {} answers were not what was sent", self.wrong, self.answered);
        Ok(())
    }
}

/// The figure's end of the channel.
pub(super) struct Orders {
    plans: Sender<(Plan, Option<Dispatcher>)>,
    tallies: Receiver<Tally>,
}

impl Orders {
    /// Gives the port the dispatcher with which it calls. Must be done once, before all else.
    pub(super) fn equip(&self, dispatcher: Dispatcher) -> anyhow::Result<()> {
        self.give(Plan::Each { functions: Vec::new(), pause: Duration::ZERO }, Some(dispatcher), Duration::ZERO)?;
        Ok(())
    }

    /// Calls functions; fails unless each has answered with what it was sent.
    pub(super) fn call(&self, plan: Plan) -> anyhow::Result<Tally> {
        let time = match &plan {
            Plan::Each { functions, pause } => *pause * functions.len() as u32,
            Plan::Flood { time, .. } => *time,
        };
        let tally = self.give(plan, None, time)?;
        tally.check()?;
        Ok(tally)
    }

    fn give(&self, plan: Plan, dispatcher: Option<Dispatcher>, time: Duration) -> anyhow::Result<Tally> {
        self.plans.send((plan, dispatcher)).map_err(|_| anyhow::anyhow!("the node's gateway has ended"))?;
        self.tallies.recv_timeout(time + SLACK).context("calls do not end")
    }
}

/// A plan that is being executed.
struct Course {
    plan: Plan,
    tally: Tally,
    next: usize,
    started_ns: u64,
    /// When the call under way was made, if it is timed.
    called_ns: Option<u64>,
    /// When the last answer came.
    answered_ns: u64,
}

/// The port. See the module's documentation.
pub(super) struct Driver {
    plans: Receiver<(Plan, Option<Dispatcher>)>,
    tallies: Sender<Tally>,
    dispatcher: Option<Dispatcher>,
    course: Option<Course>,
    tickets: u64,
    random: u64,
    stopwatch: Stopwatch,
    counters: Arc<PortCounters>,
}

pub(super) fn driver() -> (Driver, Orders) {
    let ((plans, planned), (tallies, told)) = (channel(), channel());
    let driver = Driver {
        plans: planned,
        tallies,
        dispatcher: None,
        course: None,
        tickets: 0,
        random: 0x9e37_79b9_7f4a_7c15,
        stopwatch: Stopwatch::start(),
        counters: Arc::default(),
    };
    (driver, Orders { plans, tallies: told })
}

/// Returns the payload of a ticket, which differs from that of any other.
fn payload(ticket: u64) -> [u8; 16] {
    let mixed = (ticket ^ (ticket >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&ticket.to_le_bytes());
    bytes[8..].copy_from_slice(&mixed.to_le_bytes());
    bytes
}

impl Driver {
    fn begin(&mut self) {
        let Ok((plan, dispatcher)) = self.plans.try_recv() else { return };
        if dispatcher.is_some() {
            self.dispatcher = dispatcher;
        }
        let now_ns = self.stopwatch.elapsed_ns();
        let tally = Tally::default();
        self.course = Some(Course { plan, tally, next: 0, started_ns: now_ns, called_ns: None, answered_ns: now_ns });
    }

    fn go_on(&mut self) {
        let Self { dispatcher: Some(dispatcher), course: Some(course), stopwatch, .. } = self else { return };
        let now_ns = stopwatch.elapsed_ns();
        let Course { plan, tally, next, started_ns, called_ns, answered_ns } = course;
        let answers = dispatcher.poll(|ticket, outcome| match outcome {
            Ok(answer) => {
                if let Some(called_ns) = called_ns.take() {
                    tally.times.record(Duration::from_nanos(stopwatch.elapsed_ns() - called_ns));
                }
                tally.answered += 1;
                tally.wrong += u64::from(answer != payload(ticket));
            }
            Err(failure) => {
                tally.failed += 1;
                tally.first_failure.get_or_insert(failure);
            }
        });
        if answers > 0 {
            *answered_ns = now_ns;
        }
        let mut call = |function| {
            self.tickets += 1;
            let timeout_ns = PATIENCE.as_nanos() as u64;
            dispatcher.stage(function, self.tickets, timeout_ns, &payload(self.tickets)).is_ok()
        };
        let is_over = match plan {
            Plan::Each { functions, pause } => {
                let is_due = now_ns - *answered_ns >= pause.as_nanos() as u64;
                if *next == tally.answered as usize + tally.failed as usize && is_due && *next < functions.len() {
                    *called_ns = Some(stopwatch.elapsed_ns());
                    *next += usize::from(call(functions[*next]));
                }
                *next == functions.len()
            }
            Plan::Flood { functions, under_way, time } => {
                let is_over = now_ns - *started_ns >= time.as_nanos() as u64;
                let mut room =
                    if is_over { 0 } else { *under_way - (*next - (tally.answered + tally.failed) as usize) };
                while room > 0 {
                    self.random ^= self.random << 13;
                    self.random ^= self.random >> 7;
                    self.random ^= self.random << 17;
                    let called = call(functions[(self.random % functions.len() as u64) as usize]);
                    (*next, room) = (*next + usize::from(called), if called { room - 1 } else { 0 });
                }
                is_over
            }
        };
        dispatcher.submit();
        if is_over && dispatcher.under_way() == 0 {
            tally.took = Duration::from_nanos(*answered_ns - *started_ns);
            if let Some(Course { tally, .. }) = self.course.take() {
                // Fails if the receiver is gone.
                let _ = self.tallies.send(tally);
            }
        }
    }
}

impl Port for Driver {
    fn name(&self) -> &str {
        NAME
    }

    fn device(&self) -> &str {
        NAME
    }

    fn facts(&self) -> PortFacts {
        PortFacts { mac: MAC, mtu: 1500, link: LinkState::Up, missed: 0 }
    }

    fn receive(&mut self, _frames: &mut Vec<Frame>, _max: usize) -> usize {
        match self.course {
            None => self.begin(),
            Some(_) => self.go_on(),
        }
        0
    }

    fn transmit(&mut self, frames: &mut Vec<Frame>, pool: &mut dyn BufferPool) -> usize {
        pool.give(&mut frames.drain(..).map(Frame::into_buffer).collect());
        0
    }

    fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }
}
