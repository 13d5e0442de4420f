//! Tests of [`super`] in every interleaving of two threads.

use super::*;
use crate::sync::explore;
use loom::thread::{self, yield_now};

/// Makes a value on the heap, so that loom also sees that each entry is dropped once and none is lost.
fn value(number: u32) -> Arc<u32> {
    Arc::new(number)
}

#[test]
fn entries_cross_one_by_one_in_order() {
    explore(|| {
        let (mut tx, mut rx) = ring(2);
        let sender = thread::spawn(move || {
            for number in 0..4 {
                let mut pending = value(number);
                while let Err(refused) = tx.push(pending) {
                    pending = refused;
                    yield_now();
                }
            }
        });
        for expected in 0..4 {
            let got = loop {
                match rx.pop() {
                    Some(got) => break got,
                    None => yield_now(),
                }
            };
            assert_eq!(*got, expected);
        }
        assert!(rx.pop().is_none());
        sender.join().unwrap();
    });
}

#[test]
fn entries_cross_in_batches_in_order() {
    explore(|| {
        let (mut tx, mut rx) = ring(2);
        let sender = thread::spawn(move || {
            let mut numbers = (0..4).map(value);
            while numbers.len() > 0 {
                if tx.push_batch(&mut numbers) == 0 {
                    yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 4 {
            let popped = rx.pop_batch(2, |got| {
                assert_eq!(*got, expected);
                expected += 1;
            });
            if popped == 0 {
                yield_now();
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn entries_cross_in_rows_in_order_and_are_seen_only_once_published() {
    explore(|| {
        let (mut tx, mut rx) = ring(2);
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < 3 {
                let mut row = tx.staging();
                let first = next;
                while next < 3 && row.stage(value(next)).is_ok() {
                    next += 1;
                }
                drop(row);
                tx.publish();
                if first == next {
                    yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 3 {
            let first = expected;
            let mut row = rx.taking(2);
            while let Some(peeked) = row.peek(0).map(|peeked| **peeked) {
                // If the next entry is there, it is there completely.
                assert!(row.peek(1).is_none_or(|behind| **behind == peeked + 1));
                assert_eq!((peeked, *row.take().unwrap()), (expected, expected));
                expected += 1;
            }
            drop(row);
            rx.release();
            if first == expected {
                yield_now();
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn entries_staged_one_by_one_and_published_together_cross_together() {
    explore(|| {
        let (mut tx, mut rx) = ring(2);
        let sender = thread::spawn(move || {
            tx.stage(value(0)).unwrap();
            tx.stage(value(1)).unwrap();
            tx.publish();
            // The consumer has not released the places yet: there is room only after it has released both.
            let mut pending = value(2);
            while let Err(refused) = tx.stage(pending) {
                pending = refused;
                yield_now();
            }
            assert_eq!(tx.room(1), 1);
            tx.publish();
        });
        while rx.ready(1) == 0 {
            yield_now();
        }
        assert_eq!((**rx.peek(0).unwrap(), **rx.peek(1).unwrap()), (0, 1));
        assert_eq!((*rx.take().unwrap(), *rx.take().unwrap()), (0, 1));
        rx.release();
        let last = loop {
            match rx.take() {
                Some(last) => break last,
                None => yield_now(),
            }
        };
        assert_eq!(*last, 2);
        sender.join().unwrap();
    });
}

#[test]
fn entries_staged_or_taken_when_a_side_is_dropped_are_dropped_once() {
    explore(|| {
        let (mut tx, mut rx) = ring(4);
        let sender = thread::spawn(move || {
            tx.push(value(0)).unwrap();
            let mut row = tx.staging();
            row.stage(value(1)).unwrap();
            drop(row);
            tx.stage(value(2)).unwrap();
        });
        let mut row = rx.taking(2);
        let mut taken = 0;
        while let Some(got) = row.take() {
            assert_eq!(*got, taken);
            taken += 1;
        }
        drop(row);
        drop(rx);
        sender.join().unwrap();
    });
}

#[test]
fn the_remaining_entries_are_dropped_once_whichever_side_is_dropped_first() {
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
