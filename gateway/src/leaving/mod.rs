//! What may leave: each frame of an FWP is held against what its tenant may send.
//!
//! ```text
//!   frame, sender --> judge --as it is--------------------> port
//!                       |  \--the node addresses it--> neighbours --> port
//!                       |  \--may not leave--> counted drop
//!                       v
//!                    origins: addresses that came in by its chain
//! ```
//!
//! Owned by the gateway. Allocates nothing after it was made.

mod judge;
mod origins;
mod terms;

pub(crate) use judge::{Exit, Judge, Leaving};
pub(crate) use origins::{Origins, Owner};
pub(crate) use terms::SenderTerms;
pub use terms::{MaySend, OutboundGrant};
