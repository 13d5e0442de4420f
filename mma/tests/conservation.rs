//! No frame and no slot is ever lost, doubled, reordered or altered: a real house and a naive model of it are put through
//! the same random operations, and must agree on every frame and every counter.

mod support;

use std::collections::VecDeque;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY, RX_HEADROOM};
use pinion_mma::counters::MovedCounters;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::Edge;
use proptest::prelude::*;
use support::{Fwp, House, Left, Plan, Shape, frame};

const STAGES_MAX: usize = 4;
const BUFFERS: usize = 16;
/// Between the longest frame that a slot takes and the longest that a guest can send, so that both limits are met.
const BUFFER_BYTES: usize = 1_560;
const SLOT_BYTES: u32 = 1_600;
const FRAME_BYTES_MAX: usize = (SLOT_BYTES - RX_HEADROOM) as usize;
/// Where the last stage's output leaves.
const EGRESS: u16 = 40;

/// What a guest does with one of the frames that it holds.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    /// Which, modulo how many it holds.
    held: usize,
    port: u16,
    /// Bytes put before the frame, or, if negative, taken from its start.
    prepended: i32,
}

/// One operation. Stages are meant modulo how many there are.
#[derive(Debug, Clone)]
enum Step {
    Inject {
        stage: usize,
        len: usize,
        port: u16,
    },
    Lend(usize),
    Poll,
    /// The worker looks at the next FWP that it was notified of.
    Work,
    /// A running guest looks for itself.
    Publish(usize),
    /// The guest decides on some of the frames it holds, and its worker collects.
    Send {
        stage: usize,
        verdicts: Vec<Verdict>,
    },
    Collect,
    /// The stage ends and its place gets a new tenant, of whom the stage before knows nothing.
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any_stage = || 0..STAGES_MAX;
    // Most traffic is for the first stage; some flows start in the middle.
    let first_or_any = prop_oneof![3 => Just(0), 1 => any_stage()];
    let len = prop_oneof![4 => 1..200_usize, 1 => FRAME_BYTES_MAX - 40..=BUFFER_BYTES];
    let port = prop_oneof![4 => Just(PORT_NEXT), 1 => Just(PORT_REPLY), 1 => Just(PORT_DROP)];
    let prepended = prop_oneof![3 => Just(0), 1 => -20..=RX_HEADROOM as i32];
    let verdict =
        (any::<usize>(), port, prepended).prop_map(|(held, port, prepended)| Verdict { held, port, prepended });
    let verdicts = proptest::collection::vec(verdict, 1..6);
    prop_oneof![
        8 => (first_or_any, len, 0..4_u16).prop_map(|(stage, len, port)| Step::Inject { stage, len, port }),
        2 => (1..6_usize).prop_map(Step::Lend),
        6 => Just(Step::Poll),
        4 => Just(Step::Work),
        2 => any_stage().prop_map(Step::Publish),
        6 => (any_stage(), verdicts).prop_map(|(stage, verdicts)| Step::Send { stage, verdicts }),
        3 => Just(Step::Collect),
        1 => any_stage().prop_map(Step::Replace),
    ]
}

/// A frame, wherever it is inside.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packet {
    port: u16,
    bytes: Vec<u8>,
}

/// What should have been counted for one FWP.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    received: u64,
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    no_slot: u64,
    too_long: u64,
    egress: u64,
    gone: u64,
}

impl Counts {
    fn of(moved: &MovedCounters) -> Self {
        Self {
            received: moved.received.value(),
            received_bytes: moved.received_bytes.value(),
            sent: moved.sent.value(),
            sent_bytes: moved.sent_bytes.value(),
            no_slot: moved.dropped_no_slot.value(),
            too_long: moved.dropped_too_long.value(),
            egress: moved.dropped_egress.value(),
            gone: moved.dropped_gone.value(),
        }
    }

    fn dropped(&self) -> u64 {
        self.no_slot + self.too_long + self.egress + self.gone
    }
}

/// One stage, as plainly as can be. Each frame in it holds a slot.
struct Stage {
    id: FwpId,
    slots: usize,
    delivered: VecDeque<Packet>,
    /// With the descriptor by which the real guest knows it.
    held: Vec<(Descriptor, Packet)>,
    sent: VecDeque<(u16, Packet)>,
    counts: Counts,
}

impl Stage {
    fn new(id: FwpId, slots: usize) -> Self {
        let (delivered, held, sent) = (VecDeque::new(), Vec::new(), VecDeque::new());
        Self { id, slots, delivered, held, sent, counts: Counts::default() }
    }

    fn accept(&mut self, packet: Packet) -> bool {
        if packet.bytes.len() > FRAME_BYTES_MAX {
            self.counts.too_long += 1;
            return false;
        }
        if self.delivered.len() + self.held.len() + self.sent.len() == self.slots {
            self.counts.no_slot += 1;
            return false;
        }
        self.counts.received += 1;
        self.counts.received_bytes += packet.bytes.len() as u64;
        self.delivered.push_back(packet);
        true
    }

    /// Frames in it that are still to go somewhere.
    fn inside(&self) -> usize {
        let sent = self.sent.iter().filter(|(port, _)| *port != PORT_DROP).count();
        self.delivered.len() + self.held.len() + sent
    }
}

/// A whole house, as plainly as can be. The batch of a poll is larger than anything here.
struct Model {
    stages: Vec<Stage>,
    /// The id that each stage sends to, whoever has that place now; the last one's output leaves.
    next: Vec<Option<FwpId>>,
    arriving: VecDeque<(FwpId, Packet)>,
    /// Places with output, in the order in which the MMA was told.
    told: VecDeque<usize>,
    empties: usize,
    leaving: Vec<Left>,
    gone: u64,
    copied_bytes: u64,
}

impl Model {
    fn new(stages: usize, slots: usize) -> Self {
        let id = |stage| FwpId { index: stage as u32, generation: 0 };
        Self {
            stages: (0..stages).map(|stage| Stage::new(id(stage), slots)).collect(),
            next: (0..stages).map(|stage| (stage + 1 < stages).then(|| id(stage + 1))).collect(),
            arriving: VecDeque::new(),
            told: VecDeque::new(),
            empties: 0,
            leaving: Vec::new(),
            gone: 0,
            copied_bytes: 0,
        }
    }

    fn stage(&mut self, id: FwpId) -> Option<&mut Stage> {
        self.stages.iter_mut().find(|stage| stage.id == id)
    }

    fn poll(&mut self) {
        while let Some((target, packet)) = self.arriving.pop_front() {
            let len = packet.bytes.len() as u64;
            match self.stage(target) {
                Some(stage) => self.copied_bytes += if stage.accept(packet) { len } else { 0 },
                None => self.gone += 1,
            }
        }
        while let Some(stage) = self.told.pop_front() {
            self.move_output(stage);
        }
    }

    fn move_output(&mut self, stage: usize) {
        while let Some((outlet, packet)) = self.stages[stage].sent.pop_front() {
            let len = packet.bytes.len() as u64;
            if self.forward(stage, outlet, packet) {
                self.copied_bytes += len;
                self.stages[stage].counts.sent += 1;
                self.stages[stage].counts.sent_bytes += len;
            }
        }
    }

    fn forward(&mut self, stage: usize, outlet: u16, packet: Packet) -> bool {
        let port = match (outlet, self.next[stage]) {
            (PORT_DROP, _) => return false,
            (PORT_REPLY, _) => packet.port,
            (_, None) => EGRESS,
            (_, Some(next)) => {
                if let Some(next) = self.stage(next) {
                    return next.accept(packet);
                }
                self.stages[stage].counts.gone += 1;
                return false;
            }
        };
        let counts = &mut self.stages[stage].counts;
        if self.empties == 0 {
            counts.egress += 1;
            return false;
        }
        if packet.bytes.len() > BUFFER_BYTES {
            counts.too_long += 1;
            return false;
        }
        self.empties -= 1;
        self.leaving.push(Left { port, bytes: packet.bytes });
        true
    }

    /// Ends a stage and returns it: what it has sent moves, the rest ends with it.
    fn replace(&mut self, stage: usize) -> Stage {
        self.move_output(stage);
        let FwpId { index, generation } = self.stages[stage].id;
        let new = Stage::new(FwpId { index, generation: generation + 1 }, self.stages[stage].slots);
        std::mem::replace(&mut self.stages[stage], new)
    }
}

/// The real thing beside its model, and the account of all frames.
struct Pair {
    house: House,
    model: Model,
    shape: Shape,
    injected: u64,
    left: u64,
    /// Of stages that have ended: what they dropped, and what ended with them.
    dropped_before: u64,
    ended: u64,
}

impl Pair {
    fn new(stages: usize, slot_count: u32) -> Self {
        let shape = Shape { slot_count, slot_size: SLOT_BYTES, ring_entries: slot_count.next_power_of_two() };
        let plan = Plan { fwps_max: stages, buffers: BUFFERS, buffer_bytes: BUFFER_BYTES };
        let house = House::chain(&plan, stages as u32, shape, Edge::Egress(PortIndex(EGRESS)));
        let model = Model::new(stages, slot_count as usize);
        Self { house, model, shape, injected: 0, left: 0, dropped_before: 0, ended: 0 }
    }

    fn follow(&mut self, step: Step) {
        let stages = self.model.stages.len();
        match step {
            Step::Inject { stage, len, port } => self.inject(stage % stages, len, port),
            Step::Lend(wanted) => self.model.empties += self.house.gateway.lend_empties(wanted),
            Step::Poll => self.poll(),
            Step::Work => {
                let noticed = self.house.worker_queue.pop();
                if let Some(stage) = noticed.and_then(|id| self.house.fwps.iter().position(|fwp| fwp.id == id)) {
                    self.publish(stage);
                }
            }
            Step::Publish(stage) => self.publish(stage % stages),
            Step::Send { stage, verdicts } => self.send(stage % stages, &verdicts),
            Step::Collect => self.collect(),
            Step::Replace(stage) => self.replace(stage % stages),
        }
        self.audit();
    }

    fn inject(&mut self, stage: usize, len: usize, port: u16) {
        if self.house.gateway.frames_lent() == BUFFERS {
            return;
        }
        let (target, bytes) = (self.model.stages[stage].id, frame(self.injected as u32, len));
        self.injected += 1;
        self.house.gateway.inject(&bytes, port, target);
        self.model.arriving.push_back((target, Packet { port, bytes }));
    }

    fn poll(&mut self) {
        self.house.mma.poll();
        self.model.poll();
        assert!(!self.house.mma.has_work());
    }

    fn publish(&mut self, stage: usize) {
        let real = &mut self.house.fwps[stage];
        let model = &mut self.model.stages[stage];
        for descriptor in real.publish_all() {
            let packet = model.delivered.pop_front().expect("nothing is published that was not delivered");
            assert_eq!(Packet { port: descriptor.port, bytes: real.guest.frame(&descriptor) }, packet);
            model.held.push((descriptor, packet));
        }
        assert!(model.delivered.is_empty(), "everything delivered is published");
    }

    fn send(&mut self, stage: usize, verdicts: &[Verdict]) {
        let real = &mut self.house.fwps[stage];
        let model = &mut self.model.stages[stage];
        let mut sent = 0;
        for verdict in verdicts {
            if model.held.is_empty() {
                break;
            }
            let (mut descriptor, mut packet) = model.held.remove(verdict.held % model.held.len());
            if verdict.prepended >= 0 {
                let header = frame(!(self.injected as u32), verdict.prepended as usize);
                descriptor.offset -= header.len() as u16;
                descriptor.len += header.len() as u16;
                real.guest.write_frame(descriptor.slot, descriptor.offset, &header);
                packet.bytes.splice(0..0, header);
            } else {
                let cut = (verdict.prepended.unsigned_abs() as usize).min(packet.bytes.len() - 1);
                descriptor.offset += cut as u16;
                descriptor.len -= cut as u16;
                packet.bytes.drain(..cut);
            }
            real.guest.pass(descriptor, verdict.port);
            model.sent.push_back((verdict.port, packet));
            sent += 1;
        }
        assert_eq!(real.mailbox.collect(), Ok(sent));
        if sent > 0 && !self.model.told.contains(&stage) {
            self.model.told.push_back(stage);
        }
    }

    fn collect(&mut self) {
        let left = self.house.gateway.collect();
        self.left += left.len() as u64;
        assert_eq!(left, std::mem::take(&mut self.model.leaving));
    }

    fn replace(&mut self, stage: usize) {
        let (old, next) = (self.model.stages[stage].id, self.model.next[stage]);
        let new = FwpId { index: old.index, generation: old.generation + 1 };
        self.house.command(MmaCommand::Detach(old));
        self.house.attach(new, self.shape, next.map_or(Edge::Egress(PortIndex(EGRESS)), Edge::Fwp));
        self.house.mma.poll();
        let ended = self.model.replace(stage);
        self.model.poll();
        assert_eq!(self.house.detached().expect("it has let go").id(), old);

        let real = self.house.fwps.swap_remove(stage);
        assert_eq!(Counts::of(real.moved()), ended.counts);
        self.dropped_before += dropped_by(&real);
        self.ended += ended.inside() as u64;
    }

    /// Every counter is as it should be, and every frame that came in is accounted for.
    fn audit(&self) {
        for (real, model) in self.house.fwps.iter().zip(&self.model.stages) {
            assert_eq!(Counts::of(real.moved()), model.counts, "of FWP {}", real.id);
        }
        assert_eq!(self.house.mma.counters().dropped_gone.value(), self.model.gone);
        assert_eq!(self.house.copied_bytes(), self.model.copied_bytes);
        let in_stages: usize = self.model.stages.iter().map(Stage::inside).sum();
        let inside = self.model.arriving.len() + in_stages + self.model.leaving.len();
        assert_eq!(self.injected, self.left + self.dropped() + self.ended + inside as u64);
    }

    /// Lets everything come to rest, following notifications only, and looks for what has leaked.
    fn wind_up(mut self) {
        self.poll();
        while !self.house.worker_queue.is_empty() {
            self.follow(Step::Work);
        }
        let unnoticed: usize = self.model.stages.iter().map(|stage| stage.delivered.len()).sum();
        assert_eq!(unnoticed, 0, "frames were delivered and nobody told the worker");

        let drop_first = Verdict { held: 0, port: PORT_DROP, prepended: 0 };
        for stage in 0..self.model.stages.len() {
            let verdicts = vec![drop_first; self.model.stages[stage].held.len()];
            self.follow(Step::Send { stage, verdicts });
        }
        self.poll();
        self.collect();
        self.audit();
        assert_eq!(self.injected, self.left + self.ended + self.dropped());
        assert_eq!((self.house.gateway.frames_lent(), self.house.gateway.empties_lent()), (0, self.model.empties));
        for stage in 0..self.model.stages.len() {
            self.house.assert_all_slots_free(stage, self.shape);
        }
    }

    fn dropped(&self) -> u64 {
        let gone = self.house.mma.counters().dropped_gone.value();
        self.dropped_before + gone + self.house.fwps.iter().map(dropped_by).sum::<u64>()
    }
}

/// Frames dropped for an FWP or by it.
fn dropped_by(fwp: &Fwp) -> u64 {
    Counts::of(fwp.moved()).dropped() + fwp.mailbox.counters().guest.dropped.value()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_is_delivered_counted_or_still_inside(
        stages in 1..=STAGES_MAX,
        slot_count in 1..9_u32,
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(stages, slot_count);
        for step in steps {
            pair.follow(step);
        }
        pair.wind_up();
    }
}
