use super::*;
use crate::headers::{FiveTuple, Vlan};
use pinion_mma::tuning::upcoming::Next;
use pinion_mma::ways::direction::PortSet;
use std::net::Ipv4Addr;

fn key(chain: u32, client: u32) -> InstanceKey {
    let client = ClientLabel::Address { address: Ipv4Addr::from(client).into(), vlan: Vlan::UNTAGGED };
    InstanceKey { chain: ChainIndex(chain), client }
}

fn entry(number: u64) -> FwpId {
    FwpId { index: number as u32, generation: 1 }
}

const TENANT: TenantIndex = TenantIndex(3);
const LAN: PortIndex = PortIndex(0);
const WAN: PortIndex = PortIndex(1);

fn with_ready(slots: usize, ready: &[(u32, u64)]) -> Instances {
    let mut instances = Instances::new(slots, 0);
    for &(chain, number) in ready {
        instances.add(ChainIndex(chain), InstanceId(number), entry(number).into()).unwrap();
    }
    instances
}

fn bind(instances: &mut Instances, key: &InstanceKey, now_ns: u64) -> Option<(SlotRef, InstanceId)> {
    instances.bind(key, instances.hash(key), TENANT, now_ns)
}

fn bound_to(instances: &Instances, key: &InstanceKey) -> Option<SlotRef> {
    instances.bound_to(key, instances.hash(key))
}

#[test]
fn the_youngest_ready_instance_is_bound_first_and_found_by_its_key() {
    let mut instances = with_ready(4, &[(0, 10), (1, 11), (0, 12)]);
    let (slot, instance) = bind(&mut instances, &key(0, 1), 5).unwrap();
    assert_eq!(instance, InstanceId(12));
    assert_eq!(bound_to(&instances, &key(0, 1)), Some(slot));
    assert_eq!(instances.entry(slot, LAN, 6), Some(entry(12)));
    assert_eq!(bound_to(&instances, &key(0, 2)), None);
    assert_eq!(bound_to(&instances, &key(1, 1)), None, "another chain's");
    assert_eq!((instances.ready_count(), instances.bound_count()), (2, 1));
}

#[test]
fn the_next_instance_is_published_after_every_change() {
    let mut instances = Instances::new(4, 0);
    let upcoming = Arc::<UpcomingInstances>::default();
    instances.publish_upcoming_to(Arc::clone(&upcoming));
    let announced = || match upcoming.look(0) {
        Some(Next::First(id)) => Some(id),
        _ => None,
    };
    assert_eq!(announced(), None);
    for number in [10, 11, 12] {
        instances.add(ChainIndex(0), InstanceId(number), entry(number).into()).unwrap();
        assert_eq!(announced(), Some(entry(number)));
    }
    instances.unbind(InstanceId(12)).unwrap();
    assert_eq!(announced(), Some(entry(11)));
    bind(&mut instances, &key(0, 1), 0).unwrap();
    assert_eq!(announced(), Some(entry(10)));
    bind(&mut instances, &key(0, 2), 0).unwrap();
    assert_eq!(announced(), None);
}

#[test]
fn instances_after_the_next_are_published_for_the_chain_that_changed_last() {
    let mut instances = with_ready(8, &[(0, 10), (0, 11), (0, 12), (0, 13), (1, 20), (1, 21)]);
    let upcoming = Arc::<UpcomingInstances>::default();
    instances.publish_upcoming_to(Arc::clone(&upcoming));
    let announced = |instances: &mut Instances| -> Vec<FwpId> {
        // Twice, because it starts over.
        (0..2 * LATER).for_each(|_| instances.announce_later());
        let later = (0..4 * LATER).filter_map(|round| match upcoming.look(round) {
            Some(Next::Later(id)) => Some(id),
            _ => None,
        });
        later.collect()
    };
    assert_eq!(announced(&mut instances), [entry(20)]);
    bind(&mut instances, &key(0, 1), 0).unwrap();
    assert_eq!(announced(&mut instances), [entry(11), entry(10)]);
    // In the middle of a round.
    instances.announce_later();
    instances.unbind(InstanceId(11)).unwrap();
    assert_eq!(announced(&mut instances), [entry(10)]);
    bind(&mut instances, &key(0, 2), 0).unwrap();
    assert_eq!(announced(&mut instances), []);
}

#[test]
fn a_reference_to_an_ended_instances_slot_does_not_reach_the_next_instance() {
    let mut instances = with_ready(1, &[(0, 10)]);
    let (old, _) = bind(&mut instances, &key(0, 1), 0).unwrap();
    instances.unbind(InstanceId(10)).unwrap();
    assert_eq!(instances.entry(old, LAN, 0), None);
    instances.add(ChainIndex(0), InstanceId(11), entry(11).into()).unwrap();
    let (new, _) = bind(&mut instances, &key(0, 1), 0).unwrap();
    assert_eq!((old.index, instances.entry(old, LAN, 0)), (new.index, None));
    assert_eq!(instances.entry(new, LAN, 0), Some(entry(11)));
}

#[test]
fn an_instance_that_ended_while_it_was_ready_is_never_bound() {
    let mut instances = with_ready(4, &[(0, 10), (0, 11), (0, 12)]);
    let released =
        Released { chain: ChainIndex(0), instance: InstanceId(11), flow: FlowState::Open, for_its_prefix: false };
    assert_eq!(instances.unbind(InstanceId(11)), Some(released));
    assert_eq!(instances.unbind(InstanceId(11)), None);
    let bound: Vec<_> = (0..3).filter_map(|client| Some(bind(&mut instances, &key(0, client), 0)?.1)).collect();
    assert_eq!(bound, [InstanceId(12), InstanceId(10)]);
}

#[test]
fn no_more_instances_are_taken_in_than_there_are_slots_and_none_twice() {
    let mut instances = with_ready(2, &[(0, 10), (0, 11)]);
    assert_eq!(instances.add(ChainIndex(0), InstanceId(12), entry(12).into()), Err(Refused::NoRoom));
    assert_eq!(instances.add(ChainIndex(0), InstanceId(11), entry(11).into()), Err(Refused::Known));
    instances.unbind(InstanceId(10)).unwrap();
    assert_eq!(instances.add(ChainIndex(CHAINS_MAX), InstanceId(12), entry(12).into()), Err(Refused::NoRoom));
    assert_eq!(instances.add(ChainIndex(0), InstanceId(12), entry(12).into()), Ok(()));
}

#[test]
fn a_sweep_releases_instances_unseen_for_their_chains_timeout_or_without_a_chain() {
    let mut instances = with_ready(8, &[(0, 10), (0, 11), (1, 12), (2, 13), (0, 14)]);
    let (_, _) = bind(&mut instances, &key(0, 1), 0).unwrap();
    let (seen, _) = bind(&mut instances, &key(0, 2), 0).unwrap();
    bind(&mut instances, &key(1, 1), 0).unwrap();
    bind(&mut instances, &key(2, 1), 0).unwrap();
    instances.entry(seen, LAN, 60).unwrap();
    let timeout_ns = |chain: ChainIndex| [Some(100), Some(200), None][chain.0 as usize];
    let mut idle = Vec::new();
    for _ in 0..16 {
        idle.extend(instances.sweep(1, 100, timeout_ns, |_, _| true).1.map(|released| released.instance));
    }
    assert_eq!(idle, [InstanceId(14), InstanceId(13)]);
    assert_eq!((instances.ready_count(), instances.bound_count()), (1, 2));
}

#[test]
fn an_idle_instance_is_asked_before_its_release_unless_its_flow_or_its_chain_is_over() {
    const TIMEOUT_NS: u64 = 100;
    let sweep = |instances: &mut Instances, timeout_ns| {
        let wants_to_live = |first: FwpId, unseen_ns| {
            assert_eq!((first, unseen_ns), (entry(10), TIMEOUT_NS));
            false
        };
        instances.sweep(1, TIMEOUT_NS, |_| timeout_ns, wants_to_live).1
    };
    let mut instances = with_ready(1, &[(0, 10)]);
    let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
    assert_eq!(sweep(&mut instances, Some(TIMEOUT_NS + 1)), None, "it is not idle");
    assert_eq!(sweep(&mut instances, Some(TIMEOUT_NS)), None);
    instances.note(slot, TcpEvent::Closes, LAN, 0);
    assert!(sweep(&mut instances, Some(TIMEOUT_NS)).is_some(), "its flow is over");
    let mut instances = with_ready(1, &[(0, 10)]);
    bind(&mut instances, &flow_key(1), 0).unwrap();
    assert!(sweep(&mut instances, None).is_some(), "its chain is gone");
}

fn flow_key(client_port: u16) -> InstanceKey {
    let flow = FiveTuple {
        source: Ipv4Addr::LOCALHOST.into(),
        destination: Ipv4Addr::LOCALHOST.into(),
        protocol: 6,
        source_port: client_port,
        destination_port: 80,
    };
    InstanceKey { chain: ChainIndex(0), client: ClientLabel::Flow { flow, vlan: Vlan::UNTAGGED } }
}

#[test]
fn tcp_events_of_a_client_decide_whether_its_instance_lingers() {
    use State::{Bound, Closed, Reset};
    use TcpEvent::{Closes, Opens, Resets};
    // State before, event, state after; and whether the connection is over before.
    let table = [
        (Bound, Opens, Bound, false),
        (Bound, Closes, Closed, false),
        (Bound, Resets, Reset(Direction::Forth), false),
        (Closed, Opens, Closed, true),
        (Closed, Closes, Closed, true),
        (Closed, Resets, Reset(Direction::Forth), true),
        (Reset(Direction::Forth), Opens, Reset(Direction::Forth), true),
        (Reset(Direction::Forth), Closes, Reset(Direction::Forth), true),
        (Reset(Direction::Forth), Resets, Reset(Direction::Forth), true),
    ];
    for (from, milestone, to, is_over) in table {
        let mut instances = with_ready(1, &[(0, 10)]);
        let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
        instances.hot[0].state = from;
        assert_eq!(instances.is_over(slot), is_over, "{from:?}");
        instances.note(slot, milestone, LAN, 0);
        assert_eq!(instances.hot[0].state, to, "{from:?}, {milestone:?}");
        assert_eq!(instances.entry(slot, LAN, 0), Some(entry(10)), "it serves its flow while it lingers");
        assert_eq!((bound_to(&instances, &flow_key(1)), instances.chain(slot)), (Some(slot), Some(ChainIndex(0))));
    }
}

#[test]
fn an_instance_lingers_until_its_flow_was_quiet_for_a_moment_and_no_longer_than_its_chain_allows() {
    const LONG_NS: u64 = 300_000_000_000;
    let cases = [
        (None, LONG_NS, LONG_NS, FlowState::Open),
        (Some(TcpEvent::Closes), LONG_NS, CLOSED_QUIET_NS, FlowState::Over),
        (Some(TcpEvent::Resets), LONG_NS, RESET_QUIET_NS, FlowState::Over),
        (Some(TcpEvent::Closes), 70, 70, FlowState::Over),
        (Some(TcpEvent::Resets), 70, 70, FlowState::Over),
    ];
    for (milestone, timeout_ns, quiet_ns, flow) in cases {
        let mut instances = with_ready(1, &[(0, 10)]);
        let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
        milestone.into_iter().for_each(|milestone| instances.note(slot, milestone, LAN, 0));
        let mut seen_ns = 0;
        for _ in 0..3 {
            let sweep =
                |instances: &mut Instances, now_ns| instances.sweep(1, now_ns, |_| Some(timeout_ns), |_, _| true).1;
            assert_eq!(sweep(&mut instances, seen_ns + quiet_ns - 1), None);
            seen_ns += quiet_ns - 1;
            assert_eq!(instances.entry(slot, LAN, seen_ns), Some(entry(10)), "a frame keeps it");
        }
        let released = instances.sweep(1, seen_ns + quiet_ns, |_| Some(timeout_ns), |_, _| true).1;
        assert_eq!(
            released,
            Some(Released { chain: ChainIndex(0), instance: InstanceId(10), flow, for_its_prefix: false })
        );
        assert_eq!((instances.entry(slot, LAN, seen_ns), bound_to(&instances, &flow_key(1))), (None, None));
    }
}

#[test]
fn if_both_sides_come_here_a_flow_is_over_when_both_have_closed_it_or_one_has_reset_it() {
    use State::{Bound, Closed, HalfClosed, Reset};
    use TcpEvent::{Closes, Resets};
    let wan = PortIndex(1);
    let way_back = Some(WayBack { last: entry(20), from: PortSet::of([wan]).unwrap() });
    let cases: [(&[(TcpEvent, PortIndex)], State); 6] = [
        (&[], Bound),
        (&[(Closes, LAN), (Closes, LAN)], HalfClosed(Direction::Forth)),
        (&[(Closes, wan)], HalfClosed(Direction::Back)),
        (&[(Closes, LAN), (Closes, wan)], Closed),
        (&[(Closes, wan), (Closes, LAN), (Closes, wan)], Closed),
        (&[(Closes, LAN), (Resets, wan)], Reset(Direction::Back)),
    ];
    for (said, state) in cases {
        let mut instances = Instances::new(1, 0);
        instances.add(ChainIndex(0), InstanceId(10), EntryFwp { first: entry(10), way_back }).unwrap();
        let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
        said.iter().for_each(|&(milestone, port)| instances.note(slot, milestone, port, 0));
        assert_eq!(instances.hot[0].state, state, "{said:?}");
        assert_eq!(instances.is_over(slot), matches!(state, Closed | Reset(_)), "{said:?}");
        assert_eq!([LAN, wan].map(|port| instances.entry(slot, port, 0)), [Some(entry(10)), Some(entry(20))]);
    }
}

#[test]
fn a_connection_goes_on_if_the_side_that_was_said_to_have_reset_it_does() {
    let wan = PortIndex(1);
    let way_back = Some(WayBack { last: entry(20), from: PortSet::of([wan]).unwrap() });
    // The port by which it was reset, the one by which a frame comes later, and how much later.
    let cases = [
        (LAN, LAN, GOES_ON_NS, true),
        (wan, wan, GOES_ON_NS, true),
        (LAN, LAN, GOES_ON_NS - 1, false),
        (LAN, wan, GOES_ON_NS, false),
        (wan, LAN, GOES_ON_NS, false),
    ];
    for (reset_by, sent_by, after_ns, goes_on) in cases {
        let mut instances = Instances::new(1, 0);
        instances.add(ChainIndex(0), InstanceId(10), EntryFwp { first: entry(10), way_back }).unwrap();
        let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
        instances.note(slot, TcpEvent::Resets, reset_by, 5);
        assert!(instances.was_reset(slot));
        instances.go_on(slot, sent_by, 5 + after_ns);
        assert_eq!(instances.was_reset(slot), !goes_on, "{reset_by:?}, {sent_by:?}, {after_ns} ns");
    }
}

#[test]
fn a_connection_that_was_closing_when_it_was_reset_goes_on_closing() {
    let mut instances = with_ready(1, &[(0, 10)]);
    let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
    instances.note(slot, TcpEvent::Closes, LAN, 0);
    for now_ns in [5, 6] {
        instances.note(slot, TcpEvent::Resets, LAN, now_ns);
    }
    instances.go_on(slot, LAN, 6 + GOES_ON_NS);
    assert_eq!(instances.hot[0].state, State::Closed);
}

#[test]
fn the_end_of_one_flow_ends_no_per_client_or_shared_instance() {
    let shared = InstanceKey { chain: ChainIndex(0), client: ClientLabel::All };
    for key in [shared, key(0, 1)] {
        let mut instances = with_ready(1, &[(0, 10)]);
        let (slot, _) = bind(&mut instances, &key, 0).unwrap();
        for milestone in [TcpEvent::Closes, TcpEvent::Resets, TcpEvent::Opens] {
            assert!(!instances.is_over(slot));
            instances.note(slot, milestone, LAN, 0);
            assert_eq!(instances.hot[0].state, State::Bound);
        }
    }
}

#[test]
fn the_next_instance_in_a_slot_that_lingered_does_not_linger() {
    let mut instances = with_ready(1, &[(0, 10)]);
    let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
    instances.note(slot, TcpEvent::Resets, LAN, 0);
    assert_eq!(instances.release(slot.index).flow, FlowState::Over);
    instances.add(ChainIndex(0), InstanceId(11), entry(11).into()).unwrap();
    let (slot, _) = bind(&mut instances, &flow_key(1), 0).unwrap();
    assert!(!instances.is_over(slot));
    assert_eq!(instances.unbind(InstanceId(11)).unwrap().flow, FlowState::Open);
}

/// Returns the instances that end because their clients have proven nothing.
fn end_all_unproven(instances: &mut Instances, tenant: TenantIndex, now_ns: u64) -> Vec<u64> {
    std::iter::from_fn(|| instances.end_unproven(tenant, now_ns)).map(|released| released.instance.0).collect()
}

#[test]
fn instances_end_whose_clients_sent_nothing_more_in_the_time_for_a_proof_the_oldest_first() {
    let mut instances = with_ready(8, &[(0, 10), (0, 11), (1, 12), (0, 13)]);
    let keys = [key(0, 1), key(1, 2), key(0, 3), key(0, 4)];
    let slots: Vec<SlotRef> = (0..).zip(&keys).map(|(at, key)| bind(&mut instances, key, at).unwrap().0).collect();
    assert_eq!(end_all_unproven(&mut instances, TENANT, PROOF_NS - 1), []);
    // Also within the same time as its first frame, before anything could have been answered.
    assert_eq!(instances.entry(slots[1], LAN, 1), Some(entry(12)));
    assert_eq!(instances.entry(slots[2], LAN, PROOF_NS / 2), Some(entry(11)));
    assert_eq!(end_all_unproven(&mut instances, TenantIndex(4), 10 * PROOF_NS), [], "another tenant's");
    assert_eq!(end_all_unproven(&mut instances, TENANT, PROOF_NS + 1), [13, 12]);
    assert_eq!(end_all_unproven(&mut instances, TENANT, 10 * PROOF_NS), [10]);
    assert_eq!(instances.bound_count(), 1);
    assert!(bound_to(&instances, &keys[2]).is_some(), "a client that came back");
}

#[test]
fn what_all_clients_share_is_never_unproven() {
    let mut instances = with_ready(2, &[(0, 10)]);
    let key = InstanceKey { chain: ChainIndex(0), client: ClientLabel::All };
    bind(&mut instances, &key, 0).unwrap();
    assert_eq!(end_all_unproven(&mut instances, TENANT, 10 * PROOF_NS), []);
}

#[test]
fn however_many_clients_have_proven_themselves_a_bounded_number_is_looked_at_and_none_twice() {
    let ready: Vec<_> = (0..300).map(|number| (0, number)).collect();
    let mut instances = with_ready(300, &ready);
    for client in 0..299 {
        let (slot, _) = bind(&mut instances, &key(0, client), 0).unwrap();
        instances.entry(slot, LAN, 1);
    }
    let (_, unproven) = bind(&mut instances, &key(0, 299), 0).unwrap();
    let looks =
        (1..).find(|_| instances.end_unproven(TENANT, PROOF_NS).map(|released| released.instance) == Some(unproven));
    assert_eq!(looks, Some(299 / UNPROVEN_LOOKS + 1));
}

/// So many ready instances of a chain whose way back begins at [`WAN`].
fn with_ways_back(count: u64) -> Instances {
    let mut instances = Instances::new(count as usize, 0);
    for number in 0..count {
        let way_back = WayBack { last: entry(2 * number + 1), from: PortSet::of([WAN]).unwrap() };
        let entrance = EntryFwp { first: entry(2 * number), way_back: Some(way_back) };
        instances.add(ChainIndex(0), InstanceId(number), entrance).unwrap();
    }
    instances
}

#[test]
fn the_answer_of_the_other_side_proves_no_client() {
    let mut instances = with_ways_back(3);
    let mut begin = |client, port| {
        let (slot, instance) = bind(&mut instances, &key(0, client), 5).unwrap();
        instances.entry(slot, port, 5);
        (slot, instance.0)
    };
    let [made_up, comes_back, behind] = [(1, LAN), (2, LAN), (3, WAN)].map(|(client, port)| begin(client, port));
    for (slot, port) in [(made_up.0, WAN), (comes_back.0, WAN), (comes_back.0, LAN), (behind.0, LAN)] {
        instances.entry(slot, port, 6);
    }
    assert_eq!(end_all_unproven(&mut instances, TENANT, 2 * PROOF_NS), [made_up.1, behind.1]);
}

#[test]
fn clients_that_have_proven_themselves_leave_the_list_when_the_table_is_swept() {
    let ready: Vec<_> = (0..300).map(|number| (0, number)).collect();
    let mut instances = with_ready(300, &ready);
    for client in 0..299 {
        let (slot, _) = bind(&mut instances, &key(0, client), 0).unwrap();
        instances.entry(slot, LAN, 1);
    }
    let (_, unproven) = bind(&mut instances, &key(0, 299), 0).unwrap();
    instances.sweep(300, 1, |_| Some(u64::MAX), |_, _| true);
    let ended = instances.end_unproven(TENANT, PROOF_NS).map(|released| released.instance);
    assert_eq!(ended, Some(unproven));
}

#[test]
fn the_side_of_a_client_that_waited_is_that_of_its_first_frame() {
    let mut instances = with_ways_back(3);
    let mut ids = Vec::new();
    for (client, next, has_sent_more) in [(1, WAN, false), (2, LAN, false), (3, LAN, true)] {
        let (slot, instance) = bind(&mut instances, &key(0, client), 5).unwrap();
        instances.note_client(slot, WAN, has_sent_more);
        instances.entry(slot, next, 6);
        ids.push(instance.0);
    }
    assert_eq!(end_all_unproven(&mut instances, TENANT, 2 * PROOF_NS), [ids[1]]);
}
