//! Real traffic passes through chains of six functions between two hosts, and arrives unchanged.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr};

use pinion_tests::network::bed::Device;
use pinion_tests::network::inline::{Host, INTERFACE, Inline, LAN_MAC, WAN_MAC};
use pinion_tests::traffic::frames::{send, watch};
use pinion_tests::traffic::iperf::{assert_tcp_flows, iperf};
use pinion_tests::traffic::ping::{flood, ping, pings};
use pinion_tests::traffic::transfer::both_ways;
use pinion_tests::until::{SOON, until};
use serde_json::Value;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet,
    Ipv6Repr,
};

/// An even number, so that in the end each frame has its original addresses again.
const STAGES: usize = 6;
const ETHERNET_HEADER: usize = 14;
/// Fewer frames than a function has slots.
const BURST: usize = 16;
/// A protocol number for experiments (RFC 3692): a kernel answers it with an ICMP error at most.
const PROTOCOL: IpProtocol = IpProtocol::Unknown(253);

fn passing(device: Device) -> Inline {
    let inline = Inline::new(device);
    inline.pass_through_swaps(STAGES);
    inline
}

/// Makes frames of all sizes from one host to the other, no two alike.
fn frames(from: (&Host, &str), to: (&Host, &str)) -> Vec<Vec<u8>> {
    let mac = |text: &str| text.parse::<EthernetAddress>().expect("a MAC address");
    let addresses = |ethertype| EthernetRepr { src_addr: mac(from.1), dst_addr: mac(to.1), ethertype };
    let frame = |number: usize, header: usize, payload: usize, ethernet: EthernetRepr| {
        let mut frame = vec![0; ETHERNET_HEADER + header + payload];
        let content = (0..payload).map(|place| (place * 31 + number * 7 + place / 251) as u8);
        frame[ETHERNET_HEADER + header..].iter_mut().zip(content).for_each(|(byte, content)| *byte = content);
        ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
        frame
    };
    let v4 = |(number, payload): (usize, usize)| {
        let (src_addr, dst_addr): (Ipv4Addr, Ipv4Addr) =
            (from.0.address.parse().expect("an address"), to.0.address.parse().expect("an address"));
        let ip = Ipv4Repr { src_addr, dst_addr, next_header: PROTOCOL, payload_len: payload, hop_limit: 64 };
        let mut frame = frame(number, ip.buffer_len(), payload, addresses(EthernetProtocol::Ipv4));
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]), &ChecksumCapabilities::default());
        frame
    };
    let v6 = |(number, payload): (usize, usize)| {
        let (src_addr, dst_addr): (Ipv6Addr, Ipv6Addr) =
            (from.0.address_v6.parse().expect("an address"), to.0.address_v6.parse().expect("an address"));
        let ip = Ipv6Repr { src_addr, dst_addr, next_header: PROTOCOL, payload_len: payload, hop_limit: 64 };
        let mut frame = frame(number, ip.buffer_len(), payload, addresses(EthernetProtocol::Ipv6));
        ip.emit(&mut Ipv6Packet::new_unchecked(&mut frame[ETHERNET_HEADER..]));
        frame
    };
    let lengths = |max: usize| (1..=max).rev().step_by(7).enumerate();
    lengths(1480).map(v4).chain(lengths(1460).map(v6)).collect()
}

fn every_frame_arrives_byte_for_byte_and_in_order(device: Device) {
    let inline = passing(device);
    let (left, right) = ((&inline.left, WAN_MAC), (&inline.right, LAN_MAC));
    for (from, to) in [(left, right), (right, left)] {
        let sent = frames(from, to);
        assert!(sent.len() > 400 && sent.iter().any(|frame| frame.len() == 1514));
        let of_ours = |frame: &[u8]| {
            let protocol_at = if frame[12..14] == [0x08, 0x00] { ETHERNET_HEADER + 9 } else { ETHERNET_HEADER + 6 };
            frame.get(protocol_at) == Some(&253)
        };
        watch(&to.0.namespace, INTERFACE, |arrivals| {
            for burst in sent.chunks(BURST) {
                send(&from.0.namespace, INTERFACE, burst);
                let arrived = arrivals.take(burst.len(), SOON, of_ours);
                assert_eq!(arrived.len(), burst.len(), "the node dropped {:?}", inline.drops());
                for (arrived, sent) in arrived.iter().zip(burst) {
                    assert!(arrived == sent, "sent: {sent:02x?}\narrived: {arrived:02x?}");
                }
            }
        });
    }
    assert_each_stage_passed_all(&inline);
}

/// Checks that each stage of both chains has sent what it received, and that none has dropped a frame.
fn assert_each_stage_passed_all(inline: &Inline) {
    // The kernels also send frames of their own, so one may be in flight.
    until("account of all stages", SOON, || {
        let fwps = inline.node.cli().serving_fwps();
        assert_eq!(fwps.len(), 2 * STAGES);
        let passed_all = |fwp: &Value| {
            let counters = &fwp["counters"];
            counters["received"].as_u64() > Some(400) && counters["received"] == counters["sent"]
        };
        fwps.iter().all(passed_all).then_some(())
    });
}

/// Time limit of the pings, in seconds. With a limit `ping` continues until all are answered, so that a busy machine does not lose the last
/// one.
const PINGS_SECONDS: u64 = 60;

fn no_ping_is_lost(device: Device) {
    let inline = passing(device);
    let Inline { left, right, .. } = &inline;
    for (from, to) in [(left, &right.address), (right, &left.address), (left, &right.address_v6)] {
        flood(&from.namespace, to, 2_000).assert_all(2_000);
        let is_v6 = to.contains(':');
        let full = if is_v6 { 1_452 } else { 1_472 };
        pings(&from.namespace, 50, &format!("-i 0.03 -s {full} -M do {to}")).assert_all(50);
        // In three fragments.
        pings(&from.namespace, 50, &format!("-i 0.03 -s 4000 {to}")).assert_all(50);
    }
}

fn a_connections_bytes_arrive_unchanged_both_ways(device: Device) {
    const BYTES: u64 = 8 << 20;
    let Inline { left, right, .. } = &passing(device);
    for (from, to, address) in [(left, right, &right.address), (right, left, &left.address_v6)] {
        let took = both_ways(&from.namespace, &to.namespace, address, BYTES);
        println!("{device:?}: twice {BYTES} bytes in {took:?}, to {address}");
    }
}

macro_rules! on_each_device {
    ($($device:ident $module:ident),*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn every_frame_arrives_byte_for_byte_and_in_order() {
                super::every_frame_arrives_byte_for_byte_and_in_order(Device::$device);
            }

            #[test]
            fn no_ping_is_lost() {
                super::no_ping_is_lost(Device::$device);
            }

            #[test]
            fn a_connections_bytes_arrive_unchanged_both_ways() {
                super::a_connections_bytes_arrive_unchanged_both_ways(Device::$device);
            }
        }
    )*};
}

on_each_device!(Tap tap, AfPacket af_packet, AfXdp af_xdp);

#[test]
fn iperf_over_tcp_moves_data_in_both_directions() {
    let Inline { left, right, .. } = &passing(Device::AfPacket);
    for (more, address) in [("", &right.address), (" --reverse", &right.address), ("", &right.address_v6)] {
        assert_tcp_flows(&left.namespace, &right.namespace, address, more);
    }
}

#[test]
fn datagrams_that_iperf_misses_over_udp_are_counted() {
    let inline = passing(Device::AfPacket);
    let Inline { left, right, .. } = &inline;
    const DATAGRAMS: u64 = 15_000;
    // After so many looks all that the kernels count is printed, to show where more were lost.
    const LOOKS_BEFORE_ALL: u32 = 100;
    // What a socket holds at most when it is closed, which the kernel does not count: each datagram takes 768 of its 212,992 bytes at least.
    const LEFT_IN_SOCKET: u64 = 212_992 / 768;
    for (words, address) in [
        ("--udp --bitrate 50M --length 1000", &right.address),
        ("--udp --bitrate 20M --length 200 --reverse", &right.address_v6),
    ] {
        let words = &format!("{words} --blockcount {DATAGRAMS}");
        let missing = || inline.dropped() + inline.dropped_by_kernels();
        let before = missing();
        let moved = iperf(&left.namespace, &right.namespace, address, words);
        assert!(moved.datagrams >= DATAGRAMS, "{moved:?}");
        let mut looks = 0;
        // The device's count of missed frames is read once a second.
        until("count of all that is missing", SOON, || {
            let counted = missing() - before;
            println!("iperf3 {words} to {address}: {moved:?}, counted {counted}");
            looks += 1;
            if looks == LOOKS_BEFORE_ALL {
                inline.print_kernels_counters();
            }
            (moved.lost <= counted + LEFT_IN_SOCKET).then_some(())
        });
        inline.assert_nothing_is_missing();
    }
}

#[test]
fn a_flood_beside_a_connection_loses_nothing_uncounted() {
    let inline = passing(Device::AfPacket);
    let Inline { left, right, .. } = &inline;
    let summary = std::thread::scope(|scope| {
        let transfer = scope.spawn(|| both_ways(&left.namespace, &right.namespace, &right.address, 4 << 20));
        let summary = ping(&left.namespace, &format!("-f -q -c 1000 -w {PINGS_SECONDS} {}", right.address));
        transfer.join().expect("all arrives");
        summary
    });
    let lost = summary.sent - summary.received;
    println!("{summary:?}");
    // The device's count of missed frames is read once a second.
    until("count of all that is missing", SOON, || {
        (lost <= inline.dropped() + inline.dropped_by_kernels()).then_some(())
    });
    assert_eq!((summary.duplicates, summary.errors), (0, 0));
    inline.assert_nothing_is_missing();
}
