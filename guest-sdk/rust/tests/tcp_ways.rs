//! Connections of peers on several ports of the node, and in both directions of a chain.
#![cfg(feature = "net")]

mod segments;

use std::net::SocketAddr;

use pinion_sdk::Direction;
use pinion_sdk::testing::{Outcome, Verdict};
use segments::{ACK, Echoes, Fields, PSH, SYN, at_v4, echoes, frame, read, v4};

/// A port and a direction.
type At = (u16, Direction);

const A: At = (0, Direction::Forward);
const B: At = (5, Direction::Backward);
const FIRST: u32 = 1_000;

/// A peer with a connection.
struct Peer {
    from: SocketAddr,
    theirs: u32,
}

fn sent(verdicts: Vec<Verdict>) -> Vec<(At, Fields)> {
    let replied = verdicts.into_iter().filter(|it| it.outcome == Outcome::Replied);
    replied.map(|it| ((it.ingress_port, it.direction.expect("a chain with a way back")), read(&it.bytes))).collect()
}

impl Peer {
    /// Connects a peer with this host number.
    fn connected(network: &mut Echoes, host: u8, at: At) -> Self {
        let mut peer = Self { from: (v4(host), 4_000).into(), theirs: 0 };
        let answers = peer.send(network, at, SYN, FIRST, b"");
        let [(by, answer)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((*by, answer.flags), (at, SYN | ACK));
        peer.theirs = answer.seq.wrapping_add(1);
        assert!(peer.send(network, at, ACK, FIRST + 1, b"").is_empty());
        peer
    }

    fn send(&self, network: &mut Echoes, at: At, flags: u8, seq: u32, payload: &[u8]) -> Vec<(At, Fields)> {
        let fields =
            Fields { flags, seq, ack: self.theirs, window: 0xffff, options: vec![], payload: payload.to_vec() };
        let frame = frame(self.from, at_v4(7), &fields);
        sent(network.harness.deliver_direction(at.1, at.0, &[&frame]))
    }
}

/// Returns the ways by which data is sent within this time, and the data.
fn repeated(network: &mut Echoes, duration_ns: u64) -> Vec<(At, Vec<u8>)> {
    let segments = sent(network.harness.let_pass_ns(duration_ns));
    segments.into_iter().map(|(at, it)| (at, it.payload)).filter(|(_, payload)| !payload.is_empty()).collect()
}

#[test]
fn each_connection_answers_by_its_own_way_also_when_another_ones_segment_came_last() {
    let mut network = echoes();
    let [one, two] = [(1, A), (2, B)].map(|(host, at)| Peer::connected(&mut network, host, at));
    for (peer, at, payload) in [(&one, A, b"one"), (&two, B, b"two")] {
        let answers = peer.send(&mut network, at, PSH | ACK, FIRST + 1, payload);
        assert!(!answers.is_empty() && answers.iter().all(|(by, _)| *by == at), "{answers:?}");
    }
    // Neither acknowledges, so that both answers are repeated by timers.
    let repeated = repeated(&mut network, 3_000_000_000);
    let of = |payload: &[u8]| repeated.iter().filter(|it| it.1 == payload).map(|it| it.0).collect::<Vec<_>>();
    for (payload, at) in [(&b"one"[..], A), (b"two", B)] {
        assert!(!of(payload).is_empty() && of(payload).iter().all(|by| *by == at), "{repeated:?}");
    }
}

#[test]
fn a_peer_that_moves_to_another_port_is_followed() {
    let mut network = echoes();
    let peer = Peer::connected(&mut network, 1, A);
    assert!(peer.send(&mut network, A, PSH | ACK, FIRST + 1, b"one").iter().all(|(by, _)| *by == A));
    // It has lost the answer, and sends its data again by another way.
    assert!(peer.send(&mut network, B, PSH | ACK, FIRST + 1, b"one").iter().all(|(by, _)| *by == B));
    let repeated = repeated(&mut network, 3_000_000_000);
    assert!(!repeated.is_empty() && repeated.iter().all(|(by, _)| *by == B), "{repeated:?}");
}

#[test]
fn a_segment_of_no_connection_is_reset_by_its_own_way() {
    let mut network = echoes();
    Peer::connected(&mut network, 1, A);
    let stranger = Peer { from: (v4(3), 4_000).into(), theirs: 77 };
    let answers = stranger.send(&mut network, B, ACK, FIRST, b"");
    assert_eq!(answers.iter().map(|(by, it)| (*by, it.seq)).collect::<Vec<_>>(), [(B, 77)]);
}
