//! Access to packets besides those of a batch: held ones, and those that a function makes.

use core::fmt;

use super::held::Held;
use super::packet::Packet;
use super::pool::Pool;
use super::way::Way;

/// Access to the packets that a function [holds](Packet::hold), and to its own slots: available in a [batch](crate::Batch::slots) and when
/// a [deadline](crate::Function::expire) has passed.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    pool: &'a Pool<'a>,
}

impl<'a> Slots<'a> {
    pub(crate) fn of(pool: &'a Pool<'a>) -> Self {
        Self { pool }
    }

    /// Makes a packet of these bytes in one of the function's [own](crate::Function::OWN_SLOTS) slots, with as much headroom as a received
    /// packet has. `None` if all of them are in use, or if the bytes are more than [`PACKET_BYTES_MAX`](crate::PACKET_BYTES_MAX). A slot
    /// returns some time after its packet was sent, with a later batch.
    ///
    /// The packet goes by the [way](Packet::way) of a packet that was received before: [`Packet::reply`] sends it out of that packet's
    /// ingress port.
    ///
    /// ```
    /// use pinion_sdk::testing::{Harness, Outcome};
    /// use pinion_sdk::{Batch, Function, InitError, Slots, Way};
    ///
    /// /// Announces itself every second to each network that a packet has come from.
    /// struct Beacon {
    ///     ways: Vec<Way>,
    ///     next_ns: u64,
    /// }
    ///
    /// impl Function for Beacon {
    ///     const OWN_SLOTS: u16 = 8;
    ///
    ///     fn init(_config: &[u8]) -> Result<Self, InitError> {
    ///         Ok(Self { ways: Vec::new(), next_ns: 0 })
    ///     }
    ///
    ///     fn handle(&mut self, batch: Batch<'_>) {
    ///         for packet in batch {
    ///             if !self.ways.contains(&packet.way()) {
    ///                 self.ways.push(packet.way());
    ///             }
    ///             packet.send();
    ///         }
    ///     }
    ///
    ///     fn deadline_ns(&self) -> Option<u64> {
    ///         Some(self.next_ns)
    ///     }
    ///
    ///     fn expire(&mut self, slots: Slots<'_>) {
    ///         self.next_ns = pinion_sdk::clock::now_ns() + 1_000_000_000;
    ///         for way in &self.ways {
    ///             if let Some(packet) = slots.make(b"here I am", *way) {
    ///                 packet.reply();
    ///             }
    ///         }
    ///     }
    /// }
    ///
    /// let mut harness = Harness::<Beacon>::new(b"").unwrap();
    /// for port in [0, 3] {
    ///     harness.deliver_from(port, &[&[0; 60]]);
    /// }
    /// let sent = harness.let_pass_ns(1_000_000_000);
    /// assert_eq!([0, 1].map(|at| (sent[at].outcome, sent[at].ingress_port)), [(Outcome::Replied, 0), (Outcome::Replied, 3)]);
    /// ```
    #[must_use]
    pub fn make(self, bytes: &[u8], way: Way) -> Option<Packet<'a>> {
        let mut packet = Packet::made(self.pool, way)?;
        packet.set_len(bytes.len()).ok()?;
        packet.data_mut().copy_from_slice(bytes);
        Some(packet)
    }

    /// Returns the packet as it was held.
    ///
    /// # Panics
    ///
    /// If another function holds it; a test can have two functions.
    pub fn take(self, held: Held) -> Packet<'a> {
        Packet::new(self.pool, self.pool.take_up(held))
    }
}

impl fmt::Debug for Slots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").finish_non_exhaustive()
    }
}
