//! What the callback that runs may use: set by [`during`], for the duration of a callback, and used by [`with`].

use core::cell::Cell;
use core::ptr::NonNull;

use crate::call::Call;

thread_local! {
    /// `None` while no callback runs, and while it is in use.
    static CURRENT: Cell<Option<NonNull<Call<'static, 'static>>>> = const { Cell::new(None) };
}

/// Sets [`CURRENT`] back when it is dropped, also by a panic.
struct Restore(Option<NonNull<Call<'static, 'static>>>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Calls `work`, which may use `call` by [`with`].
pub(crate) fn during<R>(call: &mut Call<'_, '_>, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(CURRENT.replace(Some(NonNull::from(call).cast())));
    work()
}

/// Calls `work` with what the callback that runs may use. `None` if no callback runs, or `with` is already under way.
pub(crate) fn with<R>(work: impl FnOnce(&mut Call<'_, '_>) -> R) -> Option<R> {
    let mut current = CURRENT.take()?;
    let _restore = Restore(Some(current));
    // SAFETY: it was made by `during` of a reference that is borrowed until `during` ends, which sets `CURRENT` back. It was taken out of
    // `CURRENT`, so no other reference is made of it meanwhile. `work` takes any lifetimes, so it keeps none of what lies behind it.
    Some(work(unsafe { current.as_mut() }))
}
