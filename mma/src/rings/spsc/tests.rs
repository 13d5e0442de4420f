//! Tests of [`super`] by one thread, compared with a naive queue, and by two threads.

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

#[test]
fn staged_entries_are_seen_once_published_and_taken_ones_free_their_places_once_released() {
    let (mut tx, mut rx) = ring(2);
    tx.stage(1).unwrap();
    tx.stage(2).unwrap();
    assert_eq!((rx.ready(1), rx.take(), rx.peek(0)), (0, None, None));
    assert_eq!((tx.stage(3), tx.room(1)), (Err(3), 0));
    tx.publish();
    assert_eq!(rx.ready(2), 2);
    assert_eq!((rx.peek(0), rx.peek(1), rx.peek(2)), (Some(&1), Some(&2), None));
    assert_eq!(rx.take(), Some(1));
    assert_eq!((rx.peek(0), rx.peek(1)), (Some(&2), None));
    assert_eq!((tx.room(1), tx.stage(3)), (0, Err(3)));
    rx.release();
    assert_eq!((tx.room(1), tx.stage(3), tx.stage(4)), (1, Ok(()), Err(4)));
    assert_eq!((rx.take(), rx.take()), (Some(2), None));
    tx.publish();
    assert_eq!((rx.take(), rx.take()), (Some(3), None));
}

#[test]
fn rows_stage_and_take_within_what_there_was_when_they_began() {
    let (mut tx, mut rx) = ring(4);
    let mut row = tx.staging();
    assert_eq!([1, 2, 3, 4, 5].map(|value| row.stage(value)), [Ok(()), Ok(()), Ok(()), Ok(()), Err(5)]);
    drop(row);
    assert_eq!(rx.taking(4).take(), None, "staged by a row is not yet published");
    tx.publish();
    let mut row = rx.taking(3);
    assert_eq!((row.peek(0), row.peek(2), row.peek(3)), (Some(&1), Some(&3), None));
    assert_eq!((row.take(), row.take()), (Some(1), Some(2)));
    assert_eq!((row.peek(0), row.peek(1)), (Some(&3), None));
    drop(row);
    assert_eq!(tx.staging().stage(5), Err(5), "taken by a row is not yet released");
    rx.release();
    let mut row = tx.staging();
    assert_eq!([5, 6, 7].map(|value| row.stage(value)), [Ok(()), Ok(()), Err(7)]);
    drop(row);
    tx.publish();
    // The row that took two of three left the third.
    assert_eq!(std::iter::from_fn(|| rx.take()).collect::<Vec<_>>(), [3, 4, 5, 6]);
}

/// Returns how many of `put` values are still alive after `work` was done with a ring of them.
fn left_of(
    put: usize,
    work: impl FnOnce(&mut Producer<Arc<()>>, &mut Consumer<Arc<()>>, &mut dyn FnMut() -> Arc<()>),
) -> usize {
    let counted = Arc::new(());
    let (mut tx, mut rx) = ring(8);
    let mut made = 0;
    let mut value = || {
        made += 1;
        Arc::clone(&counted)
    };
    work(&mut tx, &mut rx, &mut value);
    assert_eq!(made, put);
    drop((tx, rx));
    Arc::strong_count(&counted) - 1
}

#[test]
fn entries_staged_and_never_published_or_taken_and_never_released_are_dropped_once() {
    let left = left_of(7, |tx, rx, value| {
        (0..3).for_each(|_| tx.push(value()).unwrap());
        drop(rx.take());
        drop(rx.taking(1).take());
        (0..2).for_each(|_| tx.stage(value()).unwrap());
        let mut row = tx.staging();
        (0..2).for_each(|_| row.stage(value()).unwrap());
    });
    assert_eq!(left, 0);
    // And the other way round: each side drops what it owns.
    let counted = Arc::new(());
    let (mut tx, mut rx) = ring(4);
    (0..3).for_each(|_| tx.push(Arc::clone(&counted)).unwrap());
    drop(rx.take());
    tx.stage(Arc::clone(&counted)).unwrap();
    drop(rx);
    assert_eq!(Arc::strong_count(&counted), 4);
    drop(tx);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn entries_that_a_dropped_producer_staged_last_are_still_seen() {
    let (mut tx, mut rx) = ring(4);
    tx.stage(1).unwrap();
    drop(tx);
    assert_eq!((rx.take(), rx.take()), (Some(1), None));
}

#[test]
fn a_leaked_row_yields_no_entry_twice() {
    // Of four entries, the row took two. Leaking it leaks the other two; the fifth was pushed later.
    let left = left_of(5, |tx, rx, value| {
        (0..4).for_each(|_| tx.push(value()).unwrap());
        let mut row = rx.taking(4);
        drop((row.take(), row.take()));
        std::mem::forget(row);
        tx.push(value()).unwrap();
        assert!(rx.take().is_some() && rx.take().is_none());
    });
    assert_eq!(left, 2);
    // A leaked row of staged entries overwrites only entries that were dropped.
    let left = left_of(3, |tx, rx, value| {
        let mut row = tx.staging();
        (0..2).for_each(|_| row.stage(value()).unwrap());
        std::mem::forget(row);
        tx.push(value()).unwrap();
        assert!(rx.take().is_some() && rx.take().is_none());
    });
    assert_eq!(left, 2);
}

/// An operation of one side of a ring.
#[derive(Debug, Clone)]
enum Operation {
    PushBatch(usize),
    Push,
    Stage,
    /// Opens a row that asks for so many entries, and stages so many.
    StageRow(usize),
    Publish,
    PopBatch(usize),
    Pop,
    Take,
    /// Opens a row of at most so many entries, and takes so many of them.
    TakeRow(usize, usize),
    Release,
}

fn operation() -> impl Strategy<Value = Operation> {
    let count = || 0..9_usize;
    prop_oneof![
        count().prop_map(Operation::PushBatch),
        Just(Operation::Push),
        Just(Operation::Stage),
        count().prop_map(Operation::StageRow),
        Just(Operation::Publish),
        count().prop_map(Operation::PopBatch),
        Just(Operation::Pop),
        Just(Operation::Take),
        (count(), count()).prop_map(|(max, taken)| Operation::TakeRow(max, taken)),
        Just(Operation::Release),
    ]
}

/// A ring and a naive queue side by side; every entry is dropped once.
struct Rings {
    tx: Producer<Arc<usize>>,
    rx: Consumer<Arc<usize>>,
    capacity: usize,
    staged: Vec<usize>,
    published: VecDeque<usize>,
    unreleased: usize,
    /// All values ever made, by number.
    made: Vec<std::sync::Weak<usize>>,
}

impl Rings {
    /// Makes a ring whose indices start at `start`.
    fn new(capacity: usize, start: usize) -> Self {
        let (mut tx, mut rx) = ring(capacity);
        tx.shared.head.store(start, Ordering::Relaxed);
        tx.shared.tail.store(start, Ordering::Relaxed);
        (tx.tail, tx.head_cached, rx.head, rx.tail_cached) = (start, start, start, start);
        let (staged, published, made) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { tx, rx, capacity, staged, published, unreleased: 0, made }
    }

    fn room(&self) -> usize {
        self.capacity - self.staged.len() - self.published.len() - self.unreleased
    }

    fn value(made: &mut Vec<std::sync::Weak<usize>>) -> Arc<usize> {
        let value = Arc::new(made.len());
        made.push(Arc::downgrade(&value));
        value
    }

    fn staged(&mut self, result: Result<(), Arc<usize>>, had_room: bool) {
        let number = self.made.len() - 1;
        assert_eq!(result.map_err(|refused| *refused), if had_room { Ok(()) } else { Err(number) });
        if had_room {
            self.staged.push(number);
        }
    }

    fn publish(&mut self) {
        self.published.extend(self.staged.drain(..));
    }

    fn follow(&mut self, operation: Operation) {
        match operation {
            Operation::PushBatch(count) => {
                let values: Vec<_> = (0..count).map(|_| Self::value(&mut self.made)).collect();
                let first = self.made.len() - count;
                let pushed = self.tx.push_batch(&mut values.into_iter());
                assert_eq!(pushed, count.min(self.room()));
                self.staged.extend(first..first + pushed);
                self.publish();
            }
            Operation::Push => {
                let had_room = self.room() > 0;
                let result = self.tx.push(Self::value(&mut self.made));
                self.staged(result, had_room);
                // An entry that finds no room publishes nothing either.
                if had_room {
                    self.publish();
                }
            }
            Operation::Stage => {
                let had_room = self.room() > 0;
                let result = self.tx.stage(Self::value(&mut self.made));
                self.staged(result, had_room);
            }
            Operation::StageRow(count) => {
                let room = self.room();
                let Self { tx, made, .. } = self;
                let mut row = tx.staging();
                let results: Vec<_> = (0..count).map(|_| row.stage(Self::value(made)).is_ok()).collect();
                drop(row);
                let done = results.iter().take_while(|&&done| done).count();
                assert!(results[done..].iter().all(|done| !done), "a row that is full stays so");
                assert_eq!(done, count.min(room));
                let first = self.made.len() - count;
                self.staged.extend(first..first + done);
            }
            Operation::Publish => {
                self.tx.publish();
                self.publish();
            }
            Operation::PopBatch(max) => {
                let mut popped = Vec::new();
                self.rx.pop_batch(max, |value| popped.push(*value));
                let count = max.min(self.published.len());
                assert_eq!(popped, self.published.drain(..count).collect::<Vec<_>>());
                self.unreleased = 0;
            }
            Operation::Pop => {
                let expected = self.published.pop_front();
                assert_eq!(self.rx.pop().as_deref().copied(), expected);
                if expected.is_some() {
                    self.unreleased = 0;
                }
            }
            Operation::Take => {
                let expected = self.published.pop_front();
                self.unreleased += usize::from(expected.is_some());
                assert_eq!(self.rx.take().as_deref().copied(), expected);
            }
            Operation::TakeRow(max, taken) => self.take_row(max, taken),
            Operation::Release => {
                self.rx.release();
                self.unreleased = 0;
            }
        }
    }

    fn take_row(&mut self, max: usize, taken: usize) {
        let mut row = self.rx.taking(max);
        for _ in 0..taken.min(max) {
            let peeked: Vec<_> = (0..max).map_while(|ahead| row.peek(ahead)).map(|value| **value).collect();
            assert!(self.published.iter().take(peeked.len()).eq(&peeked));
            assert_eq!(peeked.is_empty(), self.published.is_empty());
            let expected = self.published.pop_front();
            self.unreleased += usize::from(expected.is_some());
            assert_eq!(row.take().as_deref().copied(), expected);
        }
        if taken >= max {
            assert!(row.take().is_none(), "a row takes no more than it was made for");
        }
    }

    /// Checks that each value is alive exactly as long as it is in the ring.
    fn audit(&mut self) {
        let alive: Vec<usize> = (0..self.made.len()).filter(|&number| self.made[number].strong_count() > 0).collect();
        let inside: Vec<usize> = self.published.iter().chain(&self.staged).copied().collect();
        assert_eq!(alive, inside);
        assert_eq!(self.rx.ready(usize::MAX), self.published.len());
        let peeked = (0..=self.capacity).map_while(|ahead| self.rx.peek(ahead));
        assert!(peeked.map(|value| **value).eq(self.published.iter().copied()));
        assert_eq!(self.tx.room(usize::MAX), self.room());
    }
}

proptest! {
    #[test]
    fn any_sequence_of_staging_and_taking_loses_and_duplicates_nothing(
        capacity_log2 in 0_u32..5,
        start in prop_oneof![Just(0_usize), usize::MAX - 40..=usize::MAX],
        operations in proptest::collection::vec(operation(), 0..200),
        audits in any::<bool>(),
        tx_first in any::<bool>(),
    ) {
        let mut rings = Rings::new(1 << capacity_log2, start);
        for operation in operations {
            rings.follow(operation);
            // Without audits, each side uses its cached index of the other side for as long as possible.
            if audits {
                rings.audit();
            }
        }
        rings.audit();
        let Rings { tx, rx, made, .. } = rings;
        if tx_first { drop((tx, rx)) } else { drop((rx, tx)) }
        prop_assert!(made.iter().all(|value| value.strong_count() == 0));
    }

    #[test]
    fn any_sequence_of_operations_behaves_like_a_bounded_queue(
        capacity_log2 in 0_u32..5,
        start in prop_oneof![Just(0_usize), Just(usize::MAX - 3)],
        operations in proptest::collection::vec((any::<bool>(), 0_usize..9), 0..200),
    ) {
        let capacity = 1 << capacity_log2;
        let (mut tx, mut rx) = ring::<u32>(capacity);
        // Start near the wrap of the index as well as at zero.
        tx.shared.head.store(start, Ordering::Relaxed);
        tx.shared.tail.store(start, Ordering::Relaxed);
        (tx.tail, tx.head_cached, rx.head, rx.tail_cached) = (start, start, start, start);
        let mut model = VecDeque::new();
        let mut next = 0;
        for (push, count) in operations {
            if push {
                let values: Vec<u32> = (next..).take(count).collect();
                let pushed = tx.push_batch(&mut values.iter().copied());
                prop_assert_eq!(pushed, count.min(capacity - model.len()));
                model.extend(&values[..pushed]);
                next += pushed as u32;
            } else {
                let mut popped = Vec::new();
                rx.pop_batch(count, |value| popped.push(value));
                let expected: Vec<u32> = model.drain(..count.min(model.len())).collect();
                prop_assert_eq!(popped, expected);
            }
        }
    }
}
