//! Deadlines of one worker's FWPs: a hierarchical timing wheel (Varghese and Lauck, 1987).
//!
//! ```text
//!   level 0   | . . # . . . . # . |   64 slots of one tick each: what is due in the slot's tick
//!   level 1   | . # . . . . . . . |   64 slots of 64 ticks: taken apart into level 0 when the first of them comes
//!   ...                               up to level 8, which reaches as far as the clock does
//!                 `-> FWP -> FWP      lists through the FWPs' own nodes; a bit per slot tells whether there is one
//! ```
//!
//! A timer lies at the lowest level at which its tick and the present one differ in their slot's number only: so what comes next is in the
//! first slot that is taken of the lowest level where one is, and nothing that is empty is ever walked through, however long nobody
//! looked. No level is ever gone round.
//!
//! One timer per FWP, by its place in the node. To set, to cancel and to look whether anything is due take constant time; to let time pass
//! takes a step for each timer that is due or comes one level down, and no more steps at once than the caller allows. Nothing is
//! allocated after it was made. Called by [`crate::worker`] alone, on its thread.

#[cfg(test)]
mod tests;

use pinion_mma::id::FwpId;

/// A tick's nanoseconds, as a power of two: some 16 us. A timer is late by less than that, and never early.
const TICK_BITS: u32 = 14;
/// Slots of a level, as a power of two: a word of bits.
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// So many that every tick has its place: no deadline is too far away.
const LEVELS: usize = (u64::BITS - TICK_BITS).div_ceil(SLOT_BITS) as usize;
/// Timers of a slot that are looked at to know when to wake.
const WALK_MAX: usize = 16;
/// The list of what was taken out of the last slot whose time has come, behind those of all slots.
const DUE: usize = LEVELS * SLOTS;

/// An FWP's timer, or where a list begins and ends.
#[derive(Clone, Copy)]
struct Node {
    /// It is due when this tick begins.
    tick: u64,
    next: u32,
    previous: u32,
    /// Of the FWP that set it.
    generation: u32,
}

/// See the module.
pub struct Timers {
    /// The last tick for which everything was done, but for what is in the list [`DUE`].
    now: u64,
    /// Levels that are not empty, a bit each.
    levels: u32,
    /// By level: slots that are not empty, a bit each.
    slots: [u64; LEVELS],
    /// By place: whether its timer is set. Apart from the nodes, so that FWPs without a timer never touch theirs.
    is_set: Box<[u64]>,
    /// By place; behind them, those of the lists.
    nodes: Box<[Node]>,
    places: usize,
}

impl Timers {
    /// For FWPs of index below `places`; none is set.
    ///
    /// # Panics
    /// If there are more than four thousand million.
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

    /// Sets the FWP's timer, or sets it anew. A deadline that has passed is due in the next tick. Constant time.
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

    /// Clears the FWP's timer, if it is set and not another's who has the place now. Constant time.
    #[inline]
    pub fn cancel(&mut self, id: FwpId) {
        let place = id.index as usize;
        if self.has_timer(place) && self.nodes[place].generation == id.generation {
            self.clear(place);
        }
    }

    /// When to look again, in nanoseconds: no timer is due before. Constant time.
    #[inline]
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.next_tick().map(|tick| tick.saturating_mul(1 << TICK_BITS))
    }

    /// The same for whoever sleeps meanwhile, and pays for each time that it wakes in vain: the first deadline itself, unless many share its
    /// slot. Constant time.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        let next_tick = self.next_tick()?;
        let tick = if self.first_due().is_some() { next_tick } else { self.first_tick().unwrap_or(next_tick) };
        Some(tick.saturating_mul(1 << TICK_BITS))
    }

    /// The first tick at which a timer is due, if none is now and few are in its slot.
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

    /// Lets time pass, and tells of the FWPs whose deadlines have passed, in their order; their timers are clear then. Takes `steps_max`
    /// steps at most, and returns how many: if all, there may be more to do.
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

    /// When the next slot's time comes; now, if one is not done with yet.
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

    /// Level and number of the slot whose time comes first.
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

    /// Puts a timer where its tick belongs.
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

    /// The slot that begins with this tick, the first of all, has its time: what is in it is to be looked at one by one.
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

    /// Appends to a list.
    #[inline]
    fn link(&mut self, place: usize, list: usize) {
        let end = self.places + list;
        let last = self.nodes[end].previous;
        (self.nodes[place].next, self.nodes[place].previous) = (end as u32, last);
        self.nodes[last as usize].next = place as u32;
        self.nodes[end].previous = place as u32;
    }

    /// Takes out of whichever list it is in.
    #[inline]
    fn unlink(&mut self, place: usize) {
        let Node { next, previous, .. } = self.nodes[place];
        self.nodes[previous as usize].next = next;
        self.nodes[next as usize].previous = previous;
        if next == previous {
            // Only the list's own node has itself on both sides now.
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
