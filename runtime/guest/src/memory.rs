//! A guest's memory, as its calls see it.
//!
//! While a call runs, the MMA may write into the slots that the guest has for arriving packets, and these may lie anywhere. So what the
//! memory holds is an allegation: no reference to it is ever made. Bytes are copied once before they are judged, and copied into it when all
//! is decided. What is copied while it is written is some of the old and some of the new; it harms its own guest alone.

#![allow(unsafe_code)] // the boundary to the memory of guests

use std::marker::PhantomData;
use std::ptr;

use wasmtime::{Caller, Memory};

/// The memory of a guest during one of its calls.
#[derive(Clone, Copy)]
pub(crate) struct GuestMemory<'call> {
    start: *mut u8,
    len: usize,
    call: PhantomData<&'call ()>,
}

impl GuestMemory<'_> {
    /// Calls `act` with the memory of a guest that has made a call, and with its host.
    #[inline]
    pub(crate) fn with<T: 'static, R>(
        caller: &mut Caller<'_, T>,
        memory: Memory,
        act: impl FnOnce(GuestMemory<'_>, &mut T) -> R,
    ) -> R {
        let (start, len) = (memory.data_ptr(&*caller), memory.data_size(&*caller));
        // It neither grows nor ends until this returns: the caller is borrowed, and the host does not have the store.
        act(GuestMemory { start, len, call: PhantomData }, caller.data_mut())
    }

    /// Returns whether it has these bytes.
    #[inline]
    pub(crate) fn has(self, at: i32, len: usize) -> bool {
        (at as u32 as usize).checked_add(len).is_some_and(|end| end <= self.len)
    }

    #[inline]
    fn place(self, at: i32, len: usize) -> Option<*mut u8> {
        self.has(at, len).then(|| self.start.wrapping_add(at as u32 as usize))
    }

    /// Copies from it; none if it does not have all these bytes.
    #[inline]
    pub(crate) fn read(self, at: i32, bytes: &mut [u8]) -> Option<()> {
        let from = self.place(at, bytes.len())?;
        // SAFETY: the memory has these bytes, stays where it is (`memory_may_move(false)`), and lives as long as the call. `bytes` is not part
        // of it, since no reference to it exists.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Some(())
    }

    /// Copies into it; none, and nothing has changed, if it does not have all these bytes.
    #[inline]
    pub(crate) fn write(self, at: i32, bytes: &[u8]) -> Option<()> {
        let to = self.place(at, bytes.len())?;
        // SAFETY: as in `read`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &mut [u8]) -> GuestMemory<'_> {
        GuestMemory { start: bytes.as_mut_ptr(), len: bytes.len(), call: PhantomData }
    }

    #[test]
    fn what_does_not_lie_in_it_as_a_whole_is_neither_read_nor_written() {
        let mut bytes = [7; 64];
        let memory = of(&mut bytes);
        for (at, len) in [(0, 64), (63, 1), (64, 0), (10, 20)] {
            let mut read = vec![0; len];
            assert_eq!((memory.read(at, &mut read), memory.write(at, &read)), (Some(()), Some(())), "{len} at {at}");
            assert!(read.iter().all(|byte| *byte == 7));
        }
        for (at, len) in [(0, 65), (63, 2), (64, 1), (65, 0), (-1, 1), (-1, 0), (i32::MIN, 8)] {
            let mut read = vec![1; len];
            assert_eq!((memory.read(at, &mut read), memory.write(at, &read)), (None, None), "{len} at {at}");
            assert!(read.iter().all(|byte| *byte == 1));
        }
        assert!(!memory.has(-1, usize::MAX));
        assert_eq!(bytes, [7; 64]);
    }
}
