//! A buffer pool on the heap, for gateways without DPDK.
//!
//! Handles are cheap to clone and may be used from several threads. All buffers are pieces of one allocation:
//!
//! ```text
//!   slab  |  buffer 0  |  buffer 1  | ... |      free  [ Buffer, Buffer, ... ]
//! ```
//!
//! The slab is freed when the last handle is dropped. If buffers are still out, the slab stays, because their owners
//! may use them.
#![allow(unsafe_code)] // Cuts one allocation into buffers that own their piece of it.

use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use pinion_mma::buffer::Buffer;

use super::BufferPool;

/// A handle of a pool on the heap.
#[derive(Clone)]
pub struct HeapPool {
    shared: Arc<Shared>,
}

struct Shared {
    slab: NonNull<[u8]>,
    buffer_len: u16,
    free: ArrayQueue<Buffer>,
}

// SAFETY: the slab is reached only through the buffers cut from it, each of which is exclusive, and freed only when all
// of them are back.
unsafe impl Send for Shared {}
// SAFETY: as above; the queue of free buffers is `Sync` itself.
unsafe impl Sync for Shared {}

impl HeapPool {
    /// Makes a pool of `count` buffers of `buffer_len` bytes each.
    ///
    /// # Panics
    /// If either is zero, or the allocation fails.
    #[must_use]
    pub fn new(count: usize, buffer_len: u16) -> Self {
        assert!(count > 0 && buffer_len > 0, "a pool of {count} buffers of {buffer_len} bytes holds nothing");
        let len = count.checked_mul(usize::from(buffer_len)).expect("a pool fits into the address space");
        let slab = NonNull::from(Box::leak(vec![0_u8; len].into_boxed_slice()));
        let free = ArrayQueue::new(count);
        for index in 0..count {
            // SAFETY: `index * buffer_len` is inside the slab.
            let data = unsafe { slab.cast::<u8>().add(index * usize::from(buffer_len)) };
            // SAFETY: this piece of the slab is given to this buffer alone, and the slab lives while it is out.
            let buffer = unsafe { Buffer::from_raw_parts(data, buffer_len, data.cast()) };
            assert!(free.push(buffer).is_ok(), "the queue has room for every buffer");
        }
        Self { shared: Arc::new(Shared { slab, buffer_len, free }) }
    }

    /// Returns how many buffers are in the pool now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.shared.free.len()
    }
}

impl Shared {
    fn owns(&self, buffer: &Buffer) -> bool {
        let start = self.slab.cast::<u8>().as_ptr().addr();
        let data = buffer.bytes(0).as_ptr().addr();
        (start..start + self.slab.len()).contains(&data)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.free.is_full() {
            // SAFETY: leaked from a box by `new`; all its buffers are back, so nothing else reaches it.
            drop(unsafe { Box::from_raw(self.slab.as_ptr()) });
        }
    }
}

impl BufferPool for HeapPool {
    fn take(&mut self, buffers: &mut Vec<Buffer>, count: usize) -> usize {
        let before = buffers.len();
        buffers.extend((0..count).map_while(|_| self.shared.free.pop()));
        buffers.len() - before
    }

    fn give(&mut self, buffers: &mut Vec<Buffer>) {
        for buffer in buffers.drain(..) {
            assert!(self.shared.owns(&buffer), "{buffer:?} is not of this pool");
            assert!(self.shared.free.push(buffer).is_ok(), "the queue has room for every buffer");
        }
    }

    fn capacity(&self) -> usize {
        self.shared.free.capacity()
    }

    fn buffer_len_max(&self) -> u32 {
        self.shared.buffer_len.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_hands_out_what_it_has_and_takes_it_back() {
        let mut pool = HeapPool::new(4, 64);
        let mut buffers = Vec::new();
        assert_eq!(pool.take(&mut buffers, 3), 3);
        assert_eq!(pool.take(&mut buffers, 3), 1);
        assert_eq!(pool.take(&mut buffers, 3), 0);
        pool.give(&mut buffers);
        assert!(buffers.is_empty());
        assert_eq!((pool.available(), pool.capacity()), (4, 4));
    }

    #[test]
    fn buffers_do_not_overlap() {
        let mut pool = HeapPool::new(8, 16);
        let mut buffers = Vec::new();
        pool.take(&mut buffers, 8);
        for (value, buffer) in (0..).zip(&mut buffers) {
            buffer.bytes_mut(16).fill(value);
        }
        for (value, buffer) in (0..).zip(&buffers) {
            assert_eq!(buffer.bytes(16), [value; 16]);
        }
        pool.give(&mut buffers);
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let mut pool = HeapPool::new(2, 16);
        let mut buffers = Vec::new();
        pool.take(&mut buffers, 1);
        drop(pool);
        buffers[0].bytes_mut(16).fill(7);
        assert_eq!(buffers[0].bytes(16), [7; 16]);
    }

    #[test]
    #[should_panic(expected = "is not of this pool")]
    fn a_buffer_of_another_pool_is_refused() {
        let (mut one, mut other) = (HeapPool::new(1, 16), HeapPool::new(1, 16));
        let mut buffers = Vec::new();
        one.take(&mut buffers, 1);
        other.give(&mut buffers);
    }
}
