//! The calls of a real node, imported from the module `pinion`.

#![allow(unsafe_code)] // the boundary to the host

pub(super) mod nn;

use core::ptr;

use pinion_abi::{Errno, LogLevel, STATE_EXPECT_NONE};

mod raw {
    #[link(wasm_import_module = "pinion")]
    unsafe extern "C" {
        pub(super) safe fn wait() -> i32;
        pub(super) safe fn wait_until(deadline_ns: i64) -> i32;
        #[link_name = "yield"]
        pub(super) safe fn yield_now();
        pub(super) fn log(level: i32, text: *const u8, len: usize);
        pub(super) safe fn clock() -> i64;
        pub(super) safe fn keep_alive_until(until_ns: i64) -> i64;
        pub(super) fn random(buffer: *mut u8, len: usize) -> i32;
        pub(super) fn panic(text: *const u8, len: usize);
        pub(super) fn config(buffer: *mut u8, capacity: usize) -> i32;
        pub(super) fn key_open(name: *const u8, len: usize) -> i32;
        pub(super) fn key_sign(
            key: i32,
            scheme: i32,
            message: *const u8,
            len: usize,
            signature: *mut u8,
            capacity: usize,
        ) -> i32;
        pub(super) fn ticket_seal(key: i32, plain: *const u8, len: usize, sealed: *mut u8, capacity: usize) -> i32;
        pub(super) fn ticket_open(key: i32, sealed: *const u8, len: usize, plain: *mut u8, capacity: usize) -> i32;
        pub(super) fn state_open(name: *const u8, len: usize) -> i32;
        pub(super) fn state_get(field: i32, key: *const u8, key_len: usize, value: *mut u8, capacity: usize) -> i32;
        pub(super) fn state_put(field: i32, key: *const u8, key_len: usize, value: *const u8, len: usize) -> i32;
        pub(super) fn state_cas(
            field: i32,
            key: *const u8,
            key_len: usize,
            expected: *const u8,
            expected_len: i32,
            value: *const u8,
            len: usize,
        ) -> i32;
        pub(super) fn state_add(field: i32, key: *const u8, key_len: usize, delta: i64, sum: *mut i64) -> i32;
        pub(super) fn state_expire(field: i32, key: *const u8, key_len: usize, ttl_ms: i64) -> i32;
        pub(super) fn state_delete(field: i32, key: *const u8, key_len: usize) -> i32;
    }

    unsafe extern "C" {
        /// Made by the linker: runs the constructors of libc and of linked C code.
        pub(super) fn __wasm_call_ctors();
    }
}

/// Runs the module's constructors.
pub(crate) fn initialize() {
    // SAFETY: the function takes and returns nothing. It is to be called once, first of all, as `_initialize` is.
    unsafe { raw::__wasm_call_ctors() }
}

/// Returns the number of new receive descriptors. On zero, the rings are exchanged at the next loop or function boundary. With a deadline,
/// returns zero only after the deadline has passed.
pub(crate) fn wait(deadline_ns: Option<u64>) -> u32 {
    let Some(deadline_ns) = deadline_ns else {
        return u32::try_from(raw::wait()).unwrap_or(0);
    };
    let deadline_ns = i64::try_from(deadline_ns).unwrap_or(i64::MAX);
    loop {
        match raw::wait_until(deadline_ns) {
            0 => {}
            told => return u32::try_from(told).unwrap_or(0),
        }
    }
}

pub(crate) fn yield_now() {
    raw::yield_now();
}

pub(crate) fn log(level: LogLevel, text: &str) {
    // SAFETY: the host reads `len` bytes at `text` during the call, and they are readable.
    unsafe { raw::log(level as i32, text.as_ptr(), text.len()) }
}

/// Ends the instance with this sentence. Does not return.
pub(crate) fn panic(text: &str) {
    // SAFETY: the host reads `len` bytes at `text` during the call, and they are readable.
    unsafe { raw::panic(text.as_ptr(), text.len()) }
}

pub(crate) fn clock_ns() -> u64 {
    u64::try_from(raw::clock()).unwrap_or(0)
}

/// Asks the node to keep the instance until that time. Returns the time until which it is kept.
pub(crate) fn keep_alive_until(until_ns: u64) -> u64 {
    u64::try_from(raw::keep_alive_until(i64::try_from(until_ns).unwrap_or(i64::MAX))).unwrap_or(0)
}

/// Fills `buffer`, which is at most as long as one call gives. Once all calls of a turn have moved what they may, others run first.
pub(crate) fn random(buffer: &mut [u8]) {
    loop {
        // SAFETY: the host writes at most `len` bytes at `buffer` during the call, and they are writable.
        let errno = unsafe { raw::random(buffer.as_mut_ptr(), buffer.len()) };
        if errno != Errno::TooLong as i32 {
            assert!(errno == Errno::Ok as i32, "the node gave no random bytes: errno {errno}");
            return;
        }
        yield_now();
    }
}

/// Returns the whole configuration.
pub(crate) fn config() -> Vec<u8> {
    // SAFETY: with no capacity nothing is written, so any address will do.
    let len = unsafe { raw::config(ptr::null_mut(), 0) };
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    // SAFETY: the host writes at most `capacity` bytes at `buffer` during the call, and they are writable.
    unsafe { raw::config(bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

pub(crate) fn key_open(name: &str) -> i32 {
    // SAFETY: the host reads `len` bytes at `name` during the call, and they are readable.
    unsafe { raw::key_open(name.as_ptr(), name.len()) }
}

pub(crate) fn key_sign(key: i32, scheme: u16, message: &[u8], signature: &mut [u8]) -> i32 {
    let (signature, capacity) = (signature.as_mut_ptr(), signature.len());
    // SAFETY: the host reads `len` bytes at `message`, which are readable, and writes at most `capacity` at `signature`, which are writable.
    unsafe { raw::key_sign(key, scheme.into(), message.as_ptr(), message.len(), signature, capacity) }
}

pub(crate) fn ticket_seal(key: i32, plain: &[u8], sealed: &mut [u8]) -> i32 {
    // SAFETY: the host reads `len` bytes at `plain`, which are readable, and writes at most `capacity` at `sealed`, which are writable.
    unsafe { raw::ticket_seal(key, plain.as_ptr(), plain.len(), sealed.as_mut_ptr(), sealed.len()) }
}

pub(crate) fn ticket_open(key: i32, sealed: &[u8], plain: &mut [u8]) -> i32 {
    // SAFETY: the host reads `len` bytes at `sealed`, which are readable, and writes at most `capacity` at `plain`, which are writable.
    unsafe { raw::ticket_open(key, sealed.as_ptr(), sealed.len(), plain.as_mut_ptr(), plain.len()) }
}

pub(crate) fn state_open(name: &str) -> i32 {
    // SAFETY: the host reads `len` bytes at `name` during the call, and they are readable.
    unsafe { raw::state_open(name.as_ptr(), name.len()) }
}

#[inline]
pub(crate) fn state_get(field: i32, key: &[u8], value: &mut [u8]) -> i32 {
    // SAFETY: the host reads `key_len` bytes at `key`, which are readable, and writes at most `capacity` at `value`, which are writable.
    unsafe { raw::state_get(field, key.as_ptr(), key.len(), value.as_mut_ptr(), value.len()) }
}

#[inline]
pub(crate) fn state_put(field: i32, key: &[u8], value: &[u8]) -> i32 {
    // SAFETY: the host reads `key_len` bytes at `key` and `len` bytes at `value`, and they are readable.
    unsafe { raw::state_put(field, key.as_ptr(), key.len(), value.as_ptr(), value.len()) }
}

#[inline]
pub(crate) fn state_cas(field: i32, key: &[u8], expected: Option<&[u8]>, value: &[u8]) -> i32 {
    // No slice of this memory is that long.
    let expected_len = |expected: &[u8]| i32::try_from(expected.len()).unwrap_or(i32::MAX);
    let (expected, expected_len) =
        expected.map_or((ptr::null(), STATE_EXPECT_NONE), |expected| (expected.as_ptr(), expected_len(expected)));
    // SAFETY: the host reads so many bytes at `key`, `expected` and `value`, and they are readable; with no value expected, none.
    unsafe { raw::state_cas(field, key.as_ptr(), key.len(), expected, expected_len, value.as_ptr(), value.len()) }
}

#[inline]
pub(crate) fn state_add(field: i32, key: &[u8], delta: i64, sum: &mut i64) -> i32 {
    // SAFETY: the host reads `key_len` bytes at `key`, which are readable, and writes 8 at `sum`, which are writable.
    unsafe { raw::state_add(field, key.as_ptr(), key.len(), delta, sum) }
}

pub(crate) fn state_expire(field: i32, key: &[u8], ttl_ms: i64) -> i32 {
    // SAFETY: the host reads `key_len` bytes at `key`, and they are readable.
    unsafe { raw::state_expire(field, key.as_ptr(), key.len(), ttl_ms) }
}

pub(crate) fn state_delete(field: i32, key: &[u8]) -> i32 {
    // SAFETY: the host reads `key_len` bytes at `key`, and they are readable.
    unsafe { raw::state_delete(field, key.as_ptr(), key.len()) }
}
