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

pub(crate) use judge::{Exit, Exits, Judge};
pub(crate) use origins::Origins;

use crate::neighbors::own_addresses::OwnAddresses;
use crate::outbound::OutboundFlows;
use crate::rules::RuleSet;

/// What is known of frames that leave.
pub(crate) struct Known<'a> {
    pub(crate) rules: &'a RuleSet,
    pub(crate) origins: &'a mut Origins,
    pub(crate) outbound: &'a mut OutboundFlows,
    pub(crate) own_addresses: &'a OwnAddresses,
}
