//! When flows that functions open end, and what becomes of packets that come after.

use super::*;

#[test]
fn what_comes_after_the_end_of_the_instance_is_dropped_and_counted() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.targets(), [11]);
    rig.command(Command::Unbind { instance: InstanceId(11) });
    rig.send_and_poll(&[answer(opened.port), answer(opened.port)]);
    assert_eq!((rig.delivered(), rig.drops(DropReason::FlowClosed)), (vec![], 2));
    assert!(rig.events().iter().all(|event| !matches!(event, Event::Taken { .. } | Event::Wanted { .. })));
    rig.pass(SECOND_NS);
    rig.leave_from(first(), &question(opened.port));
    assert_eq!((rig.left(), rig.drops(DropReason::FlowClosed)), (vec![], 3));
    rig.assert_no_buffer_leaked();
}

#[test]
fn a_flow_ends_when_its_function_asks_for_that() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    let mut close = message(FlowKind::Close);
    close[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&opened.number.to_le_bytes());
    let closed = rig.ask(first(), &close);
    assert_eq!((closed.closed(), closed.number), (FlowEnd::ByGuest, opened.number));
    rig.send_and_poll(&[answer(opened.port)]);
    rig.leave_from(first(), &question(opened.port));
    assert_eq!((rig.delivered(), rig.left(), rig.drops(DropReason::FlowClosed)), (vec![], vec![], 2));
    assert_eq!(rig.ask(first(), &close).closed(), FlowEnd::ByGuest, "again");
    assert_eq!(rig.pass_with_clients(5), [], "and is not told again");
}

#[test]
fn a_flow_without_packets_of_its_function_ends_and_the_function_is_told() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    for _ in 0..3 {
        assert_eq!(rig.pass_with_clients(50), []);
        rig.send_and_poll(&[answer(opened.port)]);
        rig.leave_from(first(), &question(opened.port));
        assert_eq!(rig.targets(), [11]);
    }
    rig.left();
    // What others send does not prolong it.
    assert_eq!(rig.pass_with_clients(50), []);
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.targets(), [11]);
    let told = rig.pass_with_clients(15);
    let [(target, said)] = told[..] else { panic!("{told:?}") };
    assert_eq!((target, said.closed(), said.number, said.port), (11, FlowEnd::Idle, opened.number, opened.port));
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.drops(DropReason::FlowClosed), 1);
    rig.assert_no_buffer_leaked();
}

#[test]
fn after_the_rest_of_a_flow_the_rules_say_where_its_packets_go_though_they_have_not_ceased() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    let mut close = message(FlowKind::Close);
    close[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&opened.number.to_le_bytes());
    rig.ask(first(), &close);
    rig.set_rules(vec![rule(Policy::PerClient, 0), served_by_second(None)]);
    rig.ready(1, 20);
    for _ in 0..29 {
        rig.pass(SECOND_NS);
        rig.send_and_poll(&[answer(opened.port)]);
    }
    assert_eq!((rig.targets(), rig.drops(DropReason::FlowClosed)), (vec![], 29));
    rig.pass(3 * SECOND_NS);
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.targets(), [20]);
}

#[test]
fn a_flow_ends_when_its_grant_is_gone_and_stays_while_rules_change_otherwise() {
    let mut rig = Rig::outbound(dns());
    let opened = rig.open();
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    rig.pass(SECOND_NS);
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!(rig.targets(), [11]);
    rig.events();
    rig.may_send = grants(&[(UDP, "192.0.2.54/32", 53)]);
    rig.set_rules(vec![rule(Policy::PerClient, 0)]);
    rig.pass(SECOND_NS);
    let told = rig.told();
    assert_eq!((told.len(), told[0].1.closed()), (1, FlowEnd::NotGranted));
    rig.send_and_poll(&[answer(opened.port)]);
    assert_eq!((rig.delivered(), rig.drops(DropReason::FlowClosed)), (vec![], 1));
}

#[test]
fn flows_that_have_ended_give_way_to_the_tenants_next() {
    let mut rig = Rig::outbound(dns());
    for _ in 0..1000 {
        let opened = rig.open();
        let mut close = message(FlowKind::Close);
        close[FLOW_NUMBER_AT..FLOW_NUMBER_AT + 8].copy_from_slice(&opened.number.to_le_bytes());
        rig.ask(first(), &close);
    }
    rig.pass(35 * SECOND_NS);
    assert!(!rig.gateway.assigner.outbound_flows().has_any(), "and leave nothing behind after their rest");
    rig.assert_no_buffer_leaked();
}
