//! The ring between exactly two threads: single producer, single consumer, bounded, lock-free.
//!
//! Each side keeps its own index and a cached copy of the other's on a cache line of its own; a side reads the
//! other's line only when its cached copy says full or empty. Operations never block and never allocate; a batch
//! publishes its index once.
#![allow(unsafe_code)] // Owns the uninitialised storage that the two indices guard.

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

struct Shared<T> {
    /// Next index to be read; written by the consumer alone.
    head: CachePadded<AtomicUsize>,
    /// Next index to be written; written by the producer alone.
    tail: CachePadded<AtomicUsize>,
    entries: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: an entry is touched only by the producer while its index is in `tail..head + capacity` and only by the
// consumer while it is in `head..tail`; the indices are handed over with release and acquire.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: owns its entries.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn entry(&self, index: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.entries[index & (self.entries.len() - 1)]
    }

    /// # Safety
    /// The caller is the producer, and the consumer is done with this entry.
    unsafe fn write(&self, index: usize, value: T) {
        // SAFETY: nobody else touches the entry, as the caller promises.
        self.entry(index).with_mut(|entry| unsafe { (*entry).write(value) });
    }

    /// # Safety
    /// The caller is the consumer, the producer has published this entry, and it is read once.
    unsafe fn read(&self, index: usize) -> T {
        // SAFETY: the entry was written and nobody else touches it, as the caller promises.
        self.entry(index).with(|entry| unsafe { (*entry).assume_init_read() })
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        while head != tail {
            // SAFETY: entries in `head..tail` were written and not read; both sides are gone.
            drop(unsafe { self.read(head) });
            head = head.wrapping_add(1);
        }
    }
}

/// The writing side.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    head_cached: usize,
}

/// The reading side.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    tail_cached: usize,
}

/// Makes a ring for `capacity` entries, rounded up to a power of two.
///
/// # Panics
/// If `capacity` is zero.
#[must_use]
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity > 0, "a ring needs room for at least one entry");
    let entries = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        entries,
    });
    (Producer { shared: Arc::clone(&shared), tail: 0, head_cached: 0 }, Consumer { shared, head: 0, tail_cached: 0 })
}

impl<T> Producer<T> {
    /// Entries that can be pushed now. Looks at the consumer's index only if fewer than `wanted` seem free.
    pub fn room(&mut self, wanted: usize) -> usize {
        let capacity = self.shared.entries.len();
        let mut room = capacity - self.tail.wrapping_sub(self.head_cached);
        if room < wanted {
            self.head_cached = self.shared.head.load(Ordering::Acquire);
            room = capacity - self.tail.wrapping_sub(self.head_cached);
        }
        room
    }

    /// Appends one entry, or gives it back when the ring is full.
    ///
    /// # Errors
    /// The value, if there was no room for it.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(value);
        }
        // SAFETY: there is room, so the consumer is done with this entry.
        unsafe { self.shared.write(self.tail, value) };
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Appends as many entries as there is room for, publishing them together; returns how many. What found no
    /// room stays in the iterator.
    pub fn push_batch(&mut self, values: &mut impl ExactSizeIterator<Item = T>) -> usize {
        let count = self.room(values.len()).min(values.len());
        for value in values.by_ref().take(count) {
            // SAFETY: `count` entries are free.
            unsafe { self.shared.write(self.tail, value) };
            self.tail = self.tail.wrapping_add(1);
        }
        self.shared.tail.store(self.tail, Ordering::Release);
        count
    }
}

impl<T> Consumer<T> {
    /// Entries that can be popped now. Looks at the producer's index only if fewer than `wanted` seem there.
    pub fn ready(&mut self, wanted: usize) -> usize {
        let mut ready = self.tail_cached.wrapping_sub(self.head);
        if ready < wanted {
            self.tail_cached = self.shared.tail.load(Ordering::Acquire);
            ready = self.tail_cached.wrapping_sub(self.head);
        }
        ready
    }

    /// Takes the oldest entry.
    pub fn pop(&mut self) -> Option<T> {
        if self.ready(1) == 0 {
            return None;
        }
        // SAFETY: the producer has published this entry and will not touch it before `head` has passed it.
        let value = unsafe { self.shared.read(self.head) };
        self.head = self.head.wrapping_add(1);
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Takes up to `max` of the oldest entries, giving their places back together; returns how many.
    pub fn pop_batch(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let count = self.ready(max).min(max);
        for _ in 0..count {
            // SAFETY: `count` entries are published.
            let value = unsafe { self.shared.read(self.head) };
            // Before `take`, so that an unwinding `take` cannot lead to a second read of the entry.
            self.head = self.head.wrapping_add(1);
            take(value);
        }
        self.shared.head.store(self.head, Ordering::Release);
        count
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // What a `take` that unwound has taken must not be dropped again with the ring.
        self.shared.head.store(self.head, Ordering::Release);
    }
}

/// A ring as if `start` entries had crossed it before.
#[cfg(test)]
fn ring_at<T: Send>(capacity: usize, start: usize) -> (Producer<T>, Consumer<T>) {
    let (mut tx, mut rx) = ring(capacity);
    tx.shared.head.store(start, Ordering::Relaxed);
    tx.shared.tail.store(start, Ordering::Relaxed);
    (tx.tail, tx.head_cached, rx.head, rx.tail_cached) = (start, start, start, start);
    (tx, rx)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn a_full_ring_gives_the_value_back() {
        let (mut tx, mut rx) = ring(2);
        tx.push(1).unwrap();
        tx.push(2).unwrap();
        assert_eq!(tx.push(3), Err(3));
        assert_eq!(rx.pop(), Some(1));
        tx.push(3).unwrap();
        assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(2), Some(3), None));
    }

    #[test]
    fn entries_left_in_a_dropped_ring_are_dropped_once() {
        let counted = Arc::new(());
        let (mut tx, mut rx) = ring(8);
        for _ in 0..5 {
            tx.push(Arc::clone(&counted)).unwrap();
        }
        drop(rx.pop());
        drop((tx, rx));
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn an_entry_whose_taker_panics_is_dropped_once() {
        let counted = Arc::new(());
        let (mut tx, mut rx) = ring(4);
        for _ in 0..3 {
            tx.push(Arc::clone(&counted)).unwrap();
        }
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rx.pop_batch(3, |_| panic!("taker"))));
        assert!(taken.is_err());
        drop((tx, rx));
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn a_million_entries_cross_two_threads_in_order() {
        let (mut tx, mut rx) = ring::<u32>(64);
        let sender = std::thread::spawn(move || {
            let mut values = 0..1_000_000_u32;
            let mut batch = Vec::new();
            while batch.len() + values.len() > 0 {
                batch.extend(values.by_ref().take(7));
                let mut iter = batch.drain(..);
                if tx.push_batch(&mut iter) == 0 {
                    std::thread::yield_now();
                }
                let rest: Vec<u32> = iter.collect();
                batch = rest;
            }
        });
        let mut expected = 0;
        while expected < 1_000_000 {
            let popped = rx.pop_batch(16, |value| {
                assert_eq!(value, expected);
                expected += 1;
            });
            if popped == 0 {
                std::thread::yield_now();
            }
        }
        sender.join().unwrap();
    }

    #[derive(Debug, Clone, Copy)]
    enum Operation {
        Push,
        PushBatch(usize),
        Pop,
        PopBatch(usize),
        Room(usize),
        Ready(usize),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            2 => Just(Operation::Push),
            2 => (0_usize..9).prop_map(Operation::PushBatch),
            2 => Just(Operation::Pop),
            2 => (0_usize..9).prop_map(Operation::PopBatch),
            1 => (0_usize..20).prop_map(Operation::Room),
            1 => (0_usize..20).prop_map(Operation::Ready),
        ]
    }

    /// What a side says is there of what it wants: all there is, or enough.
    fn assert_says(said: usize, there: usize, wanted: usize) {
        assert!(said == there || (wanted..there).contains(&said), "said {said}, where {there} are and {wanted} wanted");
    }

    proptest! {
        #[test]
        fn any_sequence_of_operations_behaves_like_a_bounded_queue(
            capacity_log2 in 0_u32..5,
            start in prop_oneof![Just(0), usize::MAX - 40..=usize::MAX],
            operations in proptest::collection::vec(operation(), 0..200),
        ) {
            let capacity = 1 << capacity_log2;
            let (mut tx, mut rx) = ring_at::<u32>(capacity, start);
            let mut model = VecDeque::new();
            let mut numbers = 0..;
            for operation in operations {
                let room = capacity - model.len();
                match operation {
                    Operation::Push => {
                        let next = numbers.start;
                        prop_assert_eq!(tx.push(next), if room > 0 { Ok(()) } else { Err(next) });
                        model.extend(numbers.by_ref().take(room.min(1)));
                    }
                    Operation::PushBatch(count) => {
                        let values: Vec<u32> = numbers.clone().take(count).collect();
                        let mut values = values.into_iter();
                        let pushed = tx.push_batch(&mut values);
                        prop_assert_eq!((pushed, values.len()), (count.min(room), count - pushed));
                        model.extend(numbers.by_ref().take(pushed));
                    }
                    Operation::Pop => prop_assert_eq!(rx.pop(), model.pop_front()),
                    Operation::PopBatch(count) => {
                        let mut popped = Vec::new();
                        prop_assert_eq!(rx.pop_batch(count, |value| popped.push(value)), popped.len());
                        let expected: Vec<u32> = model.drain(..count.min(model.len())).collect();
                        prop_assert_eq!(popped, expected);
                    }
                    Operation::Room(wanted) => assert_says(tx.room(wanted), room, wanted),
                    Operation::Ready(wanted) => assert_says(rx.ready(wanted), model.len(), wanted),
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::explore;
    use loom::thread::{self, yield_now};

    const ENTRIES: u32 = 4;
    /// Half of the entries cross before the index wraps.
    const BEFORE_THE_WRAP: usize = usize::MAX - 1;

    /// A value on the heap, so that loom also sees each entry dropped once and none lost.
    fn value(number: u32) -> Arc<u32> {
        Arc::new(number)
    }

    fn send_one_by_one(tx: &mut Producer<Arc<u32>>) {
        for number in 0..ENTRIES {
            let mut pending = value(number);
            while let Err(refused) = tx.push(pending) {
                pending = refused;
                yield_now();
            }
        }
    }

    fn send_in_batches(tx: &mut Producer<Arc<u32>>) {
        let mut values = (0..ENTRIES).map(value);
        while values.len() > 0 {
            if tx.push_batch(&mut values) == 0 {
                yield_now();
            }
        }
    }

    /// In every interleaving, all entries cross a ring of two in order; `batch_max` are taken at once.
    fn assert_all_cross(start: usize, send: fn(&mut Producer<Arc<u32>>), batch_max: usize) {
        explore(move || {
            let (mut tx, mut rx) = ring_at(2, start);
            let sender = thread::spawn(move || send(&mut tx));
            let mut expected = 0;
            while expected < ENTRIES {
                let mut take = |got: Arc<u32>| {
                    assert_eq!(*got, expected);
                    expected += 1;
                };
                let taken = match batch_max {
                    1 => rx.pop().map(take).is_some(),
                    _ => rx.pop_batch(batch_max, &mut take) > 0,
                };
                if !taken {
                    yield_now();
                }
            }
            assert!(rx.pop().is_none());
            sender.join().unwrap();
        });
    }

    #[test]
    fn entries_cross_one_by_one_in_order() {
        assert_all_cross(0, send_one_by_one, 1);
    }

    #[test]
    fn entries_cross_in_batches_in_order() {
        assert_all_cross(0, send_in_batches, 2);
    }

    #[test]
    fn entries_sent_one_by_one_and_taken_in_batches_cross_the_wrap_of_the_index() {
        assert_all_cross(BEFORE_THE_WRAP, send_one_by_one, 2);
    }

    #[test]
    fn entries_sent_in_batches_and_taken_one_by_one_cross_the_wrap_of_the_index() {
        assert_all_cross(BEFORE_THE_WRAP, send_in_batches, 1);
    }

    #[test]
    fn whichever_side_goes_first_what_is_left_is_dropped_once() {
        explore(|| {
            let (mut tx, mut rx) = ring(2);
            let sender = thread::spawn(move || (0..3).filter(|&number| tx.push(value(number)).is_ok()).count());
            let mut taken = 0;
            while taken < 2 && rx.pop_batch(1, |got| assert_eq!(*got, taken)) == 1 {
                taken += 1;
            }
            drop(rx);
            assert!(sender.join().unwrap() >= 2);
        });
    }
}
