//! The synchronisation types of this crate's lock-free parts: the standard library's, or loom's when they are
//! model-checked (`RUSTFLAGS="--cfg loom" cargo test -p pinion-mma --release --lib loom`).
//!
//! Only [`crate::rings::spsc`], [`crate::rings::phased`], [`crate::notify`] and [`crate::notify::doorbell`] import from here. Loom's types
//! work only within a model. So under loom the ordinary unit tests of these modules, and of those that use them, are
//! left out.

#[cfg(not(all(test, loom)))]
pub(crate) use self::real::*;

#[cfg(all(test, loom))]
pub(crate) use self::model::*;

#[cfg(not(all(test, loom)))]
mod real {
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use std::thread::{Thread, current, park_timeout};

    /// The standard library's cell with the interface of loom's.
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `read` with a pointer that it may read through.
        #[inline(always)]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Calls `write` with a pointer that it may read and write through.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::time::Duration;

    use loom::sync::Notify;

    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    loom::thread_local! {
        static WAKE_UP: Arc<Notify> = Arc::new(Notify::new());
    }

    /// A thread that can be woken. Loom's own type would wake a thread from anything it waits for, a join or a lock
    /// included.
    pub(crate) struct Thread(Arc<Notify>);

    impl Thread {
        pub(crate) fn unpark(&self) {
            self.0.notify();
        }
    }

    pub(crate) fn current() -> Thread {
        Thread(WAKE_UP.with(Arc::clone))
    }

    /// Sleeps without a timeout: a lost wake-up becomes a deadlock, which loom reports.
    pub(crate) fn park_timeout(_timeout: Duration) {
        current().0.wait();
    }

    /// Runs `model` in every interleaving with at most three preemptions. Nearly all bugs need two, and without a bound
    /// it takes hours.
    pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }
}
