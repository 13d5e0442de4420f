//! Data that outlives an instance, or that instances share. The node stores it as entries of [`Field`]s, by key.
//!
//! A field is declared in the manifest, and granted to a stage to read or to write. All instances of all the tenant's chains that were
//! granted a field of one name see the same entries. So one function may write entries that another may only read, and an instance can use
//! what an earlier one has stored. An update in several steps reads the value and stores the new one only if the old one has not changed
//! ([`Field::compare_and_swap`]); [`Field::add`] adds to a number in one step.
//!
//! ```toml
//! [state.sessions]
//! value_bytes = 8
//! entries = 10000
//! ttl_seconds = 300       # from when an entry was written; without it, entries stay
//! when_full = "refuse"    # or "evict": the entry goes that was not written to for longest
//!
//! [[chain]]
//! name = "limit"
//! stage = [{ module = "limit", state = { sessions = "write" } }]
//! ```
//!
//! ```
//! use pinion_sdk::headers::Headers;
//! use pinion_sdk::state::Field;
//! use pinion_sdk::testing::{Harness, StateField, grant_state};
//! use pinion_sdk::{InitError, Packet, PacketFunction};
//!
//! /// Passes 100 packets of each flow.
//! struct Limit {
//!     sessions: Field,
//! }
//!
//! impl PacketFunction for Limit {
//!     fn init(_config: &[u8]) -> Result<Self, InitError> {
//!         Ok(Self { sessions: Field::open("sessions")? })
//!     }
//!
//!     fn handle(&mut self, packet: Packet<'_>) {
//!         let flow = Headers::of(packet.data()).ok().and_then(|headers| headers.flow());
//!         let Some(flow) = flow else { return };
//!         if self.sessions.add(flow.to_key(), 1).is_ok_and(|count| count <= 100) {
//!             packet.send();
//!         }
//!     }
//! }
//!
//! // In tests the test grants the field.
//! grant_state(StateField { value_bytes: 8, ..StateField::writable("sessions") });
//! assert!(Harness::<Limit>::new(b"").is_ok());
//! ```
//!
//! An entry exists until it is deleted, its time to live is over, no chain that declares its field is left, or the node ends. A call takes
//! a few hundred nanoseconds, more if the entry is in no cache. Its time is bounded like that of all calls: if another instance uses the
//! same entry for too long, this instance yields and tries again, without the function noticing.

use core::fmt;
use core::time::Duration;

use pinion_abi::{Errno, STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX};

use super::calls;
use crate::InitError;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = STATE_KEY_BYTES_MAX;
/// The longest value that a field may be declared with, in bytes.
pub const VALUE_BYTES_MAX: usize = STATE_VALUE_BYTES_MAX;

/// Why a call failed. The stored data is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The stage was granted no field of this name.
    NoField,
    /// The stage may only read the field.
    Denied,
    /// The key is longer than [`KEY_BYTES_MAX`], or the value is longer than the field is declared with.
    TooLong,
    /// The field has no room for another entry.
    Full,
    /// The stored value does not have the requested length.
    OtherLength,
    /// Not allowed in [`Function::init`](crate::Function::init): all instances share its result.
    NotNow,
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoField => "the stage is granted no state field of this name: grant it in the chain's manifest",
            Self::Denied => "the stage is granted this state field to read only",
            Self::TooLong => "the key is too long, or the value is longer than the state field is declared for",
            Self::Full => "the state field has no room for another entry",
            Self::OtherLength => "what is stored in the state field has another length",
            Self::NotNow => "state cannot be used while the function is initialised",
        })
    }
}

impl std::error::Error for StateError {}

impl StateError {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::NoField => Self::NoField,
            Errno::Denied => Self::Denied,
            Errno::Full => Self::Full,
            Errno::Mismatch => Self::OtherLength,
            Errno::NotNow => Self::NotNow,
            Errno::TooLong => Self::TooLong,
            // Errors that callers handle before: repeated calls, and calls that return `Option`. Addresses always lie within this memory.
            // The others are those of keys.
            errno @ (Errno::Ok
            | Errno::Fault
            | Errno::Again
            | Errno::NoEntry
            | Errno::NoKey
            | Errno::Refused
            | Errno::Busy) => {
                unreachable!("{errno:?}")
            }
        }
    }
}

/// A field of state that the stage was granted. See [the module](self).
#[derive(Debug)]
pub struct Field {
    number: i32,
}

impl Field {
    /// Opens the field of this name. Call it in [`Function::init`](crate::Function::init): then a chain that does not grant the field is
    /// refused when it is applied.
    ///
    /// # Errors
    ///
    /// The stage was not granted the field; the message names the field.
    pub fn open(name: &str) -> Result<Self, InitError> {
        match call(|| calls::state_open(name)) {
            Ok(number) => Ok(Self { number }),
            Err(error) => Err(InitError::new(format_args!("state field {name:?}: {}", StateError::of(error)))),
        }
    }

    /// Copies the value stored under a key to the start of `buffer`, as much as fits. `None` if there is no entry.
    ///
    /// # Errors
    ///
    /// See [`StateError`]; so for all other calls.
    #[inline]
    pub fn get<'b>(&self, key: impl AsRef<[u8]>, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, StateError> {
        let len = entry(call(|| calls::state_get(self.number, key.as_ref(), buffer)))?;
        Ok(len.map(|len| &buffer[..buffer.len().min(usize::try_from(len).unwrap_or(0))]))
    }

    /// Returns the value stored under a key, if it has `N` bytes: for numbers, with their `from_le_bytes`.
    ///
    /// ```
    /// # use pinion_sdk::state::Field;
    /// # use pinion_sdk::testing::{StateField, grant_state};
    /// # grant_state(StateField::writable("seen"));
    /// let seen = Field::open("seen").unwrap();
    /// seen.put(b"10.0.0.1", 1_700_000_000_u32.to_le_bytes()).unwrap();
    /// assert_eq!(seen.get_array(b"10.0.0.1").unwrap().map(u32::from_le_bytes), Some(1_700_000_000));
    /// assert_eq!(seen.get_array::<4>(b"10.0.0.2"), Ok(None));
    /// ```
    ///
    /// # Errors
    ///
    /// [`StateError::OtherLength`] if it has another length.
    #[inline]
    pub fn get_array<const N: usize>(&self, key: impl AsRef<[u8]>) -> Result<Option<[u8; N]>, StateError> {
        let mut value = [0; N];
        match entry(call(|| calls::state_get(self.number, key.as_ref(), &mut value)))? {
            Some(len) if usize::try_from(len) == Ok(N) => Ok(Some(value)),
            Some(_) => Err(StateError::OtherLength),
            None => Ok(None),
        }
    }

    /// Stores a value under a key, whether or not there was one. Its time to live starts again.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    #[inline]
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), StateError> {
        done(call(|| calls::state_put(self.number, key.as_ref(), value.as_ref())))
    }

    /// Stores a value under a key if the stored value equals `expected`, or, if that is `None`, if there is no entry. Returns whether it
    /// has stored the value. The time to live then starts again.
    ///
    /// ```
    /// # use pinion_sdk::state::Field;
    /// # use pinion_sdk::testing::{StateField, grant_state};
    /// # grant_state(StateField::writable("owners"));
    /// let owners = Field::open("owners").unwrap();
    /// assert_eq!(owners.compare_and_swap(b"port 80", None, b"first"), Ok(true));
    /// assert_eq!(owners.compare_and_swap(b"port 80", None, b"second"), Ok(false));
    /// assert_eq!(owners.compare_and_swap(b"port 80", Some(b"first"), b"second"), Ok(true));
    /// ```
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    #[inline]
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, StateError> {
        match call(|| calls::state_cas(self.number, key.as_ref(), expected, value.as_ref())) {
            Ok(_) => Ok(true),
            Err(Errno::Mismatch) => Ok(false),
            Err(error) => Err(StateError::of(error)),
        }
    }

    /// Adds to the number under a key: 8 bytes, zero if there is no entry. It wraps around at its ends. Returns the sum. The time to live
    /// of an existing entry continues.
    ///
    /// # Errors
    ///
    /// [`StateError::OtherLength`] if the value does not have 8 bytes.
    #[inline]
    pub fn add(&self, key: impl AsRef<[u8]>, delta: i64) -> Result<i64, StateError> {
        let mut sum = 0;
        done(call(|| calls::state_add(self.number, key.as_ref(), delta, &mut sum)))?;
        Ok(sum)
    }

    /// Sets an entry's time to live, in whole milliseconds; `None` keeps it without limit. Returns whether there is such an entry.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    pub fn expire(&self, key: impl AsRef<[u8]>, after: Option<Duration>) -> Result<bool, StateError> {
        let ttl_ms = after.map_or(-1, |after| i64::try_from(after.as_millis()).unwrap_or(i64::MAX));
        Ok(entry(call(|| calls::state_expire(self.number, key.as_ref(), ttl_ms)))?.is_some())
    }

    /// Removes an entry. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, StateError> {
        Ok(entry(call(|| calls::state_delete(self.number, key.as_ref())))?.is_some())
    }
}

/// Repeats a call until the result is not [`Errno::Again`]. The node lets others run between two calls.
#[inline]
fn call(mut host: impl FnMut() -> i32) -> Result<i32, Errno> {
    loop {
        let returned = host();
        match Errno::of_returned(returned) {
            None => return Ok(returned),
            Some(Errno::Again) => {}
            Some(errno) => return Err(errno),
        }
    }
}

/// Converts the result of a call for an entry that may not exist.
#[inline]
fn entry(called: Result<i32, Errno>) -> Result<Option<i32>, StateError> {
    match called {
        Ok(returned) => Ok(Some(returned)),
        Err(Errno::NoEntry) => Ok(None),
        Err(error) => Err(StateError::of(error)),
    }
}

#[inline]
fn done(called: Result<i32, Errno>) -> Result<(), StateError> {
    called.map(|_| ()).map_err(StateError::of)
}
