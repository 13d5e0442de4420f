//! ICMP errors, as hosts behind the firewall get and send them.

#![cfg(not(target_family = "wasm"))]

mod network;

use firewall::{Denial, Firewall};
use network::{ACK, SYN, reply, request, tcp, udp};
use pinion_sdk::testing::{Frame, Harness, Outcome};

/// Hosts inside may begin any flow, and hosts outside may begin flows to port 80.
const POLICY: &str = r#"
inside = ["10.0.0.0/8", "fd00::/8"]

[[rule]]
action = "allow"
direction = "out"

[[rule]]
action = "allow"
direction = "in"
protocol = "tcp"
ports = [80]
"#;

/// A host inside, one outside, and a router on the way.
const PLACES: [[&str; 3]; 2] =
    [["10.0.0.1", "192.0.2.1", "198.51.100.254"], ["fd00::1", "2001:db8::1", "2001:db8:9::fe"]];

/// Types and codes of errors that hosts act on: unreachable, packet too big, time exceeded, parameter problem.
const REPORTS: [&[(u8, u8)]; 2] =
    [&[(3, 0), (3, 1), (3, 3), (3, 4), (3, 13), (11, 0), (11, 1), (12, 0)], &[(1, 0), (1, 4), (2, 0), (3, 0), (4, 1)]];
/// Types of errors that they do not: source quench and redirect, and types that are not defined.
const OTHERS: [&[(u8, u8)]; 2] = [&[(4, 0), (5, 1)], &[(5, 0), (100, 0), (127, 0)]];

fn firewall() -> Harness<Firewall> {
    Harness::new(POLICY.as_bytes()).unwrap()
}

fn passes(firewall: &mut Harness<Firewall>, frame: &Frame) -> bool {
    let frame = frame.bytes();
    let verdict = firewall.deliver(&[&frame]).remove(0);
    assert_eq!(verdict.bytes, frame, "frames are left as they are");
    verdict.outcome == Outcome::Sent
}

fn denied(firewall: &mut Harness<Firewall>) -> u64 {
    firewall.function().counters().denied[Denial::BadError as usize]
}

/// Returns an error with an MTU of 1280 in its second word, about a packet with these bytes.
fn error(from: &str, to: &str, (kind, code): (u8, u8), quoted: &[u8]) -> Frame {
    Frame::icmp(from, to, kind, code, [0, 0, 5, 0]).payload(quoted)
}

#[test]
fn a_report_about_an_allowed_packet_passes_in_either_direction_of_its_flow() {
    for (version, [inside, outside, router]) in PLACES.into_iter().enumerate() {
        for report in REPORTS[version] {
            let mut firewall = firewall();
            let flows = [
                (udp(inside, 33_434, outside, 33_435), udp(outside, 33_435, inside, 33_434)),
                (tcp(inside, 5000, outside, 443, SYN), tcp(outside, 443, inside, 5000, SYN | ACK)),
                (request(inside, outside, 7), reply(outside, inside, 7)),
            ];
            for (there, back) in &flows {
                assert!(passes(&mut firewall, there) && passes(&mut firewall, back));
                // A router outside about what went there, the host outside itself, and a router inside about what came back.
                for from in [router, outside] {
                    assert!(passes(&mut firewall, &error(from, inside, *report, &there.packet())), "{report:?}");
                }
                for from in [inside, if version == 0 { "10.0.0.254" } else { "fd00::fe" }] {
                    assert!(passes(&mut firewall, &error(from, outside, *report, &back.packet())), "{report:?}");
                }
            }
            // A flow that was begun outside.
            let (there, back) = (tcp(outside, 5000, inside, 80, SYN), tcp(inside, 80, outside, 5000, SYN | ACK));
            assert!(passes(&mut firewall, &there) && passes(&mut firewall, &back));
            assert!(passes(&mut firewall, &error(router, inside, *report, &back.packet())));
            assert!(passes(&mut firewall, &error(inside, outside, *report, &there.packet())));
            assert_eq!(denied(&mut firewall), 0);
        }
    }
}

#[test]
fn errors_that_hosts_do_not_act_on_are_dropped_even_about_a_known_flow() {
    for (version, [inside, outside, router]) in PLACES.into_iter().enumerate() {
        let mut firewall = firewall();
        let sent = udp(inside, 5000, outside, 53);
        assert!(passes(&mut firewall, &sent));
        for kind in OTHERS[version] {
            assert!(!passes(&mut firewall, &error(router, inside, *kind, &sent.packet())), "{kind:?}");
        }
        assert_eq!(denied(&mut firewall), OTHERS[version].len() as u64);
    }
}

#[test]
fn a_forged_report_about_no_flow_or_to_another_host_is_dropped_and_counted() {
    for [inside, outside, router] in PLACES {
        let mut firewall = firewall();
        let sent = udp(inside, 5000, outside, 53);
        assert!(passes(&mut firewall, &sent));
        let report = if outside.contains(':') { (2, 0) } else { (3, 4) };
        let guesses = [
            udp(inside, 5001, outside, 53),
            udp(inside, 5000, outside, 54),
            tcp(inside, 5000, outside, 53, ACK),
            request(inside, outside, 9),
        ];
        for guess in &guesses {
            assert!(!passes(&mut firewall, &error(router, inside, report, &guess.packet())));
        }
        // The quoted packet's sender is not the error's receiver.
        assert!(!passes(&mut firewall, &error(router, outside, report, &sent.packet())));
        assert_eq!(denied(&mut firewall), guesses.len() as u64 + 1);
        let counted = firewall.metric("firewall_packets_denied", &[("reason", "bad-error")]);
        assert_eq!(counted, Some(guesses.len() as i64 + 1));
    }
}

#[test]
fn a_quote_may_have_options_or_be_cut_after_its_ports_but_not_before() {
    let [inside, outside, router] = PLACES[0];
    let sent = udp(inside, 5000, outside, 53);
    let with_options = sent.clone().ip_options(&[1; 4]);
    for (quoted, ports_at) in [(sent.packet(), 20), (with_options.packet(), 24)] {
        let mut firewall = firewall();
        assert!(passes(&mut firewall, &sent));
        for len in 0..=quoted.len() {
            let error = error(router, inside, (3, 4), &quoted[..len]);
            assert_eq!(passes(&mut firewall, &error), len >= ports_at + 4, "{len} bytes");
        }
    }
}

#[test]
fn a_quote_of_ipv6_may_have_extension_headers_and_be_a_first_fragment() {
    let [inside, outside, router] = PLACES[1];
    let sent = udp(inside, 5000, outside, 53);
    let quotes = [
        (sent.clone().extension(60, &[1, 4]), true),
        (sent.clone().extension(0, &[1, 4]), true),
        (sent.clone().fragment(0, true), true),
        (sent.clone().fragment(1280, true), false),
    ];
    for (quoted, passes_by) in quotes {
        let mut firewall = firewall();
        assert!(passes(&mut firewall, &sent));
        let frame = error(router, inside, (2, 0), &quoted.packet());
        assert_eq!(passes(&mut firewall, &frame), passes_by, "{quoted:?}");
    }
}
