//! Chains with a way back: by which stage of which instance the frames of either side enter.

use super::*;
use crate::flows::entry_fwp::{EntryFwp, WayBack};

const INSIDE: usize = 0;
const OUTSIDE: usize = 1;
/// A server on the outside.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
/// The number of an instance's last FWP is the number of its first FWP plus this.
const LAST: u64 = 1000;

fn outside() -> PortSet {
    PortSet::of([PortIndex(OUTSIDE as u16)]).unwrap()
}

impl Rig {
    /// Makes a gateway with two ports, and one chain for all traffic with a way back from the second port.
    fn both_ways(policy: Policy) -> Self {
        let mut rig = Self::new(2);
        rig.set_rules_both_ways(vec![rule(policy, 0)], outside());
        rig
    }

    fn ready_both_ways(&mut self, instance: u64) {
        let way_back = Some(WayBack { last: entry(instance + LAST), from: outside() });
        self.command(Command::Ready {
            chain: ChainIndex(0),
            instance: InstanceId(instance),
            entrance: EntryFwp { first: entry(instance), way_back },
            limit: SourceLimit::NONE,
        });
    }

    /// Sends a frame to a port's station, by that port, and polls.
    fn send_by(&mut self, port: usize, mut frame: Vec<u8>) {
        frame[4] = port as u8;
        self.peers[port].send(&frame).unwrap();
        self.poll();
    }
}

fn between(from: Ipv4Addr, to: Ipv4Addr, ports: (u16, u16)) -> Vec<u8> {
    to_station(&ipv4(from, to, UDP, &udp(ports.0, ports.1, b"data")))
}

#[test]
fn frames_of_the_way_back_enter_the_same_instance_by_its_last_stage() {
    let mut rig = Rig::both_ways(Policy::Shared);
    rig.ready_both_ways(7);
    // As a new client, from the flow cache, and from the memo.
    for _ in 0..3 {
        rig.send_by(INSIDE, between(client(1), FAR, (9, 53)));
        rig.send_by(OUTSIDE, between(FAR, client(1), (53, 9)));
        rig.send_by(OUTSIDE, ping(2, 1));
        assert_eq!(rig.targets(), [7, 1007, 1007]);
    }
    rig.assert_no_buffer_leaked();
}

#[test]
fn the_client_of_a_backward_frame_is_its_receiver() {
    let mut rig = Rig::both_ways(Policy::PerClient);
    (1..=3).for_each(|instance| rig.ready_both_ways(instance));
    rig.send_by(INSIDE, between(client(1), FAR, (9, 53)));
    rig.send_by(OUTSIDE, between(FAR, client(1), (53, 9)));
    rig.send_by(OUTSIDE, between(FAR, client(1), (80, 10)));
    // A client that is first addressed from outside gets an instance, too.
    rig.send_by(OUTSIDE, between(FAR, client(2), (53, 9)));
    rig.send_by(INSIDE, between(client(2), FAR, (9, 53)));
    assert_eq!(rig.targets(), [3, 1003, 1003, 1002, 2]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_flow_and_its_answers_meet_the_same_instance() {
    let mut rig = Rig::both_ways(Policy::PerFlow);
    (1..=3).for_each(|instance| rig.ready_both_ways(instance));
    rig.send_by(INSIDE, between(client(1), FAR, (9, 53)));
    rig.send_by(OUTSIDE, between(FAR, client(1), (53, 9)));
    rig.send_by(OUTSIDE, between(FAR, client(1), (53, 10)));
    rig.send_by(INSIDE, between(client(1), FAR, (10, 53)));
    // The same ports the other way round belong to another flow.
    rig.send_by(INSIDE, between(client(1), FAR, (53, 9)));
    assert_eq!(rig.targets(), [3, 1003, 1002, 2, 1]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn frames_of_both_sides_that_waited_enter_by_the_stage_of_their_side() {
    let mut rig = Rig::both_ways(Policy::PerClient);
    rig.send_by(OUTSIDE, between(FAR, client(1), (53, 9)));
    rig.send_by(INSIDE, between(client(1), FAR, (9, 53)));
    assert_eq!(rig.targets(), []);
    rig.ready_both_ways(5);
    assert_eq!(rig.targets(), [1005, 5]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn an_instance_made_before_its_chain_had_a_way_back_is_entered_by_its_first_stage_only() {
    let mut rig = Rig::both_ways(Policy::Shared);
    rig.ready(0, 4);
    rig.send_by(OUTSIDE, ping(1, 1));
    assert_eq!(rig.targets(), [4]);
    rig.assert_no_buffer_leaked();
}
