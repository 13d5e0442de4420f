//! The start of a frame that a branch looks at, in memory that no guest can write.
//!
//! A guest can write to a slot at any time, also while the frame in it is moved. So what is matched is a copy, and the
//! next stage gets these same bytes, with the rest from the slot. A function cannot show a branch one packet and send
//! another.

use crate::guest::mailbox::Transmission;
use crate::guest::pool::PoolRegion;
use crate::id::SlotIndex;
use crate::wiring::branch::HEAD_BYTES;

/// The longest frame that a guest can send.
const FRAME_BYTES_MAX: usize = u16::MAX as usize;

/// See the module. Nothing is allocated after creation. The default has no room: it is in the place of one that a branch
/// uses.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// Zeros from [`HEAD_BYTES`] on, so that a frame has its length here too. They are read only, so they cost no memory.
    bytes: Box<[u8]>,
    /// The length of the frame.
    len: usize,
}

impl Head {
    /// Makes room for the start of a frame of any length.
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; FRAME_BYTES_MAX].into(), len: 0 }
    }

    /// Copies the start of a frame that is being sent.
    #[inline]
    pub(crate) fn read(&mut self, pool: &PoolRegion, sent: &Transmission) {
        self.len = usize::from(sent.len);
        let end = self.end();
        pool.copy_out(sent.slot, sent.offset, &mut self.bytes[..end]);
    }

    /// Returns the frame, with zeros in place of what was not copied.
    #[inline]
    pub(crate) fn frame(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Copies the frame into a slot of another FWP's pool: the start from here, and the rest from the slot that it is sent
    /// from.
    #[inline]
    pub(crate) fn copy_across(
        &self,
        pool: &PoolRegion,
        sent: &Transmission,
        into: &PoolRegion,
        (slot, offset): (SlotIndex, u16),
    ) {
        let end = self.end();
        into.copy_in(slot, offset, &self.bytes[..end]);
        if self.len > end {
            let [from, to] = [sent.offset, offset].map(|offset| offset + end as u16);
            pool.copy_across((sent.slot, from), sent.len - end as u16, into, (slot, to));
        }
    }

    /// Copies the frame into a buffer of its length, in the same way.
    #[inline]
    pub(crate) fn copy_out(&self, pool: &PoolRegion, sent: &Transmission, frame: &mut [u8]) {
        let end = self.end();
        let (start, rest) = frame.split_at_mut(end);
        start.copy_from_slice(&self.bytes[..end]);
        if !rest.is_empty() {
            pool.copy_out(sent.slot, sent.offset + end as u16, rest);
        }
    }

    #[inline]
    fn end(&self) -> usize {
        self.len.min(HEAD_BYTES)
    }
}
