//! A node as the border between two networks. Its hosts use it as their gateway and know nothing of each other.
//!
//! ```text
//!   namespace "inside"           namespace "between"              namespace "outside"
//!   +----------------+      +---------------------------+      +-----------------------+
//!   | eth0           |------| inside  --> chain -->      |------| eth0                  |
//!   | 10.79.0.2      |      |   <-- chain <--   outside |      | 203.0.113.2           |
//!   +----------------+      +---------------------------+      +-----------------------+
//!     gateway 10.79.0.1       answers for 10.79.0.1, 203.0.113.1 and 203.0.113.99
//! ```

use std::sync::MutexGuard;

use crate::machine::process::require_root;
use crate::network::bed::{turn, two_cores};
use crate::network::namespace::Namespace;
use crate::product::build;
use crate::product::manifest::Manifest;
use crate::product::node::Node;

/// The host inside.
pub const INSIDE: &str = "10.79.0.2";
/// Another address of the same host.
pub const INSIDE_TOO: &str = "10.79.0.3";
/// The network inside.
pub const INSIDE_NET: &str = "10.79.0.0/24";
/// The host outside.
pub const OUTSIDE: &str = "203.0.113.2";
/// The node's own address outside.
pub const ROUTER: &str = "203.0.113.1";
/// The address to which those of hosts inside are translated.
pub const SHARED: &str = "203.0.113.99";
/// The MAC addresses of the hosts and of the node, inside and outside.
const HOST_MACS: [&str; 2] = ["02:70:69:6e:00:31", "02:70:69:6e:00:32"];
const NODE_MACS: [&str; 2] = ["02:70:69:6e:00:33", "02:70:69:6e:00:34"];
const GATEWAY: &str = "10.79.0.1";
/// The hosts' interface.
pub const INTERFACE: &str = "eth0";
/// The tenant whose chains are between the networks.
pub const TENANT: &str = "demo";

/// The running node, and the hosts on both sides.
#[derive(Debug)]
pub struct Border {
    /// The node.
    pub node: Node,
    /// The host inside.
    pub inside: Namespace,
    /// The host outside.
    pub outside: Namespace,
    _between: Namespace,
    _turn: MutexGuard<'static, ()>,
}

impl Border {
    /// Makes a border that no packet passes yet.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new() -> Self {
        require_root();
        let turn = turn();
        let (inside, outside, between) =
            (Namespace::new("inside"), Namespace::new("outside"), Namespace::new("between"));
        let (first, second) = two_cores();
        let mut config = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n");
        let hosts = [(&inside, format!("{INSIDE}/24")), (&outside, format!("{OUTSIDE}/24"))];
        for (side, (host, address)) in hosts.into_iter().enumerate() {
            let (port, mac) = (["inside", "outside"][side], NODE_MACS[side]);
            between.connect(port, host, INTERFACE);
            between.ip(&format!("link set {port} address {mac}"));
            host.ip(&format!("link set {INTERFACE} address {}", HOST_MACS[side]));
            host.finish_frames(INTERFACE);
            host.ip(&format!("address add {address} dev {INTERFACE}"));
            let addresses = [format!("\"{GATEWAY}/24\""), format!("\"{ROUTER}/24\", \"{SHARED}/24\"")];
            config += &format!(
                "[[port]]\nname = {port:?}\ndevice = \"net_af_packet_{port},iface={port}\"\nnamespace = {:?}\naddresses = [{}]\n",
                between.name(),
                addresses[side]
            );
        }
        inside.ip(&format!("address add {INSIDE_TOO}/24 dev {INTERFACE}"));
        inside.ip(&format!("route add default via {GATEWAY}"));
        // So that the answer to an untranslated packet from inside would come back.
        outside.ip(&format!("route add {INSIDE_NET} via {ROUTER}"));
        Self { node: Node::started(&config), inside, outside, _between: between, _turn: turn }
    }

    /// Applies a chain of these samples, each with its configuration. All frames from inside pass it forwards, all from outside backwards.
    ///
    /// # Panics
    /// If the node does not accept it.
    #[track_caller]
    pub fn pass_both_ways(&self, stages: &[(&str, &str)], policy: &str) {
        self.node.apply(chain_both_ways(stages, policy, ["inside", "outside"]).text());
    }

    /// Returns a configuration of the sample `lpm-router` for this border.
    #[must_use]
    pub fn router() -> String {
        let hop = |name: &str, side: usize| {
            format!(
                "[[next_hop]]\nname = \"{name}\"\nmac = \"{}\"\nsource_mac = \"{}\"\n",
                HOST_MACS[side], NODE_MACS[side]
            )
        };
        format!(
            "mac = \"{}\"\naddresses = [\"{ROUTER}\"]\nroutes = \"\"\"\n{SHARED}/32 inside\n{INSIDE_NET} inside\n0.0.0.0/0 outside\n\
             \"\"\"\n{}{}",
            NODE_MACS[1],
            hop("inside", 0),
            hop("outside", 1)
        )
    }
}

impl Default for Border {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a manifest with a chain of these samples, each with its configuration, for IPv4 between two ports. Frames that come in by the
/// second port pass it backwards.
#[must_use]
pub fn chain_both_ways(stages: &[(&str, &str)], policy: &str, [inside, outside]: [&str; 2]) -> Manifest {
    let mut manifest = Manifest::of(TENANT);
    for (at, (sample, _)) in stages.iter().enumerate() {
        if !stages[..at].iter().any(|(other, _)| other == sample) {
            manifest = manifest.module(sample, &build::sample(sample));
        }
    }
    let stage = |(sample, config): &(&str, &str)| format!("{{ module = {sample:?}, config = {config:?} }}");
    let stage = stages.iter().map(stage).collect::<Vec<_>>().join(", ");
    manifest = manifest.with(format_args!(
        "[[chain]]\nname = \"between\"\nstage = [{stage}]\negress = {outside:?}\n\
         reverse = {{ from = [{outside:?}], egress = {inside:?} }}\n"
    ));
    for port in [inside, outside] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"from-{port}\"\npolicy = {policy:?}\nchain = \"between\"\nmatch = {{ port = {port:?}, source = \"0.0.0.0/0\" }}\n"
        ));
    }
    manifest
}
