//! The MMA's end of its link with the gateway: received frames, frames to transmit, and the buffers between.
//!
//! When a received frame has been copied, its buffer is reused for the next frame to transmit. So buffers circulate
//! within the MMA while they are still in its cache, and only a surplus or a shortage is exchanged with the gateway.
//! Tenants share the buffers for frames to transmit: see [`crate::accounts::leaving`].
//! Entries staged during a poll are published at its end. Nothing is allocated after construction.

use crate::accounts::leaving::{Leaving, LeavingCounts, PER_FREE};
use crate::buffer::{Buffer, Frame};
use crate::id::{PortIndex, Sender, TenantIndex};
use crate::link::{Inbound, MmaLink, Outbound};
use crate::rings::spsc::{Consumer, Producer, Staging, Taking};

/// Most buffers that the MMA keeps for reuse.
const KEPT_MAX: usize = 256;
/// The MMA keeps at most one in so many of a link's buffers: enough must be left to receive frames while none is
/// transmitted.
const KEPT_PART: usize = 8;

pub(crate) struct GatewayLink {
    link: MmaLink,
    /// Empty buffers; the one used last is on top.
    kept: Vec<Buffer>,
    kept_max: usize,
    leaving: Leaving,
    /// Whether the gateway was given anything since its doorbell was rung.
    given: bool,
}

/// Why a frame could not be transmitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TxBlocked {
    /// No buffer is free now for this tenant.
    NoBuffer,
    /// The frame is longer than a buffer.
    TooLong,
}

/// Takes back buffers that are no longer needed.
pub(crate) struct FreeBatch<'d> {
    kept: &'d mut Vec<Buffer>,
    kept_max: usize,
    spent: &'d mut Producer<Buffer>,
    given: &'d mut bool,
}

impl FreeBatch<'_> {
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

/// Transmits several frames of a sender.
pub(crate) struct Exit<'d> {
    sender: Sender,
    leaving: &'d mut Leaving,
    kept: &'d mut Vec<Buffer>,
    empty: &'d mut Consumer<Buffer>,
    outbound: Staging<'d, Outbound>,
    given: &'d mut bool,
}

impl Exit<'_> {
    /// Transmits a frame of `len` bytes, which `fill` writes, on a port.
    #[inline(always)]
    pub(crate) fn send(&mut self, len: u32, port: PortIndex, fill: impl FnOnce(&mut [u8])) -> Result<(), TxBlocked> {
        if !self.has_buffer() {
            return Err(TxBlocked::NoBuffer);
        }
        let Some(mut buffer) = self.kept.pop().or_else(|| self.empty.take()) else { return Err(TxBlocked::NoBuffer) };
        if len > buffer.capacity() {
            // It was popped from there, so there is room.
            self.kept.push(buffer);
            return Err(TxBlocked::TooLong);
        }
        fill(buffer.bytes_mut(len));
        *self.given = true;
        let frame = Frame::new(buffer, len).of_port(port);
        let staged = self.outbound.stage(Outbound { frame, sender: self.sender });
        debug_assert!(staged.is_ok(), "more buffers on loan than the link was made for");
        self.leaving.add(self.sender.tenant);
        Ok(())
    }

    /// Returns whether there is a buffer for this tenant.
    #[inline(always)]
    fn has_buffer(&mut self) -> bool {
        // Neither reads what the gateway writes.
        let known = self.kept.len() + self.empty.ready(0);
        (self.leaving.count(self.sender.tenant) < PER_FREE * known && !self.leaving.is_full()) || self.has_buffer_now()
    }

    /// The same, with what the gateway has taken and lent meanwhile.
    #[inline(never)]
    fn has_buffer_now(&mut self) -> bool {
        self.leaving.settle(self.outbound.waiting());
        let wanted = self.leaving.count(self.sender.tenant) / PER_FREE + 1;
        // The gateway may have taken frames since the first line, and lent their buffers.
        self.kept.len() + self.empty.ready(wanted) >= wanted && !self.leaving.is_full()
    }
}

impl GatewayLink {
    pub(crate) fn new(link: MmaLink) -> Self {
        let kept_max = KEPT_MAX.min(link.inbound.capacity() / KEPT_PART);
        let leaving = Leaving::new(link.outbound.capacity());
        // One more than `kept_max`: a buffer may be taken from the gateway and turn out too short.
        Self { link, kept: Vec::with_capacity(kept_max + 1), kept_max, leaving, given: false }
    }

    /// Returns how many frames of each tenant wait to leave, for other threads.
    pub(crate) fn leaving_counts(&self) -> LeavingCounts {
        self.leaving.counts(self.link.outbound.view())
    }

    /// Returns the number of received frames that wait, `max` at most.
    #[inline]
    pub(crate) fn waiting(&mut self, max: usize) -> usize {
        self.link.inbound.ready(max).min(max)
    }

    /// Returns up to `max` received frames, to be taken, and where to return their buffers.
    #[inline]
    pub(crate) fn intake(&mut self, max: usize) -> (Taking<'_, Inbound>, FreeBatch<'_>) {
        let Self { link, kept, kept_max, given, .. } = self;
        (link.inbound.taking(max), FreeBatch { kept, kept_max: *kept_max, spent: &mut link.spent, given })
    }

    /// Takes back a buffer that is no longer needed.
    #[inline]
    pub(crate) fn keep(&mut self, buffer: Buffer) {
        let Self { link, kept, kept_max, given, .. } = self;
        FreeBatch { kept, kept_max: *kept_max, spent: &mut link.spent, given }.keep(buffer);
    }

    /// Returns the means to transmit several frames of a sender.
    #[inline]
    pub(crate) fn outlet(&mut self, sender: Sender) -> Exit<'_> {
        let Self { link, kept, leaving, given, .. } = self;
        // The ring holds every buffer that can be on loan, so there is room for all that come.
        Exit { sender, leaving, kept, empty: &mut link.empty, outbound: link.outbound.staging(), given }
    }

    /// Returns whether there is a buffer for transmission for a tenant.
    #[inline]
    pub(crate) fn may_send(&mut self, tenant: TenantIndex) -> bool {
        self.outlet(Sender::of(tenant)).has_buffer()
    }

    /// Returns whether a buffer for transmission is available, for some tenant.
    #[inline]
    pub(crate) fn has_empty(&mut self) -> bool {
        !self.kept.is_empty() || self.link.empty.ready(1) > 0
    }

    /// Publishes what was staged and taken in this poll.
    #[inline]
    pub(crate) fn publish(&mut self) {
        self.link.inbound.release();
        let given = std::mem::take(&mut self.given);
        if given {
            self.link.spent.publish();
            self.link.outbound.publish();
        }
        // After the frames in these buffers, so that the gateway, which counts both, misses none.
        self.link.empty.release();
        if given {
            self.link.gateway.ring();
        }
    }

    /// Returns whether a received frame waits.
    pub(crate) fn has_work(&mut self) -> bool {
        self.link.inbound.ready(1) > 0
    }
}
