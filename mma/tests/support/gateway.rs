//! The gateway's end of the link, with buffers on the heap.

use std::num::NonZero;
use std::ptr::NonNull;

use pinion_mma::buffer::{Buffer, Frame};
use pinion_mma::id::{self, FwpId, PortIndex};
use pinion_mma::link::{GatewayLink, Inbound, Outbound};

use super::memory::Memory;

/// A frame that has left the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) port: u16,
    pub(crate) bytes: Vec<u8>,
}

/// The gateway's half of the link, with buffers on the heap. Like the real one it never lends more than the link was
/// made for, empty buffers and received frames together. It asserts that each buffer comes back once.
pub(crate) struct Gateway {
    link: GatewayLink,
    memory: Memory,
    buffer_bytes: usize,
    pieces: Vec<Piece>,
    /// Buffers that are not lent, by number.
    home: Vec<usize>,
    lent_max: usize,
    /// Who has sent the frames that were collected.
    pub(crate) senders: Vec<id::Sender>,
    /// Most buffers that the MMA keeps for transmission, on a link for so many.
    pub(crate) kept_max: usize,
}

struct Piece {
    /// Its start, as an offset into the memory of all buffers.
    address: usize,
    lent: bool,
}

impl Gateway {
    pub(super) fn new(link: GatewayLink, lent_max: usize, buffer_bytes: usize) -> Self {
        // An odd number of cache lines apart, as in real pools: otherwise they would map to few cache sets.
        let apart = buffer_bytes.next_multiple_of(128) + 64;
        let piece = |number| Piece { address: number * apart, lent: false };
        let pieces = (0..lent_max).map(piece).collect();
        Self {
            link,
            memory: Memory::heap(lent_max * apart),
            buffer_bytes,
            pieces,
            home: (0..lent_max).collect(),
            lent_max,
            senders: Vec::new(),
            kept_max: (lent_max.next_power_of_two() / 8).min(256),
        }
    }

    fn lend(&mut self) -> Buffer {
        let number = self.home.pop().expect("a gateway lends no more than the link holds");
        let piece = &mut self.pieces[number];
        piece.lent = true;
        let token = NonNull::without_provenance(NonZero::new(number + 1).unwrap());
        // SAFETY: within the memory, which outlives the MMA (order of `House`'s fields); not touched here while it is lent.
        unsafe {
            let start = self.memory.start.add(piece.address);
            Buffer::from_raw_parts(start, self.buffer_bytes as u16, token)
        }
    }

    fn take_back(&mut self, buffer: Buffer) {
        let number = buffer.into_token().addr().get() - 1;
        assert!(std::mem::take(&mut self.pieces[number].lent), "a buffer came back twice");
        self.home.push(number);
    }

    /// Returns the number of buffers that the MMA holds.
    pub(crate) fn lent(&self) -> usize {
        self.lent_max - self.home.len()
    }

    /// Hands a received frame to the MMA.
    pub(crate) fn inject(&mut self, frame: &[u8], port: u16, target: FwpId) {
        let mut buffer = self.lend();
        buffer.bytes_mut(frame.len() as u32).copy_from_slice(frame);
        let frame = Frame::new(buffer, frame.len() as u32).of_port(PortIndex(port));
        self.link.inbound.push(Inbound { frame, target }).expect("room for every frame lent");
        self.link.mma.ring();
    }

    /// Lends empty buffers; returns how many it could lend.
    pub(crate) fn lend_empties(&mut self, wanted: usize) -> usize {
        let count = wanted.min(self.home.len());
        for _ in 0..count {
            let buffer = self.lend();
            self.link.empty.push(buffer).expect("room for every buffer lent");
        }
        count
    }

    /// Lends empty buffers until the MMA holds `lent` in total.
    pub(crate) fn top_up(&mut self, lent: usize) {
        self.lend_empties(lent.saturating_sub(self.lent()));
    }

    /// Takes what the MMA gives back: the frames to transmit, and buffers.
    pub(crate) fn collect(&mut self) -> Vec<Left> {
        self.take_spent();
        let mut left = Vec::new();
        while let Some(Outbound { frame, sender }) = self.link.outbound.pop() {
            self.senders.push(sender);
            left.push(Left { port: frame.port().0, bytes: frame.bytes().to_vec() });
            self.take_back(frame.into_buffer());
        }
        left
    }

    /// The same without looking at the frames; returns the number of frames.
    pub(crate) fn discard(&mut self) -> usize {
        self.take_spent();
        let mut count = 0;
        while let Some(Outbound { frame, .. }) = self.link.outbound.pop() {
            self.take_back(frame.into_buffer());
            count += 1;
        }
        count
    }

    /// Takes back buffers only, and leaves the frames to transmit in their ring.
    pub(crate) fn take_spent(&mut self) {
        while let Some(buffer) = self.link.spent.pop() {
            self.take_back(buffer);
        }
    }
}
