//! Devices whose far side is a kernel: answers real pings from a namespace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pinion_abi::{RX_IP_CHECKSUM_GOOD, RX_L4_CHECKSUM_BAD, RX_L4_CHECKSUM_GOOD};
use pinion_gateway::port::dpdk::{self, PortConfig};
use pinion_gateway::port::{LinkState, Port, Promiscuous};

use crate::dpdk::lab::{Lab, NetworkNamespace, Veth, ip, ip_succeeds, unique};

const PINGS: u32 = 100;

/// Pings with small and with full frames. All must be answered, and the counters must agree.
fn pings_pass(lab: &mut Lab, port: &mut Box<dyn Port>, namespace: &NetworkNamespace) {
    for payload_len in [56, 1472] {
        let before = (port.counters().received.bytes.value(), port.counters().sent.frames.value());
        let pinger = namespace.ping(PINGS, payload_len);
        assert!(lab.answer_pings(port, pinger), "pings of {payload_len} bytes are answered; {:?}", port.counters());
        let received = port.counters().received.bytes.value() - before.0;
        let sent = port.counters().sent.frames.value() - before.1;
        assert!(received >= u64::from(PINGS * (payload_len + 42)));
        assert_eq!(sent, u64::from(PINGS));
    }
    assert_eq!(port.counters().sent.dropped_full.value(), 0);
    assert_eq!(port.facts().missed, 0);
}

/// The real-time signals (from 34 on) that the process handles, as a bit mask.
fn caught_real_time_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() >> 33
}

#[test]
fn a_tap_moved_into_a_namespace_carries_frames_both_ways_and_disappears_with_its_port() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("t"), unique("t"));
    let before = lab.pool.available();
    let mut port = lab.open(&format!("net_tap0,iface={interface},mac=02:00:00:00:00:08"));
    assert_eq!(port.facts().mac, [2, 0, 0, 0, 0, 9]);
    assert_eq!(port.facts().link, LinkState::Up);
    ip(&format!("link set {interface} netns {}", namespace.name));
    assert_eq!(port.facts().link, LinkState::Unknown);
    lab.introduce(&mut port, &namespace, &interface);
    assert_eq!(caught_real_time_signals(), 0, "frames do not interrupt threads");
    pings_pass(&mut lab, &mut port, &namespace);
    drop(port);
    assert!(!ip_succeeds(&format!("-n {} link show {interface}", namespace.name)));
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn a_tap_can_be_opened_inside_a_namespace() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("i"), unique("i"));
    let device = format!("net_tap0,iface={interface}");
    let config =
        PortConfig { network_namespace: Some(namespace.path()), mtu: 1504, ..PortConfig::new("inside", &device) };
    let mut port = dpdk::open(&config, &lab.pool).unwrap();
    assert!(!ip_succeeds(&format!("link show {interface}")), "it never was outside");
    lab.introduce(&mut port, &namespace, &interface);
    assert_eq!((port.facts().link, port.facts().mtu), (LinkState::Up, 1504));
    pings_pass(&mut lab, &mut port, &namespace);
    ip(&format!("-n {} link set {interface} down", namespace.name));
    assert_eq!(port.facts().link, LinkState::Down);
    drop(port);
    assert!(!ip_succeeds(&format!("-n {} link show {interface}", namespace.name)));
}

#[test]
fn af_packet_carries_frames_both_ways() {
    let mut lab = Lab::enter();
    let veth = Veth::new("p");
    veth.set_up();
    let before = lab.pool.available();
    let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    assert_eq!(port.facts().link, LinkState::Up);
    pings_pass(&mut lab, &mut port, &veth.namespace);
    drop(port);
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn af_xdp_carries_frames_both_ways_and_takes_its_program_away() {
    let mut lab = Lab::enter();
    let veth = Veth::new("x");
    veth.set_up();
    let before = lab.pool.available();
    let mut port = lab.open(&format!("net_af_xdp0,iface={}", veth.near));
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    pings_pass(&mut lab, &mut port, &veth.namespace);
    drop(port);
    let gone = before - lab.pool.available();
    assert!(gone <= 2048 + 64, "{gone} buffers are gone, more than the fill ring and a burst");
    assert!(!ip_succeeds(&format!("link show {} xdp", veth.near)));
    // The interface is free for another port.
    let port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
    assert_eq!(port.facts().link, LinkState::Up);
}

#[test]
fn af_xdp_sends_from_every_buffer_of_the_pool_and_receives_into_every_one() {
    let mut lab = Lab::enter();
    let veth = Veth::new("e");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_xdp0,iface={}", veth.near));
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    let all = lab.pool.available();
    let mut frames = lab.frames(&burst(std::iter::repeat_n(60, all), None));
    let before = veth.namespace.received_by(&veth.far);
    while !frames.is_empty() {
        let mut some = frames.split_off(frames.len().saturating_sub(64));
        let count = some.len();
        assert_eq!(port.transmit(&mut some, &mut lab.pool), count);
    }
    let arrived = || (veth.namespace.received_by(&veth.far) - before) as usize;
    let started = Instant::now();
    while arrived() < all && started.elapsed() < Duration::from_secs(5) {}
    assert_eq!(arrived(), all);
    // Without a cache of this thread's own, each buffer that comes back goes behind all others.
    for _ in 0..all.div_ceil(512) + 4 {
        veth.namespace.send_datagrams(9000..9064, 8);
        assert_eq!(lab.receive(&mut port, 512).len(), 512);
    }
    assert_eq!(port.facts().missed, 0);
}

#[test]
fn frames_that_find_the_ring_of_af_packet_full_count_as_missed() {
    const RING: usize = 64;
    const SENT: u16 = 2_000;
    let mut lab = Lab::enter();
    let veth = Veth::new("o");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_packet0,iface={},framecnt={RING}", veth.near));
    lab.introduce(&mut port, &veth.namespace, &veth.far);
    for round in 1..=2 {
        veth.namespace.send_datagrams(9000..9000 + SENT, 1);
        // The kernel may hand them over later. Those of earlier rounds still count.
        let lost = round * (SENT as usize - RING);
        let started = Instant::now();
        while port.facts().missed + veth.dropped_on_arrival() < lost as u64 {
            assert!(started.elapsed() < Duration::from_secs(20), "{lost} frames are lost, {:?}", port.facts());
        }
        let received = lab.receive_all(&mut port).into_iter().filter(|frame| is_datagram(frame)).count();
        assert_eq!(received, RING);
        assert_eq!(port.facts().missed + veth.dropped_on_arrival(), lost as u64);
    }
}

fn is_datagram(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[23] == 17
}

/// Returns whether the interface is promiscuous, and whether it receives all multicast frames.
fn receives(interface: &str) -> (bool, bool) {
    let flags = std::fs::read_to_string(format!("/sys/class/net/{interface}/flags")).unwrap();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap();
    (flags & 0x100 != 0, flags & 0x200 != 0)
}

#[test]
fn an_interface_receives_for_others_only_if_wanted_and_only_as_long_as_the_port_is_open() {
    let lab = Lab::enter();
    for driver in ["net_af_packet0", "net_af_xdp0"] {
        for (promiscuous, expected) in [(Promiscuous::No, (false, true)), (Promiscuous::Yes, (true, true))] {
            let veth = Veth::new("o");
            veth.set_up();
            let device = format!("{driver},iface={}", veth.near);
            assert_eq!(receives(&veth.near), (false, false));
            let port = dpdk::open(&PortConfig { promiscuous, ..PortConfig::new("port", &device) }, &lab.pool).unwrap();
            assert_eq!((receives(&veth.near), port.promiscuous()), (expected, promiscuous));
            drop(port);
            assert_eq!(receives(&veth.near), (false, false));
        }
    }
}

#[test]
fn a_port_carries_frames_up_to_its_mtu_and_drops_longer_ones() {
    let mut lab = Lab::enter();
    for (driver, mtu) in [("net_af_packet0", 1400), ("net_af_xdp0", 1774)] {
        let veth = Veth::new("l");
        veth.set_up();
        let device = format!("{driver},iface={}", veth.near);
        let mut port = dpdk::open(&PortConfig { mtu, ..PortConfig::new("port", &device) }, &lab.pool).unwrap();
        assert_eq!(port.facts().mtu, mtu);
        assert_eq!(interface_mtu(&veth.near), mtu);
        veth.namespace.address(&veth.far);
        ip(&format!("-n {} link set {} mtu {mtu}", veth.namespace.name, veth.far));
        let pinger = veth.namespace.ping(20, u32::from(mtu) - 28);
        assert!(lab.answer_pings(&mut port, pinger), "{driver}: {:?}", port.counters());
        let mut frames = lab.frames(&[vec![0; usize::from(mtu) + 19]]);
        assert_eq!(port.transmit(&mut frames, &mut lab.pool), 0);
        assert_eq!(port.counters().sent.dropped_unfit.value(), 1);
    }
}

/// Frames that an interface of the test's own namespace has received from its other end.
fn received_by(interface: &str) -> u64 {
    let path = format!("/sys/class/net/{interface}/statistics/rx_packets");
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// A burst of broadcast frames of these lengths, of a type that no kernel answers; with a tag of this type, if any.
fn burst(lengths: impl IntoIterator<Item = usize>, tag: Option<[u8; 2]>) -> Vec<Vec<u8>> {
    let frame = |len: usize| {
        let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb6], &[0; 2000]].concat();
        if let Some(tag) = tag {
            frame[12..14].copy_from_slice(&tag);
            frame[16..18].copy_from_slice(&[0x88, 0xb6]);
        }
        frame.truncate(len);
        frame
    };
    lengths.into_iter().map(frame).collect()
}

#[test]
fn a_frame_without_an_ethernet_header_costs_none_of_those_behind_it_on_a_tap() {
    let mut lab = Lab::enter();
    let interface = unique("r");
    let mut port = lab.open(&format!("net_tap0,iface={interface}"));
    let before = lab.pool.available();
    // All lengths that the kernel refuses, first in their bursts and in the middle.
    for short in 1..=13 {
        let received = received_by(&interface);
        let lengths = [short, 60, 100, short, 14, 1514].into_iter().chain([60; 58]);
        let mut frames = lab.frames(&burst(lengths, None));
        assert_eq!(port.transmit(&mut frames, &mut lab.pool), 62);
        assert_eq!(received_by(&interface) - received, 62, "beside frames of {short} bytes");
    }
    let sent = &port.counters().sent;
    assert_eq!((sent.dropped_runt.value(), sent.dropped_full.value(), sent.dropped_refused.value()), (26, 0, 0));
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn a_frame_that_the_kernel_refuses_is_lost_alone() {
    let mut lab = Lab::enter();
    let veth = Veth::new("h");
    veth.set_up();
    let mut port = lab.open(&format!("net_pcap0,iface={}", veth.near));
    let before = lab.pool.available();
    // Without the port's knowledge: it still accepts frames of 1500 bytes.
    ip(&format!("link set {} mtu 600", veth.near));
    let received = veth.namespace.received_by(&veth.far);
    let mut frames = lab.frames(&burst([1000, 60, 61, 1001, 1002, 62].into_iter().chain([63; 58]), None));
    assert_eq!(port.transmit(&mut frames, &mut lab.pool), 61);
    assert_eq!(veth.namespace.received_by(&veth.far) - received, 61);
    let sent = &port.counters().sent;
    assert_eq!((sent.dropped_refused.value(), sent.dropped_full.value(), sent.frames.value()), (3, 0, 61));
    assert_eq!(sent.bytes.value(), 60 + 61 + 62 + 58 * 63);
    assert_eq!(lab.pool.available(), before);
}

#[test]
fn of_a_packet_socket_only_tagged_frames_may_be_four_bytes_longer_than_its_mtu() {
    let mut lab = Lab::enter();
    let veth = Veth::new("g");
    veth.set_up();
    let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
    for (tag, fit) in [(None, 1), (Some([0x81, 0x00]), 5), (Some([0x88, 0xa8]), 1)] {
        let received = veth.namespace.received_by(&veth.far);
        let mut frames = lab.frames(&burst([1514, 1515, 1516, 1517, 1518, 1519], tag));
        let unfit = port.counters().sent.dropped_unfit.value();
        assert_eq!(port.transmit(&mut frames, &mut lab.pool), fit, "{tag:02x?}");
        assert_eq!(port.counters().sent.dropped_unfit.value() - unfit, 6 - fit as u64);
        // Frames that count as sent have left.
        assert_eq!(veth.namespace.received_by(&veth.far) - received, fit as u64, "{tag:02x?}");
    }
}

fn interface_mtu(interface: &str) -> u16 {
    std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).unwrap().trim().parse().unwrap()
}

#[test]
fn a_device_that_checks_checksums_tells_what_it_found() {
    let mut lab = Lab::enter();
    let (namespace, interface) = (NetworkNamespace::new("c"), unique("c"));
    let config = PortConfig {
        network_namespace: Some(namespace.path()),
        ..PortConfig::new("port", &format!("net_tap0,iface={interface}"))
    };
    let mut port = dpdk::open(&config, &lab.pool).unwrap();
    lab.introduce(&mut port, &namespace, &interface);
    namespace.send_datagrams(9000..9001, 1);
    assert_eq!(lab.receive_facts(&mut port), RX_IP_CHECKSUM_GOOD | RX_L4_CHECKSUM_GOOD);
    namespace.send_wrong_datagram();
    assert_eq!(lab.receive_facts(&mut port), RX_IP_CHECKSUM_GOOD | RX_L4_CHECKSUM_BAD);
    // A ring checks no checksums.
    let mut ring = lab.open("net_ring0");
    let mut frames = lab.frames(&[vec![0; 60]]);
    ring.transmit(&mut frames, &mut lab.pool);
    assert_eq!(lab.receive_facts(&mut ring), 0);
}

#[test]
fn frames_of_other_interfaces_do_not_come_in_while_a_packet_socket_opens() {
    let mut lab = Lab::enter();
    let [veth, other] = ["o", "p"].map(Veth::new);
    for veth in [&veth, &other] {
        veth.set_up();
        let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
        lab.introduce(&mut port, &veth.namespace, &veth.far);
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                other.namespace.send_datagrams(9000..9064, 10);
            }
        });
        let strays = (0..20).map(|_| {
            let mut port = lab.open(&format!("net_af_packet0,iface={}", veth.near));
            lab.receive_all(&mut port).len()
        });
        let strays: Vec<usize> = strays.collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(strays, [0; 20]);
    });
}
