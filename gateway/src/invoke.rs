//! Invocations: messages that a program sends to a chain by name, and the answers it waits for.
//!
//! ```text
//!   Dispatcher::stage, submit --[submitted]--> InvokePort --message--> Net-In ... FWP
//!                                                  | call: who waits, and the token
//!   Dispatcher::poll      <---[answered]---  InvokePort <--answer--- Net-Out ... FWP
//! ```
//!
//! The port is no device: the far end of each of its lines is a [`Dispatcher`] in this process. A message is a frame of the shape that
//! [`pinion_abi::MESSAGE_ETHERTYPE`] says, and takes the way of all frames. Which chain it is for the dispatcher says ([`FunctionRef`]) and
//! no frame does. With the message goes a token that nobody can guess; an answer counts only for the call whose token it carries, and
//! once, so that no function answers for another one. All who invoke a chain share one instance of it, with those of `shared` rules.
//!
//! The port belongs to the gateway's thread: it takes no lock, and allocates nothing after it was made. An [`Invocation`] is a piece of
//! memory that goes round between dispatcher and port; there are as many as there may be calls under way.

mod calls;
mod dispatcher;
mod message;
mod port;

pub use self::dispatcher::{Dispatcher, Invocation, Refused};
pub use self::port::{InvokeCounters, InvokePort};
pub use crate::id::FunctionRef;

use crate::drops::DropReason;

/// The port's name in reports. No other port may have it.
pub const INVOKE_PORT: &str = "invoke";

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The caller's time was over.
    Deadline,
    /// The chain is not there, or not in force.
    NotInForce,
    /// No instance of the chain could be had within the time that frames may wait for one.
    NoInstance,
    /// More is under way than the node can take.
    Busy,
    /// The instance that had the message ended, and has not answered.
    Ended,
}

impl Failure {
    pub(crate) fn of(reason: DropReason) -> Self {
        match reason {
            DropReason::ChainNotInForce => Self::NotInForce,
            DropReason::NoInstance => Self::NoInstance,
            _ => Self::Busy,
        }
    }
}
