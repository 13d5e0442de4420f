//! The calls for the state that a guest's stage was granted: entries of fields, by key.
//!
//! This module is the boundary: it reads keys and values from guest memory and writes values back. What a field is, and what a guest may do
//! with it, is up to the implementation of [`State`]. Each call takes time in proportion to the bytes it moves, a kilobyte at most, and is
//! charged to the turn like all others. A call that the allowance does not cover ends the turn and returns [`Errno::Again`].

use pinion_abi::{
    Errno, IMPORT_MODULE, IMPORT_STATE_ADD, IMPORT_STATE_CAS, IMPORT_STATE_DELETE, IMPORT_STATE_EXPIRE,
    IMPORT_STATE_GET, IMPORT_STATE_OPEN, IMPORT_STATE_PUT, STATE_EXPECT_NONE, STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
};
use wasmtime::{Caller, Linker};

use super::{Host, memory};

/// A key, as guests pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Zero after its end.
    bytes: [u8; STATE_KEY_BYTES_MAX],
    len: u8,
}

impl Key {
    /// Creates a key of these bytes; none if they are too many.
    #[inline]
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; STATE_KEY_BYTES_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { bytes, len: key.len() as u8 })
    }

    /// Returns its bytes, followed by zeros.
    #[inline]
    #[must_use]
    pub fn padded(&self) -> &[u8; STATE_KEY_BYTES_MAX] {
        &self.bytes
    }

    /// Returns its length in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A key of no bytes is a key.
    pub fn len(&self) -> u8 {
        self.len
    }
}

/// The fields of a stage, by their numbers. Called on a worker: implementations must not block or allocate, and each call takes a bounded
/// time.
pub trait State {
    /// Copies the start of a value, as much as fits. Returns the value's full length.
    ///
    /// # Errors
    /// Returns why the call failed; likewise for all other calls.
    fn get(&self, field: u32, key: &Key, value: &mut [u8]) -> Result<u32, Errno>;
    /// Stores a value.
    ///
    /// # Errors
    /// See [`State::get`].
    fn put(&self, field: u32, key: &Key, value: &[u8]) -> Result<(), Errno>;
    /// Stores a value if the present one equals `expected`.
    ///
    /// # Errors
    /// See [`State::get`].
    fn compare_and_swap(&self, field: u32, key: &Key, expected: Option<&[u8]>, value: &[u8]) -> Result<(), Errno>;
    /// Adds to a number. Returns the sum.
    ///
    /// # Errors
    /// See [`State::get`].
    fn add(&self, field: u32, key: &Key, delta: i64) -> Result<i64, Errno>;
    /// Sets the time after which an entry expires, in milliseconds, or never.
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

/// The state type of hosts without state. It has no values.
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

/// Defines the calls in a linker.
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

/// A range of guest memory, as guests pass it.
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

    /// Reads a key. The length is checked before the range.
    #[inline]
    fn key(self, memory: &[u8]) -> Result<Key, Errno> {
        if self.len as u32 as usize > STATE_KEY_BYTES_MAX {
            return Err(Errno::TooLong);
        }
        Key::new(self.of(memory)?).ok_or(Errno::TooLong)
    }

    /// Returns a value. The length is checked before the range.
    #[inline]
    fn value(self, memory: &[u8]) -> Result<&[u8], Errno> {
        if self.len as u32 as usize > STATE_VALUE_BYTES_MAX { Err(Errno::TooLong) } else { self.of(memory) }
    }
}

/// Calls `work` with the guest's memory and state, if this turn's allowance covers `bytes`. Returns the result as the guest gets it.
#[inline]
fn with_state<T: Host>(
    mut caller: Caller<'_, T>,
    bytes: i32,
    work: impl FnOnce(&mut [u8], &T::State) -> Result<u32, Errno>,
) -> i32 {
    // Longer values are refused before they are moved.
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

#[allow(clippy::too_many_arguments)] // As the contract defines them.
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
        // Checked before anything is changed.
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
