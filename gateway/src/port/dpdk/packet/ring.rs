//! The rings that a packet socket shares with the kernel (packet(7), `TPACKET_V2`): one for each direction, each a fixed
//! number of places for frames.
//!
//! ```text
//!   one mapping   | receive: place 0 | place 1 | ... | transmit: place 0 | place 1 | ... |
//!   one place     | header: status, length, tag, ... | frame                            |
//! ```
//!
//! A place belongs to the kernel or to this side, as its status says. Whoever has it writes the status last, which hands
//! it over. The kernel takes places to transmit only while it is asked to, by the thread that owns the ring.
#![allow(unsafe_code)] // Memory that is shared with the kernel.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::settings::RingShape;

/// Where a frame to transmit begins in its place: behind the header.
const TRANSMIT_AT: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();
const STAMPED: u32 = libc::TP_STATUS_TS_SOFTWARE | libc::TP_STATUS_TS_RAW_HARDWARE;
/// The type of a tag of which the kernel does not tell it: 802.1Q.
const VLAN: u16 = 0x8100;

/// The two rings of one socket.
pub(super) struct Ring {
    base: NonNull<u8>,
    shape: RingShape,
    /// The place that the kernel fills next, and the one that this side fills next.
    receive_at: u32,
    transmit_at: u32,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Ring {}

/// A received frame in its place.
pub(super) struct Received<'a> {
    pub(super) bytes: &'a [u8],
    /// The tag that was taken out of the frame: type, priority and VLAN.
    pub(super) tag: Option<[u8; 4]>,
    /// Its TCP or UDP checksum is the sum of the pseudo-header only.
    pub(super) is_partial: bool,
    /// The place had no room for all of it.
    pub(super) is_cut: bool,
}

#[derive(Clone, Copy)]
enum Half {
    Receive,
    Transmit,
}

impl Ring {
    /// Maps the rings of a socket that was made with this shape.
    pub(super) fn map(socket: impl AsFd, shape: RingShape) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes(shape), protection, flags, socket, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, shape, receive_at: 0, transmit_at: 0 })
    }

    /// Returns the next received frame, if there is one. [`Self::release`] gives its place back.
    #[inline]
    pub(super) fn next(&self) -> Option<Received<'_>> {
        let status = self.status(Half::Receive, self.receive_at).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let place = self.place(Half::Receive, self.receive_at);
        // SAFETY: the place begins with a header, is aligned for it, and belongs to this side until its status changes.
        let header = unsafe { place.cast::<libc::tpacket2_hdr>().as_ref() };
        let from = usize::from(header.tp_mac).min(self.shape.frame_bytes as usize);
        let len = (header.tp_snaplen as usize).min(self.shape.frame_bytes as usize - from);
        // SAFETY: within the place, as above.
        let bytes = unsafe { std::slice::from_raw_parts(place.as_ptr().add(from), len) };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let is_told = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let ([a, b], [c, d]) =
                (if is_told { header.tp_vlan_tpid } else { VLAN }.to_be_bytes(), header.tp_vlan_tci.to_be_bytes());
            [a, b, c, d]
        });
        Some(Received {
            bytes,
            tag,
            is_partial: status & libc::TP_STATUS_CSUMNOTREADY != 0,
            is_cut: (header.tp_len as usize) > len,
        })
    }

    /// Gives the place of the frame that [`Self::next`] returns back to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        self.status(Half::Receive, self.receive_at).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.receive_at = self.after(self.receive_at);
    }

    /// Returns how many bytes a frame to transmit may have.
    pub(super) fn transmit_len_max(&self) -> usize {
        self.shape.frame_bytes as usize - TRANSMIT_AT
    }

    /// Puts a frame into the next place, for when the kernel is asked to transmit. Returns whether the place was free
    /// and large enough.
    #[inline]
    pub(super) fn put(&mut self, frame: &[u8]) -> bool {
        let status = self.status(Half::Transmit, self.transmit_at);
        let is_free = status.load(Ordering::Acquire) & !STAMPED == libc::TP_STATUS_AVAILABLE;
        if !is_free || frame.len() > self.transmit_len_max() {
            return false;
        }
        let place = self.place(Half::Transmit, self.transmit_at);
        // SAFETY: the place belongs to this side, begins with a header that it is aligned for, and has room for the frame behind it.
        unsafe {
            let header = place.cast::<libc::tpacket2_hdr>().as_ptr();
            (*header).tp_len = frame.len() as u32;
            (*header).tp_snaplen = frame.len() as u32;
            place.as_ptr().add(TRANSMIT_AT).copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        }
        self.status(Half::Transmit, self.transmit_at).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.transmit_at = self.after(self.transmit_at);
        true
    }

    /// Returns whether the frame put last still waits for the kernel.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        let last = self.before(self.transmit_at);
        self.status(Half::Transmit, last).load(Ordering::Acquire) == libc::TP_STATUS_SEND_REQUEST
    }

    /// Takes back those of the last `count` frames that still wait for the kernel. Returns how many.
    pub(super) fn take_back(&mut self, count: usize) -> usize {
        let mut taken = 0;
        while taken < count && self.has_unsent() {
            self.transmit_at = self.before(self.transmit_at);
            self.status(Half::Transmit, self.transmit_at).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
            taken += 1;
        }
        taken
    }

    fn after(&self, at: u32) -> u32 {
        if at + 1 == self.shape.frames() { 0 } else { at + 1 }
    }

    fn before(&self, at: u32) -> u32 {
        at.checked_sub(1).unwrap_or(self.shape.frames() - 1)
    }

    #[inline]
    fn place(&self, half: Half, at: u32) -> NonNull<u8> {
        let RingShape { block_bytes, blocks, frame_bytes } = self.shape;
        let per_block = self.shape.frames_per_block();
        let blocks_before = at / per_block + if matches!(half, Half::Transmit) { blocks } else { 0 };
        let offset = blocks_before as usize * block_bytes as usize + (at % per_block) as usize * frame_bytes as usize;
        // SAFETY: `at` is less than the number of frames, so this lies within the mapping.
        unsafe { self.base.add(offset) }
    }

    #[inline]
    fn status(&self, half: Half, at: u32) -> &AtomicU32 {
        // SAFETY: each place begins with its status, which both sides use as one word.
        unsafe { AtomicU32::from_ptr(self.place(half, at).cast::<u32>().as_ptr()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and not used any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes(self.shape)) };
    }
}

/// Returns the size of a page of memory.
pub(super) fn page_bytes() -> u32 {
    // SAFETY: only queries.
    u32::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn bytes(shape: RingShape) -> usize {
    2 * shape.block_bytes as usize * shape.blocks as usize
}
