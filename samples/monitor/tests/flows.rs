//! The monitor as a chain sees it: frames pass, and lines are logged.

#![cfg(not(target_family = "wasm"))]

use monitor::Monitor;
use pinion_sdk::headers::{TCP, UDP};
use pinion_sdk::testing::{Frame, Harness, Outcome, advance_clock_ns, message, take_log};
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;
const TO: [u8; 4] = [10, 9, 9, 9];

/// Returns a UDP frame of that length.
fn udp(host: u8, port: u8, frame_len: usize) -> Vec<u8> {
    Frame::udp(([10, 0, 0, host], port.into()), (TO, 53)).payload(&vec![0; frame_len - 42]).bytes()
}

fn udp_v6(frame_len: usize) -> Vec<u8> {
    Frame::udp(("fd00::1", 7), ("fd00::2", 53)).payload(&vec![0; frame_len - 62]).bytes()
}

fn monitor(config: &str) -> Harness<Monitor> {
    Harness::new(config.as_bytes()).unwrap()
}

fn lines() -> Vec<String> {
    take_log().into_iter().map(|(_, line)| line).collect()
}

#[test]
fn everything_passes_untouched_messages_and_rubbish_included() {
    let frames = [udp(1, 1, 100), udp_v6(90), vec![0xff; 60], vec![], message(b"hello")];
    let verdicts = monitor("").deliver(&frames.each_ref().map(|frame| &frame[..]));
    for (verdict, frame) in verdicts.iter().zip(&frames) {
        assert_eq!((verdict.outcome, &verdict.bytes), (Outcome::Sent, frame));
    }
    assert_eq!(verdicts.len(), frames.len());
}

#[test]
fn the_top_flows_are_logged_at_the_end_of_the_interval() {
    let mut monitor = monitor("every 2s top 2");
    let _ = monitor.deliver(&[&udp(1, 1, 100), &udp(2, 2, 1000), &udp(3, 3, 60), &udp_v6(500)]);
    advance_clock_ns(SECOND_NS);
    let _ = monitor.deliver(&[&udp(1, 1, 1000), &[0; 40]]);
    let _ = monitor.let_pass_ns(SECOND_NS - 1_000);
    assert_eq!(lines(), Vec::<String>::new());
    let _ = monitor.let_pass_ns(1_000);
    assert_eq!(
        lines(),
        [
            "6 packets, 2700 bytes, 10800 bit/s in 2 s; 4 flows known, 0 forgotten so far",
            "udp 10.0.0.1 port 1 to 10.9.9.9 port 53: 2 packets, 1100 bytes, 4400 bit/s; in all 2 packets, 1100 bytes, \
             first seen 2 s ago, last 1 s ago",
            "udp 10.0.0.2 port 2 to 10.9.9.9 port 53: 1 packets, 1000 bytes, 4000 bit/s; in all 1 packets, 1000 bytes, \
             first seen 2 s ago, last 2 s ago",
        ]
    );
}

#[test]
fn a_report_is_about_its_interval_and_none_is_made_of_one_without_packets() {
    let mut monitor = monitor("every 1s");
    let _ = monitor.deliver(&[&udp(1, 1, 1000)]);
    let _ = monitor.let_pass_ns(100 * SECOND_NS);
    assert_eq!(lines().len(), 2);
    let _ = monitor.deliver(&[&udp(2, 2, 100), &udp(1, 1, 60)]);
    let _ = monitor.let_pass_ns(SECOND_NS);
    let report = lines();
    assert!(report[0].starts_with("2 packets, 160 bytes, 1280 bit/s in 1 s; 2 flows"), "{}", report[0]);
    assert!(report[1].starts_with("udp 10.0.0.2 port 2 to"), "{}", report[1]);
    assert!(report[2].contains(" 1 packets, 60 bytes, 480 bit/s; in all 2 packets, 1060 bytes, first seen 101 s"));
    assert_eq!(report.len(), 3);
}

#[test]
fn totals_and_top_flows_are_shown_as_metrics_until_an_interval_without_packets() {
    let mut monitor = monitor("every 2s top 2 flows 2");
    let _ = monitor.deliver(&[&udp(1, 1, 100), &udp(2, 2, 1000), &udp(3, 3, 60), &[0; 40]]);
    let totals = ["monitor_packets", "monitor_bytes", "monitor_flows", "monitor_flows_forgotten"];
    assert_eq!(totals.map(|name| monitor.metric(name, &[])), [4, 1200, 2, 1].map(Some));
    let (first, second) = ("udp 10.0.0.2 port 2 to 10.9.9.9 port 53", "udp 10.0.0.3 port 3 to 10.9.9.9 port 53");
    let top = |monitor: &Harness<Monitor>| {
        [("1", first), ("2", second)]
            .map(|(rank, flow)| monitor.metric("monitor_top_bits_per_second", &[("rank", rank), ("flow", flow)]))
    };
    assert_eq!(top(&monitor), [None, None]);
    let _ = monitor.let_pass_ns(2 * SECOND_NS);
    assert_eq!(top(&monitor), [Some(4000), Some(240)]);
    let _ = monitor.let_pass_ns(2 * SECOND_NS);
    assert_eq!(top(&monitor), [None, None]);
    assert_eq!(monitor.metric("monitor_bytes", &[]), Some(1200));
}

#[test]
fn a_flow_is_shown_by_its_version_and_protocol() {
    let from = [10, 0, 0, 1];
    let tcp = Frame::tcp((from, 80), (TO, 256)).bytes();
    let gre = Frame::other(47, from, TO).payload(&[0; 30]).bytes();
    let ping = Frame::echo_request(from, TO).bytes();
    let mut monitor = monitor("");
    let _ = monitor.deliver(&[&udp_v6(100), &gre, &tcp, &ping]);
    let _ = monitor.let_pass_ns(10 * SECOND_NS);
    let report = lines();
    for (line, flow) in report[1..].iter().zip([
        "udp fd00::1 port 7 to fd00::2 port 53: 1 packets",
        "protocol 47 10.0.0.1 to 10.9.9.9: ",
        "tcp 10.0.0.1 port 80 to 10.9.9.9 port 256: ",
        "icmp 10.0.0.1 to 10.9.9.9: ",
    ]) {
        assert!(line.starts_with(flow), "{line}");
    }
    assert_eq!(report.len(), 5);
}

#[test]
fn fragments_without_ports_are_a_flow_of_their_own() {
    let mut monitor = monitor("");
    for part in Frame::udp("10.0.0.1:1", "10.9.9.9:53").payload(&[0; 16]).fragments(8) {
        let _ = monitor.deliver(&[&part.bytes()]);
    }
    assert_eq!(monitor.function().flows().len(), 2);
}

#[test]
fn fragments_of_ipv6_are_one_flow_whatever_they_say_that_they_carry() {
    let mut monitor = monitor("");
    for next_header in [UDP, TCP, 59, 44, 0, 60] {
        let later = Frame::other(next_header, "fd00::1", "fd00::2").fragment(1024, false).payload(&[0; 18]);
        let _ = monitor.deliver(&[&later.bytes()]);
    }
    assert_eq!(monitor.function().flows().len(), 1);
    let _ = monitor.let_pass_ns(10 * SECOND_NS);
    assert!(lines()[1].starts_with("protocol 44 fd00::1 to fd00::2: 6 packets"), "{:?}", lines());
}

#[test]
fn when_there_is_no_room_the_flow_unseen_for_longest_is_forgotten() {
    let mut monitor = monitor("flows 2");
    for port in [1, 2, 1, 3] {
        let _ = monitor.deliver(&[&udp(1, port, 60)]);
    }
    let _ = monitor.let_pass_ns(10 * SECOND_NS);
    let report = lines();
    assert!(report[0].ends_with("2 flows known, 1 forgotten so far"), "{}", report[0]);
    assert!(report[1].starts_with("udp 10.0.0.1 port 1 to"), "{}", report[1]);
    assert!(report[2].starts_with("udp 10.0.0.1 port 3 to"), "{}", report[2]);
}

#[test]
fn a_wrong_configuration_is_refused_with_what_is_wrong() {
    for (config, reason) in [
        ("each 10s", "\"each\" is not known: there are `every SECONDS`, `top COUNT` and `flows COUNT`"),
        ("every", "`every` is followed by a number from 1 to 86400, not by \"\""),
        ("every 0s", "`every` is followed by a number from 1 to 86400, not by \"0\""),
        ("every 10ms", "`every` is followed by a number from 1 to 86400, not by \"10m\""),
        ("top 33", "`top` is followed by a number from 1 to 32, not by \"33\""),
        ("flows -1", "`flows` is followed by a number from 1 to 131072, not by \"-1\""),
        ("top 3 top 4", "`top` is said twice"),
    ] {
        let refusal = Harness::<Monitor>::new(config.as_bytes()).err().unwrap().to_string();
        assert_eq!(refusal, reason);
    }
    assert!(Harness::<Monitor>::new(b" every 1s\ntop 32\tflows 131072\n").is_ok());
}

/// A flow in the model: host and port, packets and bytes in total, and of the interval.
#[derive(Clone, Debug)]
struct Counted {
    of: (u8, u8),
    total: (u64, u64),
    recent: (u64, u64),
}

const MODEL_FLOWS: usize = 5;
const MODEL_TOP: usize = 3;

proptest! {
    /// The model is a list in the order of use, which is sorted for a report.
    #[test]
    fn it_reports_what_a_list_in_order_of_use_has(
        intervals in proptest::collection::vec(
            proptest::collection::vec((1..4_u8, 1..4_u8, 60..1500_usize), 1..30), 1..5,
        ),
    ) {
        let mut monitor = monitor(&format!("every 1s top {MODEL_TOP} flows {MODEL_FLOWS}"));
        let mut model: Vec<Counted> = Vec::new();
        for interval in intervals {
            model.iter_mut().for_each(|flow| flow.recent = (0, 0));
            for (host, port, len) in interval {
                let _ = monitor.deliver(&[&udp(host, port, len)]);
                let there = model.iter().position(|flow| flow.of == (host, port));
                if there.is_none() && model.len() == MODEL_FLOWS {
                    model.remove(0);
                }
                let mut flow = match there {
                    Some(at) => model.remove(at),
                    None => Counted { of: (host, port), total: (0, 0), recent: (0, 0) },
                };
                for amount in [&mut flow.total, &mut flow.recent] {
                    *amount = (amount.0 + 1, amount.1 + len as u64);
                }
                model.push(flow);
            }
            let _ = monitor.let_pass_ns(SECOND_NS);
            let mut expected: Vec<_> = model.iter().filter(|flow| flow.recent.0 > 0).collect();
            expected.sort_by_key(|flow| std::cmp::Reverse((flow.recent.1, flow.recent.0)));
            expected.truncate(MODEL_TOP);
            let expected: Vec<_> = expected.iter().map(|flow| {
                let ((host, port), (packets, bytes), (all, all_bytes)) = (flow.of, flow.recent, flow.total);
                format!(
                    "udp 10.0.0.{host} port {port} to 10.9.9.9 port 53: {packets} packets, {bytes} bytes, {} bit/s; \
                     in all {all} packets, {all_bytes} bytes", bytes * 8
                )
            }).collect();
            let reported: Vec<_> = lines()[1..].iter()
                .map(|line| line.split(", first seen").next().unwrap_or_default().to_owned()).collect();
            prop_assert_eq!(reported, expected);
        }
    }

    #[test]
    fn no_bytes_panic_and_all_pass(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let verdict = monitor("").deliver(&[&frame]).remove(0);
        prop_assert_eq!(verdict.outcome, Outcome::Sent);
        prop_assert_eq!(verdict.bytes, frame);
    }
}
