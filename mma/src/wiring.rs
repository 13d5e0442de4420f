//! Where each FWP's output goes: the MMA's table of FWPs and the edges between them.
//!
//! Commands change it between polls of the MMA's loop. So a chain's edges are never seen half changed.

pub mod branch;
pub(crate) mod head;
pub(crate) mod ingress;
pub(crate) mod slots;
pub(crate) mod waiting;

use std::sync::Arc;

use pinion_abi::{OUTPUTS_MAX, RX_HEADROOM};

use crate::accounts::copying::{CopyShare, CopyingTime};
use crate::accounts::counters::FwpCounters;
use crate::guest::mailbox::{Delivery, Transmission, TxTarget};
use crate::guest::pool::PoolRegion;
use crate::id::{FwpId, PortIndex, Sender, SlotIndex, WorkerIndex};
use crate::rings::phased::{Consumer, Producer};
use crate::tuning::prefetch;
use crate::ways::direction::{Direction, Sides};
use crate::ways::{IngressInfo, Way};
use crate::wiring::branch::{Branch, Branches, Entrance};
use crate::wiring::ingress::SlotIngress;
use crate::wiring::slots::FreeSlots;
use crate::wiring::waiting::WaitingList;

/// Where an FWP's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Into the pool of another of the chain's stages.
    Fwp(FwpId),
    /// Out of the node on this port.
    Egress(PortIndex),
    /// Out of the node on the port where the frame was received.
    EgressWhereItCame,
    /// Nowhere: frames that take it are dropped and counted.
    Drop,
    /// One of the edges of this branch of the wiring's, by the headers of each frame.
    Branch(u8),
}

/// What happens to frames for an FWP that has no free slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backpressure {
    /// They are dropped.
    #[default]
    Drop,
    /// They stay upstream: in the slots of the stage before, or, if they come from the gateway, in their buffers, up to a
    /// limit. Further ones of these are dropped.
    Hold {
        /// Most frames from the gateway that may wait.
        frames_max: usize,
    },
}

/// The edges of an FWP to the other stages of its chain, and its backpressure.
#[derive(Debug, Clone)]
pub struct Wiring {
    outputs: Vec<Edge>,
    branches: Branches,
    backpressure: Backpressure,
    way_back: Option<WayBack>,
}

/// The edges of an FWP for frames that go back.
#[derive(Debug, Clone)]
struct WayBack {
    /// As many as there are outputs forth.
    outputs: Box<[Edge]>,
    sides: Sides,
    /// Whether output 0 leads to a stage, forth and back: replies in that direction take it.
    leads_on: [bool; 2],
}

impl Wiring {
    /// Makes the wiring of an FWP whose outputs take these edges. The first edge is that of [`pinion_abi::PORT_NEXT`].
    ///
    /// # Panics
    /// If there is no output, or more than [`OUTPUTS_MAX`].
    #[must_use]
    pub fn new(outputs: Vec<Edge>, backpressure: Backpressure) -> Self {
        let count = outputs.len();
        assert!((1..=usize::from(OUTPUTS_MAX)).contains(&count), "{count} outputs of an FWP");
        Self { outputs, branches: Branches::default(), backpressure, way_back: None }
    }

    /// Makes the wiring of an FWP in a chain with a way back. Frames that go forth take the first edges, and frames
    /// that go back take the second ones. A frame that finds no free slot is dropped: FWPs that hold frames could wait
    /// for each other in a circle.
    ///
    /// # Panics
    /// If the numbers of outputs back and forth differ, or as for [`Wiring::new`].
    #[must_use]
    pub fn both_ways(forth: Vec<Edge>, back: Vec<Edge>, sides: Sides) -> Self {
        assert_eq!(forth.len(), back.len(), "outputs of an FWP forth and back");
        let way_back = WayBack { outputs: back.into(), sides, leads_on: [false; 2] };
        Self { way_back: Some(way_back), ..Self::new(forth, Backpressure::Drop) }
    }

    /// Makes a wiring with one output that drops frames that find no free slot.
    #[must_use]
    pub fn to(next: Edge) -> Self {
        Self::new(vec![next], Backpressure::Drop)
    }

    /// Sets the branches that its outputs name.
    ///
    /// # Panics
    /// If an output names one that is not there.
    #[must_use]
    pub fn with_branches(mut self, branches: Vec<Branch>) -> Self {
        let count = branches.len();
        let is_there = |edge: &Edge| !matches!(edge, Edge::Branch(number) if usize::from(*number) >= count);
        let mut edges = self.outputs.iter().chain(self.way_back.iter().flat_map(|way_back| &way_back.outputs));
        assert!(edges.all(is_there), "{count} branches for the outputs {:?}", self.outputs);
        self.branches.of_outputs = branches.into();
        self
    }

    /// Sets where frames of the gateway's go that are meant for this FWP.
    ///
    /// # Panics
    /// If an edge leads neither to an FWP nor to nowhere.
    #[must_use]
    pub fn with_entrance(mut self, entrance: Entrance) -> Self {
        let leads_out = |edge: &Edge| !matches!(edge, Edge::Fwp(_) | Edge::Drop);
        let leads_out = entrance.forth.iter().chain(&entrance.back).flat_map(Branch::edges).any(leads_out);
        assert!(!leads_out, "an entrance leads out: {entrance:?}");
        self.branches.entrance = entrance;
        self
    }

    /// Returns the number of outputs.
    pub(crate) fn outputs(&self) -> u16 {
        self.outputs.len() as u16
    }
}

/// A frame's next hop, and its direction from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) edge: Edge,
    pub(crate) direction: Direction,
}

/// The edges of one FWP. The first is stored in place, which saves a load.
#[derive(Debug)]
pub(crate) struct Outputs {
    first: Edge,
    others: Box<[Edge]>,
    way_back: Option<Box<WayBack>>,
}

impl Outputs {
    fn new(outputs: &[Edge], mut way_back: Option<WayBack>, branches: &Branches) -> Self {
        if let Some(way_back) = &mut way_back {
            way_back.leads_on = [outputs[0], way_back.outputs[0]].map(|edge| branches.leads_on(edge));
        }
        Self { first: outputs[0], others: outputs[1..].into(), way_back: way_back.map(Box::new) }
    }

    /// Returns the sides of the ports; empty, if there is no way back.
    fn sides(&self) -> Sides {
        self.way_back.as_ref().map_or(Sides::default(), |way_back| way_back.sides)
    }

    /// Returns the next hop of a frame that came so and has this outlet; none, if it is to be dropped.
    #[inline]
    pub(crate) fn course(&self, to: TxTarget, came: IngressInfo) -> Option<Route> {
        match &self.way_back {
            None => Some(Route { edge: self.forth(to)?, direction: Direction::Forth }),
            Some(way_back) => self.course_both_ways(way_back, to, came.way()),
        }
    }

    /// Returns whether a frame has the same next hop as an earlier one with this outlet and course.
    #[inline(always)]
    pub(crate) fn is_same(&self, (to, course): (TxTarget, Route), sent: &Transmission, came_by: &SlotIngress) -> bool {
        sent.to == to && (self.way_back.is_none() || self.course(to, came_by.of(sent)) == Some(course))
    }

    #[inline]
    fn forth(&self, to: TxTarget) -> Option<Edge> {
        match to {
            TxTarget::Output(0) => Some(self.first),
            // The mailbox, which knows how many there are, has validated the number.
            TxTarget::Output(number) => self.others.get(usize::from(number) - 1).copied(),
            TxTarget::Reply => Some(Edge::EgressWhereItCame),
            TxTarget::Drop => None,
        }
    }

    fn course_both_ways(&self, way_back: &WayBack, to: TxTarget, way: Way) -> Option<Route> {
        let along = |direction, to| {
            let edge = match (direction, to) {
                (Direction::Back, TxTarget::Output(number)) => way_back.outputs.get(usize::from(number)).copied()?,
                (_, to) => self.forth(to)?,
            };
            Some(Route { edge, direction })
        };
        if to != TxTarget::Reply {
            return along(way.direction(), to);
        }
        // Through the stages on that side, if there are any.
        let towards = way_back.sides.direction_of_reply(way.port());
        let through = towards.filter(|direction| way_back.leads_on[*direction as usize]);
        through
            .and_then(|direction| along(direction, TxTarget::Output(0)))
            .or(Some(Route { edge: Edge::EgressWhereItCame, direction: way.direction() }))
    }

    fn all(&self) -> impl Iterator<Item = &Edge> {
        let back = self.way_back.iter().flat_map(|way_back| &way_back.outputs);
        std::iter::once(&self.first).chain(&self.others).chain(back)
    }
}

/// The result of offering a frame to an FWP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is in a slot.
    Yes,
    /// No slot is free. Not counted as a drop yet: the frame may be held.
    NoSlot,
    /// It is longer than a slot.
    TooLong,
}

/// The receiving half of an endpoint.
pub(crate) struct RxPath {
    pub(crate) pool: PoolRegion,
    /// Free slots.
    pub(crate) free: FreeSlots,
    pub(crate) came_by: SlotIngress,
    pub(crate) deliver: Producer<Delivery>,
}

/// An inlet while several frames are delivered.
pub(crate) struct RxBatch<'e> {
    pool: PoolRegion,
    free: &'e mut FreeSlots,
    pub(crate) came_by: &'e mut SlotIngress,
    deliver: &'e mut Producer<Delivery>,
}

impl RxPath {
    /// Prefetches what the next frame touches: its slot, which the guest had last, and the slot's record.
    #[inline]
    fn prefetch(&self) {
        if let Some(slot) = self.free.peek(0) {
            self.pool.prefetch_to_write(slot, RX_HEADROOM as u16);
            prefetch::to_write(self.came_by.place(slot));
        }
        self.deliver.prefetch();
    }

    /// Returns freed slots of the guest's own to it. The guest finds them at its next turn; it is not woken for them.
    #[inline]
    pub(crate) fn return_own(&mut self) {
        let Self { free, deliver, .. } = self;
        while let Some(slot) = free.pop_own() {
            deliver.push(Delivery { slot, len: 0, came: IngressInfo::NONE, facts: 0 });
        }
    }

    #[inline]
    pub(crate) fn open(&mut self) -> RxBatch<'_> {
        let Self { pool, free, came_by, deliver } = self;
        RxBatch { pool: *pool, free, came_by, deliver }
    }
}

impl RxBatch<'_> {
    /// Prefetches the slot that the frame `ahead` positions after the next one will get: its last owner was the guest,
    /// on another core.
    #[inline(always)]
    pub(crate) fn prefetch(&self, ahead: usize) {
        if let Some(slot) = self.free.peek(ahead) {
            self.pool.prefetch_to_write(slot, RX_HEADROOM as u16);
        }
    }

    /// Returns whether a frame of `len` bytes is longer than a slot takes.
    #[inline(always)]
    pub(crate) fn is_too_long(&self, len: u32) -> bool {
        len > self.pool.frame_bytes_max()
    }

    /// Finds a slot for a frame of `len` bytes, copies it in with `copy`, and hands it to the worker. The caller
    /// notifies the worker and counts the result.
    #[inline(always)]
    pub(crate) fn accept(
        &mut self,
        len: u32,
        came: IngressInfo,
        facts: u8,
        copy: impl FnOnce(&PoolRegion, SlotIndex, u16),
    ) -> Accepted {
        if self.is_too_long(len) {
            return Accepted::TooLong;
        }
        let Some(slot) = self.free.pop() else { return Accepted::NoSlot };
        let offset = RX_HEADROOM as u16;
        copy(&self.pool, slot, offset);
        self.came_by.set(slot, came);
        let facts = facts | self.came_by.flags(came);
        self.deliver.push(Delivery { slot, len: len as u16, came, facts });
        Accepted::Yes
    }
}

/// The MMA's side of one FWP.
pub struct Endpoint {
    pub(crate) id: FwpId,
    pub(crate) inlet: RxPath,
    /// Something was delivered and its worker is not yet notified.
    pub(crate) untold: bool,
    /// Its output waits for room at its destination. It is not looked at before there is some.
    pub(crate) blocked: bool,
    /// It is queued for its tenant's turn.
    pub(crate) queued: bool,
    /// It is to be detached when its output has been moved.
    pub(crate) leaving: bool,
    /// Fewer slots are in circulation than are wanted: its worker will provide them, or has.
    pub(crate) is_short: bool,
    /// Whether frames that find no room are held upstream.
    pub(crate) holds: bool,
    /// On whose account its output is moved.
    pub(crate) share: CopyShare,
    /// Whom the gateway is told to have sent its frames: always of the tenant of `share`.
    pub(crate) sender: Sender,
    pub(crate) copying: CopyingTime,
    pub(crate) outputs: Outputs,
    pub(crate) transmit: Consumer<Transmission>,
    pub(crate) counters: Arc<FwpCounters>,
    pub(crate) worker: WorkerIndex,
    /// Frames from the gateway that wait for a slot.
    pub(crate) held: WaitingList,
    pub(crate) held_max: usize,
    /// FWPs whose output waits for a slot of this one.
    pub(crate) upstream: Vec<FwpId>,
    /// How many FWPs no longer wait for that, as there are slots, and were not visited since: some slots are left to them.
    pub(crate) upstream_unblocked: usize,
    /// Whether the odd one goes to a held frame when slots are next shared with predecessors.
    odd_to_held: bool,
    /// The FWP for a slot of which its output waits, or has waited since it was visited last.
    pub(crate) waited_for: Option<FwpId>,
    /// The branches of its outputs and of its chain's entrance, if there are any.
    pub(crate) branches: Option<Box<Branches>>,
}

/// Most FWPs that can wait for slots of another. Frames of further ones are dropped; chains have no more stages.
const UPSTREAM_MAX: usize = 16;

/// The parts of an endpoint besides its wiring.
pub(crate) struct EndpointParts {
    pub(crate) id: FwpId,
    pub(crate) pool: PoolRegion,
    pub(crate) deliver: Producer<Delivery>,
    pub(crate) transmit: Consumer<Transmission>,
    pub(crate) worker: WorkerIndex,
    pub(crate) share: CopyShare,
    pub(crate) counters: Arc<FwpCounters>,
}

impl Endpoint {
    pub(crate) fn new(parts: EndpointParts, wiring: Wiring) -> Self {
        let EndpointParts { id, pool, deliver, transmit, worker, share, counters } = parts;
        let (lent, own, provided) = (pool.lent_count(), pool.own_count(), pool.provided());
        let (holds, held_max) = match wiring.backpressure {
            Backpressure::Drop => (false, 0),
            Backpressure::Hold { frames_max } => (true, frames_max),
        };
        let upstream_max = if holds || provided < lent { UPSTREAM_MAX } else { 0 };
        let Wiring { outputs, branches, way_back, .. } = wiring;
        let outputs = Outputs::new(&outputs, way_back, &branches);
        let came_by = SlotIngress::of_slots(lent, outputs.sides());
        let inlet = RxPath { pool, free: FreeSlots::new(lent, provided, own), came_by, deliver };
        Self {
            id,
            inlet,
            untold: false,
            blocked: false,
            queued: false,
            leaving: false,
            is_short: false,
            holds,
            share,
            sender: Sender::of(share.tenant),
            copying: CopyingTime::default(),
            outputs,
            transmit,
            counters,
            worker,
            held: WaitingList::default(),
            held_max,
            upstream: Vec::with_capacity(upstream_max),
            upstream_unblocked: 0,
            odd_to_held: false,
            waited_for: None,
            branches: (!branches.is_empty()).then(|| Box::new(branches)),
        }
    }

    /// Returns the FWP's id.
    #[must_use]
    pub fn id(&self) -> FwpId {
        self.id
    }

    /// Sets on whose account the MMA moves its output, as long as it is not attached.
    pub fn set_share(&mut self, share: CopyShare) {
        self.share = share;
        self.sender.tenant = share.tenant;
    }

    /// Sets by which chain and instance the gateway knows who sends its frames, as long as it is not attached.
    pub fn set_sender(&mut self, chain: u16, instance: u32) {
        self.sender = Sender { tenant: self.share.tenant, chain, instance };
    }

    /// Counts the frames that are lost with the FWP: those in its slots, except those that its guest dropped. To be
    /// called once, when neither the MMA nor the worker uses the FWP any more.
    pub fn settle(&mut self) {
        let RxPath { free, .. } = &mut self.inlet;
        let mut own = 0;
        self.transmit.take_batch(usize::MAX, |sent| {
            if sent.to == TxTarget::Drop {
                free.push(sent.slot);
            } else {
                own += u64::from(free.is_own(sent.slot));
            }
        });
        self.counters.moved.dropped_instance_ended.add(free.missing() as u64 + own);
    }

    /// Returns how many frames from the gateway may wait now: those that will have slots when these have pages, and those
    /// that the chain holds.
    #[inline]
    pub(crate) fn waiting_max(&self) -> usize {
        self.held_max + usize::from(self.inlet.free.to_come())
    }

    /// Returns how many of its free slots held frames may take now: all, or half of them if predecessors wait. So neither
    /// keeps the others from ever having one.
    #[inline]
    pub(crate) fn slots_for_held(&mut self) -> u64 {
        if self.upstream_unblocked == 0 {
            return u64::MAX;
        }
        let free = self.inlet.free.count() as u64;
        let odd = free % 2;
        let to_held = free / 2 + if self.odd_to_held { odd } else { 0 };
        self.odd_to_held ^= odd == 1;
        to_held
    }

    /// Wants so many more slots, as far as there are some that have no pages yet. Returns whether its worker is to be
    /// notified of that.
    #[cold]
    pub(crate) fn want_slots(&mut self, more: usize) -> bool {
        let free = &self.inlet.free;
        let wanted = usize::from(free.circulating()) + more.min(free.to_come().into());
        self.is_short |= free.to_come() > 0;
        self.is_short && self.counters.guest.slots.want(wanted as u16)
    }

    /// Returns whether its worker has provided slots that are not in circulation.
    pub(crate) fn has_provided(&self) -> bool {
        self.counters.guest.slots.provided() > self.inlet.free.circulating()
    }

    /// Puts one of these into circulation; returns whether there was one.
    pub(crate) fn take_provided(&mut self) -> bool {
        let is_there = self.has_provided();
        if is_there {
            let free = &mut self.inlet.free;
            free.put_into_circulation(free.circulating() + 1);
            self.is_short = self.counters.guest.slots.wanted() > free.circulating();
        }
        is_there
    }

    /// Returns the next hop of a transmission; none, if it is to be dropped.
    #[inline]
    pub(crate) fn course(&self, sent: &Transmission) -> Option<Route> {
        self.outputs.course(sent.to, self.inlet.came_by.of(sent))
    }

    /// Returns the FWPs that its outputs lead to.
    pub(crate) fn successors(&self) -> impl Iterator<Item = FwpId> {
        let of_branches = self.branches.iter().flat_map(|branches| branches.edges_of_outputs());
        self.outputs.all().chain(of_branches).filter_map(|edge| match edge {
            Edge::Fwp(next) => Some(*next),
            Edge::Egress(_) | Edge::EgressWhereItCame | Edge::Drop | Edge::Branch(_) => None,
        })
    }

    fn feeds_itself(&self) -> bool {
        self.successors().any(|next| next == self.id)
    }
}

/// All FWPs whose packets the MMA moves, by index.
pub(crate) struct EndpointTable {
    places: Vec<Option<Box<Endpoint>>>,
}

impl EndpointTable {
    pub(crate) fn new(fwps_max: usize) -> Self {
        Self { places: (0..fwps_max).map(|_| None).collect() }
    }

    /// Adds an endpoint.
    ///
    /// # Errors
    /// The endpoint, if its index is taken or out of range, or if the FWP would feed itself.
    pub(crate) fn attach(&mut self, endpoint: Box<Endpoint>) -> Result<(), Box<Endpoint>> {
        match self.places.get_mut(endpoint.id.index as usize) {
            Some(place @ None) if !endpoint.feeds_itself() => {
                *place = Some(endpoint);
                Ok(())
            }
            _ => Err(endpoint),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: FwpId) -> Option<&mut Endpoint> {
        self.places.get_mut(id.index as usize)?.as_deref_mut().filter(|endpoint| endpoint.id == id)
    }

    /// Prefetches an endpoint: the first of two steps, to be done well before the second.
    #[inline]
    pub(crate) fn prefetch(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize) {
            prefetch::all_to_read(&**endpoint);
        }
    }

    /// Prefetches what delivering a frame to an endpoint touches. The endpoint itself should be in the cache.
    #[inline]
    pub(crate) fn prefetch_inlet(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize) {
            endpoint.inlet.prefetch();
            prefetch::to_write(&raw const endpoint.counters.moved);
        }
    }

    /// Prefetches what moving an endpoint's output touches. The endpoint itself should be in the cache.
    #[inline]
    pub(crate) fn prefetch_output(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize) {
            endpoint.transmit.prefetch();
        }
    }

    /// Prefetches the first frame that an endpoint's FWP has sent. The endpoint's output should be in the cache.
    #[inline]
    pub(crate) fn prefetch_payload(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize)
            && let Some(sent) = endpoint.transmit.first()
        {
            endpoint.inlet.pool.prefetch(sent.slot, sent.offset);
        }
    }

    /// Takes an endpoint out of the table, temporarily or for good.
    #[inline]
    pub(crate) fn take(&mut self, id: FwpId) -> Option<Box<Endpoint>> {
        self.places.get_mut(id.index as usize)?.take_if(|endpoint| endpoint.id == id)
    }

    /// Puts back an endpoint that `take` returned.
    #[inline]
    pub(crate) fn put_back(&mut self, endpoint: Box<Endpoint>) {
        let place = &mut self.places[endpoint.id.index as usize];
        debug_assert!(place.is_none());
        *place = Some(endpoint);
    }
}
