//! Nodes with several ports: frames pass from one to the other, and a fault of one does not affect the other.
#![forbid(unsafe_code)]

use pinion_tests::network::bed::{Bed, Device, turn};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::ping::{flood, pings};
use pinion_tests::until::{SOON, until};

/// The node's own address, on the port `lan`.
const NODE: &str = "10.77.0.2";
const LEFT: &str = "10.77.0.11";
const RIGHT: &str = "10.77.1.12";
/// The node's own address, on the port `wan`.
const NODE_BEHIND: &str = "10.77.1.2";

/// Two hosts in two networks that only a node connects.
struct Wire {
    node: Node,
    left: Namespace,
    right: Namespace,
    middle: Namespace,
}

fn address(namespace: &Namespace, own: &str, gateway: &str) {
    namespace.ip(&format!("address replace {own}/24 dev eth0"));
    namespace.ip(&format!("route replace default via {gateway}"));
}

impl Wire {
    /// `driver` is a driver that uses a kernel interface; `more` are further keys of both ports.
    fn new(driver: &str, more: &str) -> Self {
        let [left, middle, right] = ["left", "middle", "right"].map(Namespace::new);
        left.connect("eth0", &middle, "port0");
        right.connect("eth0", &middle, "port1");
        let port = |number, name, address| {
            format!(
                "[[port]]\nname = \"{name}\"\ndevice = \"{driver}{number},iface=port{number}\"\nnamespace = {:?}\n\
                 addresses = [\"{address}/24\"]\n{more}\n",
                middle.name()
            )
        };
        let node = Node::started(&format!("{}{}", port(0, "lan", NODE), port(1, "wan", NODE_BEHIND)));
        let wire = Self { node, left, right, middle };
        wire.address_both();
        let wire_of = |name, egress| {
            let stages = "{ module = \"macswap\" }, { module = \"macswap\" }";
            format!("[[chain]]\nname = \"{name}\"\nstage = [{stages}]\negress = \"{egress}\"\nrouted = true\n")
        };
        let rule_of = |chain, port, to| {
            let matcher = format!("{{ port = \"{port}\", destination = \"{to}\" }}");
            format!("[[rule]]\nname = \"{chain}\"\npolicy = \"shared\"\nchain = \"{chain}\"\nmatch = {matcher}\n")
        };
        let manifest = Manifest::of("demo")
            .module("macswap", &build::sample("macswap"))
            .module("icmp-echo", &build::sample("icmp-echo"))
            .with(wire_of("out", "wan") + &wire_of("back", "lan"))
            .with(rule_of("out", "lan", RIGHT) + &rule_of("back", "wan", LEFT))
            .chain("echo", "icmp-echo", "")
            .ping_rule("ping", "echo", "per-client", NODE);
        wire.node.apply(manifest.text());
        wire
    }

    fn address_both(&self) {
        address(&self.left, LEFT, NODE);
        address(&self.right, RIGHT, NODE_BEHIND);
    }

    fn link_is_up(&self, port: usize) -> bool {
        self.node.cli().status()["ports"][port]["link_up"] == true
    }

    /// Returns how many frames a port has dropped because its link was down.
    fn dropped_without_link(&self, port: usize) -> u64 {
        let status = self.node.cli().status();
        let drops = status["ports"][port]["drops"].as_array().expect("a list").clone();
        let of_link = drops.iter().find(|drop| drop["reason"] == "link-down");
        of_link.map_or(0, |drop| drop["count"].as_u64().expect("a number"))
    }

    /// Deletes the right host's interface by `delete`, and makes another one. The node notices both.
    fn replace_right(&mut self, delete: impl FnOnce(&mut Self)) {
        let (warning, before) = ("iface=port1 has gone", log_lines(self, GONE));
        delete(self);
        until("sign of a device that has gone", SOON, || (!self.link_is_up(1)).then_some(()));
        assert!(warnings(&self.node).contains(warning), "{}", warnings(&self.node));
        until("line of the log", SOON, || (log_lines(self, GONE) == before + 1).then_some(()));
        assert!(self.link_is_up(0));
        flood(&self.left, NODE, 1_000).assert_all(1_000);
        // What functions send there is dropped.
        let dropped = self.dropped_without_link(1);
        let unanswered =
            self.left.command("ping").args(["-n", "-q", "-c", "5", "-i", "0.05", "-W", "0.1", RIGHT]).output();
        assert!(!unanswered.expect("ping is installed").status.success());
        until("frames that are dropped", SOON, || (self.dropped_without_link(1) >= dropped + 5).then_some(()));
        self.right.connect("eth0", &self.middle, "port1");
        until("sign of a device that is back", SOON, || self.link_is_up(1).then_some(()));
        until("line of the log", SOON, || (log_lines(self, BACK) == before + 1).then_some(()));
        assert!(!warnings(&self.node).contains(warning), "{}", warnings(&self.node));
        self.address_both();
        flood(&self.left, RIGHT, 1_000).assert_all(1_000);
        flood(&self.right, LEFT, 1_000).assert_all(1_000);
    }
}

fn frames_pass_between_two_ports_both_ways(driver: &str) {
    let _turn = turn();
    let wire = Wire::new(driver, "");
    pings(&wire.left, 20, &format!("-i 0.05 {RIGHT}")).assert_all(20);
    flood(&wire.left, RIGHT, 2_000).assert_all(2_000);
    flood(&wire.right, LEFT, 2_000).assert_all(2_000);
    flood(&wire.left, NODE, 1_000).assert_all(1_000);
}

#[test]
fn frames_pass_between_two_af_packet_ports_both_ways() {
    frames_pass_between_two_ports_both_ways("net_af_packet");
}

#[test]
fn frames_pass_between_two_af_xdp_ports_both_ways() {
    frames_pass_between_two_ports_both_ways("net_af_xdp");
}

#[test]
fn frames_of_many_flows_pass_between_ports_with_several_queues() {
    let _turn = turn();
    let wire = Wire::new("net_af_packet", "queues = 2");
    for number in 20..40 {
        let own = format!("10.77.0.{number}");
        wire.left.ip(&format!("address add {own}/24 dev eth0"));
        pings(&wire.left, 5, &format!("-i 0.1 -I {own} {NODE}")).assert_all(5);
    }
    flood(&wire.left, RIGHT, 2_000).assert_all(2_000);
}

fn a_link_that_goes_down_disturbs_no_other_port(driver: &str) {
    let _turn = turn();
    let wire = Wire::new(driver, "");
    flood(&wire.left, RIGHT, 100).assert_all(100);
    wire.right.ip("link set eth0 down");
    until("sign of a link that is down", SOON, || (!wire.link_is_up(1)).then_some(()));
    assert!(wire.link_is_up(0));
    flood(&wire.left, NODE, 1_000).assert_all(1_000);
    pings(&wire.left, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    wire.right.ip("link set eth0 up");
    until("sign of a link that is up again", SOON, || wire.link_is_up(1).then_some(()));
    wire.address_both();
    flood(&wire.left, RIGHT, 1_000).assert_all(1_000);
}

#[test]
fn a_link_that_goes_down_disturbs_no_other_af_packet_port() {
    a_link_that_goes_down_disturbs_no_other_port("net_af_packet");
}

#[test]
fn a_link_that_goes_down_disturbs_no_other_af_xdp_port() {
    a_link_that_goes_down_disturbs_no_other_port("net_af_xdp");
}

const GONE: &str = "the port's device has gone";
const BACK: &str = "the port's link is up again";

fn log_lines(wire: &Wire, text: &str) -> usize {
    wire.node.log().matches(text).count()
}

fn warnings(node: &Node) -> String {
    node.cli().status()["warnings"].to_string()
}

#[test]
fn an_af_packet_port_of_a_confined_node_works_again_when_its_deleted_interface_is_there_again() {
    let _turn = turn();
    for more in ["", "queues = 2"] {
        let mut wire = Wire::new("net_af_packet", more);
        flood(&wire.left, RIGHT, 1_000).assert_all(1_000);
        // The node's end, the far end, and the far end with all of its namespace.
        wire.replace_right(|wire| drop(wire.middle.ip("link delete port1")));
        wire.replace_right(|wire| drop(wire.right.ip("link delete eth0")));
        wire.replace_right(|wire| wire.right = Namespace::new("right"));
        assert!(!warnings(&wire.node).contains("was refused"), "{}", warnings(&wire.node));
    }
}

#[test]
fn an_af_packet_port_gets_its_new_interface_under_traffic() {
    let _turn = turn();
    let wire = Wire::new("net_af_packet", "");
    std::thread::scope(|scope| {
        let floods = scope.spawn(|| flood(&wire.left, NODE, 5_000).assert_all(5_000));
        for _ in 0..2 {
            wire.middle.ip("link delete port1");
            until("sign of a device that has gone", SOON, || (!wire.link_is_up(1)).then_some(()));
            wire.right.connect("eth0", &wire.middle, "port1");
            until("sign of a device that is back", SOON, || wire.link_is_up(1).then_some(()));
        }
        floods.join().expect("the other port is not disturbed");
    });
    wire.address_both();
    flood(&wire.left, RIGHT, 1_000).assert_all(1_000);
}

#[test]
fn an_af_xdp_port_of_a_confined_node_continues_on_packet_sockets_when_its_deleted_interface_is_there_again() {
    let _turn = turn();
    let mut wire = Wire::new("net_af_xdp", "");
    flood(&wire.left, RIGHT, 1_000).assert_all(1_000);
    wire.replace_right(|wire| drop(wire.middle.ip("link delete port1")));
    wire.replace_right(|wire| wire.right = Namespace::new("right"));
    assert!(wire.node.log().contains("which are slower than AF_XDP"), "{}", wire.node.log());
    assert!(!warnings(&wire.node).contains("was refused"), "{}", warnings(&wire.node));
}

#[test]
fn a_tap_that_is_deleted_under_a_confined_node_is_made_again_with_its_address() {
    let bed = Bed::new(Device::Tap);
    bed.apply_echo("per-client");
    bed.assert_floods_are_answered(500);
    let port = || bed.node.cli().status()["ports"][0].clone();
    let mac = port()["mac"].clone();
    for _ in 0..2 {
        bed.switch().ip(&format!("link delete {}", bed.wire()));
        until("sign of a device that has gone", SOON, || (port()["link_up"] == false).then_some(()));
        assert!(warnings(&bed.node).contains("port lan: the device net_tap0,"), "{}", warnings(&bed.node));
        until("sign of a device that is back", SOON, || (port()["link_up"] == true).then_some(()));
        assert_eq!(port()["mac"], mac);
        bed.connect_tap();
        bed.assert_floods_are_answered(500);
    }
    assert!(!warnings(&bed.node).contains("was refused"), "{}", warnings(&bed.node));
}
