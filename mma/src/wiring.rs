//! Which pool's output goes where: the MMA's table of FWPs and the edges between them.
//!
//! Changed by commands, between polls of the MMA's loop; so a chain's edges can never be seen half changed.

use std::sync::Arc;

use pinion_abi::RX_HEADROOM;

use crate::counters::FwpCounters;
use crate::id::{FwpId, PortIndex, SlotIndex};
use crate::mailbox::{Delivery, Notices, Transmission};
use crate::notify::ReadyQueue;
use crate::pool::PoolRegion;
use crate::spsc::{Consumer, Producer};

/// Where an FWP's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Into the pool of the chain's next stage.
    Fwp(FwpId),
    /// Out of the node by this port.
    Egress(PortIndex),
    /// Out of the node by the port the frame came in by.
    EgressWhereItCame,
}

/// The MMA's side of one FWP.
pub struct Endpoint {
    pub(crate) id: FwpId,
    pub(crate) pool: PoolRegion,
    pub(crate) next: Edge,
    /// Slots that hold nothing, the one last used on top: few slots stay warm, and few pages resident.
    pub(crate) free: Vec<SlotIndex>,
    /// By slot: the port its frame came in by. The host's own record; a guest cannot choose its way out.
    pub(crate) came_by: Box<[PortIndex]>,
    pub(crate) deliver: Producer<Delivery>,
    pub(crate) transmit: Consumer<Transmission>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) worker: ReadyQueue,
    pub(crate) counters: Arc<FwpCounters>,
}

impl Endpoint {
    /// The FWP's id.
    #[must_use]
    pub fn id(&self) -> FwpId {
        self.id
    }

    /// Finds a slot for a frame of `len` bytes, copies it in with `copy`, and hands it to the worker. Drops it, counted,
    /// if it is too long or no slot is free.
    pub(crate) fn accept(&mut self, len: u32, port: PortIndex, copy: impl FnOnce(&PoolRegion, SlotIndex, u16)) -> bool {
        let moved = &self.counters.moved;
        if len > self.pool.frame_bytes_max() {
            moved.dropped_too_long.add(1);
            return false;
        }
        let Some(slot) = self.free.pop() else {
            moved.dropped_no_slot.add(1);
            return false;
        };
        let offset = RX_HEADROOM as u16;
        copy(&self.pool, slot, offset);
        self.came_by[usize::from(slot.0)] = port;
        // One place per slot in the ring and each slot in it at most once: it cannot be full.
        let pushed = self.deliver.push(Delivery { slot, offset, len: len as u16, port });
        debug_assert!(pushed.is_ok());
        moved.received.add(1);
        moved.received_bytes.add(u64::from(len));
        true
    }

    /// Whether something was delivered since the worker was last told.
    pub(crate) fn deliver_pending(&mut self) -> bool {
        self.deliver.room(usize::MAX) < self.came_by.len().next_power_of_two()
    }

    /// Tells the worker that there is something to publish.
    pub(crate) fn notify_worker(&self) {
        self.notices.input.raise(self.id, &self.worker);
    }
}

/// All FWPs the MMA moves packets for, by index.
pub(crate) struct EndpointTable {
    places: Vec<Option<Box<Endpoint>>>,
}

impl EndpointTable {
    pub(crate) fn new(fwps_max: usize) -> Self {
        Self { places: (0..fwps_max).map(|_| None).collect() }
    }

    /// Puts an endpoint into its place, unless that is taken, out of the table, or the FWP would feed itself.
    pub(crate) fn attach(&mut self, endpoint: Box<Endpoint>) -> Result<(), Box<Endpoint>> {
        let feeds_itself = endpoint.next == Edge::Fwp(endpoint.id);
        match self.places.get_mut(endpoint.id.index as usize) {
            Some(place @ None) if !feeds_itself => {
                *place = Some(endpoint);
                Ok(())
            }
            _ => Err(endpoint),
        }
    }

    pub(crate) fn get_mut(&mut self, id: FwpId) -> Option<&mut Endpoint> {
        self.places.get_mut(id.index as usize)?.as_deref_mut().filter(|endpoint| endpoint.id == id)
    }

    /// Takes an endpoint out of its place, for as long as it is worked with or for good.
    pub(crate) fn take(&mut self, id: FwpId) -> Option<Box<Endpoint>> {
        self.places.get_mut(id.index as usize)?.take_if(|endpoint| endpoint.id == id)
    }

    /// Puts back what `take` took.
    pub(crate) fn put_back(&mut self, endpoint: Box<Endpoint>) {
        let place = &mut self.places[endpoint.id.index as usize];
        debug_assert!(place.is_none());
        *place = Some(endpoint);
    }
}
