//! The gateway's end of all lines to dispatchers. See [`super`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinion_mma::accounts::counters::Counter;
use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::PortIndex;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::stopwatch::Stopwatch;

use super::calls::{AnswerMatch, Calls};
use super::dispatcher::{Dispatcher, Invocation, LineEnd, line};
use super::{Failure, FunctionRef, message};
use crate::id::ChainIndex;
use crate::port::PortCounters;

/// How often calls are checked for deadlines that have passed. In nanoseconds.
const SWEEP_INTERVAL_NS: u64 = 1_000_000;
/// How long answers of an instance may still come after the gateway has forgotten it. Longer than a replaced instance
/// keeps its place. In nanoseconds.
const ABANDONED_NS: u64 = 50_000_000;

/// Counts of messages and answers. Only the gateway's thread writes them.
#[derive(Debug, Default)]
pub struct InvokeCounters {
    /// Messages, counted as received frames, and answers, counted as sent ones.
    pub traffic: Arc<PortCounters>,
    /// Answers to calls that were over: already answered, or timed out.
    pub late: Counter,
    /// Frames that answer no call: without a token, or with a made-up one.
    pub unknown: Counter,
    /// Calls that ended without an answer.
    pub failed: Counter,
    /// Times that a call was delivered again, as the instance that had it ended.
    pub redelivered: Counter,
}

/// See [`super`].
pub struct InvokePort {
    lines: Box<[LineEnd]>,
    /// The line that is polled first. It changes with each poll, so that no line is always last.
    first_line: usize,
    calls: Calls,
    index: PortIndex,
    stopwatch: Stopwatch,
    swept_ns: u64,
    /// How many calls have been given up by their callers, and how many had been at the last look.
    cancelled: Arc<AtomicU64>,
    cancelled_seen: u64,
    counters: Arc<InvokeCounters>,
}

impl InvokePort {
    /// Makes the port of a gateway that sleeps on the doorbell `gateway`, and a dispatcher for each of its lines. Each
    /// line can have `calls_per_line` calls under way.
    ///
    /// # Panics
    /// If a line has no room for a call.
    #[must_use]
    pub fn new(lines: u8, calls_per_line: usize, gateway: &Doorbell) -> (Self, Vec<Dispatcher>) {
        let (stopwatch, cancelled) = (Stopwatch::start(), Arc::default());
        let (dispatchers, ends): (Vec<_>, Vec<_>) =
            (0..lines).map(|number| line(number, calls_per_line, gateway, &stopwatch, &cancelled)).unzip();
        let port = Self {
            lines: ends.into(),
            first_line: 0,
            calls: Calls::new(usize::from(lines) * calls_per_line),
            index: PortIndex(u16::MAX),
            stopwatch,
            swept_ns: 0,
            cancelled,
            cancelled_seen: 0,
            counters: Arc::default(),
        };
        (port, dispatchers)
    }

    /// Returns how many calls may be under way on all lines together.
    pub(crate) fn calls_max(&self) -> usize {
        self.calls.places()
    }

    /// Returns the port's counters, which any thread may read.
    #[must_use]
    pub fn counters(&self) -> &Arc<InvokeCounters> {
        &self.counters
    }

    pub(crate) fn stopwatch(&self) -> &Stopwatch {
        &self.stopwatch
    }

    pub(crate) fn set_index(&mut self, index: PortIndex) {
        self.index = index;
    }

    pub(crate) fn index(&self) -> PortIndex {
        self.index
    }

    /// Returns whether a dispatcher has submitted something, or given something up.
    pub(crate) fn has_work(&mut self) -> bool {
        self.has_cancelled() || self.lines.iter_mut().any(|line| line.submitted.ready(1) > 0)
    }

    /// Takes up to `max` calls. `take` is given the place of each, and must answer it, fail it, deliver it or make it
    /// wait. Returns how many.
    #[inline]
    pub(crate) fn receive(&mut self, max: usize, mut take: impl FnMut(&mut Self, u32)) -> usize {
        let (count, mut left) = (self.lines.len(), max);
        for turn in 0..count {
            let at = (self.first_line + turn) % count;
            while left > 0 {
                let Some(invocation) = self.lines[at].submitted.take() else { break };
                left -= 1;
                self.counters.traffic.received.frames.add(1);
                self.counters.traffic.received.bytes.add(invocation.payload().len() as u64);
                if self.lines[at].cancels.has(invocation.number()) {
                    self.give_back(invocation, Err(Failure::Cancelled));
                    continue;
                }
                match self.calls.enter(invocation) {
                    Ok(place) => take(self, place),
                    Err(invocation) => self.give_back(invocation, Err(Failure::Busy)),
                }
            }
            self.lines[at].submitted.release();
        }
        self.first_line = (self.first_line + 1) % count.max(1);
        max - left
    }

    /// Returns the function that the call in this place is for, and when it was made.
    pub(crate) fn function(&self, place: u32) -> Option<(FunctionRef, u64)> {
        self.calls.invocation(place).map(|invocation| (invocation.function, invocation.called_ns))
    }

    /// Makes the message of a call. Returns the buffer if the message does not fit.
    #[inline]
    pub(crate) fn message(&mut self, place: u32, mut buffer: Buffer) -> Result<Frame, Buffer> {
        let Some(invocation) = self.calls.invocation(place) else { return Err(buffer) };
        let call = self.calls.call_ref(place);
        let space = buffer.capacity();
        match message::write(buffer.bytes_mut(space), call, invocation.payload()) {
            Some(len) => Ok(Frame::new(buffer, len).of_port(self.index)),
            None => Err(buffer),
        }
    }

    /// Notes that the call's message has been handed over.
    #[inline]
    pub(crate) fn delivered(&mut self, place: u32) {
        self.calls.delivered(place);
    }

    /// Makes a call wait for an instance of its chain, until `until_ns` at most.
    pub(crate) fn wait(&mut self, place: u32, until_ns: u64) {
        self.calls.wait(place, until_ns);
    }

    /// Returns the call that has waited longest for the chain.
    pub(crate) fn first_waiting(&self, chain: ChainIndex) -> Option<u32> {
        self.calls.first_waiting(chain)
    }

    /// Returns each chain that calls wait for, some more than once.
    pub(crate) fn chains_waited_for(&self) -> impl Iterator<Item = FunctionRef> {
        self.calls.all_waiting().filter_map(|place| self.calls.function(place))
    }

    /// Notes that the gateway has forgotten the instance that got the messages of this chain's callers.
    pub(crate) fn abandon(&mut self, chain: ChainIndex, now_ns: u64) {
        self.calls.abandon(chain, now_ns + ABANDONED_NS);
    }

    /// Takes a frame that a function has sent. If it answers a call, ends the call with it; else counts and ignores it.
    #[inline]
    pub(crate) fn answer(&mut self, frame: &[u8]) {
        let Some((call, payload)) = message::read(frame) else { return self.counters.unknown.add(1) };
        match self.calls.judge(call) {
            AnswerMatch::Awaited => {}
            AnswerMatch::Late => return self.counters.late.add(1),
            AnswerMatch::Unknown => return self.counters.unknown.add(1),
        }
        if let Some(mut invocation) = self.calls.end(call.place) {
            invocation.set_payload(payload);
            self.counters.traffic.sent.frames.add(1);
            self.counters.traffic.sent.bytes.add(payload.len() as u64);
            self.give_back(invocation, Ok(()));
        }
    }

    /// Takes a call back whose instance has ended, to be delivered again. Returns whether it may be.
    pub(crate) fn take_back(&mut self, place: u32, now_ns: u64) -> bool {
        let is_taken = self.calls.take_back(place, now_ns);
        self.counters.redelivered.add(is_taken.into());
        is_taken
    }

    /// Ends a call without an answer.
    pub(crate) fn fail(&mut self, place: u32, failure: Failure) {
        let failure = self.calls.told(place, failure);
        if let Some(invocation) = self.calls.end(place) {
            self.give_back(invocation, Err(failure));
        }
    }

    fn give_back(&mut self, mut invocation: Box<Invocation>, outcome: Result<(), Failure>) {
        if outcome.is_err() {
            self.counters.failed.add(1);
        }
        invocation.outcome = outcome;
        let line = &mut self.lines[invocation.line()];
        let staged = line.answered.stage(invocation);
        debug_assert!(staged.is_ok(), "a line has room for all of its calls");
        line.has_staged = true;
    }

    /// Finds calls whose time is over, if it is time to check, and ends those that their callers have given up. Returns
    /// how many. `over` is given the place of each, and why its time is over, and must fail it or deliver it again.
    pub(crate) fn sweep(&mut self, now_ns: u64, mut over: impl FnMut(&mut Self, u32, Failure)) -> usize {
        let mut ended = if self.has_cancelled() { self.end_cancelled() } else { 0 };
        if self.calls.under_way() == 0 || now_ns.saturating_sub(self.swept_ns) < SWEEP_INTERVAL_NS {
            return ended;
        }
        self.swept_ns = now_ns;
        let mut from = 0;
        while let Some((place, failure)) = self.calls.overdue(from, now_ns) {
            over(self, place, failure);
            (ended, from) = (ended + 1, place + 1);
        }
        ended
    }

    #[inline]
    fn has_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) != self.cancelled_seen
    }

    /// Ends calls that their callers have given up. Returns how many.
    #[cold]
    fn end_cancelled(&mut self) -> usize {
        self.cancelled_seen = self.cancelled.load(Ordering::Acquire);
        let mut ended = 0;
        for place in 0..self.calls.places() as u32 {
            let Some(invocation) = self.calls.invocation(place) else { continue };
            if self.lines[invocation.line()].cancels.has(invocation.number()) {
                self.fail(place, Failure::Cancelled);
                ended += 1;
            }
        }
        ended
    }

    /// Hands over the answers and wakes the threads that wait for them.
    #[inline]
    pub(crate) fn hand_over(&mut self) {
        for line in self.lines.iter_mut().filter(|line| line.has_staged) {
            line.has_staged = false;
            line.answered.publish();
            line.bell.ring();
        }
    }
}
