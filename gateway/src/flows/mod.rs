//! Which instance serves which flow: fixed tables, made at start, that never allocate again.
//!
//! ```text
//!   FlowKey --> cache     (slot, generation)   forgettable: found again through rules and key
//!                  |
//!                  v
//!              instances  slot: entry FWP, last seen   <-- by key (chain + whom it serves)
//!                  ^                                   <-- by instance id
//!                  |
//!               [ready instances of each chain]        pending: frames that wait for one, by key
//! ```
//!
//! Owned by the gateway's thread. Clients choose addresses and ports, so every hash is keyed with random keys of this
//! process: nobody can aim at one bucket. All operations are bounded, or in the case of `HashIndex`
//! bounded but for luck.

pub(crate) mod cache;
pub(crate) mod index;
pub(crate) mod instances;
pub(crate) mod pending;

use std::net::IpAddr;

use crate::headers::{FiveTuple, FlowKey};
use crate::id::ChainIndex;
use crate::rules::{Policy, Rule};

/// Whom an instance serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientLabel {
    /// Everybody.
    Everybody,
    /// The client with this address.
    Address(IpAddr),
    /// This flow.
    Flow(FiveTuple),
}

impl std::fmt::Display for ClientLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Everybody => f.write_str("everybody"),
            Self::Address(address) => address.fmt(f),
            Self::Flow(flow) => flow.fmt(f),
        }
    }
}

/// What an instance is bound to: two flows with equal keys share an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InstanceKey {
    pub(crate) chain: ChainIndex,
    pub(crate) client: ClientLabel,
}

impl InstanceKey {
    pub(crate) fn new(rule: &Rule, flow: &FlowKey) -> Self {
        let client = match rule.policy {
            Policy::Shared => ClientLabel::Everybody,
            Policy::PerClient => ClientLabel::Address(flow.source),
            Policy::PerFlow => ClientLabel::Flow(flow.five_tuple()),
        };
        Self { chain: rule.chain, client }
    }
}
