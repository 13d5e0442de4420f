//! Frames that take an edge by their headers: from an output that branches, or from a branch at a chain's entrance.
//!
//! Each frame is looked at just before it is moved, and again if it had to wait there. Frames behind one another that take
//! the same edge are moved as one row, as those of an output without a branch are, by the same code: it is told by a
//! [`Pick`] which frames belong to the row, and takes their bytes from there.

use super::Mma;
use super::ahead::prefetch_payloads;
use super::outputs::{Bounds, Row, frame_cost, next_held_cost};
use crate::guest::mailbox::{Transmission, TxTarget};
use crate::guest::pool::PoolRegion;
use crate::id::{FwpId, SlotIndex};
use crate::link::gateway_link::GatewayLink;
use crate::ways::Arrival;
use crate::wiring::branch::Branch;
use crate::wiring::head::Head;
use crate::wiring::ingress::SlotIngress;
use crate::wiring::{Edge, Endpoint, Route};

/// What looking at a frame's headers costs, in bytes copied.
const LOOK_COST: i64 = 256;

/// Which frames of a row take the row's edge, and where their bytes are. Frames are asked about in order, each before it
/// is moved, until one does not take it.
pub(super) trait Pick {
    /// What a frame costs besides its moving.
    const COST: i64;
    /// Whether all frames of the output take the row's edge. If not, rows are short, and the caller has prefetched the
    /// output's first payloads.
    const TAKES_ALL: bool;

    /// Returns whether the next frame takes the row's edge.
    fn takes(&mut self, sent: &Transmission, pool: &PoolRegion, came_by: &SlotIngress) -> bool;

    /// Notes that the next frame was taken out of the row, whether it was moved or dropped.
    fn took(&mut self);

    /// Copies the next frame into a slot of another FWP's.
    fn copy_across(&self, pool: &PoolRegion, sent: &Transmission, into: &PoolRegion, to: (SlotIndex, u16));

    /// Copies the next frame into a buffer of its length.
    fn copy_out(&self, pool: &PoolRegion, sent: &Transmission, frame: &mut [u8]);
}

/// Every frame of an output without a branch, as it lies in its slot.
pub(super) struct EachFrame;

impl Pick for EachFrame {
    const COST: i64 = 0;
    const TAKES_ALL: bool = true;

    #[inline(always)]
    fn takes(&mut self, _sent: &Transmission, _pool: &PoolRegion, _came_by: &SlotIngress) -> bool {
        true
    }

    #[inline(always)]
    fn took(&mut self) {}

    #[inline(always)]
    fn copy_across(&self, pool: &PoolRegion, sent: &Transmission, into: &PoolRegion, to: (SlotIndex, u16)) {
        pool.copy_across((sent.slot, sent.offset), sent.len, into, to);
    }

    #[inline(always)]
    fn copy_out(&self, pool: &PoolRegion, sent: &Transmission, frame: &mut [u8]) {
        pool.copy_out(sent.slot, sent.offset, frame);
    }
}

/// The frames for which a branch chooses the row's edge, each with the start that was looked at.
struct Chosen<'b> {
    branch: &'b Branch,
    /// The start of the frame that was looked at last.
    head: &'b mut Head,
    /// The edge of the frame that is next, if it was looked at.
    next: Option<Edge>,
    /// The row's edge.
    edge: Edge,
}

impl Chosen<'_> {
    /// Returns the edge of the next frame, which is looked at unless it was.
    #[inline]
    fn edge_of(&mut self, sent: &Transmission, pool: &PoolRegion, came_by: &SlotIngress) -> Edge {
        let Self { branch, head, next, .. } = self;
        *next.get_or_insert_with(|| {
            head.read(pool, sent);
            branch.edge_of(head.frame(), came_by.of(sent).way().port())
        })
    }
}

impl Pick for Chosen<'_> {
    const COST: i64 = LOOK_COST;
    const TAKES_ALL: bool = false;

    #[inline]
    fn takes(&mut self, sent: &Transmission, pool: &PoolRegion, came_by: &SlotIngress) -> bool {
        self.edge_of(sent, pool, came_by) == self.edge
    }

    #[inline]
    fn took(&mut self) {
        self.next = None;
    }

    #[inline]
    fn copy_across(&self, pool: &PoolRegion, sent: &Transmission, into: &PoolRegion, to: (SlotIndex, u16)) {
        self.head.copy_across(pool, sent, into, to);
    }

    #[inline]
    fn copy_out(&self, pool: &PoolRegion, sent: &Transmission, frame: &mut [u8]) {
        self.head.copy_out(pool, sent, frame);
    }
}

impl Mma {
    /// Moves the next frames, within these bounds, of an output that branches: those behind one another that take the same
    /// edge together.
    #[inline(never)]
    pub(super) fn run_by_branch(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        bounds: Bounds,
        number: u8,
    ) -> Row {
        // Both come back below: the rows need the endpoint and the MMA.
        let (branches, mut head) = (from.branches.take(), std::mem::take(&mut self.head));
        let mut done = Row { taken: 0, cost: 0, halt: None };
        prefetch_payloads(&from.transmit.taking(bounds.frames), &from.inlet.pool);
        if let Some(branch) = branches.as_ref().and_then(|branches| branches.of_outputs.get(usize::from(number))) {
            let mut chosen = Chosen { branch, head: &mut head, next: None, edge: branch.default() };
            while done.halt.is_none()
                && done.taken < bounds.frames
                && done.cost < bounds.cost
                && let Some(sent) = from.transmit.peek(0)
                && from.outputs.is_same(way, &sent, &from.inlet.came_by)
            {
                chosen.edge = chosen.edge_of(&sent, &from.inlet.pool, &from.inlet.came_by);
                let left = Bounds { frames: bounds.frames - done.taken, cost: bounds.cost - done.cost };
                let row = self.run_chosen(from, way, left, &mut chosen);
                done = Row { taken: done.taken + row.taken, cost: done.cost + row.cost, halt: row.halt };
            }
        } else {
            done = self.run_to_nowhere(from, way, bounds, &mut EachFrame);
        }
        (from.branches, self.head) = (branches, head);
        done
    }

    /// Moves the next frames that take the edge chosen.
    fn run_chosen(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        bounds: Bounds,
        chosen: &mut Chosen<'_>,
    ) -> Row {
        match (way.0, chosen.edge) {
            (_, Edge::Fwp(next)) => self.run_to_fwp(from, way, bounds, next, chosen),
            (TxTarget::Output(_), Edge::Egress(port)) => self.run_to_gateway(from, way, bounds, Some(port), chosen),
            // A reply that no stage is on the way of leaves where its frame came in.
            (_, Edge::Egress(_) | Edge::EgressWhereItCame) => self.run_to_gateway(from, way, bounds, None, chosen),
            (_, Edge::Drop | Edge::Branch(_)) => self.run_to_nowhere(from, way, bounds, chosen),
        }
    }

    /// Frees the slots of the next frames, within these bounds, that take an edge that leads nowhere.
    #[inline(never)]
    pub(super) fn run_to_nowhere<P: Pick>(
        &mut self,
        from: &mut Endpoint,
        way: (TxTarget, Route),
        bounds: Bounds,
        pick: &mut P,
    ) -> Row {
        let Endpoint { inlet, transmit, outputs, held, counters, .. } = from;
        let mut row = transmit.taking(bounds.frames);
        let (mut taken, mut cost) = (0, 0);
        while cost < bounds.cost
            && let Some(sent) = row.peek(0)
            && outputs.is_same(way, &sent, &inlet.came_by)
            && pick.takes(&sent, &inlet.pool, &inlet.came_by)
        {
            row.take();
            pick.took();
            inlet.free.push(sent.slot);
            cost += P::COST + frame_cost(0) + next_held_cost(&self.waiting, held, &inlet.free, sent.slot);
            taken += 1;
        }
        counters.moved.dropped_by_graph.add(taken as u64);
        Row { taken, cost, halt: None }
    }

    /// Takes the first `run` frames of the gateway's, which are meant for the same FWP, to where its entrance leads them.
    /// What looking at them costs and how long it takes is charged as for output of that FWP. They are a batch at most.
    #[inline(never)]
    pub(super) fn enter_by_branch(&mut self, target: FwpId, run: usize, arrived: Arrival) {
        let Some(mut entered) = self.table.take(target) else { return };
        let branches = entered.branches.take();
        // The edge of the next frame, if it was looked at.
        let (mut left, mut next, mut looked_ticks) = (run, None, 0);
        while left > 0
            && let Some(branches) = &branches
        {
            let began = self.stopwatch.ticks();
            let (frames, _) = self.dock.intake(left);
            let edge_at = |at: usize| {
                let frame = &frames.peek(at)?.frame;
                let way = entered.inlet.came_by.arriving(frame.port(), arrived).way();
                let branch = branches.entrance.branch(way.direction());
                Some(branch.map_or(Edge::Fwp(target), |branch| branch.edge_of(frame.bytes(), way.port())))
            };
            let Some(edge) = next.or_else(|| edge_at(0)) else { break };
            let mut row = 1;
            loop {
                next = if row < left { edge_at(row) } else { None };
                if next != Some(edge) {
                    break;
                }
                row += 1;
            }
            drop(frames);
            looked_ticks += self.stopwatch.ticks().saturating_sub(began);
            self.enter(&mut entered, edge, row, arrived);
            left -= row;
        }
        let cost = LOOK_COST * run as i64;
        self.budget -= cost;
        entered.copying.add(looked_ticks, cost as u64);
        if entered.copying.is_much() {
            entered.copying.publish(&self.stopwatch, &entered.counters.moved);
        }
        entered.branches = branches;
        self.table.put_back(entered);
    }

    /// Takes the first frames of the gateway's, which are meant for an FWP and take this edge, along it.
    fn enter(&mut self, entered: &mut Endpoint, edge: Edge, row: usize, arrived: Arrival) {
        match edge {
            Edge::Fwp(id) if id == entered.id => self.deliver_row(entered, row, arrived),
            Edge::Fwp(id) => match self.table.take(id) {
                Some(mut next) => {
                    self.deliver_row(&mut next, row, arrived);
                    self.table.put_back(next);
                }
                None => {
                    entered.counters.moved.dropped_instance_ended.add(row as u64);
                    give_back(&mut self.dock, row);
                }
            },
            // An entrance has no other edge.
            Edge::Drop | Edge::Egress(_) | Edge::EgressWhereItCame | Edge::Branch(_) => {
                entered.counters.moved.dropped_by_graph.add(row as u64);
                give_back(&mut self.dock, row);
            }
        }
    }
}

/// Takes the first frames of the gateway's, and gives their buffers back.
fn give_back(dock: &mut GatewayLink, row: usize) {
    let (mut frames, mut shelf) = dock.intake(row);
    for _ in 0..row {
        frames.take().into_iter().for_each(|inbound| shelf.keep(inbound.frame.into_buffer()));
    }
}
