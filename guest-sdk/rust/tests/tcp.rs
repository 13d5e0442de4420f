//! TCP connections that end in a function, as clients with another stack see them.
#![cfg(feature = "net")]

mod segments;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};

use pinion_sdk::net::testing::{Client, Network, Towards};
use pinion_sdk::net::{Server, Service, Settings, Stream};
use pinion_sdk::testing::Outcome;
use pinion_sdk::{Function, InitError, clock};
use proptest::prelude::*;
use segments::{
    ACK, Echoes, IDLE_NS, PATIENT, PLACES, RST, SYN, answers, at_v4, at_v6, echoes, flags_of, pattern, segment, v4,
};

/// Sends bytes from a client, and collects the echo until it is as long.
fn echoed(network: &mut Echoes, client: Client, bytes: &[u8]) -> Vec<u8> {
    network.send(client, bytes);
    let mut received = Vec::new();
    network.until(|network| {
        received.extend(network.received(client));
        assert!(!network.is_closed(client), "broken off after {} bytes of {}", received.len(), bytes.len());
        received.len() >= bytes.len()
    });
    received
}

#[test]
fn data_is_echoed_over_both_versions_of_ip() {
    let mut network = echoes();
    let clients = [network.connect(v4(1), at_v4(7)), network.connect("fd77::11".parse().unwrap(), at_v6(7))];
    for client in clients {
        let bytes = pattern(300_000);
        assert!(echoed(&mut network, client, &bytes) == bytes);
        network.close(client);
        network.until(|network| network.is_closed(client));
    }
}

#[test]
fn many_connections_go_on_side_by_side() {
    let mut network = echoes();
    let clients: Vec<_> = (1..=PLACES as u8).map(|host| network.connect(v4(host), at_v4(7))).collect();
    for (round, size) in [1, 100, 20_000].into_iter().enumerate() {
        for (number, client) in clients.iter().enumerate() {
            network.send(*client, &vec![(round * 10 + number) as u8; size]);
        }
        for (number, client) in clients.iter().enumerate() {
            let mut received = Vec::new();
            network.until(|network| {
                received.extend(network.received(*client));
                received.len() >= size
            });
            assert!(received == vec![(round * 10 + number) as u8; size]);
        }
    }
}

#[test]
fn no_network_impairment_loses_alters_or_duplicates_data() {
    let treatment = (any::<u64>(), 0_u64..12, 0_u64..25, 0_u64..40);
    let cases = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) };
    proptest!(cases, |((seed, lost, doubled, swapped) in treatment)| {
        let mut network: Echoes = Network::new(PATIENT).unwrap();
        let mut state = seed;
        let mut chance = move |of_100: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 100 < of_100
        };
        network.impair(move |_, frames| {
            let mut kept = Vec::new();
            for frame in frames {
                if chance(lost) {
                    continue;
                }
                if chance(doubled) {
                    kept.push(frame.clone());
                }
                let at = if chance(swapped) { 0 } else { kept.len() };
                kept.insert(at, frame);
            }
            kept
        });
        let client = network.connect(v4(1), at_v4(7));
        network.until(|network| network.is_connected(client));
        let bytes = pattern(60_000);
        prop_assert!(echoed(&mut network, client, &bytes) == bytes);
        network.close(client);
        network.until(|network| network.is_closed(client));
    });
}

#[test]
fn slow_peers_get_all_data_and_do_not_block_others() {
    let mut network = echoes();
    let tiny = network.connect_with_window(v4(1), at_v4(7), 100);
    let stuck = network.connect_with_window(v4(2), at_v4(7), 2_000);
    let other = network.connect(v4(3), at_v4(7));
    network.settle();
    network.send(stuck, &pattern(200_000));
    network.settle();
    let bytes = pattern(3_000);
    assert!(echoed(&mut network, tiny, &bytes) == bytes);
    let bytes = pattern(50_000);
    assert!(echoed(&mut network, other, &bytes) == bytes);
    // It gets the rest once it reads.
    let mut received = Vec::new();
    network.until(|network| {
        received.extend(network.received(stuck));
        received.len() >= 200_000
    });
    assert!(received == pattern(200_000));
}

#[test]
fn a_peer_that_has_closed_still_gets_all_data() {
    let mut network = echoes();
    let client = network.connect(v4(1), at_v4(7));
    network.settle();
    network.send(client, &pattern(100_000));
    network.close(client);
    let mut received = Vec::new();
    network.until(|network| {
        received.extend(network.received(client));
        network.is_closed(client)
    });
    assert!(received == pattern(100_000));
}

#[test]
fn a_reset_frees_the_connections_slot() {
    let mut network = echoes();
    for round in 0..3 * PLACES {
        let client = network.connect(v4(round as u8), at_v4(7));
        network.settle();
        assert!(network.is_connected(client), "in round {round}");
        network.abort(client);
        network.settle();
    }
    assert_eq!(network.harness.function().deadline_ns(), None, "nothing is left to wait for");
}

#[test]
fn other_ports_and_segments_of_no_connection_are_refused() {
    let mut network = echoes();
    let client = network.connect(v4(1), at_v4(8));
    network.settle();
    assert!(network.is_closed(client));
    let stray = segment((v4(1), 4_000).into(), at_v4(7), ACK, 77, b"who?");
    let refused = answers(&mut network, &stray);
    assert_eq!(refused.len(), 1);
    assert_eq!(flags_of(&refused[0]) & RST, RST);
    let reset = segment((v4(1), 4_000).into(), at_v4(7), RST, 77, b"");
    assert!(answers(&mut network, &reset).is_empty(), "a reset is not answered");
}

#[test]
fn damaged_fragmented_and_misaddressed_segments_are_dropped() {
    let mut network = echoes();
    let from = SocketAddr::from((v4(1), 4_000));
    let good = segment(from, at_v4(7), SYN, 1, b"");
    for at in [20, 24, 30, 36, 40, 48, 50] {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        assert!(answers(&mut network, &damaged).is_empty(), "byte {at}");
    }
    let mut to_a_group = good.clone();
    to_a_group[0] |= 1;
    let mut from_a_group = good.clone();
    from_a_group[6] |= 1;
    for frame in [
        to_a_group,
        from_a_group,
        segment((IpAddr::from([224, 0, 0, 1]), 4_000).into(), at_v4(7), SYN, 1, b""),
        segment((IpAddr::from([0, 0, 0, 0]), 4_000).into(), at_v4(7), SYN, 1, b""),
        segment((v4(1), 0).into(), at_v4(7), SYN, 1, b""),
        segment(at_v4(7), at_v4(7), SYN, 1, b""),
        good[..40].to_vec(),
        b"no frame".to_vec(),
    ] {
        assert!(answers(&mut network, &frame).is_empty());
    }
    assert_eq!(flags_of(&answers(&mut network, &good)[0]), SYN | ACK);
}

#[test]
fn checksum_results_of_the_device_are_trusted() {
    const GOOD: u16 = pinion_abi::RX_L4_CHECKSUM_GOOD | pinion_abi::RX_IP_CHECKSUM_GOOD;
    let mut network = echoes();
    let mut frame = segment((v4(1), 4_000).into(), at_v4(7), SYN, 1, b"");
    assert_eq!(network.harness.deliver_checked(pinion_abi::RX_L4_CHECKSUM_BAD, &[&frame]).len(), 1, "dropped");
    frame[50] ^= 1;
    let answered = network.harness.deliver_checked(GOOD, &[&frame]);
    assert!(answered.iter().any(|verdict| verdict.outcome == Outcome::Replied));
}

#[test]
fn an_answer_has_the_vlan_tags_of_its_request() {
    let mut network = echoes();
    let mut frame = segment((v4(1), 4_000).into(), at_v4(7), SYN, 1, b"");
    frame.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0x00, 0x20, 7]);
    let answer = &answers(&mut network, &frame)[0];
    assert_eq!(answer[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    assert_eq!(answer[12..22], frame[12..22]);
    assert_eq!(flags_of(answer), SYN | ACK);
}

#[test]
fn a_syn_flood_displaces_no_open_connection() {
    let mut network = echoes();
    let open = network.connect(v4(1), at_v4(7));
    network.settle();
    for number in 0..20_000_u32 {
        let [.., a, b] = number.to_be_bytes();
        let frame = segment((IpAddr::from([11, 0, a, b]), 1_000).into(), at_v4(7), SYN, number, b"");
        assert!(answers(&mut network, &frame).len() <= 1, "one answer for each at most");
    }
    let bytes = pattern(1_000);
    assert!(echoed(&mut network, open, &bytes) == bytes);
    // A client that answers before all slots were taken by later ones is admitted.
    let late = network.connect(v4(2), at_v4(7));
    assert!(echoed(&mut network, late, &bytes) == bytes);
    // Handshakes that were never finished are forgotten.
    network.close(open);
    network.close(late);
    network.let_pass_ns(60_000_000_000);
    assert_eq!(network.harness.function().deadline_ns(), None);
}

#[test]
fn new_connections_wait_while_all_slots_are_in_use() {
    let mut network = echoes();
    let clients: Vec<_> = (1..=PLACES as u8).map(|host| network.connect(v4(host), at_v4(7))).collect();
    network.settle();
    let late = network.connect(v4(100), at_v4(7));
    network.let_pass_ns(5_000_000_000);
    assert!(!network.is_connected(late) && !network.is_closed(late), "it is not answered");
    assert!(clients.iter().all(|client| network.is_connected(*client)));
    network.close(clients[3]);
    network.until(|network| network.is_connected(late));
}

#[test]
fn slots_of_closed_connections_are_reused_at_once() {
    let mut network = echoes();
    for round in 0..200_u32 {
        let [.., host] = round.to_be_bytes();
        let client = network.connect(v4(host), at_v4(7));
        network.settle();
        assert!(network.is_connected(client), "in round {round}");
        network.close(client);
        network.settle();
    }
}

#[test]
fn a_reused_port_opens_a_new_connection() {
    let mut network = echoes();
    let from = SocketAddr::from((v4(1), 4_000));
    let seq_of = |frame: &[u8]| u32::from_be_bytes(frame[38..42].try_into().unwrap());
    let ack = |frame: &mut Vec<u8>, seq: u32| {
        frame[42..46].copy_from_slice(&seq.to_be_bytes());
        // Only this field changes the sum of the whole.
        let old = u16::from_be_bytes([frame[50], frame[51]]);
        let parts = seq.to_be_bytes();
        let mut sum = u32::from(!old) + u32::from(u16::from_be_bytes([parts[0], parts[1]]));
        sum += u32::from(u16::from_be_bytes([parts[2], parts[3]]));
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        frame[50..52].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    };
    let mut last_first = None;
    for round in 0..3 {
        let first = 1_000 * round;
        let syn_ack = answers(&mut network, &segment(from, at_v4(7), SYN, first, b""));
        assert_eq!(flags_of(&syn_ack[0]), SYN | ACK, "in round {round}");
        let theirs = seq_of(&syn_ack[0]);
        assert_ne!(Some(theirs), last_first.replace(theirs), "an unpredictable number");
        // The function closes when its peer has: that peer's FIN, the function's, and the last acknowledgement.
        let mut fin = segment(from, at_v4(7), ACK | 0x01, first + 1, b"");
        ack(&mut fin, theirs + 1);
        let answered = answers(&mut network, &fin);
        assert!(answered.iter().any(|frame| flags_of(frame) & 0x01 != 0), "{answered:?}");
        let mut last = segment(from, at_v4(7), ACK, first + 2, b"");
        ack(&mut last, theirs + 2);
        assert!(answers(&mut network, &last).is_empty());
    }
}

#[test]
fn a_silent_peer_is_disconnected_after_the_idle_timeout() {
    let mut network = echoes();
    let client = network.connect(v4(1), at_v4(7));
    network.settle();
    network.let_pass_ns(IDLE_NS - 1_000_000_000);
    assert!(network.is_connected(client));
    network.let_pass_ns(2_000_000_000);
    assert!(network.is_closed(client));
}

#[test]
fn a_peer_that_vanishes_during_a_transfer_is_forgotten() {
    let mut network = echoes();
    let client = network.connect(v4(1), at_v4(7));
    network.settle();
    network.send(client, &pattern(20_000));
    network.impair(|towards, frames| if towards == Towards::Clients { vec![] } else { frames });
    network.let_pass_ns(1_000_000);
    network.impair(|_, _| vec![]);
    network.let_pass_ns(2 * IDLE_NS);
    assert_eq!(network.harness.function().deadline_ns(), None);
}

/// Closes each connection a second after it was opened, and records why reads failed.
struct Clock(Vec<ErrorKind>);

impl Service for Clock {
    type Connection = u64;

    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self(Vec::new()), Settings { tcp_ports: vec![13], ..Settings::default() }))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> u64 {
        let end_ns = clock::now_ns() + 1_000_000_000;
        stream.wake_at(Some(end_ns));
        end_ns
    }

    fn ready(&mut self, end_ns: &mut u64, stream: &mut Stream<'_>) {
        match stream.read(&mut [0; 10]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => self.0.push(error.kind()),
            _ => {}
        }
        if clock::now_ns() >= *end_ns {
            stream.write_all(b"time").unwrap();
            stream.close();
        }
    }
}

#[test]
fn a_service_is_woken_on_time_and_data_written_before_close_arrives() {
    let mut network = Network::<Server<Clock>>::new(b"").unwrap();
    let client = network.connect(v4(1), at_v4(13));
    network.let_pass_ns(990_000_000);
    assert!(network.is_connected(client) && network.received(client).is_empty());
    network.let_pass_ns(50_000_000);
    assert_eq!(network.received(client), b"time");
    assert!(network.is_ended(client));
}

#[test]
fn a_service_sees_that_its_peer_has_reset_the_connection() {
    let mut network = Network::<Server<Clock>>::new(b"").unwrap();
    let client = network.connect(v4(1), at_v4(13));
    network.settle();
    network.abort(client);
    network.settle();
    assert_eq!(network.harness.function().service().0, [ErrorKind::ConnectionReset]);
}

/// Reads its settings from its configuration: connections, receive and send buffer, a decimal number each.
struct Configured;

impl Service for Configured {
    type Connection = ();

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let numbers: Vec<usize> =
            str::from_utf8(config).unwrap().split(' ').map(|number| number.parse().unwrap()).collect();
        let settings = Settings {
            tcp_ports: vec![numbers[0] as u16],
            connections_max: numbers[1] as u16,
            receive_bytes: numbers[2],
            send_bytes: numbers[3],
            ..Settings::default()
        };
        Ok((Self, settings))
    }

    fn accept(&mut self, _stream: &mut Stream<'_>) {}

    fn ready(&mut self, (): &mut (), _stream: &mut Stream<'_>) {}
}

#[test]
fn invalid_settings_are_refused_with_name_and_bounds() {
    for (config, refusal) in [
        ("0 8 5000 5000", "a TCP port is 0, and must be 1 to 65535"),
        ("7 0 5000 5000", "the number of connections is 0, and must be 1 to 4096"),
        ("7 9000 5000 5000", "the number of connections is 9000, and must be 1 to 4096"),
        ("7 8 10 5000", "the receive buffer in bytes is 10, and must be 3000 to 16777216"),
        ("7 8 5000 99999999", "the send buffer in bytes is 99999999, and must be 3000 to 16777216"),
    ] {
        let refused = Server::<Configured>::init(config.as_bytes()).err().unwrap();
        assert_eq!(refused.to_string(), refusal);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_segments_cause_a_panic_or_leak_a_slot(
        segments in prop::collection::vec((0_u8..4, any::<u8>(), any::<u32>(), 0_usize..40, any::<u32>()), 1..60)
    ) {
        let mut network = echoes();
        let mut acknowledged = [0_u32; 4];
        for (host, flags, number, len, noise) in segments {
            // Sequence numbers are right as often as not, so that later states are reached.
            let seq = if number % 2 == 0 { 1 + number % 3 } else { number };
            let mut frame = segment((v4(host), 4_000).into(), at_v4(7), flags, seq, &vec![flags; len]);
            if noise % 4 == 0 {
                let at = 14 + noise as usize / 4 % (frame.len() - 14);
                frame[at] ^= 1 << (noise % 8);
            }
            frame[42..46].copy_from_slice(&acknowledged[usize::from(host)].to_be_bytes());
            let verdicts = network.harness.deliver_checked(
                pinion_abi::RX_L4_CHECKSUM_GOOD | pinion_abi::RX_IP_CHECKSUM_GOOD,
                &[&frame],
            );
            for verdict in verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Replied) {
                acknowledged[usize::from(host)] = u32::from_be_bytes(verdict.bytes[38..42].try_into().unwrap()) + 1;
            }
            network.harness.let_pass_ns(u64::from(noise));
        }
        network.harness.let_pass_ns(3 * IDLE_NS);
        prop_assert_eq!(network.harness.function().deadline_ns(), None);
    }
}
