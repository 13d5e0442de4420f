//! A ring of descriptors between exactly two threads: single producer, single consumer, lock-free, and no index is
//! shared. A phase bit in each entry says whether the entry is valid, as in NVMe's completion queues.
//!
//! ```text
//!   first lap    | 1 a | 1 b | 1 c | 1 d |
//!   second lap   | 0 e | 0 f | 1 c | 1 d |     e and f are there; c and d are of the lap before
//! ```
//!
//! A shared index, as in [`crate::rings::spsc`], takes a cache line for each direction. The line moves from core to core with
//! each hand-over, and with thousands of rings it is in no cache when it is needed. Here only the entry's own line is
//! touched.
//!
//! The ring is never full: its owner ensures that no more entries are under way than it has room for. FWP slots fulfil
//! this, as each slot is in a ring at most once. Nothing blocks, and nothing allocates once the ring is made.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};
use crate::tuning;
use crate::tuning::prefetch::{self, LINE};

/// The bit of an entry that tells in which lap it was written.
const PHASE: u64 = 1 << 63;

/// A value that an entry can hold: at most 63 bits.
pub(crate) trait Entry: Copy {
    /// Returns the value as a number whose highest bit is zero.
    fn to_bits(self) -> u64;

    /// Returns the value of this number.
    fn from_bits(bits: u64) -> Self;
}

/// The ring's entries; their count is a power of two.
#[derive(Clone)]
struct Entries(Arc<[AtomicU64]>);

impl Entries {
    fn count(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicU64 {
        &self.0[index & (self.0.len() - 1)]
    }

    /// Returns whether the entry at an index was written in that index's lap. If so, all that was written before it is
    /// visible.
    #[inline(always)]
    fn has(&self, index: usize) -> bool {
        self.at(index).load(Ordering::Acquire) & PHASE == self.phase(index)
    }

    /// Returns the phase of what is written at an index; initially no entry has it.
    #[inline(always)]
    fn phase(&self, index: usize) -> u64 {
        if index & self.0.len() == 0 { PHASE } else { 0 }
    }
}

/// The writing side.
pub(crate) struct Producer<T> {
    places: Entries,
    /// Next index to be written.
    tail: usize,
    entries: PhantomData<T>,
}

/// The reading side.
pub(crate) struct Consumer<T> {
    places: Entries,
    /// Next index to be read.
    head: usize,
    /// All entries before this index are known to be valid.
    known: usize,
    entries: PhantomData<T>,
}

/// A view by which other threads can see whether the ring has entries.
pub(crate) struct View<T> {
    places: Entries,
    entries: PhantomData<T>,
}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        Self { places: self.places.clone(), entries: PhantomData }
    }
}

/// Makes a ring with up to `count` entries under way.
///
/// # Panics
/// If `count` is zero.
pub(crate) fn ring<T: Entry>(count: usize) -> (Producer<T>, Consumer<T>) {
    assert!(count > 0, "a ring needs room for at least one entry");
    let places = Entries((0..count.next_power_of_two()).map(|_| AtomicU64::new(0)).collect());
    let producer = Producer { places: places.clone(), tail: 0, entries: PhantomData };
    (producer, Consumer { places, head: 0, known: 0, entries: PhantomData })
}

impl<T: Entry> Producer<T> {
    /// Pushes an entry to the consumer and makes all earlier writes visible to it. There must be room.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: T) {
        let bits = entry.to_bits();
        debug_assert_eq!(bits & PHASE, 0, "that bit is the ring's");
        self.places.at(self.tail).store(bits | self.places.phase(self.tail), Ordering::Release);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Returns how many entries it has pushed so far; the number wraps around.
    #[inline(always)]
    pub(crate) fn pushed(&self) -> usize {
        self.tail
    }

    /// Prefetches the next entry to be written.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::to_write(self.places.at(self.tail));
    }

    /// Prefetches the next `count` entries to be written, which the consumer had last.
    #[inline]
    pub(crate) fn prefetch_row(&self, count: usize) {
        if !tuning::is_full() {
            return;
        }
        for at in (0..count.min(self.places.count())).step_by(LINE / size_of::<u64>()) {
            prefetch::to_write(self.places.at(self.tail.wrapping_add(at)));
        }
    }
}

impl<T: Entry> Consumer<T> {
    /// Prefetches the next entry.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::to_read(self.places.at(self.head));
    }

    /// Returns the oldest entry, if there is one.
    #[inline]
    pub(crate) fn first(&self) -> Option<T> {
        let is_there = self.places.has(self.head);
        is_there.then(|| T::from_bits(self.places.at(self.head).load(Ordering::Relaxed) & !PHASE))
    }

    /// Returns whether the ring is empty.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.known == self.head && !self.places.has(self.head)
    }

    /// Returns how many entries it has taken so far, which is the index of the next; the number wraps around.
    #[inline(always)]
    pub(crate) fn taken(&self) -> usize {
        self.head
    }

    /// Returns a view for other threads.
    pub(crate) fn view(&self) -> View<T> {
        View { places: self.places.clone(), entries: PhantomData }
    }

    /// Returns the number of entries that can be taken now. It may not have looked for those beyond `wanted`.
    #[inline]
    pub(crate) fn ready(&mut self, wanted: usize) -> usize {
        while self.known.wrapping_sub(self.head) < wanted {
            if !self.places.has(self.known) {
                break;
            }
            self.known = self.known.wrapping_add(1);
        }
        self.known.wrapping_sub(self.head)
    }

    /// Returns the entry `ahead` positions after the oldest one, if it is known to be valid.
    #[inline(always)]
    pub(crate) fn peek(&self, ahead: usize) -> Option<T> {
        (ahead < self.known.wrapping_sub(self.head)).then(|| {
            // It was acquired when it became known, and stays until this side has taken it.
            T::from_bits(self.places.at(self.head.wrapping_add(ahead)).load(Ordering::Relaxed) & !PHASE)
        })
    }

    /// Starts to take up to `max` of the entries that are there now.
    #[inline]
    pub(crate) fn taking(&mut self, max: usize) -> Taking<'_, T> {
        let left = self.ready(max).min(max);
        Taking { consumer: self, left }
    }

    /// Takes up to `max` of the oldest entries; returns how many.
    #[inline]
    pub(crate) fn take_batch(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let mut row = self.taking(max);
        let count = row.left;
        std::iter::from_fn(|| row.take()).for_each(&mut take);
        count
    }
}

impl<T> View<T> {
    /// Returns whether there is an entry at `index`. The reading side must have come to that index and no further.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.places.has(index)
    }
}

/// A row of entries being taken.
pub(crate) struct Taking<'r, T> {
    consumer: &'r mut Consumer<T>,
    left: usize,
}

impl<T: Entry> Taking<'_, T> {
    /// Returns the entry `ahead` positions after the next one, if the row is that long.
    #[inline(always)]
    pub(crate) fn peek(&self, ahead: usize) -> Option<T> {
        if ahead < self.left { self.consumer.peek(ahead) } else { None }
    }

    /// Takes the next entry.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<T> {
        let entry = self.peek(0)?;
        self.consumer.head = self.consumer.head.wrapping_add(1);
        self.left -= 1;
        Some(entry)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    impl Entry for u32 {
        fn to_bits(self) -> u64 {
            self.into()
        }

        fn from_bits(bits: u64) -> Self {
            bits as Self
        }
    }

    proptest! {
        #[test]
        fn entries_come_out_in_order_through_any_number_of_laps(
            places in 1_usize..9, steps in proptest::collection::vec((0_usize..9, 0_usize..9), 0..200),
        ) {
            let (mut tx, mut rx) = ring::<u32>(places);
            let (mut naive, mut number) = (VecDeque::new(), 0);
            for (pushed, taken) in steps {
                for _ in 0..pushed.min(places - naive.len()) {
                    tx.push(number);
                    naive.push_back(number);
                    number += 1;
                }
                prop_assert_eq!(rx.ready(usize::MAX), naive.len());
                let seen: Vec<_> = (0..places + 1).map_while(|ahead| rx.peek(ahead)).collect();
                prop_assert_eq!(&seen, &Vec::from(naive.clone()));
                let mut got = Vec::new();
                let count = rx.take_batch(taken, |entry| got.push(entry));
                let expected: Vec<_> = naive.drain(..taken.min(naive.len())).collect();
                prop_assert_eq!((count, got), (expected.len(), expected));
            }
            let rest: Vec<_> = std::iter::from_fn(|| rx.taking(1).take()).collect();
            prop_assert_eq!(rest, Vec::from(naive));
        }
    }

    #[test]
    fn a_row_is_no_longer_than_asked_for_and_leaves_the_rest() {
        let (mut tx, mut rx) = ring::<u32>(4);
        (0..4).for_each(|number| tx.push(number));
        let mut row = rx.taking(3);
        assert_eq!([row.take(), row.peek(0), row.peek(1), row.peek(2)], [Some(0), Some(1), Some(2), None]);
        assert_eq!([(); 4].map(|()| rx.taking(1).take()), [Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn a_million_entries_go_round_between_two_threads_in_order() {
        const PLACES: u32 = 64;
        let ((mut there_tx, mut there_rx), (mut back_tx, mut back_rx)) =
            (ring::<u32>(PLACES as usize), ring::<u32>(PLACES as usize));
        let far = std::thread::spawn(move || {
            for expected in 0..1_000_000 {
                let got = std::iter::repeat_with(|| there_rx.taking(1).take()).find_map(|got| {
                    if got.is_none() {
                        std::thread::yield_now();
                    }
                    got
                });
                assert_eq!(got, Some(expected));
                back_tx.push(expected);
            }
        });
        let (mut sent, mut back) = (0, 0);
        while back < 1_000_000 {
            while sent < 1_000_000 && sent - back < PLACES {
                there_tx.push(sent);
                sent += 1;
            }
            let count = back_rx.take_batch(usize::MAX, |got| {
                assert_eq!(got, back);
                back += 1;
            });
            if count == 0 {
                std::thread::yield_now();
            }
        }
        far.join().unwrap();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{UnsafeCell, explore};
    use loom::thread;

    /// The number of a slot.
    #[derive(Clone, Copy)]
    struct Slot(usize);

    impl Entry for Slot {
        fn to_bits(self) -> u64 {
            self.0 as u64
        }

        fn from_bits(bits: u64) -> Self {
            Self(bits as usize)
        }
    }

    /// Slots, each owned by the side that was handed it last: loom reports any concurrent access.
    struct Slots([UnsafeCell<u32>; 2]);
    // SAFETY: what this test checks.
    #[allow(unsafe_code)]
    unsafe impl Sync for Slots {}

    #[allow(unsafe_code)]
    #[test]
    fn writes_to_a_slot_before_its_hand_over_are_visible_through_several_laps() {
        explore(|| {
            let slots = Arc::new(Slots([0, 1].map(UnsafeCell::new)));
            let ((mut there_tx, mut there_rx), (mut back_tx, mut back_rx)) = (ring::<Slot>(2), ring::<Slot>(2));
            let far = thread::spawn({
                let slots = Arc::clone(&slots);
                move || {
                    for number in 0..4 {
                        let Slot(slot) = loop {
                            match there_rx.taking(1).take() {
                                Some(slot) => break slot,
                                None => thread::yield_now(),
                            }
                        };
                        // SAFETY: it was handed over.
                        slots.0[slot].with_mut(|value| unsafe {
                            assert_eq!(*value, 100 + number);
                            *value += 100;
                        });
                        back_tx.push(Slot(slot));
                    }
                }
            });
            let (mut free, mut back) = (vec![1, 0], 0);
            for number in 0..4 {
                let slot = loop {
                    if let Some(slot) = free.pop() {
                        break slot;
                    }
                    match back_rx.taking(1).take() {
                        Some(Slot(slot)) => {
                            // SAFETY: it was handed back.
                            slots.0[slot].with(|value| assert_eq!(unsafe { *value }, 200 + back));
                            back += 1;
                            free.push(slot);
                        }
                        None => thread::yield_now(),
                    }
                };
                // SAFETY: it is free.
                slots.0[slot].with_mut(|value| unsafe { *value = 100 + number });
                there_tx.push(Slot(slot));
            }
            far.join().unwrap();
        });
    }
}
