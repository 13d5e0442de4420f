//! Which instance serves which flow: fixed tables, made at start, that never allocate again.
//!
//! ```text
//!   PlainFlow -> memo     the entry FWP; forgotten every millisecond
//!      |
//!      v
//!   FlowKey --> cache     (slot, generation), or that no rule matches; forgettable: found again through rules and key
//!      ^           |
//!      |           |
//!   fragments      |      which flow a datagram's fragments belong to
//!                  |
//!                  v
//!              instances  slot: entry FWP, last seen   <-- by key (chain + whom it serves)
//!                  ^                                   <-- by instance id
//!                  |
//!               [ready instances of each chain]        pending: frames that wait for one, by key
//! ```
//!
//! Owned by the gateway's thread. Clients choose addresses and ports, so every hash but the memo's, where a collision costs
//! no more than the memo saves, is keyed with random keys of this process: nobody can aim at one bucket. All operations are
//! bounded, or in the case of `HashIndex` bounded but for luck.

mod bucket;
pub(crate) mod cache;
pub mod entrance;
pub(crate) mod fragments;
pub(crate) mod hash;
pub(crate) mod index;
pub(crate) mod instances;
pub(crate) mod memo;
pub(crate) mod pending;
mod prefetch;

use std::net::IpAddr;

use pinion_mma::heading::PortSet;

use crate::headers::{FiveTuple, FlowKey, Vlan};
use crate::id::ChainIndex;
use crate::rules::{Policy, Rule};

/// Whom an instance serves. The same address in two VLANs is two clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientLabel {
    /// Everybody.
    Everybody,
    /// The client with this address.
    Address {
        /// Its address.
        address: IpAddr,
        /// The network it has it in.
        vlan: Vlan,
    },
    /// This flow.
    Flow {
        /// Between whom.
        flow: FiveTuple,
        /// The network it is in.
        vlan: Vlan,
    },
}

impl std::fmt::Display for ClientLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vlan = match self {
            Self::Everybody => return f.write_str("everybody"),
            Self::Address { address, vlan } => {
                address.fmt(f)?;
                vlan
            }
            Self::Flow { flow, vlan } => {
                flow.fmt(f)?;
                vlan
            }
        };
        if *vlan == Vlan::UNTAGGED { Ok(()) } else { write!(f, ", {vlan}") }
    }
}

/// What an instance is bound to: two flows with equal keys share an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InstanceKey {
    pub(crate) chain: ChainIndex,
    pub(crate) client: ClientLabel,
}

impl InstanceKey {
    /// None while the rule's chain is not in force. Frames of the ports in `back` go through it backwards: the client is their
    /// receiver, and their flow that of the frames that they answer.
    pub(crate) fn new(rule: &Rule, flow: &FlowKey, back: PortSet) -> Option<Self> {
        let ingress = flow.ingress();
        let (goes_back, vlan) = (back.contains(ingress.port), ingress.vlan);
        let client = match rule.policy {
            Policy::Shared => ClientLabel::Everybody,
            Policy::PerClient => {
                ClientLabel::Address { address: if goes_back { flow.destination() } else { flow.source() }, vlan }
            }
            Policy::PerFlow => {
                let flow = flow.five_tuple();
                ClientLabel::Flow { flow: if goes_back { flow.reversed() } else { flow }, vlan }
            }
        };
        Some(Self { chain: rule.chain?, client })
    }
}
