//! The link between a gateway and an MMA: four rings that carry frames and buffers both ways.
//!
//! ```text
//!   gateway                                         MMA
//!     inbound  ----- Inbound: a received frame ---->  copies it into a slot
//!     spent    <---- the frame's buffer -----------
//!     empty    ----- an empty buffer -------------->  copies a slot into it
//!     outbound <---- Outbound: a frame to transmit -
//! ```
//!
//! A buffer is always in exactly one ring or with one party. The MMA may transmit a frame in the buffer of a received
//! one, so received frames and empty buffers on loan are counted together. The gateway never lends more than `spent`
//! and `outbound` each have room for, so neither can be full.

pub(crate) mod gateway_link;

pub use crate::buffer::Outbound;
use crate::buffer::{Buffer, Frame};
use crate::id::FwpId;
use crate::notify::doorbell::Doorbell;
use crate::rings::spsc::{self, Consumer, Producer};

/// A frame that Net-In has assigned to an FWP.
#[derive(Debug)]
pub struct Inbound {
    /// The frame, with the port on which it was received.
    pub frame: Frame,
    /// The first FWP of the chain instance that serves its flow.
    pub target: FwpId,
}

// Two of them share a cache line.
const _: () = assert!(size_of::<Inbound>() == 32 && size_of::<Outbound>() == 32);

/// The gateway's end.
pub struct GatewayLink {
    /// Received frames, to the MMA.
    pub inbound: Producer<Inbound>,
    /// Buffers that the MMA no longer needs.
    pub spent: Consumer<Buffer>,
    /// Empty buffers, to the MMA. A buffer of any port can carry a frame to any other port.
    pub empty: Producer<Buffer>,
    /// Frames to transmit, each with its port, from the MMA.
    pub outbound: Consumer<Outbound>,
    /// Wakes the MMA's thread; ring it after pushing to `inbound` or `empty`.
    pub mma: Doorbell,
}

/// The MMA's end.
pub struct MmaLink {
    /// Received frames.
    pub inbound: Consumer<Inbound>,
    /// Buffers that go back to the gateway.
    pub spent: Producer<Buffer>,
    /// Empty buffers for transmission.
    pub empty: Consumer<Buffer>,
    /// Frames to transmit.
    pub outbound: Producer<Outbound>,
    /// Wakes the gateway's thread.
    pub gateway: Doorbell,
}

/// Makes a link over which at most `buffers` buffers are on loan to the MMA, received frames and empty ones together.
/// `gateway` and `mma` wake the two sides' threads, if they have their own.
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
