//! The translator as hosts on both sides see it.

use std::net::Ipv4Addr;

use crate::support::*;
use crate::tcp::establish;
use nat::Nat;
use pinion_sdk::Direction;
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns, kept_until_ns, take_log};
use proptest::prelude::*;

pub(crate) const CONFIG: &str = r#"
inside = ["10.0.0.0/8"]
outside = ["203.0.113.1"]
"#;
pub(crate) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);
pub(crate) const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// To the outside, and to the inside.
pub(crate) const OUT: Outcome = Outcome::Sent;
pub(crate) const IN: Outcome = Outcome::SentTo(1);

pub(crate) fn nat(config: &str) -> Harness<Nat> {
    Harness::new(config.as_bytes()).unwrap()
}

pub(crate) fn pass(nat: &mut Harness<Nat>, frame: &Frame) -> (Outcome, Vec<u8>) {
    let verdict = nat.deliver(&[&frame.bytes()]).remove(0);
    (verdict.outcome, verdict.bytes)
}

/// Returns the outside port of a host's datagrams.
pub(crate) fn port_of(nat: &mut Harness<Nat>, from: End) -> u16 {
    let (outcome, bytes) = pass(nat, &udp(from, (PEER, 53), b"hello"));
    assert_eq!(outcome, OUT);
    let ((address, port), _) = ends(&bytes);
    assert_eq!(address, OUTSIDE);
    port
}

/// The same, of datagrams that are answered.
fn answered_port_of(nat: &mut Harness<Nat>, from: End) -> u16 {
    let port = port_of(nat, from);
    assert_eq!(pass(nat, &udp((PEER, 53), (OUTSIDE, port), b"answer")).0, IN);
    port
}

#[test]
fn a_datagram_goes_out_by_a_port_and_its_answer_comes_back() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    assert!((1024..49_152).contains(&port), "{port}");
    let (_, bytes) = pass(&mut nat, &udp((HOST, 5000), (PEER, 53), b"hello"));
    assert_eq!(bytes, udp((OUTSIDE, port), (PEER, 53), b"hello").bytes());
    let answered = pass(&mut nat, &udp((PEER, 53), (OUTSIDE, port), b"answer"));
    assert_eq!(answered, (IN, udp((PEER, 53), (HOST, 5000), b"answer").bytes()));
}

#[test]
fn an_inside_end_has_one_port_for_all_peers_and_two_ends_have_two() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let (_, bytes) = pass(&mut nat, &udp((HOST, 5000), end("192.0.2.1:99"), b"x"));
    assert_eq!(ends(&bytes).0, (OUTSIDE, port));
    assert_ne!(port_of(&mut nat, (HOST, 5001)), port);
    assert_ne!(port_of(&mut nat, (Ipv4Addr::new(10, 0, 0, 8), 5000)), port);
    let (outcome, bytes) = pass(&mut nat, &udp(end("192.0.2.200:7"), (OUTSIDE, port), b"from a third"));
    assert_eq!((outcome, ends(&bytes).1), (IN, (HOST, 5000)));
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let mut nat = nat(CONFIG);
    let (outcome, bytes) = pass(&mut nat, &udp((HOST, 5000), (PEER, 53), b"x").checksum(0));
    assert_eq!((outcome, &bytes[40..42]), (OUT, &[0, 0][..]));
}

#[test]
fn a_connection_passes_both_ways_and_only_its_first_segment_makes_a_mapping() {
    let mut nat = nat(CONFIG);
    let (from, to) = ((HOST, 4000), (PEER, 443));
    for flags in [ACK, ACK | FIN, RST, SYN | RST] {
        assert_eq!(pass(&mut nat, &tcp(from, to, flags, b"")).0, Outcome::Dropped, "flags {flags:#x}");
    }
    let (outcome, bytes) = pass(&mut nat, &tcp(from, to, SYN, b""));
    let ((_, port), _) = ends(&bytes);
    assert_eq!((outcome, &bytes), (OUT, &tcp((OUTSIDE, port), to, SYN, b"").bytes()));
    let answered = pass(&mut nat, &tcp(to, (OUTSIDE, port), SYN | ACK, b""));
    assert_eq!(answered, (IN, tcp(to, from, SYN | ACK, b"").bytes()));
    let sent = pass(&mut nat, &tcp(from, to, ACK, b"data"));
    assert_eq!(sent, (OUT, tcp((OUTSIDE, port), to, ACK, b"data").bytes()));
}

#[test]
fn a_ping_is_answered_and_its_identifier_translated() {
    let mut nat = nat(CONFIG);
    let (outcome, bytes) = pass(&mut nat, &request(HOST, PEER, 77, b"abcdefg"));
    let ((_, id), _) = ends(&bytes);
    assert_eq!((outcome, &bytes), (OUT, &request(OUTSIDE, PEER, id, b"abcdefg").bytes()));
    let answered = pass(&mut nat, &reply(PEER, OUTSIDE, id, b"abcdefg"));
    assert_eq!(answered, (IN, reply(PEER, HOST, 77, b"abcdefg").bytes()));
    assert_eq!(pass(&mut nat, &request(PEER, OUTSIDE, id, b"abcdefg")).0, Outcome::Dropped, "a ping from outside");
    assert_eq!(pass(&mut nat, &reply(HOST, PEER, 77, b"")).0, Outcome::Dropped, "an answer to none");
}

#[test]
fn a_host_reaches_another_by_its_outside_address() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let other = end("10.0.0.8:6000");
    let (outcome, bytes) = pass(&mut nat, &udp(other, (OUTSIDE, port), b"hello"));
    let (from, to) = ends(&bytes);
    assert_eq!((outcome, from.0, to), (IN, OUTSIDE, (HOST, 5000)));
    assert_eq!(bytes, udp(from, to, b"hello").bytes());
    let (outcome, bytes) = pass(&mut nat, &udp((HOST, 5000), from, b"answer"));
    assert_eq!((outcome, bytes), (IN, udp((OUTSIDE, port), other, b"answer").bytes()));
}

#[test]
fn where_one_output_leads_both_ways_what_is_from_inside_to_inside_is_sent_back() {
    let mut nat = nat(&format!("{CONFIG}\n[to_inside]\noutput = 0\n"));
    let port = port_of(&mut nat, (HOST, 5000));
    let to_other = pass(&mut nat, &udp(end("10.0.0.8:6000"), (OUTSIDE, port), b"hello")).0;
    assert_eq!(to_other, Outcome::Replied);
    assert_eq!(pass(&mut nat, &udp((PEER, 53), (OUTSIDE, port), b"hello")).0, OUT);
}

#[test]
fn packets_that_go_neither_in_nor_out_are_dropped() {
    let mut nat = nat(CONFIG);
    let from = (HOST, 5000);
    for datagram in [
        udp(from, end("10.0.0.9:53"), b"inside to inside"),
        udp((PEER, 53), end("198.51.100.1:53"), b"outside to outside"),
        udp(from, end("224.0.0.1:53"), b"to a group"),
        udp(from, end("255.255.255.255:53"), b"to all"),
        udp((PEER, 53), (OUTSIDE, 5000), b"no mapping"),
        udp((PEER, 53), (OUTSIDE, 80), b"to a port that is never used"),
        Frame::other(47, HOST, PEER).payload(&[0; 20]),
        icmp(HOST, PEER, 13, [0; 4], &[0; 12]),
    ] {
        assert_eq!(pass(&mut nat, &datagram).0, Outcome::Dropped);
    }
    assert_eq!(nat.function().mapping_count(), 0);
}

#[test]
fn when_ports_have_run_out_newcomers_are_refused_and_others_go_on() {
    let mut nat = nat(&format!("{CONFIG}port_min = 2000\nport_max = 2002"));
    let mut ports = [1, 2, 3].map(|port| answered_port_of(&mut nat, (HOST, port)));
    assert_eq!(pass(&mut nat, &udp((HOST, 4), (PEER, 53), b"x")).0, Outcome::Dropped);
    assert_eq!(nat.function().counters().no_room, 1);
    assert_eq!(port_of(&mut nat, (HOST, 2)), ports[1]);
    assert_eq!(pass(&mut nat, &tcp((HOST, 4), (PEER, 53), SYN, b"")).0, OUT, "another protocol has its own");
    ports.sort_unstable();
    assert_eq!(ports, [2000, 2001, 2002]);
    advance_clock_ns(300 * SECOND_NS);
    assert_eq!(pass(&mut nat, &udp((HOST, 4), (PEER, 53), b"x")).0, OUT);
}

#[test]
fn neither_a_table_nor_a_host_has_more_mappings_than_it_may() {
    let mut full = nat(&format!("{CONFIG}mappings_max = 2"));
    let _ = [1, 2].map(|port| answered_port_of(&mut full, (HOST, port)));
    assert_eq!(pass(&mut full, &udp((HOST, 3), (PEER, 53), b"x")).0, Outcome::Dropped);
    let mut fair = nat(&format!("{CONFIG}mappings_per_host_max = 2"));
    let _ = [1, 2].map(|port| answered_port_of(&mut fair, (HOST, port)));
    assert_eq!(pass(&mut fair, &udp((HOST, 3), (PEER, 53), b"x")).0, Outcome::Dropped);
    let _ = port_of(&mut fair, end("10.0.0.8:3"));
    advance_clock_ns(300 * SECOND_NS);
    let _ = port_of(&mut fair, (HOST, 3));
    assert_eq!(fair.function().mapping_count(), 1, "those that have ended are no longer counted");
}

#[test]
fn when_there_is_no_room_mappings_without_an_answer_are_evicted_and_answered_ones_are_not() {
    let (host, flooder) = (end("10.0.0.8:1"), HOST);
    for limit in ["mappings_max = 4", "port_min = 2000\nport_max = 2003", "mappings_per_host_max = 4"] {
        let mut nat = nat(&format!("{CONFIG}{limit}"));
        let kept = answered_port_of(&mut nat, (flooder, 1));
        for port in 100..200 {
            let _ = port_of(&mut nat, (flooder, port));
        }
        // Of a whole table or all ports, the flood leaves others their new mappings.
        let new = answered_port_of(&mut nat, host);
        for port in 200..300 {
            let _ = port_of(&mut nat, (flooder, port));
            let _ = pass(&mut nat, &request(flooder, PEER, port, b"")).0;
        }
        assert_eq!([port_of(&mut nat, (flooder, 1)), port_of(&mut nat, host)], [kept, new], "{limit}");
        assert_eq!(establish(&mut nat, (flooder, 1), (PEER, 443)).0, OUTSIDE, "{limit}");
        assert_eq!(nat.function().counters().no_room, 0, "{limit}");
    }
}

/// Returns whether a mapping still exists after a time without packets: an answer passes then.
pub(crate) fn lasts(nat: &mut Harness<Nat>, answer: &Frame, seconds: u64) -> bool {
    advance_clock_ns(seconds * SECOND_NS);
    pass(nat, answer).0 == IN
}

#[test]
fn a_mapping_lasts_as_long_after_a_packet_from_inside_as_its_protocol_wants() {
    let mut nat = nat(CONFIG);
    let port = port_of(&mut nat, (HOST, 5000));
    let answer = udp((PEER, 53), (OUTSIDE, port), b"x");
    assert!(lasts(&mut nat, &answer, 299));
    assert!(lasts(&mut nat, &answer, 299), "the first answer counts");
    assert!(!lasts(&mut nat, &answer, 1), "other packets from outside keep none");
    assert_eq!(nat.function().mapping_count(), 0);

    let (_, bytes) = pass(&mut nat, &request(HOST, PEER, 77, b""));
    let answer = reply(PEER, OUTSIDE, ends(&bytes).0.1, b"");
    assert!(lasts(&mut nat, &answer, 59));
    advance_clock_ns(SECOND_NS);
    let _ = pass(&mut nat, &request(HOST, PEER, 77, b""));
    assert!(lasts(&mut nat, &answer, 59));
    assert!(!lasts(&mut nat, &answer, 1));
}

#[test]
fn the_receiving_port_decides_the_side_and_the_source_must_belong_to_it() {
    let mut nat = nat(&format!("{CONFIG}inside_ports = [1]"));
    let mut from = |port, frame: &Frame| nat.deliver_from(port, &[&frame.bytes()]).remove(0);
    for number in 0..100 {
        let forged = (Ipv4Addr::new(10, 1, 2, number), 5000);
        assert_eq!(from(0, &udp(forged, (PEER, 53), b"x")).outcome, Outcome::Dropped);
        assert_eq!(from(0, &tcp(forged, (OUTSIDE, 5000), SYN, b"x")).outcome, Outcome::Dropped);
    }
    assert_eq!(from(1, &udp((PEER, 53), (OUTSIDE, 5000), b"x")).outcome, Outcome::Dropped);
    let sent = from(1, &udp((HOST, 5000), (PEER, 53), b"x"));
    assert_eq!(sent.outcome, OUT);
    let outside = ends(&sent.bytes).0;
    assert_eq!(from(0, &udp((PEER, 53), outside, b"x")).outcome, IN);
    assert_eq!(from(2, &udp((PEER, 53), outside, b"x")).outcome, IN, "what is not the inside's is the outside's");
    assert_eq!((nat.function().counters().spoofed, nat.function().mapping_count()), (201, 1));
}

#[test]
fn a_packet_from_outside_with_an_outside_address_as_its_source_is_spoofed_and_one_from_another_stage_is_not() {
    for config in [CONFIG.to_owned(), format!("{CONFIG}inside_ports = [1]")] {
        let mut nat = nat(&config);
        let sent = nat.deliver_from(1, &[&udp((HOST, 5000), (PEER, 53), b"x").bytes()]).remove(0);
        let outside = ends(&sent.bytes).0;
        let forged = udp((OUTSIDE, 6000), outside, b"x").bytes();
        assert_eq!(nat.deliver_from(0, &[&forged])[0].outcome, Outcome::Dropped);
        assert_eq!(nat.function().counters().spoofed, 1);
        assert_eq!(nat.deliver_reply(Direction::Backward, 0, &[&forged])[0].outcome, IN);
    }
}

#[test]
fn in_a_chain_with_a_way_back_packets_that_go_back_come_from_outside() {
    let mut nat = nat(&format!("{CONFIG}\n[to_inside]\noutput = 0\n"));
    let mut pass = |direction, frame: &Frame| nat.deliver_direction(direction, 0, &[&frame.bytes()]).remove(0);
    let sent = pass(Direction::Forward, &udp((HOST, 5000), (PEER, 53), b"x"));
    let outside = ends(&sent.bytes).0;
    assert_eq!(sent.outcome, OUT);
    assert_eq!(pass(Direction::Backward, &udp((PEER, 53), outside, b"x")).outcome, OUT);
    assert_eq!(pass(Direction::Backward, &udp((HOST, 5001), (PEER, 53), b"x")).outcome, Outcome::Dropped);
    assert_eq!(pass(Direction::Forward, &udp((PEER, 53), outside, b"x")).outcome, Outcome::Dropped);
    assert_eq!(nat.function().counters().spoofed, 2);
    // The router behind it has an inside address, and sends errors from there.
    let quoted = udp(outside, (PEER, 53), b"x").packet();
    let error = icmp(Ipv4Addr::new(10, 0, 0, 254), OUTSIDE, 11, [0; 4], &quoted).bytes();
    let told = nat.deliver_reply(Direction::Backward, 0, &[&error]).remove(0);
    assert_eq!((told.outcome, ends(&told.bytes).1.0), (OUT, HOST));
}

#[test]
fn without_a_configured_side_sources_are_believed_and_a_second_port_is_warned_about() {
    let mut nat = nat(CONFIG);
    let sent = udp((HOST, 5000), (PEER, 53), b"x").bytes();
    for port in [0, 1, 1, 2] {
        assert_eq!(nat.deliver_from(port, &[&sent])[0].outcome, OUT);
    }
    let lines = take_log();
    assert!(
        lines.len() == 1
            && lines[0]
                .1
                .contains("come by the node's ports 0 and 1, so forged ones cannot be detected: set `inside_ports`"),
        "{lines:?}"
    );
}

#[test]
fn an_instance_is_kept_for_as_long_as_it_remembers_a_mapping() {
    let mut nat = nat(CONFIG);
    assert_eq!(pass(&mut nat, &udp((PEER, 53), (OUTSIDE, 5000), b"x")).0, Outcome::Dropped);
    assert_eq!(kept_until_ns(), None);
    let _ = port_of(&mut nat, (HOST, 5000));
    assert_eq!(kept_until_ns(), Some(300 * SECOND_NS));
    let outside = establish(&mut nat, (HOST, 4000), (PEER, 443));
    assert_eq!(kept_until_ns(), Some(7440 * SECOND_NS));
    advance_clock_ns(1000 * SECOND_NS);
    assert_eq!(pass(&mut nat, &tcp((PEER, 443), outside, RST, b"")).0, IN);
    assert_eq!(kept_until_ns(), Some(1240 * SECOND_NS));
}

#[test]
fn of_several_outside_addresses_a_host_has_one() {
    let mut nat = nat("inside = [\"10.0.0.0/8\"]\noutside = [\"203.0.113.1\", \"203.0.113.2\"]");
    let mut seen = std::collections::BTreeSet::new();
    for host in 1..50 {
        let host = Ipv4Addr::new(10, 0, 0, host);
        let addresses = [1, 2, 3].map(|port| ends(&pass(&mut nat, &udp((host, port), (PEER, 53), b"x")).1).0.0);
        assert_eq!(addresses[1..], [addresses[0]; 2]);
        seen.insert(addresses[0]);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn hardware_addresses_and_outputs_are_those_of_the_configuration() {
    let links = "\n[to_outside]\noutput = 2\nmac = \"02:00:00:00:02:01\"\nsource_mac = \"02:00:00:00:02:99\"\n\
                 [to_inside]\noutput = 3\nmac = \"02:00:00:00:03:01\"";
    let mut nat = nat(&format!("{CONFIG}{links}"));
    let (outcome, bytes) = pass(&mut nat, &udp((HOST, 5000), (PEER, 53), b"x"));
    assert_eq!((outcome, &bytes[..12]), (Outcome::SentTo(2), &[2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 2, 0x99][..]));
    let port = ends(&bytes).0.1;
    let (outcome, bytes) = pass(&mut nat, &udp((PEER, 53), (OUTSIDE, port), b"x"));
    assert_eq!((outcome, &bytes[..12]), (Outcome::SentTo(3), &[2, 0, 0, 0, 3, 1, 2, 0, 0, 0, 0, 1][..]));
}

#[test]
fn what_is_dropped_is_logged_at_most_every_ten_seconds() {
    let mut nat = nat(CONFIG);
    let stray = udp((PEER, 53), (OUTSIDE, 5000), b"x");
    let _ = pass(&mut nat, &stray);
    let _ = pass(&mut nat, &stray);
    assert_eq!(take_log().len(), 1);
    advance_clock_ns(10 * SECOND_NS);
    let _ = pass(&mut nat, &stray);
    let line = take_log().remove(0).1;
    assert!(line.contains("3 without a mapping"), "{line}");
}

#[test]
fn a_wrong_configuration_is_refused_with_what_is_wrong() {
    for (config, reason) in [
        ("inside = []\noutside = [\"203.0.113.1\"]", "`inside` prefixes is to be 1 to 64, and is 0"),
        ("inside = [\"10.0.0.0/8\"]\noutside = []", "`outside` addresses is to be 1 to 16, and is 0"),
        ("inside = [\"10.0.0.0/8\"]\noutside = [\"10.0.0.1\"]", "10.0.0.1 is inside as well"),
        ("inside = [\"10.0.0.0/8\"]\noutside = [\"1.1.1.1\", \"1.1.1.1\"]", "1.1.1.1 is there twice"),
        ("inside = [\"10.0.0.0/40\"]\noutside = [\"1.1.1.1\"]", "inside[0]"),
        (&format!("{CONFIG}port_min = 9\nport_max = 8"), "ports 9 to 8 are an empty range"),
        (&format!("{CONFIG}mappings_max = 1000000"), "mappings_max is to be 1 to 262144, and is 1000000"),
        (&format!("{CONFIG}mappings_per_host_max = 0"), "mappings_per_host_max is to be 1 to"),
        (&format!("{CONFIG}port = 9"), "port"),
        (&format!("{CONFIG}[timeouts_s]\nudp = 0"), "timeouts_s: 0 seconds; 1 to "),
        (&format!("{CONFIG}[timeouts_s]\ntcp_established = 7439"), "tcp_established is 7439; at least 7440 is needed"),
        (&format!("{CONFIG}connections_max = 0"), "connections_max is to be 1 to 524288, and is 0"),
        (&format!("{CONFIG}[to_inside]\noutput = 16"), "output 16; 0 to 15 are possible"),
    ] {
        let refusal = Harness::<Nat>::new(config.as_bytes()).err().unwrap().to_string();
        assert!(refusal.contains(reason), "{refusal:?} instead of {reason:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = nat(CONFIG).deliver(&[&frame]);
    }

    #[test]
    fn no_change_of_a_frame_panics(
        kind in 0..4_u8, changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        len in any::<proptest::sample::Index>(),
    ) {
        let mut nat = nat(CONFIG);
        let port = port_of(&mut nat, (HOST, 5000));
        let quoted = udp((OUTSIDE, port), (PEER, 53), b"quoted").packet();
        let mut frame = match kind {
            0 => udp((HOST, 5000), (PEER, 53), b"x"),
            1 => tcp((HOST, 4000), (PEER, 443), SYN, b""),
            2 => request(HOST, PEER, 7, b"x"),
            _ => icmp(PEER, OUTSIDE, 3, [0; 4], &quoted),
        }.bytes();
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let _ = nat.deliver(&[&frame[..=len.index(frame.len())]]);
    }
}
