//! The balancer as clients, backends and operators see it.

#![cfg(not(target_family = "wasm"))]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use balancer::Balancer;
use pinion_sdk::headers::UDP;
use pinion_sdk::testing::{
    Frame, Harness, Outcome, Verdict, advance_clock_ns, kept_until_ns, message, payload, take_log,
};
use proptest::prelude::*;

const CONFIG: &str = "\
    backend a 02:00:00:00:00:0a   # the first\n\
    backend b 02:00:00:00:00:0b\n\
    backend c 02:00:00:00:00:0c output 3\n\
    mac 02:00:00:00:00:01\n\
    places 997\n\
    connections 1000\n";

const SYN: u8 = 2;
const ACK: u8 = 16;
const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
const SERVICE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0));
/// A router on the way to clients.
const ROUTER: &str = "203.0.113.1";
const ROUTER_V6: &str = "fc09::";

fn client(host: u8) -> IpAddr {
    Ipv4Addr::new(198, 51, 100, host).into()
}

fn client_v6(host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()).into()
}

fn tcp(host: u8, port: u16, flags: u8) -> Frame {
    Frame::tcp((client(host), port), (SERVICE, 80)).tcp_flags(flags)
}

fn udp(host: u8, port: u16) -> Frame {
    Frame::udp((client(host), port), (SERVICE, 53))
}

fn udp_v6(host: u8, port: u16) -> Frame {
    Frame::udp((client_v6(host), port), (SERVICE_V6, 53))
}

/// Returns a backend's answer to a datagram.
fn answer(host: u8, port: u16) -> Frame {
    Frame::udp((SERVICE, 53), (client(host), port))
}

fn answer_v6(host: u8, port: u16) -> Frame {
    Frame::udp((SERVICE_V6, 53), (client_v6(host), port))
}

/// Returns a router's error that a packet to a client was too large.
fn too_big(quoted: &[u8]) -> Frame {
    Frame::icmp(ROUTER, SERVICE, 3, 4, [0, 0, 5, 0]).payload(quoted)
}

fn too_big_v6(quoted: &[u8]) -> Frame {
    Frame::icmp(ROUTER_V6, SERVICE_V6, 2, 0, [0, 0, 5, 0]).payload(quoted)
}

fn balancer(config: &str) -> Harness<Balancer> {
    Harness::new(config.as_bytes()).unwrap()
}

/// Returns the last byte of the hardware address that a frame is sent to.
fn backend(balancer: &mut Harness<Balancer>, frame: &Frame) -> Option<u8> {
    backend_of_bytes(balancer, &frame.bytes())
}

fn backend_of_bytes(balancer: &mut Harness<Balancer>, frame: &[u8]) -> Option<u8> {
    let Verdict { outcome, bytes, .. } = balancer.deliver(&[frame]).remove(0);
    match outcome {
        Outcome::Sent | Outcome::SentTo(_) => Some(bytes[5]),
        Outcome::Dropped => None,
        other => panic!("{other:?}"),
    }
}

fn say(balancer: &mut Harness<Balancer>, text: &str) -> String {
    let verdict = balancer.deliver(&[&message(text.as_bytes())]).remove(0);
    assert_eq!(verdict.outcome, Outcome::Replied);
    String::from_utf8(payload(&verdict.bytes).to_vec()).unwrap()
}

#[test]
fn only_hardware_addresses_change_and_the_output_is_the_backends() {
    let mut balancer = balancer(CONFIG);
    let mut seen = BTreeSet::new();
    for port in 0..50 {
        for frame in [tcp(1, port, SYN), udp(1, port), udp_v6(1, port)] {
            let frame = frame.macs([2, 0, 0, 0, 0, 0x77], [2, 0, 0, 0, 0, 1]).bytes();
            let verdict = balancer.deliver(&[&frame]).remove(0);
            let to = verdict.bytes[5];
            assert_eq!(verdict.outcome, if to == 0x0c { Outcome::SentTo(3) } else { Outcome::Sent });
            assert_eq!(verdict.bytes[..12], [2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 1]);
            assert_eq!(verdict.bytes[12..], frame[12..]);
            seen.insert(to);
        }
    }
    assert_eq!(seen, BTreeSet::from([0x0a, 0x0b, 0x0c]));
}

#[test]
fn without_an_address_of_its_own_a_frame_keeps_its_senders() {
    let mut balancer = balancer("backend a 02:00:00:00:00:0a");
    let frame = udp(1, 1).macs([2, 0, 0, 0, 0, 0x77], [2, 0, 0, 0, 0, 1]).bytes();
    let verdict = balancer.deliver(&[&frame]).remove(0);
    assert_eq!(verdict.bytes[..12], [2, 0, 0, 0, 0, 0x0a, 2, 0, 0, 0, 0, 0x77]);
}

#[test]
fn two_balancers_that_know_nothing_of_each_other_choose_alike() {
    let (mut one, mut other) = (balancer(CONFIG), balancer(CONFIG));
    let _ = backend(&mut one, &udp(9, 9));
    for port in 0..100 {
        assert_eq!(backend(&mut one, &udp(1, port)), backend(&mut other, &udp(1, port)));
    }
}

#[test]
fn a_connection_stays_where_it_is_when_its_backend_drains_and_a_new_one_goes_elsewhere() {
    let mut balancer = balancer(CONFIG);
    let before: Vec<_> = (0..100).map(|port| backend(&mut balancer, &tcp(1, port, SYN))).collect();
    assert_eq!(say(&mut balancer, "drain a"), "ok\n");
    let kept: Vec<_> = (0..100).map(|port| backend(&mut balancer, &tcp(1, port, ACK))).collect();
    assert_eq!(kept, before);
    // A SYN that is sent again, or forged.
    advance_clock_ns(SYN_KEEPS_NS - 1);
    let again: Vec<_> = (0..100).map(|port| backend(&mut balancer, &tcp(1, port, SYN))).collect();
    assert_eq!(again, before);
    // SYNs alone, however many, keep it there no longer.
    advance_clock_ns(1);
    let anew: Vec<_> = (0..100).map(|port| backend(&mut balancer, &tcp(1, port, SYN))).collect();
    assert!(anew.iter().all(|backend| *backend != Some(0x0a)));
    assert_eq!(say(&mut balancer, "up a\n"), "ok\n");
    let others: Vec<_> = (0..100).map(|port| backend(&mut balancer, &tcp(1, port, ACK))).collect();
    assert_eq!(others, anew, "they have begun elsewhere, and stay");
}

#[test]
fn a_flood_of_first_packets_makes_the_balancer_forget_no_silent_flow_that_has_had_a_second_one() {
    for flood in [|port| tcp(9, port, SYN), |port| udp(9, port)] {
        let mut balancer = balancer(CONFIG);
        for port in 0..500 {
            assert_eq!(backend(&mut balancer, &tcp(1, port, SYN)), backend(&mut balancer, &tcp(1, port, ACK)));
        }
        // Now the table alone would send them elsewhere.
        let before: Vec<_> = (0..500).map(|port| backend(&mut balancer, &tcp(1, port, ACK))).collect();
        assert_eq!(say(&mut balancer, "drain a"), "ok\n");
        (0..5000).for_each(|port| assert!(backend(&mut balancer, &flood(port)).is_some()));
        assert_eq!(balancer.function().flow_count(), 1000);
        let after: Vec<_> = (0..500).map(|port| backend(&mut balancer, &tcp(1, port, ACK))).collect();
        assert_eq!(after, before);
    }
}

#[test]
fn in_a_table_full_of_kept_flows_new_ones_live_to_their_second_packet() {
    let mut balancer = balancer(CONFIG);
    for port in 0..1000 {
        let _ = [SYN, ACK].map(|flags| backend(&mut balancer, &tcp(1, port, flags)));
    }
    let first: Vec<_> = (0..120).map(|port| backend(&mut balancer, &tcp(2, port, SYN))).collect();
    assert_eq!(say(&mut balancer, "drain a"), "ok\n");
    let second: Vec<_> = (0..120).map(|port| backend(&mut balancer, &tcp(2, port, ACK))).collect();
    assert_eq!(second, first);
}

#[test]
fn flows_of_a_down_backend_go_to_others_or_nowhere_without_others() {
    let mut balancer = balancer(CONFIG);
    let before: Vec<_> = (0..100).map(|port| backend(&mut balancer, &udp(1, port))).collect();
    assert_eq!(say(&mut balancer, "down a"), "ok\n");
    for (port, before) in (0..).zip(&before) {
        let after = backend(&mut balancer, &udp(1, port));
        assert!(after.is_some() && after != Some(0x0a));
        assert!(*before == Some(0x0a) || *before == after);
    }
    for name in ["b", "c"] {
        let _ = say(&mut balancer, &format!("down {name}"));
    }
    assert_eq!(backend(&mut balancer, &udp(1, 1)), None);
}

#[test]
fn the_status_lists_each_backend() {
    let mut balancer = balancer("backend a 02:00:00:00:00:0a weight 3\nbackend b 02:00:00:00:00:0b\nplaces 401");
    for port in 0..8 {
        let _ = backend(&mut balancer, &udp(1, port));
    }
    let status = say(&mut balancer, "status");
    let words: Vec<Vec<&str>> = status.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!([&words[0][..3], &words[1][..3]], [["a", "up", "places"], ["b", "up", "places"]]);
    let number = |line: usize, word: usize| words[line][word].parse::<u32>().unwrap();
    assert_eq!(number(0, 3) + number(1, 3), 401);
    assert!((295..=307).contains(&number(0, 3)), "{status}");
    assert_eq!(number(0, 5) + number(1, 5), 8);
    let _ = say(&mut balancer, "drain a");
    assert!(say(&mut balancer, "status").starts_with("a draining places 0 packets "));
    assert_eq!(take_log().remove(0).1, "backend a is now Draining");
}

#[test]
fn a_wrong_command_is_answered_and_changes_nothing() {
    let mut balancer = balancer(CONFIG);
    let before = say(&mut balancer, "status");
    assert_eq!(say(&mut balancer, "down d"), "there is no backend d\n");
    for text in ["", "down", "down a b", "destroy a", "\u{ff}"] {
        assert_eq!(say(&mut balancer, text), "say `status`, `up NAME`, `drain NAME` or `down NAME`\n");
    }
    assert_eq!(say(&mut balancer, "status"), before);
}

#[test]
fn an_error_about_a_connection_goes_to_the_backend_that_has_it() {
    let mut balancer = balancer(CONFIG);
    for port in 0..20 {
        let had = backend(&mut balancer, &tcp(1, port, SYN));
        // A backend's answer is quoted in an error from a router on the way.
        let answer = Frame::tcp((SERVICE, 80), (client(1), port)).packet();
        assert_eq!(backend(&mut balancer, &too_big(&answer[..28])), had);
        assert_eq!(balancer.function().flow_count(), usize::from(port) + 1, "an error is not remembered");
    }
}

#[test]
fn an_error_that_quotes_a_first_fragment_goes_to_the_backend_that_has_the_flow() {
    let mut balancer = balancer(CONFIG);
    for port in 5000..5040 {
        let had = backend(&mut balancer, &udp(1, port));
        let first = answer(1, port).fragment(0, true);
        for quoted in [first.clone(), first.ip_options(&[1; 4])] {
            assert_eq!(backend(&mut balancer, &too_big(&quoted.packet())), had);
        }
        let had = backend(&mut balancer, &udp_v6(1, port));
        let answer = answer_v6(1, port);
        let first = answer.clone().fragment(0, true);
        let behind_options = [&[UDP, 0, 1, 4, 0, 0, 0, 0], &answer.message()[..]].concat();
        for quoted in [
            answer.packet(),
            first.packet(),
            answer.clone().fragment(0, false).packet(),
            first.clone().extension(60, &[1, 4]).packet(),
            Frame::other(60, SERVICE_V6, client_v6(1)).fragment(0, true).payload(&behind_options).packet(),
            // The ports are enough of UDP's header.
            first.packet()[..40 + 8 + 4].to_vec(),
        ] {
            assert_eq!(backend(&mut balancer, &too_big_v6(&quoted)), had, "port {port}");
        }
    }
    assert_eq!(balancer.function().flow_count(), 80);
}

#[test]
fn an_error_about_an_echo_in_fragments_goes_to_the_backend_that_was_asked() {
    let mut balancer = balancer(CONFIG);
    for id in 0..40 {
        let had = backend(&mut balancer, &Frame::echo_request(client(1), SERVICE).echo(id, 1));
        let first = Frame::echo_reply(SERVICE, client(1)).echo(id, 1).payload(&[0; 8]).fragment(0, true);
        assert_eq!(backend(&mut balancer, &too_big(&first.packet())), had);
    }
}

#[test]
fn an_error_that_quotes_no_ports_goes_where_the_fragments_between_the_two_go() {
    for host in 1..30 {
        let mut balancer = balancer(CONFIG);
        let part = |from, to, protocol, offset, more| {
            Frame::other(protocol, from, to).id(9).fragment(offset, more).payload(&[1; 16])
        };
        let asked_v6 = |protocol, offset, more| part(client_v6(host), SERVICE_V6, protocol, offset, more);
        let had = backend(&mut balancer, &part(client(host), SERVICE, UDP, 0, true));
        let had_v6 = backend(&mut balancer, &asked_v6(UDP, 0, true));
        // A later fragment's protocol tells nothing: the first one may have options there.
        for next_header in [UDP, 60, 44, 59] {
            assert_eq!(backend(&mut balancer, &asked_v6(next_header, 1232, false)), had_v6);
            let later = part(SERVICE_V6, client_v6(host), next_header, 1232, true);
            assert_eq!(backend(&mut balancer, &too_big_v6(&later.packet())), had_v6);
        }
        let later = part(SERVICE, client(host), UDP, 72, false);
        assert_eq!(backend(&mut balancer, &too_big(&later.packet())), had);
        // Asked in fragments and answered whole, so the flow is not known by its ports.
        let answer = answer(host, 5000).packet();
        assert_eq!(backend(&mut balancer, &too_big(&answer)), had);
        // Truncated before the ports.
        assert_eq!(backend(&mut balancer, &too_big(&answer[..22])), had);
        assert_eq!(balancer.function().flow_count(), 4, "by ports and without, of each version");
    }
}

#[test]
fn an_error_about_a_flow_that_is_not_known_goes_where_the_flow_would_go() {
    let mut balancer = balancer(CONFIG);
    for port in 0..20 {
        let told = backend(&mut balancer, &too_big(&answer(1, port).packet()));
        assert_eq!(balancer.function().flow_count(), 0, "an error is not remembered");
        // As in a balancer that shares the clients with this one.
        assert_eq!(told, backend(&mut self::balancer(CONFIG), &udp(1, port)));
    }
}

#[test]
fn errors_of_which_no_backend_can_make_use_are_dropped_and_counted() {
    let mut balancer = balancer(CONFIG);
    assert!(backend(&mut balancer, &udp(1, 5000)).is_some());
    let answer = answer(1, 5000).packet();
    let error = |kind, quoted: &[u8]| Frame::icmp(client(9), SERVICE, kind, 0, [0, 0, 5, 0]).payload(quoted);
    for kind in [3, 11, 12] {
        assert!(backend(&mut balancer, &error(kind, &answer)).is_some());
    }
    // Source quench, redirect; too little, another sender, no ports and no known fragments.
    let of_another = Frame::udp((client(2), 53), (client(1), 5000)).packet();
    let to_another = Frame::other(UDP, SERVICE, client(3)).payload(&[0, 53]).packet();
    let bad = [(4, &answer), (5, &answer), (3, &answer[..12].to_vec()), (3, &of_another), (3, &to_another)];
    for (kind, quoted) in bad {
        assert_eq!(backend(&mut balancer, &error(kind, quoted)), None);
    }
    assert_eq!(balancer.metric("balancer_packets_dropped", &[("reason", "bad-error")]), Some(5));
    assert_eq!(balancer.function().flow_count(), 1);
}

/// Delivers frames one by one; returns the backends that they were sent to.
fn backends(balancer: &mut Harness<Balancer>, frames: &[Frame]) -> Vec<u8> {
    let verdicts: Vec<_> = frames.iter().flat_map(|frame| balancer.deliver(&[&frame.bytes()])).collect();
    verdicts.iter().filter(|verdict| verdict.outcome != Outcome::Dropped).map(|verdict| verdict.bytes[5]).collect()
}

/// Returns three fragments of a datagram from this port, of both versions. What the later ones of IPv6 say about its protocol does not count.
fn datagrams(host: u8, port: u16) -> [[Frame; 3]; 2] {
    let split = |whole: Frame| <[Frame; 3]>::try_from(whole.payload(&[1; 29]).fragments(16)).unwrap();
    let [first, second, last] = split(udp_v6(host, port).id(9));
    [split(udp(host, port)), [first, second.protocol(59), last.protocol(60)]]
}

#[test]
fn all_fragments_of_a_datagram_go_to_the_backend_of_its_flow_in_whatever_order_they_come() {
    for port in 5000..5030 {
        let mut balancer = balancer(CONFIG);
        let [parts, parts_v6] = datagrams(1, port);
        for (parts, whole, is_v6) in [(parts, udp(1, port), false), (parts_v6, udp_v6(1, port), true)] {
            let had = backend(&mut balancer, &whole).unwrap();
            for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 1, 0]] {
                // Complete datagrams of IPv6 are remembered, so each has an identification of its own.
                let id = if is_v6 { order[0] as u32 * 16 + order[1] as u32 } else { 1 };
                let parts = order.map(|at| parts[at].clone().id(id));
                assert_eq!(backends(&mut balancer, &parts), [had; 3], "{order:?}");
            }
        }
        assert_eq!(balancer.metric("balancer_fragments_held", &[]), Some(10));
    }
}

#[test]
fn fragments_of_a_backend_that_goes_down_meanwhile_are_dropped() {
    let mut balancer = balancer(CONFIG);
    let [[first, second, last], _] = datagrams(1, 5000);
    let had = backend(&mut balancer, &first).unwrap();
    let name = char::from(b'a' + had - 0x0a);
    assert_eq!(say(&mut balancer, &format!("drain {name}")), "ok\n");
    assert_eq!(backend(&mut balancer, &second), Some(had));
    assert_eq!(say(&mut balancer, &format!("down {name}")), "ok\n");
    assert_eq!(backend(&mut balancer, &last), None);
    assert_eq!(balancer.metric("balancer_packets_dropped", &[("reason", "no-backend")]), Some(1));
}

#[test]
fn fragments_without_their_first_one_are_dropped_after_two_seconds() {
    let mut balancer = balancer(CONFIG);
    for parts in datagrams(1, 5000) {
        assert_eq!(balancer.deliver(&[&parts[1].bytes(), &parts[2].bytes()]), []);
    }
    assert_eq!(balancer.let_pass_ns(2_000_000_000).len(), 4);
    assert_eq!(balancer.metric("balancer_fragments_dropped", &[("reason", "no-first")]), Some(4));
}

#[test]
fn what_is_not_ip_or_cut_short_is_dropped() {
    let mut balancer = balancer(CONFIG);
    let whole = tcp(1, 1, SYN).bytes();
    for len in 0..whole.len() {
        assert_eq!(backend_of_bytes(&mut balancer, &whole[..len]), None, "{len} bytes");
    }
    assert_eq!(backend(&mut balancer, &udp(1, 1).ethertype(0x0806)), None);
}

#[test]
fn a_wrong_configuration_is_refused_with_what_is_wrong() {
    let one = "backend a 02:00:00:00:00:0a";
    for (config, reason) in [
        (String::new(), "there is no backend: add a line like `backend web1 02:00:00:00:00:11`"),
        ("\nbackend a 02:00:00:00:00".into(), "configuration, line 2: \"02:00:00:00:00\" is no hardware address"),
        ("backend a 03:00:00:00:00:01".into(), "is no hardware address of a station"),
        (format!("{one}\n{one}"), "line 2: there is a backend a already"),
        (format!("{one} weight 0"), "\"0\" is no number from 1 to 1000"),
        (format!("{one} output 16"), "\"16\" is no number from 0 to 15"),
        (format!("{one} wait 1"), "`wait` is not known: after NAME and MAC come"),
        (format!("{one} weight"), "`weight` is not known: after NAME and MAC come"),
        (format!("{one}\nplaces 1000"), "1000 is no prime"),
        (format!("{one}\nbackend b 02:00:00:00:00:0b\nplaces 101"), "101 places are too few for 2 backends"),
        (format!("{one}\nplaces 997\nplaces 997"), "line 3: `places` is said twice"),
        (format!("{one}\nconnections 0"), "\"0\" is no number from 1 to 262144"),
        (format!("{one}\nservers"), "line 2: `servers` with 0 words after it is not known"),
    ] {
        let refusal = Harness::<Balancer>::new(config.as_bytes()).err().unwrap().to_string();
        assert!(refusal.contains(reason), "{refusal:?} instead of {reason:?}");
    }
}

/// An event for a balancer.
#[derive(Clone, Debug)]
enum Step {
    Send { port: u16, flags: u8 },
    Wait { seconds: u64 },
    Say { verb: &'static str, backend: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..12_u16, prop_oneof![Just(SYN), Just(ACK)]).prop_map(|(port, flags)| Step::Send { port, flags }),
        1 => prop_oneof![Just(59), Just(60), Just(7_440)].prop_map(|seconds| Step::Wait { seconds }),
        1 => (prop_oneof![Just("up"), Just("drain"), Just("down")], 0..3_u8)
            .prop_map(|(verb, backend)| Step::Say { verb, backend }),
    ]
}

/// Most flows that the balancer below remembers.
const REMEMBERED: usize = 9;
/// How many of them may be new, if there are others.
const NEW_MIN: usize = 1;
/// How long a flow keeps its backend in spite of a SYN.
const SYN_KEEPS_NS: u64 = 60_000_000_000;

/// A flow in the model.
#[derive(Clone, Copy, Debug)]
struct Known {
    port: u16,
    backend: u8,
    is_new: bool,
    used_s: u64,
}

/// Forgets the oldest kept flow if new ones are few, or if it is too old; else the oldest new one.
fn forget_one(known: &mut Vec<Known>, now_s: u64) {
    let oldest = |is_new| known.iter().position(|flow| flow.is_new == is_new);
    let are_few = known.iter().filter(|flow| flow.is_new).count() <= NEW_MIN;
    let kept = oldest(false).filter(|at| are_few || now_s - known[*at].used_s >= 7_440);
    known.remove(kept.or(oldest(true)).or(oldest(false)).unwrap());
}

#[test]
fn an_instance_is_kept_for_as_long_after_its_last_packet_as_a_flow_may_be_silent() {
    let mut balancer = balancer(CONFIG);
    let _ = say(&mut balancer, "status");
    assert_eq!(kept_until_ns(), None, "it remembers no flow");
    let _ = backend(&mut balancer, &tcp(1, 1000, SYN));
    assert_eq!(kept_until_ns(), Some(7_440_000_000_000));
    advance_clock_ns(100_000_000_000);
    let _ = backend(&mut balancer, &tcp(1, 1000, ACK));
    assert_eq!(kept_until_ns(), Some(7_540_000_000_000));
}

proptest! {
    /// The model is a list of flows in order of use. It asks a fresh balancer with the same backends where new flows
    /// go.
    #[test]
    fn it_does_what_a_list_of_connections_does(steps in proptest::collection::vec(step(), 1..60)) {
        let config = CONFIG.replace("connections 1000", &format!("connections {REMEMBERED}"));
        let mut balancer = balancer(&config);
        let mut states = ["up"; 3];
        let (mut known, mut now_s) = (Vec::<Known>::new(), 0);
        for step in steps {
            match step {
                Step::Wait { seconds } => {
                    advance_clock_ns(seconds * 1_000_000_000);
                    now_s += seconds;
                }
                Step::Say { verb, backend } => {
                    states[usize::from(backend)] = verb;
                    let name = char::from(b'a' + backend);
                    prop_assert_eq!(say(&mut balancer, &format!("{verb} {name}")), "ok\n");
                }
                Step::Send { port, flags } => {
                    let mut fresh = Harness::<Balancer>::new(config.as_bytes()).unwrap();
                    for (name, state) in ["a", "b", "c"].iter().zip(states) {
                        let _ = say(&mut fresh, &format!("{state} {name}"));
                    }
                    let before = known.clone();
                    let there = known.iter().position(|flow| flow.port == port).map(|at| known.remove(at));
                    let kept = there.filter(|flow| {
                        let state = states[usize::from(flow.backend - 0x0a)];
                        match (flags == SYN, flow.is_new) {
                            (false, _) => state != "down",
                            (true, false) => state != "down" && now_s - flow.used_s < 60,
                            (true, true) => state == "up" && now_s - flow.used_s < 60,
                        }
                    });
                    let expected = kept.map(|flow| flow.backend).or_else(|| where_new_ones_go(&mut fresh, port));
                    prop_assert_eq!(backend(&mut balancer, &tcp(1, port, flags)), expected);
                    match (expected, there) {
                        // A SYN counts for no use of a flow that has gone beyond SYNs.
                        (Some(_), _) if kept.is_some_and(|flow| !flow.is_new && flags == SYN) => known = before,
                        (Some(backend), there) => {
                            if there.is_none() && known.len() == REMEMBERED {
                                forget_one(&mut known, now_s);
                            }
                            let is_new = kept.is_none_or(|flow| flow.is_new && flags == SYN);
                            known.push(Known { port, backend, is_new, used_s: now_s });
                        }
                        // It stays as it was.
                        (None, Some(_)) => {
                            known = before;
                        }
                        (None, None) => {}
                    }
                }
            }
        }
    }

    #[test]
    fn no_bytes_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = backend_of_bytes(&mut balancer(CONFIG), &frame);
    }

    #[test]
    fn no_message_panics(text in "\\PC{0,40}|(up|down|drain|status) [abc]? ?") {
        let _ = say(&mut balancer(CONFIG), &text);
    }
}

fn where_new_ones_go(fresh: &mut Harness<Balancer>, port: u16) -> Option<u8> {
    backend(fresh, &tcp(1, port, SYN))
}
