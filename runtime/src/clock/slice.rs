//! How soon a thread has a core that it is woken for.
//!
//! The kernel lets whoever has a core keep it for a slice of its own, some 3 ms, before somebody has it who was woken; unless that one's slice is
//! shorter (EEVDF, from Linux 6.12 on).
#![allow(unsafe_code)] // Calls the kernel.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use libc::{c_long, sched_attr};

/// Has the calling thread take a core for no longer than this at a time when others want it, and so take it from those who have longer slices. Its
/// share of time stays the same. Kernels before 6.12 do as they did.
///
/// # Errors
/// What the kernel says.
pub(super) fn set_slice(slice: Duration) -> io::Result<()> {
    let attributes = sched_attr { sched_runtime: slice.as_nanos() as u64, ..attributes()? };
    // SAFETY: reads a structure that lives until it returns, and is as long as it says.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// How the calling thread is scheduled now.
fn attributes() -> io::Result<sched_attr> {
    let mut attributes = MaybeUninit::<sched_attr>::zeroed();
    // SAFETY: writes into a structure that is as long as it is told.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size_of::<sched_attr>(), 0) })?;
    // SAFETY: numbers, all of which were zero if they were not written.
    Ok(unsafe { attributes.assume_init() })
}

fn done(returned: c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_shorter_then_and_all_else_as_it_was() {
        let before = attributes().unwrap();
        set_slice(Duration::from_micros(300)).unwrap();
        let after = attributes().unwrap();
        // Kernels where threads have no slices of their own say nothing.
        let expected = if before.sched_runtime == 0 { 0 } else { 300_000 };
        assert_eq!(after.sched_runtime, expected, "it was {}", before.sched_runtime);
        let rest = |attributes: sched_attr| (attributes.sched_policy, attributes.sched_nice, attributes.sched_priority);
        assert_eq!(rest(after), rest(before));
    }
}
