//! What a gateway is made from, and why it cannot be made.

use crossbeam_channel::{Receiver, Sender};
use pinion_mma::link::GatewayLink;
use pinion_mma::ways::direction::PortSet;

use crate::invoke::InvokePort;
use crate::messages::{Command, Event};
use crate::neighbors::network::NetworkSetup;
use crate::neighbors::reverse_path::ReversePath;
use crate::port::{BufferPool, Port};

/// A port, and the addresses that it answers for.
pub struct PortSetup {
    /// The port.
    pub port: Box<dyn Port>,
    /// The networks that it is in, and the node's addresses and routes there: the untagged one, and VLANs. Without an
    /// untagged one, the node has no address there.
    pub networks: Vec<NetworkSetup>,
    /// What is asked of the sources of packets that come in.
    pub reverse_path: ReversePath,
}

/// What a gateway is made from.
pub struct GatewayConfig {
    /// Its ports; the first one is `PortIndex(0)`.
    pub ports: Vec<PortSetup>,
    /// The port through which programs invoke chains, if there is one. Its index follows those of the other ports.
    pub invoke: Option<InvokePort>,
    /// The pool from which all its ports take their buffers.
    pub pool: Box<dyn BufferPool>,
    /// Size of the flow cache, in flows; each takes 84 bytes. More flows can be active, but flows that were evicted
    /// take longer to look up.
    pub flows_max: usize,
    /// Chain instances that may be ready or bound, for all chains together.
    pub instances_max: usize,
    /// Frames that may wait for a chain instance. A quarter as many fragments may wait for the first one of their
    /// datagram, besides.
    pub pending_max: usize,
    /// Frames to receive from and to transmit by each port in one poll.
    pub burst: usize,
    /// Empty buffers that the gateway keeps lent to each MMA, as far as its link holds them.
    pub empties_max: usize,
    /// The gateway's ends of the links to the MMAs, in the MMAs' order.
    pub links: Vec<GatewayLink>,
    /// Commands from the launcher.
    pub commands: Receiver<Command>,
    /// Events to the launcher. Best with room for as many events as there may be instances.
    pub events: Sender<Event>,
}

/// The most ports that a gateway can have. One number more is that of the port of calls.
pub const PORTS_MAX: usize = PortSet::PORTS_MAX as usize - 1;

/// Why a gateway cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// There is no port, or more than [`PORTS_MAX`].
    #[error("a gateway has 1 to {PORTS_MAX} ports, not {count}")]
    PortCount {
        /// Ports given.
        count: usize,
    },
    /// A size out of range.
    #[error("{setting} is {value}: it must be from 1 to {max}")]
    Setting {
        /// The field of [`GatewayConfig`].
        setting: &'static str,
        /// What it was.
        value: usize,
        /// What it may be.
        max: usize,
    },
    /// Frames held by MMA and frames that wait could leave the ports without buffers to receive into.
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
