//! Chains whose stages have several outputs, chains that hold frames that find no free slot, and the counts of what chains drop; all with
//! real frames on two ports.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use pinion_tests::machine::process::errors;
use pinion_tests::network::bed::{NODE, TENANT, turn};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::frames::{send, watch_each};
use pinion_tests::until::{SOON, until};
use serde_json::{Value, json};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv4Repr, UdpPacket, UdpRepr,
};

const SENDER: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x77]);
/// The far ends of the ports' cables.
const FAR_ENDS: [&str; 2] = ["lan-far", "wan-far"];

/// A node with the ports `lan` and `wan`, and the far ends of their cables.
struct TwoPorts {
    node: Node,
    station: EthernetAddress,
    outside: Namespace,
    _inside: Namespace,
    _turn: MutexGuard<'static, ()>,
}

impl TwoPorts {
    #[track_caller]
    fn new() -> Self {
        let turn = turn();
        let (inside, outside) = (Namespace::new("ports"), Namespace::new("outside"));
        // What leaves by the second port has the first one's hardware address.
        let mut config = format!("[[tenant]]\nname = {TENANT:?}\ntransparent_forwarding = true\n");
        for (number, port) in ["lan", "wan"].into_iter().enumerate() {
            inside.connect(port, &outside, FAR_ENDS[number]);
            config += &format!(
                "[[port]]\nname = \"{port}\"\ndevice = \"net_af_packet{number},iface={port}\"\nnamespace = {:?}\n\
                 addresses = [\"{}/24\"]\n",
                inside.name(),
                if number == 0 { NODE } else { "10.78.0.2" },
            );
        }
        let node = Node::started(&config);
        let mac = node.cli().status()["ports"][0]["mac"].as_str().expect("a port has an address").to_owned();
        let station = mac.parse().expect("an Ethernet address");
        Self { node, station, outside, _inside: inside, _turn: turn }
    }

    /// Makes a datagram from one of the senders to the node, with this last byte.
    fn datagram(&self, sender: u8, last: u8) -> Vec<u8> {
        let source = Ipv4Address::new(10, 77, 0, sender);
        let destination: Ipv4Address = NODE.parse().expect("an address");
        let udp = UdpRepr { src_port: 1000, dst_port: 2000 };
        let mut payload = [0; 64];
        payload[63] = last;
        let ip = Ipv4Repr {
            src_addr: source,
            dst_addr: destination,
            next_header: IpProtocol::Udp,
            payload_len: udp.header_len() + payload.len(),
            hop_limit: 64,
        };
        let mut frame = vec![0; EthernetFrame::<&[u8]>::header_len() + ip.buffer_len() + ip.payload_len];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
        EthernetRepr { src_addr: SENDER, dst_addr: self.station, ethertype: EthernetProtocol::Ipv4 }
            .emit(&mut ethernet);
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        ip.emit(&mut packet, &ChecksumCapabilities::default());
        let (from, to) = (IpAddress::from(source), IpAddress::from(destination));
        let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
        let fill = |space: &mut [u8]| space.copy_from_slice(&payload);
        udp.emit(&mut datagram, &from, &to, payload.len(), fill, &ChecksumCapabilities::default());
        frame
    }

    /// Sends frames to `lan` until so many have come out of each port; returns the last bytes of those.
    #[track_caller]
    fn send(&self, frames: &[Vec<u8>], wanted: [usize; 2]) -> [Vec<u8>; 2] {
        // After a swap of addresses the destination is the sender's.
        let back = |frame: &[u8]| frame.starts_with(SENDER.as_bytes());
        let last = |frame: Vec<u8>| frame.last().copied();
        watch_each(&self.outside, FAR_ENDS, |[mut lan, mut wan]| {
            send(&self.outside, FAR_ENDS[0], frames);
            let received = [lan.take(wanted[0], SOON, back), wan.take(wanted[1], SOON, back)];
            received.map(|frames| frames.into_iter().filter_map(last).collect())
        })
    }

    fn drops(&self, chain: &str) -> Value {
        self.node.cli().chain_status(TENANT, chain)["drops"].clone()
    }

    /// Returns what tenants and their chains dropped, by their meters; an empty chain name stands for the tenant itself.
    fn dropped(&self) -> BTreeMap<(String, String), u64> {
        let status = self.node.cli().status();
        let entries = ["tenants", "chains"].into_iter().flat_map(|list| status[list].as_array().expect("a list"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let dropped = |entry: &Value| entry["meter"]["dropped"].as_u64().expect("a meter counts drops");
        entries.map(|entry| ((text(&entry["tenant"]), text(&entry["chain"])), dropped(entry))).collect()
    }
}

fn udp_rule(manifest: Manifest, chain: &str) -> Manifest {
    manifest.with(format_args!(
        "[[rule]]\nname = \"{chain}\"\npolicy = \"per-client\"\nchain = \"{chain}\"\n\
         match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
    ))
}

/// A chain that sends packets by their last byte: 0 to a stage that sends them back out of their port, 1 to one that sends them out of this
/// port.
#[track_caller]
fn sorter(port: &str) -> Manifest {
    let manifest = Manifest::of(TENANT)
        .module("splitter", &build::hostile("splitter"))
        .module("macswap", &build::sample("macswap"))
        .with(format_args!(
            "[[chain]]\nname = \"sorter\"\nstage = [\n\
             {{ module = \"splitter\", outputs = [\"back\", \"through\"] }},\n\
             {{ module = \"macswap\", name = \"back\", outputs = [\"egress\"] }},\n\
             {{ module = \"macswap\", name = \"through\", outputs = [\"port:{port}\"] }},\n]\n"
        ));
    udp_rule(manifest, "sorter")
}

#[test]
fn each_packet_takes_the_way_that_its_function_chose_for_it() {
    let bed = TwoPorts::new();
    bed.node.apply(sorter("wan").text());
    bed.node.await_instance(TENANT, "sorter");
    let frames: Vec<Vec<u8>> = (0..40).map(|number| bed.datagram(11, number % 2)).collect();
    assert_eq!(bed.send(&frames, [20, 20]), [vec![0; 20], vec![1; 20]]);
    let received = |fwp: &Value| (fwp["stage"].as_u64(), fwp["counters"]["received"].as_u64());
    let fwps: Vec<_> = bed.node.cli().serving_fwps().iter().map(received).collect();
    assert_eq!(fwps, [(Some(0), Some(40)), (Some(1), Some(20)), (Some(2), Some(20))]);
    assert!(bed.node.cli().status()["copied_bytes"].as_u64() > Some(0));
}

#[test]
fn an_output_that_the_chain_does_not_have_ends_the_instance_and_says_why() {
    let bed = TwoPorts::new();
    bed.node.apply(sorter("wan").text());
    assert_eq!(bed.send(&[bed.datagram(11, 0)], [1, 0]), [vec![0], vec![]]);
    bed.send(&[bed.datagram(11, 2)], [0, 0]);
    let ended = until("chain instance that ended", SOON, || {
        bed.node.cli().get("instances").into_iter().find(|instance| instance["state"] == "terminated")
    });
    assert_eq!(ended["ended_because"], "it was stopped: it sent to output 2, which its chain does not have");
    // The sender's next frame gets another instance.
    assert_eq!(bed.send(&[bed.datagram(11, 1)], [0, 1]), [vec![], vec![1]]);
}

#[test]
fn an_output_to_a_port_that_the_node_does_not_have_is_refused() {
    let bed = TwoPorts::new();
    let manifest = bed.node.path("manifest.toml");
    std::fs::write(&manifest, sorter("dmz").text()).expect("the node's folder is writable");
    let refused = bed.node.cli().try_apply(&manifest);
    assert_eq!(refused.status.code(), Some(2));
    let error = errors(&refused);
    assert!(error.contains("chain demo/sorter: this node has no port dmz; it has lan, wan"), "{error}");
}

#[test]
fn drops_of_a_chain_stay_counted_when_its_instances_have_ended() {
    let bed = TwoPorts::new();
    // The function answers pings and drops everything else.
    let manifest = Manifest::of(TENANT).module("icmp-echo", &build::sample("icmp-echo"));
    bed.node.apply(udp_rule(manifest.chain("echo", "icmp-echo", "idle_timeout_ms = 200"), "echo").text());
    bed.node.await_instance(TENANT, "echo");
    for (round, sender) in [(1, 11), (2, 12), (3, 11)] {
        bed.send(&vec![bed.datagram(sender, 0); 5], [0, 0]);
        let expected = json!([{ "place": "0/icmp-echo", "reason": "dropped-by-function", "count": 5 * round }]);
        until(&format!("count of what round {round} lost"), SOON, || (bed.drops("echo") == expected).then_some(()));
        until(&format!("end of instance {round}"), SOON, || {
            let instances = bed.node.cli().get("instances");
            let ended = instances.iter().filter(|instance| instance["state"] == "terminated").count();
            (ended == round).then_some(())
        });
        assert_eq!(bed.drops("echo"), expected);
    }
}

/// Returns the sum of the drops that a chain lists by place and reason, and the sum of those that its FWPs have counted.
fn listed(bed: &TwoPorts, tenant: &str, chain: &str) -> [u64; 2] {
    let number = |value: &Value| value.as_u64().expect("a number");
    let drops = bed.node.cli().chain_status(tenant, chain)["drops"].clone();
    let fwps = bed.node.cli().get("fwps").into_iter().filter(|fwp| fwp["tenant"] == tenant && fwp["chain"] == chain);
    let by_fwps = fwps.flat_map(|fwp| {
        let counters = fwp["counters"].as_object().expect("an FWP has counters").clone();
        counters.into_iter().filter(|(name, _)| name.starts_with("dropped_")).map(|(_, count)| number(&count))
    });
    [drops.as_array().expect("a list").iter().map(|drop| number(&drop["count"])).sum(), by_fwps.sum()]
}

#[test]
fn a_tenants_meter_counts_the_drops_that_its_chains_list_each_packet_once() {
    let bed = TwoPorts::new();
    // Tenant, chain, sender and number of frames; each chain drops all of them.
    let lost = [("demo", "echo", 11, 5), ("demo", "other", 12, 7), ("guest", "echo", 13, 3)];
    for (tenant, chain, sender, _) in lost {
        let manifest = Manifest::of(tenant).module("icmp-echo", &build::sample("icmp-echo")).with(format_args!(
            "[[rule]]\nname = \"{chain}\"\npolicy = \"per-client\"\nchain = \"{chain}\"\n\
             match = {{ source = \"10.77.0.{sender}\", protocol = \"udp\" }}\n"
        ));
        bed.node.apply(manifest.chain(chain, "icmp-echo", "idle_timeout_ms = 200").text());
        bed.node.await_instance(tenant, chain);
    }
    for (_, _, sender, count) in lost {
        bed.send(&vec![bed.datagram(sender, 0); count as usize], [0, 0]);
    }
    let key = |tenant: &str, chain: &str| (tenant.to_owned(), chain.to_owned());
    let mut expected: BTreeMap<_, _> = lost.map(|(tenant, chain, _, count)| (key(tenant, chain), count)).into();
    expected.extend([(key("demo", ""), 12), (key("guest", ""), 3)]);
    until("count of what was lost", SOON, || (bed.dropped() == expected).then_some(()));
    until("end of the three instances", SOON, || {
        let instances = bed.node.cli().get("instances");
        (instances.iter().filter(|instance| instance["state"] == "terminated").count() == 3).then_some(())
    });
    assert_eq!(bed.dropped(), expected);
    for (tenant, chain, _, count) in lost {
        assert_eq!(listed(&bed, tenant, chain), [count; 2], "{tenant}/{chain}");
    }
}

/// A burst longer than a pool, for a function that is slower than any burst.
const BURST: u64 = 400;

/// Sends a burst through such a function, with these keys for its chain. Returns how many frames came back, and the drops; each frame is
/// one or the other. The node's counts are used, as a kernel socket's queue is too short.
fn burst(hold: &str) -> (u64, Value) {
    let bed = TwoPorts::new();
    let stage = "{ module = \"log-flood\", config = \"5000\" }";
    let manifest = Manifest::of(TENANT)
        .module("log-flood", &build::hostile("log_flood"))
        .with(format_args!("[[chain]]\nname = \"slow\"\nstage = [{stage}]\n{hold}\n"));
    bed.node.apply(udp_rule(manifest, "slow").text());
    // One frame ahead of the burst activates the instance.
    assert_eq!(bed.send(&[bed.datagram(11, 0)], [1, 0]), [vec![0], vec![]]);
    send(&bed.outside, FAR_ENDS[0], &vec![bed.datagram(11, 0); BURST as usize]);
    let (sent, drops) = until("end of the burst, each frame of it sent back or counted as lost", SOON, || {
        let fwps = bed.node.cli().get("fwps");
        let sent = fwps.iter().filter_map(|fwp| fwp["counters"]["sent"].as_u64()).sum::<u64>() - 1;
        // The port also sends what the node asks and answers neighbours.
        if bed.node.cli().status()["ports"][0]["sent"].as_u64()? <= sent {
            return None;
        }
        let drops = bed.drops("slow");
        let lost: u64 = drops.as_array()?.iter().filter_map(|drop| drop["count"].as_u64()).sum();
        (sent + lost == BURST).then(|| {
            assert!(bed.dropped().values().all(|dropped| *dropped == lost), "{:?} beside {drops}", bed.dropped());
            (sent, drops)
        })
    });
    let held = bed.node.cli().resource(TENANT, "frames_held");
    let hold_full = if drops[0]["reason"] == "hold-full" { BURST - sent } else { 0 };
    assert_eq!((&held["used"], &held["refused"]), (&json!(0), &json!(hold_full)), "{held}");
    let leaving = bed.node.cli().resource(TENANT, "frames_leaving");
    assert_eq!((&leaving["used"], &leaving["refused"]), (&json!(0), &json!(0)), "{leaving}");
    (sent, drops)
}

#[test]
fn a_chain_drops_frames_that_find_no_slot() {
    let (sent, drops) = burst("");
    assert_eq!(drops, json!([{ "place": "0/log-flood", "reason": "no-slot", "count": BURST - sent }]));
}

#[test]
fn a_chain_that_holds_frames_loses_none_of_a_burst_that_it_has_room_for() {
    assert_eq!(burst("hold_frames = 512"), (BURST, json!([])));
}

#[test]
fn a_chain_that_holds_frames_drops_those_beyond_its_bound() {
    let (sent, drops) = burst("hold_frames = 10");
    assert_eq!(drops, json!([{ "place": "0/log-flood", "reason": "hold-full", "count": BURST - sent }]));
}
