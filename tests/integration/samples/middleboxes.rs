//! Samples between two networks, with the kernel's own traffic from both sides.
#![forbid(unsafe_code)]

use pinion_tests::network::bed::Device;
use pinion_tests::network::inline::{INTERFACE, Inline};
use pinion_tests::traffic::iperf::{assert_tcp_flows, iperf};
use pinion_tests::traffic::ping::{ping, pings};
use pinion_tests::until::{SOON, until};

/// The address to which the translator changes the left host's.
const OUTSIDE: &str = "10.78.0.99";
/// The router's own address, the source of its ICMP errors.
const ROUTER: &str = "10.78.0.254";

#[test]
fn a_firewall_passes_flows_begun_inside_with_their_answers_and_none_begun_outside() {
    let inline = Inline::new(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    inline.pass_through(
        "firewall",
        &format!(
            "inside = [{:?}, {:?}]\noutputs = {{ out = 0, in = 1 }}\n[[rule]]\naction = \"allow\"\ndirection = \"out\"\n",
            left.address, left.address_v6
        ),
    );
    for (from, to, answered) in [
        (left, &right.address, 3),
        (left, &right.address_v6, 3),
        (right, &left.address, 0),
        (right, &left.address_v6, 0),
    ] {
        let summary = ping(&from.namespace, &format!("-c 3 -i 0.05 -W 1 {to}"));
        assert_eq!(summary.received, answered, "to {to}: {summary:?}");
    }
    // The server sends, so all its data arrives as answers.
    assert_tcp_flows(&left.namespace, &right.namespace, &right.address, " --reverse");
}

#[test]
fn a_firewall_knows_forged_addresses_of_the_inside_by_the_port_that_they_come_in_by() {
    /// An address of the inside, which here is also the right host's.
    const FORGED: &str = "10.78.0.50";
    let inline = Inline::new(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    right.namespace.ip(&format!("address add {FORGED}/32 dev {INTERFACE}"));
    // The node's port 0 is `lan`, on the left host's side.
    inline.pass_through(
        "firewall",
        &format!(
            "inside = [\"{}/32\", \"{FORGED}/32\"]\ninside_ports = [0]\noutputs = {{ out = 0, in = 1 }}\n\
             [[rule]]\naction = \"allow\"\ndirection = \"out\"\n",
            left.address
        ),
    );
    ping(&left.namespace, &format!("-c 3 -i 0.05 -W 1 {}", right.address)).assert_all(3);
    let forged = ping(&right.namespace, &format!("-c 3 -i 0.05 -W 1 -I {FORGED} {}", left.address));
    assert_eq!(forged.received, 0, "{forged:?}");
    until("count of forged packets", SOON, || {
        let metrics = inline.node.cli().run(&["metrics", "-A"]);
        let of_spoofed = |line: &&str| line.contains("firewall_packets_denied_total{") && line.contains("\"spoofed\"");
        metrics.lines().find(of_spoofed).filter(|line| !line.ends_with(" 0")).map(|_| ())
    });
}

/// Makes a translator between two hosts, of which the right one knows only the outside address of the left one.
fn translated(device: Device) -> Inline {
    let inline = Inline::new(device);
    let (left, right) = (&inline.left, &inline.right);
    // The answer to an untranslated packet reaches no host.
    right.namespace.ip(&format!("route add unreachable {}", left.address));
    inline.pass_through(
        "nat",
        &format!(
            "inside = [\"{}/32\"]\noutside = [{OUTSIDE:?}]\ninside_ports = [0]\n[to_outside]\noutput = 0\n[to_inside]\noutput = 1\n",
            left.address
        ),
    );
    inline
}

#[test]
fn large_pings_and_their_replies_pass_a_translator_in_fragments() {
    // Before a packet socket of `net_af_packet` gets fragments, the kernel puts them together.
    let inline = translated(Device::AfXdp);
    pings(&inline.left.namespace, 3, &format!("-i 0.05 -s 4000 {}", inline.right.address)).assert_all(3);
}

#[test]
fn behind_a_translator_a_host_reaches_others_that_do_not_know_its_address() {
    let inline = translated(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    pings(&left.namespace, 3, &format!("-i 0.05 {}", right.address)).assert_all(3);
    assert_eq!(
        ping(&right.namespace, &format!("-c 2 -i 0.05 -W 1 {OUTSIDE}")).received,
        0,
        "an unsolicited request was answered"
    );
    for more in ["", " --reverse"] {
        assert_tcp_flows(&left.namespace, &right.namespace, &right.address, more);
    }
    let words = "--udp --bitrate 10M --length 1000 --blockcount 1000";
    let moved = iperf(&left.namespace, &right.namespace, &right.address, words);
    // A busy machine may lose some.
    assert!(moved.datagrams == 1000 && moved.lost < 500, "{moved:?}");
}

#[test]
fn a_router_forwards_by_its_table_and_reports_an_expired_ttl() {
    let inline = Inline::new(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    let hop = |name: &str, output: u32| format!("[[next_hop]]\nname = \"{name}\"\noutput = {output}\n");
    let routes = format!("{} right\\n{} left\\n", right.address, left.address);
    inline.pass_through(
        "lpm-router",
        &format!(
            "addresses = [{ROUTER:?}]\nroutes = \"{}\"\n{}{}",
            routes.replace(" right", "/32 right").replace(" left", "/32 left"),
            hop("right", 0),
            hop("left", 1)
        ),
    );
    pings(&left.namespace, 3, &format!("-i 0.05 {}", right.address)).assert_all(3);
    pings(&left.namespace, 3, &format!("-i 0.05 -t 2 {}", right.address)).assert_all(3);
    let expired = ping(&left.namespace, &format!("-c 3 -i 0.05 -W 1 -t 1 {}", right.address));
    assert_eq!((expired.received, expired.errors), (0, 3), "{expired:?}");
    assert_tcp_flows(&left.namespace, &right.namespace, &right.address, "");
}
