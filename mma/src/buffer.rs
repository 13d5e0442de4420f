//! Packet buffers that belong to a gateway (an mbuf, a piece of an in-memory port) while MMA holds them, and the frames in
//! them.
//!
//! A frame is passed on some ten times between its port and the MMA, so it is kept to three machine words.
#![allow(unsafe_code)] // Owns the boundary between a gateway's memory and the copier.

use std::mem::offset_of;
use std::ptr::NonNull;

use crate::id::PortIndex;

/// A buffer of the gateway's: `capacity` bytes from `data` on, and the token by which its port knows it.
///
/// Whoever holds the value holds the memory, exclusively: it is neither `Clone` nor `Copy`. Dropping it loses the
/// buffer to its port's pool; it is to be handed back.
#[derive(Debug)]
pub struct Buffer {
    data: NonNull<u8>,
    token: NonNull<()>,
    capacity: u16,
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
    pub unsafe fn from_raw_parts(data: NonNull<u8>, capacity: u16, token: NonNull<()>) -> Self {
        Self { data, token, capacity }
    }

    /// Bytes that fit.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity.into()
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[must_use]
    #[inline]
    pub fn bytes(&self, len: u32) -> &[u8] {
        assert!(len <= self.capacity(), "{len} bytes of a buffer of {}", self.capacity);
        // SAFETY: in bounds by the assertion; valid and exclusive by the contract of `from_raw_parts`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), len as usize) }
    }

    /// The first `len` bytes, to be written.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[inline]
    pub fn bytes_mut(&mut self, len: u32) -> &mut [u8] {
        assert!(len <= self.capacity(), "{len} bytes of a buffer of {}", self.capacity);
        // SAFETY: in bounds by the assertion; valid and exclusive by the contract of `from_raw_parts`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), len as usize) }
    }

    /// Gives the memory back to whoever knows the token.
    #[must_use]
    #[inline]
    pub fn into_token(self) -> NonNull<()> {
        self.token
    }
}

/// What a device has found out about a frame that it received: whether its checksums are right, as far as it tells. Bits as
/// in a guest's descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct FrameFacts(u8);

impl FrameFacts {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// What these bits say: `RX_` of [`pinion_abi`].
    #[must_use]
    #[inline]
    pub const fn of_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// As bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// A frame in a buffer, from its first byte on: received, or to be transmitted.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    data: NonNull<u8>,
    token: NonNull<()>,
    /// Bytes that fit into the buffer.
    capacity: u16,
    /// At most the capacity.
    len: u16,
    port: PortIndex,
    facts: FrameFacts,
}

// SAFETY: as a `Buffer`.
unsafe impl Send for Frame {}

const _: () = assert!(size_of::<Frame>() == 24);

impl Frame {
    /// Where a frame's parts lie, for drivers that write whole bursts of them: its first byte's address, the buffer's token,
    /// how many bytes fit, how many there are, the port, the facts; two bytes each from the third on, one at last.
    pub const OFFSETS: [usize; 6] = [
        offset_of!(Self, data),
        offset_of!(Self, token),
        offset_of!(Self, capacity),
        offset_of!(Self, len),
        offset_of!(Self, port),
        offset_of!(Self, facts),
    ];

    /// The first `len` bytes of a buffer, of the gateway's first port, and nothing known of it.
    ///
    /// # Panics
    /// If they are more than fit.
    #[must_use]
    #[inline]
    pub fn new(buffer: Buffer, len: u32) -> Self {
        let Buffer { data, token, capacity } = buffer;
        assert!(len <= u32::from(capacity), "a frame of {len} bytes in a buffer of {capacity}");
        Self { data, token, capacity, len: len as u16, port: PortIndex(0), facts: FrameFacts::NONE }
    }

    /// The same of another port.
    #[must_use]
    #[inline]
    pub fn of_port(self, port: PortIndex) -> Self {
        Self { port, ..self }
    }

    /// The same of which this is known.
    #[must_use]
    #[inline]
    pub fn with_facts(self, facts: FrameFacts) -> Self {
        Self { facts, ..self }
    }

    /// Its length in bytes, without the checksum at its end.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "not a collection")]
    pub fn len(&self) -> u32 {
        self.len.into()
    }

    /// The port it came in by, or is to leave by.
    #[must_use]
    #[inline]
    pub fn port(&self) -> PortIndex {
        self.port
    }

    /// Notes the port.
    #[inline]
    pub fn set_port(&mut self, port: PortIndex) {
        self.port = port;
    }

    /// What the device has found out about it, if it was received.
    #[must_use]
    #[inline]
    pub fn facts(&self) -> FrameFacts {
        self.facts
    }

    /// Bytes that fit into its buffer.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity.into()
    }

    /// All of it.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the length is at most the capacity; valid and exclusive by the contract of `Buffer::from_raw_parts`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len.into()) }
    }

    /// All of it, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len.into()) }
    }

    /// All of its buffer, to be written.
    #[inline]
    pub fn space_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid and exclusive by the contract of `Buffer::from_raw_parts`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.capacity.into()) }
    }

    /// Has it end elsewhere in its buffer.
    ///
    /// # Panics
    /// If so much does not fit.
    #[inline]
    pub fn set_len(&mut self, len: u32) {
        assert!(len <= self.capacity(), "a frame of {len} bytes in a buffer of {}", self.capacity);
        self.len = len as u16;
    }

    /// The buffer, when the frame is done with.
    #[must_use]
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        let Self { data, token, capacity, .. } = self;
        Buffer { data, token, capacity }
    }

    /// Has the processor bring the first bytes nearer.
    #[inline]
    pub(crate) fn prefetch(&self) {
        crate::prefetch::to_read(self.data.as_ptr());
    }
}
