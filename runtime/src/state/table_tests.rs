//! Tests the table against a map with a simulated clock, and with many threads.

use std::cell::Cell;
use std::collections::HashMap;

use fastrand::Rng;
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

/// The clock of tests in which nothing expires.
fn never() -> u64 {
    0
}

fn stored(table: &Table, key: &Key, now_ns: u64) -> Result<Vec<u8>, Errno> {
    let mut value = [0; 1024];
    table.get(key, &mut value, || now_ns).map(|len| value[..len as usize].to_vec())
}

/// An operation on a field, or the passing of time.
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
    // Few different values, so that the expected value is sometimes there, and some that are too long.
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

/// The model of a field: a map, a clock, and the time to live of written values.
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
    /// With twelve keys in a field declared for as many, no bucket is ever full.
    #[test]
    fn a_table_behaves_like_a_map_with_a_clock(
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
fn declared_entries_fit_whatever_their_keys_and_further_ones_are_refused_without_change() {
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
        // Existing entries can be overwritten.
        assert_eq!(table.put(&key(0), b"other", never), Ok(()));
        // Deleted entries make room.
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
fn a_field_that_evicts_accepts_every_entry_and_drops_those_not_written_for_long() {
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
fn a_value_longer_than_the_buffer_is_truncated_and_its_length_returned() {
    let table = Table::new(&field(1024, 1));
    let value: Vec<u8> = (0..1024_u32).map(|at| at as u8).collect();
    table.put(&key(1), &value, never).unwrap();
    let mut buffer = [0xee; 12];
    assert_eq!(table.get(&key(1), &mut buffer[..10], never), Ok(1024));
    assert_eq!(buffer, *[&value[..10], &[0xee; 2]].concat());
    assert_eq!(table.put(&key(1), &[0; 1025], never), Err(Errno::TooLong));
    assert_eq!(table.get(&key(1), &mut [], never), Ok(1024));
}

/// Repeats an operation as long as it returns `Again`.
fn again<T>(mut work: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match work() {
            Err(Errno::Again) => std::thread::yield_now(),
            done => return done,
        }
    }
}

/// Threads count in a few entries in both ways, while others read, write elsewhere, and let entries expire.
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
                    // Counts with compare-and-swap.
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
                    // All bytes have one value, in one of two lengths.
                    let (byte, len) = ((thread * ROUNDS + round) as u8, if round % 2 == 0 { 64 } else { 33 });
                    again(|| table.put(&key(200), &vec![byte; len], never)).unwrap();
                    let seen = again(|| stored(table, &key(200), 0)).unwrap();
                    assert!([33, 64].contains(&seen.len()) && seen.iter().all(|other| *other == seen[0]), "{seen:?}");
                    // Inserts and deletes.
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
    // A shard has at least two buckets of 8 cells. Each cell has a tag of two bytes, 88 bytes, and the value.
    assert_eq!(Table::bytes(&field(64, 1)), 16 * (2 + 88 + 64));
    assert_eq!(Table::bytes(&field(8, 1000)), 2000 * (2 + 88 + 8));
    // 9 shards of at least 1112 entries each have 278 buckets each.
    assert_eq!(Table::bytes(&field(8, 10_000)), 9 * 278 * 8 * (2 + 88 + 8));
}

/// A field in use, with the expected value and expiry of each live entry.
struct History {
    table: Table,
    declared: usize,
    live: HashMap<u64, (u64, Option<u64>)>,
    now_ns: u64,
    next_key: u64,
}

impl History {
    fn new(declared: u32, when_full: WhenFull) -> Self {
        let table = Table::new(&Field { when_full, ..field(8, declared) });
        Self { table, declared: declared as usize, live: HashMap::new(), now_ns: 0, next_key: 0 }
    }

    fn put_new(&mut self) -> Result<(), Errno> {
        let number = self.next_key;
        self.next_key += 1;
        self.table.put(&key(number), &number.to_le_bytes(), || self.now_ns)?;
        self.live.insert(number, (number, None));
        Ok(())
    }

    fn one(&self, rng: &mut Rng) -> Option<u64> {
        let at = rng.usize(..self.live.len().max(1));
        self.live.keys().nth(at).copied()
    }

    /// Makes one step: mostly new entries, sometimes more than the field is declared for, with deletions, expiries and pauses between.
    fn step(&mut self, rng: &mut Rng) {
        match rng.u32(..20) {
            0..12 if self.live.len() < self.declared => {
                assert_eq!(self.put_new(), Ok(()), "with {} of {} live", self.live.len(), self.declared);
            }
            12 => drop((0..self.declared / 2).find(|_| self.put_new().is_err())),
            13 | 14 => {
                for _ in 0..rng.usize(..1 + self.declared / 2) {
                    let Some(number) = self.one(rng) else { break };
                    self.live.remove(&number);
                    assert_eq!(self.table.delete(&key(number), || self.now_ns), Ok(()));
                }
            }
            15..18 => {
                for _ in 0..rng.usize(..1 + self.declared / 2) {
                    let Some(number) = self.one(rng) else { break };
                    let ttl_ns = 1 + rng.u64(..SECOND_NS);
                    assert_eq!(self.table.expire(&key(number), Some(ttl_ns), || self.now_ns), Ok(()));
                    self.live.get_mut(&number).unwrap().1 = Some(self.now_ns + ttl_ns);
                }
            }
            18 => {
                self.now_ns += rng.u64(..SECOND_NS);
                self.live.retain(|_, (_, ends_ns)| ends_ns.is_none_or(|ends_ns| self.now_ns < ends_ns));
            }
            _ => {
                if let Some(number) = self.one(rng) {
                    assert_eq!(stored(&self.table, &key(number), self.now_ns), Ok(number.to_le_bytes().to_vec()));
                }
            }
        }
    }

    fn assert_all_live_entries_are_there(&self) {
        for (number, (value, _)) in &self.live {
            assert_eq!(stored(&self.table, &key(*number), self.now_ns), Ok(value.to_le_bytes().to_vec()), "{number}");
        }
    }
}

/// Each field has a hash key of its own: 20,000 of them.
#[test]
fn declared_entries_fit_after_any_history_of_puts_deletions_and_expiries() {
    let mut rng = Rng::with_seed(1);
    for round in 0..20_000 {
        let declared = 1 + rng.u32(..if round % 100 == 0 { 2000 } else { 64 });
        let mut history = History::new(declared, WhenFull::Refuse);
        for _ in 0..100 {
            history.step(&mut rng);
        }
        history.assert_all_live_entries_are_there();
    }
}

/// A regression test: entries expire together, and as many new ones arrive as the field is declared for.
#[test]
fn as_many_new_entries_as_declared_fit_among_expired_ones_whatever_the_hash() {
    for _ in 0..20_000 {
        let mut history = History::new(100, WhenFull::Refuse);
        while history.put_new().is_ok() {}
        for number in history.live.keys() {
            history.table.expire(&key(*number), Some(SECOND_NS), || 0).unwrap();
        }
        (history.now_ns, history.live) = (SECOND_NS, HashMap::new());
        (0..100).for_each(|number| assert_eq!(history.put_new(), Ok(()), "{number}"));
        history.assert_all_live_entries_are_there();
    }
}

/// Entries come and go at the declared number for a long time.
#[test]
fn a_field_that_evicts_keeps_all_entries_while_there_are_no_more_than_declared() {
    let mut rng = Rng::with_seed(2);
    for _ in 0..1000 {
        let mut history = History::new(100, WhenFull::Evict);
        for _ in 0..100 {
            history.put_new().unwrap();
        }
        for _ in 0..300 {
            let number = history.one(&mut rng).unwrap();
            history.live.remove(&number);
            history.table.delete(&key(number), never).unwrap();
            history.put_new().unwrap();
        }
        assert_eq!(history.table.counted().evicted, 0);
        history.assert_all_live_entries_are_there();
    }
}
