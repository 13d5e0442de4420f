//! A naive model of a whole house: what the MMA must do with every frame, buffer and slot, one at a time, without
//! rings, runs or batches. All random quantities are smaller than a batch.

use std::collections::VecDeque;

use pinion_abi::PORT_DROP;
use pinion_mma::id::FwpId;
use pinion_mma::wiring::Edge;

use crate::stage::{Accepted, Course, Drawn, Packet, Stage};
use crate::support::Left;
use crate::{BUFFER_BYTES, BUFFERS, FRAME_BYTES_MAX, STAGES_MAX};

/// What a stage's output may cost in its turn, and what a frame and a look at a stage cost besides bytes.
const SLICE: usize = 16 * 1024;
const FRAME_COST: usize = 128;
const LOOK_COST: usize = 128;
/// What looking at a frame's first byte costs.
const BRANCH_COST: usize = 256;
/// How many times as many frames a tenant may have waiting to leave as buffers are free, and before first stages as could wait there.
const PER_FREE: usize = 8;
/// Most buffers that the MMA keeps for transmission, and most frames that it holds before first stages.
const KEPT_MAX: usize = BUFFERS / 8;
pub(crate) const HELD_MAX: usize = BUFFERS / 2;

/// Why an output cannot take a frame now.
enum BlockedOn {
    Slot(FwpId),
    Buffer,
}

pub(crate) struct Model {
    pub(crate) stages: Vec<Stage>,
    pub(crate) arriving: VecDeque<(FwpId, Packet)>,
    /// Stages whose output the MMA was notified of, in this order.
    pub(crate) told: VecDeque<FwpId>,
    unblocked: VecDeque<FwpId>,
    without_buffer: VecDeque<FwpId>,
    /// Stages whose output waits for its turn.
    turns: VecDeque<FwpId>,
    /// Buffers: lent empty, kept by the MMA, and on the way back.
    pub(crate) empties: usize,
    kept: usize,
    pub(crate) spent: usize,
    pub(crate) leaving: Vec<Left>,
    pub(crate) gone: u64,
    pub(crate) copied_bytes: u64,
}

impl Model {
    pub(crate) fn new(drawn: Vec<Drawn>) -> Self {
        let mut model = Self {
            stages: Vec::new(),
            arriving: VecDeque::new(),
            told: VecDeque::new(),
            unblocked: VecDeque::new(),
            without_buffer: VecDeque::new(),
            turns: VecDeque::new(),
            empties: 0,
            kept: 0,
            spent: 0,
            leaving: Vec::new(),
            gone: 0,
            copied_bytes: 0,
        };
        let ids: Vec<FwpId> = (0..drawn.len() as u32).map(|index| FwpId { index, generation: 0 }).collect();
        model.stages = ids.iter().zip(drawn).map(|(&id, drawn)| Stage::new(id, drawn, &ids)).collect();
        model
    }

    fn place(&self, id: FwpId) -> Option<usize> {
        self.stages.iter().position(|stage| stage.id == id)
    }

    /// Returns the number of frames that wait before first stages.
    pub(crate) fn waiting(&self) -> usize {
        self.stages.iter().map(|stage| stage.waiting.len()).sum()
    }

    /// Returns the number of buffers that the real gateway has lent.
    pub(crate) fn lent(&self) -> usize {
        self.arriving.len() + self.at_mma() + self.spent + self.leaving.len()
    }

    /// Returns the number of buffers that stay with the MMA as long as nothing moves.
    pub(crate) fn at_mma(&self) -> usize {
        self.waiting() + self.empties + self.kept
    }

    /// Returns whether another poll should find work.
    pub(crate) fn has_work(&self) -> bool {
        !self.unblocked.is_empty() || (!self.without_buffer.is_empty() && self.empties + self.kept > 0)
    }

    /// Returns whether there is a buffer for the tenant that all stages are of.
    fn may_send(&self) -> bool {
        self.leaving.len() < PER_FREE * (self.empties + self.kept)
    }

    pub(crate) fn poll(&mut self) {
        while let Some((target, packet)) = self.arriving.pop_front() {
            self.deliver(target, packet);
        }
        let told = std::mem::take(&mut self.told);
        self.move_at_once(told);
        let unblocked = std::mem::take(&mut self.unblocked);
        for &id in &unblocked {
            let stage = self.place(id).expect("an ended stage waits for nothing");
            self.stages[stage].blocked = false;
        }
        self.move_at_once(unblocked);
        for _ in 0..self.without_buffer.len() {
            if !self.may_send() {
                break;
            }
            let id = self.without_buffer.pop_front().expect("there are that many");
            let stage = self.place(id).expect("an ended stage waits for nothing");
            self.stages[stage].blocked = false;
            let is_only_one = self.without_buffer.is_empty() && self.turns.is_empty();
            self.visit(stage, if is_only_one { usize::MAX } else { SLICE });
        }
        // All stages are one tenant's, so that it waits alone.
        while let Some(id) = self.turns.pop_front() {
            let stage = self.place(id).expect("an ended stage waits for nothing");
            let cost_max = if self.turns.is_empty() { usize::MAX } else { SLICE };
            self.visit(stage, cost_max);
        }
    }

    /// Moves the output of these stages, but not before that of others that wait for buffers.
    fn move_at_once(&mut self, ids: VecDeque<FwpId>) {
        for id in ids {
            let Some(stage) = self.place(id) else { continue };
            if self.without_buffer.is_empty() && self.turns.is_empty() {
                self.visit(stage, usize::MAX);
            } else {
                self.queue(stage);
            }
        }
    }

    fn queue(&mut self, stage: usize) {
        let Stage { id, blocked, .. } = self.stages[stage];
        if (!blocked || self.stages[stage].is_short()) && !self.turns.contains(&id) {
            self.turns.push_back(id);
        }
    }

    /// Uses the slots that were provided for a stage and moves its output, until that has cost so much.
    fn visit(&mut self, stage: usize, cost_max: usize) {
        let it = &mut self.stages[stage];
        let waited_for = if it.blocked { None } else { it.waited_for.take() };
        let cost = if it.is_short() { self.use_provided(stage, cost_max) } else { 0 };
        self.move_output(stage, cost_max.saturating_sub(cost));
        self.was_visited(waited_for);
        let Stage { blocked, provided, circulating, .. } = self.stages[stage];
        let has_more = !blocked && !self.stages[stage].sent.is_empty();
        if has_more || provided > circulating {
            self.queue(stage);
        }
    }

    fn use_provided(&mut self, stage: usize, cost_max: usize) -> usize {
        let (mut cost, mut came) = (0, false);
        while cost < cost_max && !self.stages[stage].waiting.is_empty() && self.stages[stage].take_provided() {
            came = true;
            cost += self.deliver_waiting(stage, usize::MAX);
        }
        let it = &mut self.stages[stage];
        if it.waiting.is_empty() {
            while it.take_provided() {
                came = true;
            }
            if came {
                self.unblock_upstream(stage);
            }
        } else if it.provided == it.circulating {
            it.want(it.waiting.len());
        }
        cost
    }

    /// A stage's worker provides slots, if the MMA wants some.
    pub(crate) fn provide(&mut self, stage: usize) {
        if self.stages[stage].provide() {
            self.told.push_back(self.stages[stage].id);
        }
    }

    fn keep_buffer(&mut self) {
        if self.kept < KEPT_MAX {
            self.kept += 1;
        } else {
            self.spent += 1;
        }
    }

    fn deliver(&mut self, target: FwpId, packet: Packet) {
        let Some(meant_for) = self.place(target) else {
            self.gone += 1;
            return self.keep_buffer();
        };
        let entered = match self.stages[meant_for].entered(&packet) {
            Edge::Fwp(id) => self.place(id),
            _ => {
                self.stages[meant_for].counts.by_graph += 1;
                return self.keep_buffer();
            }
        };
        match entered {
            Some(place) => self.deliver_to(place, packet),
            None => {
                self.stages[meant_for].counts.gone += 1;
                self.keep_buffer();
            }
        }
    }

    fn deliver_to(&mut self, place: usize, packet: Packet) {
        let waiting = self.waiting();
        let stage = &mut self.stages[place];
        let accepted = match packet.bytes.len() {
            len if len > FRAME_BYTES_MAX => Accepted::TooLong,
            _ if stage.waiting.is_empty() => stage.accept(&packet),
            _ => Accepted::NoSlot,
        };
        match accepted {
            Accepted::Yes => {
                stage.counts.entered_bytes += packet.bytes.len() as u64;
                self.copied_bytes += packet.bytes.len() as u64;
            }
            Accepted::TooLong => stage.counts.too_long += 1,
            Accepted::NoSlot => {
                let may_wait = stage.waiting.len() < stage.drawn.holds.unwrap_or(0) + stage.to_come()
                    && waiting < PER_FREE * (HELD_MAX - waiting);
                if may_wait {
                    stage.waiting.push_back(packet);
                } else {
                    stage.counts.no_slot += 1;
                }
                stage.want(stage.waiting.len().max(1));
                if may_wait {
                    return;
                }
            }
        }
        self.keep_buffer();
    }

    fn move_output(&mut self, stage: usize, cost_max: usize) {
        let (mut moved, mut cost) = (0, LOOK_COST);
        while !self.stages[stage].blocked
            && cost < cost_max
            && let Some((outlet, packet)) = self.stages[stage].sent.front().cloned()
        {
            let len = packet.bytes.len() as u64;
            let frame_cost = self.frame_cost(stage, outlet, &packet);
            // It gets the slot.
            let next = self.stages[stage].waiting.get(moved);
            let next_cost = next.map_or(0, |packet| FRAME_COST + packet.bytes.len());
            match self.forward(stage, outlet, packet) {
                Ok(true) => {
                    self.copied_bytes += len;
                    self.stages[stage].counts.sent += 1;
                    self.stages[stage].counts.sent_bytes += len;
                }
                Ok(false) => {}
                Err(halt) => {
                    self.block(stage, halt);
                    break;
                }
            }
            self.stages[stage].sent.pop_front();
            moved += 1;
            cost += frame_cost + next_cost;
        }
        if moved > 0 {
            self.slots_freed(stage);
        }
    }

    /// Returns what moving a frame costs. Frames that go nowhere are not copied.
    fn frame_cost(&self, stage: usize, outlet: u16, packet: &Packet) -> usize {
        if outlet == PORT_DROP {
            return FRAME_COST;
        }
        let goes_on = match self.stages[stage].way(outlet, packet).0 {
            Edge::Fwp(next) => self.place(next).is_some(),
            edge => edge != Edge::Drop,
        };
        let look_cost = if self.branches(stage, outlet, packet) { BRANCH_COST } else { 0 };
        look_cost + FRAME_COST + if goes_on { packet.bytes.len() } else { 0 }
    }

    /// Returns whether a stage sends a frame by a branch.
    fn branches(&self, stage: usize, outlet: u16, packet: &Packet) -> bool {
        matches!(self.stages[stage].way_out(outlet, packet).0, Edge::Branch(_))
    }

    fn block(&mut self, stage: usize, halt: BlockedOn) {
        self.stages[stage].blocked = true;
        let id = self.stages[stage].id;
        match halt {
            BlockedOn::Buffer => self.without_buffer.push_back(id),
            BlockedOn::Slot(next) => {
                self.stages[stage].waited_for = Some(next);
                let next = self.place(next).expect("a stage waits only for stages that exist");
                self.stages[next].upstream.push(id);
            }
        }
    }

    /// Returns whether the frame has gone on or else was dropped; or what it waits for.
    fn forward(&mut self, stage: usize, outlet: u16, packet: Packet) -> Result<bool, BlockedOn> {
        if outlet == PORT_DROP {
            return Ok(false);
        }
        let (edge, direction) = self.stages[stage].way(outlet, &packet);
        let packet = Packet { course: Course { direction, passed: packet.course.passed + 1 }, ..packet };
        assert!(packet.course.passed < 2 * STAGES_MAX, "a frame goes round: {packet:?}");
        let port = match edge {
            Edge::Egress(port) => port.0,
            Edge::EgressWhereItCame => packet.port,
            Edge::Fwp(next) => return self.pass_on(stage, next, &packet),
            Edge::Drop => {
                self.stages[stage].counts.by_graph += 1;
                return Ok(false);
            }
            Edge::Branch(_) => unreachable!("a branch leads to no branch"),
        };
        let Stage { drawn, counts, .. } = &mut self.stages[stage];
        if self.leaving.len() >= PER_FREE * (self.empties + self.kept) {
            if drawn.holds.is_some() {
                return Err(BlockedOn::Buffer);
            }
            counts.egress += 1;
            return Ok(false);
        }
        if self.kept == 0 {
            (self.empties, self.kept) = (self.empties - 1, 1);
        }
        if packet.bytes.len() > BUFFER_BYTES {
            counts.too_long += 1;
            return Ok(false);
        }
        self.kept -= 1;
        self.leaving.push(Left { port, bytes: packet.bytes });
        Ok(true)
    }

    fn pass_on(&mut self, stage: usize, next: FwpId, packet: &Packet) -> Result<bool, BlockedOn> {
        let Some(place) = self.place(next) else {
            self.stages[stage].counts.gone += 1;
            return Ok(false);
        };
        let course = |(outlet, packet): &(u16, Packet)| (*outlet, self.stages[stage].way_of_sent(*outlet, packet));
        let mut sent = self.stages[stage].sent.iter().map(course);
        let first = sent.next();
        let (outlet, sent_as) = self.stages[stage].sent.front().expect("it is what goes on");
        // Of frames that take a branch it is not known yet where those behind this one go.
        let is_alone = self.branches(stage, *outlet, sent_as);
        let left = 1 + if is_alone { 0 } else { sent.take_while(|next| Some(*next) == first).count() };
        let to = &mut self.stages[place];
        match to.accept(packet) {
            Accepted::Yes => return Ok(true),
            Accepted::TooLong => to.counts.too_long += 1,
            Accepted::NoSlot if to.drawn.holds.is_some() || to.to_come() > 0 => {
                to.want(left);
                return Err(BlockedOn::Slot(next));
            }
            Accepted::NoSlot => to.counts.no_slot += 1,
        }
        Ok(false)
    }

    fn slots_freed(&mut self, stage: usize) {
        self.unblock_upstream(stage);
        if !self.stages[stage].waiting.is_empty() {
            let slots_max = self.stages[stage].slots_for_waiting();
            self.deliver_waiting(stage, slots_max);
        }
    }

    fn unblock_upstream(&mut self, stage: usize) {
        let it = &mut self.stages[stage];
        it.upstream_unblocked += it.upstream.len();
        self.unblocked.extend(it.upstream.drain(..));
    }

    /// Notes that a stage was visited that had waited for slots of this one: when no other is to be, frames that wait get
    /// those that are left.
    fn was_visited(&mut self, waited_for: Option<FwpId>) {
        let Some(next) = waited_for.and_then(|next| self.place(next)) else { return };
        self.stages[next].upstream_unblocked -= 1;
        if self.stages[next].upstream_unblocked == 0 {
            self.deliver_waiting(next, usize::MAX);
        }
    }

    /// Delivers frames that wait before a stage, as far as it has slots and into so many at most. Returns what that costs.
    fn deliver_waiting(&mut self, stage: usize, slots_max: usize) -> usize {
        let (mut cost, mut slots) = (0, 0);
        while slots < slots_max
            && let Some(packet) = self.stages[stage].waiting.pop_front()
        {
            match self.stages[stage].accept(&packet) {
                Accepted::Yes => {
                    slots += 1;
                    self.stages[stage].counts.entered_bytes += packet.bytes.len() as u64;
                    self.copied_bytes += packet.bytes.len() as u64;
                    cost += FRAME_COST + packet.bytes.len();
                }
                Accepted::TooLong => {
                    self.stages[stage].counts.too_long += 1;
                    cost += FRAME_COST;
                }
                Accepted::NoSlot => {
                    self.stages[stage].waiting.push_front(packet);
                    break;
                }
            }
            self.keep_buffer();
        }
        cost
    }

    fn stop_waiting(&mut self, stage: usize) {
        let id = self.stages[stage].id;
        self.stages[stage].blocked = false;
        self.unblocked.retain(|&waiting| waiting != id);
        self.without_buffer.retain(|&waiting| waiting != id);
        let mut was_waiting = false;
        for stage in &mut self.stages {
            was_waiting |= stage.upstream.contains(&id);
            stage.upstream.retain(|&waiting| waiting != id);
        }
        if was_waiting {
            self.stages[stage].waited_for = None;
        }
    }

    /// Ends these stages, one after the other, and returns them. What they have sent moves if there is room; the rest
    /// is lost with them. New FWPs get their indices: they are wired to each other, and the other stages do not know
    /// them.
    pub(crate) fn replace(&mut self, places: &[usize]) -> Vec<Stage> {
        let mut tenants: Vec<FwpId> = self.stages.iter().map(|stage| stage.id).collect();
        for &place in places {
            tenants[place].generation += 1;
        }
        places.iter().map(|&place| self.replace_one(place, &tenants)).collect()
    }

    fn replace_one(&mut self, place: usize, tenants: &[FwpId]) -> Stage {
        self.stop_waiting(place);
        let waited_for = self.stages[place].waited_for.take();
        self.move_output(place, usize::MAX);
        self.was_visited(waited_for);
        self.stop_waiting(place);
        let new = Stage::new(tenants[place], self.stages[place].drawn.clone(), tenants);
        let mut old = std::mem::replace(&mut self.stages[place], new);
        for _ in old.waiting.drain(..) {
            old.counts.gone += 1;
            self.keep_buffer();
        }
        old.counts.gone += old.sent.drain(..).filter(|(outlet, _)| *outlet != PORT_DROP).count() as u64;
        self.unblocked.append(&mut old.upstream.drain(..).collect());
        old
    }
}
