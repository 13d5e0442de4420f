//! Floods of SYNs that nobody acknowledges, and the clients beside them.
#![cfg(feature = "net")]

mod segments;

use std::net::SocketAddr;

use segments::{
    ACK, Echoes, Fields, PLACES, PSH, RST, SYN, answers, at_v4, at_v6, echoes, flags_of, frame, pattern, read, segment,
    v4,
};

const SECOND_NS: u64 = 1_000_000_000;
const FIRST: u32 = 1_000;
/// Maximum segment size 1220, selective acknowledgement permitted, window scale 5.
const OPTIONS: [u8; 12] = [2, 4, 0x04, 0xc4, 4, 2, 1, 1, 1, 3, 3, 5];

fn fields(flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Fields {
    Fields { flags, seq, ack, window: 1_000, options: vec![], payload: payload.to_vec() }
}

/// Sends a client's SYN, and returns the number of the answer.
fn begin(network: &mut Echoes, from: SocketAddr, to: SocketAddr) -> u32 {
    let syn = Fields { options: OPTIONS.to_vec(), ..fields(SYN, FIRST, 0, &[]) };
    let answers = answers(network, &frame(from, to, &syn));
    let answer = read(&answers[0]);
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, FIRST + 1));
    answer.seq
}

/// Sends SYNs of as many clients as there are places, and some more.
fn flood(network: &mut Echoes) {
    for host in 0..3 * PLACES as u8 {
        let syn = segment((v4(host + 20), 4_000).into(), at_v4(7), SYN, host.into(), &[]);
        assert_eq!(flags_of(&answers(network, &syn)[0]), SYN | ACK);
    }
}

#[test]
fn a_client_whose_handshake_gave_way_to_a_flood_is_served_when_it_acknowledges() {
    let clients: [(SocketAddr, SocketAddr); 2] =
        [((v4(1), 5_000).into(), at_v4(7)), ("[fd77::11]:5000".parse().unwrap(), at_v6(7))];
    for (from, to) in clients {
        // Its request may come with the acknowledgement, or after it.
        for is_bare in [true, false] {
            let mut network = echoes();
            let first = begin(&mut network, from, to);
            flood(&mut network);
            if is_bare {
                let bare = frame(from, to, &fields(ACK, FIRST + 1, first + 1, &[]));
                assert_eq!(answers(&mut network, &bare), Vec::<Vec<u8>>::new());
            }
            let request = frame(from, to, &fields(ACK | PSH, FIRST + 1, first + 1, b"hello"));
            let answers = answers(&mut network, &request);
            let echo = answers.iter().map(|answer| read(answer)).find(|answer| !answer.payload.is_empty());
            let echo = echo.expect("the request is answered");
            assert_eq!((echo.seq, echo.ack, &echo.payload[..]), (first + 1, FIRST + 6, &b"hello"[..]));
        }
    }
}

#[test]
fn what_the_client_offered_counts_in_a_handshake_that_gave_way() {
    let (from, to) = ((v4(1), 5_000).into(), at_v4(7));
    let mut network = echoes();
    let first = begin(&mut network, from, to);
    flood(&mut network);
    // A window of 1,000 * 32 bytes.
    let request = fields(ACK, FIRST + 1, first + 1, &pattern(1_200));
    let mut sent = answers(&mut network, &frame(from, to, &request));
    for number in 1..10 {
        let more = Fields { seq: FIRST + 1 + number * 1_200, ..request.clone() };
        sent.extend(answers(&mut network, &frame(from, to, &more)));
    }
    network.settle();
    let payloads: Vec<usize> = sent.iter().map(|sent| read(sent).payload.len()).collect();
    assert!(payloads.iter().all(|len| *len <= 1_220), "{payloads:?}");
    assert!(payloads.iter().sum::<usize>() > 1_000, "more than an unscaled window: {payloads:?}");
}

#[test]
fn an_acknowledgement_that_proves_nothing_is_refused_in_a_flood_too() {
    let (from, to): (SocketAddr, SocketAddr) = ((v4(1), 5_000).into(), at_v4(7));
    let mut network = echoes();
    let first = begin(&mut network, from, to);
    flood(&mut network);
    let mut refused = |from: SocketAddr, seq: u32, ack: u32| {
        let answers = answers(&mut network, &frame(from, to, &fields(ACK, seq, ack, &[])));
        assert_eq!(answers.iter().map(|answer| flags_of(answer)).collect::<Vec<_>>(), [RST], "{from} {seq} {ack}");
    };
    for bit in 0..32 {
        refused(from, FIRST + 1, (first + 1) ^ (1 << bit));
        refused(from, (FIRST + 1) ^ (1 << bit), first + 1);
    }
    refused((v4(1), 5_001).into(), FIRST + 1, first + 1);
    refused((v4(2), 5_000).into(), FIRST + 1, first + 1);
}

#[test]
fn an_acknowledgement_proves_nothing_after_two_minutes_and_none_without_a_flood() {
    let (from, to) = ((v4(1), 5_000).into(), at_v4(7));
    for (pause_ns, is_flooded) in [(129 * SECOND_NS, true), (11 * SECOND_NS, false)] {
        let mut network = echoes();
        let first = begin(&mut network, from, to);
        if is_flooded {
            flood(&mut network);
        }
        network.let_pass_ns(pause_ns);
        if is_flooded {
            flood(&mut network);
        }
        let late = answers(&mut network, &frame(from, to, &fields(ACK, FIRST + 1, first + 1, &[])));
        assert_eq!(late.iter().map(|answer| flags_of(answer)).collect::<Vec<_>>(), [RST]);
    }
}

#[test]
fn an_open_connection_goes_on_during_a_flood() {
    let mut network = echoes();
    let client = network.connect(v4(1), at_v4(7));
    network.settle();
    for round in 0..5 {
        flood(&mut network);
        let bytes = pattern(10_000 + round);
        network.send(client, &bytes);
        let mut received = Vec::new();
        network.until(|network| {
            received.extend(network.received(client));
            assert!(!network.is_closed(client));
            received.len() >= bytes.len()
        });
        assert!(received == bytes);
    }
}
