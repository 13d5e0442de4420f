//! The function as a network sees it: frames in, allowed frames out.

#![cfg(not(target_family = "wasm"))]

mod network;

use firewall::{Denial, Firewall};
use network::{ACK, FIN, RST, SYN, reply, request, tcp, udp};
use pinion_sdk::Direction;
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns, kept_until_ns, take_log};

const S_NS: u64 = 1_000_000_000;

/// Inside hosts may begin any flow except to port 25; outside hosts may begin flows to port 80 of one host.
const POLICY: &str = r#"
inside = ["10.0.0.0/8", "fd00::/8"]
connections_max = 4

[[rule]]
action = "deny"
protocol = "tcp"
ports = [25]

[[rule]]
action = "allow"
direction = "out"

[[rule]]
action = "allow"
direction = "in"
protocol = "tcp"
to = ["10.0.0.80"]
ports = [80, "8000-8099"]
"#;

const CLIENT: &str = "10.0.0.1";
const SERVER: &str = "192.0.2.1";

struct Guarded {
    harness: Harness<Firewall>,
}

impl Guarded {
    fn by(policy: &str) -> Self {
        Self { harness: Harness::new(policy.as_bytes()).unwrap() }
    }

    fn passes(&mut self, frame: &Frame) -> bool {
        self.passes_bytes(&frame.bytes())
    }

    fn passes_bytes(&mut self, frame: &[u8]) -> bool {
        let verdict = self.harness.deliver(&[frame]).remove(0);
        assert_eq!(verdict.bytes, frame, "frames are left as they are");
        verdict.outcome == Outcome::Sent
    }

    fn passes_from(&mut self, port: u16, frame: &Frame) -> bool {
        self.harness.deliver_from(port, &[&frame.bytes()]).remove(0).outcome == Outcome::Sent
    }

    /// Does a TCP handshake.
    fn connect(&mut self, port: u16) {
        assert!(self.passes(&tcp(CLIENT, port, SERVER, 443, SYN)));
        assert!(self.passes(&tcp(SERVER, 443, CLIENT, port, SYN | ACK)));
        assert!(self.passes(&tcp(CLIENT, port, SERVER, 443, ACK)));
    }

    fn denied(&mut self, denial: Denial) -> u64 {
        self.harness.function().counters().denied[denial as usize]
    }
}

fn refusal(policy: &str) -> String {
    Harness::<Firewall>::new(policy.as_bytes()).err().unwrap().to_string()
}

#[test]
fn answers_pass_and_unsolicited_packets_do_not() {
    for (client, server) in [(CLIENT, SERVER), ("fd00::1", "2001:db8::1")] {
        let mut guarded = Guarded::by(POLICY);
        assert!(!guarded.passes(&udp(server, 53, client, 5000)));
        assert!(guarded.passes(&udp(client, 5000, server, 53)));
        assert!(guarded.passes(&udp(server, 53, client, 5000)));
        assert!(!guarded.passes(&udp(server, 54, client, 5000)));
        assert!(!guarded.passes(&udp(server, 53, client, 5001)));
        assert_eq!(guarded.denied(Denial::ByRules), 3);
    }
}

#[test]
fn the_first_rule_that_fits_decides_and_none_means_no() {
    let mut guarded = Guarded::by(POLICY);
    assert!(!guarded.passes(&tcp(CLIENT, 5000, SERVER, 25, SYN)));
    assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 26, SYN)));
    assert!(guarded.passes(&tcp(SERVER, 5000, "10.0.0.80", 80, SYN)));
    assert!(guarded.passes(&tcp("10.0.0.80", 80, SERVER, 5000, SYN | ACK)));
    assert!(guarded.passes(&tcp(SERVER, 5000, "10.0.0.80", 8099, SYN)));
    assert!(!guarded.passes(&tcp(SERVER, 5000, "10.0.0.80", 8100, SYN)));
    assert!(!guarded.passes(&tcp(SERVER, 5000, "10.0.0.81", 80, SYN)));
    assert!(!guarded.passes(&udp(SERVER, 5000, "10.0.0.80", 80)));
}

#[test]
fn packet_results_and_rule_decisions_are_shown_as_metrics() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(5000);
    assert!(!guarded.passes(&tcp(CLIENT, 5000, SERVER, 25, SYN)));
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 5000)));
    let metric = |name: &str, labels: &[(&str, &str)]| guarded.harness.metric(name, labels).unwrap();
    assert_eq!(metric("firewall_packets_allowed", &[]), 3);
    assert_eq!(metric("firewall_packets_denied", &[("reason", "rules")]), 2);
    let decisions = [("0", "deny"), ("1", "allow"), ("2", "allow"), ("none", "deny")]
        .map(|(rule, action)| metric("firewall_rule_decisions", &[("rule", rule), ("action", action)]));
    assert_eq!(decisions, [1, 1, 0, 1]);
}

#[test]
fn rules_from_the_hundredth_on_share_their_counters() {
    let rule = "[[rule]]\naction = \"deny\"\nprotocol = \"tcp\"\n";
    let policy = format!("inside = [\"10.0.0.0/8\"]\n{}[[rule]]\naction = \"allow\"\n", rule.repeat(150));
    let mut guarded = Guarded::by(&policy);
    assert!(guarded.passes(&udp(CLIENT, 5000, SERVER, 53)));
    let decisions = |rule| guarded.harness.metric("firewall_rule_decisions", &[("rule", rule), ("action", "allow")]);
    assert_eq!((decisions("more"), decisions("150")), (Some(1), None));
}

#[test]
fn only_a_syn_begins_a_connection() {
    for flags in [0, ACK, SYN | ACK, RST, FIN, SYN | FIN, SYN | RST] {
        assert!(!Guarded::by(POLICY).passes(&tcp(CLIENT, 5000, SERVER, 443, flags)), "{flags:#x}");
    }
    let mut guarded = Guarded::by(POLICY);
    guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, ACK));
    assert_eq!(guarded.denied(Denial::NotBegun), 1);
}

#[test]
fn a_connection_that_is_reset_or_closed_by_both_goes_away_whatever_comes() {
    let (client, server) = (tcp(CLIENT, 5000, SERVER, 443, FIN | ACK), tcp(SERVER, 443, CLIENT, 5000, FIN | ACK));
    for (ends, sent_again) in
        [(&[tcp(SERVER, 443, CLIENT, 5000, RST)][..], &client), (&[client.clone(), server.clone()], &server)]
    {
        let mut guarded = Guarded::by(POLICY);
        guarded.connect(5000);
        assert!(ends.iter().all(|end| guarded.passes(end)));
        assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, ACK)), "the last acknowledgement");
        advance_clock_ns(239 * S_NS);
        assert!(guarded.passes(sent_again), "what is sent again finds its flow");
        advance_clock_ns(S_NS);
        assert!(!guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
        guarded.connect(5000);
    }
}

#[test]
fn a_connection_whose_resets_sender_goes_on_was_not_reset() {
    let sides = [[(CLIENT, 5000), (SERVER, 443)], [(SERVER, 443), (CLIENT, 5000)]];
    for [(from, from_port), (to, to_port)] in sides {
        let of_sender = |flags| tcp(from, from_port, to, to_port, flags);
        let of_other = tcp(to, to_port, from, from_port, ACK);
        for (next, lasts) in [
            (of_sender(ACK).sequence(1), true),
            (of_sender(ACK).sequence(0x4000_0000), false),
            (of_sender(RST), false),
            (of_other.clone(), false),
        ] {
            let mut guarded = Guarded::by(POLICY);
            guarded.connect(5000);
            assert!(guarded.passes(&of_sender(RST).sequence(1000)));
            assert!(guarded.passes(&next));
            advance_clock_ns(7439 * S_NS);
            assert_eq!(guarded.passes(&of_other), lasts);
        }
    }
}

#[test]
fn a_fin_with_a_guessed_sequence_number_closes_nothing() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(5000);
    let guessed = tcp(SERVER, 443, CLIENT, 5000, FIN | ACK).sequence(0x4000_0000);
    assert!(guarded.passes(&guessed) && guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, FIN | ACK)));
    advance_clock_ns(7439 * S_NS);
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)), "half closed is open");
}

#[test]
fn a_forged_answer_does_not_keep_the_real_one_from_establishing_a_connection() {
    let real = tcp(SERVER, 443, CLIENT, 5000, SYN | ACK);
    let forged = real.clone().sequence(0x4000_0000).acknowledged(0x4000_0000);
    for answers in [[&forged, &real], [&real, &forged]] {
        let mut guarded = Guarded::by(POLICY);
        assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, SYN)));
        assert!(answers.iter().all(|answer| guarded.passes(answer)));
        assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, ACK)));
        advance_clock_ns(7439 * S_NS);
        assert!(guarded.passes(&real));
    }
}

#[test]
fn a_connection_that_one_side_closed_goes_on() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(5000);
    assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, FIN | ACK)));
    advance_clock_ns(3600 * S_NS);
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
}

#[test]
fn a_closing_connection_can_be_reopened_by_a_side_that_the_rules_allow() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(5000);
    assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, RST)));
    assert!(!guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, SYN)));
    guarded.connect(5000);
    advance_clock_ns(60 * S_NS);
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
}

#[test]
fn what_is_idle_is_forgotten_and_what_is_used_is_not() {
    let mut guarded = Guarded::by(POLICY);
    assert!(guarded.passes(&udp(CLIENT, 5000, SERVER, 53)));
    advance_clock_ns(29 * S_NS);
    assert!(guarded.passes(&udp(SERVER, 53, CLIENT, 5000)));
    for _ in 0..3 {
        advance_clock_ns(119 * S_NS);
        assert!(guarded.passes(&udp(SERVER, 53, CLIENT, 5000)));
    }
    advance_clock_ns(120 * S_NS);
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 5000)));
    assert!(guarded.passes(&udp(CLIENT, 5000, SERVER, 53)));
    advance_clock_ns(30 * S_NS);
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 5000)), "the flow was not answered");
}

#[test]
fn a_ping_is_answered_once_asked_and_not_pinged_back() {
    let mut guarded = Guarded::by(POLICY);
    assert!(guarded.passes(&request(CLIENT, SERVER, 7)));
    assert!(guarded.passes(&reply(SERVER, CLIENT, 7)));
    assert!(!guarded.passes(&reply(SERVER, CLIENT, 8)));
    assert!(!guarded.passes(&request(SERVER, CLIENT, 7)));
    assert_eq!((guarded.denied(Denial::NotBegun), guarded.denied(Denial::ByRules)), (1, 1));
}

#[test]
fn an_error_about_a_known_flow_passes_to_the_sender_of_the_quoted_packet() {
    for (client, server, router, other) in
        [(CLIENT, SERVER, "192.0.2.99", "10.0.0.2"), ("fd00::1", "2001:db8::1", "2001:db8::99", "fd00::2")]
    {
        let mut guarded = Guarded::by(POLICY);
        let asked = udp(client, 5000, server, 53);
        let error = Frame::unreachable(router, &asked);
        assert!(!guarded.passes(&error));
        assert!(guarded.passes(&asked));
        assert!(guarded.passes(&error));
        let kind = if client == CLIENT { 3 } else { 1 };
        let for_another = Frame::icmp(router, other, kind, 0, [0; 4]).payload(&asked.packet());
        assert!(!guarded.passes(&for_another));
        assert!(!guarded.passes(&Frame::unreachable(router, &udp(client, 5001, server, 53))));
        advance_clock_ns(30 * S_NS);
        assert!(!guarded.passes(&error), "it keeps no flow alive");
    }
}

#[test]
fn later_fragments_pass_behind_the_first_one_of_their_datagram() {
    let mut guarded = Guarded::by(POLICY);
    let whole = udp(CLIENT, 5000, SERVER, 53);
    assert!(whole.fragments(16).iter().all(|part| guarded.passes(part)));
    let of_another = whole.id(2).fragments(16).remove(1).bytes();
    assert_eq!(guarded.harness.deliver(&[&of_another]), [], "it waits");
    let refused = udp(SERVER, 5000, CLIENT, 53).id(3);
    assert!(!refused.fragments(16).iter().any(|part| guarded.passes(part)));
}

#[test]
fn connections_whose_handshake_is_not_complete_make_room_and_others_do_not() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(1);
    // The table has room for three more, and a flood takes it.
    assert!((1000..1100).all(|port| guarded.passes(&tcp(CLIENT, port, SERVER, 443, SYN))));
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 1, ACK)));
    for port in 2..5 {
        guarded.connect(port);
    }
    assert!(!guarded.passes(&tcp(CLIENT, 5, SERVER, 443, SYN)));
    assert_eq!(guarded.denied(Denial::NoRoom), 1);
    assert!((1..5).all(|port| guarded.passes(&tcp(SERVER, 443, CLIENT, port, ACK))));
    assert!(guarded.passes(&tcp(CLIENT, 4, SERVER, 443, RST)));
    guarded.connect(5);
}

/// Allows all flows, to servers inside as well.
const OPEN: &str = "inside = [\"10.0.0.0/8\", \"fd00::/8\"]\n[[rule]]\naction = \"allow\"\n";

/// Returns an outside address; no two of them count as one host.
fn stranger(number: u16) -> String {
    format!("198.51.{}.{}", number >> 8, number & 0xff)
}

#[test]
fn answered_forged_handshakes_evict_no_connection_and_are_soon_forgotten() {
    let mut guarded = Guarded::by(OPEN);
    guarded.connect(1);
    for number in 0..5000 {
        let stranger = stranger(number);
        assert!(guarded.passes(&tcp(&stranger, 1000, CLIENT, 80, SYN)));
        assert!(guarded.passes(&tcp(CLIENT, 80, &stranger, 1000, SYN | ACK)));
    }
    guarded.connect(2);
    assert_eq!(guarded.denied(Denial::NoRoom), 0);
    assert!((1..3).all(|port| guarded.passes(&tcp(SERVER, 443, CLIENT, port, ACK))));
    advance_clock_ns(30 * S_NS);
    // At most so many are removed at a time, so that packets do not wait.
    (0..100).for_each(|_| assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 1, ACK))));
    assert_eq!(guarded.harness.function().connection_count(), 2);
}

#[test]
fn a_connection_lasts_when_its_beginner_has_acknowledged_the_answer_and_not_before() {
    let begun = tcp(SERVER, 1000, CLIENT, 80, SYN);
    let answer = tcp(CLIENT, 80, SERVER, 1000, SYN | ACK);
    let with_ack = |number| tcp(SERVER, 1000, CLIENT, 80, ACK).acknowledged(number);
    for (proof, lasts) in [(None, false), (Some(with_ack(0x8000_0000)), false), (Some(with_ack(1)), true)] {
        let mut guarded = Guarded::by(OPEN);
        assert!(guarded.passes(&begun) && guarded.passes(&answer));
        assert!(proof.iter().all(|proof| guarded.passes(proof)));
        advance_clock_ns(7439 * S_NS);
        assert_eq!(guarded.passes(&tcp(CLIENT, 80, SERVER, 1000, ACK)), lasts);
    }
    // Both sides begin at once: each answers with SYN and ACK.
    let mut guarded = Guarded::by(OPEN);
    for frame in [&begun, &tcp(CLIENT, 80, SERVER, 1000, SYN), &tcp(SERVER, 1000, CLIENT, 80, SYN | ACK), &answer] {
        assert!(guarded.passes(frame));
    }
    advance_clock_ns(7439 * S_NS);
    assert!(guarded.passes(&tcp(CLIENT, 80, SERVER, 1000, ACK)));
}

#[test]
fn a_keepalive_after_two_hours_finds_its_connection() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(5000);
    for _ in 0..3 {
        advance_clock_ns(7200 * S_NS);
        assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, ACK)));
        assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
    }
}

#[test]
fn a_reset_with_a_guessed_sequence_number_ends_nothing() {
    let mut guarded = Guarded::by(POLICY);
    guarded.connect(5000);
    let guessed = tcp(SERVER, 443, CLIENT, 5000, RST).sequence(0x4000_0000);
    assert!(guarded.passes(&guessed), "its receiver judges it");
    assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, ACK)));
    advance_clock_ns(7200 * S_NS);
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
}

#[test]
fn answered_datagrams_and_pings_make_room_for_others_and_take_it_from_no_connection() {
    let mut guarded = Guarded::by(POLICY.replace("connections_max = 4", "connections_max = 6").as_str());
    guarded.connect(1);
    assert!(guarded.passes(&udp(CLIENT, 2, SERVER, 53)) && guarded.passes(&udp(SERVER, 53, CLIENT, 2)));
    assert!(guarded.passes(&udp(CLIENT, 2, SERVER, 53)), "this one goes on");
    for port in 100..110 {
        assert!(guarded.passes(&udp(CLIENT, port, SERVER, 53)));
        assert!(guarded.passes(&udp(SERVER, 53, CLIENT, port)));
        assert!(guarded.passes(&request(CLIENT, SERVER, port)));
        assert!(guarded.passes(&reply(SERVER, CLIENT, port)));
    }
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 100)), "those that were answered once make room");
    assert!(guarded.passes(&udp(SERVER, 53, CLIENT, 2)), "before those that converse");
    (2..7).for_each(|port| guarded.connect(port));
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 2)), "which make room as well");
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 1, ACK)));
    assert_eq!(guarded.denied(Denial::NoRoom), 0);
}

#[test]
fn no_host_has_more_flows_than_its_share() {
    let limits = "connections_max = 100\nconnections_per_host_max = 4\nopening_per_host_max = 2";
    let mut guarded = Guarded::by(&POLICY.replace("connections_max = 4", limits));
    let other = "10.0.0.2";
    assert!(guarded.passes(&udp(other, 3, SERVER, 53)));
    // Each may be forged, with the host's address: the oldest one without an answer gives way.
    assert!((1..50).all(|port| guarded.passes(&udp(CLIENT, port, SERVER, 53))));
    assert_eq!(guarded.harness.function().connection_count(), 3);
    (48..50).for_each(|port| assert!(guarded.passes(&udp(SERVER, 53, CLIENT, port))));
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 47)), "it is no longer known");
    (1..3).for_each(|port| guarded.connect(port));
    // Four in all: the oldest answered one gives way, as there is none without an answer.
    guarded.connect(3);
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 48)));
    assert!(guarded.passes(&udp(SERVER, 53, CLIENT, 49)));
    guarded.connect(4);
    assert!(guarded.passes(&udp(SERVER, 53, other, 3)), "another host loses none");
    let refused = guarded.denied(Denial::NoRoom);
    assert!(!guarded.passes(&tcp(CLIENT, 5, SERVER, 443, SYN)), "four established ones");
    assert_eq!(guarded.denied(Denial::NoRoom), refused + 1);
    // A closing entry gives way to the next flow of the same ports.
    assert!(guarded.passes(&tcp(CLIENT, 3, SERVER, 443, RST)));
    guarded.connect(3);
    assert!(guarded.passes(&tcp(CLIENT, 3, SERVER, 443, RST)));
    guarded.connect(5);
    assert!((1..3).all(|port| guarded.passes(&tcp(SERVER, 443, CLIENT, port, ACK))));
    // Outside, a host may have any address of its /64. Inside, several hosts share one.
    for (server, clients, count) in [
        ("fd00::1", ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::3"], 3),
        ("2001:db8::1", ["fd00::1", "fd00::2", "fd00::3", "fd00:0:0:1::3"], 4),
    ] {
        let mut guarded = Guarded::by(&format!("{limits}\n{OPEN}"));
        assert!(clients.iter().all(|client| guarded.passes(&udp(client, 1, server, 53))));
        assert_eq!(guarded.harness.function().connection_count(), count);
    }
}

#[test]
fn the_receiving_port_decides_the_side_and_the_source_must_belong_to_it() {
    for (client, other, server, link_local) in
        [(CLIENT, "10.0.0.9", SERVER, "169.254.0.1"), ("fd00::1", "fd00::9", "2001:db8::1", "fe80::1")]
    {
        let mut guarded = Guarded::by(&format!("inside_ports = [1, 3]{POLICY}"));
        assert!(!guarded.passes_from(0, &udp(client, 5000, other, 53)));
        assert!(!guarded.passes_from(0, &udp(client, 5000, server, 53)), "an address of the inside from outside");
        assert!(!guarded.passes_from(2, &tcp(client, 5000, server, 443, SYN)));
        assert!(!guarded.passes_from(1, &udp(server, 53, client, 5000)), "one of the outside from inside");
        assert_eq!(guarded.denied(Denial::Spoofed), 4);
        assert_eq!(guarded.harness.function().connection_count(), 0);
        for port in [1, 3] {
            assert!(guarded.passes_from(port, &udp(client, 5000, server, 53)));
            assert!(guarded.passes_from(0, &udp(server, 53, client, 5000)));
        }
        // A link-local address is valid on either side.
        assert!(guarded.passes_from(1, &udp(link_local, 5000, server, 53)));
        assert!(!guarded.passes_from(0, &udp(link_local, 5001, client, 53)));
        assert_eq!(guarded.denied(Denial::ByRules), 1);
    }
}

#[test]
fn without_a_configured_side_sources_are_believed_and_a_second_port_is_warned_about() {
    let mut guarded = Guarded::by(POLICY);
    assert!(guarded.passes_from(0, &udp(CLIENT, 5000, SERVER, 53)));
    assert!(guarded.passes_from(1, &udp(SERVER, 53, CLIENT, 5000)));
    assert_eq!(take_log(), []);
    for _ in 0..2 {
        assert!(guarded.passes_from(1, &udp(CLIENT, 5000, SERVER, 53)));
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
fn in_a_chain_with_a_way_back_packets_that_go_back_come_from_outside() {
    let mut guarded = Guarded::by(POLICY);
    let mut pass =
        |direction, frame: &Frame| guarded.harness.deliver_direction(direction, 0, &[&frame.bytes()]).remove(0).outcome;
    assert_eq!(pass(Direction::Backward, &udp(CLIENT, 5000, SERVER, 53)), Outcome::Dropped);
    assert_eq!(pass(Direction::Forward, &udp(SERVER, 53, CLIENT, 5000)), Outcome::Dropped);
    assert_eq!(pass(Direction::Forward, &udp(CLIENT, 5000, SERVER, 53)), Outcome::Sent);
    assert_eq!(pass(Direction::Backward, &udp(SERVER, 53, CLIENT, 5000)), Outcome::Sent);
    assert_eq!(guarded.denied(Denial::Spoofed), 2);
    // A router behind it also has an inside address, and its error comes back.
    let error = Frame::unreachable("10.0.0.254", &udp(CLIENT, 5000, SERVER, 53)).bytes();
    let told = guarded.harness.deliver_reply(Direction::Backward, 0, &[&error]).remove(0).outcome;
    assert_eq!(told, Outcome::Sent);
    let forged = guarded.harness.deliver_direction(Direction::Backward, 1, &[&error]).remove(0).outcome;
    assert_eq!(forged, Outcome::Dropped);
}

#[test]
fn an_instance_is_kept_for_as_long_as_it_remembers_a_flow() {
    let mut guarded = Guarded::by(POLICY);
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 5000)));
    assert_eq!(kept_until_ns(), None, "nothing is remembered");
    assert!(guarded.passes(&udp(CLIENT, 5000, SERVER, 53)));
    assert_eq!(kept_until_ns(), Some(30 * S_NS));
    guarded.connect(5001);
    assert_eq!(kept_until_ns(), Some(7440 * S_NS));
    advance_clock_ns(1000 * S_NS);
    assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5001, RST)));
    assert_eq!(kept_until_ns(), Some(1240 * S_NS));
}

#[test]
fn directions_have_outputs_of_their_own() {
    let policy = format!("outputs = {{ out = 1, in = 2 }}{POLICY}");
    let mut harness = Harness::<Firewall>::new(policy.as_bytes()).unwrap();
    let verdicts = harness.deliver(&[&udp(CLIENT, 5000, SERVER, 53).bytes(), &udp(SERVER, 53, CLIENT, 5000).bytes()]);
    assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::SentTo(1), Outcome::SentTo(2)]);
}

#[test]
fn what_is_not_ip_is_dropped_and_counted() {
    let mut guarded = Guarded::by(POLICY);
    assert!(!guarded.passes_bytes(&[0; 60]));
    assert!(!guarded.passes_bytes(&[]));
    assert_eq!(guarded.denied(Denial::Unreadable), 2);
    assert_eq!(guarded.harness.function().counters().allowed, 0);
}

#[test]
fn counts_are_logged_at_most_every_ten_seconds() {
    let mut guarded = Guarded::by(POLICY);
    let denied = udp(SERVER, 53, CLIENT, 5000);
    let lines = || take_log().into_iter().map(|(_, line)| line).collect::<Vec<_>>();
    guarded.passes(&denied);
    guarded.passes(&denied);
    assert_eq!(
        lines(),
        [
            "packets so far: 0 allowed; denied: 1 by rules, 0 of no known flow, 0 without room in the table, 0 unreadable"
        ]
    );
    advance_clock_ns(10 * S_NS);
    guarded.passes(&denied);
    assert_eq!(lines().len(), 1);
}

#[test]
fn a_wrong_configuration_is_refused_with_the_fields_path() {
    let rule = "inside = []\n[[rule]]\naction = \"allow\"\n";
    let cases = [
        ("inside = [\"10.0.0/8\"]".to_owned(), "inside[0]: \"10.0.0/8\" is no network"),
        ("inside = []\nconnections_max = 0".to_owned(), "connections_max: 0 connections; 1 to 65536 are possible"),
        ("inside = []\nidle = { tcp_s = 0 }".to_owned(), "idle.tcp_s: invalid value: integer `0`"),
        ("inside = []\nidle = { tcp_s = 7439 }".to_owned(), "idle.tcp_s: 7439 seconds; at least 7440 are needed"),
        (
            "inside = []\nconnections_per_host_max = 0".to_owned(),
            "connections_per_host_max: invalid value: integer `0`",
        ),
        ("inside = []\ninside_ports = [-1]".to_owned(), "inside_ports[0]: invalid value: integer `-1`"),
        (format!("{rule}ports = [80]"), "rule[0]: only tcp and udp have ports"),
        (format!("{rule}protocol = \"tcp\"\nports = []"), "rule[0]: an empty list fits no packet: leave the key out"),
        (format!("{rule}protocol = \"udp\"\nfrom_ports = []"), "rule[0]: an empty list fits no packet"),
        (format!("{rule}from = []"), "rule[0]: an empty list fits no packet"),
        (format!("{rule}to = []"), "rule[0]: an empty list fits no packet"),
        ("inside = []\noutputs = { out = 16 }".to_owned(), "outputs.out: output 16; 0 to 15 are possible"),
        ("inside = []\noutputs = { in = 99 }".to_owned(), "outputs.in: output 99; 0 to 15 are possible"),
        (format!("{rule}protocol = \"tpc\""), "rule[0].protocol: \"tpc\" is no protocol"),
        (format!("{rule}protocol = \"tcp\"\nports = [80, \"90-80\"]"), "rule[0].ports[1]: invalid value: string"),
        (format!("{rule}protocol = \"tcp\"\nports = [65536]"), "rule[0].ports[0]: invalid value: integer `65536`"),
        (format!("{rule}dirction = \"in\""), "rule[0].dirction: unknown field `dirction`"),
        (format!("{rule}from = [\"10.0.0.0/8\", \"x\"]"), "rule[0].from[1]: \"x\" is no network"),
    ];
    for (policy, message) in cases {
        let refusal = refusal(&policy);
        assert!(refusal.contains(message), "{refusal}");
    }
}
