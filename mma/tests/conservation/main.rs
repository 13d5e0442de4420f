//! No frame and no slot is ever lost, duplicated, reordered or altered. A real house and a naive model of it run the
//! same random operations, and must agree on every frame and every counter.

mod model;
mod stage;
#[path = "../support/mod.rs"]
mod support;

use model::{HELD_MAX, Model};
use pinion_abi::{PORT_DROP, PORT_REPLY, RX_HEADROOM};
use pinion_mma::mover::MmaCommand;
use proptest::prelude::*;
use stage::{Counts, Course, Drawn, Output, Packet, Stage};
use support::{Fwp, Guest, House, Plan, Shape, frame};

const STAGES_MAX: usize = 5;
const OUTPUTS_MAX: usize = 3;
const BUFFERS: usize = 16;
/// Between the longest frame that a slot takes and the longest that a guest can send, so that both limits are reached.
const BUFFER_BYTES: usize = 1_560;
const SLOT_BYTES: u32 = 1_600;
const FRAME_BYTES_MAX: usize = (SLOT_BYTES - RX_HEADROOM) as usize;
/// Most empty buffers lent, so that frames still come in.
const EMPTIES_MAX: usize = BUFFERS / 2;

/// Where a guest sends a frame.
#[derive(Debug, Clone, Copy)]
enum TxTarget {
    /// By one of its outputs, modulo their number.
    Output(u16),
    Reply,
    Drop,
}

/// What a guest does with one of the frames that it holds.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    /// Which frame, modulo the number that it holds.
    held: usize,
    to: TxTarget,
    /// Bytes put before the frame, or, if negative, taken from its start.
    prepended: i32,
}

/// One operation. Stage numbers are modulo the number of stages.
#[derive(Debug, Clone)]
enum Step {
    Inject {
        stage: usize,
        len: usize,
        port: u16,
    },
    Lend(usize),
    Poll,
    /// The worker looks at the next FWP for which it was notified.
    Work,
    /// A running guest looks for its own input.
    Publish(usize),
    /// The guest sends some of the frames it holds, and its worker collects.
    Send {
        stage: usize,
        verdicts: Vec<Verdict>,
    },
    Collect,
    /// The stage ends and a new FWP gets its index, unknown to the stages before.
    Replace(usize),
    /// All stages end, from this one on in a circle. New FWPs, wired to each other, get their indices.
    ReplaceAll(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any_stage = || 0..STAGES_MAX;
    // Most traffic is for the first stage; some flows start at a later one.
    let first_or_any = prop_oneof![3 => Just(0), 1 => any_stage()];
    let len = prop_oneof![4 => 1..200_usize, 1 => FRAME_BYTES_MAX - 40..=BUFFER_BYTES];
    let to = prop_oneof![
        6 => (0..OUTPUTS_MAX as u16).prop_map(TxTarget::Output),
        1 => Just(TxTarget::Reply),
        1 => Just(TxTarget::Drop),
    ];
    let prepended = prop_oneof![3 => Just(0), 1 => -20..=RX_HEADROOM as i32];
    let verdict = (any::<usize>(), to, prepended).prop_map(|(held, to, prepended)| Verdict { held, to, prepended });
    let verdicts = proptest::collection::vec(verdict, 1..6);
    prop_oneof![
        24 => (first_or_any, len, 0..4_u16).prop_map(|(stage, len, port)| Step::Inject { stage, len, port }),
        5 => (1..6_usize).prop_map(Step::Lend),
        18 => Just(Step::Poll),
        12 => Just(Step::Work),
        6 => any_stage().prop_map(Step::Publish),
        18 => (any_stage(), verdicts).prop_map(|(stage, verdicts)| Step::Send { stage, verdicts }),
        9 => Just(Step::Collect),
        1 => any_stage().prop_map(Step::Replace),
        1 => any_stage().prop_map(Step::ReplaceAll),
    ]
}

/// Draws where an output leads, by distance for stages: in three of four cases to one target, otherwise by a branch.
fn output() -> impl Strategy<Value = Output> + Clone {
    let target = prop_oneof![
        6 => prop_oneof![3 => Just(1), 1 => 2..=STAGES_MAX].prop_map(Output::Stage),
        1 => (40..43_u16).prop_map(Output::Port),
        1 => Just(Output::WhereItCame),
        1 => Just(Output::Drop),
    ];
    let branch = proptest::collection::vec(target.clone(), 2..5).prop_map(Output::Branch);
    prop_oneof![3 => target, 1 => branch]
}

/// Returns where an output leads with distances in place of stages. `stage` says which one is at a distance; beyond the last
/// one it leads out.
fn placed(output: Output, stage: &impl Fn(usize) -> Option<usize>) -> Output {
    match output {
        Output::Stage(further) => stage(further).map_or(Output::Port(further as u16), Output::Stage),
        Output::Branch(outputs) => Output::Branch(outputs.into_iter().map(|output| placed(output, stage)).collect()),
        out => out,
    }
}

/// Draws stages whose outputs lead to later ones, out or nowhere: chains with branches and joins, without circles. Frames may
/// enter by other stages than those that they are meant for.
fn stages(holds: impl Strategy<Value = Option<usize>> + Clone) -> impl Strategy<Value = Vec<Drawn>> {
    let outputs = proptest::collection::vec(output(), 1..=OUTPUTS_MAX);
    let slots = prop_oneof![3 => 1..3_u32, 2 => 3..9_u32, 1 => 9..40_u32];
    let enters = prop_oneof![4 => (0..STAGES_MAX).prop_map(Output::Stage), 1 => Just(Output::Drop)];
    let entrance = proptest::option::weighted(0.3, proptest::collection::vec(enters, 2..5));
    let stage = (slots, outputs, holds, any::<bool>(), entrance);
    let stage = stage.prop_map(|(slots, outputs, holds, is_new, entrance)| Drawn {
        slots,
        outputs,
        back: None,
        holds,
        is_new,
        entrance,
    });
    proptest::collection::vec(stage, 1..=STAGES_MAX).prop_map(|mut stages| {
        let count = stages.len();
        for (place, stage) in stages.iter_mut().enumerate() {
            let later = |further: usize| Some(place + further).filter(|next| *next < count);
            stage.outputs = std::mem::take(&mut stage.outputs).into_iter().map(|it| placed(it, &later)).collect();
            let any = |next: usize| Some(next % count);
            let entrance = stage.entrance.take();
            stage.entrance = entrance.map(|all| all.into_iter().map(|it| placed(it, &any)).collect());
            // The frames that look for free slots in the end enter by the stage itself.
            if let Some(first) = stage.entrance.as_mut().and_then(|entrance| entrance.first_mut()) {
                *first = Output::Stage(place);
            }
        }
        stages
    })
}

/// The same with a way back whose outputs lead to earlier stages, out or nowhere; nothing holds.
fn stages_both_ways() -> impl Strategy<Value = Vec<Drawn>> {
    let back = proptest::collection::vec(output(), STAGES_MAX * OUTPUTS_MAX);
    (stages(Just(None)), back).prop_map(|(mut stages, back)| {
        for ((place, stage), back) in stages.iter_mut().enumerate().zip(back.chunks(OUTPUTS_MAX)) {
            let earlier = |further: usize| place.checked_sub(further);
            let back = back.iter().take(stage.outputs.len()).map(|output| placed(output.clone(), &earlier));
            stage.back = Some(back.collect());
        }
        stages
    })
}

/// The real house, its model, and the account of all frames.
struct Pair {
    house: House,
    model: Model,
    injected: u64,
    left: u64,
    /// Of stages that have ended: what they dropped, and what was lost with them.
    dropped_before: u64,
    ended: u64,
}

impl Pair {
    fn new(stages: Vec<Drawn>) -> Self {
        let plan = Plan { fwps_max: stages.len(), buffers: BUFFERS, buffer_bytes: BUFFER_BYTES };
        let (mut house, mut model) = (House::new(&plan), Model::new(stages));
        for stage in &mut model.stages {
            attach(&mut house, stage);
        }
        house.mma.poll();
        Self { house, model, injected: 0, left: 0, dropped_before: 0, ended: 0 }
    }

    fn follow(&mut self, step: Step) {
        let stages = self.model.stages.len();
        match step {
            Step::Inject { stage, len, port } => self.inject(stage % stages, len, port),
            Step::Lend(wanted) => {
                let wanted = wanted.min(EMPTIES_MAX - self.model.empties);
                self.model.empties += self.house.gateway.lend_empties(wanted);
            }
            Step::Poll => _ = self.poll(),
            Step::Work => {
                let noticed = self.house.worker_queue.pop();
                if let Some(stage) = noticed.and_then(|id| self.house.fwps.iter().position(|fwp| fwp.id == id)) {
                    self.publish(stage);
                }
            }
            Step::Publish(stage) => self.publish(stage % stages),
            Step::Send { stage, verdicts } => self.send(stage % stages, &verdicts),
            Step::Collect => self.collect(),
            Step::Replace(stage) => self.replace(&[stage % stages]),
            Step::ReplaceAll(first) => {
                let places: Vec<usize> = (0..stages).map(|place| (first + place) % stages).collect();
                self.replace(&places);
            }
        }
        self.audit();
    }

    fn inject(&mut self, stage: usize, len: usize, port: u16) {
        if self.house.gateway.lent() == BUFFERS {
            return;
        }
        let (target, bytes) = (self.model.stages[stage].id, frame(self.injected as u32, len));
        self.injected += 1;
        self.house.gateway.inject(&bytes, port, target);
        self.model.arriving.push_back((target, Packet { port, bytes, course: Course::of_port(port) }));
    }

    fn poll(&mut self) -> usize {
        let done = self.house.mma.poll();
        self.model.poll();
        assert_eq!(self.house.mma.has_work(), self.model.has_work());
        done
    }

    fn publish(&mut self, stage: usize) {
        let real = &mut self.house.fwps[stage];
        self.model.provide(stage);
        let model = &mut self.model.stages[stage];
        for descriptor in real.publish_all() {
            let packet = model.delivered.pop_front().expect("nothing is published that was not delivered");
            assert_eq!((descriptor.port, &real.guest.frame(&descriptor)), (packet.port, &packet.bytes));
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
            let port = match verdict.to {
                TxTarget::Output(output) => output % model.drawn.outputs.len() as u16,
                TxTarget::Reply => PORT_REPLY,
                TxTarget::Drop => PORT_DROP,
            };
            real.guest.pass(descriptor, port);
            model.sent.push_back((port, packet));
            sent += 1;
        }
        assert_eq!(real.collect(), Ok(sent));
        if sent > 0 {
            self.model.told.push_back(self.model.stages[stage].id);
        }
    }

    fn collect(&mut self) {
        let left = self.house.gateway.collect();
        self.left += left.len() as u64;
        assert_eq!(left, std::mem::take(&mut self.model.leaving));
        self.model.spent = 0;
    }

    fn replace(&mut self, places: &[usize]) {
        let ended = self.model.replace(places);
        for stage in &ended {
            self.house.command(MmaCommand::Detach(stage.id));
        }
        let mut reals = Vec::new();
        for &place in places {
            attach(&mut self.house, &mut self.model.stages[place]);
            reals.push(self.house.fwps.swap_remove(place));
        }
        self.poll();
        for (real, ended) in reals.iter().zip(&ended) {
            assert_eq!(self.house.detached().expect("it has let go").id(), ended.id);
            assert_eq!(Counts::of(real.moved()), ended.counts, "of FWP {}, which has ended", ended.id);
            self.dropped_before += dropped_by(real);
            self.ended += ended.inside() as u64;
        }
        assert!(self.house.detached().is_none());
    }

    /// Checks that every counter is right, and that every frame that came in is accounted for.
    fn audit(&self) {
        for (real, model) in self.house.fwps.iter().zip(&self.model.stages) {
            assert_eq!(Counts::of(real.moved()), model.counts, "of FWP {}", real.id);
        }
        assert_eq!(self.house.mma.counters().dropped_instance_ended.value(), self.model.gone);
        assert_eq!(self.house.copied_bytes(), self.model.copied_bytes);
        assert_eq!(self.house.gateway.lent(), self.model.lent());
        let in_stages: usize = self.model.stages.iter().map(Stage::inside).sum();
        let inside = self.model.arriving.len() + in_stages + self.model.leaving.len();
        assert_eq!(self.injected, self.left + self.dropped() + self.ended + inside as u64);
    }

    /// Returns whether no frame is on its way.
    fn is_empty(&self) -> bool {
        let mut stages = self.model.stages.iter();
        self.model.arriving.is_empty() && stages.all(|stage| stage.inside() + stage.sent.len() == 0)
    }

    /// Runs until nothing moves, following notifications only, and checks for leaks.
    fn wind_up(mut self) {
        let drop_first = Verdict { held: 0, to: TxTarget::Drop, prepended: 0 };
        for _ in 0..10 * STAGES_MAX * BUFFERS {
            self.poll();
            // What may send no more until the gateway has taken some is work, too.
            while self.house.mma.has_work() && self.poll() > 0 {}
            while !self.house.worker_queue.is_empty() {
                self.follow(Step::Work);
            }
            let unnoticed: usize = self.model.stages.iter().map(|stage| stage.delivered.len()).sum();
            assert_eq!(unnoticed, 0, "frames were delivered without a notification of the worker");
            if self.is_empty() {
                break;
            }
            for stage in 0..self.model.stages.len() {
                let verdicts = vec![drop_first; self.model.stages[stage].held.len()];
                self.follow(Step::Send { stage, verdicts });
            }
            self.follow(Step::Collect);
            self.follow(Step::Lend(1));
        }
        assert!(self.is_empty(), "frames that wait are never resumed");
        self.follow(Step::Collect);
        assert_eq!(self.injected, self.left + self.ended + self.dropped());
        assert_eq!(self.house.gateway.lent(), self.model.at_mma());
        for (place, stage) in self.model.stages.iter().enumerate() {
            self.house.circulate_all(place, shape(stage));
            match stage.drawn.holds {
                None | Some(0) => self.house.assert_all_slots_free(place, shape(stage)),
                Some(_) => self.house.assert_all_slots_free_before_any_is_held(place, shape(stage)),
            }
        }
    }

    fn dropped(&self) -> u64 {
        let gone = self.house.mma.counters().dropped_instance_ended.value();
        self.dropped_before + gone + self.house.fwps.iter().map(dropped_by).sum::<u64>()
    }
}

/// Returns the number of frames dropped for an FWP or by it.
fn dropped_by(fwp: &Fwp) -> u64 {
    Counts::of(fwp.moved()).dropped() + fwp.mailbox.counters().guest.dropped.value()
}

/// Makes the real FWP of a stage.
fn attach(house: &mut House, stage: &mut Stage) {
    let guest = Guest::new(shape(stage));
    let guest = if stage.drawn.is_new { guest.with_first_slots_only() } else { guest };
    stage.begin_with(guest.slots_at_first());
    let (_, endpoint) = house.make_of(stage.id, guest, stage.wiring());
    house.command(MmaCommand::Attach(endpoint));
}

fn shape(stage: &Stage) -> Shape {
    let slot_count = stage.drawn.slots;
    Shape { slot_count, slot_size: SLOT_BYTES, ring_entries: slot_count.next_power_of_two() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_is_delivered_counted_or_still_inside(
        stages in stages(prop_oneof![Just(None), (0..HELD_MAX + 4).prop_map(Some)]),
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(stages);
        for step in steps {
            pair.follow(step);
        }
        pair.wind_up();
    }

    #[test]
    fn every_frame_of_a_chain_with_a_way_back_is_delivered_counted_or_still_inside(
        stages in stages_both_ways(),
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(stages);
        for step in steps {
            pair.follow(step);
        }
        pair.wind_up();
    }

    #[test]
    fn stages_that_hold_drop_nothing_when_slots_or_buffers_run_out(
        stages in stages(Just(Some(HELD_MAX))),
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(stages);
        for step in steps {
            let before_stages = pair.model.arriving.len() + pair.model.waiting();
            if matches!(step, Step::Inject { .. }) && before_stages == HELD_MAX {
                continue;
            }
            pair.follow(step);
            for real in &pair.house.fwps {
                let Counts { no_slot, egress, .. } = Counts::of(real.moved());
                prop_assert_eq!((no_slot, egress), (0, 0), "of FWP {}", real.id);
            }
        }
        pair.wind_up();
    }
}
