//! What a gateway is made of, and why one can't be made.

use crossbeam_channel::{Receiver, Sender};
use ipnet::IpNet;
use pinion_mma::link::GatewayLink;

use crate::invoke::InvokePort;
use crate::messages::{Command, Event};
use crate::port::{BufferPool, Port};

/// A port, and what it answers for.
pub struct PortSetup {
    /// The port.
    pub port: Box<dyn Port>,
    /// Addresses that the gateway answers ARP and neighbour discovery for. Only the addresses themselves count, not the
    /// rest of their prefixes.
    pub addresses: Vec<IpNet>,
}

/// What a gateway is made of.
pub struct GatewayConfig {
    /// Its ports; the first one is `PortIndex(0)`.
    pub ports: Vec<PortSetup>,
    /// The port of those who invoke chains, if there is to be one; its place is behind the others'.
    pub invoke: Option<InvokePort>,
    /// The pool from which all its ports take their buffers.
    pub pool: Box<dyn BufferPool>,
    /// Flows to remember, in 84 bytes each. More of them can be under way; looking up those that were forgotten takes
    /// longer.
    pub flows_max: usize,
    /// Chain instances that may be ready or serving somebody, all chains together.
    pub instances_max: usize,
    /// Frames that may wait for a chain instance.
    pub pending_max: usize,
    /// Frames to be received from and transmitted by each port in one poll.
    pub burst: usize,
    /// Empty buffers that each MMA is kept supplied with, as far as its link holds them.
    pub empties_max: usize,
    /// The gateway's ends of its links with the MMAs, in their order.
    pub links: Vec<GatewayLink>,
    /// From the launcher.
    pub commands: Receiver<Command>,
    /// To the launcher. Best with room for as many events as there may be instances.
    pub events: Sender<Event>,
}

/// Why a gateway can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// No port at all, or more than can be told apart.
    #[error("a gateway has 1 to {} ports, not {count}", u16::MAX)]
    PortCount {
        /// Ports given.
        count: usize,
    },
    /// A size that makes no sense.
    #[error("{setting} is {value}: it must be from 1 to {max}")]
    Setting {
        /// The field of [`GatewayConfig`].
        setting: &'static str,
        /// What it was.
        value: usize,
        /// What it may be.
        max: usize,
    },
    /// Frames at MMA and waiting could leave the ports without buffers to receive into.
    #[error(
        "the buffer pool has {have} buffers, but {need} can be under way at once: enlarge the pool, or lower \
         pending_max, empties_max, burst or the size of the link with MMA"
    )]
    PoolTooSmall {
        /// Buffers in the pool.
        have: usize,
        /// Buffers that can be away from it.
        need: usize,
    },
}

pub(super) fn check(setting: &'static str, value: usize, max: usize) -> Result<(), GatewayError> {
    if (1..=max).contains(&value) { Ok(()) } else { Err(GatewayError::Setting { setting, value, max }) }
}
