//! Access to packets besides those of a batch: held ones, and those that a function makes.

use core::fmt;

use super::held::Held;
use super::packet::Packet;
use super::pool::Pool;

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
    /// [`Packet::reply`] sends it out of the ingress port of the last packet received.
    #[must_use]
    pub fn make(self, bytes: &[u8]) -> Option<Packet<'a>> {
        let mut packet = Packet::made(self.pool)?;
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
