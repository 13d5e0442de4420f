//! `random_get`: as many random bytes as a guest asks for, in as many of its turns as that takes.

use pinion_abi::RANDOM_BYTES_MAX;
use wasmtime::Caller;

use super::super::{Asks, Host, fill_random, has};
use super::{FAULT, SUCCESS};

/// A call of `random_get` that is under way. It never fails because a turn's allowance is used up: libraries have no other source, and end
/// their program if it fails.
#[derive(Debug)]
pub struct RandomGet {
    at: i32,
    left: u32,
}

impl RandomGet {
    /// Begins a call with these arguments. Nothing is filled yet.
    #[must_use]
    pub fn new(ptr: i32, len: i32) -> Self {
        Self { at: ptr, left: len as u32 }
    }

    /// Fills the next part, at most 4096 bytes, as far as this turn's allowance covers it. Returns the result of the call, or none if there is
    /// more to fill: then the guest's turn is to end first. The bytes that were filled before an error stay.
    ///
    /// # Errors
    /// Returns the error with which the guest must end.
    pub fn step<T: Host>(&mut self, caller: &mut Caller<'_, T>) -> wasmtime::Result<Option<i32>> {
        if !has(caller, self.at, self.left.into()) {
            return Ok(Some(FAULT));
        }
        let part = self.left.min(RANDOM_BYTES_MAX);
        if !caller.data_mut().charge(part) {
            return Ok(None);
        }
        if fill_random(caller, Asks::Library, self.at, part)?.is_none() {
            return Ok(Some(FAULT));
        }
        self.at = self.at.wrapping_add(part as i32);
        self.left -= part;
        Ok((self.left == 0).then_some(SUCCESS))
    }
}
