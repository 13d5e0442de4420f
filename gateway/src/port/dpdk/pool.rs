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

use std::ffi::{CString, c_uint, c_void};
use std::mem::offset_of;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_dpdk_sys as sys;
use pinion_mma::buffer::{Buffer, Frame};

use super::eal::Eal;
use super::error::{DpdkError, last_reason};
use crate::port::BufferPool;

/// Bytes of a frame that a buffer of the pool holds at least.
pub const BUFFER_LEN: u16 = 2048;
/// Memory per buffer in bytes, including DPDK's own, rounded up.
pub(crate) const BUFFER_FOOTPRINT: u64 = 2560;

/// The most mbufs that are moved in one call.
pub(super) const BURST: usize = sys::PINION_BURST_MAX as usize;

const CACHE_BUFFERS: u32 = 256;
const ANY_SOCKET: i32 = -1;

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

/// A mempool, and the addresses of its mbufs.
#[derive(Debug)]
pub(super) struct Mempool {
    raw: NonNull<sys::rte_mempool>,
    /// The pieces of memory that hold its mbufs and nothing else; ordinarily there is one.
    pieces: Vec<Range<usize>>,
    buffers: u32,
    /// Keeps DPDK running; dropped after the pool.
    eal: Option<Eal>,
}

// SAFETY: any thread may use a mempool; DPDK synchronises access to it.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Returns an array to fill with mbufs.
pub(super) fn no_mbufs() -> Box<[*mut sys::rte_mbuf; BURST]> {
    Box::new([null_mut(); BURST])
}

/// Appends up to `max` frames, but at most [`BURST`]. `write` writes them, from the address that it is given on.
/// Returns how many.
///
/// # Safety
/// `write` must write the first so many `pinion_frame`s, at most as many as it is told, and return how many. Each must
/// be of a plain mbuf (one segment, not shared) that belongs to the caller alone.
pub(super) unsafe fn append(
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
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let name = CString::new(format!("pinion{}", POOLS.fetch_add(1, Ordering::Relaxed))).expect("no zero byte");
        let room = BUFFER_LEN + u16::try_from(sys::RTE_PKTMBUF_HEADROOM).expect("DPDK's headroom is small");
        let cache = CACHE_BUFFERS.min(buffers / 2);
        // SAFETY: DPDK is running; it copies the name.
        let raw = unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, cache, 0, room, ANY_SOCKET) };
        let raw = NonNull::new(raw).ok_or_else(|| DpdkError::Pool { buffers, reason: last_reason() })?;
        let mut pieces = Vec::<Range<usize>>::new();
        // SAFETY: `note_piece` expects a pointer to a vector, and this one outlives the call.
        unsafe { sys::rte_mempool_mem_iter(raw.as_ptr(), Some(note_piece), (&raw mut pieces).cast()) };
        Ok(Self::of(Arc::new(Mempool { raw, pieces: joined(pieces), buffers, eal: Some(eal.clone()) })))
    }

    fn of(mempool: Arc<Mempool>) -> Self {
        Self { mempool, mbufs: no_mbufs(), frames: Vec::with_capacity(BURST) }
    }

    /// Returns the mempool behind this handle.
    pub(super) fn mempool(&self) -> &Arc<Mempool> {
        &self.mempool
    }

    /// Returns how many buffers are in the pool now, including its caches.
    #[must_use]
    pub fn available(&self) -> usize {
        self.mempool.available() as usize
    }
}

/// Appends the piece's addresses to the vector behind `pieces`.
unsafe extern "C" fn note_piece(
    _: *mut sys::rte_mempool,
    pieces: *mut c_void,
    piece: *mut sys::rte_mempool_memhdr,
    _: c_uint,
) {
    // SAFETY: `DpdkPool::new` passes a vector that nothing else uses meanwhile; DPDK passes a valid piece.
    let (pieces, piece) = unsafe { (&mut *pieces.cast::<Vec<Range<usize>>>(), &*piece) };
    let start = piece.addr.addr();
    pieces.push(start..start + piece.len);
}

/// Merges adjoining ranges.
fn joined(mut pieces: Vec<Range<usize>>) -> Vec<Range<usize>> {
    pieces.sort_by_key(|piece| piece.start);
    let mut whole: Vec<Range<usize>> = Vec::new();
    for piece in pieces {
        match whole.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => whole.push(piece),
        }
    }
    whole
}

impl Mempool {
    pub(super) fn raw(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// Returns whether these bytes are of an mbuf of this pool, that is, lie in memory that only its mbufs use.
    #[inline]
    pub(super) fn owns(&self, bytes: &[u8]) -> bool {
        let data = bytes.as_ptr().addr();
        self.pieces.iter().any(|piece| piece.contains(&data))
    }

    fn available(&self) -> u32 {
        // SAFETY: the pool is alive.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        let available = self.available();
        if available == self.buffers {
            // SAFETY: all buffers are back and this is the last handle.
            unsafe { sys::rte_mempool_free(self.raw.as_ptr()) };
        } else {
            let out = self.buffers - available;
            tracing::debug!(out, "a pool is not freed, because some of its buffers were not returned");
            // The owners of these buffers may use them, so DPDK must not be stopped either.
            std::mem::forget(self.eal.take());
        }
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
        self.mempool.buffers as usize
    }

    fn buffer_len_max(&self) -> u32 {
        BUFFER_LEN.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjoining_pieces_are_joined() {
        assert_eq!(joined(vec![30..40, 0..10, 10..20, 20..25]), [0..25, 30..40]);
        assert_eq!(joined(Vec::new()), []);
    }
}
