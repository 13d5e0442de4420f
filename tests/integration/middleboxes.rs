//! Samples that stand between two networks, with the kernel's own traffic from both sides.
#![forbid(unsafe_code)]

use pinion_tests::bed::Device;
use pinion_tests::inline::{INTERFACE, Inline, LAN_MAC, WAN_MAC};
use pinion_tests::iperf::iperf;
use pinion_tests::ping::ping;

/// What the translator has the left host become.
const OUTSIDE: &str = "10.78.0.99";
/// The router's own, from which it says what it could not do.
const ROUTER: &str = "10.78.0.254";

/// What a second of TCP has to move for it to have worked at all.
const BYTES_MIN: u64 = 1 << 20;

#[test]
fn a_firewall_lets_out_what_is_begun_inside_and_its_answers_in_and_nothing_that_is_begun_outside() {
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
    // The server sends: all that it sends is an answer.
    let moved = iperf(&left.namespace, &right.namespace, &right.address, "--time 1 --reverse");
    assert!(moved.received_bytes > BYTES_MIN, "{moved:?}");
}

#[test]
fn behind_a_translator_a_host_speaks_with_others_that_know_nothing_of_its_address() {
    let inline = Inline::new(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    let knows = |address: &str, station: &str| {
        right.namespace.ip(&format!("neighbor replace {address} {station} dev {INTERFACE} nud permanent"));
    };
    knows(OUTSIDE, &format!("lladdr {WAN_MAC}"));
    // What came from there untranslated would be answered to nobody.
    knows(&left.address, "lladdr 02:00:00:00:00:01");
    inline.pass_through(
        "nat",
        &format!(
            "inside = [\"{}/32\"]\noutside = [{OUTSIDE:?}]\n[to_outside]\noutput = 0\n[to_inside]\noutput = 1\n",
            left.address
        ),
    );
    ping(&left.namespace, &format!("-c 3 -i 0.05 -W 1 {}", right.address)).assert_all(3);
    assert_eq!(ping(&right.namespace, &format!("-c 2 -i 0.05 -W 1 {OUTSIDE}")).received, 0, "nobody asked");
    for words in ["--time 1", "--time 1 --reverse", "--udp --bitrate 10M --time 1"] {
        let moved = iperf(&left.namespace, &right.namespace, &right.address, words);
        assert!(moved.received_bytes > BYTES_MIN / 2, "{words}: {moved:?}");
    }
}

#[test]
fn a_router_forwards_by_its_table_and_says_what_may_go_no_further() {
    let inline = Inline::new(Device::AfPacket);
    let (left, right) = (&inline.left, &inline.right);
    let hop = |name: &str, output: u32, mac: &str| {
        format!("[[next_hop]]\nname = \"{name}\"\noutput = {output}\nmac = {mac:?}\n")
    };
    let routes = format!("{} right\\n{} left\\n", right.address, left.address);
    inline.pass_through(
        "lpm-router",
        &format!(
            "mac = \"02:00:00:00:00:01\"\naddresses = [{ROUTER:?}]\nroutes = \"{}\"\n{}{}",
            routes.replace(" right", "/32 right").replace(" left", "/32 left"),
            hop("right", 0, LAN_MAC),
            hop("left", 1, WAN_MAC)
        ),
    );
    let to_right = |words: &str| ping(&left.namespace, &format!("{words} -i 0.05 -W 1 {}", right.address));
    to_right("-c 3").assert_all(3);
    to_right("-c 3 -t 2").assert_all(3);
    let expired = to_right("-c 3 -t 1");
    assert_eq!((expired.received, expired.errors), (0, 3), "{expired:?}");
    let moved = iperf(&left.namespace, &right.namespace, &right.address, "--time 1");
    assert!(moved.received_bytes > BYTES_MIN, "{moved:?}");
}
