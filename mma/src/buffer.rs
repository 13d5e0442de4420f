//! Packet buffers that belong to a gateway (an mbuf, a piece of an in-memory port) while MMA holds them.
#![allow(unsafe_code)] // Owns the boundary between a gateway's memory and the copier.

use std::ptr::NonNull;

/// A buffer of the gateway's: `capacity` bytes from `data` on, and the token by which its port knows it.
///
/// Whoever holds the value holds the memory, exclusively: it is neither `Clone` nor `Copy`. Dropping it loses the
/// buffer to its port's pool; it is to be handed back.
#[derive(Debug)]
pub struct Buffer {
    data: NonNull<u8>,
    capacity: u32,
    token: NonNull<()>,
}

// SAFETY: a `Buffer` is the exclusive right to its memory (the contract of `from_raw_parts`), which moves with it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Takes charge of memory that the caller's port handed out.
    ///
    /// # Safety
    /// `data` must be valid for reads and writes of `capacity` bytes from any thread, and nobody else may touch
    /// them, until the buffer is taken apart by [`Buffer::into_token`].
    #[must_use]
    #[inline]
    pub unsafe fn from_raw_parts(data: NonNull<u8>, capacity: u32, token: NonNull<()>) -> Self {
        Self { data, capacity, token }
    }

    /// Bytes that fit.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[must_use]
    #[inline]
    pub fn bytes(&self, len: u32) -> &[u8] {
        assert!(len <= self.capacity, "{len} bytes of a buffer of {}", self.capacity);
        // SAFETY: in bounds by the assertion; valid and exclusive by the contract of `from_raw_parts`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), len as usize) }
    }

    /// The first `len` bytes, to be written.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[inline]
    pub fn bytes_mut(&mut self, len: u32) -> &mut [u8] {
        assert!(len <= self.capacity, "{len} bytes of a buffer of {}", self.capacity);
        // SAFETY: in bounds by the assertion; valid and exclusive by the contract of `from_raw_parts`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), len as usize) }
    }

    /// Has the processor bring the first bytes nearer.
    #[inline]
    pub(crate) fn prefetch(&self) {
        crate::prefetch::to_read(self.data.as_ptr());
    }

    /// Gives the memory back to whoever knows the token.
    #[must_use]
    #[inline]
    pub fn into_token(self) -> NonNull<()> {
        self.token
    }
}
