//! How soon a thread gets a core when it is woken.
//!
//! The kernel lets a running thread keep its core for its slice, some 3 ms, before a woken thread gets it; unless the woken thread's slice
//! is shorter (EEVDF, from Linux 6.12 on).
#![allow(unsafe_code)] // Calls the kernel.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use libc::{c_long, sched_attr};

/// Limits the calling thread's scheduler slice, so that it gets a core at once from threads with longer slices. Its share of CPU time stays
/// the same. Kernels before 6.12 ignore it.
///
/// # Errors
/// The kernel's error.
pub(crate) fn set_slice(slice: Duration) -> io::Result<()> {
    let attributes = sched_attr { sched_runtime: slice.as_nanos() as u64, ..attributes()? };
    // SAFETY: the call reads a structure that outlives it and contains its own size.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// Returns the calling thread's scheduling attributes.
fn attributes() -> io::Result<sched_attr> {
    let mut attributes = MaybeUninit::<sched_attr>::zeroed();
    // SAFETY: the call writes into a structure of the size that it is told.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size_of::<sched_attr>(), 0) })?;
    // SAFETY: all fields are numbers, which were zeroed in case the kernel did not write them.
    Ok(unsafe { attributes.assume_init() })
}

fn done(returned: c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_a_slice_changes_only_the_slice() {
        let before = attributes().unwrap();
        set_slice(Duration::from_micros(300)).unwrap();
        let after = attributes().unwrap();
        // Kernels where threads have no slices of their own report 0.
        let expected = if before.sched_runtime == 0 { 0 } else { 300_000 };
        assert_eq!(after.sched_runtime, expected, "it was {}", before.sched_runtime);
        let rest = |attributes: sched_attr| (attributes.sched_policy, attributes.sched_nice, attributes.sched_priority);
        assert_eq!(rest(after), rest(before));
    }
}
