//! What is left of a burst behind a new client's first frame: it is for the next poll.
//!
//! On its way to the client's function such a frame waits for memory all the time. If a burst of new clients took that way together, step by step,
//! the first one would be answered after the last had been looked up and copied. One by one, each is answered while what belongs to it
//! is near, and the last no later than it would have been. Where others keep the thread for long between polls, what is left
//! is taken in at once: it does not wait for them once for each client.

use std::collections::VecDeque;

use pinion_mma::buffer::Frame;

use crate::assign::Read;

/// A round of the thread's that took longer had somebody in it who goes on and on: about half of a quantum.
const ROUND_MAX_NS: u64 = 10_000;
/// So many of those a burst bears with: after a pause of the thread's, the first one takes that long by itself.
const LONG_ROUNDS_MAX: u32 = 1;

/// Of one port; never more than a burst, as nothing is received before they are taken in.
pub(super) struct Behind {
    frames: VecDeque<(Frame, Read)>,
    received_ns: u64,
    since_ns: u64,
    long_rounds: u32,
}

impl Behind {
    /// With room for a burst of so many.
    pub(super) fn new(burst: usize) -> Self {
        Self { frames: VecDeque::with_capacity(burst), received_ns: 0, since_ns: 0, long_rounds: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// When the burst was received.
    pub(super) fn received_ns(&self) -> u64 {
        self.received_ns
    }

    /// Keeps what is left of a burst for the next poll.
    pub(super) fn keep(&mut self, rest: impl Iterator<Item = (Frame, Read)>, received_ns: u64, now_ns: u64) {
        (self.received_ns, self.since_ns, self.long_rounds) = (received_ns, now_ns, 0);
        self.frames.extend(rest);
    }

    /// Notes that a round is over for which those that are left have waited; whether they may for more, one new client after the other.
    pub(super) fn can_wait(&mut self, now_ns: u64) -> bool {
        let round_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        self.long_rounds += u32::from(round_ns > ROUND_MAX_NS);
        self.long_rounds <= LONG_ROUNDS_MAX
    }

    pub(super) fn take(&mut self) -> Option<(Frame, Read)> {
        self.frames.pop_front()
    }
}
