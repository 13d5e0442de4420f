//! How an instance says that it is done: [`finish`]. Under Wasm that is noted beside its pool, which is at hand after each wait; natively here, for the
//! fake node to ask.

#[cfg(not(target_family = "wasm"))]
use self::native::set_finished;
#[cfg(not(target_family = "wasm"))]
pub(crate) use self::native::{is_asked, take};
#[cfg(target_family = "wasm")]
use crate::pool::set_finished;

/// Says that this instance is done: after the batch being handled it ends, and with it its whole chain instance.
///
/// What the function has sent by then goes out; what it has not taken from the batch is dropped, as always. To end like this is
/// no failure, and the tenant sees `its run function returned`. Packets that arrive for the instance afterwards, until the
/// node has unbound it, are dropped and counted as `gone`; from then on its client gets a new instance. In a chain
/// of several stages, what the stages after this one have not handled when the instance is taken apart is `gone` as well.
///
/// Called in [`Function::handle`](crate::Function::handle). In [`Function::start`](crate::Function::start), which runs before any
/// client is there, it makes the instance one that cannot be used, and the chain says so; in
/// [`Function::init`](crate::Function::init) it does nothing.
///
/// ```
/// use pinion_sdk::testing::{Harness, Outcome};
/// use pinion_sdk::{Batch, Function, InitError, finish};
///
/// /// Lets so many packets pass and is done.
/// struct Quota(u8);
///
/// impl Function for Quota {
///     fn init(config: &[u8]) -> Result<Self, InitError> {
///         config.first().map(|count| Self(*count)).ok_or("the configuration must be a byte".into())
///     }
///
///     fn handle(&mut self, batch: Batch<'_>) {
///         for packet in batch.take(self.0.into()) {
///             self.0 -= 1;
///             packet.send();
///         }
///         if self.0 == 0 {
///             finish();
///         }
///     }
/// }
///
/// let mut harness = Harness::<Quota>::new(&[2]).unwrap();
/// let verdicts = harness.deliver(&[&[0; 60], &[0; 60], &[0; 60]]);
/// assert!(harness.finished());
/// assert_eq!([0, 1, 2].map(|at| verdicts[at].outcome), [Outcome::Sent, Outcome::Sent, Outcome::Dropped]);
/// assert_eq!(harness.deliver(&[&[0; 60]])[0].outcome, Outcome::Gone);
/// ```
pub fn finish() {
    set_finished();
}

#[cfg(not(target_family = "wasm"))]
mod native {
    use core::cell::Cell;

    thread_local! {
        static FINISHED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn set_finished() {
        FINISHED.set(true);
    }

    /// Whether [`finish`](super::finish) was called.
    pub(crate) fn is_asked() -> bool {
        FINISHED.get()
    }

    /// Whether [`finish`](super::finish) was called; then as if it never was.
    pub(crate) fn take() -> bool {
        FINISHED.replace(false)
    }
}
