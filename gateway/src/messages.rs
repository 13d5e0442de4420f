//! What the launcher and the gateway tell each other.
//!
//! ```text
//!   launcher (a thread that may wait)            gateway (a thread that must not)
//!      Ready(instance) ------------------------>  keeps it with its chain
//!            <------------------------ Taken      a new client got it
//!            <------------------------ Wanted     a new client found none
//!      Unbind(instance) ----------------------->  forgets it
//!            <------------------------ Unbound    ... and never names it to MMA again
//! ```
//!
//! Every instance that the gateway was given comes back in exactly one of `Idle`, `FlowEnded`, `Withdrawn` and `Unbound` (and
//! an `Unbind` that crosses one of the others is answered all the same). No event is lost: see `outbox.rs`.
//!
//! The gateway reads no commands while the launcher leaves events unread. So the launcher must not wait for room in
//! the channel of commands without reading events meanwhile.

use std::sync::Arc;

use crate::flows::ClientLabel;
use crate::flows::entrance::Entrance;
use crate::id::{ChainIndex, InstanceId};
use crate::rules::RuleSet;

/// From the launcher to the gateway.
#[derive(Debug)]
pub enum Command {
    /// These rules hold from now on. Instances keep serving the clients that they are bound to, as far as the rules
    /// still lead these clients to the same chain under the same policy. Instances of chains that the set doesn't have
    /// any more are given up as idle.
    SetRules(Arc<RuleSet>),
    /// An instance of the chain is ready to be taken.
    Ready {
        /// The chain.
        chain: ChainIndex,
        /// The instance; not one that the gateway has already.
        instance: InstanceId,
        /// The FWPs that its frames go to first.
        entrance: Entrance,
    },
    /// The instance is wanted back if no client has it: if it is ready still, the gateway forgets it, and says so with
    /// [`Event::Withdrawn`]; otherwise nothing is done.
    Reclaim {
        /// The instance.
        instance: InstanceId,
    },
    /// The instance has ended or is to end: the gateway forgets it, whether ready or bound, and answers with
    /// [`Event::Unbound`] even if it didn't know it.
    Unbind {
        /// The instance.
        instance: InstanceId,
    },
}

/// From the gateway to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// New rules are in force; here are the old ones, so that they are not freed on the gateway's thread.
    RulesReplaced {
        /// What held before.
        old: Arc<RuleSet>,
    },
    /// A ready instance now serves a client.
    Taken {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
        /// Whom it serves.
        client: ClientLabel,
    },
    /// Somebody needs an instance of the chain and none is ready. Told once until one is offered.
    Wanted {
        /// The chain.
        chain: ChainIndex,
    },
    /// A ready instance comes back unused: there was no room for it, or it was reclaimed.
    Withdrawn {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
    },
    /// Nothing came for the instance during its chain's idle timeout. The gateway has unbound it: no frame goes there
    /// any more.
    Idle {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
    },
    /// The instance served one flow, and its client has closed or reset the connection. The gateway has unbound it, as with
    /// [`Event::Idle`].
    FlowEnded {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
    },
    /// The answer to [`Command::Unbind`]: the gateway will never name the instance's FWPs to MMA again.
    Unbound {
        /// The instance.
        instance: InstanceId,
    },
}
