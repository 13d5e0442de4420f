//! A node with two ports as a bump in the wire between two hosts that are not configured for it.
//!
//! ```text
//!   namespace "left"             namespace "between"             namespace "right"
//!   +------------------+      +-----------------------+      +-------------------+
//!   | eth0   MAC of wan|------| lan --> chain --> wan |------| eth0   MAC of lan |
//!   | 10.78.0.1        |      |     <-- chain <--     |      | 10.78.0.2         |
//!   | fd78::1          |      +-----------------------+      | fd78::2           |
//!   +------------------+      10.78.200.1   10.78.201.1      +-------------------+
//!                              fd78::c8:1    fd78::c9:1
//! ```
//!
//! Each host has its port's address as its gateway. A port receives only frames to its own MAC address, so the host behind the other port
//! has that address: frames that pass unchanged reach it. The tenant forwards transparently. On [`Device::Tap`], `lan` is a TAP device
//! whose kernel side is the left host's interface, and `wan` is `net_af_xdp`. On other devices both ports are of the same kind, on virtual
//! cables.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use serde_json::Value;

use crate::machine::cores::two_cores;
use crate::machine::process::{require_root, run};
use crate::network::bed::{Device, turn};
use crate::network::namespace::Namespace;
use crate::product::build;
use crate::product::manifest::Manifest;
use crate::product::node::Node;
use crate::until::{SOON, until};

/// The MAC addresses of the node's two ports.
pub const LAN_MAC: &str = "02:70:69:6e:00:21";
/// See [`LAN_MAC`].
pub const WAN_MAC: &str = "02:70:69:6e:00:22";
/// The MAC address given to a TAP device: the address of the node's end differs in the last bit.
const TAP_MAC: &str = "02:70:69:6e:00:20";
/// The addresses of the node's ports, `lan` first.
const GATEWAYS: [[&str; 2]; 2] = [["10.78.200.1", "fd78::c8:1"], ["10.78.201.1", "fd78::c9:1"]];
/// The hosts' interface.
pub const INTERFACE: &str = "eth0";
/// The tenant whose chains the node runs.
pub const TENANT: &str = "demo";

/// The running node, and the hosts on both sides.
#[derive(Debug)]
pub struct Inline {
    /// The node.
    pub node: Node,
    /// The host behind port `lan`.
    pub left: Host,
    /// The host behind port `wan`.
    pub right: Host,
    between: Namespace,
    _turn: MutexGuard<'static, ()>,
}

/// A host on one side.
#[derive(Debug)]
pub struct Host {
    /// Its network namespace.
    pub namespace: Namespace,
    /// Its address.
    pub address: String,
    /// The same for IPv6.
    pub address_v6: String,
}

impl Inline {
    /// Makes a node whose ports are such devices, with gateway and MMA on one core and the worker on another, and hosts that know each
    /// other's address. No packet passes yet.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new(device: Device) -> Self {
        require_root();
        let turn = turn();
        let (left, right) = (host("left", 1), host("right", 2));
        let between = Namespace::new("between");
        let lan = match device {
            Device::Tap => port("lan", &format!("net_tap0,iface={INTERFACE},mac={TAP_MAC}"), &left.namespace),
            cable => port("lan", &on_cable(cable, "lan0", LAN_MAC, &between, &left), &between),
        };
        let wan = match device {
            Device::Tap => on_cable(Device::AfXdp, "wan0", WAN_MAC, &between, &right),
            cable => on_cable(cable, "wan0", WAN_MAC, &between, &right),
        };
        let (first, second) = two_cores();
        let cores = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n");
        let tenant = format!("[[tenant]]\nname = {TENANT:?}\ntransparent_forwarding = true\n");
        let node = Node::started(&format!("{cores}{tenant}{lan}{}", port("wan", &wan, &between)));
        left.settle(WAN_MAC, GATEWAYS[0]);
        right.settle(LAN_MAC, GATEWAYS[1]);
        Self { node, left, right, between, _turn: turn }
    }

    /// Applies chains in which every frame passes so many swaps of its MAC addresses, then leaves by the other port.
    ///
    /// # Panics
    /// If the node does not accept them.
    #[track_caller]
    pub fn pass_through_swaps(&self, stages: usize) {
        assert!(stages.is_multiple_of(2), "an odd number of swaps changes frames");
        let stage = vec!["{ module = \"macswap\" }"; stages].join(", ");
        let mut manifest = Manifest::of(TENANT).module("macswap", &build::sample("macswap"));
        for (from, to) in [("lan", "wan"), ("wan", "lan")] {
            manifest = manifest.with(format_args!(
                "[[chain]]\nname = \"to-{to}\"\nstage = [{stage}]\negress = \"{to}\"\n\
                 [[rule]]\nname = \"from-{from}\"\npolicy = \"shared\"\nchain = \"to-{to}\"\n\
                 match = {{ port = \"{from}\" }}\n"
            ));
        }
        self.node.apply(manifest.text());
        ["to-wan", "to-lan"].into_iter().for_each(|chain| self.node.await_instance(TENANT, chain));
    }

    /// Applies a chain of one stage of this sample, whose outputs are the ports `wan` and `lan`. All frames of both ports pass one
    /// instance.
    ///
    /// # Panics
    /// If the node does not accept it.
    #[track_caller]
    pub fn pass_through(&self, sample: &str, config: &str) {
        let stage = format!("{{ module = {sample:?}, config = {config:?}, outputs = [\"port:wan\", \"port:lan\"] }}");
        let mut manifest = Manifest::of(TENANT)
            .module(sample, &build::sample(sample))
            .with(format_args!("[[chain]]\nname = \"between\"\nstage = [{stage}]\n"));
        for port in ["lan", "wan"] {
            manifest = manifest.with(format_args!(
                "[[rule]]\nname = \"from-{port}\"\npolicy = \"shared\"\nchain = \"between\"\nmatch = {{ port = \"{port}\" }}\n"
            ));
        }
        self.node.apply(manifest.text());
        self.node.await_instance(TENANT, "between");
    }

    /// Returns the frames that the node has dropped and counted, by place and reason.
    ///
    /// # Panics
    /// If the status cannot be read.
    #[track_caller]
    #[must_use]
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let cli = self.node.cli();
        let mut drops = BTreeMap::<String, u64>::new();
        let mut add = |place: String, count: &Value| match count.as_u64() {
            Some(0) | None => {}
            Some(count) => *drops.entry(place).or_default() += count,
        };
        for port in cli.status()["ports"].as_array().into_iter().flatten() {
            for drop in port["drops"].as_array().into_iter().flatten() {
                add(format!("port {}: {}", port["name"], drop["reason"]), &drop["count"]);
            }
        }
        for fwp in cli.get("fwps") {
            for (name, count) in fwp["counters"].as_object().into_iter().flatten() {
                if name.starts_with("dropped") {
                    add(format!("chain {}: {name}", fwp["chain"]), count);
                }
            }
        }
        drops
    }

    /// Returns how many these are, without frames of the hosts to multicast or unknown addresses.
    ///
    /// # Panics
    /// If the status cannot be read.
    #[track_caller]
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops().iter().filter(|(place, _)| !place.contains("not-for-us")).map(|(_, count)| count).sum()
    }

    /// Returns how many frames kernels have dropped beside the node: behind it, datagrams whose receiver had no time to read, and on each
    /// side frames for which no core had time.
    ///
    /// # Panics
    /// If one of the counts cannot be read.
    #[track_caller]
    #[must_use]
    pub fn dropped_by_kernels(&self) -> u64 {
        let hosts = [&self.left.namespace, &self.right.namespace];
        let unread: u64 = hosts.iter().map(|host| host.datagrams_unread()).sum();
        let namespaces = hosts.into_iter().chain([&self.between]);
        unread + namespaces.map(Namespace::frames_dropped_on_arrival).sum::<u64>()
    }

    /// Prints the kernel's counts of both hosts and between them.
    ///
    /// # Panics
    /// If they cannot be read.
    #[track_caller]
    pub fn print_kernels_counters(&self) {
        for namespace in [&self.left.namespace, &self.between, &self.right.namespace] {
            let counts = run(namespace.command("cat").args(["/proc/net/snmp", "/proc/net/snmp6", "/proc/net/dev"]));
            println!("{}:\n{counts}", namespace.name());
        }
    }

    /// Waits until every frame that the node has received was sent or counted as dropped. It also answers each request for one of its
    /// addresses by one frame.
    ///
    /// # Panics
    /// If one is missing for long, or the status cannot be read.
    #[track_caller]
    pub fn assert_nothing_is_missing(&self) {
        let sum = |ports: &Value, name: &str| -> u64 {
            ports.as_array().into_iter().flatten().filter_map(|port| port[name].as_u64()).sum()
        };
        until("account of all frames received", SOON, || {
            let status = self.node.cli().status();
            let ports = &status["ports"];
            let [received, made, sent] = ["received", "made_by_node", "sent"].map(|name| sum(ports, name));
            let drops = self.drops();
            // Frames that the device has missed are not in its count of received ones.
            let dropped: u64 =
                drops.iter().filter(|(place, _)| !place.contains("missed")).map(|(_, count)| count).sum();
            println!("the node has received {received}, made {made}, sent {sent}, dropped {dropped}: {drops:?}");
            (received + made == sent + dropped).then_some(())
        });
    }
}

impl Host {
    /// Gives the interface this MAC address and the host's addresses, and lets it send by these gateways.
    #[track_caller]
    fn settle(&self, mac: &str, gateways: [&str; 2]) {
        let namespace = &self.namespace;
        namespace.ip(&format!("link set {INTERFACE} address {mac}"));
        namespace.ip(&format!("link set {INTERFACE} up"));
        namespace.finish_frames(INTERFACE);
        namespace.ip(&format!("address add {}/32 dev {INTERFACE}", self.address));
        namespace.ip(&format!("address add {}/128 dev {INTERFACE} nodad", self.address_v6));
        for gateway in gateways {
            namespace.ip(&format!("route add {gateway} dev {INTERFACE}"));
            namespace.ip(&format!("route add default via {gateway} dev {INTERFACE}"));
        }
    }
}

#[track_caller]
fn host(role: &str, number: u32) -> Host {
    Host {
        namespace: Namespace::new(role),
        address: format!("10.78.0.{number}"),
        address_v6: format!("fd78::{number}"),
    }
}

/// Connects a host by a virtual cable to an interface of this name and MAC address; returns the device that uses that interface.
#[track_caller]
fn on_cable(device: Device, interface: &str, mac: &str, between: &Namespace, host: &Host) -> String {
    between.connect(interface, &host.namespace, INTERFACE);
    between.ip(&format!("link set {interface} address {mac}"));
    let driver = if device == Device::AfXdp { "net_af_xdp" } else { "net_af_packet" };
    format!("{driver}_{interface},iface={interface}")
}

fn port(name: &str, device: &str, namespace: &Namespace) -> String {
    let [v4, v6] = GATEWAYS[usize::from(name == "wan")];
    format!(
        "[[port]]\nname = {name:?}\ndevice = {device:?}\nnamespace = {:?}\naddresses = [\"{v4}/16\", \"{v6}/64\"]\n",
        namespace.name()
    )
}
