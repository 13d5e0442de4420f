//! Malformed frames are dropped and counted by reason, and the node goes on.
#![forbid(unsafe_code)]

use std::net::Ipv4Addr;

use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::frames::send;
use pinion_tests::traffic::ping::{flood, pings};
use pinion_tests::until::{SOON, until};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpProtocol, Ipv4Packet, Ipv4Repr};

const HEADER: usize = 14;
const SENDER: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x77]);
const PAYLOAD: usize = 64;

/// The offsets of fields in the frames made here.
const VERSION: usize = HEADER;
const TOTAL_LENGTH: usize = HEADER + 2;
const CHECKSUM: usize = HEADER + 10;
const SOURCE: usize = HEADER + 12;
const DESTINATION: usize = HEADER + 16;
const MESSAGE_TYPE: usize = HEADER + 20;

/// A valid frame to a station, with an ICMP message from a client's address.
fn right(station: EthernetAddress, source: Ipv4Addr) -> Vec<u8> {
    let packet = Ipv4Repr {
        src_addr: source,
        dst_addr: NODE.parse().expect("an address"),
        next_header: IpProtocol::Icmp,
        payload_len: PAYLOAD,
        hop_limit: 64,
    };
    let mut frame = vec![0; HEADER + packet.buffer_len() + PAYLOAD];
    let ethernet = EthernetRepr { src_addr: SENDER, dst_addr: station, ethertype: EthernetProtocol::Ipv4 };
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    packet.emit(&mut Ipv4Packet::new_unchecked(&mut frame[HEADER..]), &ChecksumCapabilities::default());
    frame
}

fn changed(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Adds a VLAN tag in front of any that the frame has.
fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0x00, 0x00, 0x64]);
    frame
}

fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    Ipv4Packet::new_unchecked(&mut frame[HEADER..]).fill_checksum();
    frame
}

fn cut(mut frame: Vec<u8>, len: usize) -> Vec<u8> {
    frame.truncate(len);
    frame
}

/// Each kind of malformed frame, with the reason under which it should be counted.
fn wrong_frames(station: EthernetAddress, source: Ipv4Addr) -> Vec<(&'static str, Vec<u8>)> {
    let right = || right(station, source);
    vec![
        ("truncated", cut(right(), HEADER + 1)),
        ("truncated", cut(right(), HEADER + 10)),
        ("truncated", cut(right(), HEADER + 20 + PAYLOAD - 1)),
        ("bad-checksum", changed(right(), CHECKSUM, &[0xba, 0xad])),
        ("bad-version", changed(right(), VERSION, &[0x65])),
        ("bad-length", with_checksum(changed(right(), TOTAL_LENGTH, &[0, 19]))),
        ("martian", with_checksum(changed(right(), SOURCE, &[224, 0, 0, 1]))),
        ("martian", with_checksum(changed(right(), SOURCE, &[127, 0, 0, 1]))),
        ("group-not-asked", with_checksum(changed(right(), DESTINATION, &[224, 0, 0, 251]))),
        ("unicast-to-group", changed(right(), 0, &[0xff; 6])),
        ("redirect", changed(right(), MESSAGE_TYPE, &[5])),
        ("bad-quote", changed(right(), MESSAGE_TYPE, &[3])),
        ("unknown-ethertype", changed(right(), 12, &[0x88, 0xb5])),
        ("too-many-tags", tagged(tagged(tagged(right())))),
        ("vlan-neighbor", tagged(changed(right(), 12, &[0x08, 0x06]))),
        ("not-for-us", changed(right(), 0, &[0x02, 0xff, 0xff, 0xff, 0xff, 0xff])),
        ("bad-neighbor-message", changed(right(), 12, &[0x08, 0x06])),
    ]
}

fn wrong_frames_are_counted_by_reason(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    let client = &bed.clients[0];
    pings(&client.namespace, 1, NODE).assert_all(1);
    let cli = bed.node.cli();
    let mac = cli.status()["ports"][0]["mac"].as_str().expect("a port has an address").to_owned();
    let station: EthernetAddress = mac.parse().expect("an Ethernet address");
    for (reason, frame) in wrong_frames(station, client.address.parse().expect("an address")) {
        let before = cli.drops(reason);
        // Sent behind the switch, which would drop some of them itself.
        send(bed.switch(), bed.wire(), &vec![frame; 10]);
        until(&format!("count of 10 more frames dropped as {reason}"), SOON, || {
            let more = cli.drops(reason) - before;
            (more >= 10).then_some(())
        });
    }
    flood(&client.namespace, NODE, 1_000).assert_all(1_000);
}

#[test]
fn wrong_frames_are_counted_by_reason_on_af_packet() {
    wrong_frames_are_counted_by_reason(Device::AfPacket);
}

#[test]
fn wrong_frames_are_counted_by_reason_on_tap() {
    wrong_frames_are_counted_by_reason(Device::Tap);
}

/// The address of the function that sends runts.
const THEIRS: &str = "10.77.0.60";
/// Frames per burst for that function.
const BURST: usize = 200;
const BURSTS: u64 = 20;

fn runts_that_a_function_sends_cost_no_other_tenant_a_frame(device: Device) {
    let bed = Bed::with_addresses(device, &[THEIRS]);
    bed.apply_echo("per-client");
    let cutter = Manifest::of("mallory").module("cutter", &build::hostile("cutter")).chain("cut", "cutter", "");
    bed.node.apply(cutter.ping_rule("cut", "cut", "shared", THEIRS).text());
    bed.node.await_instance("mallory", "cut");
    let cli = bed.node.cli();
    let mac = cli.status()["ports"][0]["mac"].as_str().expect("a port has an address").to_owned();
    let frame = right(mac.parse().expect("an Ethernet address"), bed.clients[0].address.parse().expect("an address"));
    let theirs: Ipv4Addr = THEIRS.parse().expect("an address");
    let mut frame = with_checksum(changed(frame, DESTINATION, &theirs.octets()));
    // An echo request, as the rule matches only those.
    frame[MESSAGE_TYPE] = 8;
    let burst = vec![frame; BURST];
    for sent in 1..=BURSTS {
        // The bursts are in flight while the clients ping.
        send(bed.switch(), bed.wire(), &burst);
        flood(&bed.clients[1].namespace, NODE, 100).assert_all(100);
        until("runts of most frames", SOON, || (cli.drops("transmit-runt") > sent * BURST as u64 / 2).then_some(()));
    }
    assert_eq!((cli.drops("transmit-full"), cli.drops("transmit-refused")), (0, 0));
}

#[test]
fn runts_that_a_function_sends_cost_no_other_tenant_a_frame_on_tap() {
    runts_that_a_function_sends_cost_no_other_tenant_a_frame(Device::Tap);
}

#[test]
fn runts_that_a_function_sends_cost_no_other_tenant_a_frame_on_af_packet() {
    runts_that_a_function_sends_cost_no_other_tenant_a_frame(Device::AfPacket);
}

#[test]
fn ten_thousand_frames_of_noise_cost_no_client_a_ping() {
    let bed = Bed::new(Device::AfPacket);
    bed.apply_echo("per-client");
    let mac = bed.node.cli().status()["ports"][0]["mac"].as_str().expect("a port has an address").to_owned();
    let station: EthernetAddress = mac.parse().expect("an Ethernet address");
    let source = bed.clients[0].address.parse().expect("an address");
    // Every byte after the MAC addresses differs from frame to frame; the sequence is the same in each run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let frames: Vec<Vec<u8>> = (0..10_000)
        .map(|number| {
            let mut frame = right(station, source);
            let kept = if number % 2 == 0 { 12 } else { HEADER };
            frame[kept..].fill_with(&mut noise);
            frame
        })
        .collect();
    for burst in frames.chunks(250) {
        send(bed.switch(), bed.wire(), burst);
        flood(&bed.clients[1].namespace, NODE, 100).assert_all(100);
    }
}
