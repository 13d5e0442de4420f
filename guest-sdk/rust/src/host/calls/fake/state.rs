//! Replaces a node's state in native tests: fields that a test grants, with entries that expire by the test's clock.

use core::cell::{Cell, RefCell};
use std::collections::HashMap;

use pinion_abi::{Errno, STATE_KEY_BYTES_MAX};

use super::exact_clock_ns;
use crate::testing::StateField;

/// An entry.
struct Entry {
    value: Vec<u8>,
    /// Time on the clock; `None` if the entry does not expire.
    ends_ns: Option<u64>,
    /// The number of writes before this one: orders entries by age.
    written: u64,
}

struct Fake {
    granted: StateField,
    entries: HashMap<Vec<u8>, Entry>,
    writes: u64,
}

thread_local! {
    static FIELDS: RefCell<Vec<Fake>> = const { RefCell::new(Vec::new()) };
    static INITIALISING: Cell<bool> = const { Cell::new(false) };
}

/// Grants a field. If the field exists, its entries stay.
pub(crate) fn grant_state(granted: StateField) {
    FIELDS.with_borrow_mut(|fields| match fields.iter_mut().find(|field| field.granted.name == granted.name) {
        Some(field) => field.granted = granted,
        None => fields.push(Fake { granted, entries: HashMap::new(), writes: 0 }),
    });
}

/// Runs `work` as a function's initialisation.
pub(crate) fn initialising<R>(work: impl FnOnce() -> R) -> R {
    INITIALISING.set(true);
    let result = work();
    INITIALISING.set(false);
    result
}

/// Returns whether a function is being initialised.
pub(super) fn is_initialising() -> bool {
    INITIALISING.get()
}

pub(crate) fn state_open(name: &str) -> i32 {
    let number = FIELDS.with_borrow(|fields| fields.iter().position(|field| field.granted.name == name));
    number.and_then(|number| i32::try_from(number).ok()).unwrap_or(Errno::NoField.negated())
}

pub(crate) fn state_get(field: i32, key: &[u8], value: &mut [u8]) -> i32 {
    with(field, key, |field| {
        let entry = field.entries.get(key).ok_or(Errno::NoEntry)?;
        let fits = entry.value.len().min(value.len());
        value[..fits].copy_from_slice(&entry.value[..fits]);
        Ok(entry.value.len() as i32)
    })
}

pub(crate) fn state_put(field: i32, key: &[u8], value: &[u8]) -> i32 {
    with_writable(field, key, |field| field.write(key, value))
}

pub(crate) fn state_cas(field: i32, key: &[u8], expected: Option<&[u8]>, value: &[u8]) -> i32 {
    with_writable(field, key, |field| {
        field.fits(value)?;
        let is_expected = field.entries.get(key).map(|entry| &*entry.value) == expected;
        if is_expected { field.write(key, value) } else { Err(Errno::Mismatch) }
    })
}

pub(crate) fn state_add(field: i32, key: &[u8], delta: i64, sum: &mut i64) -> i32 {
    with_writable(field, key, |field| {
        field.fits(&[0; 8])?;
        match field.entries.get_mut(key) {
            Some(entry) => {
                let number = entry.value.as_slice().try_into().map_err(|_| Errno::Mismatch)?;
                *sum = i64::from_le_bytes(number).wrapping_add(delta);
                entry.value = sum.to_le_bytes().to_vec();
                entry.written = field.writes;
                field.writes += 1;
                Ok(0)
            }
            None => {
                field.write(key, &delta.to_le_bytes())?;
                *sum = delta;
                Ok(0)
            }
        }
    })
}

pub(crate) fn state_expire(field: i32, key: &[u8], ttl_ms: i64) -> i32 {
    with_writable(field, key, |field| {
        let entry = field.entries.get_mut(key).ok_or(Errno::NoEntry)?;
        entry.ends_ns = u64::try_from(ttl_ms).ok().map(|ttl_ms| exact_clock_ns() + ttl_ms.saturating_mul(1_000_000));
        Ok(0)
    })
}

pub(crate) fn state_delete(field: i32, key: &[u8]) -> i32 {
    with_writable(field, key, |field| field.entries.remove(key).map(|_| 0).ok_or(Errno::NoEntry))
}

fn with_writable(field: i32, key: &[u8], work: impl FnOnce(&mut Fake) -> Result<i32, Errno>) -> i32 {
    with(field, key, |field| if field.granted.read_only { Err(Errno::Denied) } else { work(field) })
}

fn with(field: i32, key: &[u8], work: impl FnOnce(&mut Fake) -> Result<i32, Errno>) -> i32 {
    if INITIALISING.get() {
        return Errno::NotNow.negated();
    }
    let called = FIELDS.with_borrow_mut(|fields| {
        if key.len() > STATE_KEY_BYTES_MAX {
            return Err(Errno::TooLong);
        }
        let field = usize::try_from(field).ok().and_then(|number| fields.get_mut(number)).ok_or(Errno::NoField)?;
        let now_ns = exact_clock_ns();
        field.entries.retain(|_, entry| entry.ends_ns.is_none_or(|ends_ns| now_ns < ends_ns));
        work(field)
    });
    called.unwrap_or_else(Errno::negated)
}

impl Fake {
    fn fits(&self, value: &[u8]) -> Result<(), Errno> {
        if value.len() > self.granted.value_bytes { Err(Errno::TooLong) } else { Ok(()) }
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<i32, Errno> {
        self.fits(value)?;
        if !self.entries.contains_key(key) && self.entries.len() >= self.granted.entries {
            if !self.granted.evicts {
                return Err(Errno::Full);
            }
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.written).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.entries.remove(&oldest));
        }
        let ends_ns = self.granted.ttl.map(|ttl| exact_clock_ns() + ttl.as_nanos() as u64);
        self.entries.insert(key.to_vec(), Entry { value: value.to_vec(), ends_ns, written: self.writes });
        self.writes += 1;
        Ok(0)
    }
}
