//! The third form of a function: a loop of its own, which waits when it likes. [`Looping`], and the [`Io`] that it waits with.

use crate::pool::Pool;
use crate::{BATCH_PACKETS_MAX, Batch, Function, InitError, Shelf, guest};

/// A function that is one loop: it waits for packets, or for a time, where its own code comes to that. For what is told best as a
/// sequence of steps, such as a dialogue; [`Function`] and [`PacketFunction`](crate::PacketFunction) are for all else, and each
/// of them is one of these.
///
/// There is no executor beneath it: while it waits its instance sleeps, and others have the core.
///
/// ```
/// use pinion_sdk::testing::{LoopHarness, Outcome};
/// use pinion_sdk::{Held, InitError, Io, Looping, Packet, clock};
///
/// /// Sends frames back that come in pairs, within a millisecond, and on that come alone.
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
///                 let frame = io.shelf().take(held);
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

    /// The function itself, called once in each instance. When it returns, what it has sent goes out and the instance ends, which is no
    /// failure: as [`finish`](crate::finish()) says.
    ///
    /// An instance that is ready for clients to come is in its first wait, which ends with its first packet whatever its deadline: so it is to
    /// come there soon.
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

/// What a [`Looping`] function waits with, and where its packets are.
pub struct Io<'m> {
    pub(crate) pool: Pool<'m>,
    /// Descriptors that the node has told of, and that no batch was made of yet.
    fresh: u32,
    #[cfg(not(target_family = "wasm"))]
    node: &'m mut dyn Node,
}

/// Who stands in for a node.
#[cfg(not(target_family = "wasm"))]
pub(crate) trait Node {
    /// As the node's call: the number of new descriptors, or 0 when the deadline has passed.
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

    /// Waits for packets: at least one, and at most [`BATCH_PACKETS_MAX`](crate::BATCH_PACKETS_MAX). What was sent so far goes out now.
    pub fn wait(&mut self) -> Batch<'_> {
        let count = loop {
            if let Some(count) = self.next_count(None) {
                break count;
            }
        };
        self.pool.batch(count)
    }

    /// The same until that time of [`clock::now_ns`](crate::clock::now_ns()): none if nothing has come by then. It may have passed already;
    /// others have their turns all the same. What has come is told first: where packets come all the time, it is for the loop to look at
    /// the clock.
    pub fn wait_until(&mut self, deadline_ns: u64) -> Option<Batch<'_>> {
        let count = self.next_count(Some(deadline_ns))?;
        Some(self.pool.batch(count))
    }

    /// Where packets lie that were [held](crate::Packet::hold), and where new ones are [made](Shelf::make).
    #[must_use]
    pub fn shelf(&self) -> Shelf<'_> {
        self.pool.shelf()
    }

    /// How many descriptors the next batch is made of, one of them a packet's; none if there is nothing: the deadline has passed.
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
            // Slots of the function's own have come back, and nothing else.
            drop(self.pool.batch(count));
        }
    }

    #[cfg(target_family = "wasm")]
    #[inline]
    fn wait_for_node(&mut self, deadline_ns: Option<u64>) -> u32 {
        crate::host::wait(deadline_ns)
    }

    #[cfg(not(target_family = "wasm"))]
    fn wait_for_node(&mut self, deadline_ns: Option<u64>) -> u32 {
        self.node.wait(&mut self.pool, deadline_ns)
    }
}
