//! Whether the function has ended its instance ([`crate::finish`]). Under Wasm the flag lies beside the pool, in memory that each wait brings
//! into the cache. In native builds it lies here, where the fake node reads it.

#[cfg(not(target_family = "wasm"))]
pub(crate) use self::native::{is_asked, set, set_flag, take};
#[cfg(target_family = "wasm")]
pub(crate) use self::wasm::{set, set_flag};

#[cfg(target_family = "wasm")]
#[allow(unsafe_code)] // Refers to a place in a pool's memory.
mod wasm {
    use core::cell::Cell;
    use core::ptr::NonNull;

    std::thread_local! {
        /// The flag of the pool in use.
        static FLAG: Cell<Option<NonNull<Cell<bool>>>> = const { Cell::new(None) };
    }

    /// Sets where the flag lies; none if no pool is in use any more.
    pub(crate) fn set_flag(flag: Option<&Cell<bool>>) {
        FLAG.set(flag.map(NonNull::from));
    }

    /// Marks the instance as finished, if a pool is in use.
    pub(crate) fn set() {
        if let Some(flag) = FLAG.get() {
            // SAFETY: set to a place in a pool's memory when that pool was opened, which borrows the memory until it is dropped, and
            // taken back then.
            unsafe { flag.as_ref() }.set(true);
        }
    }
}

#[cfg(not(target_family = "wasm"))]
mod native {
    use core::cell::Cell;

    thread_local! {
        static FINISHED: Cell<bool> = const { Cell::new(false) };
    }

    /// The flag lies here, whatever pool is in use.
    pub(crate) fn set_flag(_: Option<&Cell<bool>>) {}

    /// Marks the instance as finished.
    pub(crate) fn set() {
        FINISHED.set(true);
    }

    /// Returns whether the instance was marked.
    pub(crate) fn is_asked() -> bool {
        FINISHED.get()
    }

    /// Returns whether the instance was marked, and clears the flag.
    pub(crate) fn take() -> bool {
        FINISHED.replace(false)
    }
}
