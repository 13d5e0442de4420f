//! Commands from the launcher to the gateway, and events from the gateway to the launcher.
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
//! Every instance that the gateway was given comes back in exactly one of `Idle`, `FlowEnded`, `Unproven`, `Withdrawn`
//! and `Unbound`. An `Unbind` that crosses one of the others is still answered. No event is lost: see `messages/outbox.rs`.
//!
//! The gateway reads no commands while the launcher leaves events unread. So the launcher must read events while it
//! waits for room in the command channel.

pub(crate) mod outbox;

use std::sync::Arc;

use pinion_mma::id::TenantIndex;

use crate::flows::ClientLabel;
use crate::flows::entry_fwp::EntryFwp;
use crate::flows::sources::SourceLimit;
use crate::id::{ChainIndex, InstanceId};
use crate::rules::RuleSet;

/// Most instances that end by one [`Command::EndUnproven`].
pub const UNPROVEN_AT_ONCE: usize = 16;

/// From the launcher to the gateway.
#[derive(Debug)]
pub enum Command {
    /// Replaces the rules. An instance keeps serving its client as long as the rules still lead this client to the same
    /// chain under the same policy. Instances of chains that the new set lacks are released as idle.
    SetRules(Arc<RuleSet>),
    /// An instance of the chain is ready to be bound.
    Ready {
        /// The chain.
        chain: ChainIndex,
        /// The instance. The gateway must not have it already.
        instance: InstanceId,
        /// The FWPs by which frames enter the instance.
        entrance: EntryFwp,
        /// What the clients of one source prefix may have from now on.
        limit: SourceLimit,
    },
    /// Asks for an instance back if it is not bound. If it is still ready, the gateway forgets it and sends
    /// [`Event::Withdrawn`]; otherwise it does nothing.
    Reclaim {
        /// The instance.
        instance: InstanceId,
    },
    /// Clients of this tenant, or of another that it leaves no room, wait for places. Of its instances whose clients have
    /// sent one packet only and have had time for a second, some end, the oldest first, with [`Event::Unproven`] each.
    EndUnproven {
        /// The tenant.
        tenant: TenantIndex,
        /// How many may end; no more than [`UNPROVEN_AT_ONCE`] do.
        count: usize,
    },
    /// The instance has ended or is about to end. The gateway forgets it, whether ready or bound, and answers with
    /// [`Event::Unbound`] even if it did not know it.
    Unbind {
        /// The instance.
        instance: InstanceId,
    },
}

/// From the gateway to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// New rules are in force. The event carries the old ones, so that they are not freed on the gateway's thread.
    RulesReplaced {
        /// The rules that were in force before.
        old: Arc<RuleSet>,
    },
    /// A ready instance was bound to a client.
    Taken {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
        /// The client that it serves.
        client: ClientLabel,
    },
    /// A client needs an instance of the chain and none is ready. Sent once until an instance is offered.
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
    /// No frame came for the instance during its chain's idle timeout. The gateway has unbound it: no more frames go
    /// there.
    Idle {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
    },
    /// The instance served one flow, whose connection was closed or reset. The gateway has unbound it, as with
    /// [`Event::Idle`].
    FlowEnded {
        /// The chain.
        chain: ChainIndex,
        /// The instance.
        instance: InstanceId,
    },
    /// The instance's client has proven nothing, and a place was wanted. The gateway has unbound it, as with
    /// [`Event::Idle`].
    Unproven {
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
