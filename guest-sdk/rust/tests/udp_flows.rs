//! UDP flows that a service opens itself.
#![cfg(feature = "net")]

mod callers;

use callers::{Callers, FLOWS, SECOND_NS, SERVER, SERVER_V6, at, callers, events, tell};
use pinion_sdk::checksum;
use pinion_sdk::outbound::{End, Refusal};

/// A network with a server that answers with what it was asked.
fn with_server(server_at: &str) -> Callers {
    let mut network = callers();
    network.serve_udp(at(server_at), |from, question| vec![[format!("{}:", from.ip()).as_bytes(), question].concat()]);
    network
}

#[test]
fn a_service_asks_a_server_and_gets_its_answer_with_the_flow_over_both_versions_of_ip() {
    for (server_at, source) in [(SERVER, "198.51.100.1"), (SERVER_V6, "2001:db8:9::1")] {
        let mut network = with_server(server_at);
        tell(&mut network, &format!("udp {server_at} who?"));
        assert_eq!(events(&mut network), [format!("open to {server_at}"), format!("answer {source}:who?")]);
    }
}

#[test]
fn a_flow_that_is_closed_is_closed_at_the_node_and_makes_room() {
    let mut network = with_server(SERVER);
    for _ in 0..3 {
        for _ in 0..FLOWS {
            tell(&mut network, &format!("udp {SERVER} who?"));
        }
        assert_eq!(events(&mut network).len(), 2 * usize::from(FLOWS));
        tell(&mut network, &format!("udp {SERVER} who?"));
        assert_eq!(events(&mut network), ["at once: NoRoom"]);
        assert_eq!(network.node.open().len(), usize::from(FLOWS));
        tell(&mut network, "close");
        assert!(network.node.open().is_empty());
    }
}

#[test]
fn what_the_node_refuses_or_ends_is_told() {
    let mut network = with_server(SERVER);
    network.node.refuse(|_, to| (to.port() != 80).then_some(Refusal::Quota));
    tell(&mut network, "udp 192.0.2.5:81 who?");
    assert_eq!(events(&mut network), ["ended: ByNode(Quota)"]);
    tell(&mut network, &format!("udp {SERVER} who?"));
    events(&mut network);
    let number = network.node.open()[0].number;
    network.end_flow(number, End::Idle);
    assert_eq!(events(&mut network), ["ended: FlowEnded(Idle)"]);
    for _ in 0..FLOWS {
        tell(&mut network, &format!("udp {SERVER} who?"));
    }
    assert_eq!(events(&mut network).len(), 2 * usize::from(FLOWS), "both have made room");
}

#[test]
fn a_node_that_does_not_answer_is_asked_again_for_ten_seconds() {
    let mut network = with_server(SERVER);
    network.node.lose_requests(3);
    tell(&mut network, &format!("udp {SERVER} who?"));
    network.let_pass_ns(4 * SECOND_NS);
    assert_eq!(events(&mut network)[0], format!("open to {SERVER}"));
    network.node.lose_requests(u64::MAX / 2);
    tell(&mut network, &format!("udp {SERVER} who?"));
    network.let_pass_ns(10 * SECOND_NS);
    assert_eq!(events(&mut network), ["ended: TimedOut"]);
}

#[test]
fn an_icmp_error_about_a_flow_is_told_and_the_flow_stays() {
    let mut network = callers();
    tell(&mut network, &format!("udp {SERVER} who?"));
    events(&mut network);
    let flow = network.node.open()[0];
    let mut quoted = vec![0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 51, 100, 1, 192, 0, 2, 5];
    quoted.extend([flow.source.port().to_be_bytes(), flow.to.port().to_be_bytes(), [0, 12], [0, 0]].concat());
    for (code, expected) in [(3, "lost: RefusedByPeer"), (1, "lost: Unreachable")] {
        let mut message = [&[3, code, 0, 0, 0, 0, 0, 0], &quoted[..]].concat();
        let sum = checksum::of(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut ip = vec![0x45, 0, 0, 20 + message.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0, 192, 0, 2, 5, 198, 51, 100, 1];
        let sum = checksum::of(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        network.deliver(&[&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &message].concat());
        assert_eq!(events(&mut network), [expected]);
    }
    assert_eq!(network.node.open().len(), 1);
}
