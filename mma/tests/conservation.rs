//! No frame and no slot is ever lost, doubled, reordered or altered: a real house and a naive model of it, wired at random,
//! are put through the same random operations, and must agree on every frame and every counter.

mod support;

use std::collections::VecDeque;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY, RX_HEADROOM};
use pinion_mma::counters::MovedCounters;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::Edge;
use proptest::prelude::*;
use support::{Fwp, House, Left, Plan, Shape, frame};

const PLACES_MAX: usize = 5;
const BUFFERS: usize = 16;
/// Between the longest frame that a slot takes and the longest that a guest can send, so that both limits are met.
const BUFFER_BYTES: usize = 1_560;
const SLOT_BYTES: u32 = 1_600;
const FRAME_BYTES_MAX: usize = (SLOT_BYTES - RX_HEADROOM) as usize;
/// What a guest does with one of the frames that it holds.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    /// Which, modulo how many it holds.
    held: usize,
    port: u16,
    /// Bytes put before the frame, or, if negative, taken from its start.
    prepended: i32,
}

/// Where a place's output goes, whoever has the place. Places are meant modulo how many there are.
#[derive(Debug, Clone, Copy)]
enum Wire {
    /// To the first tenant of the place so many further on; in a circle, if that is the way of it.
    Further(usize),
    Egress(u16),
    EgressWhereItCame,
}

impl Wire {
    fn edge(self, place: usize, places: usize) -> Edge {
        match self {
            // An FWP that feeds itself would be refused.
            Self::Further(by) if places > 1 => {
                Edge::Fwp(FwpId { index: ((place + 1 + by % (places - 1)) % places) as u32, generation: 0 })
            }
            Self::Egress(port) => Edge::Egress(PortIndex(port)),
            Self::Further(_) | Self::EgressWhereItCame => Edge::EgressWhereItCame,
        }
    }
}

fn wire() -> impl Strategy<Value = Wire> {
    prop_oneof![
        6 => (0..PLACES_MAX).prop_map(Wire::Further),
        2 => (40..43_u16).prop_map(Wire::Egress),
        1 => Just(Wire::EgressWhereItCame),
    ]
}

/// One operation. Places are meant modulo how many there are.
#[derive(Debug, Clone)]
enum Step {
    Inject {
        place: usize,
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
        place: usize,
        verdicts: Vec<Verdict>,
    },
    Collect,
    /// The MMA is told to let go of the place's tenant, who does not know yet.
    Detach(usize),
    /// The MMA is told of a next tenant for the place, of whom those before it know nothing. The last one must have been
    /// detached.
    Attach(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any_place = || 0..PLACES_MAX;
    // Most traffic is for the first place; some flows start elsewhere.
    let first_or_any = prop_oneof![3 => Just(0), 1 => any_place()];
    let len = prop_oneof![4 => 1..200_usize, 1 => FRAME_BYTES_MAX - 40..=BUFFER_BYTES];
    let port = prop_oneof![4 => Just(PORT_NEXT), 1 => Just(PORT_REPLY), 1 => Just(PORT_DROP)];
    let prepended = prop_oneof![3 => Just(0), 1 => -20..=RX_HEADROOM as i32];
    let verdict =
        (any::<usize>(), port, prepended).prop_map(|(held, port, prepended)| Verdict { held, port, prepended });
    let verdicts = proptest::collection::vec(verdict, 1..6);
    prop_oneof![
        16 => (first_or_any, len, 0..4_u16).prop_map(|(place, len, port)| Step::Inject { place, len, port }),
        4 => (1..6_usize).prop_map(Step::Lend),
        12 => Just(Step::Poll),
        8 => Just(Step::Work),
        4 => any_place().prop_map(Step::Publish),
        12 => (any_place(), verdicts).prop_map(|(place, verdicts)| Step::Send { place, verdicts }),
        6 => Just(Step::Collect),
        1 => any_place().prop_map(Step::Detach),
        3 => any_place().prop_map(Step::Attach),
    ]
}

/// A frame, wherever it is inside.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packet {
    port: u16,
    bytes: Vec<u8>,
}

/// What should have been counted for one FWP.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
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

/// One tenant of a place, as plainly as can be. Each frame in it holds a slot.
struct Tenant {
    id: FwpId,
    next: Edge,
    /// Whether the MMA knows it.
    attached: bool,
    /// Whether the MMA was told to let go of it.
    leaving: bool,
    /// Whether the MMA was told of output and has not looked since; of who has ended, it never looks.
    raised: bool,
    slots: usize,
    delivered: VecDeque<Packet>,
    /// With the descriptor by which the real guest knows it.
    held: Vec<(Descriptor, Packet)>,
    sent: VecDeque<(u16, Packet)>,
    counts: Counts,
}

impl Tenant {
    /// One that the MMA has been told of.
    fn new(id: FwpId, slots: usize, next: Edge) -> Self {
        let (delivered, held, sent) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let (attached, leaving, raised, counts) = (false, false, false, Counts::default());
        Self { id, next, attached, leaving, raised, slots, delivered, held, sent, counts }
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

/// What the MMA was told and has not done yet, of the tenant of a place.
enum Told {
    Attach(usize),
    Detach(usize),
}

/// A whole house, as plainly as can be. The batch of a poll is larger than anything here.
struct Model {
    places: Vec<Tenant>,
    commands: VecDeque<Told>,
    arriving: VecDeque<(FwpId, Packet)>,
    /// Places with output, in the order in which the MMA was told.
    told: VecDeque<usize>,
    empties: usize,
    leaving: Vec<Left>,
    gone: u64,
    copied_bytes: u64,
}

impl Model {
    fn new(wires: &[Wire], slots: usize) -> Self {
        let tenant = |(place, wire): (usize, &Wire)| {
            let id = FwpId { index: place as u32, generation: 0 };
            Tenant { attached: true, ..Tenant::new(id, slots, wire.edge(place, wires.len())) }
        };
        Self {
            places: wires.iter().enumerate().map(tenant).collect(),
            commands: VecDeque::new(),
            arriving: VecDeque::new(),
            told: VecDeque::new(),
            empties: 0,
            leaving: Vec::new(),
            gone: 0,
            copied_bytes: 0,
        }
    }

    fn attached(&mut self, id: FwpId) -> Option<&mut Tenant> {
        self.places.iter_mut().find(|tenant| tenant.id == id && tenant.attached)
    }

    fn poll(&mut self) {
        while let Some(command) = self.commands.pop_front() {
            match command {
                Told::Attach(place) => self.places[place].attached = true,
                Told::Detach(place) => {
                    self.move_output(place);
                    self.places[place].attached = false;
                }
            }
        }
        while let Some((target, packet)) = self.arriving.pop_front() {
            let len = packet.bytes.len() as u64;
            match self.attached(target) {
                Some(tenant) => self.copied_bytes += if tenant.accept(packet) { len } else { 0 },
                None => self.gone += 1,
            }
        }
        while let Some(place) = self.told.pop_front() {
            self.move_output(place);
        }
    }

    fn move_output(&mut self, place: usize) {
        if !self.places[place].attached {
            return;
        }
        self.places[place].raised = false;
        while let Some((outlet, packet)) = self.places[place].sent.pop_front() {
            let len = packet.bytes.len() as u64;
            if self.forward(place, outlet, packet) {
                self.copied_bytes += len;
                self.places[place].counts.sent += 1;
                self.places[place].counts.sent_bytes += len;
            }
        }
    }

    fn forward(&mut self, place: usize, outlet: u16, packet: Packet) -> bool {
        let port = match (outlet, self.places[place].next) {
            (PORT_DROP, _) => return false,
            (PORT_REPLY, _) | (_, Edge::EgressWhereItCame) => packet.port,
            (_, Edge::Egress(port)) => port.0,
            (_, Edge::Fwp(next)) => {
                if let Some(next) = self.attached(next) {
                    return next.accept(packet);
                }
                self.places[place].counts.gone += 1;
                return false;
            }
        };
        let counts = &mut self.places[place].counts;
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
}

/// The real thing beside its model, and the account of all frames.
struct Pair {
    house: House,
    model: Model,
    shape: Shape,
    injected: u64,
    left: u64,
    /// Of tenants that have ended: what they dropped, and what ended with them.
    dropped_before: u64,
    ended: u64,
}

impl Pair {
    fn new(wires: &[Wire], slot_count: u32) -> Self {
        let shape = Shape { slot_count, slot_size: SLOT_BYTES, ring_entries: slot_count.next_power_of_two() };
        let plan = Plan { fwps_max: wires.len(), buffers: BUFFERS, buffer_bytes: BUFFER_BYTES };
        let (mut house, model) = (House::new(&plan), Model::new(wires, slot_count as usize));
        for tenant in &model.places {
            house.attach(tenant.id, shape, tenant.next);
        }
        house.mma.poll();
        Self { house, model, shape, injected: 0, left: 0, dropped_before: 0, ended: 0 }
    }

    fn follow(&mut self, step: Step) {
        let places = self.model.places.len();
        match step {
            Step::Inject { place, len, port } => self.inject(place % places, len, port),
            Step::Lend(wanted) => self.model.empties += self.house.gateway.lend_empties(wanted),
            Step::Poll => self.poll(),
            Step::Work => {
                let noticed = self.house.worker_queue.pop();
                if let Some(place) = noticed.and_then(|id| self.house.fwps.iter().position(|fwp| fwp.id == id)) {
                    self.publish(place);
                }
            }
            Step::Publish(place) => self.publish(place % places),
            Step::Send { place, verdicts } => self.send(place % places, &verdicts),
            Step::Collect => self.collect(),
            Step::Detach(place) => self.detach(place % places),
            Step::Attach(place) => self.attach(place % places),
        }
        self.audit();
    }

    fn inject(&mut self, place: usize, len: usize, port: u16) {
        if self.house.gateway.frames_lent() == BUFFERS {
            return;
        }
        let (target, bytes) = (self.model.places[place].id, frame(self.injected as u32, len));
        self.injected += 1;
        self.house.gateway.inject(&bytes, port, target);
        self.model.arriving.push_back((target, Packet { port, bytes }));
    }

    fn poll(&mut self) {
        self.house.mma.poll();
        self.model.poll();
        assert!(!self.house.mma.has_work());
        while let Some(endpoint) = self.house.detached() {
            let mut places = self.model.places.iter();
            assert!(places.any(|it| it.id == endpoint.id() && it.leaving && !it.attached), "{} is back", endpoint.id());
        }
    }

    fn publish(&mut self, place: usize) {
        let real = &mut self.house.fwps[place];
        let model = &mut self.model.places[place];
        for descriptor in real.publish_all() {
            let packet = model.delivered.pop_front().expect("nothing is published that was not delivered");
            assert_eq!(Packet { port: descriptor.port, bytes: real.guest.frame(&descriptor) }, packet);
            model.held.push((descriptor, packet));
        }
        assert!(model.delivered.is_empty(), "everything delivered is published");
    }

    fn send(&mut self, place: usize, verdicts: &[Verdict]) {
        let real = &mut self.house.fwps[place];
        let model = &mut self.model.places[place];
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
        if sent > 0 && !std::mem::replace(&mut model.raised, true) && !self.model.told.contains(&place) {
            // A next tenant takes over what is still there of the last one.
            self.model.told.push_back(place);
        }
    }

    fn collect(&mut self) {
        let left = self.house.gateway.collect();
        self.left += left.len() as u64;
        assert_eq!(left, std::mem::take(&mut self.model.leaving));
    }

    fn detach(&mut self, place: usize) {
        let tenant = &mut self.model.places[place];
        if tenant.attached && !tenant.leaving {
            tenant.leaving = true;
            self.house.command(MmaCommand::Detach(tenant.id));
            self.model.commands.push_back(Told::Detach(place));
        }
    }

    fn attach(&mut self, place: usize) {
        let old = &self.model.places[place];
        if old.attached || !old.leaving {
            return;
        }
        let id = FwpId { index: old.id.index, generation: old.id.generation + 1 };
        let new = Tenant::new(id, old.slots, old.next);
        self.house.attach(id, self.shape, new.next);
        let real = self.house.fwps.swap_remove(place);
        let ended = std::mem::replace(&mut self.model.places[place], new);
        self.model.commands.push_back(Told::Attach(place));
        assert_eq!((real.id, Counts::of(real.moved())), (ended.id, ended.counts));
        self.dropped_before += dropped_by(&real);
        self.ended += ended.inside() as u64;
    }

    /// Every counter is as it should be, and every frame that came in is accounted for.
    fn audit(&self) {
        for (real, model) in self.house.fwps.iter().zip(&self.model.places) {
            assert_eq!((real.id, Counts::of(real.moved())), (model.id, model.counts));
        }
        assert_eq!(self.house.mma.counters().dropped_gone.value(), self.model.gone);
        assert_eq!(self.house.copied_bytes(), self.model.copied_bytes);
        let in_places: usize = self.model.places.iter().map(Tenant::inside).sum();
        let inside = self.model.arriving.len() + in_places + self.model.leaving.len();
        assert_eq!(self.injected, self.left + self.dropped() + self.ended + inside as u64);
    }

    /// Lets everything come to rest, following notifications only, and looks for what has leaked.
    fn wind_up(mut self) {
        self.poll();
        (0..self.model.places.len()).for_each(|place| self.follow(Step::Attach(place)));
        self.poll();
        while !self.house.worker_queue.is_empty() {
            self.follow(Step::Work);
        }
        let unnoticed: usize = self.model.places.iter().map(|tenant| tenant.delivered.len()).sum();
        assert_eq!(unnoticed, 0, "frames were delivered and nobody told the worker");

        let drop_first = Verdict { held: 0, port: PORT_DROP, prepended: 0 };
        for place in 0..self.model.places.len() {
            let verdicts = vec![drop_first; self.model.places[place].held.len()];
            self.follow(Step::Send { place, verdicts });
        }
        self.poll();
        self.collect();
        self.audit();
        assert_eq!(self.injected, self.left + self.ended + self.dropped());
        assert_eq!((self.house.gateway.frames_lent(), self.house.gateway.empties_lent()), (0, self.model.empties));
        for place in 0..self.model.places.len() {
            self.house.assert_all_slots_free(place, self.shape);
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
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_is_delivered_counted_or_still_inside(
        wires in proptest::collection::vec(wire(), 1..=PLACES_MAX),
        slot_count in 1..9_u32,
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut pair = Pair::new(&wires, slot_count);
        for step in steps {
            pair.follow(step);
        }
        pair.wind_up();
    }
}
