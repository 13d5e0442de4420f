//! Pages of pools are touched first by the workers of their FWPs, never by the MMA; frames wait for that, and none is lost.

mod support;

use std::fs;
use std::ops::Range;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY};
use pinion_mma::direction::{PortSet, Sides};
use pinion_mma::id::PortIndex;
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Edge, Wiring};
use support::{Guest, House, Plan, Shape, frame, id};

/// Two slots a page.
const SHAPE: Shape = Shape { slot_count: 256, slot_size: 2048, ring_entries: 256 };
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
    house.fwps[0].mailbox.publish();
    // Its turn lasts from here on.
    house.inject(1..60);
    house.settle();
    let before = house.fwps[0].moved().received.value();
    for _ in 0..10 {
        house.fwps[0].mailbox.provide_meanwhile();
        house.fwps[0].tell_news();
        house.settle();
    }
    assert_eq!((before, house.fwps[0].moved().received.value(), house.no_slot(0)), (2, 60, 0));
    assert_eq!(house.fwps[0].mailbox.news(), 0, "no further slots are provided than are needed");
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
    house.fwps[0].mailbox.publish();
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
