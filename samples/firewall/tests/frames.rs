//! The function as a network sees it: frames in, those allowed out.

#![cfg(not(target_family = "wasm"))]

mod network;

use firewall::{Denial, Firewall};
use network::{ACK, FIN, Frame, RST, SYN, echo, tcp, udp};
use pinion_sdk::testing::{Harness, Outcome, advance_clock_ns, take_log};

const S_NS: u64 = 1_000_000_000;

/// The inside may begin everything, but not talk to port 25; the outside may begin on port 80 of one.
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
        let verdict = self.harness.deliver(&[frame]).remove(0);
        assert_eq!(&verdict.bytes, frame, "frames are left as they are");
        verdict.outcome == Outcome::Sent
    }

    /// A handshake.
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
fn answers_pass_and_what_nobody_asked_for_does_not() {
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
fn what_became_of_packets_and_what_each_rule_has_decided_shows_as_metrics() {
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
    for ends in [
        &[tcp(SERVER, 443, CLIENT, 5000, RST)][..],
        &[tcp(CLIENT, 5000, SERVER, 443, FIN | ACK), tcp(SERVER, 443, CLIENT, 5000, FIN | ACK)],
    ] {
        let mut guarded = Guarded::by(POLICY);
        guarded.connect(5000);
        assert!(ends.iter().all(|end| guarded.passes(end)));
        assert!(guarded.passes(&tcp(CLIENT, 5000, SERVER, 443, ACK)), "the last acknowledgement");
        advance_clock_ns(9 * S_NS);
        assert!(guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
        advance_clock_ns(S_NS);
        assert!(!guarded.passes(&tcp(SERVER, 443, CLIENT, 5000, ACK)));
        guarded.connect(5000);
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
fn a_connection_that_is_being_closed_can_be_begun_anew_by_whom_the_rules_let() {
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
    assert!(!guarded.passes(&udp(SERVER, 53, CLIENT, 5000)), "nobody had answered");
}

#[test]
fn a_ping_is_answered_once_asked_and_not_pinged_back() {
    let mut guarded = Guarded::by(POLICY);
    assert!(guarded.passes(&echo(CLIENT, SERVER, network::REQUEST, 7)));
    assert!(guarded.passes(&echo(SERVER, CLIENT, network::REPLY, 7)));
    assert!(!guarded.passes(&echo(SERVER, CLIENT, network::REPLY, 8)));
    assert!(!guarded.passes(&echo(SERVER, CLIENT, network::REQUEST, 7)));
    assert_eq!((guarded.denied(Denial::NotBegun), guarded.denied(Denial::ByRules)), (1, 1));
}

#[test]
fn an_error_passes_to_whoever_it_is_for_if_it_is_about_a_flow_that_goes_on() {
    for (client, server, router, other) in
        [(CLIENT, SERVER, "192.0.2.99", "10.0.0.2"), ("fd00::1", "2001:db8::1", "2001:db8::99", "fd00::2")]
    {
        let mut guarded = Guarded::by(POLICY);
        let asked = udp(client, 5000, server, 53);
        assert!(!guarded.passes(&network::error(router, client, &asked)));
        assert!(guarded.passes(&asked));
        assert!(guarded.passes(&network::error(router, client, &asked)));
        assert!(!guarded.passes(&network::error(router, other, &asked)), "for another");
        assert!(!guarded.passes(&network::error(router, client, &udp(client, 5001, server, 53))));
        advance_clock_ns(30 * S_NS);
        assert!(!guarded.passes(&network::error(router, client, &asked)), "it keeps no flow alive");
    }
}

#[test]
fn later_fragments_pass_behind_the_first_one_of_their_datagram() {
    let mut guarded = Guarded::by(POLICY);
    let whole = udp(CLIENT, 5000, SERVER, 53);
    let [first, later] = network::fragments(&whole, 1);
    assert!(!guarded.passes(&later));
    assert!(guarded.passes(&first));
    assert!(guarded.passes(&later));
    assert!(!guarded.passes(&network::fragments(&whole, 2)[1]), "of another datagram");
    let refused = udp(SERVER, 5000, CLIENT, 53);
    assert!(!network::fragments(&refused, 3).iter().any(|part| guarded.passes(part)));
    advance_clock_ns(30 * S_NS);
    assert!(!guarded.passes(&later));
}

#[test]
fn who_was_never_answered_makes_room_and_who_was_does_not() {
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

#[test]
fn directions_have_outputs_of_their_own() {
    let policy = format!("outputs = {{ out = 1, in = 2 }}{POLICY}");
    let mut harness = Harness::<Firewall>::new(policy.as_bytes()).unwrap();
    let verdicts = harness.deliver(&[&udp(CLIENT, 5000, SERVER, 53), &udp(SERVER, 53, CLIENT, 5000)]);
    assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::SentTo(1), Outcome::SentTo(2)]);
}

#[test]
fn what_is_not_ip_is_dropped_and_counted() {
    let mut guarded = Guarded::by(POLICY);
    assert!(!guarded.passes(&vec![0; 60]));
    assert!(!guarded.passes(&vec![]));
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
            "packets so far: 0 allowed; denied: 1 by rules, 0 of flows that nobody began, 0 for want of room, 0 unreadable"
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
        (format!("{rule}ports = [80]"), "rule[0]: only tcp and udp have ports"),
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
