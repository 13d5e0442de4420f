//! The callers' end of a line to the port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pinion_abi::MESSAGE_PAYLOAD_BYTES_MAX;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::rings::spsc::{self, Consumer, Producer};
use pinion_mma::stopwatch::Stopwatch;

use super::{Failure, FunctionRef};
use crate::id::{ChainGeneration, ChainIndex};

/// A call, with memory for its payload or its answer's. Circulates between a dispatcher and the port.
pub struct Invocation {
    pub(super) function: FunctionRef,
    pub(super) ticket: u64,
    pub(super) called_ns: u64,
    pub(super) deadline_ns: u64,
    pub(super) outcome: Result<(), Failure>,
    /// Length of the payload, or of the answer's.
    len: u16,
    line: u8,
    /// Which of its line's invocations it is.
    number: u16,
    bytes: [u8; MESSAGE_PAYLOAD_BYTES_MAX],
}

impl Invocation {
    fn of_line(line: u8, number: u16) -> Box<Self> {
        Box::new(Self {
            function: FunctionRef { chain: ChainIndex(0), generation: ChainGeneration(0) },
            ticket: 0,
            called_ns: 0,
            deadline_ns: 0,
            outcome: Ok(()),
            len: 0,
            line,
            number,
            bytes: [0; MESSAGE_PAYLOAD_BYTES_MAX],
        })
    }

    pub(super) fn line(&self) -> usize {
        self.line.into()
    }

    pub(super) fn number(&self) -> usize {
        self.number.into()
    }

    #[inline]
    pub(super) fn payload(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// # Panics
    /// If it is longer than [`MESSAGE_PAYLOAD_BYTES_MAX`].
    #[inline]
    pub(super) fn set_payload(&mut self, payload: &[u8]) {
        self.bytes[..payload.len()].copy_from_slice(payload);
        self.len = payload.len() as u16;
    }
}

/// A call under way, as its dispatcher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallNumber(u16);

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The payload is longer than a message can carry.
    #[error("a payload of {bytes} bytes: a message holds at most {MESSAGE_PAYLOAD_BYTES_MAX}")]
    TooLong {
        /// The payload's length.
        bytes: usize,
    },
    /// This dispatcher has as many calls under way as it may.
    #[error("{calls} calls are under way, the most that are allowed: wait for answers")]
    Full {
        /// The number of calls under way.
        calls: usize,
    },
}

/// Calls functions, from one thread at a time, and collects their answers. Neither blocks nor allocates.
pub struct Dispatcher {
    submitted: Producer<Box<Invocation>>,
    answered: Consumer<Box<Invocation>>,
    /// Invocations that are not under way; the last one used is the next.
    #[expect(clippy::vec_box, reason = "they go round as boxes")]
    spare: Vec<Box<Invocation>>,
    calls_max: usize,
    /// The number of the invocation that was staged last.
    staged_last: u16,
    cancels: Cancels,
    has_staged: bool,
    gateway: Doorbell,
    bell: Doorbell,
    stopwatch: Stopwatch,
}

/// The port's end of a line.
pub(super) struct LineEnd {
    pub(super) submitted: Consumer<Box<Invocation>>,
    pub(super) answered: Producer<Box<Invocation>>,
    /// Wakes the dispatcher's thread.
    pub(super) bell: Doorbell,
    pub(super) has_staged: bool,
    pub(super) cancels: Cancels,
}

/// Which calls of a line their callers have given up.
#[derive(Clone)]
pub(super) struct Cancels {
    /// How many calls of all lines have been given up: one word for the port to look at.
    count: Arc<AtomicU64>,
    /// By number of the invocation.
    is_cancelled: Arc<[AtomicBool]>,
}

impl Cancels {
    #[inline]
    pub(super) fn has(&self, number: usize) -> bool {
        self.is_cancelled[number].load(Ordering::Relaxed)
    }
}

/// Makes a line for `calls_max` calls at a time.
pub(super) fn line(
    number: u8,
    calls_max: usize,
    gateway: &Doorbell,
    stopwatch: &Stopwatch,
    cancelled: &Arc<AtomicU64>,
) -> (Dispatcher, LineEnd) {
    let ((submitted_tx, submitted_rx), (answered_tx, answered_rx)) = (spsc::ring(calls_max), spsc::ring(calls_max));
    let bell = Doorbell::default();
    let is_cancelled = (0..calls_max).map(|_| AtomicBool::new(false)).collect();
    let cancels = Cancels { count: Arc::clone(cancelled), is_cancelled };
    let dispatcher = Dispatcher {
        submitted: submitted_tx,
        answered: answered_rx,
        spare: (0..calls_max).map(|call| Invocation::of_line(number, call as u16)).collect(),
        calls_max,
        staged_last: 0,
        cancels: cancels.clone(),
        has_staged: false,
        gateway: gateway.clone(),
        bell: bell.clone(),
        stopwatch: stopwatch.clone(),
    };
    let (submitted, answered) = (submitted_rx, answered_tx);
    (dispatcher, LineEnd { submitted, answered, bell, has_staged: false, cancels })
}

impl Dispatcher {
    /// Stages a call of a function for the next [`Dispatcher::submit`]. Its answer, or the reason why there is none,
    /// comes with this ticket.
    ///
    /// # Errors
    /// The reason why the call was refused.
    #[inline]
    pub fn stage(
        &mut self,
        function: FunctionRef,
        ticket: u64,
        timeout_ns: u64,
        payload: &[u8],
    ) -> Result<(), Refused> {
        if payload.len() > MESSAGE_PAYLOAD_BYTES_MAX {
            return Err(Refused::TooLong { bytes: payload.len() });
        }
        let mut invocation = self.spare.pop().ok_or(Refused::Full { calls: self.calls_max })?;
        self.staged_last = invocation.number;
        let called_ns = self.stopwatch.elapsed_ns();
        (invocation.function, invocation.ticket, invocation.called_ns) = (function, ticket, called_ns);
        invocation.deadline_ns = called_ns.saturating_add(timeout_ns);
        invocation.set_payload(payload);
        let staged = self.submitted.stage(invocation);
        debug_assert!(staged.is_ok(), "there is room for all of them");
        self.has_staged = true;
        Ok(())
    }

    /// Hands over the staged calls and wakes the gateway.
    #[inline]
    pub fn submit(&mut self) {
        if std::mem::take(&mut self.has_staged) {
            self.submitted.publish();
            self.gateway.ring();
        }
    }

    /// Takes the answers that have come: for each call its ticket, and its answer's payload or why there is none.
    /// Returns how many.
    #[inline]
    pub fn poll(&mut self, mut take: impl FnMut(u64, Result<&[u8], Failure>)) -> usize {
        let Self { answered, spare, .. } = self;
        answered.pop_batch(usize::MAX, |invocation| {
            take(invocation.ticket, invocation.outcome.map(|()| invocation.payload()));
            spare.push(invocation);
        })
    }

    /// Returns the number by which the call that was staged last can be given up. Another call may have it once
    /// [`Dispatcher::poll`] has taken this one's answer.
    #[must_use]
    pub fn staged_last(&self) -> CallNumber {
        CallNumber(self.staged_last)
    }

    /// Gives up a call that is under way. It fails with [`Failure::Cancelled`] within some milliseconds, unless it has
    /// been answered meanwhile. After that, [`Dispatcher::forget_cancelled`] is to be called.
    pub fn cancel(&self, call: CallNumber) {
        self.cancels.is_cancelled[usize::from(call.0)].store(true, Ordering::Relaxed);
        self.cancels.count.fetch_add(1, Ordering::Release);
        self.gateway.ring();
    }

    /// Notes that a call that was given up is over, so that a later one of its number is not given up with it.
    pub fn forget_cancelled(&self, call: CallNumber) {
        self.cancels.is_cancelled[usize::from(call.0)].store(false, Ordering::Relaxed);
    }

    /// Returns whether there are answers.
    pub fn has_answers(&mut self) -> bool {
        self.answered.ready(1) > 0
    }

    /// Returns how many calls may be under way.
    #[must_use]
    pub fn calls_max(&self) -> usize {
        self.calls_max
    }

    /// Returns the number of calls under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.calls_max - self.spare.len()
    }

    /// Returns the doorbell that is rung when there are answers. A thread that waits for answers may sleep on it.
    #[must_use]
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }
}
