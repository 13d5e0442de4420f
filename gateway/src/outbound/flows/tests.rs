//! Tests of [`super`].

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SECOND_NS: u64 = 1_000_000_000;

fn new_flow(tenant: u16, instance: u32) -> NewFlow {
    NewFlow {
        sender: Sender { tenant: TenantIndex(tenant), chain: tenant, instance },
        slot: SlotRef { index: instance, generation: 1 },
        tag: 7,
        protocol: 17,
        source: Ipv4Addr::new(10, 0, 0, 1).into(),
        to: Ipv4Addr::new(192, 0, 2, 53).into(),
        port: 53,
        ingress: Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED },
        rules_version: 0,
    }
}

fn open(flows: &mut OutboundFlows, tenant: u16, instance: u32) -> Result<u64, FlowRefusal> {
    flows.open(&new_flow(tenant, instance), 0, |_| false).map(|(number, _)| number)
}

fn look_at_all(flows: &mut OutboundFlows, now_ns: u64, is_bound: bool) -> Vec<Told> {
    (0..flows.places()).filter_map(|_| flows.look_at_next(now_ns, 0, |_| is_bound, |_, _| true)).collect()
}

#[test]
fn no_tenant_gets_what_is_guaranteed_to_another() {
    let mut flows = OutboundFlows::new(64, 64);
    flows.divide(&[(TenantIndex(1), 1), (TenantIndex(2), 1)]);
    let opened = (0..64).map(|at| open(&mut flows, 1, at / 8)).take_while(Result::is_ok).count();
    assert_eq!(opened, 48, "its guaranteed quarter, and the half that is not guaranteed");
    assert_eq!(open(&mut flows, 1, 20), Err(FlowRefusal::Quota));
    assert_eq!((0..17).map(|at| open(&mut flows, 2, 30 + at / 8)).filter(Result::is_ok).count(), 16);
}

/// Opens a flow as the gateway does: if that takes the end of another tenant's flow, its instance is told at once. Returns
/// whether it was opened, and whose flow has ended for it.
fn open_by_right(flows: &mut OutboundFlows, tenant: u16, instance: u32, now_ns: u64) -> (bool, Option<u32>) {
    let new = new_flow(tenant, instance);
    let told = flows.end_for(new.sender.tenant, new.slot, now_ns);
    told.iter().for_each(|told| {
        assert_eq!(told.end, FlowEnd::Quota);
        flows.was_told(told);
    });
    (flows.open(&new, now_ns, |_| false).is_ok(), told.map(|told| told.slot.index))
}

#[test]
fn a_tenant_that_comes_later_gets_its_guaranteed_flows_of_those_above_theirs_that_were_used_least_of_late() {
    let mut flows = OutboundFlows::new(64, 64);
    flows.divide(&[(TenantIndex(1), 1)]);
    (0..64_u32).for_each(|at| assert!(open_by_right(&mut flows, 1, at / 8, at.into()).0));
    flows.divide(&[(TenantIndex(1), 1), (TenantIndex(2), 1)]);
    // A flow that rests gives way first.
    let resting = flows.flows[63];
    assert!(flows.close(number(63, resting.generation), resting.sender, 64).is_some());
    assert_eq!(open_by_right(&mut flows, 2, 20, 65), (true, None));
    // The first flow was used again.
    let first = flows.flows[0];
    assert_eq!(flows.claim(&first.answers, first.sender, None, || None, 66), Claim::Own);
    let rest: Vec<_> = (0..16).map(|at| open_by_right(&mut flows, 2, 30 + at / 8, 67)).collect();
    assert!(rest[..15].iter().all(|(is_open, ended)| *is_open && ended.is_some()), "{rest:?}");
    assert_eq!(rest[15], (false, None), "no more than its guaranteed share");
    assert!(flows.flows[0].state == State::Open);
    assert_eq!(open_by_right(&mut flows, 1, 20, 68), (false, None), "nor does one that is above its share");
}

#[test]
fn no_flow_ends_for_an_instance_that_has_its_part_already() {
    let mut flows = OutboundFlows::new(16, 64);
    flows.divide(&[(TenantIndex(1), 1)]);
    (0..16_u32).for_each(|at| assert!(open_by_right(&mut flows, 1, at / 2, 0).0));
    flows.divide(&[(TenantIndex(1), 1), (TenantIndex(2), 3)]);
    let opened: Vec<_> = (0..3).map(|_| open_by_right(&mut flows, 2, 20, 0)).collect();
    assert!(matches!(opened[..], [(true, Some(_)), (true, Some(_)), (false, None)]), "{opened:?}");
}

#[test]
fn until_the_instance_of_a_flow_that_ends_for_another_tenant_is_told_there_is_no_room() {
    let mut flows = OutboundFlows::new(2, 64);
    flows.divide(&[(TenantIndex(1), 1)]);
    assert!(open(&mut flows, 1, 0).is_ok() && open(&mut flows, 1, 1).is_ok());
    flows.divide(&[(TenantIndex(2), 1)]);
    let new = new_flow(2, 2);
    let told = flows.end_for(new.sender.tenant, new.slot, 0).unwrap();
    assert_eq!(open(&mut flows, 2, 2), Err(FlowRefusal::Quota));
    flows.was_told(&told);
    assert!(open(&mut flows, 2, 2).is_ok());
}

#[test]
fn flows_of_an_instance_that_has_ended_count_until_they_are_looked_at() {
    let mut flows = OutboundFlows::new(16, 64);
    flows.divide(&[(TenantIndex(1), 1)]);
    (0..8).for_each(|instance| assert!((0..2).all(|_| open(&mut flows, 1, instance).is_ok())));
    assert_eq!(open(&mut flows, 1, 8), Err(FlowRefusal::Quota));
    assert!(look_at_all(&mut flows, SECOND_NS, false).is_empty(), "there is no instance to tell");
    assert!(open(&mut flows, 1, 8).is_ok(), "one that rests gives way");
    look_at_all(&mut flows, SECOND_NS + REST_NS, true);
    let left = flows.flows.iter().filter(|flow| flow.state != State::Free).count();
    assert_eq!(left, 1);
}

#[test]
fn a_later_instance_in_the_same_slot_has_a_part_of_its_own() {
    let mut flows = OutboundFlows::new(16, 4);
    flows.divide(&[(TenantIndex(1), 1)]);
    let later = NewFlow { slot: SlotRef { index: 3, generation: 2 }, ..new_flow(1, 3) };
    assert!((0..2).all(|_| open(&mut flows, 1, 3).is_ok()));
    assert!((0..2).all(|_| flows.open(&later, 0, |_| false).is_ok()));
    let is_later = |slot: SlotRef| slot.generation == 2;
    (0..16).for_each(|_| assert!(flows.look_at_next(0, 0, is_later, |_, _| true).is_none()));
    assert_eq!(flows.open(&later, 0, |_| false), Err(FlowRefusal::Quota), "what the earlier one had is not taken off");
}

#[test]
fn a_number_ends_only_the_flow_that_has_it() {
    let mut flows = OutboundFlows::new(1, 1);
    flows.divide(&[(TenantIndex(1), 1)]);
    let sender = new_flow(1, 0).sender;
    let first = open(&mut flows, 1, 0).unwrap();
    assert!(flows.close(first, sender, 0).is_some());
    let second = open(&mut flows, 1, 0).unwrap();
    for number in [first, 0, u64::MAX, second ^ 1 << 32, second | 1] {
        assert_eq!(flows.close(number, sender, 0), None, "{number:#x}");
    }
    assert_eq!(flows.close(second, Sender { instance: 9, ..sender }, 0), None);
    assert!(flows.close(second, sender, 0).is_some());
}

proptest! {
    #[test]
    fn whatever_is_asked_for_no_two_flows_agree_and_nothing_is_lost(
        steps in prop::collection::vec((0_u8..6, 0_u16..3, 0_u32..4), 0..300),
    ) {
        let mut flows = OutboundFlows::new(24, 4);
        flows.divide(&[(TenantIndex(0), 1), (TenantIndex(1), 1)]);
        flows.set_ports(50_000..=50_010);
        let (mut open_ones, mut now_ns) = (BTreeMap::new(), 0);
        for (step, tenant, instance) in steps {
            match step {
                0..=2 => if let Ok((number, answers)) = flows.open(&new_flow(tenant, instance), now_ns, |_| false) {
                    prop_assert_eq!(flows.bound_to(&answers), Some(Ok(new_flow(tenant, instance).slot)));
                    prop_assert!(open_ones.insert(number, (answers, new_flow(tenant, instance).sender)).is_none());
                },
                3 => if let Some((number, (answers, sender))) = open_ones.pop_first() {
                    prop_assert_eq!(flows.close(number, sender, now_ns), Some(answers));
                    prop_assert!(matches!(flows.bound_to(&answers), None | Some(Err(FlowEnded))));
                },
                4 => now_ns += 10 * SECOND_NS,
                _ => for told in look_at_all(&mut flows, now_ns, true) {
                    prop_assert_eq!(open_ones.remove(&told.number).map(|(answers, _)| answers), Some(told.answers));
                    flows.was_told(&told);
                },
            }
            let taken = flows.flows.iter().filter(|flow| flow.state != State::Free);
            prop_assert_eq!(taken.count(), flows.used);
            let ports: BTreeSet<_> = open_ones.values().map(|(answers, _)| answers.destination_port()).collect();
            prop_assert_eq!(ports.len(), open_ones.len());
            let counted: u32 = (0..3).map(|tenant| flows.shares.of(TenantIndex(tenant)).used).sum();
            prop_assert_eq!(counted as usize, flows.used);
            let of_instances: u32 = flows.of_instances.iter().map(|(_, count)| count).sum();
            prop_assert_eq!(of_instances as usize, open_ones.len());
        }
    }
}
