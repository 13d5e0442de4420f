//! A worker's side of one FWP: the guest's rings, and which slots the guest owns.
//!
//! ```text
//!        guest memory           |            host memory
//!   receive ring  <-- publish --|-- [deliver ring]  <-- MMA
//!   transmit ring --- collect --|-> [transmit ring] --> MMA
//!                               |   granted: the slots the guest owns
//! ```
//!
//! A worker calls [`Mailbox::publish`] before a guest's turn and [`Mailbox::collect`] after it, never while the guest
//! is running. Every value is read from guest memory once, then validated: indices against the mailbox's own, slots
//! against what was granted. An invalid value is a [`Violation`], for which the FWP is stopped. No operation blocks or
//! allocates; each is bounded by the ring's size.
#![allow(unsafe_code)] // Owns the boundary between the worker and the rings in guest memory.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use pinion_abi::{Descriptor, PORT_DROP, PORT_REPLY, RX_HEADROOM, TX_CHECKSUM};
use quanta::Instant;

use crate::accounts::copying::CopyingBill;
use crate::accounts::counters::FwpCounters;
use crate::guest::checksums;
pub use crate::guest::entries::{Delivery, Transmission, TxTarget};
use crate::guest::guest_rings::GuestRings;
use crate::guest::pool::PoolLayout;
use crate::guest::provision::next_step;
use crate::id::SlotIndex;
use crate::rings::phased::{Consumer, Producer};
use crate::tuning::prefetch;
use crate::ways::{Arrival, Way, WaySet};

/// Most bytes of the guest's own slots that are collected at once when they are sent for the first time: they are touched
/// then, and the guest may not have done that.
const OWN_BYTES_MAX: u32 = 256 * 1024;

/// Most bytes of frames of which the checksums are computed when they are collected at once.
const CHECKSUM_BYTES_MAX: u32 = 256 * 1024;

/// A guest's breach of the protocol of its rings. A correct guest makes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The transmit ring's index moved by more than the ring's length, or backwards.
    #[error("its transmit index moved from {head} to {tail}, in a ring of {entries}")]
    IndexJump {
        /// Index up to which the host had read.
        head: u32,
        /// Index that the guest wrote.
        tail: u32,
        /// Number of the ring's entries.
        entries: u32,
    },
    /// A descriptor for a slot that the guest does not own: not granted, outside the pool, or already given up.
    #[error("it sent slot {0}, which it does not own")]
    SlotNotOwned(u16),
    /// A descriptor whose range reaches beyond its slot, or is empty.
    #[error("it sent {len} bytes at offset {offset} of a slot of {slot_size}")]
    Range {
        /// The frame's start.
        offset: u16,
        /// The frame's length.
        len: u16,
        /// The slot's size.
        slot_size: u32,
    },
    /// A descriptor for an output that does not exist.
    #[error("it sent to output {0}, which its chain does not have")]
    UnknownOutput(u16),
    /// A descriptor for one of the guest's own slots that names a way by which no frame has come.
    #[error("it sent a packet that it made by way {0}, by which none has come: name the way of a received packet")]
    UnknownWay(u16),
}

/// Bits of what a worker leaves for an FWP's next turn.
const LEFT_DESCRIPTORS: u8 = 1;
const LEFT_SLOTS: u8 = 2;

/// Pages that a worker has provided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Providing {
    /// How long that took, in nanoseconds. It is no time of the guest's own.
    pub took_ns: u64,
    /// Slots have come into use by it, of which the MMA is to be notified.
    pub is_news: bool,
}

/// The worker's side of one FWP.
pub struct Mailbox {
    rings: GuestRings,
    granted: SlotSet,
    /// The ways by which it has received frames.
    ways: WaySet,
    /// The guest's own slots, until its first packet: before that it must have nothing to send.
    own: Option<Range<u16>>,
    slot_size: u32,
    /// Number of slots, from the first on, that are not the guest's own.
    lent: u16,
    /// Slots before this one have their pages, and so have the guest's own in this set.
    provided: u16,
    own_provided: SlotSet,
    /// What was provided since that was asked for.
    providing: Option<Providing>,
    /// What was left for its next turn: descriptors in the guest's ring, and slots that were wanted.
    left: u8,
    /// Number of outputs that its chain gives the FWP.
    outputs: u16,
    rx_tail: u32,
    tx_head: u32,
    deliver: Consumer<Delivery>,
    transmit: Producer<Transmission>,
    copying: CopyingBill,
    counters: Arc<FwpCounters>,
}

/// What a mailbox is made of besides guest memory.
pub(crate) struct MailboxParts {
    pub(crate) outputs: u16,
    pub(crate) deliver: Consumer<Delivery>,
    pub(crate) transmit: Producer<Transmission>,
    pub(crate) counters: Arc<FwpCounters>,
}

impl Mailbox {
    /// # Safety
    /// As for [`crate::fwp::connect`].
    pub(crate) unsafe fn new(memory: NonNull<u8>, layout: &PoolLayout, parts: MailboxParts) -> Self {
        let header = layout.header();
        let MailboxParts { outputs, deliver, transmit, counters } = parts;
        Self {
            // SAFETY: the caller's promise.
            rings: unsafe { GuestRings::new(memory, layout) },
            granted: SlotSet::none(header.slot_count),
            ways: WaySet::default(),
            own: Some((header.slot_count - header.own_slots) as u16..header.slot_count as u16),
            slot_size: header.slot_size,
            lent: (header.slot_count - header.own_slots) as u16,
            provided: layout.provided(),
            own_provided: SlotSet::none(if header.own_slots > 0 { header.slot_count } else { 0 }),
            providing: None,
            left: 0,
            outputs,
            rx_tail: 0,
            tx_head: 0,
            deliver,
            transmit,
            copying: CopyingBill::default(),
            counters,
        }
    }

    /// Takes the entries of the guest's transmit ring, validates each descriptor, and pushes the valid ones to the
    /// MMA's ring. Returns how many; the caller then notifies the MMA. Of the guest's own slots that were never sent
    /// before, and of frames of which the checksums are to be computed, some may be left for the next call, with all that
    /// is behind them.
    ///
    /// # Errors
    /// The first violation. Descriptors before it have been pushed; none after it will be.
    #[inline]
    pub fn collect(&mut self) -> Result<u32, Violation> {
        let tail = self.rings.tx_tail();
        let count = tail.wrapping_sub(self.tx_head);
        self.left &= !LEFT_DESCRIPTORS;
        if count == 0 {
            return Ok(0);
        }
        if count > self.rings.entries() {
            return Err(Violation::IndexJump { head: self.tx_head, tail, entries: self.rings.entries() });
        }
        let (mut judged, mut collected, mut bytes, mut own_bytes) = (Ok(()), 0, 0, OWN_BYTES_MAX);
        let mut checksum_bytes = CHECKSUM_BYTES_MAX;
        while collected < count {
            let descriptor = self.rings.tx_entry(self.tx_head);
            let wants_checksums = descriptor.flags & TX_CHECKSUM != 0;
            if wants_checksums {
                let Some(left) = checksum_bytes.checked_sub(descriptor.len.into()) else {
                    self.left |= LEFT_DESCRIPTORS;
                    break;
                };
                checksum_bytes = left;
            }
            if self.is_first_of_own(&descriptor) {
                if own_bytes < self.slot_size {
                    self.left |= LEFT_DESCRIPTORS;
                    break;
                }
                own_bytes -= self.slot_size;
                self.provide_own(SlotIndex(descriptor.slot));
            }
            match self.judge(descriptor) {
                Ok(transmission) => {
                    // Of a frame that is dropped, the length is whatever the guest wrote.
                    bytes += if transmission.to == TxTarget::Drop { 0 } else { u64::from(transmission.len) };
                    if wants_checksums && transmission.to != TxTarget::Drop {
                        self.complete_checksums(transmission.slot, transmission.offset, transmission.len);
                    }
                    self.transmit.push(transmission);
                }
                Err(violation) => {
                    judged = Err(violation);
                    break;
                }
            }
            self.tx_head = self.tx_head.wrapping_add(1);
            collected += 1;
        }
        self.rings.set_tx_head(self.tx_head);
        self.copying.note(u64::from(collected), bytes);
        judged.map(|()| collected)
    }

    /// Inlined: its result is larger than what registers hold.
    #[inline(always)]
    fn judge(&mut self, descriptor: Descriptor) -> Result<Transmission, Violation> {
        let Descriptor { slot, offset, len, port, way, .. } = descriptor;
        let to = match port {
            output if output < self.outputs => TxTarget::Output(output as u8),
            PORT_REPLY => TxTarget::Reply,
            PORT_DROP => TxTarget::Drop,
            other => return Err(Violation::UnknownOutput(other)),
        };
        let within = u32::from(offset) + u32::from(len) <= self.slot_size;
        if to != TxTarget::Drop && (!within || len == 0) {
            return Err(Violation::Range { offset, len, slot_size: self.slot_size });
        }
        if !self.granted.revoke(SlotIndex(slot)) {
            return Err(Violation::SlotNotOwned(slot));
        }
        if to == TxTarget::Drop {
            self.counters.guest.dropped.add(1);
        } else if slot >= self.lent && !self.ways.has(way) {
            return Err(Violation::UnknownWay(way));
        }
        Ok(Transmission { slot: SlotIndex(slot), offset, len, way: Way::of_number(way), to })
    }

    /// Computes the checksums of a frame that is about to be pushed to the MMA. It takes parts of the transmission, which
    /// so stays in registers.
    #[inline(never)]
    fn complete_checksums(&mut self, slot: SlotIndex, offset: u16, len: u16) {
        let start = usize::from(offset);
        // SAFETY: `judge` has checked the range, and taken the slot from the guest, which is not running. The MMA is told of
        // the slot after this.
        let frame = unsafe { self.rings.slot_bytes(slot, start..start + usize::from(len)) };
        checksums::complete(frame);
    }

    /// Returns whether one of the guest's own slots is sent for the first time.
    #[inline(always)]
    fn is_first_of_own(&self, descriptor: &Descriptor) -> bool {
        let slot = descriptor.slot;
        slot >= self.lent && self.granted.has(SlotIndex(slot)) && !self.own_provided.has(SlotIndex(slot))
    }

    #[cold]
    fn provide_own(&mut self, slot: SlotIndex) {
        self.own_provided.grant(slot);
        self.touch(slot.0..slot.0 + 1);
    }

    fn touch(&mut self, slots: Range<u16>) {
        let began = Instant::now();
        self.rings.touch_slots(slots);
        self.providing.get_or_insert_default().took_ns += began.elapsed().as_nanos() as u64;
    }

    /// Returns whether descriptors were left in the guest's ring when it was collected last.
    #[inline]
    pub fn has_left_some(&self) -> bool {
        self.left & LEFT_DESCRIPTORS != 0
    }

    /// Returns whether its worker has not come to the end of something in its last turn: of providing slots, or of collecting.
    #[inline]
    pub fn is_owed(&self) -> bool {
        self.left != 0
    }

    /// Returns whether the MMA wants more slots.
    #[inline]
    fn needs_slots(&self) -> bool {
        self.counters.guest.slots.wanted() > self.provided
    }

    /// Provides slots if the MMA wants some. To be called in a turn of the FWP, and when it is preempted; then see
    /// [`Mailbox::take_providing`].
    #[inline]
    pub fn provide(&mut self) {
        if self.needs_slots() {
            self.provide_step();
        }
    }

    #[cold]
    fn provide_step(&mut self) {
        let wanted = self.counters.guest.slots.wanted().min(self.lent);
        let step = next_step(self.provided, wanted, self.slot_size);
        self.provided = step.end;
        self.touch(step);
        self.counters.guest.slots.provide(self.provided);
        self.left &= !LEFT_SLOTS;
        if self.provided < wanted {
            self.left |= LEFT_SLOTS;
        }
        self.providing.get_or_insert_default().is_news = true;
    }

    /// Lets so much time count as time for providing, all that was counted since [`Mailbox::take_providing`] included.
    pub fn count_as_providing(&mut self, took_ns: u64) {
        self.providing.get_or_insert_default().took_ns = took_ns;
    }

    /// Returns what the worker has provided since the last call.
    #[inline]
    pub fn take_providing(&mut self) -> Option<Providing> {
        // Seldom is there something to take.
        if self.providing.is_some() { self.providing.take() } else { None }
    }

    /// Writes what the MMA has delivered into the guest's receive ring. `shown_us` returns what the guest is shown of the
    /// time at which a frame came: no more than its clock shows. Returns the number of entries, returned slots included.
    pub fn publish(&mut self, mut shown_us: impl FnMut(Arrival) -> u32) -> u32 {
        let (rings, granted, ways, rx_tail) = (&self.rings, &mut self.granted, &mut self.ways, &mut self.rx_tail);
        let count = self.deliver.take_batch(rings.entries() as usize, |delivery| {
            let Delivery { slot, len, came, facts } = delivery;
            let offset = RX_HEADROOM as u16;
            granted.grant(slot);
            rings.prefetch_payload(slot, offset);
            let mut descriptor = Descriptor { slot: slot.0, offset, len, ..Descriptor::default() };
            // Only a frame has come by a way.
            if len > 0 {
                let way = came.way();
                ways.add(way);
                (descriptor.port, descriptor.flags, descriptor.way) = (way.port().0, facts.into(), way.number());
                descriptor.arrived = shown_us(came.arrived());
            }
            rings.set_rx_entry(*rx_tail, descriptor);
            *rx_tail = rx_tail.wrapping_add(1);
        });
        if count > 0 {
            rings.set_rx_tail(*rx_tail);
            if let Some(own) = self.own.take() {
                own.map(SlotIndex).for_each(|slot| granted.grant(slot));
            }
            // Most guests send what they receive: by then the ring's entries are in the cache.
            self.transmit.prefetch_row(count);
        }
        count as u32
    }

    /// Returns whether there is something to do without the guest's having waited: to publish, to provide, or to collect.
    #[inline]
    pub fn has_input(&mut self) -> bool {
        self.deliver.ready(1) > 0 || self.is_owed()
    }

    /// Prefetches what has been delivered, except the packets. Do not call it while the MMA may be delivering: that
    /// would take the cache lines that it writes.
    #[inline]
    pub fn prefetch_delivered(&self) {
        self.deliver.prefetch();
    }

    /// Prefetches one line of the page that the rings are on, so that its address translation is in the TLB.
    #[inline]
    pub fn prefetch_page(&self) {
        prefetch::to_read(self.rings.rx.as_ptr());
    }

    /// Prefetches everything else that a turn of one packet touches.
    #[inline]
    pub fn prefetch(&self) {
        self.transmit.prefetch();
        self.rings.prefetch(self.rx_tail, self.tx_head);
        prefetch::to_write(self.granted.bits.as_ptr());
        prefetch::all_to_write(&self.counters.guest);
    }

    /// Returns for how long the MMA has copied what the FWP sent, in nanoseconds, as far as that is to be charged now;
    /// 0 as long as little was sent. To be called by the FWP's worker.
    #[inline(always)]
    pub fn copying_due_ns(&mut self) -> u64 {
        self.copying.due_ns(&self.counters.moved)
    }

    /// Returns the same for all that was not charged yet. To be called when the MMA has detached the FWP.
    pub fn settle_copying_ns(&mut self) -> u64 {
        self.copying.settle_ns(&self.counters.moved)
    }

    /// Returns the FWP's counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<FwpCounters> {
        &self.counters
    }
}

/// A set of slots: those that the guest owns, for one.
struct SlotSet {
    bits: Box<[u64]>,
}

impl SlotSet {
    fn none(slot_count: u32) -> Self {
        Self { bits: vec![0; slot_count.div_ceil(64) as usize].into() }
    }

    fn grant(&mut self, slot: SlotIndex) {
        self.bits[usize::from(slot.0) / 64] |= 1 << (slot.0 % 64);
    }

    fn has(&self, slot: SlotIndex) -> bool {
        self.bits.get(usize::from(slot.0) / 64).is_some_and(|bits| bits & (1 << (slot.0 % 64)) != 0)
    }

    /// Takes the slot from the guest; returns false if the guest did not own it.
    fn revoke(&mut self, slot: SlotIndex) -> bool {
        let (word, bit) = (usize::from(slot.0) / 64, 1 << (slot.0 % 64));
        match self.bits.get_mut(word) {
            Some(bits) if *bits & bit != 0 => {
                *bits &= !bit;
                true
            }
            _ => false,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::accounts::copying::CopyShare;
    use crate::fwp::connect;
    use crate::id::{FwpId, PortIndex, TenantIndex, WorkerIndex};
    use crate::wiring::{Accepted, Edge, Endpoint, Wiring};
    use pinion_abi::{POOL_MAGIC, PoolHeader};

    const ENTRIES: u32 = 8;
    const HEADER: PoolHeader = PoolHeader {
        magic: POOL_MAGIC,
        slot_count: 5,
        slot_size: 1600,
        slots: 1024,
        ring_entries: ENTRIES,
        rx_ring: 256,
        tx_ring: 512,
        own_slots: 0,
    };

    /// Both sides of an FWP, and a correct guest.
    struct Played {
        mailbox: Mailbox,
        endpoint: Box<Endpoint>,
        received: u32,
        sent: u32,
        _memory: Box<[u128]>,
    }

    impl Played {
        /// Starts all indices at `start`, as if that many frames had gone before.
        fn starting_at(start: u32) -> Self {
            let mut memory = vec![0_u128; 1024].into_boxed_slice();
            let bytes = size_of_val(&*memory);
            let layout = PoolLayout::check(HEADER, bytes).unwrap();
            let id = FwpId { index: 0, generation: 0 };
            let place = NonNull::from(&mut *memory).cast();
            let share = CopyShare { tenant: TenantIndex(0), weight: 1 };
            // SAFETY: the layout was checked against this memory, which lives as long as the two sides, and is aligned as
            // the rings are; the guest is played by the same thread.
            let (mut mailbox, endpoint) =
                unsafe { connect(id, place, &layout, WorkerIndex(0), share, Wiring::to(Edge::EgressWhereItCame)) };
            (mailbox.rx_tail, mailbox.tx_head) = (start, start);
            mailbox.rings.set_rx_tail(start);
            mailbox.rings.set_tx_head(start);
            let played = Self { mailbox, endpoint, received: start, sent: start, _memory: memory };
            played.set_tx_tail(start);
            played
        }

        fn rings(&self) -> &GuestRings {
            &self.mailbox.rings
        }

        fn set_tx_tail(&self, tail: u32) {
            // SAFETY: mapped and aligned.
            unsafe { (&raw mut (*self.rings().tx.as_ptr()).tail).write_volatile(tail) }
        }

        fn deliver(&mut self, frames: u32) {
            for _ in 0..frames {
                let mut intake = self.endpoint.inlet.open();
                let came = intake.came_by.arriving(PortIndex(0), Arrival::at(0));
                let accepted = intake.accept(100, came, 0, |_, _, _| ());
                assert_eq!(accepted, Accepted::Yes);
            }
        }

        /// Takes what was published, as a guest does.
        fn receive(&mut self) -> Vec<Descriptor> {
            // SAFETY: mapped and aligned.
            let tail = unsafe { (&raw const (*self.rings().rx.as_ptr()).tail).read_volatile() };
            let mut descriptors = Vec::new();
            while self.received != tail {
                // SAFETY: mapped and aligned.
                descriptors.push(unsafe { self.rings().entry(self.rings().rx, self.received).read_volatile() });
                self.received = self.received.wrapping_add(1);
            }
            descriptors
        }

        fn send(&mut self, descriptor: Descriptor) {
            // SAFETY: mapped and aligned.
            unsafe { self.rings().entry(self.rings().tx, self.sent).write_volatile(descriptor) };
            self.sent = self.sent.wrapping_add(1);
            self.set_tx_tail(self.sent);
        }

        /// Frees the slots that were collected, as the MMA does.
        fn move_output(&mut self) {
            while let Some(sent) = self.endpoint.transmit.taking(1).take() {
                self.endpoint.inlet.free.push(sent.slot);
            }
        }
    }

    #[test]
    fn both_rings_go_on_over_the_wrap_of_their_indices() {
        for before in 0..2 * ENTRIES {
            let mut played = Played::starting_at(0_u32.wrapping_sub(before));
            for round in 0..20 {
                let frames = 1 + round % HEADER.slot_count;
                played.deliver(frames);
                assert_eq!(played.mailbox.publish(|_| 0), frames);
                let received = played.receive();
                assert_eq!(received.len(), frames as usize, "{before} before the wrap, round {round}");
                for descriptor in received {
                    played.send(Descriptor { port: PORT_REPLY, ..descriptor });
                }
                assert_eq!(played.mailbox.collect(), Ok(frames), "{before} before the wrap, round {round}");
                played.move_output();
            }
            assert_eq!(played.mailbox.tx_head, played.sent);
            assert!(played.sent < 1 << 16, "it has wrapped");
        }
    }

    #[test]
    fn a_jump_of_the_transmit_index_is_detected_on_either_side_of_the_wrap() {
        for start in [u32::MAX - 20, u32::MAX - 8, u32::MAX - 7, u32::MAX - 3, u32::MAX, 0, 3] {
            for jump in [ENTRIES + 1, ENTRIES + 2, 1 << 16, 1 << 31, u32::MAX - ENTRIES, u32::MAX - 1, u32::MAX] {
                let mut played = Played::starting_at(start);
                played.deliver(1);
                played.mailbox.publish(|_| 0);
                let tail = start.wrapping_add(jump);
                played.set_tx_tail(tail);
                let expected = Violation::IndexJump { head: start, tail, entries: ENTRIES };
                assert_eq!(played.mailbox.collect(), Err(expected));
                assert_eq!(played.endpoint.transmit.taking(1).take(), None);
            }
        }
    }

    #[test]
    fn deliveries_over_the_wrap_while_the_guest_holds_slots_overwrite_no_entry() {
        let mut played = Played::starting_at(u32::MAX - 2);
        played.deliver(3);
        assert_eq!(played.mailbox.publish(|_| 0), 3);
        played.deliver(2);
        assert_eq!(played.mailbox.publish(|_| 0), 2);
        let mut slots: Vec<u16> = played.receive().iter().map(|descriptor| descriptor.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3, 4]);
    }
}
