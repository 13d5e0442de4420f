//! Outbound flows: those that a function opens itself, to an address that its chain is granted.
//!
//! ```text
//!   request --> grants --admitted--> flows: a source port, by the key of the answers
//!                  \--refused             |            |
//!                                         v            v
//!               what leaves by it passes the judge    what answers it goes to the instance, before any rule
//! ```
//!
//! A flow belongs to one instance and ends with it. It also ends when the function asks for that, when its TCP connection
//! has ended, when the function has sent nothing for a while, and when its grant is gone. Its key then rests for a while, so
//! that what still comes goes to no other.
//!
//! Owned by the gateway. Allocates nothing after it was made; every operation is bounded.

mod connection;
mod flows;
mod message;

pub(crate) use flows::{Claim, FLOWS_MAX, NewFlow, OutboundFlows, Told};
pub(crate) use message::{Opened, Request, answer_closed, answer_opened, answer_refused, read, write_closed};
