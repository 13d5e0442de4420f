//! Which instance serves which flow: tables of fixed size, allocated at start.
//!
//! ```text
//!   PlainFlow -> memo     the entry FWP; forgotten every millisecond
//!      |
//!      v
//!   FlowKey --> cache     (slot, generation), or that no rule matches; may evict: found again through rules and key
//!      ^           |
//!      |           |
//!   fragments      |      which flow a datagram's fragments belong to, and those that wait for the first one
//!                  |
//!                  v
//!              instances  slot: entry FWP, last seen   <-- by key (chain + client that it serves)
//!                  ^                                   <-- by instance id
//!                  |
//!               [ready instances of each chain]        pending: frames that wait for one, by key
//!                  |
//!               sources    how many FWPs the clients of each prefix have
//! ```
//!
//! Owned by the gateway's thread. Clients choose addresses and ports. So every hash is keyed with random keys of this
//! process, and no client can aim at a bucket. The memo's is not keyed, because a collision there costs no more than
//! the memo saves. All operations are bounded; those of `HashIndex` only in expectation.

mod bucket;
pub(crate) mod cache;
pub mod entry_fwp;
pub(crate) mod fragments;
pub(crate) mod hash;
pub(crate) mod index;
pub(crate) mod instances;
pub(crate) mod pending;
pub(crate) mod recent_flows;
pub mod sources;
pub mod waiting_frames;

use std::net::IpAddr;

use pinion_mma::ways::direction::PortSet;

use crate::headers::{FiveTuple, FlowKey, Vlan};
use crate::id::ChainIndex;
use crate::rules::{Policy, Rule};

/// The client that an instance serves. The same address in two VLANs is two clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientLabel {
    /// All clients.
    All,
    /// The client with this address.
    Address {
        /// Its address.
        address: IpAddr,
        /// The network in which the client has the address.
        vlan: Vlan,
    },
    /// One flow.
    Flow {
        /// Its addresses, protocol and ports.
        flow: FiveTuple,
        /// The network that the flow is in.
        vlan: Vlan,
    },
}

impl std::fmt::Display for ClientLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let vlan = match self {
            Self::All => return f.write_str("all clients"),
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

/// What an instance is bound to. Two flows with equal keys share an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InstanceKey {
    pub(crate) chain: ChainIndex,
    pub(crate) client: ClientLabel,
}

impl InstanceKey {
    /// Returns `None` while the rule's chain is unavailable. Frames of the ports in `back` pass the chain backwards.
    /// Their client is their receiver, and their flow is the one that they answer.
    pub(crate) fn new(rule: &Rule, flow: &FlowKey, back: PortSet) -> Option<Self> {
        let ingress = flow.ingress();
        let (goes_back, vlan) = (back.contains(ingress.port), ingress.vlan);
        let client = match rule.policy {
            Policy::Shared => ClientLabel::All,
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
