//! The memory of a pool of mbufs: how it is laid out, which of it drivers reach, and when it is freed.
//!
//! DPDK's `net_af_xdp` (22.11) tells the kernel that the pool is one area in which mbuf follows mbuf. Whatever lies
//! beyond that area's end, the kernel skips, and neither returns nor reports it. DPDK itself leaves gaps so that no
//! mbuf crosses a page, as a card needs if pages are not contiguous for it: with ordinary pages one mbuf a page, so
//! that four of ten lie beyond. So a pool has no gaps where no card uses it, and otherwise keeps the mbufs beyond that
//! end to itself, as long as these are few.
#![allow(unsafe_code)] // Calls DPDK's allocator.

use std::ffi::{CString, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use pinion_dpdk_sys as sys;

use super::sizes::{BUFFER_LEN, BURST};
use crate::port::dpdk::eal::Eal;
use crate::port::dpdk::error::{DpdkError, last_reason, reason};

const CACHE_BUFFERS: u32 = 256;
const ANY_SOCKET: i32 = -1;
const MBUF_BYTES: u32 = size_of::<sys::rte_mbuf>() as u32;
/// The most mbufs that are withdrawn, as a part of the pool's. With huge pages of 2 MiB, one in 800 lies beyond.
const WITHDRAWN_PART: usize = 64;

/// A mempool, and the addresses of its mbufs.
#[derive(Debug)]
pub(crate) struct Mempool {
    raw: NonNull<sys::rte_mempool>,
    /// The pieces of memory that hold its mbufs and nothing else; ordinarily there is one.
    pieces: Vec<Range<usize>>,
    /// The mbufs that are in circulation.
    buffers: u32,
    /// Those that are not, because drivers do not reach them.
    withdrawn: Vec<NonNull<sys::rte_mbuf>>,
    reach: Reach,
    /// Keeps DPDK running; dropped after the pool.
    eal: Option<Eal>,
}

// SAFETY: any thread may use a mempool; DPDK synchronises access to it.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Whether all mbufs in circulation lie in the area that `net_af_xdp` presumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    All,
    Some,
}

impl Mempool {
    /// Makes a mempool of `buffers` mbufs with room for [`BUFFER_LEN`] bytes each.
    pub(crate) fn new(eal: &Eal, buffers: u32) -> Result<Self, DpdkError> {
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let name = CString::new(format!("pinion{}", POOLS.fetch_add(1, Ordering::Relaxed))).expect("no zero byte");
        let room = BUFFER_LEN + u16::try_from(sys::RTE_PKTMBUF_HEADROOM).expect("DPDK's headroom is small");
        let cache = CACHE_BUFFERS.min(buffers / 2);
        let raw = if eal.serves_cards() {
            // SAFETY: DPDK is running; it copies the name.
            let raw = unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, cache, 0, room, ANY_SOCKET) };
            NonNull::new(raw).ok_or_else(last_reason)
        } else {
            // SAFETY: as above.
            unsafe { without_gaps(&name, buffers, cache, room) }
        };
        let raw = raw.map_err(|reason| DpdkError::Pool { buffers, reason })?;
        let mut pieces = Vec::<Range<usize>>::new();
        // SAFETY: `note_piece` expects a pointer to a vector, and this one outlives the call.
        unsafe { sys::rte_mempool_mem_iter(raw.as_ptr(), Some(note_piece), (&raw mut pieces).cast()) };
        let presumed = presumed_area(&pieces, buffers, object_bytes(room));
        let pieces = joined(pieces);
        let mut mempool =
            Self { raw, pieces, buffers, withdrawn: Vec::new(), reach: Reach::All, eal: Some(eal.clone()) };
        mempool.withdraw_beyond(&presumed);
        Ok(mempool)
    }

    /// Takes mbufs beyond `area` out of circulation, if they are few.
    fn withdraw_beyond(&mut self, area: &Range<usize>) {
        let (mut inside, mut beyond) = (Vec::new(), Vec::new());
        let mut burst = [const { MaybeUninit::<sys::pinion_frame>::uninit() }; BURST];
        loop {
            // SAFETY: there is room for as many; the mbufs are this function's from now on.
            let count = unsafe { sys::pinion_alloc_burst(self.raw(), burst.as_mut_ptr().cast(), BURST as u16) };
            for frame in &burst[..usize::from(count)] {
                // SAFETY: the first `count` are written, each with an mbuf.
                let mbuf = unsafe { NonNull::new_unchecked(frame.assume_init_ref().mbuf) };
                (if lies_in(area, mbuf.addr().get()) { &mut inside } else { &mut beyond }).push(mbuf);
            }
            if usize::from(count) < BURST {
                break;
            }
        }
        if beyond.len() > (inside.len() + beyond.len()) / WITHDRAWN_PART {
            self.reach = Reach::Some;
            inside.append(&mut beyond);
        }
        self.buffers = u32::try_from(inside.len()).expect("a part of the pool");
        self.withdrawn = beyond;
        free(inside);
    }

    pub(crate) fn raw(&self) -> *mut sys::rte_mempool {
        self.raw.as_ptr()
    }

    /// Returns how many mbufs are in circulation.
    pub(crate) fn buffers(&self) -> u32 {
        self.buffers
    }

    /// Returns whether all of them lie where `net_af_xdp` reaches them.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns whether these bytes are of an mbuf of this pool, that is, lie in memory that only its mbufs use.
    #[inline]
    pub(crate) fn owns(&self, bytes: &[u8]) -> bool {
        let data = bytes.as_ptr().addr();
        self.pieces.iter().any(|piece| piece.contains(&data))
    }

    /// Returns how many mbufs are in the pool now, including its caches.
    pub(crate) fn available(&self) -> u32 {
        // SAFETY: the pool is alive.
        unsafe { sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        let available = self.available();
        if available == self.buffers {
            // SAFETY: all mbufs but the withdrawn ones are back, which nothing else knows of, and this is the last
            // handle.
            unsafe { sys::rte_mempool_free(self.raw.as_ptr()) };
        } else {
            let out = self.buffers - available;
            tracing::debug!(out, "a pool is not freed, because some of its buffers were not returned");
            // The owners of these buffers may use them, so DPDK must not be stopped either.
            std::mem::forget(self.eal.take());
        }
    }
}

/// Makes a pool in one piece, in which mbufs may cross pages.
///
/// # Safety
/// DPDK must be running.
unsafe fn without_gaps(
    name: &CString,
    buffers: u32,
    cache: u32,
    room: u16,
) -> Result<NonNull<sys::rte_mempool>, String> {
    let private_bytes = size_of::<sys::rte_pktmbuf_pool_private>() as c_uint;
    let flags = sys::RTE_MEMPOOL_F_NO_IOVA_CONTIG;
    // SAFETY: DPDK copies the name.
    let raw = unsafe {
        sys::rte_mempool_create_empty(
            name.as_ptr(),
            buffers,
            MBUF_BYTES + u32::from(room),
            cache,
            private_bytes,
            ANY_SOCKET,
            flags,
        )
    };
    let pool = NonNull::new(raw).ok_or_else(last_reason)?;
    // SAFETY: the steps of `rte_pktmbuf_pool_create`, in its order, on a pool that nothing else knows, whose objects
    // are mbufs with all the rest as their room.
    unsafe {
        let mut code = sys::rte_mempool_set_ops_byname(raw, sys::rte_mbuf_best_mempool_ops(), null_mut());
        if code == 0 {
            sys::rte_pktmbuf_pool_init(raw, null_mut());
            code = sys::rte_mempool_populate_default(raw);
        }
        if code < 0 {
            sys::rte_mempool_free(raw);
            return Err(reason(code));
        }
        sys::rte_mempool_obj_iter(raw, Some(sys::rte_pktmbuf_init), null_mut());
    }
    Ok(pool)
}

/// Returns the memory that an mbuf with this much room takes, with DPDK's header before it.
fn object_bytes(room: u16) -> usize {
    // SAFETY: only calculates; a null pointer means that the parts of the sum are not wanted.
    unsafe { sys::rte_mempool_calc_obj_size(MBUF_BYTES + u32::from(room), 0, null_mut()) as usize }
}

/// Returns the area that `net_af_xdp` presumes to hold all of the pool's objects.
fn presumed_area(pieces: &[Range<usize>], objects: u32, object_bytes: usize) -> Range<usize> {
    let start = pieces.first().map_or(0, |piece| piece.start);
    start..start + objects as usize * object_bytes
}

/// Returns whether an mbuf with all its room lies in the area.
fn lies_in(area: &Range<usize>, mbuf: usize) -> bool {
    let end = mbuf + MBUF_BYTES as usize + sys::RTE_PKTMBUF_HEADROOM as usize + usize::from(BUFFER_LEN);
    area.start <= mbuf && end <= area.end
}

/// Returns mbufs to their pool.
fn free(mut mbufs: Vec<NonNull<sys::rte_mbuf>>) {
    for burst in mbufs.chunks_mut(BURST) {
        // SAFETY: mbufs that the caller gives up; `NonNull` is laid out as a pointer.
        unsafe { sys::pinion_free_burst(burst.as_mut_ptr().cast(), burst.len() as u16) };
    }
}

/// Appends the piece's addresses to the vector behind `pieces`.
unsafe extern "C" fn note_piece(
    _: *mut sys::rte_mempool,
    pieces: *mut c_void,
    piece: *mut sys::rte_mempool_memhdr,
    _: c_uint,
) {
    // SAFETY: `Mempool::new` passes a vector that nothing else uses meanwhile; DPDK passes a valid piece.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjoining_pieces_are_joined() {
        assert_eq!(joined(vec![30..40, 0..10, 10..20, 20..25]), [0..25, 30..40]);
        assert_eq!(joined(Vec::new()), []);
    }

    #[test]
    fn an_mbuf_is_reached_only_with_all_its_room() {
        let mbuf = 2304;
        let area = presumed_area(&[4096..1 << 20, 0..4096], 8, 2368);
        assert_eq!(area, 4096..4096 + 8 * 2368);
        assert!(lies_in(&area, 4096) && lies_in(&area, area.end - mbuf));
        assert!(!lies_in(&area, 4095) && !lies_in(&area, area.end - mbuf + 1));
    }
}
