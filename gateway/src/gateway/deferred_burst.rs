//! The rest of a burst after a new client's first frame: deferred to the next poll.
//!
//! The first frame of a new client mostly waits for memory on its way to the client's function. If all new clients of a
//! burst passed each step together, the gateway would copy and look up the last client before the first one is
//! answered. One client at a time, each is answered while its data is in the cache, and the last client no later than
//! otherwise. If other work holds the thread for long between polls, the rest of the burst is taken in at once. It then
//! waits for that work only once, and not once per client.

use std::collections::VecDeque;

use pinion_mma::buffer::Frame;

use crate::assign::Read;

/// A longer round of the thread contained work that runs on and on. About half of a quantum. In nanoseconds.
const ROUND_MAX_NS: u64 = 10_000;
/// How many such long rounds a burst tolerates. The first round after a pause of the thread is always long.
const LONG_ROUNDS_MAX: u32 = 1;

/// The deferred frames of one port. Never more than a burst, because the port receives nothing before they are taken
/// in.
pub(super) struct DeferredBurst {
    frames: VecDeque<(Frame, Read)>,
    received_ns: u64,
    since_ns: u64,
    long_rounds: u32,
}

impl DeferredBurst {
    /// Makes room for a burst of `burst` frames.
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

    /// Defers the rest of a burst to the next poll.
    pub(super) fn keep(&mut self, rest: impl Iterator<Item = (Frame, Read)>, received_ns: u64, now_ns: u64) {
        (self.received_ns, self.since_ns, self.long_rounds) = (received_ns, now_ns, 0);
        self.frames.extend(rest);
    }

    /// Notes that the deferred frames have waited for one more round. Returns whether they may go on waiting, one new
    /// client per poll.
    pub(super) fn can_wait(&mut self, now_ns: u64) -> bool {
        let round_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        self.long_rounds += u32::from(round_ns > ROUND_MAX_NS);
        self.long_rounds <= LONG_ROUNDS_MAX
    }

    pub(super) fn take(&mut self) -> Option<(Frame, Read)> {
        self.frames.pop_front()
    }
}
