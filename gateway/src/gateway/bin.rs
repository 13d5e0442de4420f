//! The end of frames that go nowhere, and of buffers that are done with.

use std::sync::Arc;

use pinion_mma::buffer::{Buffer, Frame};

use crate::drops::DropReason;
use crate::id::ChainIndex;
use crate::observer::Observer;
use crate::port::BufferPool;

/// Where buffers go when their frames are done with: back to the pool, in batches.
pub(super) struct Bin {
    pub(super) pool: Box<dyn BufferPool>,
    buffers: Vec<Buffer>,
    pub(super) observer: Arc<Observer>,
}

impl Bin {
    /// Batches of so many.
    pub(super) fn new(pool: Box<dyn BufferPool>, observer: Arc<Observer>, batch: usize) -> Self {
        Self { pool, buffers: Vec::with_capacity(batch), observer }
    }

    pub(super) fn take(&mut self, buffer: Buffer) {
        if self.buffers.len() == self.buffers.capacity() {
            self.empty();
        }
        self.buffers.push(buffer);
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

    pub(super) fn empty(&mut self) {
        if !self.buffers.is_empty() {
            self.pool.give(&mut self.buffers);
        }
    }
}
