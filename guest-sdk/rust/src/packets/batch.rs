//! A function's input: a [`Batch`] of packets.
//!
//! Nothing here allocates or blocks. A packet that is not taken is dropped, so that its slot ends up in a transmit descriptor.

use core::fmt;
use core::iter::FusedIterator;

use super::packet::Packet;
use super::pool::{Grants, Pool};
use super::slots::Slots;
use super::way::Way;

/// The packets that have arrived since the last batch, in order of arrival: an iterator over [`Packet`]s. Packets that are not taken from
/// it are dropped.
///
/// ```
/// # use pinion_sdk::{Batch, Function, InitError, testing::Harness};
/// # struct Police;
/// # impl Function for Police {
/// #     fn init(_config: &[u8]) -> Result<Self, InitError> { Ok(Self) }
/// fn handle(&mut self, batch: Batch<'_>) {
///     // Pass ten packets of each batch.
///     for packet in batch.take(10) {
///         packet.send();
///     }
/// }
/// # }
/// # let frames = [&[0_u8; 60][..]; 12];
/// # let verdicts = Harness::<Police>::new(b"").unwrap().deliver(&frames);
/// # assert_eq!(verdicts.iter().filter(|v| v.outcome == pinion_sdk::testing::Outcome::Dropped).count(), 2);
/// ```
pub struct Batch<'a> {
    grants: Grants<'a>,
}

impl<'a> Batch<'a> {
    /// Takes the next `count` published descriptors.
    pub(crate) fn of(pool: &'a Pool<'a>, count: u32) -> Self {
        Self { grants: pool.grants(count) }
    }

    /// Returns access to the packets that were [held](Packet::hold).
    #[must_use]
    pub fn slots(&self) -> Slots<'a> {
        Slots::of(self.grants.pool())
    }

    /// Makes a packet: see [`Slots::make`].
    #[must_use]
    pub fn make(&self, bytes: &[u8], way: Way) -> Option<Packet<'a>> {
        self.slots().make(bytes, way)
    }

    /// Returns whether all packets have been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grants.remaining() == 0
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        let taken = self.grants.next()?;
        Some(Packet::new(self.grants.pool(), taken))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.grants.remaining() as usize;
        (remaining, Some(remaining))
    }
}

impl ExactSizeIterator for Batch<'_> {}
impl FusedIterator for Batch<'_> {}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("remaining", &self.grants.remaining()).finish_non_exhaustive()
    }
}
