//! Pages of pools are touched first by the workers of their FWPs, never by the MMA; frames wait for that, and none is lost.

mod support;

use std::fs;
use std::ops::Range;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::id::{FwpId, PortIndex, TenantIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::ways::direction::{PortSet, Sides};
use pinion_mma::wiring::{Backpressure, Edge, Wiring};
use support::{Guest, House, Index, Plan, Shape, frame, id};

/// Those of the SDK: some slots are in two pages.
const SHAPE: Shape = Shape { slot_count: 256, slot_size: 2112, ring_entries: 256 };
const LEN: usize = 1500;

fn plan() -> Plan {
    Plan { buffers: 512, ..Plan::default() }
}

/// Makes a house with a chain of new FWPs.
fn new_chain(stages: u32) -> House {
    let mut house = House::new(&plan());
    for stage in 0..stages {
        let next = if stage + 1 == stages { Edge::EgressWhereItCame } else { Edge::Fwp(id(stage + 1)) };
        attach_new(&mut house, stage, Wiring::to(next));
    }
    house
}

fn attach_new(house: &mut House, index: u32, wiring: Wiring) {
    let (_, endpoint) = house.make_of(id(index), Guest::new(SHAPE).new_in_memory(), wiring);
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
}

/// Returns the page faults of this thread so far.
fn faults() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The fields behind the name in brackets begin with the third one; this is the tenth.
    stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

impl House {
    fn inject(&mut self, numbers: Range<u32>) {
        for number in numbers {
            self.gateway.inject(&frame(number, LEN), 0, id(0));
        }
    }

    /// Polls the MMA until it has nothing to do; returns the page faults that this took.
    fn settle_counted(&mut self) -> u64 {
        let before = faults();
        self.settle();
        faults() - before
    }

    /// Gives an FWP a turn in which it sends all that it gets by `port`; returns the frames.
    fn turn(&mut self, fwp: usize, port: u16) -> Vec<Vec<u8>> {
        let received = self.fwps[fwp].publish_all();
        let frames = received.iter().map(|descriptor| self.fwps[fwp].guest.frame(descriptor)).collect();
        for &descriptor in &received {
            self.fwps[fwp].guest.pass(descriptor, port);
        }
        self.fwps[fwp].collect().unwrap();
        frames
    }

    fn no_slot(&self, fwp: usize) -> u64 {
        self.fwps[fwp].moved().dropped_no_slot.value()
    }
}

fn frames(numbers: Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|number| frame(number, LEN)).collect()
}

/// How many page faults reading their number takes.
fn faults_of_looking() -> u64 {
    (0..20).map(|_| faults()).fold((0, u64::MAX), |(before, least), now| (now, least.min(now - before))).1
}

#[test]
fn a_burst_for_a_new_fwp_arrives_whole_and_in_order_and_the_mma_touches_no_page_first() {
    let mut house = new_chain(1);
    house.inject(0..60);
    let mut page_faults = house.settle_counted();
    let mut received = Vec::new();
    for _ in 0..20 {
        received.extend(house.turn(0, PORT_DROP));
        page_faults += house.settle_counted();
    }
    assert_eq!(received, frames(0..60));
    assert_eq!(house.no_slot(0), 0);
    assert!(page_faults <= 21 * faults_of_looking() + 3, "{page_faults} page faults on the thread of the MMA");
}

#[test]
fn without_that_each_page_is_the_mmas() {
    let mut house = House::new(&plan());
    let guest = Guest::new(SHAPE).new_in_memory().with_pages_untouched();
    let (_, endpoint) = house.make_of(id(0), guest, Wiring::to(Edge::EgressWhereItCame));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    house.inject(0..60);
    assert!(house.settle_counted() >= 10, "the page faults that the other test counts");
}

#[test]
fn as_many_frames_wait_as_there_will_be_slots_and_further_ones_are_dropped_and_counted() {
    let mut house = House::new(&Plan { buffers: 1024, ..plan() });
    attach_new(&mut house, 0, Wiring::to(Edge::EgressWhereItCame));
    house.inject(0..300);
    house.settle();
    assert_eq!(house.no_slot(0), 300 - 256);
    let received: Vec<_> = (0..20).flat_map(|_| (house.turn(0, PORT_DROP), house.settle()).0).collect();
    assert_eq!(received, frames(0..256));
}

#[test]
fn a_pool_has_all_of_its_slots_in_the_end() {
    let mut house = new_chain(1);
    for _ in 0..40 {
        house.inject(0..60);
        house.settle();
        house.gateway.collect();
        // It keeps what it has got.
        house.fwps[0].publish_all();
        house.fwps[0].collect().unwrap();
        house.settle();
    }
    house.fwps[0].publish_all();
    assert_eq!(house.fwps[0].moved().received.value(), SHAPE.slot_count.into());
}

#[test]
fn output_for_a_new_stage_waits_in_the_slots_of_the_one_before() {
    let mut house = new_chain(2);
    let mut received = Vec::new();
    let mut page_faults = 0;
    house.inject(0..60);
    for _ in 0..20 {
        page_faults += house.settle_counted();
        house.turn(0, PORT_NEXT);
        page_faults += house.settle_counted();
        received.extend(house.turn(1, PORT_DROP));
    }
    assert_eq!(received, frames(0..60));
    assert_eq!([house.no_slot(0), house.no_slot(1)], [0, 0]);
    assert!(page_faults <= 40 * faults_of_looking() + 3, "{page_faults} page faults on the thread of the MMA");
}

#[test]
fn stages_that_wait_for_each_others_pages_go_on() {
    let mut house = House::new(&plan());
    let sides = Sides { back: PortSet::of([PortIndex(1)]).unwrap(), ..Sides::default() };
    let (forth, back) =
        ([Edge::Fwp(id(1)), Edge::Egress(PortIndex(1))], [Edge::Egress(PortIndex(0)), Edge::Fwp(id(0))]);
    for stage in 0..2 {
        let wiring = Wiring::both_ways(vec![forth[stage]], vec![back[stage]], sides);
        attach_new(&mut house, stage as u32, wiring);
    }
    for number in 0..40 {
        house.gateway.inject(&frame(number, LEN), 0, id(0));
        house.gateway.inject(&frame(number, LEN), 1, id(1));
    }
    let mut left = 0;
    for _ in 0..40 {
        house.settle();
        house.turn(0, PORT_NEXT);
        house.turn(1, PORT_NEXT);
        house.gateway.top_up(400);
        house.settle();
        left += house.gateway.collect().len();
    }
    assert_eq!((left, house.no_slot(0), house.no_slot(1)), (80, 0, 0));
}

#[test]
fn a_guest_that_computes_for_long_gets_its_slots_when_it_is_preempted() {
    let mut house = new_chain(1);
    house.inject(0..1);
    house.settle();
    house.fwps[0].mailbox.publish(|_| 0);
    // Its turn lasts from here on.
    house.inject(1..60);
    house.settle();
    let before = house.fwps[0].moved().received.value();
    for _ in 0..10 {
        house.fwps[0].provide();
        house.settle();
    }
    let at_first = house.fwps[0].guest.slots_at_first().into();
    assert_eq!((before, house.fwps[0].moved().received.value(), house.no_slot(0)), (at_first, 60, 0));
    assert_eq!(house.fwps[0].mailbox.counters().guest.slots_provided(), 60, "and no more than are needed");
    house.fwps[0].guest.receive_all();
    assert_eq!(house.turn(0, PORT_DROP), frames(1..60));
}

#[test]
fn an_fwp_that_ends_gives_back_what_waits_for_its_pages() {
    let mut house = new_chain(1);
    house.inject(0..60);
    house.settle();
    house.command(MmaCommand::Detach(id(0)));
    house.settle();
    let mut endpoint = house.detached().expect("it has no output that waits");
    house.fwps[0].mailbox.publish(|_| 0);
    endpoint.settle();
    assert_eq!(house.fwps[0].moved().dropped_instance_ended.value(), 60);
    house.gateway.collect();
    assert!(house.gateway.lent() <= house.gateway.kept_max);
}

#[test]
fn the_guests_own_slots_have_their_pages_when_they_are_sent() {
    let mut house = House::new(&plan());
    let shape = Shape { slot_count: 32, slot_size: 16_384, ring_entries: 32 };
    let guest = Guest::owning(shape, 16).new_in_memory();
    let (_, endpoint) = house.make_of(id(0), guest, Wiring::to(Edge::EgressWhereItCame));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    house.gateway.lend_empties(64);
    house.receive(&frame(0, LEN), 0);
    house.fwps[0].publish_all();
    for slot in 16..32 {
        let sent = Descriptor { slot, offset: 8192, len: LEN as u16, port: PORT_REPLY, ..Descriptor::default() };
        house.fwps[0].guest.send(sent);
    }
    assert_eq!(house.fwps[0].collect(), Ok(16));
    let page_faults = house.settle_counted();
    assert_eq!(house.gateway.collect().len(), 16);
    assert!(page_faults <= faults_of_looking() + 3, "{page_faults} page faults on the thread of the MMA");
}

/// Attaches an FWP of another tenant, which has sent so many large frames to a stage that drops them. The FWPs get indices
/// 8 and 9.
fn attach_busy_neighbour(house: &mut House, frames: u16) -> usize {
    let mine = std::mem::replace(&mut house.share, CopyShare { tenant: TenantIndex(9), weight: 1 });
    let large = Shape { slot_count: 1024, slot_size: 16 * 1024, ring_entries: 1024 };
    let (sender, endpoint) = house.make_of(id(8), Guest::owning(large, 1023), Wiring::to(Edge::Fwp(id(9))));
    house.command(MmaCommand::Attach(endpoint));
    house.attach(id(9), Shape { slot_count: 1, ..large }, Edge::EgressWhereItCame);
    house.mma.poll();
    house.gateway.inject(b"begin", 0, id(8));
    house.mma.poll();
    house.fwps[sender].pass_all(PORT_DROP);
    for slot in 1..=frames {
        let sent = Descriptor { slot, offset: 0, len: 16_000, port: PORT_NEXT, ..Descriptor::default() };
        house.fwps[sender].guest.send(sent);
    }
    while house.fwps[sender].collect().unwrap() > 0 {}
    house.share = mine;
    sender
}

/// Makes a house in which FWP 0 waits for slots and for buffers, while a neighbour's output waits for its turns. FWP 0
/// has received 100 frames and sent them, and is to get 50 more. Returns the neighbour's index.
fn waiting_for_slots_and_buffers() -> (House, usize) {
    let mut house = House::new(&Plan { buffers: 256, ..plan() });
    let hold = Backpressure::Hold { frames_max: 8 };
    attach_new(&mut house, 0, Wiring::new(vec![Edge::Egress(PortIndex(3))], hold));
    house.inject(0..100);
    let mut received = Vec::new();
    while received.len() < 100 {
        house.move_all();
        received.extend(house.fwps[0].publish_all());
        house.gateway.take_spent();
    }
    received.into_iter().for_each(|descriptor| house.fwps[0].guest.pass(descriptor, PORT_NEXT));
    house.fwps[0].collect().unwrap();
    house.move_all();
    let neighbour = attach_busy_neighbour(&mut house, 1000);
    house.inject(100..150);
    house.mma.poll();
    assert!(house.mma.has_work(), "the neighbour has more than a poll moves");
    assert!(house.fwps[0].mailbox.has_input(), "it is to provide slots");
    assert!(house.fwps[0].moved().sent.value() < 100, "there are too few buffers");
    (house, neighbour)
}

impl House {
    /// Polls as long as something is moved. Output may still wait for buffers then.
    fn move_all(&mut self) {
        assert!((0..1_000).any(|_| self.mma.poll() == 0), "the MMA goes on and on");
    }

    /// Gives FWP `fwp` turns and buffers until nothing is left to do, and checks what was sent by it and by the neighbour.
    fn wind_up(&mut self, fwp: usize, sent: u64, neighbour: usize) {
        for _ in 0..100 {
            self.turn(fwp, PORT_NEXT);
            self.move_all();
            self.gateway.discard();
            self.gateway.top_up(60);
        }
        assert_eq!(self.fwps[fwp].moved().sent.value(), sent);
        assert_eq!(self.fwps[neighbour].moved().sent.value() + self.no_slot(neighbour + 1), 1000);
        assert!(!self.mma.has_work(), "it visits FWPs that have nothing");
    }
}

#[test]
fn an_fwp_that_waits_for_slots_and_for_buffers_has_its_turns_once() {
    let (mut house, neighbour) = waiting_for_slots_and_buffers();
    for _ in 0..6 {
        house.fwps[0].provide();
        house.gateway.discard();
        // More than it sends in a turn.
        house.gateway.lend_empties(20);
        house.mma.poll();
        assert!(house.mma.has_work());
    }
    house.wind_up(0, 150, neighbour);
}

#[test]
fn an_fwp_that_waits_for_slots_and_for_buffers_can_be_detached_and_its_index_used_again() {
    let (mut house, neighbour) = waiting_for_slots_and_buffers();
    house.fwps[0].provide();
    house.gateway.discard();
    house.gateway.lend_empties(1);
    house.command(MmaCommand::Detach(id(0)));
    while house.detached().is_none() {
        house.mma.poll();
        house.gateway.take_spent();
    }
    assert!(house.mma.has_work(), "the neighbour still sends");
    let next = FwpId { generation: 1, ..id(0) };
    let wiring = Wiring::new(vec![Edge::Egress(PortIndex(3))], Backpressure::Hold { frames_max: 8 });
    let (fwp, endpoint) = house.make_of(next, Guest::new(SHAPE).new_in_memory(), wiring);
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    for number in 0..6 {
        house.gateway.inject(&frame(number, LEN), 0, next);
    }
    house.wind_up(fwp, 6, neighbour);
}

#[test]
fn frames_that_waited_are_copied_within_the_polls_budget_when_slots_are_provided() {
    let mut house = House::new(&Plan { buffers: 1024, ..plan() });
    attach_new(&mut house, 0, Wiring::to(Edge::EgressWhereItCame));
    attach_busy_neighbour(&mut house, 0);
    house.inject(0..256);
    house.settle();
    for _ in 0..40 {
        house.fwps[0].provide();
    }
    let mut most = 0;
    while house.mma.has_work() {
        let before = house.copied_bytes();
        house.mma.poll();
        most = most.max(house.copied_bytes() - before);
    }
    assert_eq!(house.fwps[0].moved().received.value(), 256);
    assert!(most <= 256 * 1024 + LEN as u64, "{most} bytes in a poll");
}

#[test]
fn a_worker_touches_little_in_a_turn() {
    let mut house = House::new(&Plan { buffers: 1024, ..plan() });
    attach_new(&mut house, 0, Wiring::to(Edge::EgressWhereItCame));
    house.inject(0..256);
    house.settle();
    let provided = |house: &House| house.fwps[0].mailbox.counters().guest.slots_provided();
    let mut before = provided(&house).max(1);
    while provided(&house) < 256 {
        house.fwps[0].mailbox.provide();
        assert!(provided(&house) - before <= 9, "{} slots", provided(&house) - before);
        before = provided(&house);
    }
}

#[test]
fn frames_in_slots_that_the_guest_never_wrote_to_cost_the_mma_no_page() {
    let own = 255;
    let mut house = House::new(&plan());
    let guest = Guest::owning(SHAPE, own).new_in_memory();
    let (_, endpoint) = house.make_of(id(0), guest, Wiring::to(Edge::Egress(PortIndex(3))));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    house.inject(0..1);
    house.settle();
    house.fwps[0].publish_all();
    for slot in 1..=own as u16 {
        let sent = Descriptor { slot, offset: 64, len: LEN as u16, port: PORT_NEXT, ..Descriptor::default() };
        house.fwps[0].guest.send(sent);
    }
    let (mut turns, mut page_faults) = (Vec::new(), 0);
    while turns.iter().sum::<u32>() < own {
        turns.push(house.fwps[0].collect().unwrap());
        house.gateway.top_up(300);
        page_faults += house.settle_counted();
        house.gateway.discard();
    }
    assert_eq!(turns, [124, 124, 7], "256 KiB of slots that are new in a turn");
    assert!(!house.fwps[0].mailbox.has_left_some());
    assert!(page_faults <= 2 * faults_of_looking() + 3, "{page_faults} page faults on the thread of the MMA");
}

#[test]
fn a_guest_that_takes_back_what_was_left_in_its_ring_has_nothing_left_there() {
    let mut house = House::new(&plan());
    let (_, endpoint) = house.make_of(id(0), Guest::owning(SHAPE, 255), Wiring::to(Edge::Egress(PortIndex(3))));
    house.command(MmaCommand::Attach(endpoint));
    house.mma.poll();
    house.inject(0..1);
    house.settle();
    house.fwps[0].publish_all();
    for slot in 1..=255 {
        house.fwps[0].guest.send(Descriptor { slot, offset: 0, len: 60, port: PORT_NEXT, ..Descriptor::default() });
    }
    assert_eq!((house.fwps[0].collect(), house.fwps[0].mailbox.has_left_some()), (Ok(124), true));
    house.fwps[0].guest.set_tx(Index::Tail, 124);
    assert_eq!((house.fwps[0].collect(), house.fwps[0].mailbox.has_left_some()), (Ok(0), false));
}

#[test]
fn output_of_all_stages_before_a_new_one_waits_for_it() {
    const BEFORE: u32 = 15;
    let mut house = House::new(&plan());
    for index in 0..BEFORE {
        house.attach(id(index), Shape { slot_count: 4, ..SHAPE }, Edge::Fwp(id(BEFORE)));
    }
    attach_new(&mut house, BEFORE, Wiring::to(Edge::Egress(PortIndex(3))));
    for number in 0..4 * BEFORE {
        house.gateway.inject(&frame(number, LEN), 0, id(number % BEFORE));
        house.mma.poll();
        house.gateway.discard();
    }
    (0..BEFORE as usize).for_each(|fwp| _ = house.fwps[fwp].pass_all(PORT_NEXT));
    let last = BEFORE as usize;
    let received: usize = (0..40).map(|_| (house.settle(), house.turn(last, PORT_DROP).len()).1).sum();
    assert_eq!((received, house.no_slot(last)), (4 * BEFORE as usize, 0));
}

#[test]
fn a_stage_asks_for_no_more_slots_than_there_are_frames_for_it() {
    let mut house = House::new(&plan());
    let edges = vec![Edge::Fwp(id(1)), Edge::Egress(PortIndex(3))];
    house.attach_wired(id(0), SHAPE, Wiring::new(edges, Backpressure::Drop));
    attach_new(&mut house, 1, Wiring::to(Edge::EgressWhereItCame));
    house.inject(0..100);
    house.settle();
    let at_first = house.fwps[1].guest.slots_at_first();
    for (number, descriptor) in house.fwps[0].publish_all().into_iter().enumerate() {
        house.fwps[0].guest.pass(descriptor, if number < at_first as usize + 5 { PORT_NEXT } else { 1 });
    }
    house.fwps[0].collect().unwrap();
    for _ in 0..20 {
        house.settle();
        house.turn(1, PORT_DROP);
    }
    assert_eq!(house.fwps[1].mailbox.counters().guest.slots_provided(), at_first + 5);
}
