//! Invocations: messages that a program sends to a chain by name, and the answers that it waits for.
//!
//! ```text
//!   Dispatcher::stage, submit --[submitted]--> InvokePort --message--> Net-In ... FWP
//!                                                  | call: the waiting caller, and the token
//!   Dispatcher::poll      <---[answered]---  InvokePort <--answer--- Net-Out ... FWP
//! ```
//!
//! The port is no device: the far end of each of its lines is a [`Dispatcher`] in this process. A message is a frame in
//! the format of [`pinion_abi::MESSAGE_ETHERTYPE`], and takes the path of all frames. The dispatcher names its chain
//! ([`FunctionRef`]); a frame cannot. Each message carries a token that cannot be guessed. An answer counts only for
//! the call whose token it carries, and only once, so no function can answer for another. All callers of a chain share
//! one instance of it, which also serves the clients of the chain's `shared` rules.
//!
//! If that instance ends before it answers, the call fails. If its chain is idempotent ([`crate::rules::Redelivery`]), it
//! is delivered again, to another instance, [`REDELIVERIES_MAX`] times at most and within its caller's timeout. That
//! takes no memory besides the call's own: its payload stays in the [`Invocation`] until there is an answer.
//!
//! The port belongs to the gateway's thread: it takes no lock, and allocates nothing after it was made. An
//! [`Invocation`] is memory that circulates between dispatcher and port. There are as many as there may be calls under
//! way.

mod calls;
mod dispatcher;
mod message;
mod port;

pub use self::dispatcher::{CallNumber, Dispatcher, Invocation, Refused};
pub use self::port::{InvokeCounters, InvokePort};
pub use crate::id::FunctionRef;

use crate::drops::DropReason;

/// The port's name in reports. No other port may have it.
pub const INVOKE_PORT: &str = "invoke";

/// How often a call of an idempotent chain is delivered again at most.
pub const REDELIVERIES_MAX: u8 = 3;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The caller's deadline has passed.
    Deadline,
    /// The chain does not exist, or is unavailable.
    ChainUnavailable,
    /// No instance of the chain became ready within the time that a frame may wait for one.
    NoInstance,
    /// More calls or frames are under way than the node can take.
    Busy,
    /// The instance that had the message ended without an answer.
    Ended,
    /// Each of the instances that had the message ended without an answer: as many as an idempotent call is given to.
    EndedEachTime,
    /// The caller has given the call up.
    Cancelled,
}

impl Failure {
    pub(crate) fn of(reason: DropReason) -> Self {
        match reason {
            DropReason::ChainUnavailable => Self::ChainUnavailable,
            DropReason::NoInstance => Self::NoInstance,
            _ => Self::Busy,
        }
    }
}
