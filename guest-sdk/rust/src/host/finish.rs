//! Lets a function end its instance: [`finish`].

use super::finished;

/// Ends this instance, and with it its whole chain instance, after the current batch.
///
/// Packets that the function has sent by then go out. Packets that it has not taken from the batch are dropped, as always. Such an end is
/// not a failure, and the tenant sees `its run function returned`. Packets that arrive for the instance afterwards, until the node has
/// unbound it, are dropped and counted as `instance-ended`; after that its client gets a new instance. In a chain of several stages, packets that
/// later stages have not handled when the instance is taken down count as `instance-ended` as well.
///
/// Call it in [`Function::handle`](crate::Function::handle). A call in [`Function::start`](crate::Function::start), which runs before there
/// is a client, makes the instance unusable, and the chain reports that. In [`Function::init`](crate::Function::init) it has no effect.
/// A program ([`net::Program`](crate::net::Program)), or a function with a loop of its own, ends when it returns, and calls this nowhere.
///
/// ```
/// use pinion_sdk::testing::{Harness, Outcome};
/// use pinion_sdk::{Batch, Function, InitError, finish};
///
/// /// Passes a number of packets, and then finishes.
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
/// assert_eq!(harness.deliver(&[&[0; 60]])[0].outcome, Outcome::InstanceEnded);
/// ```
pub fn finish() {
    finished::set();
}
