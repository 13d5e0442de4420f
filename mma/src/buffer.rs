//! Packet buffers that belong to a gateway (an mbuf, a piece of an in-memory port) while the MMA holds them, and the
//! frames in them.
//!
//! A frame is moved about ten times between its port and the MMA, so it takes only three machine words.
#![allow(unsafe_code)] // Owns the boundary between a gateway's memory and the copier.

use std::mem::offset_of;
use std::ptr::NonNull;

use crate::id::{PortIndex, Sender};

/// A buffer of the gateway: `capacity` bytes from `data` on, and the token by which its port identifies it.
///
/// The value is exclusive ownership of the memory: it is neither `Clone` nor `Copy`. Dropping it leaks the buffer from
/// its port's pool, so return it to the gateway instead.
#[derive(Debug)]
pub struct Buffer {
    data: NonNull<u8>,
    token: NonNull<()>,
    capacity: u16,
}

// SAFETY: a `Buffer` is the exclusive right to its memory (the contract of `from_raw_parts`), which moves with it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Takes ownership of memory that the caller's port handed out.
    ///
    /// # Safety
    /// `data` must be valid for reads and writes of `capacity` bytes from any thread, and nothing else may access them,
    /// until [`Buffer::into_token`] consumes the buffer.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw_parts(data: NonNull<u8>, capacity: u16, token: NonNull<()>) -> Self {
        Self { data, token, capacity }
    }

    /// Returns the capacity in bytes.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity.into()
    }

    /// Returns the first `len` bytes.
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

    /// Returns the first `len` bytes for writing.
    ///
    /// # Panics
    /// If `len` is over the capacity.
    #[inline]
    pub fn bytes_mut(&mut self, len: u32) -> &mut [u8] {
        assert!(len <= self.capacity(), "{len} bytes of a buffer of {}", self.capacity);
        // SAFETY: in bounds by the assertion; valid and exclusive by the contract of `from_raw_parts`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), len as usize) }
    }

    /// Gives up the memory and returns the token by which its port identifies it.
    #[must_use]
    #[inline]
    pub fn into_token(self) -> NonNull<()> {
        self.token
    }
}

/// What a device reported about a frame that it received: whether its checksums are right, as far as the device checks
/// them. The bits are those of a guest's descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct FrameFacts(u8);

impl FrameFacts {
    /// No reports.
    pub const NONE: Self = Self(0);

    /// Returns the bits.
    #[must_use]
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// A frame in a buffer, starting at the buffer's first byte: received, or to be transmitted.
#[derive(Debug)]
#[repr(C)]
pub struct Frame {
    data: NonNull<u8>,
    token: NonNull<()>,
    /// Capacity of the buffer, in bytes.
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
    /// The offsets of a frame's fields, for drivers that write whole bursts of frames: the address of its first byte,
    /// the buffer's token, the capacity, the length, the port, the facts. From the third on each takes two bytes, the
    /// last one takes one.
    pub const OFFSETS: [usize; 6] = [
        offset_of!(Self, data),
        offset_of!(Self, token),
        offset_of!(Self, capacity),
        offset_of!(Self, len),
        offset_of!(Self, port),
        offset_of!(Self, facts),
    ];

    /// Makes a frame of the first `len` bytes of a buffer, from the gateway's first port and without facts.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    #[must_use]
    #[inline]
    pub fn new(buffer: Buffer, len: u32) -> Self {
        let Buffer { data, token, capacity } = buffer;
        assert!(len <= u32::from(capacity), "a frame of {len} bytes in a buffer of {capacity}");
        Self { data, token, capacity, len: len as u16, port: PortIndex(0), facts: FrameFacts::NONE }
    }

    /// Returns the frame with this port.
    #[must_use]
    #[inline]
    pub fn of_port(self, port: PortIndex) -> Self {
        Self { port, ..self }
    }

    /// Returns the length in bytes, without the frame check sequence.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "not a collection")]
    pub fn len(&self) -> u32 {
        self.len.into()
    }

    /// Returns the port it was received on or is to be transmitted on.
    #[must_use]
    #[inline]
    pub fn port(&self) -> PortIndex {
        self.port
    }

    /// Sets the port.
    #[inline]
    pub fn set_port(&mut self, port: PortIndex) {
        self.port = port;
    }

    /// Returns what the receiving device reported about the frame.
    #[must_use]
    #[inline]
    pub fn facts(&self) -> FrameFacts {
        self.facts
    }

    /// Returns the capacity of its buffer, in bytes.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.capacity.into()
    }

    /// Returns the frame's bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the length is at most the capacity; valid and exclusive by the contract of `Buffer::from_raw_parts`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len.into()) }
    }

    /// Returns the frame's bytes for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len.into()) }
    }

    /// Returns the whole buffer for writing.
    #[inline]
    pub fn space_mut(&mut self) -> &mut [u8] {
        // SAFETY: valid and exclusive by the contract of `Buffer::from_raw_parts`.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.capacity.into()) }
    }

    /// Sets the frame's length in bytes.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    #[inline]
    pub fn set_len(&mut self, len: u32) {
        assert!(len <= self.capacity(), "a frame of {len} bytes in a buffer of {}", self.capacity);
        self.len = len as u16;
    }

    /// Returns the frame's buffer and drops the frame.
    #[must_use]
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        let Self { data, token, capacity, .. } = self;
        Buffer { data, token, capacity }
    }

    /// Prefetches the frame's first bytes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        crate::tuning::prefetch::to_read(self.data.as_ptr());
    }
}

/// A frame that an FWP has sent out of the node.
#[derive(Debug)]
pub struct Outbound {
    /// The frame, with the port on which it is to be transmitted.
    pub frame: Frame,
    /// The chain instance that has sent it.
    pub sender: Sender,
}
