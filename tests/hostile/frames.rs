//! What machines in the network send.

use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;

use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::random::Random;
use pinion_tests::traffic::frames::send;
use pinion_tests::traffic::strangers;
use pinion_tests::until::{SOON, until};
use serde_json::Value;
use smoltcp::wire::EthernetAddress;

use crate::clients::address;
use crate::neighbours::{Attack, GREEDY, SETTINGS, keep_what_is_theirs};

/// The address of the attacked tenant's function.
const THEIRS: &str = "10.77.0.66";
const THEIRS_V6: &str = "fd77::66";
/// Fewer than a port's ring has room for.
const FRAMES_IN_A_WAVE: usize = 200;
/// Without a tag.
const FRAME_LEN_MAX: u64 = 1_514;
const HEADER: usize = 14;

/// Returns a tenant's function that answers whatever comes to its address, of each client by an instance of its own.
fn echo() -> Manifest {
    let chain = "idle_timeout_ms = 100";
    let manifest = Manifest::of(GREEDY).module("echo", &sample("icmp-echo")).chain("echo", "echo", chain);
    [("all", THEIRS), ("all-v6", THEIRS_V6)].into_iter().fold(manifest, |manifest, (name, address)| {
        let matches = format!("{{ destination = \"{address}\" }}");
        manifest.with(format!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"per-client\"\nchain = \"echo\"\nmatch = {matches}\n"
        ))
    })
}

/// The addresses of the node's port and of a machine that sends frames to it.
fn ethernet(bed: &Bed) -> Vec<u8> {
    [strangers::station(bed).as_bytes(), &[0x02, 0, 0, 0, 0, 0x79]].concat()
}

/// Returns an IPv4 packet.
fn ipv4(source: Ipv4Addr, to: &str, protocol: u8, fragment: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let to: Ipv4Addr = to.parse().expect("an address");
    let mut header = vec![0x45, 0];
    header.extend((20 + payload.len() as u16).to_be_bytes());
    header.extend(fragment.map(u16::to_be_bytes).concat());
    header.extend([64, protocol, 0, 0]);
    header.extend([source.octets(), to.octets()].concat());
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16 + (folded >> 16) as u16)).to_be_bytes());
    [&header, payload].concat()
}

/// Returns the address of one of the neighbours.
fn neighbour(random: &mut Random) -> Ipv4Addr {
    address(random.below(100)).parse().expect("an address")
}

fn stranger(random: &mut Random) -> Ipv4Addr {
    Ipv4Addr::from(0x0a5b_0000 | random.below(1 << 16) as u32)
}

fn bytes(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.number() as u8).collect()
}

fn received(bed: &Bed) -> u64 {
    let status = bed.node.cli().status();
    let missed = bed.node.cli().drops("missed-by-device") + bed.switch().frames_dropped_on_arrival();
    status["ports"][0]["received"].as_u64().expect("a number") + missed
}

/// Returns the FWPs that serve neighbours.
fn instances(bed: &Bed) -> Vec<Value> {
    let fwps = bed.node.cli().serving_fwps().into_iter().filter(|fwp| fwp["tenant"] != GREEDY);
    fwps.map(|fwp| fwp["chain_instance"].clone()).collect()
}

/// Sends waves of frames that `make` returns, of which the node drops at least some for these reasons.
#[track_caller]
fn are_withstood(device: Device, make: impl Fn(&mut Random, &[u8]) -> Vec<u8> + Sync, reasons: &[&str]) {
    let bed = Bed::with_settings(device, &[THEIRS], SETTINGS);
    are_withstood_on(&bed, make, || {
        for reason in reasons {
            assert!(bed.node.cli().drops(reason) > 0, "no frame was dropped as {reason}");
        }
    });
}

#[track_caller]
fn are_withstood_on(bed: &Bed, make: impl Fn(&mut Random, &[u8]) -> Vec<u8> + Sync, happened: impl FnOnce()) {
    let (ethernet, random, served) = (ethernet(bed), Mutex::new(Random::new(11)), RefCell::new(Vec::new()));
    let wave = || {
        let mut random = random.lock().expect("one wave at a time");
        let frames: Vec<_> = (0..FRAMES_IN_A_WAVE).map(|_| make(&mut random, &ethernet)).collect();
        let before = received(bed);
        send(bed.switch(), bed.wire(), &frames);
        let all = before + FRAMES_IN_A_WAVE as u64;
        until("account of all frames", SOON, || (received(bed) >= all).then_some(()));
    };
    let is_over = || {
        served.borrow_mut().push(instances(bed));
        true
    };
    let attack = Attack { manifests: &[echo()], wave: &wave, is_over: &is_over, is_for_the_cores: false };
    keep_what_is_theirs(bed, &attack, || {
        happened();
        let served = served.borrow();
        // What was sent in the names of neighbours may have got instances, too.
        let have_stayed = |two: &[Vec<Value>]| two[0].iter().all(|instance| two[1].contains(instance));
        assert!(served.windows(2).all(have_stayed), "neighbours have lost their instances");
    });
}

#[test]
fn frames_of_any_bytes_and_those_with_some_bytes_changed() {
    are_withstood(
        Device::AfPacket,
        |random, ethernet| {
            let len = random.below(FRAME_LEN_MAX - HEADER as u64);
            let types = [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x81, 0x00], [0x88, 0xa8], [0x12, 0x34]];
            let ethertype = types[random.below(types.len() as u64) as usize];
            if random.below(2) == 0 {
                return [ethernet, &ethertype, &bytes(random, len)].concat();
            }
            let payload = bytes(random, 64);
            let packet = ipv4(stranger(random), THEIRS, [1, 6, 17][random.below(3) as usize], [0, 0], &payload);
            let mut frame = [ethernet, &[0x08, 0x00], &packet].concat();
            for _ in 0..random.below(3) {
                let at = HEADER + random.below((frame.len() - HEADER) as u64) as usize;
                frame[at] = random.number() as u8;
            }
            frame.truncate(HEADER + random.below((frame.len() - HEADER) as u64 + 1) as usize);
            frame
        },
        &["bad-version", "bad-checksum", "no-rule"],
    );
}

#[test]
#[ignore = "part of `make hostile`"]
fn fragments_that_claim_to_be_of_neighbours_datagrams() {
    // The kernel would put fragments together before an AF_PACKET socket has them.
    are_withstood(
        Device::Tap,
        |random, ethernet| {
            const MORE: u16 = 1 << 13;
            let offset = if random.below(2) == 0 { 0 } else { random.below(1 << 7) as u16 };
            let fragment = [random.below(64) as u16, offset | MORE];
            let payload = [&[0x9c, 0x40, 0x1b, 0x58][..], &bytes(random, 60)].concat();
            // The first tenant's clients, whose port it is: others would be new clients there.
            let client = address(random.below(10)).parse().expect("an address");
            [ethernet, &[0x08, 0x00], &ipv4(client, NODE, 17, fragment, &payload)].concat()
        },
        &["overlapping-fragment", "datagram-ended"],
    );
}

#[test]
#[ignore = "part of `make hostile`"]
fn tcp_segments_and_icmp_errors_of_strangers() {
    are_withstood(
        Device::AfPacket,
        |random, ethernet| {
            let source = if random.below(2) == 0 { neighbour(random) } else { stranger(random) };
            let flags = [0x02, 0x04, 0x01, 0x10, 0x14, 0x11][random.below(6) as usize];
            let segment = [&bytes(random, 12)[..], &[0x50, flags, 0x20, 0, 0, 0, 0, 0]].concat();
            let quoted = ipv4(NODE.parse().expect("an address"), "10.77.0.100", 17, [0, 0], &bytes(random, 8));
            let error = [&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
            let to = if random.below(2) == 0 { NODE } else { THEIRS };
            let (protocol, payload) = if random.below(2) == 0 { (6, &segment) } else { (1, &error) };
            [ethernet, &[0x08, 0x00], &ipv4(source, to, protocol, [0, 0], payload)].concat()
        },
        &["no-rule", "no-connection", "error-without-flow", "forged-error"],
    );
}

#[test]
#[ignore = "part of `make hostile`"]
fn questions_for_the_ports_hardware_address_from_hosts_that_do_not_exist() {
    are_withstood(
        Device::AfPacket,
        |random, ethernet| {
            let to: Ipv4Addr = NODE.parse().expect("an address");
            let asker = [&[0x02][..], &bytes(random, 5)].concat();
            let question = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &asker, &bytes(random, 4), &[0; 6], &to.octets()].concat();
            [&ethernet[..6], &asker, &[0x08, 0x06], &question].concat()
        },
        &[],
    );
}

#[test]
fn clients_that_are_made_up_each_with_one_packet() {
    are_withstood(
        Device::AfPacket,
        |random, ethernet| {
            let request = [&[8, 0, 0xf7, 0xff, 0, 0, 0, 0][..]].concat();
            [ethernet, &[0x08, 0x00], &ipv4(stranger(random), THEIRS, 1, [0, 0], &request)].concat()
        },
        &[],
    );
}

#[test]
#[ignore = "part of `make hostile`"]
fn hosts_of_many_networks_each_of_which_sends_from_all_its_addresses() {
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], SETTINGS);
    are_withstood_on(
        &bed,
        |random, ethernet| {
            let network = 0xfd5b << 112 | u128::from(random.below(64)) << 64;
            let source = Ipv6Addr::from_bits(network | u128::from(random.number() >> 1));
            let station = EthernetAddress::from_bytes(&ethernet[..6]);
            strangers::requests(station, THEIRS_V6, std::iter::once(source)).pop().expect("there is one")
        },
        || {
            let chain = bed.node.cli().chain_status(GREEDY, "echo");
            assert!(chain["meter"]["activations"].as_u64() > Some(100), "they had instances: {chain}");
        },
    );
}

#[test]
#[ignore = "part of `make hostile`"]
fn flows_many_times_as_many_as_the_flow_table_has_room_for() {
    const FLOWS_MAX: u64 = 256;
    let bed = Bed::with_settings(Device::AfPacket, &[THEIRS], &format!("{SETTINGS}flows_max = {FLOWS_MAX}\n"));
    are_withstood_on(
        &bed,
        |random, ethernet| {
            // Of a few hosts, which have an instance each.
            let host = Ipv4Addr::from(0x0a5b_0000 | random.below(4) as u32);
            let datagram = [&bytes(random, 4)[..], &[0, 16, 0, 0], &bytes(random, 8)].concat();
            [ethernet, &[0x08, 0x00], &ipv4(host, THEIRS, 17, [0, 0], &datagram)].concat()
        },
        || {
            let chain = bed.node.cli().chain_status(GREEDY, "echo");
            let drops = chain["drops"].as_array().cloned().unwrap_or_default();
            let of_function = drops.iter().filter(|drop| drop["reason"] == "dropped-by-function");
            let flows: u64 = of_function.filter_map(|drop| drop["count"].as_u64()).sum();
            assert!(flows > 10 * FLOWS_MAX, "{flows} flows: {chain}");
        },
    );
}
