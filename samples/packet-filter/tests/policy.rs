//! The meaning of a policy's text, and why invalid texts are refused.

#![cfg(not(target_family = "wasm"))]

use packet_filter::policy::Verdict::{Allow, Deny};
use packet_filter::policy::{Policy, Verdict};
use pinion_sdk::headers::{Addresses, Headers, Offsets, Pair, TCP, TcpFlags, UDP};
use proptest::prelude::*;

fn address(text: &str) -> std::net::IpAddr {
    text.parse().unwrap()
}

fn addresses(source: &str, destination: &str) -> Addresses {
    match (address(source), address(destination)) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            Addresses::V4(Pair { source: source.to_bits(), destination: destination.to_bits() })
        }
        (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            Addresses::V6(Pair { source: source.to_bits(), destination: destination.to_bits() })
        }
        _ => unreachable!("no packet has addresses of two versions"),
    }
}

fn ports(source: u16, destination: u16) -> Option<Pair<u16>> {
    Some(Pair { source, destination })
}

fn packet(source: &str, protocol: u8, ports: Option<Pair<u16>>) -> Headers {
    let destination = if source.contains(':') { "fd00::2" } else { "10.0.0.2" };
    headers(addresses(source, destination), protocol, ports)
}

/// Returns headers. With TCP they are those of a segment that opens a connection.
fn headers(addresses: Addresses, protocol: u8, ports: Option<Pair<u16>>) -> Headers {
    let tcp_flags = (protocol == TCP && ports.is_some()).then_some(TcpFlags(0x02));
    let at = Offsets::default();
    Headers { addresses, protocol, ports, tcp_flags, icmp: None, fragment: None, vlan_tags: 0, at }
}

fn judge(policy: &str, headers: &Headers) -> Verdict {
    Policy::parse(policy).unwrap().verdict(headers)
}

fn refusal(policy: &str) -> String {
    Policy::parse(policy).unwrap_err().to_string()
}

#[test]
fn the_default_decides_where_no_line_fits() {
    let web = packet("10.0.0.1", TCP, ports(1000, 80));
    assert_eq!(judge("default allow", &web), Allow);
    assert_eq!(judge("default deny", &web), Deny);
    assert_eq!(judge("allow udp 80\ndefault deny", &web), Deny);
}

#[test]
fn the_first_line_that_fits_decides() {
    let web = packet("10.0.0.1", TCP, ports(1000, 80));
    assert_eq!(judge("allow tcp 80\ndeny tcp\ndefault deny", &web), Allow);
    assert_eq!(judge("deny tcp\nallow tcp 80\ndefault allow", &web), Deny);
}

#[test]
fn ports_are_the_receivers_unless_said_otherwise() {
    let to_80 = packet("10.0.0.1", TCP, ports(1000, 80));
    let from_80 = packet("10.0.0.1", TCP, ports(80, 1000));
    assert_eq!(
        [judge("allow tcp 80\ndefault deny", &to_80), judge("allow tcp 80\ndefault deny", &from_80)],
        [Allow, Deny]
    );
    let policy = "allow tcp from-ports 80\ndefault deny";
    assert_eq!([judge(policy, &to_80), judge(policy, &from_80)], [Deny, Allow]);
}

#[test]
fn ports_come_alone_in_ranges_and_in_lists() {
    for (policy, allowed) in [
        ("allow udp 53\ndefault deny", vec![53]),
        ("allow udp 53-55\ndefault deny", vec![53, 54, 55]),
        ("allow udp 50,53-54,65535\ndefault deny", vec![50, 53, 54, 65535]),
    ] {
        let policy = Policy::parse(policy).unwrap();
        let passes = |port: &u16| policy.verdict(&packet("10.0.0.1", UDP, ports(9, *port))) == Allow;
        assert_eq!((0..=u16::MAX).filter(passes).collect::<Vec<_>>(), allowed);
    }
}

#[test]
fn every_pair_of_source_and_destination_ports_fits() {
    let policy = Policy::parse("allow tcp 1,2 from-ports 3,4\ndefault deny").unwrap();
    for (source, destination) in [(3, 1), (3, 2), (4, 1), (4, 2)] {
        assert_eq!(policy.verdict(&packet("10.0.0.1", TCP, ports(source, destination))), Allow);
    }
    assert_eq!(policy.verdict(&packet("10.0.0.1", TCP, ports(1, 3))), Deny);
}

#[test]
fn networks_limit_the_addresses_that_match() {
    let policy =
        Policy::parse("deny from 10.1.2.0/24\nallow from 10.0.0.0/8\nallow from fd00:1::/32\ndefault deny").unwrap();
    for (source, verdict) in
        [("10.1.2.3", Deny), ("10.1.3.3", Allow), ("11.0.0.1", Deny), ("fd00:1:ffff::1", Allow), ("fd00:2::1", Deny)]
    {
        assert_eq!(policy.verdict(&packet(source, UDP, ports(1, 1))), verdict, "{source}");
    }
    assert_eq!(judge("allow to 10.0.0.2\ndefault deny", &packet("10.9.9.9", 1, None)), Allow);
    assert_eq!(judge("allow to 10.0.0.3\ndefault deny", &packet("10.9.9.9", 1, None)), Deny);
}

#[test]
fn host_bits_of_a_network_do_not_matter() {
    assert_eq!(judge("allow from 10.0.0.99/24\ndefault deny", &packet("10.0.0.1", 1, None)), Allow);
}

#[test]
fn icmp_is_that_of_the_packets_version() {
    let policy = Policy::parse("allow icmp\ndefault deny").unwrap();
    assert_eq!(policy.verdict(&packet("10.0.0.1", 1, None)), Allow);
    assert_eq!(policy.verdict(&packet("10.0.0.1", 58, None)), Deny);
    assert_eq!(policy.verdict(&packet("fd00::1", 58, None)), Allow);
    assert_eq!(policy.verdict(&packet("fd00::1", 1, None)), Deny);
}

#[test]
fn any_protocol_can_be_named_by_its_number() {
    assert_eq!(judge("allow 47\ndefault deny", &packet("10.0.0.1", 47, None)), Allow);
    assert_eq!(judge("allow 6 80\ndefault deny", &packet("10.0.0.1", TCP, ports(1, 80))), Allow);
}

#[test]
fn established_fits_what_opens_no_connection() {
    let opening = packet("10.0.0.1", TCP, ports(443, 5000));
    let mut later = opening;
    later.tcp_flags = Some(TcpFlags(0x10));
    let policy = Policy::parse("allow tcp from-ports 443 established\ndefault deny").unwrap();
    assert_eq!([policy.verdict(&opening), policy.verdict(&later)], [Deny, Allow]);
}

#[test]
fn lines_with_ports_do_not_fit_packets_without() {
    let fragment = packet("10.0.0.1", UDP, None);
    assert_eq!(judge("allow udp 0-65535\ndefault deny", &fragment), Deny);
    assert_eq!(judge("deny udp 53\nallow udp\ndefault deny", &fragment), Allow);
    assert_eq!(judge("allow tcp established\ndefault deny", &packet("10.0.0.1", TCP, None)), Deny);
}

#[test]
fn comments_and_empty_lines_mean_nothing() {
    let policy = "# for the web\n\n  allow   tcp 80 # and nothing else\r\n\t\ndefault deny  # all the rest\n\n# end";
    assert_eq!(judge(policy, &packet("10.0.0.1", TCP, ports(1, 80))), Allow);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let cases = [
        ("", "the policy has no default: end it with `default deny` or `default allow`"),
        ("allow tcp 80", "the policy has no default: end it with `default deny` or `default allow`"),
        ("permit tcp 80", "policy, line 1: \"permit\" is not known: a line starts with `allow`, `deny` or `default`"),
        ("allow\ndefault", "policy, line 2: \"\" after `default`: `allow` or `deny` is to follow, and nothing else"),
        (
            "default deny all",
            "policy, line 1: \"deny all\" after `default`: `allow` or `deny` is to follow, and nothing else",
        ),
        ("default deny\nallow", "policy, line 2: this is never reached: `default` is the last line"),
        (
            "allow tpc 80",
            "policy, line 1: \"tpc\" is not known: after the protocol come `from`, `from-ports`, `to` or `established`",
        ),
        (
            "allow 999",
            "policy, line 1: \"999\" is not known: after the protocol come `from`, `from-ports`, `to` or `established`",
        ),
        ("allow tcp 80-", "policy, line 1: \"80-\" are no ports: they look like 80, 8000-8099 or 80,443"),
        ("allow tcp 90-80", "policy, line 1: \"90-80\" are no ports: they look like 80, 8000-8099 or 80,443"),
        ("allow tcp 65536", "policy, line 1: \"65536\" are no ports: they look like 80, 8000-8099 or 80,443"),
        ("allow icmp 80", "policy, line 1: only tcp and udp have ports"),
        ("allow from-ports 80", "policy, line 1: only tcp and udp have ports"),
        ("allow udp established", "policy, line 1: only tcp has connections, so `established` goes with nothing else"),
        (
            "allow from 10.0.0/8",
            "policy, line 1: \"10.0.0/8\" is no network: it looks like 10.0.0.0/8, fd00::/8, or an address alone",
        ),
        ("allow tcp from", "policy, line 1: `from` is the last word: say of what"),
        ("allow from 10.0.0.1 from 10.0.0.2", "policy, line 1: `from` is said twice"),
        ("allow from 10.0.0.1 to fd00::1", "policy, line 1: no packet goes from 10.0.0.1/32 to fd00::1/128"),
    ];
    for (policy, message) in cases {
        assert_eq!(refusal(policy), message);
    }
}

#[test]
fn a_policy_of_too_many_rules_is_refused_before_it_is_built() {
    let many = vec!["7"; 9000].join(",");
    let policy = format!("allow tcp {many} from-ports {many}\ndefault deny");
    assert_eq!(refusal(&policy), "policy, line 1: with this line there are more than 4096 rules");
    let lines = "allow tcp 1\n".repeat(4096);
    assert!(Policy::parse(&format!("{lines}default deny")).is_ok());
    assert!(refusal(&format!("{lines}allow tcp 1\ndefault deny")).starts_with("policy, line 4097: "));
}

proptest! {
    #[test]
    fn no_text_panics(text in "(allow|deny|default|tcp|udp|icmp|from|to|from-ports|established|[0-9./:,-]{0,6}|[ \n#]|.){0,40}") {
        let _ = Policy::parse(&text);
    }

    #[test]
    fn a_prefix_fits_what_begins_alike(source: u32, network: u32, len in 0_u8..=32) {
        let net = std::net::Ipv4Addr::from_bits(network);
        let headers = headers(Addresses::V4(Pair { source, destination: 1 }), UDP, ports(1, 1));
        let alike = len == 0 || source >> (32 - len) == network >> (32 - len);
        let verdict = judge(&format!("allow from {net}/{len}\ndefault deny"), &headers);
        prop_assert_eq!(verdict == Allow, alike);
    }
}
