//! The mbufs that hold frames, as buffers.
//!
//! ```text
//!   mempool  [ rte_mbuf | headroom 128 | data 2048 ] [ rte_mbuf | ... ] ...
//!                                        ^ Buffer::data
//!             ^ Buffer::token
//! ```
//!
//! The pool's memory stays while any buffer is out. It is freed with the last handle if all buffers are back, and
//! otherwise never.
#![allow(unsafe_code)] // Turns mbufs into buffers and back.

use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::Arc;

use pinion_dpdk_sys as sys;
use pinion_mma::buffer::{Buffer, Frame};

use super::mempool::Mempool;
use super::sizes::{BUFFER_LEN, BURST};
use crate::port::BufferPool;
use crate::port::dpdk::eal::Eal;
use crate::port::dpdk::error::DpdkError;

/// A handle of a gateway's pool of mbufs.
///
/// Handles may be used from several threads, but each handle only by one at a time.
pub struct DpdkPool {
    mempool: Arc<Mempool>,
    mbufs: Box<[*mut sys::rte_mbuf; BURST]>,
    frames: Vec<Frame>,
}

// SAFETY: the arrays hold the arguments of one call, and nothing between calls.
unsafe impl Send for DpdkPool {}

/// Returns an array to fill with mbufs.
pub(crate) fn no_mbufs() -> Box<[*mut sys::rte_mbuf; BURST]> {
    Box::new([null_mut(); BURST])
}

/// Appends up to `max` frames, but at most [`BURST`]. `write` writes them, from the address that it is given on.
/// Returns how many.
///
/// # Safety
/// `write` must write the first so many `pinion_frame`s, at most as many as it is told, and return how many. Each must
/// be of a plain mbuf (one segment, not shared) that belongs to the caller alone.
pub(crate) unsafe fn append(
    frames: &mut Vec<Frame>,
    max: usize,
    write: impl FnOnce(*mut sys::pinion_frame, u16) -> u16,
) -> usize {
    let max = max.min(BURST);
    frames.reserve(max);
    let count = usize::from(write(frames.spare_capacity_mut().as_mut_ptr().cast(), max as u16));
    debug_assert!(count <= max);
    // SAFETY: there was room, and so many are written, each of them a `Frame` by its layout; data and token are
    // addresses in an mbuf, the data area belongs to it, and its length is within its capacity, as for every mbuf that
    // has an owner.
    unsafe { frames.set_len(frames.len() + count) };
    count
}

const _: () = {
    let [data, token, capacity, len, port, facts] = Frame::OFFSETS;
    assert!(size_of::<Frame>() == size_of::<sys::pinion_frame>());
    assert!(data == offset_of!(sys::pinion_frame, data) && token == offset_of!(sys::pinion_frame, mbuf));
    assert!(capacity == offset_of!(sys::pinion_frame, capacity) && len == offset_of!(sys::pinion_frame, len));
    assert!(port == offset_of!(sys::pinion_frame, port) && facts == offset_of!(sys::pinion_frame, facts));
};

impl DpdkPool {
    /// Makes a pool of `buffers` buffers. One less than a power of two uses memory best.
    ///
    /// # Errors
    /// If the memory that DPDK was started with does not suffice.
    pub fn new(eal: &Eal, buffers: u32) -> Result<Self, DpdkError> {
        Ok(Self::of(Arc::new(Mempool::new(eal, buffers)?)))
    }

    fn of(mempool: Arc<Mempool>) -> Self {
        Self { mempool, mbufs: no_mbufs(), frames: Vec::with_capacity(BURST) }
    }

    /// Returns the mempool behind this handle.
    pub(crate) fn mempool(&self) -> &Arc<Mempool> {
        &self.mempool
    }

    /// Returns how many buffers are in the pool now, including its caches.
    #[must_use]
    pub fn available(&self) -> usize {
        self.mempool.available() as usize
    }
}

impl Clone for DpdkPool {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.mempool))
    }
}

impl BufferPool for DpdkPool {
    fn take(&mut self, buffers: &mut Vec<Buffer>, count: usize) -> usize {
        let mut taken = 0;
        while taken < count {
            let wanted = (count - taken).min(BURST);
            let mempool = self.mempool.raw();
            // SAFETY: allocates plain mbufs that nothing else uses.
            let got =
                unsafe { append(&mut self.frames, wanted, |place, max| sys::pinion_alloc_burst(mempool, place, max)) };
            buffers.extend(self.frames.drain(..).map(Frame::into_buffer));
            taken += got;
            if got < wanted {
                break;
            }
        }
        taken
    }

    fn give(&mut self, buffers: &mut Vec<Buffer>) {
        let mut count = 0;
        for buffer in buffers.drain(..) {
            assert!(self.mempool.owns(buffer.bytes(0)), "{buffer:?} is not of this pool");
            self.mbufs[count] = buffer.into_token().cast().as_ptr();
            count += 1;
            if count == BURST {
                // SAFETY: `count` mbufs of this pool, which their buffers gave up.
                unsafe { sys::pinion_free_burst(self.mbufs.as_mut_ptr(), count as u16) };
                count = 0;
            }
        }
        if count > 0 {
            // SAFETY: as above.
            unsafe { sys::pinion_free_burst(self.mbufs.as_mut_ptr(), count as u16) };
        }
    }

    fn capacity(&self) -> usize {
        self.mempool.buffers() as usize
    }

    fn buffer_len_max(&self) -> u32 {
        BUFFER_LEN.into()
    }
}
