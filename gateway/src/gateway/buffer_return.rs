//! Drops frames, counts the drops, and returns buffers to the pool in batches.

use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::PortIndex;

use super::observer::Observer;
use crate::drops::DropReason;
use crate::id::ChainIndex;
use crate::port::BufferPool;

/// Buffers that are taken from the pool at once, where one is needed at a time.
pub(super) const TAKEN_AT_ONCE: usize = 16;

/// Collects the buffers of finished frames and returns them to the pool in batches.
pub(super) struct BufferReturn {
    pub(super) pool: Box<dyn BufferPool>,
    buffers: Vec<Buffer>,
    /// Buffers kept for messages once there are any. Otherwise each call would take a batch from the pool and return
    /// most of it.
    spare: Vec<Buffer>,
    pub(super) observer: Arc<Observer>,
}

impl BufferReturn {
    /// Makes a collector that returns buffers in batches of `batch`.
    pub(super) fn new(pool: Box<dyn BufferPool>, observer: Arc<Observer>, batch: usize) -> Self {
        Self { pool, buffers: Vec::with_capacity(batch), spare: Vec::with_capacity(TAKEN_AT_ONCE), observer }
    }

    pub(super) fn take(&mut self, buffer: Buffer) {
        if self.buffers.len() == self.buffers.capacity() {
            self.empty();
        }
        self.buffers.push(buffer);
    }

    /// Returns an empty buffer, if there is one.
    #[inline]
    pub(super) fn buffer(&mut self) -> Option<Buffer> {
        // A buffer on its way back to the pool serves as well, and is still in the cache.
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

    /// Drops a frame of a chain and counts it for the chain too.
    #[cold]
    pub(super) fn drop_of_chain(&mut self, frame: Frame, chain: Option<ChainIndex>, reason: DropReason) {
        self.observer.chain_drops().add(chain, reason);
        self.drop_frame(frame, reason);
    }

    /// Counts a drop of a chain for which no frame exists yet.
    #[cold]
    pub(super) fn count_of_chain(&self, port: PortIndex, chain: Option<ChainIndex>, reason: DropReason) {
        self.observer.chain_drops().add(chain, reason);
        self.observer.port(port).drops.add(reason, 1);
    }

    /// Returns all buffers to the pool.
    pub(super) fn close(&mut self) {
        self.buffers.append(&mut self.spare);
        self.empty();
    }

    /// Returns the collected buffers to the pool, except those kept for messages.
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
