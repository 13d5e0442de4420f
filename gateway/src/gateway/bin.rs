//! The end of frames that go nowhere, and of buffers that are done with.

use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::PortIndex;

use crate::drops::DropReason;
use crate::id::ChainIndex;
use crate::observer::Observer;
use crate::port::BufferPool;

/// Buffers that are taken from the pool together, where they are needed singly.
pub(super) const TAKEN_AT_ONCE: usize = 16;

/// Where buffers go when their frames are done with: back to the pool, in batches.
pub(super) struct Bin {
    pub(super) pool: Box<dyn BufferPool>,
    buffers: Vec<Buffer>,
    /// Kept at hand for messages, as soon as there are any: with each call alone the pool would be asked for some, and be given most of them back.
    spare: Vec<Buffer>,
    pub(super) observer: Arc<Observer>,
}

impl Bin {
    /// Batches of so many.
    pub(super) fn new(pool: Box<dyn BufferPool>, observer: Arc<Observer>, batch: usize) -> Self {
        Self { pool, buffers: Vec::with_capacity(batch), spare: Vec::with_capacity(TAKEN_AT_ONCE), observer }
    }

    pub(super) fn take(&mut self, buffer: Buffer) {
        if self.buffers.len() == self.buffers.capacity() {
            self.empty();
        }
        self.buffers.push(buffer);
    }

    /// An empty buffer, if the pool has one.
    #[inline]
    pub(super) fn buffer(&mut self) -> Option<Buffer> {
        // What is to go back serves as well, and is near.
        if let Some(buffer) = self.buffers.pop() {
            return Some(buffer);
        }
        if self.spare.is_empty() {
            self.pool.take(&mut self.spare, TAKEN_AT_ONCE);
        }
        self.spare.pop()
    }

    pub(super) fn drop_frame(&mut self, frame: Frame, reason: DropReason) {
        self.observer.port(frame.port()).drops.add(reason, 1);
        self.take(frame.into_buffer());
    }

    /// The same for a frame that was meant for a chain.
    #[cold]
    pub(super) fn drop_of_chain(&mut self, frame: Frame, chain: Option<ChainIndex>, reason: DropReason) {
        self.observer.chain_drops().add(chain, reason);
        self.drop_frame(frame, reason);
    }

    /// Counts what came by a port for a chain, and is no frame yet.
    #[cold]
    pub(super) fn count_of_chain(&self, port: PortIndex, chain: Option<ChainIndex>, reason: DropReason) {
        self.observer.chain_drops().add(chain, reason);
        self.observer.port(port).drops.add(reason, 1);
    }

    /// Gives all back.
    pub(super) fn close(&mut self) {
        self.buffers.append(&mut self.spare);
        self.empty();
    }

    /// Gives back what is done with, but for what messages need.
    pub(super) fn empty(&mut self) {
        while !self.spare.is_empty()
            && self.spare.len() < TAKEN_AT_ONCE
            && let Some(buffer) = self.buffers.pop()
        {
            self.spare.push(buffer);
        }
        if !self.buffers.is_empty() {
            self.pool.give(&mut self.buffers);
        }
    }
}
