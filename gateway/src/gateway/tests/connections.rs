//! How the ends of TCP connections end the instances bound to them, and which instance a connection that begins does
//! not reach.

use super::*;
use crate::flows::instances::{CLOSED_QUIET_NS, RESET_QUIET_NS};

/// A segment of a client's connection. `mark` distinguishes it from the others.
fn segment_of(number: u8, flags: u8, mark: u8) -> Vec<u8> {
    to_station(&ipv4(client(number), SERVER, TCP, &segment(5000, 80, flags, &[mark])))
}

fn flow_ended(instance: u64) -> Event {
    Event::FlowEnded { chain: ChainIndex(0), instance: InstanceId(instance) }
}

/// Makes a gateway with some ready instances, from 10 on, and rules of this policy.
fn rig_of(policy: Policy) -> Rig {
    let mut rig = Rig::with_policy(policy);
    (10..16).rev().for_each(|instance| rig.ready(0, instance));
    rig
}

impl Rig {
    /// Polls each millisecond for so long. Returns the events meanwhile.
    fn run(&mut self, time_ns: u64) -> Vec<Event> {
        for _ in 0..time_ns / 1_000_000 {
            self.now_ns += 1_000_000;
            self.poll();
        }
        self.events()
    }

    fn taken(&mut self) -> usize {
        self.events().iter().filter(|event| matches!(event, Event::Taken { .. })).count()
    }
}

#[test]
fn an_instance_ends_soon_after_its_clients_connection_and_not_before_what_ends_it_was_delivered() {
    for (flags, quiet_ns) in [(FIN | ACK, CLOSED_QUIET_NS), (RST, RESET_QUIET_NS), (RST | ACK, RESET_QUIET_NS)] {
        let mut rig = rig_of(Policy::PerFlow);
        rig.send_and_poll(&[segment_of(1, SYN, 0), segment_of(1, ACK, 1), segment_of(2, SYN, 0)]);
        rig.run(2 * CLOSED_QUIET_NS);
        rig.send_and_poll(&[segment_of(1, flags, 2)]);
        assert_eq!(rig.targets(), [10, 10, 11, 10], "flags {flags:#x}");
        assert_eq!(rig.run(quiet_ns - 1_000_000), [], "flags {flags:#x}");
        assert_eq!(rig.run(SWEEP_PERIOD_NS + 2_000_000), [flow_ended(10)], "flags {flags:#x}");
        // The other client's connection goes on.
        rig.send_and_poll(&[segment_of(2, ACK, 1)]);
        assert_eq!(rig.targets(), [11]);
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn while_frames_come_an_instance_lingers_on_every_lookup_path() {
    let mut rig = rig_of(Policy::PerFlow);
    rig.send_and_poll(&[segment_of(1, SYN, 0), segment_of(1, ACK, 0), segment_of(1, FIN | ACK, 0)]);
    assert_eq!(rig.taken(), 1);
    for _ in 0..3 {
        // In trains: all but the first frame of each are found in the memo.
        for _ in 0..5 {
            rig.send_and_poll(&[segment_of(1, ACK, 1), segment_of(1, ACK, 2)]);
            assert_eq!(rig.run(1_000_000), []);
        }
        assert_eq!(rig.run(CLOSED_QUIET_NS - 2_000_000), []);
        rig.send_and_poll(&[segment_of(1, FIN | ACK, 0)]);
        assert_eq!(rig.run(CLOSED_QUIET_NS - 2_000_000), []);
    }
    assert!(rig.targets().iter().all(|target| *target == 10));
    assert_eq!(rig.run(SWEEP_PERIOD_NS + 4_000_000), [flow_ended(10)]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_client_that_reuses_the_ports_does_not_reach_the_earlier_clients_instance() {
    for flags in [FIN | ACK, RST] {
        let mut rig = rig_of(Policy::PerFlow);
        rig.send_and_poll(&[segment_of(1, SYN, 0), segment_of(1, ACK, 1)]);
        rig.send_and_poll(&[segment_of(1, ACK, 2)]);
        assert_eq!((rig.targets(), rig.taken()), (vec![10, 10, 10], 1));
        // All in one burst: frames are read before the frames ahead of them are assigned.
        let again = [segment_of(1, ACK, 3), segment_of(1, flags, 4), segment_of(1, SYN, 5), segment_of(1, ACK, 6)];
        rig.send_and_poll(&again);
        assert_eq!(rig.targets(), [10, 10, 11, 11]);
        let [ended, Event::Taken { instance: InstanceId(11), .. }] = &rig.events()[..] else {
            panic!("not taken anew")
        };
        assert_eq!(*ended, flow_ended(10));
        // The new instance does not linger, and the opening segment may be repeated.
        rig.send_and_poll(&[segment_of(1, SYN, 7), segment_of(1, ACK, 8)]);
        assert_eq!(rig.targets(), [11, 11]);
        assert_eq!(rig.run(2 * CLOSED_QUIET_NS), []);
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn a_client_that_reuses_the_ports_when_no_instance_is_ready_waits_for_one() {
    let mut rig = Rig::with_policy(Policy::PerFlow);
    rig.ready(0, 10);
    rig.send_and_poll(&[segment_of(1, SYN, 0), segment_of(1, FIN | ACK, 1)]);
    assert_eq!((rig.targets(), rig.taken()), (vec![10, 10], 1));
    rig.send_and_poll(&[segment_of(1, SYN, 2), segment_of(1, ACK, 3)]);
    assert_eq!((rig.targets(), rig.events()), (vec![], vec![flow_ended(10), WANTED]));
    rig.ready(0, 11);
    assert_eq!((rig.targets(), rig.taken()), (vec![11, 11], 1));
    assert_eq!(rig.run(2 * CLOSED_QUIET_NS), []);
    rig.assert_no_buffer_leaked();
}

#[test]
fn tcp_events_of_frames_that_waited_count_once_there_is_an_instance() {
    let ends = [segment_of(1, SYN, 0), segment_of(1, RST, 1)];
    let begins_again = [&ends[..], &[segment_of(1, SYN, 2)]].concat();
    for (frames, events) in [(&ends[..], vec![flow_ended(10)]), (&begins_again[..], vec![])] {
        let mut rig = Rig::with_policy(Policy::PerFlow);
        rig.send_and_poll(frames);
        rig.ready(0, 10);
        assert_eq!((rig.targets().len(), rig.events().len()), (frames.len(), 2));
        assert_eq!(rig.run(RESET_QUIET_NS + SWEEP_PERIOD_NS + 1_000_000), events);
        rig.assert_no_buffer_leaked();
    }
}

#[test]
fn a_connection_whose_beginning_was_not_seen_ends_its_instance_too() {
    let mut rig = rig_of(Policy::PerFlow);
    rig.send_and_poll(&[segment_of(1, ACK, 0), segment_of(1, FIN | ACK, 1)]);
    assert_eq!((rig.targets(), rig.taken()), (vec![10, 10], 1));
    assert_eq!(rig.run(CLOSED_QUIET_NS + SWEEP_PERIOD_NS + 1_000_000), [flow_ended(10)]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn one_connections_end_ends_no_per_client_or_shared_instance_and_neither_does_a_fragments() {
    for policy in [Policy::PerClient, Policy::Shared] {
        let mut rig = rig_of(policy);
        let flags = [SYN, ACK, FIN | ACK, SYN, RST, SYN, ACK];
        rig.send_and_poll(&flags.map(|flags| segment_of(1, flags, 0)));
        assert_eq!((rig.targets(), rig.taken()), (vec![10; 7], 1), "{policy:?}");
        assert_eq!(rig.run(2 * CLOSED_QUIET_NS), [], "{policy:?}");
        rig.assert_no_buffer_leaked();
    }
    let mut rig = rig_of(Policy::PerFlow);
    let first = ipv4_fragment(client(1), SERVER, TCP, [0x20, 0], &segment(5000, 80, RST, &[0; 12]));
    rig.send_and_poll(&[segment_of(1, SYN, 0), to_station(&first)]);
    assert_eq!((rig.targets(), rig.taken()), (vec![10, 10], 1));
    assert_eq!(rig.run(2 * CLOSED_QUIET_NS), []);
    rig.assert_no_buffer_leaked();
}

#[test]
fn while_the_launcher_reads_no_events_a_client_that_reuses_the_ports_reaches_no_instance() {
    let mut rig = Rig::with(1, Sizes { events: 2, ..AMPLE });
    rig.set_rules(vec![rule(Policy::PerFlow, 0)]);
    (10..16).rev().for_each(|instance| rig.ready(0, instance));
    rig.send_and_poll(&[segment_of(1, SYN, 0), segment_of(1, FIN | ACK, 1), segment_of(2, SYN, 0)]);
    // One event more than there is room for: from the next poll on, nothing new begins.
    rig.send_and_poll(&[segment_of(3, SYN, 0)]);
    assert_eq!(rig.targets(), [10, 10, 11, 12]);
    rig.send_and_poll(&[segment_of(1, SYN, 2), segment_of(2, SYN, 1), segment_of(1, ACK, 3)]);
    assert_eq!((rig.targets(), rig.drops(DropReason::LauncherBusy)), (vec![11, 10], 1));
    assert_eq!(rig.taken(), 2);
    rig.poll();
    rig.send_and_poll(&[segment_of(1, SYN, 4)]);
    assert_eq!(rig.targets(), [13]);
    rig.assert_no_buffer_leaked();
}

/// A segment of a client's connection without data.
fn bare_segment(number: u8, flags: u8) -> Vec<u8> {
    to_station(&ipv4(client(number), SERVER, TCP, &segment(5000, 80, flags, &[])))
}

#[test]
fn a_segment_that_begins_nothing_starts_no_instance() {
    for policy in [Policy::PerClient, Policy::PerFlow] {
        let strays = [segment_of(1, RST, 1), bare_segment(1, FIN | ACK), bare_segment(1, ACK)];
        for mut rig in [rig_of(policy), Rig::with_policy(policy)] {
            rig.events();
            rig.send_and_poll(&strays);
            assert_eq!((rig.events(), rig.targets()), (vec![], vec![]), "{policy:?}");
            assert_eq!(rig.drops(DropReason::NoConnection), 3, "{policy:?}");
            assert_eq!(rig.chain_drops(0), [(DropReason::NoConnection, 3)], "{policy:?}");
            rig.assert_no_buffer_leaked();
        }
        let mut rig = rig_of(policy);
        rig.send_and_poll(&[segment_of(1, ACK, 1), bare_segment(1, ACK), segment_of(1, RST, 1)]);
        assert_eq!(rig.targets(), [10, 10, 10], "what has data may go on: {policy:?}");
    }
    let mut rig = rig_of(Policy::Shared);
    rig.send_and_poll(&[bare_segment(1, ACK)]);
    assert_eq!(rig.targets(), [10], "the instance of all clients is started by any frame");
}

#[test]
fn a_client_that_only_acknowledges_gets_another_instance_when_its_own_has_ended() {
    for policy in [Policy::PerClient, Policy::PerFlow] {
        let mut rig = rig_of(policy);
        rig.send_and_poll(&[segment_of(1, SYN, 0), bare_segment(1, ACK)]);
        rig.command(Command::Unbind { instance: InstanceId(10) });
        rig.poll();
        rig.send_and_poll(&[segment_of(1, RST, 0), bare_segment(1, ACK), bare_segment(2, ACK)]);
        assert_eq!(rig.targets(), [10, 10, 11], "{policy:?}");
        assert_eq!(rig.drops(DropReason::NoConnection), 2, "the reset, and the stranger's: {policy:?}");
    }
}

#[test]
fn what_ends_a_connection_waits_behind_what_began_it() {
    let mut rig = Rig::with_policy(Policy::PerFlow);
    rig.send_and_poll(&[segment_of(1, SYN, 0), bare_segment(1, ACK), segment_of(1, RST, 2)]);
    assert_eq!(rig.gateway.observer().frames_pending(), 3);
    rig.ready(0, 10);
    rig.poll();
    assert_eq!(rig.targets(), [10, 10, 10]);
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_connection_that_a_stranger_resets_goes_on_with_its_clients_next_segment() {
    let mut rig = rig_of(Policy::PerFlow);
    rig.send_and_poll(&[segment_of(1, SYN, 0)]);
    let instance = rig.targets();
    rig.send_and_poll(&[segment_of(1, RST, 0)]);
    rig.now_ns += RESET_QUIET_NS / 2;
    rig.send_and_poll(&[segment_of(1, ACK, 1)]);
    rig.events();
    assert_eq!(rig.run(10 * RESET_QUIET_NS), []);
    rig.send_and_poll(&[segment_of(1, ACK, 2), segment_of(1, SYN, 3)]);
    assert_eq!(rig.targets(), [instance[0]; 4], "the segment that opens is the connection's own, sent again");
}
