//! The calls for the state that a guest's stage was granted: entries of fields, by key.
//!
//! This module is the boundary: it copies keys and values from guest memory, and values back. What a field is, and what a guest may do
//! with it, is up to the implementation of [`State`]. Each call takes time in proportion to the bytes it moves, a kilobyte at most, and is
//! charged to the turn like all others. A call that the allowance does not cover ends the turn and returns [`Errno::Again`].

use pinion_abi::{
    Errno, IMPORT_MODULE, IMPORT_STATE_ADD, IMPORT_STATE_CAS, IMPORT_STATE_DELETE, IMPORT_STATE_EXPIRE,
    IMPORT_STATE_GET, IMPORT_STATE_OPEN, IMPORT_STATE_PUT, STATE_EXPECT_NONE, STATE_KEY_BYTES_MAX,
    STATE_VALUE_BYTES_MAX,
};
use wasmtime::{Caller, Linker};

use super::{Host, memory};
use crate::memory::GuestMemory;

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
    fn len(self) -> usize {
        self.len as u32 as usize
    }

    /// Reads a key. The length is checked before the range.
    #[inline]
    fn key(self, memory: GuestMemory<'_>) -> Result<Key, Errno> {
        let mut bytes = [0; STATE_KEY_BYTES_MAX];
        let key = bytes.get_mut(..self.len()).ok_or(Errno::TooLong)?;
        memory.read(self.ptr, key).ok_or(Errno::Fault)?;
        Ok(Key { bytes, len: self.len as u8 })
    }

    /// Reads a value. The length is checked before the range.
    #[inline]
    fn value<'v>(self, memory: GuestMemory<'_>, room: &'v mut Value) -> Result<&'v [u8], Errno> {
        let value = room.get_mut(..self.len()).ok_or(Errno::TooLong)?;
        memory.read(self.ptr, value).ok_or(Errno::Fault)?;
        Ok(value)
    }
}

/// Room for a value.
type Value = [u8; STATE_VALUE_BYTES_MAX];
const NO_VALUE: Value = [0; STATE_VALUE_BYTES_MAX];

/// Calls `work` with the guest's memory and state, if this turn's allowance covers `bytes`. Returns the result as the guest gets it.
#[inline]
fn with_state<T: Host>(
    mut caller: Caller<'_, T>,
    bytes: i32,
    work: impl FnOnce(GuestMemory<'_>, &T::State) -> Result<u32, Errno>,
) -> i32 {
    // Longer values are refused before they are moved.
    let bytes = (bytes as u32).min(STATE_VALUE_BYTES_MAX as u32);
    let done = match memory(&mut caller) {
        None => Err(Errno::Fault),
        Some(memory) => GuestMemory::with(&mut caller, memory, |memory, host| {
            if host.charge(bytes) { host.state().and_then(|state| work(memory, state)) } else { Err(Errno::Again) }
        }),
    };
    if matches!(done, Err(Errno::Again)) {
        T::give_way(&caller);
    }
    done.map_or_else(Errno::negated, |number| number as i32)
}

fn open<T: Host>(mut caller: Caller<'_, T>, name: i32, len: i32) -> i32 {
    let Some(memory) = memory(&mut caller) else { return Errno::Fault.negated() };
    // Names are no longer than keys.
    if !caller.data_mut().charge(STATE_KEY_BYTES_MAX as u32) {
        T::give_way(&caller);
        return Errno::Again.negated();
    }
    let found = GuestMemory::with(&mut caller, memory, |memory, host| {
        let name = Range { ptr: name, len }.key(memory)?;
        host.field(&name.padded()[..name.len().into()]).ok_or(Errno::NoField)
    });
    found.map_or_else(Errno::negated, |number| number as i32)
}

fn get<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, value: i32, capacity: i32) -> i32 {
    let (key, value) = (Range { ptr: key, len: key_len }, Range { ptr: value, len: capacity });
    with_state(caller, capacity, |memory, state| {
        let key = key.key(memory)?;
        if !memory.has(value.ptr, value.len()) {
            return Err(Errno::Fault);
        }
        let mut room = NO_VALUE;
        let room = &mut room[..value.len().min(STATE_VALUE_BYTES_MAX)];
        let len = state.get(field as u32, &key, room)?;
        memory.write(value.ptr, &room[..room.len().min(len as usize)]).ok_or(Errno::Fault)?;
        Ok(len)
    })
}

fn put<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, value: i32, len: i32) -> i32 {
    let (key, value) = (Range { ptr: key, len: key_len }, Range { ptr: value, len });
    with_state(caller, len, |memory, state| {
        let mut room = NO_VALUE;
        state.put(field as u32, &key.key(memory)?, value.value(memory, &mut room)?).map(|()| 0)
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
        let (mut of_expected, mut of_value) = (NO_VALUE, NO_VALUE);
        let expected = expected.map(|expected| expected.value(memory, &mut of_expected)).transpose()?;
        let (key, value) = (key.key(memory)?, value.value(memory, &mut of_value)?);
        state.compare_and_swap(field as u32, &key, expected, value).map(|()| 0)
    })
}

fn add<T: Host>(caller: Caller<'_, T>, field: i32, key: i32, key_len: i32, delta: i64, sum: i32) -> i32 {
    let (key, sum) = (Range { ptr: key, len: key_len }, Range { ptr: sum, len: size_of::<i64>() as i32 });
    with_state(caller, sum.len, |memory, state| {
        // Checked before anything is changed.
        if !memory.has(sum.ptr, sum.len()) {
            return Err(Errno::Fault);
        }
        let total = state.add(field as u32, &key.key(memory)?, delta)?;
        memory.write(sum.ptr, &total.to_le_bytes()).ok_or(Errno::Fault)?;
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
