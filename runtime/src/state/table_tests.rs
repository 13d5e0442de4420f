//! The table against a map and a clock of the test's, and under many threads.

use std::cell::Cell;
use std::collections::HashMap;

use pinion_abi::Errno;
use pinion_control::model::{Field, WhenFull};
use pinion_guest::calls::state::Key;
use proptest::prelude::*;

use super::table::{Counted, Table};

const SECOND_NS: u64 = 1_000_000_000;

fn field(value_bytes: u32, entries: u32) -> Field {
    let name = "field".parse().unwrap();
    Field { name, value_bytes, entries, ttl_seconds: None, when_full: WhenFull::Refuse }
}

fn key(number: u64) -> Key {
    Key::new(&number.to_le_bytes()).unwrap()
}

/// When nothing expires.
fn never() -> u64 {
    0
}

fn stored(table: &Table, key: &Key, now_ns: u64) -> Result<Vec<u8>, Errno> {
    let mut value = [0; 1024];
    table.get(key, &mut value, || now_ns).map(|len| value[..len as usize].to_vec())
}

/// What a program does with a field, or time.
#[derive(Debug, Clone)]
enum Act {
    Get(u8),
    Put(u8, Vec<u8>),
    Swap(u8, Option<Vec<u8>>, Vec<u8>),
    Add(u8, i64),
    Expire(u8, Option<u64>),
    Delete(u8),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let key = || 0..12_u8;
    // Of few values, so that what is expected is there at times, and of more bytes than fit.
    let value = || prop_oneof![Just(vec![1]), Just(vec![2; 8]), Just(vec![0; 8]), Just(vec![3; 9]), Just(Vec::new())];
    prop_oneof![
        key().prop_map(Act::Get),
        (key(), value()).prop_map(|(key, value)| Act::Put(key, value)),
        (key(), proptest::option::of(value()), value()).prop_map(|(key, old, new)| Act::Swap(key, old, new)),
        (key(), any::<i64>()).prop_map(|(key, delta)| Act::Add(key, delta)),
        (key(), proptest::option::of(0..3 * SECOND_NS)).prop_map(|(key, ttl_ns)| Act::Expire(key, ttl_ns)),
        key().prop_map(Act::Delete),
        (0..2 * SECOND_NS).prop_map(Act::Wait),
    ]
}

/// What a field is to be: a map, a clock, and the time to live of what is written.
#[derive(Default)]
struct Model {
    entries: HashMap<u8, (Vec<u8>, Option<u64>)>,
    now_ns: u64,
    ttl_ns: Option<u64>,
}

impl Model {
    const VALUE_BYTES: usize = 8;

    fn live(&mut self, key: u8) -> Option<&mut (Vec<u8>, Option<u64>)> {
        let now_ns = self.now_ns;
        self.entries.retain(|_, (_, ends_ns)| ends_ns.is_none_or(|ends_ns| now_ns < ends_ns));
        self.entries.get_mut(&key)
    }

    fn write(&mut self, key: u8, value: &[u8]) -> Result<(), Errno> {
        let ends_ns = self.ttl_ns.map(|ttl_ns| self.now_ns + ttl_ns);
        self.entries.insert(key, (value.to_vec(), ends_ns));
        Ok(())
    }

    fn act(&mut self, act: &Act) -> Result<Vec<u8>, Errno> {
        match act {
            Act::Get(key) => self.live(*key).map(|(value, _)| value.clone()).ok_or(Errno::NoEntry),
            Act::Put(_, value) | Act::Swap(_, _, value) if value.len() > Self::VALUE_BYTES => Err(Errno::TooLong),
            Act::Put(key, value) => self.write(*key, value).map(|()| Vec::new()),
            Act::Swap(key, old, new) => match self.live(*key).map(|(value, _)| &*value) == old.as_ref() {
                true => self.write(*key, new).map(|()| Vec::new()),
                false => Err(Errno::Mismatch),
            },
            Act::Add(key, delta) => match self.live(*key) {
                None => self.write(*key, &delta.to_le_bytes()).map(|()| delta.to_le_bytes().to_vec()),
                Some((value, _)) => {
                    let number = value.as_slice().try_into().map_err(|_| Errno::Mismatch)?;
                    *value = i64::from_le_bytes(number).wrapping_add(*delta).to_le_bytes().to_vec();
                    Ok(value.clone())
                }
            },
            Act::Expire(key, ttl_ns) => {
                let ends_ns = ttl_ns.map(|ttl_ns| self.now_ns + ttl_ns);
                let (_, of_entry) = self.live(*key).ok_or(Errno::NoEntry)?;
                *of_entry = ends_ns;
                Ok(Vec::new())
            }
            Act::Delete(key) => {
                self.live(*key).ok_or(Errno::NoEntry)?;
                self.entries.remove(key);
                Ok(Vec::new())
            }
            Act::Wait(ns) => {
                self.now_ns += ns;
                Ok(Vec::new())
            }
        }
    }
}

fn act_on(table: &Table, act: &Act, now_ns: u64) -> Result<Vec<u8>, Errno> {
    let (key, now) = (|number: &u8| key((*number).into()), || now_ns);
    match act {
        Act::Get(number) => stored(table, &key(number), now_ns),
        Act::Put(number, value) => table.put(&key(number), value, now).map(|()| Vec::new()),
        Act::Swap(number, old, new) => {
            table.compare_and_swap(&key(number), old.as_deref(), new, now).map(|()| Vec::new())
        }
        Act::Add(number, delta) => table.add(&key(number), *delta, now).map(|sum| sum.to_le_bytes().to_vec()),
        Act::Expire(number, ttl_ns) => table.expire(&key(number), *ttl_ns, now).map(|()| Vec::new()),
        Act::Delete(number) => table.delete(&key(number), now).map(|()| Vec::new()),
        Act::Wait(_) => Ok(Vec::new()),
    }
}

proptest! {
    /// With twelve keys in a field for as many, nothing is ever full.
    #[test]
    fn a_table_does_what_a_map_with_a_clock_does(
        ttl_seconds in proptest::option::of(1..3_u32),
        acts in proptest::collection::vec(act(), 1..200),
    ) {
        let table = Table::new(&Field { ttl_seconds, ..field(Model::VALUE_BYTES as u32, 12) });
        let mut model = Model { ttl_ns: ttl_seconds.map(|seconds| u64::from(seconds) * SECOND_NS), ..Model::default() };
        for act in &acts {
            let expected = model.act(act);
            prop_assert_eq!(act_on(&table, act, model.now_ns), expected, "{:?}", act);
        }
    }
}

#[test]
fn what_a_field_is_declared_for_finds_room_whatever_its_keys_and_more_is_refused_and_changes_nothing() {
    for entries in [1, 2, 7, 8, 33, 500, 1024, 5000, 70_000] {
        let table = Table::new(&field(8, entries));
        for number in 0..u64::from(entries) {
            assert_eq!(table.put(&key(number), &number.to_le_bytes(), never), Ok(()), "{number} of {entries}");
        }
        let refused = (u64::from(entries)..).find(|number| table.put(&key(*number), b"more", never).is_err()).unwrap();
        assert_eq!(table.put(&key(refused), b"more", never), Err(Errno::Full));
        assert_eq!(table.add(&key(refused), 1, never), Err(Errno::Full));
        assert_eq!(table.compare_and_swap(&key(refused), None, b"more", never), Err(Errno::Full));
        assert_eq!(stored(&table, &key(refused), 0), Err(Errno::NoEntry));
        let is_there = |number| stored(&table, &key(number), 0) == Ok(number.to_le_bytes().to_vec());
        assert!((0..u64::from(entries)).all(is_there), "{entries}");
        let Counted { entries: counted, full, evicted, .. } = table.counted();
        assert_eq!((counted, full, evicted), (refused, 4, 0));
        // What is there can be written to.
        assert_eq!(table.put(&key(0), b"other", never), Ok(()));
        // And what goes makes room.
        (0..u64::from(entries)).for_each(|number| table.delete(&key(number), never).unwrap());
        assert_eq!(table.put(&key(refused), b"more", never), Ok(()));
    }
}

#[test]
fn entries_that_have_expired_make_room() {
    let table = Table::new(&Field { ttl_seconds: Some(1), ..field(8, 100) });
    let now_ns = Cell::new(0);
    let put = |number| table.put(&key(number), b"value", || now_ns.get());
    let refused = (0..).find(|number| put(*number).is_err()).unwrap();
    assert!(refused >= 100);
    now_ns.set(SECOND_NS);
    (0..100).for_each(|number| assert_eq!(put(1_000_000 + number), Ok(()), "{number}"));
}

#[test]
fn a_field_that_evicts_takes_whatever_comes_and_lets_go_of_what_was_not_written_to_for_long() {
    let table = Table::new(&Field { when_full: WhenFull::Evict, ..field(8, 1000) });
    for number in 0..100_000 {
        assert_eq!(table.put(&key(number), &number.to_le_bytes(), never), Ok(()));
        // Written to all the time.
        assert_eq!(table.put(&key(0), b"kept", never), Ok(()));
    }
    assert_eq!(stored(&table, &key(0), 0), Ok(b"kept".to_vec()));
    let Counted { entries, evicted, .. } = table.counted();
    assert!((1000..=2016).contains(&entries), "{entries}");
    assert_eq!(entries + evicted, 100_000);
    assert!((99_900..100_000).all(|number| stored(&table, &key(number), 0).is_ok()));
}

#[test]
fn keys_that_differ_in_length_or_in_one_byte_are_different_entries() {
    let table = Table::new(&field(64, 1000));
    let keys: Vec<Vec<u8>> = (0..=64)
        .map(|len| vec![0; len])
        .chain((0..64).map(|at| {
            let mut key = vec![0; 64];
            key[at] = 1;
            key
        }))
        .collect();
    for key in &keys {
        table.put(&Key::new(key).unwrap(), &key[key.len().saturating_sub(20)..], never).unwrap();
    }
    assert_eq!(table.counted().entries, keys.len() as u64);
    for key in &keys {
        assert_eq!(stored(&table, &Key::new(key).unwrap(), 0).unwrap(), key[key.len().saturating_sub(20)..]);
    }
    assert_eq!(Key::new(&[0; 65]), None);
}

#[test]
fn a_value_that_is_longer_than_the_buffer_is_cut_and_its_length_told() {
    let table = Table::new(&field(1024, 1));
    let value: Vec<u8> = (0..1024_u32).map(|at| at as u8).collect();
    table.put(&key(1), &value, never).unwrap();
    let mut buffer = [0xee; 12];
    assert_eq!(table.get(&key(1), &mut buffer[..10], never), Ok(1024));
    assert_eq!(buffer, *[&value[..10], &[0xee; 2]].concat());
    assert_eq!(table.put(&key(1), &[0; 1025], never), Err(Errno::TooLong));
    assert_eq!(table.get(&key(1), &mut [], never), Ok(1024));
}

/// Does something again as long as it is told to.
fn again<T>(mut work: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match work() {
            Err(Errno::Again) => std::thread::yield_now(),
            done => return done,
        }
    }
}

/// Threads that count in a few entries by both means, while others look, write elsewhere, and expire.
#[test]
fn counts_on_several_threads_add_up_and_no_value_is_torn() {
    const ROUNDS: u64 = 20_000;
    const THREADS: u64 = 4;
    let table = Table::new(&field(64, 4000));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let table = &table;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    again(|| table.add(&key(round % 3), 1, never)).unwrap();
                    // Counts by comparing.
                    let counted = again(|| {
                        loop {
                            let before = match stored(table, &key(100), 0) {
                                Ok(before) => Some(before),
                                Err(Errno::NoEntry) => None,
                                Err(error) => return Err(error),
                            };
                            let number =
                                before.as_deref().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
                            match table.compare_and_swap(
                                &key(100),
                                before.as_deref(),
                                &(number + 1).to_le_bytes(),
                                never,
                            ) {
                                Err(Errno::Mismatch) => {}
                                done => return done,
                            }
                        }
                    });
                    counted.unwrap();
                    // One value for all bytes, of one length or the other.
                    let (byte, len) = ((thread * ROUNDS + round) as u8, if round % 2 == 0 { 64 } else { 33 });
                    again(|| table.put(&key(200), &vec![byte; len], never)).unwrap();
                    let seen = again(|| stored(table, &key(200), 0)).unwrap();
                    assert!([33, 64].contains(&seen.len()) && seen.iter().all(|other| *other == seen[0]), "{seen:?}");
                    // Comes and goes.
                    again(|| table.put(&key(1000 + round % 500), &[1], never)).unwrap();
                    let _ = again(|| table.delete(&key(1000 + (round + 250) % 500), never));
                }
            });
        }
    });
    let number = |at| u64::from_le_bytes(stored(&table, &key(at), 0).unwrap().try_into().unwrap());
    assert_eq!((0..3).map(number).sum::<u64>(), THREADS * ROUNDS);
    assert_eq!(number(100), THREADS * ROUNDS);
    let there = (0..2000).filter(|number| stored(&table, &key(*number), 0).is_ok()).count();
    assert_eq!(table.counted().entries, there as u64);
}

#[test]
fn the_memory_that_is_charged_is_what_the_cells_take() {
    // A shard of at least two buckets of 8, each with a tag of two bytes and a cell of 88 and the value.
    assert_eq!(Table::bytes(&field(64, 1)), 16 * (2 + 88 + 64));
    assert_eq!(Table::bytes(&field(8, 1000)), 2000 * (2 + 88 + 8));
    // 9 shards of 1112 each at the least, of 278 buckets.
    assert_eq!(Table::bytes(&field(8, 10_000)), 9 * 278 * 8 * (2 + 88 + 8));
}
