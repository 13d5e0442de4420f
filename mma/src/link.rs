//! The link between a gateway and the MMA: four rings, frames and buffers both ways.
//!
//! ```text
//!   gateway                                         MMA
//!     inbound  ----- Inbound: a received frame ---->  copies it into a slot
//!     spent    <---- the frame's buffer -----------
//!     empty    ----- an empty buffer -------------->  copies a slot into it
//!     outbound <---- a frame to transmit -----------
//! ```
//!
//! A buffer is always in exactly one place. The MMA may send a frame out in the buffer that another came in, so what is
//! on loan is one sum; the gateway never lends more than `spent` and `outbound` hold each, so neither can be full.

use crate::buffer::{Buffer, Frame};
use crate::doorbell::Doorbell;
use crate::id::FwpId;
use crate::spsc::{self, Consumer, Producer};

/// A frame that Net-In has assigned to an FWP.
#[derive(Debug)]
pub struct Inbound {
    /// The frame, with the port it came in by.
    pub frame: Frame,
    /// The first FWP of the chain instance that serves its flow.
    pub target: FwpId,
}

// Two of them share a cache line.
const _: () = assert!(size_of::<Inbound>() == 32);

/// The gateway's end.
pub struct GatewayLink {
    /// Received frames, to MMA.
    pub inbound: Producer<Inbound>,
    /// Buffers that MMA is done with.
    pub spent: Consumer<Buffer>,
    /// Empty buffers, to MMA. Any port's buffer serves for a frame to any port.
    pub empty: Producer<Buffer>,
    /// Frames to transmit, each with the port it leaves by, from MMA.
    pub outbound: Consumer<Frame>,
    /// Wakes the MMA's thread; to be rung after pushing to `inbound` or `empty`.
    pub mma: Doorbell,
}

/// The MMA's end.
pub struct MmaLink {
    /// Received frames.
    pub inbound: Consumer<Inbound>,
    /// Buffers on the way back.
    pub spent: Producer<Buffer>,
    /// Empty buffers for transmission.
    pub empty: Consumer<Buffer>,
    /// Frames to transmit.
    pub outbound: Producer<Frame>,
    /// Wakes the gateway's thread.
    pub gateway: Doorbell,
}

/// Makes a link over which at most `buffers` buffers are on loan to the MMA, received frames and empty ones together. `gateway` and `mma`
/// wake the two, if they have threads of their own.
#[must_use]
pub fn link(buffers: usize, gateway: Doorbell, mma: Doorbell) -> (GatewayLink, MmaLink) {
    let (inbound_tx, inbound_rx) = spsc::ring(buffers);
    let (spent_tx, spent_rx) = spsc::ring(buffers);
    let (empty_tx, empty_rx) = spsc::ring(buffers);
    let (outbound_tx, outbound_rx) = spsc::ring(buffers);
    (
        GatewayLink { inbound: inbound_tx, spent: spent_rx, empty: empty_tx, outbound: outbound_rx, mma },
        MmaLink { inbound: inbound_rx, spent: spent_tx, empty: empty_rx, outbound: outbound_tx, gateway },
    )
}
