//! The MMA's end of its link with the gateway: frames in, frames out, and the buffers between.
//!
//! A received frame's buffer, once its frame is copied, serves for the next frame that leaves: so buffers go round
//! within the MMA, still warm in its cache, and only what is too many or too few goes to and fro. What is staged in a
//! poll is published at its end. Allocates nothing after it was made.

use crate::buffer::{Buffer, Frame};
use crate::id::PortIndex;
use crate::link::{Inbound, MmaLink};
use crate::spsc::{Consumer, Producer, Staging, Taking};

/// Buffers that the MMA keeps to itself at most.
const KEPT_MAX: usize = 256;
/// Which part of a link's buffers that may be: so many must be left that frames still come in when no frame leaves.
const KEPT_PART: usize = 8;

pub(crate) struct Dock {
    link: MmaLink,
    /// Empty buffers, the one last used on top.
    kept: Vec<Buffer>,
    kept_max: usize,
    /// Whether the gateway was given anything since its bell was rung.
    given: bool,
}

/// Why a frame could not leave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// There is no buffer now.
    NoBuffer,
    /// No buffer is that long.
    TooLong,
}

/// Where buffers go that are done with.
pub(crate) struct Shelf<'d> {
    kept: &'d mut Vec<Buffer>,
    kept_max: usize,
    spent: &'d mut Producer<Buffer>,
    given: &'d mut bool,
}

impl Shelf<'_> {
    #[inline(always)]
    pub(crate) fn keep(&mut self, buffer: Buffer) {
        if self.kept.len() < self.kept_max {
            self.kept.push(buffer);
            return;
        }
        // The ring holds every buffer that can be on loan, so there is room.
        let staged = self.spent.stage(buffer);
        debug_assert!(staged.is_ok(), "more buffers on loan than the link was made for");
        *self.given = true;
    }
}

/// The way out for several frames.
pub(crate) struct Exit<'d> {
    kept: &'d mut Vec<Buffer>,
    empty: &'d mut Consumer<Buffer>,
    outbound: Staging<'d, Frame>,
    given: &'d mut bool,
}

impl Exit<'_> {
    /// Sends a frame of `len` bytes, which `fill` writes, out by a port.
    #[inline(always)]
    pub(crate) fn send(&mut self, len: u32, port: PortIndex, fill: impl FnOnce(&mut [u8])) -> Result<(), Stuck> {
        let Some(mut buffer) = self.kept.pop().or_else(|| self.empty.take()) else { return Err(Stuck::NoBuffer) };
        if len > buffer.capacity() {
            // It came from there, so there is room.
            self.kept.push(buffer);
            return Err(Stuck::TooLong);
        }
        fill(buffer.bytes_mut(len));
        *self.given = true;
        let staged = self.outbound.stage(Frame::new(buffer, len).of_port(port));
        debug_assert!(staged.is_ok(), "more buffers on loan than the link was made for");
        Ok(())
    }
}

impl Dock {
    pub(crate) fn new(link: MmaLink) -> Self {
        let kept_max = KEPT_MAX.min(link.inbound.capacity() / KEPT_PART);
        // And one that was taken from elsewhere and turned out too short.
        Self { link, kept: Vec::with_capacity(kept_max + 1), kept_max, given: false }
    }

    /// Received frames that wait here, `max` at most.
    #[inline]
    pub(crate) fn waiting(&mut self, max: usize) -> usize {
        self.link.inbound.ready(max).min(max)
    }

    /// Those frames, to be taken, and where their buffers go.
    #[inline]
    pub(crate) fn intake(&mut self, max: usize) -> (Taking<'_, Inbound>, Shelf<'_>) {
        let Self { link, kept, kept_max, given } = self;
        (link.inbound.taking(max), Shelf { kept, kept_max: *kept_max, spent: &mut link.spent, given })
    }

    /// Takes a buffer that is done with.
    #[inline]
    pub(crate) fn keep(&mut self, buffer: Buffer) {
        let Self { link, kept, kept_max, given } = self;
        Shelf { kept, kept_max: *kept_max, spent: &mut link.spent, given }.keep(buffer);
    }

    /// To send several frames out.
    #[inline]
    pub(crate) fn outlet(&mut self) -> Exit<'_> {
        let Self { link, kept, given, .. } = self;
        // The ring holds every buffer that can be on loan, so there is room for all that come.
        Exit { kept, empty: &mut link.empty, outbound: link.outbound.staging(), given }
    }

    /// Whether a frame could leave now.
    #[inline]
    pub(crate) fn has_empty(&mut self) -> bool {
        !self.kept.is_empty() || self.link.empty.ready(1) > 0
    }

    /// Hands over what was staged and taken in this poll.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.link.inbound.release();
        self.link.empty.release();
        if std::mem::take(&mut self.given) {
            self.link.spent.publish();
            self.link.outbound.publish();
            self.link.gateway.ring();
        }
    }

    /// Whether a frame waits here.
    pub(crate) fn has_work(&mut self) -> bool {
        self.link.inbound.ready(1) > 0
    }
}
