//! The copy itself: exactly as many bytes as requested, in as few instructions as the length allows.
//!
//! Packets are short, and for 64 bytes a call of the C library's `memcpy` costs a good part of the copy itself. So
//! short lengths are moved in blocks of constant size, the last of which may overlap the one before. Never a byte more:
//! the bytes behind a frame may belong to another tenant.
#![allow(unsafe_code)] // Moves bytes by raw pointer.

use std::ptr;

/// From this length on the C library's copy is faster, as it uses the machine's wide registers.
const LONG: usize = 256;

/// Copies one block of a constant size.
///
/// # Safety
/// As for [`exactly`], with `N` bytes from `at` on.
#[inline(always)]
unsafe fn block<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), N) };
}

/// Copies `len` bytes.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, and they do not overlap. If `from` is guest memory,
/// the guest may write to it during the copy; the result is then any mixture of old and new bytes.
#[inline]
pub(crate) unsafe fn exactly(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every block lies within the `len` bytes.
    unsafe {
        match len {
            64 => block::<64>(from, to, 0),
            65..LONG => {
                let mut at = 0;
                while at + 64 <= len {
                    block::<64>(from, to, at);
                    at += 64;
                }
                block::<64>(from, to, len - 64);
            }
            32..64 => {
                block::<32>(from, to, 0);
                block::<32>(from, to, len - 32);
            }
            16..32 => {
                block::<16>(from, to, 0);
                block::<16>(from, to, len - 16);
            }
            _ => ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_not_a_byte_more() {
        let source: Vec<u8> = (0..2048_u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..400).chain([1023, 1024, 1500, 2000]) {
            for shift in [0, 1, 13] {
                let mut target = vec![0xee_u8; 2100];
                // SAFETY: both are longer than `shift + len`, and two allocations.
                unsafe { exactly(source.as_ptr().add(shift), target.as_mut_ptr().add(shift), len) };
                assert_eq!(target[shift..shift + len], source[shift..shift + len], "{len} bytes at {shift}");
                assert!(target[..shift].iter().all(|&byte| byte == 0xee), "{len} bytes at {shift}: before");
                assert!(target[shift + len..].iter().all(|&byte| byte == 0xee), "{len} bytes at {shift}: behind");
            }
        }
    }
}
