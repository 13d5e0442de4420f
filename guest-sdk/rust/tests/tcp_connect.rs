//! Connections that a service opens itself, to servers with another stack and to peers that send single segments.
#![cfg(feature = "net")]

mod callers;
mod segments;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use callers::{CLIENT, Callers, PLACES, SECOND_NS, SERVER, SERVER_V6, TOLD_AT, at, callers, events, tell};
use pinion_sdk::checksum;
use pinion_sdk::headers::Headers;
use pinion_sdk::net::testing::Towards;
use pinion_sdk::outbound::{End, Refusal};
use pinion_sdk::testing::{self, Outcome};
use segments::{ACK, FIN, Fields, RST, SYN, frame, read, segment, v4};

/// How long the node and the peer may take.
const CONNECT_NS: u64 = 10 * SECOND_NS;

#[test]
fn a_service_connects_and_exchanges_data_over_both_versions_of_ip() {
    for server_at in [SERVER, SERVER_V6] {
        let mut network = callers();
        let server = network.listen(at(server_at));
        tell(&mut network, &format!("tcp {server_at}"));
        assert_eq!(events(&mut network), [format!("connected to {server_at}")]);
        assert_eq!(network.received(server), b"hello");
        network.send(server, b"welcome");
        network.settle();
        assert_eq!(events(&mut network), ["read welcome"]);
        network.close(server);
        network.settle();
        assert_eq!(events(&mut network), ["closed by the peer"]);
        assert!(network.is_closed(server));
    }
}

#[test]
fn the_flow_is_closed_with_its_connection_whoever_closes_it() {
    let mut network = callers();
    let server = network.listen(at(SERVER));
    tell(&mut network, &format!("tcp {SERVER}"));
    assert_eq!(network.node.open().len(), 1);
    network.close(server);
    network.settle();
    assert_eq!(network.node.open().len(), 0, "the peer has closed, then the service");

    let mut network = callers();
    let server = network.listen(at(SERVER));
    tell(&mut network, &format!("tcp {SERVER}"));
    tell(&mut network, "hang up");
    network.close(server);
    network.let_pass_ns(20 * SECOND_NS);
    assert_eq!(network.node.open().len(), 0, "the service has closed, then the peer");

    let mut network = callers();
    let server = network.listen(at(SERVER));
    tell(&mut network, &format!("tcp {SERVER}"));
    network.abort(server);
    network.settle();
    assert_eq!(events(&mut network).last().unwrap(), "over");
    assert_eq!(network.node.open().len(), 0, "the peer has reset it");
}

#[test]
fn a_syn_that_is_lost_is_repeated() {
    let mut network = callers();
    network.listen(at(SERVER));
    let lost = Rc::new(RefCell::new(2));
    network.impair(move |towards, mut frames| {
        if towards == Towards::Clients && *lost.borrow() > 0 {
            *lost.borrow_mut() -= 1;
            frames.clear();
        }
        frames
    });
    tell(&mut network, &format!("tcp {SERVER}"));
    network.let_pass_ns(2 * SECOND_NS);
    assert!(events(&mut network).is_empty());
    network.let_pass_ns(2 * SECOND_NS);
    assert_eq!(events(&mut network), [format!("connected to {SERVER}")]);
}

#[test]
fn what_the_node_refuses_is_told_with_its_reason_and_takes_no_room() {
    let mut network = callers();
    network.node.refuse(|_, to| (to.port() != 80).then_some(Refusal::NotGranted));
    for _ in 0..3 * PLACES {
        tell(&mut network, "tcp 192.0.2.5:81");
        assert_eq!(events(&mut network), ["failed: ByNode(NotGranted)"]);
    }
    network.listen(at(SERVER));
    tell(&mut network, &format!("tcp {SERVER}"));
    assert_eq!(events(&mut network), [format!("connected to {SERVER}")]);
}

#[test]
fn a_peer_without_a_server_refuses_and_the_flow_is_closed() {
    for server_at in [SERVER, SERVER_V6] {
        let mut network = callers();
        tell(&mut network, &format!("tcp {server_at}"));
        assert_eq!(events(&mut network), ["failed: RefusedByPeer"]);
        assert!(network.node.open().is_empty());
    }
}

#[test]
fn a_silent_peer_or_node_fails_the_connection_after_ten_seconds() {
    let mut network = callers();
    network.impair(|towards, frames| if towards == Towards::Clients { Vec::new() } else { frames });
    tell(&mut network, &format!("tcp {SERVER}"));
    network.let_pass_ns(CONNECT_NS - SECOND_NS);
    assert!(events(&mut network).is_empty());
    network.let_pass_ns(SECOND_NS);
    assert_eq!(events(&mut network), ["failed: TimedOut"]);
    network.settle();
    assert!(network.node.open().is_empty());

    let mut network = callers();
    network.node.lose_requests(u64::MAX / 2);
    tell(&mut network, &format!("tcp {SERVER}"));
    network.let_pass_ns(CONNECT_NS);
    assert_eq!(events(&mut network), ["failed: TimedOut"]);
}

#[test]
fn a_request_without_an_answer_is_repeated_and_opens_one_connection() {
    let mut network = callers();
    network.node.lose_requests(2);
    network.listen(at(SERVER));
    tell(&mut network, &format!("tcp {SERVER}"));
    network.let_pass_ns(3 * SECOND_NS);
    assert_eq!(events(&mut network), [format!("connected to {SERVER}")]);
    assert_eq!((network.node.requests(), network.node.open().len()), (3, 1));
}

#[test]
fn a_second_flow_for_the_same_request_is_closed() {
    let mut network = callers();
    let request = only_made(network.harness.deliver(&[&command(&format!("tcp {SERVER}"))]));
    let [first, second] = ["198.51.100.1:50001", "198.51.100.1:50002"].map(at);
    let syn = only_made(network.harness.deliver(&[&testing::opened(&request, 1, first)]));
    assert_eq!(read(&syn).flags, SYN);
    let close = only_made(network.harness.deliver(&[&testing::opened(&request, 2, second)]));
    assert_eq!((close[15], close[24]), (2, 2), "it asks for the end of flow 2");
}

#[test]
fn a_connection_whose_flow_the_node_ends_is_over() {
    let mut network = callers();
    let server = network.listen(at(SERVER));
    tell(&mut network, &format!("tcp {SERVER}"));
    network.send(server, b"the last words");
    network.settle();
    events(&mut network);
    let number = network.node.open()[0].number;
    network.end_flow(number, End::Quota);
    assert_eq!(events(&mut network), ["over"]);

    network.impair(|_, _| Vec::new());
    tell(&mut network, &format!("tcp {SERVER}"));
    let number = network.node.open()[0].number;
    network.end_flow(number, End::NotGranted);
    assert_eq!(events(&mut network), ["failed: FlowEnded(NotGranted)"]);
}

#[test]
fn own_connections_count_within_connections_max() {
    let mut network = callers();
    network.impair(|_, _| Vec::new());
    for _ in 0..=PLACES {
        tell(&mut network, &format!("tcp {SERVER}"));
    }
    assert_eq!(events(&mut network), ["at once: NoRoom"]);
    network.let_pass_ns(CONNECT_NS);
    assert_eq!(events(&mut network), ["failed: TimedOut"; PLACES as usize]);
}

#[test]
fn no_flood_of_syns_displaces_a_connection_that_the_service_opens() {
    for loses_requests in [false, true] {
        let mut network = callers();
        network.node.lose_requests(u64::from(loses_requests));
        let server = network.listen(at(SERVER));
        network.impair(|_, _| Vec::new());
        tell(&mut network, &format!("tcp {SERVER}"));
        network.impair(|_, frames| frames);
        for port in 1000..1100 {
            network.deliver(&segment((v4(9), port).into(), at("10.0.0.2:7"), SYN, 1, b""));
        }
        network.let_pass_ns(4 * SECOND_NS);
        assert_eq!(events(&mut network), [format!("connected to {SERVER}")]);
        for port in 1000..1100 {
            network.deliver(&segment((v4(8), port).into(), at("10.0.0.2:7"), SYN, 1, b""));
        }
        network.settle();
        assert!(network.is_connected(server));
    }
}

#[test]
fn an_attempt_that_is_aborted_leaves_neither_flow_nor_event() {
    let mut network = callers();
    network.impair(|_, _| Vec::new());
    tell(&mut network, &format!("tcp {SERVER}"));
    tell(&mut network, "abort");
    assert!(network.node.open().is_empty());
    network.let_pass_ns(2 * CONNECT_NS);
    assert!(events(&mut network).is_empty());
}

/// A frame by which a client tells the service something.
fn command(text: &str) -> Vec<u8> {
    pinion_sdk::testing::Frame::udp(at(CLIENT), at(TOLD_AT)).payload(text.as_bytes()).bytes()
}

/// Returns the only packet that the function has made.
fn only_made(verdicts: Vec<testing::Verdict>) -> Vec<u8> {
    let mut made = verdicts.into_iter().filter(|verdict| verdict.frame.is_none());
    let first = made.next().expect("the function has made a packet");
    assert!(made.next().is_none() && first.outcome == Outcome::Replied);
    first.bytes
}

/// A connection whose SYN was sent, and whose peer is the test.
struct Attempt {
    network: Callers,
    source: SocketAddr,
    syn: Fields,
    syn_frame: Vec<u8>,
}

impl Attempt {
    fn new() -> Self {
        let mut network = callers();
        let request = only_made(network.harness.deliver(&[&command(&format!("tcp {SERVER}"))]));
        let source = at("198.51.100.1:50001");
        let syn_frame = only_made(network.harness.deliver(&[&testing::opened(&request, 1, source)]));
        let syn = read(&syn_frame);
        assert_eq!((syn.flags, syn.ack), (SYN, 0));
        Self { network, source, syn, syn_frame }
    }

    /// Sends a segment with this acknowledgement, relative to the SYN's number; returns the flags and numbers of the answers.
    fn answer(&mut self, flags: u8, seq: u32, ack: u32, options: &[u8]) -> Vec<(u8, u32, u32)> {
        let ack = if flags & ACK == 0 { 0 } else { self.syn.seq.wrapping_add(ack) };
        let fields = Fields { flags, seq, ack, window: 1000, options: options.to_vec(), payload: vec![] };
        let answers = segments::answers(&mut self.network, &frame(at(SERVER), self.source, &fields));
        let first = self.syn.seq;
        answers.iter().map(|it| read(it)).map(|it| (it.flags & !8, it.seq.wrapping_sub(first), it.ack)).collect()
    }
}

#[test]
fn only_what_acknowledges_the_syn_answers_it() {
    let mut attempt = Attempt::new();
    assert_eq!(attempt.answer(SYN | ACK, 7000, 2, b""), [(RST, 2, 0)], "it acknowledges what was not sent");
    assert_eq!(attempt.answer(ACK, 7000, 0, b""), [(RST, 0, 0)], "an old connection's");
    for (flags, ack) in [(RST, 0), (RST | ACK, 2), (RST | ACK, 0), (SYN, 0), (FIN, 0), (ACK, 1)] {
        assert!(attempt.answer(flags, 7000, ack, b"").is_empty(), "{flags} {ack}");
    }
    assert!(events(&mut attempt.network).is_empty());
    assert_eq!(attempt.answer(SYN | ACK, 7000, 1, b""), [(ACK, 1, 7001), (ACK, 1, 7001)], "with `hello` in the second");
    assert_eq!(events(&mut attempt.network), [format!("connected to {SERVER}")]);
}

/// Connects by a flow with this source, and aborts the attempt. Returns the number of its SYN.
fn initial_number(network: &mut Callers, source: SocketAddr) -> u32 {
    let request = only_made(network.harness.deliver(&[&command(&format!("tcp {SERVER}"))]));
    let syn = only_made(network.harness.deliver(&[&testing::opened(&request, 1, source)]));
    only_made(network.harness.deliver(&[&command("abort")]));
    read(&syn).seq
}

#[test]
fn initial_sequence_numbers_differ_by_flow_and_instance_and_rise_with_time() {
    let [one, other] = ["198.51.100.1:50001", "198.51.100.1:50002"].map(at);
    let mut network = callers();
    let first = initial_number(&mut network, one);
    network.harness.let_pass_ns(SECOND_NS);
    assert_eq!(initial_number(&mut network, one).wrapping_sub(first), 250_000);
    let far_apart = |number: u32| (number.wrapping_sub(first) as i32).unsigned_abs() > 1_000_000;
    assert!(far_apart(initial_number(&mut network, other)));
    assert!(far_apart(initial_number(&mut callers(), one)));
}

#[test]
fn a_reset_that_acknowledges_the_syn_refuses_the_connection() {
    let mut attempt = Attempt::new();
    let close = attempt.network.harness.deliver(&[&segment_of(&attempt, RST | ACK, 1)]);
    assert_eq!(only_made(close)[15], 2, "the flow is closed");
    assert_eq!(events(&mut attempt.network), ["failed: RefusedByPeer"]);
}

fn segment_of(attempt: &Attempt, flags: u8, ack: u32) -> Vec<u8> {
    let ack = attempt.syn.seq.wrapping_add(ack);
    let fields = Fields { flags, seq: 0, ack, window: 0, options: vec![], payload: vec![] };
    frame(at(SERVER), attempt.source, &fields)
}

/// An ICMP error of the type and code about a frame, whose quoted packet `change` may change.
fn unreachable(about: &[u8], (kind, code): (u8, u8), change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut quoted = about[14..14 + 28].to_vec();
    change(&mut quoted);
    let mut message = [&[kind, code, 0, 0, 0, 0, 0, 0], &quoted[..]].concat();
    let sum = checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let total = (20 + message.len() as u16).to_be_bytes();
    let mut ip = [&[0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 9, 9], &about[26..30]].concat();
    let sum = checksum::of(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &message].concat()
}

#[test]
fn an_error_about_the_syn_ends_the_attempt() {
    for (code, failure) in
        [((3, 1), "Unreachable"), ((3, 13), "Unreachable"), ((11, 0), "Unreachable"), ((3, 3), "RefusedByPeer")]
    {
        let mut attempt = Attempt::new();
        let error = unreachable(&attempt.syn_frame, code, |_| ());
        let made = attempt.network.harness.deliver(&[&error]);
        assert_eq!(events(&mut attempt.network), [format!("failed: {failure}")]);
        assert_eq!(only_made(made)[15], 2, "the flow is closed");
    }
}

#[test]
fn an_error_about_another_segment_than_the_syn_changes_nothing() {
    let changes: [fn(&mut [u8]); 3] = [|it| it[27] ^= 1, |it| it[21] ^= 1, |it| it[19] ^= 1];
    for change in changes {
        let mut attempt = Attempt::new();
        let error = unreachable(&attempt.syn_frame, (3, 1), change);
        assert!(attempt.network.harness.deliver(&[&error]).iter().all(|verdict| verdict.frame.is_some()));
        assert!(events(&mut attempt.network).is_empty());
    }
}

#[test]
fn errors_about_an_open_connection_do_not_end_it() {
    let mut attempt = Attempt::new();
    attempt.answer(SYN | ACK, 7000, 1, b"");
    events(&mut attempt.network);
    let mut data = attempt.syn_frame.clone();
    data[38..42].copy_from_slice(&attempt.syn.seq.wrapping_add(1).to_be_bytes());
    attempt.network.deliver(&unreachable(&data, (3, 1), |_| ()));
    assert!(events(&mut attempt.network).is_empty());
    assert!(attempt.answer(ACK, 7001, 6, b"").is_empty(), "`hello` is acknowledged");
}

#[test]
fn by_default_a_connection_leaves_by_the_port_and_in_the_vlan_of_what_it_is_about() {
    let mut network = callers();
    let mut told = command(&format!("tcp {SERVER}"));
    told.splice(12..12, [0x81, 0, 0, 7]);
    let request = network.harness.deliver_from(5, &[&told]).into_iter().find(|it| it.frame.is_none()).unwrap();
    assert_eq!((request.ingress_port, &request.bytes[72..74]), (5, &[7, 0][..]));
    let opened = testing::opened(&request.bytes, 1, at("198.51.100.1:50001"));
    let syn = network.harness.deliver_from(5, &[&opened]).into_iter().find(|it| it.frame.is_none()).unwrap();
    assert_eq!(
        (syn.ingress_port, &syn.bytes[..18]),
        (5, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 7, 8, 0][..])
    );
    let headers = Headers::of(&syn.bytes).unwrap();
    assert_eq!(headers.addresses.source().to_string(), "198.51.100.1");
}
