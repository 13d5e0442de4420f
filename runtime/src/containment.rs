//! Panics that end less than the process: what the work was done for, and nothing else.
//!
//! A thread of the node that panics ends the process ([`crate::node::vital`]), but for work that is done in `contained`: calls of guests,
//! whose FWP ends, and a worker's own loop, which begins anew.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Contained work panicked. Why is in the node's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node failed, for a reason that its operator finds in its log")]
pub struct Panicked;

thread_local! {
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
    static IS_PANICKING: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`. If it panics, the process goes on, and the caller ends what the work was done for: it may be in any state. Allocates
/// nothing, and takes no lock, unless it panics.
///
/// # Errors
/// If it panicked.
#[inline]
pub(crate) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let outer = IS_CONTAINED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(outer);
    outcome.map_err(|_| {
        IS_PANICKING.set(false);
        Panicked
    })
}

/// Notes that the calling thread panics. Returns whether that is contained: in contained work, and not while another panic unwinds there, as
/// the process ends with that one. Called by the panic hook.
pub(crate) fn contains_panic() -> bool {
    IS_CONTAINED.get() && !IS_PANICKING.replace(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_contained_until_it_ends_or_panics() {
        let is_contained = || IS_CONTAINED.get();
        assert_eq!(contained(is_contained), Ok(true));
        assert_eq!(contained(|| contained(|| panic!("as planned")).map(|()| is_contained())), Ok(Err(Panicked)));
        assert_eq!(contained(|| (contained(|| ()), is_contained())), Ok((Ok(()), true)));
        assert!(!is_contained());
    }

    #[test]
    fn a_panic_while_another_one_unwinds_is_not_contained() {
        assert!(!contains_panic());
        assert_eq!(contained(|| [(); 2].map(|()| contains_panic())), Ok([true, false]));
        IS_PANICKING.set(false);
        let panics = || contained(|| assert!(!contains_panic(), "as planned"));
        assert_eq!([(); 2].map(|()| panics()), [Err(Panicked); 2], "each is the first one again");
    }
}
