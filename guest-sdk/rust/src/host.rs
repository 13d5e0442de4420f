//! What a function asks of the node that runs it: the time, random bytes, lines in the log, metrics, state, models, handshakes signed, and when
//! to end.

pub(crate) mod alive;
pub(crate) mod calls;
pub mod clock;
pub(crate) mod finish;
pub(crate) mod finished;
pub mod keys;
pub mod log;
pub mod metrics;
pub mod nn;
pub mod random;
pub mod state;
