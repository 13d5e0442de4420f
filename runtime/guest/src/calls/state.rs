//! What a guest may call of the state that its stage was granted: entries of fields, by key.
//!
//! This is the boundary: it takes keys and values out of guest memory and puts values back. What a field is, and who may do what
//! with it, says whoever implements [`State`]. Each call takes time in proportion to what it moves, a kilobyte at most, and is
//! charged to the turn like all others. A call for which there is nothing left ends the turn, and says so.

use pinion_abi::{
    Errno, IMPORT_MODULE, IMPORT_STATE_ADD, IMPORT_STATE_CAS, IMPORT_STATE_DELETE, IMPORT_STATE_EXPIRE,
    IMPORT_STATE_GET, IMPORT_STATE_OPEN, IMPORT_STATE_PUT, STATE_EXPECT_NONE, STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
};
use wasmtime::{Caller, Linker};

use super::{Host, memory};

/// A key, as guests give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Zero behind its end.
    bytes: [u8; STATE_KEY_BYTES_MAX],
    len: u8,
}

impl Key {
    /// The key of these bytes; none if they are too many.
    #[inline]
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; STATE_KEY_BYTES_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { bytes, len: key.len() as u8 })
    }

    /// Its bytes, and zeros behind them.
    #[inline]
    #[must_use]
    pub fn padded(&self) -> &[u8; STATE_KEY_BYTES_MAX] {
        &self.bytes
    }

    /// How many bytes it has.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A key of no bytes is a key.
    pub fn len(&self) -> u8 {
        self.len
    }
}

/// The fields of a stage, by their numbers. Called on a worker: nothing here waits, allocates, or takes longer than a constant.
pub trait State {
    /// Copies the start of a value, as much as fits; its full length.
    ///
    /// # Errors
    /// Why not; likewise of all others.
    fn get(&self, field: u32, key: &Key, value: &mut [u8]) -> Result<u32, Errno>;
    /// Stores a value.
    ///
    /// # Errors
    /// See [`State::get`].
    fn put(&self, field: u32, key: &Key, value: &[u8]) -> Result<(), Errno>;
    /// Stores a value if what is there is what is expected.
    ///
    /// # Errors
    /// See [`State::get`].
    fn compare_and_swap(&self, field: u32, key: &Key, expected: Option<&[u8]>, value: &[u8]) -> Result<(), Errno>;
    /// Adds to a number; the sum.
    ///
    /// # Errors
    /// See [`State::get`].
    fn add(&self, field: u32, key: &Key, delta: i64) -> Result<i64, Errno>;
    /// Has an entry end after so many milliseconds, or never.
    ///
    /// # Errors
    /// See [`State::get`].
    fn expire(&self, field: u32, key: &Key, ttl_ms: Option<u64>) -> Result<(), Errno>;
    /// Removes an entry.
    ///
    /// # Errors
    /// See [`State::get`].
    fn delete(&self, field: u32, key: &Key) -> Result<(), Errno>;
}

/// State that nobody can have.
#[derive(Debug)]
pub enum NoState {}

impl State for NoState {
    fn get(&self, _: u32, _: &Key, _: &mut [u8]) -> Result<u32, Errno> {
        match *self {}
    }

    fn put(&self, _: u32, _: &Key, _: &[u8]) -> Result<(), Errno> {
        match *self {}
    }

    fn compare_and_swap(&self, _: u32, _: &Key, _: Option<&[u8]>, _: &[u8]) -> Result<(), Errno> {
        match *self {}
    }

    fn add(&self, _: u32, _: &Key, _: i64) -> Result<i64, Errno> {
        match *self {}
    }

    fn expire(&self, _: u32, _: &Key, _: Option<u64>) -> Result<(), Errno> {
        match *self {}
    }

    fn delete(&self, _: u32, _: &Key) -> Result<(), Errno> {
        match *self {}
    }
}

/// Joins the calls to a store's host.
pub(super) fn define<T: Host>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_OPEN, open::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_GET, get::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_PUT, put::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_CAS, compare_and_swap::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_ADD, add::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_EXPIRE, expire::<T>)?
        .func_wrap(IMPORT_MODULE, IMPORT_STATE_DELETE, delete::<T>)?;
    Ok(())
}

/// A range of guest memory, as guests name one.
#[derive(Clone, Copy)]
struct Range {
    ptr: i32,
    len: i32,
}

impl Range {
    fn of(self, memory: &[u8]) -> Result<&[u8], Errno> {
        memory.get(self.ptr as u32 as usize..).and_then(|rest| rest.get(..self.len as u32 as usize)).ok_or(Errno::Fault)
    }

    fn of_mut(self, memory: &mut [u8]) -> Result<&mut [u8], Errno> {
        let (start, len) = (self.ptr as u32 as usize, self.len as u32 as usize);
        memory.get_mut(start..).and_then(|rest| rest.get_mut(..len)).ok_or(Errno::Fault)
    }

    /// A key; what is too long for one is that wherever it lies.
    #[inline]
    fn key(self, memory: &[u8]) -> Result<Key, Errno> {
        if self.len as u32 as usize > STATE_KEY_BYTES_MAX {
            return Err(Errno::TooLong);
        }
        Key::new(self.of(memory)?).ok_or(Errno::TooLong)
    }

    /// A value; what is too long for one is that wherever it lies.
    #[inline]
    fn value(self, memory: &[u8]) -> Result<&[u8], Errno> {
        if self.len as u32 as usize > STATE_VALUE_BYTES_MAX { Err(Errno::TooLong) } else { self.of(memory) }
    }
}

/// Does something with the guest's memory and its state, if this turn's allowance covers so many bytes; what the guest is told.
#[inline]
fn with_state<T: Host>(
    mut caller: Caller<'_, T>,
    bytes: i32,
    work: impl FnOnce(&mut [u8], &T::State) -> Result<u32, Errno>,
) -> i32 {
    // What is more is refused before it is moved.
    let bytes = (bytes as u32).min(STATE_VALUE_BYTES_MAX as u32);
    let done = match memory(&mut caller) {
        None => Err(Errno::Fault),
        Some(memory) => {
            let (memory, host) = memory.data_and_store_mut(&mut caller);
            if host.charge(bytes) { host.state().and_then(|state| work(memory, state)) } else { Err(Errno::Again) }
        }
    };
    if matches!(done, Err(Errno::Again)) {
        T::give_way(&caller);
    }
    done.map_or_else(Errno::negated, |number| number as i32)
}

fn open<T: Host>(mut caller: Caller<'_, T>, name: i32, len: i32) -> i32 {
    let Some(memory) = memory(&mut caller) else { return Errno::Fault.negated() };
    let (memory, host) = memory.data_and_store_mut(&mut caller);
    // Names are no longer than keys.
    if !host.charge(STATE_KEY_BYTES_MAX as u32) {
        T::give_way(&caller);
        return Errno::Again.negated();
    }
    let name = Range { ptr: name, len }.key(memory);
    let found = name.and_then(|name| host.field(&name.padded()[..name.len().into()]).ok_or(Errno::NoField));
    found.map_or_else(Errno::negated, |number| number as i32)
}

fn get<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, value: i32, capacity: i32) -> i32 {
    let (key, value) = (Range { ptr: key, len: key_len }, Range { ptr: value, len: capacity });
    with_state(caller, capacity, |memory, state| {
        let key = key.key(memory)?;
        state.get(field as u32, &key, value.of_mut(memory)?)
    })
}

fn put<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, value: i32, len: i32) -> i32 {
    let (key, value) = (Range { ptr: key, len: key_len }, Range { ptr: value, len });
    with_state(caller, len, |memory, state| {
        state.put(field as u32, &key.key(memory)?, value.value(memory)?).map(|()| 0)
    })
}

#[allow(clippy::too_many_arguments)] // The contract's.
fn compare_and_swap<T: Host>(
    caller: Caller<'_, T>,
    field: i32,
    key: i32,
    key_len: i32,
    expected: i32,
    expected_len: i32,
    value: i32,
    len: i32,
) -> i32 {
    let (key, value) = (Range { ptr: key, len: key_len }, Range { ptr: value, len });
    let expected = (expected_len != STATE_EXPECT_NONE).then_some(Range { ptr: expected, len: expected_len });
    with_state(caller, len, |memory, state| {
        let expected = expected.map(|expected| expected.value(memory)).transpose()?;
        state.compare_and_swap(field as u32, &key.key(memory)?, expected, value.value(memory)?).map(|()| 0)
    })
}

fn add<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, delta: i64, sum: i32) -> i32 {
    let (key, sum) = (Range { ptr: key, len: key_len }, Range { ptr: sum, len: size_of::<i64>() as i32 });
    with_state(caller, sum.len, |memory, state| {
        // Before anything is changed.
        sum.of(memory)?;
        let total = state.add(field as u32, &key.key(memory)?, delta)?;
        sum.of_mut(memory)?.copy_from_slice(&total.to_le_bytes());
        Ok(0)
    })
}

fn expire<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, ttl_ms: i64) -> i32 {
    let key = Range { ptr: key, len: key_len };
    with_state(caller, 0, |memory, state| {
        state.expire(field as u32, &key.key(memory)?, u64::try_from(ttl_ms).ok()).map(|()| 0)
    })
}

fn delete<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32) -> i32 {
    let key = Range { ptr: key, len: key_len };
    with_state(caller, 0, |memory, state| state.delete(field as u32, &key.key(memory)?).map(|()| 0))
}
