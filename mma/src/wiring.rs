//! Which pool's output goes where: the MMA's table of FWPs and the edges between them.
//!
//! Changed by commands, between polls of the MMA's loop; so a chain's edges can never be seen half changed.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_abi::{OUTPUTS_MAX, RX_HEADROOM};

use crate::buffer::Frame;
use crate::counters::FwpCounters;
use crate::heading::{Heading, Sides};
use crate::id::{FwpId, PortIndex, SlotIndex, WorkerIndex};
use crate::mailbox::{Delivery, Outlet, Transmission};
use crate::phased::{Consumer, Producer};
use crate::pool::PoolRegion;
use crate::prefetch;
use crate::slots::{Came, CameBy, FreeSlots};

/// Where an FWP's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Into the pool of another of the chain's stages.
    Fwp(FwpId),
    /// Out of the node by this port.
    Egress(PortIndex),
    /// Out of the node by the port the frame came in by.
    EgressWhereItCame,
}

/// What becomes of frames for an FWP that has no slot free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backpressure {
    /// They are dropped.
    #[default]
    Drop,
    /// They stay where they are, upstream: in the slots of the stage before, and before the first stage in their
    /// buffers, so many of them at most. What comes beyond that is dropped.
    Hold {
        /// Frames that may wait before the first stage.
        frames_max: usize,
    },
}

/// How an FWP is joined to the others of its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wiring {
    outputs: Vec<Edge>,
    backpressure: Backpressure,
    way_back: Option<WayBack>,
}

/// How an FWP is joined to the others of its chain for frames that go back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WayBack {
    /// As many as there are outputs forth.
    outputs: Box<[Edge]>,
    sides: Sides,
}

impl Wiring {
    /// An FWP whose outputs go along these edges, the first of which is [`pinion_abi::PORT_NEXT`].
    ///
    /// # Panics
    /// If there is no output, or more than [`OUTPUTS_MAX`].
    #[must_use]
    pub fn new(outputs: Vec<Edge>, backpressure: Backpressure) -> Self {
        let count = outputs.len();
        assert!((1..=usize::from(OUTPUTS_MAX)).contains(&count), "{count} outputs of an FWP");
        Self { outputs, backpressure, way_back: None }
    }

    /// An FWP of a chain with a way back, whose outputs go along the first edges for frames that go forth, and along the second
    /// ones for those that go back. A frame that finds no slot is dropped: FWPs that hold would wait for each other in a circle.
    ///
    /// # Panics
    /// If there are not as many outputs back as forth, or as [`Wiring::new`].
    #[must_use]
    pub fn both_ways(forth: Vec<Edge>, back: Vec<Edge>, sides: Sides) -> Self {
        assert_eq!(forth.len(), back.len(), "outputs of an FWP forth and back");
        Self { way_back: Some(WayBack { outputs: back.into(), sides }), ..Self::new(forth, Backpressure::Drop) }
    }

    /// One output, and frames that find no slot are dropped.
    #[must_use]
    pub fn to(next: Edge) -> Self {
        Self::new(vec![next], Backpressure::Drop)
    }

    /// Number of outputs.
    pub(crate) fn outputs(&self) -> u16 {
        self.outputs.len() as u16
    }
}

/// Where a frame goes next, and which way through the chain from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) edge: Edge,
    pub(crate) heading: Heading,
}

/// The edges of one FWP. The first is at hand without another look into memory.
#[derive(Debug)]
pub(crate) struct Outputs {
    first: Edge,
    others: Box<[Edge]>,
    way_back: Option<Box<WayBack>>,
}

impl Outputs {
    fn new(wiring: Wiring) -> Self {
        let Wiring { outputs, way_back, .. } = wiring;
        Self { first: outputs[0], others: outputs[1..].into(), way_back: way_back.map(Box::new) }
    }

    /// On which side ports are; on none, if there is no way back.
    fn sides(&self) -> Sides {
        self.way_back.as_ref().map_or(Sides::default(), |way_back| way_back.sides)
    }

    /// Where a frame goes that came like this and is sent there; none for nowhere.
    #[inline]
    pub(crate) fn course(&self, to: Outlet, came: Came) -> Option<Course> {
        match &self.way_back {
            None => Some(Course { edge: self.forth(to)?, heading: Heading::Forth }),
            Some(way_back) => self.course_both_ways(way_back, to, came),
        }
    }

    /// Whether a frame goes the same way as one before it that took this course there.
    #[inline(always)]
    pub(crate) fn is_same(&self, (to, course): (Outlet, Course), sent: &Transmission, came_by: &CameBy) -> bool {
        sent.to == to && (self.way_back.is_none() || self.course(to, came_by.of(sent.slot)) == Some(course))
    }

    #[inline]
    fn forth(&self, to: Outlet) -> Option<Edge> {
        match to {
            Outlet::Output(0) => Some(self.first),
            // Judged by the mailbox, which knows how many there are.
            Outlet::Output(number) => self.others.get(usize::from(number) - 1).copied(),
            Outlet::Reply => Some(Edge::EgressWhereItCame),
            Outlet::Drop => None,
        }
    }

    fn course_both_ways(&self, way_back: &WayBack, to: Outlet, came: Came) -> Option<Course> {
        let along = |heading, to| {
            let edge = match (heading, to) {
                (Heading::Back, Outlet::Output(number)) => way_back.outputs.get(usize::from(number)).copied()?,
                (_, to) => self.forth(to)?,
            };
            Some(Course { edge, heading })
        };
        if to != Outlet::Reply {
            return along(came.heading, to);
        }
        // Through the stages on that side, if there are any.
        let towards = way_back.sides.heading_of_reply(came.port).and_then(|heading| along(heading, Outlet::Output(0)));
        let through = towards.filter(|course| matches!(course.edge, Edge::Fwp(_)));
        through.or(Some(Course { edge: Edge::EgressWhereItCame, heading: came.heading }))
    }

    fn all(&self) -> impl Iterator<Item = &Edge> {
        let back = self.way_back.iter().flat_map(|way_back| &way_back.outputs);
        std::iter::once(&self.first).chain(&self.others).chain(back)
    }
}

/// What became of a frame for an FWP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// It is in a slot.
    Yes,
    /// No slot is free. Not counted yet: it may be held.
    NoSlot,
    /// It is longer than a slot.
    TooLong,
}

/// How frames get into an FWP's pool.
pub(crate) struct Inlet {
    pub(crate) pool: PoolRegion,
    /// Slots that hold nothing.
    pub(crate) free: FreeSlots,
    pub(crate) came_by: CameBy,
    pub(crate) deliver: Producer<Delivery>,
}

/// An inlet while several frames go in.
pub(crate) struct Intake<'e> {
    pool: PoolRegion,
    free: &'e mut FreeSlots,
    pub(crate) came_by: &'e mut CameBy,
    deliver: &'e mut Producer<Delivery>,
}

impl Inlet {
    /// Asks for what the next frame touches: its slot, which the guest had last, and all that is noted of it.
    #[inline]
    fn prefetch(&self) {
        if let Some(slot) = self.free.peek(0) {
            self.pool.prefetch_to_write(slot, RX_HEADROOM as u16);
            prefetch::to_write(self.came_by.place(slot));
        }
        self.deliver.prefetch();
    }

    /// Returns to the guest what of its own slots was given back: it finds them at its next turn, for which nobody is woken.
    #[inline]
    pub(crate) fn return_own(&mut self) {
        let Self { free, deliver, .. } = self;
        while let Some(slot) = free.pop_own() {
            deliver.push(Delivery { slot, len: 0, port: PortIndex(0), facts: 0 });
        }
    }

    #[inline]
    pub(crate) fn open(&mut self) -> Intake<'_> {
        let Self { pool, free, came_by, deliver } = self;
        Intake { pool: *pool, free, came_by, deliver }
    }
}

impl Intake<'_> {
    /// Asks for the slot that the next frame but `ahead` will go into: its last owner was the guest, on another core.
    #[inline(always)]
    pub(crate) fn prefetch(&self, ahead: usize) {
        if let Some(slot) = self.free.peek(ahead) {
            self.pool.prefetch_to_write(slot, RX_HEADROOM as u16);
        }
    }

    /// Finds a slot for a frame of `len` bytes, copies it in with `copy`, and hands it to the worker, which is to be told then. What comes
    /// of it is for the caller to count.
    #[inline(always)]
    pub(crate) fn accept(
        &mut self,
        len: u32,
        came: Came,
        facts: u8,
        copy: impl FnOnce(&PoolRegion, SlotIndex, u16),
    ) -> Accepted {
        if len > self.pool.frame_bytes_max() {
            return Accepted::TooLong;
        }
        let Some(slot) = self.free.pop() else { return Accepted::NoSlot };
        let offset = RX_HEADROOM as u16;
        copy(&self.pool, slot, offset);
        self.came_by.set(slot, came);
        self.deliver.push(Delivery { slot, len: len as u16, port: came.port, facts });
        Accepted::Yes
    }
}

/// The MMA's side of one FWP.
pub struct Endpoint {
    pub(crate) id: FwpId,
    pub(crate) inlet: Inlet,
    /// Something was delivered that its worker was not told of.
    pub(crate) untold: bool,
    /// Its output waits for room elsewhere; it is not looked at before there is some.
    pub(crate) blocked: bool,
    /// Whether frames that find no room are held upstream.
    pub(crate) holds: bool,
    pub(crate) outputs: Outputs,
    pub(crate) transmit: Consumer<Transmission>,
    pub(crate) counters: Arc<FwpCounters>,
    pub(crate) worker: WorkerIndex,
    /// Frames from the gateway that wait for a slot, in their order. Room for all of them was made with the FWP.
    pub(crate) held: VecDeque<Frame>,
    pub(crate) held_max: usize,
    /// FWPs whose output waits for a slot of this one.
    pub(crate) upstream: Vec<FwpId>,
}

/// FWPs that can wait for slots of another: no more stages than that come before one.
const UPSTREAM_MAX: usize = 64;

/// What an endpoint is made of besides its wiring.
pub(crate) struct EndpointParts {
    pub(crate) id: FwpId,
    pub(crate) pool: PoolRegion,
    pub(crate) deliver: Producer<Delivery>,
    pub(crate) transmit: Consumer<Transmission>,
    pub(crate) worker: WorkerIndex,
    pub(crate) counters: Arc<FwpCounters>,
}

impl Endpoint {
    pub(crate) fn new(parts: EndpointParts, wiring: Wiring) -> Self {
        let EndpointParts { id, pool, deliver, transmit, worker, counters } = parts;
        let (lent, own) = (pool.lent_count(), pool.own_count());
        let (holds, held_max) = match wiring.backpressure {
            Backpressure::Drop => (false, 0),
            Backpressure::Hold { frames_max } => (true, frames_max),
        };
        let outputs = Outputs::new(wiring);
        let came_by = CameBy::of_slots(lent, outputs.sides());
        let inlet = Inlet { pool, free: FreeSlots::all(lent, own), came_by, deliver };
        Self {
            id,
            inlet,
            untold: false,
            blocked: false,
            holds,
            outputs,
            transmit,
            counters,
            worker,
            held: VecDeque::with_capacity(held_max),
            held_max,
            upstream: Vec::with_capacity(if holds { UPSTREAM_MAX } else { 0 }),
        }
    }

    /// The FWP's id.
    #[must_use]
    pub fn id(&self) -> FwpId {
        self.id
    }

    /// Counts the frames that are lost with the FWP: those in its slots, but for what its guest had dropped. To be called once,
    /// when MMA and worker have both let go of it.
    pub fn settle(&mut self) {
        let Inlet { free, .. } = &mut self.inlet;
        let mut own = 0;
        self.transmit.take_batch(usize::MAX, |sent| {
            if sent.to == Outlet::Drop {
                free.push(sent.slot);
            } else {
                own += u64::from(free.is_own(sent.slot));
            }
        });
        self.counters.moved.dropped_gone.add(free.missing() as u64 + own);
    }

    /// Where a transmission goes; none for nowhere.
    #[inline]
    pub(crate) fn course(&self, sent: &Transmission) -> Option<Course> {
        self.outputs.course(sent.to, self.inlet.came_by.of(sent.slot))
    }

    /// The FWPs that its outputs lead to.
    pub(crate) fn successors(&self) -> impl Iterator<Item = FwpId> {
        self.outputs.all().filter_map(|edge| match edge {
            Edge::Fwp(next) => Some(*next),
            Edge::Egress(_) | Edge::EgressWhereItCame => None,
        })
    }

    fn feeds_itself(&self) -> bool {
        self.successors().any(|next| next == self.id)
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

    /// Asks for an endpoint: the first of two steps, and well before the second.
    #[inline]
    pub(crate) fn prefetch(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize) {
            prefetch::all_to_read(&**endpoint);
        }
    }

    /// Asks for what delivering a frame to an endpoint touches, which should be at hand itself.
    #[inline]
    pub(crate) fn prefetch_inlet(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize) {
            endpoint.inlet.prefetch();
            prefetch::to_write(&raw const endpoint.counters.moved);
        }
    }

    /// Asks for what moving an endpoint's output touches, which should be at hand itself.
    #[inline]
    pub(crate) fn prefetch_output(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize) {
            endpoint.transmit.prefetch();
        }
    }

    /// Asks for the first frame that an endpoint's FWP has sent. The endpoint's output should be at hand.
    #[inline]
    pub(crate) fn prefetch_payload(&self, id: FwpId) {
        if let Some(Some(endpoint)) = self.places.get(id.index as usize)
            && let Some(sent) = endpoint.transmit.first()
        {
            endpoint.inlet.pool.prefetch(sent.slot, sent.offset);
        }
    }

    /// Takes an endpoint out of its place, for as long as it is worked with or for good.
    #[inline]
    pub(crate) fn take(&mut self, id: FwpId) -> Option<Box<Endpoint>> {
        self.places.get_mut(id.index as usize)?.take_if(|endpoint| endpoint.id == id)
    }

    /// Puts back what `take` took.
    #[inline]
    pub(crate) fn put_back(&mut self, endpoint: Box<Endpoint>) {
        let place = &mut self.places[endpoint.id.index as usize];
        debug_assert!(place.is_none());
        *place = Some(endpoint);
    }
}
