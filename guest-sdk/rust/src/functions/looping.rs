//! The third form of a function: a loop of its own, which decides when to wait. [`Looping`], and [`Io`], by which it waits.

use super::guest;
use crate::packets::pool::Pool;
use crate::{BATCH_PACKETS_MAX, Batch, Function, InitError, Slots};

/// A function that is one loop: it waits for packets, or for a time, at any point of its code. It suits functions that are best written as
/// a sequence of steps, such as a dialogue. [`Function`] and [`PacketFunction`](crate::PacketFunction) suit all others; every type that
/// implements one of these is [`Looping`] as well.
///
/// There is no executor: while the function waits, its instance sleeps, and other instances use the core.
///
/// ```
/// use pinion_sdk::testing::{LoopHarness, Outcome};
/// use pinion_sdk::{Held, InitError, Io, Looping, Packet, clock};
///
/// /// Replies with frames that come in pairs within a millisecond, and sends single frames on.
/// struct Pairs;
///
/// impl Looping for Pairs {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self)
///     }
///
///     fn run(&mut self, io: &mut Io<'_>) {
///         loop {
///             let mut frames: Vec<Held> = io.wait().map(Packet::hold).collect();
///             if frames.len() % 2 == 1
///                 && let Some(batch) = io.wait_until(clock::now_ns() + 1_000_000)
///             {
///                 frames.extend(batch.map(Packet::hold));
///             }
///             let paired = frames.len() / 2 * 2;
///             for (number, held) in frames.into_iter().enumerate() {
///                 let frame = io.slots().take(held);
///                 if number < paired { frame.reply() } else { frame.send() }
///             }
///         }
///     }
/// }
///
/// pinion_sdk::export!(Pairs);
///
/// let mut harness = LoopHarness::<Pairs>::new(b"").unwrap();
/// assert!(harness.deliver(&[&[1; 60]]).is_empty(), "it waits for another");
/// let verdicts = harness.deliver(&[&[2; 60]]);
/// assert_eq!([0, 1].map(|at| (verdicts[at].bytes[0], verdicts[at].outcome)), [(1, Outcome::Replied), (2, Outcome::Replied)]);
/// assert!(harness.deliver(&[&[3; 60]]).is_empty());
/// assert_eq!(harness.let_pass_ns(1_000_000)[0].outcome, Outcome::Sent);
/// ```
pub trait Looping: Sized + 'static {
    /// As [`Function::OWN_SLOTS`].
    const OWN_SLOTS: u16 = 0;

    /// As [`Function::init`].
    ///
    /// # Errors
    ///
    /// The error's message goes to the tenant's log, and the configuration is refused.
    fn init(config: &[u8]) -> Result<Self, InitError>;

    /// As [`Function::start`].
    fn start(&mut self) {}

    /// The function itself, called once in each instance. When it returns, the packets that it has sent go out and the instance ends, which
    /// is not a failure: see [`finish`](crate::finish()).
    ///
    /// An instance that is prepared for a future client is in its first wait, so `run` must reach that soon. The first wait ends with the
    /// instance's first packet, whatever its deadline.
    fn run(&mut self, io: &mut Io<'_>);
}

impl<F: Function> Looping for F {
    const OWN_SLOTS: u16 = <Self as Function>::OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        <Self as Function>::init(config)
    }

    fn start(&mut self) {
        <Self as Function>::start(self);
    }

    #[inline]
    fn run(&mut self, io: &mut Io<'_>) {
        while !io.pool.is_finished() {
            let fresh = io.wait_for_node(self.deadline_ns());
            guest::serve(self, &io.pool, fresh);
        }
    }
}

/// The interface by which a [`Looping`] function waits and reaches its packets.
pub struct Io<'m> {
    pub(crate) pool: Pool<'m>,
    /// Descriptors that the node has reported and that are not yet in a batch.
    fresh: u32,
    #[cfg(not(target_family = "wasm"))]
    node: &'m mut dyn Node,
}

/// The fake node's side of a wait.
#[cfg(not(target_family = "wasm"))]
pub(crate) trait Node {
    /// As the node's call: returns the number of new descriptors, or 0 when the deadline has passed.
    fn wait(&mut self, pool: &mut Pool<'_>, deadline_ns: Option<u64>) -> u32;
}

impl<'m> Io<'m> {
    #[cfg(target_family = "wasm")]
    pub(crate) fn new(pool: Pool<'m>) -> Self {
        Self { pool, fresh: 0 }
    }

    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn new(pool: Pool<'m>, node: &'m mut dyn Node) -> Self {
        Self { pool, fresh: 0, node }
    }

    /// Waits for packets: at least one, and at most [`BATCH_PACKETS_MAX`](crate::BATCH_PACKETS_MAX). Packets sent so far go out now.
    pub fn wait(&mut self) -> Batch<'_> {
        let count = loop {
            if let Some(count) = self.next_count(None) {
                break count;
            }
        };
        Batch::of(&self.pool, count)
    }

    /// Waits like [`Io::wait`], but no longer than until `deadline_ns` of [`clock::now_ns`](crate::clock::now_ns()). Returns `None` if no
    /// packet has come by then. The time may have passed already; other instances get their turns all the same. Packets come before the
    /// deadline: where they keep arriving, the loop must look at the clock itself.
    pub fn wait_until(&mut self, deadline_ns: u64) -> Option<Batch<'_>> {
        let count = self.next_count(Some(deadline_ns))?;
        Some(Batch::of(&self.pool, count))
    }

    /// Returns access to packets that were [held](crate::Packet::hold); it also [makes](Slots::make) new ones.
    #[must_use]
    pub fn slots(&self) -> Slots<'_> {
        Slots::of(&self.pool)
    }

    /// Returns how many descriptors the next batch is made of, at least one of them a packet; `None` if the deadline has passed.
    fn next_count(&mut self, deadline_ns: Option<u64>) -> Option<u32> {
        self.pool.give_back_dropped();
        loop {
            if self.fresh == 0 {
                self.fresh = self.wait_for_node(deadline_ns);
            }
            if self.fresh == 0 {
                return None;
            }
            let count = self.fresh.min(BATCH_PACKETS_MAX);
            self.fresh -= count;
            if self.pool.has_packet(count) {
                return Some(count);
            }
            // The descriptors only return the function's own slots.
            drop(Batch::of(&self.pool, count));
        }
    }

    #[cfg(target_family = "wasm")]
    #[inline]
    fn wait_for_node(&mut self, deadline_ns: Option<u64>) -> u32 {
        crate::host::calls::wait(deadline_ns)
    }

    #[cfg(not(target_family = "wasm"))]
    fn wait_for_node(&mut self, deadline_ns: Option<u64>) -> u32 {
        self.node.wait(&mut self.pool, deadline_ns)
    }
}
