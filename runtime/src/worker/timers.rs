//! Deadlines of one worker's FWPs: a hierarchical timing wheel (Varghese and Lauck, 1987).
//!
//! ```text
//!   level 0   | . . # . . . . # . |   64 slots of one tick each: what is due in the slot's tick
//!   level 1   | . # . . . . . . . |   64 slots of 64 ticks: taken apart into level 0 when the first of them comes
//!   ...                               up to level 8, which reaches as far as the clock does
//!                 `-> FWP -> FWP      lists through the FWPs' own nodes; a bit per slot tells whether there is one
//! ```
//!
//! A timer lies at the lowest level at which its tick and the current tick differ only in the slot's number. So the next timer is in the
//! first occupied slot of the lowest level that is not empty. Empty slots are never walked through, however much time has passed since the
//! last call. No level wraps around.
//!
//! There is one timer per FWP, by the FWP's index in the node. Setting, cancelling and checking for due timers take constant time.
//! Advancing the time takes one step for each timer that is due or moves down a level, and at most as many steps per call as the caller
//! allows. Nothing is allocated after creation. Called by [`crate::worker`] alone, on its thread.

#[cfg(test)]
mod tests;

use pinion_mma::id::FwpId;

/// A tick's nanoseconds, as a power of two: some 16 us. A timer is late by less than that, and never early.
const TICK_BITS: u32 = 14;
/// Slots of a level, as a power of two, so that a level's occupancy is one word of bits.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Enough levels for every tick: no deadline is too far away.
const LEVELS: usize = (u64::BITS - TICK_BITS).div_ceil(SLOT_BITS) as usize;
/// Timers of a slot that are inspected to find the time of the next wake-up.
const WALK_MAX: usize = 16;
/// The list of timers taken out of the last slot that came due. Its node lies behind those of all slots.
const DUE: usize = LEVELS * SLOTS;

/// An FWP's timer, or the head of a list.
#[derive(Clone, Copy)]
struct Node {
    /// The timer is due when this tick begins.
    tick: u64,
    next: u32,
    previous: u32,
    /// Generation of the FWP that set it.
    generation: u32,
}

/// See the module.
pub struct Timers {
    /// The last tick that was processed, except for what is in the list [`DUE`].
    now: u64,
    /// Levels that are not empty, one bit each.
    levels: u32,
    /// By level: slots that are not empty, one bit each.
    slots: [u64; LEVELS],
    /// By index: whether the timer is set. Apart from the nodes, so that FWPs without a timer never touch theirs.
    is_set: Box<[u64]>,
    /// By index; the heads of the lists lie behind them.
    nodes: Box<[Node]>,
    places: usize,
}

impl Timers {
    /// Creates timers for FWPs of index below `places`; none is set.
    ///
    /// # Panics
    /// If the number of nodes does not fit in 32 bits.
    #[must_use]
    pub fn new(places: usize) -> Self {
        let len = u32::try_from(places + DUE + 1).expect("an FWP's index has 32 bits");
        let alone = |at| Node { tick: 0, next: at, previous: at, generation: 0 };
        Self {
            now: 0,
            levels: 0,
            slots: [0; LEVELS],
            is_set: vec![0; places.div_ceil(64)].into(),
            nodes: (0..len).map(alone).collect(),
            places,
        }
    }

    /// Sets the FWP's timer, or replaces its deadline. A deadline that has passed is due in the next tick. Constant time.
    #[inline]
    pub fn set(&mut self, id: FwpId, deadline_ns: u64) {
        let place = id.index as usize;
        let tick = deadline_ns.div_ceil(1 << TICK_BITS).max(self.now + 1);
        if self.has_timer(place) {
            let node = &mut self.nodes[place];
            node.generation = id.generation;
            if node.tick == tick {
                return;
            }
            self.unlink(place);
        }
        self.is_set[place / 64] |= 1 << (place % 64);
        self.nodes[place] = Node { tick, generation: id.generation, ..self.nodes[place] };
        self.sort_in(place);
    }

    /// Clears the FWP's timer, unless it is not set or belongs to a later FWP with the same index. Constant time.
    #[inline]
    pub fn cancel(&mut self, id: FwpId) {
        let place = id.index as usize;
        if self.has_timer(place) && self.nodes[place].generation == id.generation {
            self.clear(place);
        }
    }

    /// Returns when to look again, in nanoseconds: no timer is due before. Constant time.
    #[inline]
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.next_tick().map(|tick| tick.saturating_mul(1 << TICK_BITS))
    }

    /// Returns when a sleeping thread should wake, in nanoseconds. This is the first deadline itself, unless many timers share its slot; an
    /// early wake-up would cost the thread for nothing. Constant time.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        let next_tick = self.next_tick()?;
        let tick = if self.first_due().is_some() { next_tick } else { self.first_tick().unwrap_or(next_tick) };
        Some(tick.saturating_mul(1 << TICK_BITS))
    }

    /// Returns the first tick at which a timer is due, if none is due now and few timers are in its slot.
    fn first_tick(&self) -> Option<u64> {
        let (level, slot) = self.first_slot()?;
        let end = self.places + level * SLOTS + slot;
        let (mut first, mut at) = (u64::MAX, self.nodes[end].next as usize);
        for _ in 0..WALK_MAX {
            let node = self.nodes[at];
            first = first.min(node.tick);
            at = node.next as usize;
            if at == end {
                return Some(first);
            }
        }
        None
    }

    /// Advances the time, and calls `tell` for each FWP whose deadline has passed, in the order of the deadlines; those timers are clear
    /// afterwards. Takes at most `steps_max` steps, and returns how many. If it returns `steps_max`, there may be more to do.
    #[inline]
    pub fn expire(&mut self, now_ns: u64, steps_max: usize, mut tell: impl FnMut(FwpId)) -> usize {
        let until = now_ns >> TICK_BITS;
        let mut steps = 0;
        while let Some(tick) = self.next_tick().filter(|tick| *tick <= until) {
            if steps == steps_max {
                return steps;
            }
            steps += 1;
            match self.first_due() {
                Some(place) if self.nodes[place].tick <= self.now => {
                    self.clear(place);
                    tell(FwpId { index: place as u32, generation: self.nodes[place].generation });
                }
                Some(place) => {
                    self.unlink(place);
                    self.sort_in(place);
                }
                None => self.take_out(tick),
            }
        }
        self.now = self.now.max(until);
        steps
    }

    #[inline]
    fn has_timer(&self, place: usize) -> bool {
        self.is_set[place / 64] & 1 << (place % 64) != 0
    }

    #[inline]
    fn clear(&mut self, place: usize) {
        self.is_set[place / 64] &= !(1 << (place % 64));
        self.unlink(place);
    }

    /// Returns when the next slot comes due; now, if a due slot is not finished.
    #[inline]
    fn next_tick(&self) -> Option<u64> {
        if self.first_due().is_some() {
            return Some(self.now);
        }
        let (level, slot) = self.first_slot()?;
        let shift = level as u32 * SLOT_BITS;
        let beyond = self.now >> shift >> SLOT_BITS << SLOT_BITS;
        Some((beyond | slot as u64) << shift)
    }

    /// Returns level and number of the slot that comes due first.
    #[inline]
    fn first_slot(&self) -> Option<(usize, usize)> {
        let level = (self.levels != 0).then(|| self.levels.trailing_zeros() as usize)?;
        Some((level, self.slots[level].trailing_zeros() as usize))
    }

    #[inline]
    fn first_due(&self) -> Option<usize> {
        let first = self.nodes[self.places + DUE].next as usize;
        (first < self.places).then_some(first)
    }

    /// Links a timer into the slot of its tick.
    #[inline]
    fn sort_in(&mut self, place: usize) {
        let tick = self.nodes[place].tick;
        let level = ((tick ^ self.now) | 1).ilog2() / SLOT_BITS;
        let slot = (tick >> (level * SLOT_BITS)) as usize % SLOTS;
        let level = level as usize;
        self.levels |= 1 << level;
        self.slots[level] |= 1 << slot;
        self.link(place, level * SLOTS + slot);
    }

    /// Moves the timers of the first occupied slot, which begins with this tick, to the list of due timers. They are then processed one by
    /// one.
    fn take_out(&mut self, tick: u64) {
        self.now = tick;
        let Some((level, slot)) = self.first_slot() else { return };
        let (from, to) = (self.places + level * SLOTS + slot, self.places + DUE);
        let Node { next, previous, .. } = self.nodes[from];
        (self.nodes[to].next, self.nodes[to].previous) = (next, previous);
        self.nodes[next as usize].previous = to as u32;
        self.nodes[previous as usize].next = to as u32;
        (self.nodes[from].next, self.nodes[from].previous) = (from as u32, from as u32);
        self.note_empty(level * SLOTS + slot);
    }

    /// Appends a timer to a list.
    #[inline]
    fn link(&mut self, place: usize, list: usize) {
        let end = self.places + list;
        let last = self.nodes[end].previous;
        (self.nodes[place].next, self.nodes[place].previous) = (end as u32, last);
        self.nodes[last as usize].next = place as u32;
        self.nodes[end].previous = place as u32;
    }

    /// Unlinks a timer from the list that it is in.
    #[inline]
    fn unlink(&mut self, place: usize) {
        let Node { next, previous, .. } = self.nodes[place];
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
        if next == previous {
            // Both neighbours are the same node only if that is the head of a list that is now empty.
            self.note_empty(next as usize - self.places);
        }
    }

    #[inline]
    fn note_empty(&mut self, list: usize) {
        let (level, slot) = (list / SLOTS, list % SLOTS);
        if let Some(slots) = self.slots.get_mut(level) {
            *slots &= !(1 << slot);
            if *slots == 0 {
                self.levels &= !(1 << level);
            }
        }
    }
}
