//! Makes references to what C passes by address and length, if it lies within the module's memory.
//!
//! A C function's memory is its own: it may pass an address where something else lies than the header says, and only overwrites what is its
//! own then. But a range that the module does not have would be undefined behaviour, and is refused.

use core::ffi::{CStr, c_char};
use core::slice;

use crate::results::Outcome;

/// Bytes of the longest name that is looked at.
const NAME_BYTES_MAX: usize = 255;

/// Returns whether so many bytes at an address are memory that there is.
fn is_memory(address: usize, len: usize) -> bool {
    #[cfg(target_family = "wasm")]
    let end = core::arch::wasm32::memory_size(0) << 16;
    #[cfg(not(target_family = "wasm"))]
    let end = isize::MAX as usize;
    address != 0 && len <= isize::MAX as usize && address.checked_add(len).is_some_and(|reached| reached <= end)
}

/// Returns the bytes at an address that C passes to be read. None are needed for a length of 0.
///
/// # Safety
///
/// Nothing may write to them while the result is in use. C waits for its call to return, and Rust's own memory is none that C is given,
/// but for slots, to which nothing has a reference while C has them.
pub(super) unsafe fn bytes<'m>(address: *const u8, len: usize) -> Result<&'m [u8], Outcome> {
    match len {
        0 => Ok(&[]),
        // SAFETY: they are memory, which is always initialised in a module, and by the header's contract in native tests; the caller
        // rules out writes.
        _ if is_memory(address.addr(), len) => Ok(unsafe { slice::from_raw_parts(address, len) }),
        _ => Err(Outcome::Invalid),
    }
}

/// Returns the bytes at an address that C passes to be written.
///
/// # Safety
///
/// As for [`bytes`], and nothing may read them.
pub(super) unsafe fn bytes_mut<'m>(address: *mut u8, len: usize) -> Result<&'m mut [u8], Outcome> {
    match len {
        0 => Ok(&mut []),
        // SAFETY: as in `bytes`.
        _ if is_memory(address.addr(), len) => Ok(unsafe { slice::from_raw_parts_mut(address, len) }),
        _ => Err(Outcome::Invalid),
    }
}

/// Returns a copy of a value that C passes by its address, of a type that any bytes are valid for.
///
/// # Safety
///
/// As for [`bytes`], and all bytes must be valid for `T`.
pub(super) unsafe fn read<T: Copy>(address: *const T) -> Result<T, Outcome> {
    // SAFETY: it is memory, and whatever lies there is a `T`; C may pass any alignment.
    is_memory(address.addr(), size_of::<T>()).then(|| unsafe { address.read_unaligned() }).ok_or(Outcome::Invalid)
}

/// Returns the same, or `None` if C passes `NULL`.
///
/// # Safety
///
/// As for [`read`].
pub(super) unsafe fn read_if_any<T: Copy>(address: *const T) -> Result<Option<T>, Outcome> {
    // SAFETY: as the caller sees to.
    if address.is_null() { Ok(None) } else { unsafe { read(address) }.map(Some) }
}

/// Returns whether a value can be written to an address that C passes.
pub(super) fn is_for<T>(address: *mut T) -> bool {
    is_memory(address.addr(), size_of::<T>())
}

/// Writes a value to an address that C passes, unless it is `NULL`.
///
/// # Safety
///
/// Nothing else may use the memory meanwhile, as for [`bytes`].
pub(super) unsafe fn write<T>(address: *mut T, value: T) -> Result<(), Outcome> {
    if address.is_null() {
        return Ok(());
    }
    // SAFETY: it is memory, and the caller rules out other uses; C may pass any alignment.
    is_for(address).then(|| unsafe { address.write_unaligned(value) }).ok_or(Outcome::Invalid)
}

/// Returns a text that ends with a zero within [`NAME_BYTES_MAX`] bytes.
///
/// # Safety
///
/// As for [`bytes`].
pub(super) unsafe fn text<'m>(address: *const c_char) -> Result<&'m str, Outcome> {
    let longest = (1..=NAME_BYTES_MAX + 1).rev().find(|len| is_memory(address.addr(), *len)).ok_or(Outcome::Invalid)?;
    // Up to the zero and no further, as what lies behind it may be anything.
    // SAFETY: each byte up to the zero is memory, as `longest` bytes are.
    let len = (0..longest).find(|at| unsafe { address.add(*at).read() } == 0).ok_or(Outcome::Invalid)?;
    // SAFETY: so many bytes and the zero are memory; the caller rules out writes.
    let bytes = unsafe { slice::from_raw_parts(address.cast::<u8>(), len + 1) };
    CStr::from_bytes_with_nul(bytes).ok().and_then(|text| text.to_str().ok()).ok_or(Outcome::Invalid)
}
