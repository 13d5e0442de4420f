//! A node as the border between two networks. Its hosts use it as their gateway and know nothing of each other.
//!
//! ```text
//!   namespace "inside"           namespace "between"              namespace "outside"
//!   +----------------+      +---------------------------+      +-----------------------+
//!   | eth0           |------| inside  --> chain -->      |------| eth0                  |
//!   | 10.79.0.2      |      |   <-- chain <--   outside |      | 203.0.113.2           |
//!   | fd79::2        |      |                           |      | fd80::2               |
//!   +----------------+      +---------------------------+      +-----------------------+
//!     gateways 10.79.0.1,     answers for those, 203.0.113.1, 203.0.113.99 and fd80::1
//!     fd79::1
//! ```

use std::sync::MutexGuard;

use crate::machine::cores::two_cores;
use crate::machine::process::require_root;
use crate::network::bed::turn;
use crate::network::namespace::Namespace;
use crate::network::tagged_cable::TaggedCable;
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
/// The hosts' addresses of IPv6.
pub const INSIDE_V6: &str = "fd79::2";
/// See [`INSIDE_V6`].
pub const OUTSIDE_V6: &str = "fd80::2";
/// The network inside, and the node's own address outside, of IPv6.
pub const INSIDE_NET_V6: &str = "fd79::/64";
/// See [`INSIDE_NET_V6`].
pub const ROUTER_V6: &str = "fd80::1";
/// The node's own address outside.
pub const ROUTER: &str = "203.0.113.1";
/// The address to which those of hosts inside are translated.
pub const SHARED: &str = "203.0.113.99";
const GATEWAY: &str = "10.79.0.1";
const GATEWAY_V6: &str = "fd79::1";
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
    /// The VLAN in which both networks are, if it is one.
    vlan: Option<u16>,
    /// The cables, if they carry a VLAN.
    pub tagged: Vec<TaggedCable>,
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
        Self::made(None)
    }

    /// Makes one between two networks that are in a VLAN each.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn in_vlan(id: u16) -> Self {
        Self::made(Some(id))
    }

    #[track_caller]
    fn made(vlan: Option<u16>) -> Self {
        require_root();
        let turn = turn();
        let (inside, outside, between) =
            (Namespace::new("inside"), Namespace::new("outside"), Namespace::new("between"));
        let (first, second) = two_cores();
        let mut config = format!(
            "[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n\
             [[tenant]]\nname = {TENANT:?}\naddresses = [\"{INSIDE_NET}\", \"{ROUTER}/32\", \"{SHARED}/32\", \"{INSIDE_NET_V6}\", \"{ROUTER_V6}/128\"]\n"
        );
        let hosts = [(&inside, [INSIDE, INSIDE_V6]), (&outside, [OUTSIDE, OUTSIDE_V6])];
        let mut tagged = Vec::new();
        for (side, (host, [v4, v6])) in hosts.into_iter().enumerate() {
            let port = ["inside", "outside"][side];
            match vlan {
                Some(id) => tagged.push(TaggedCable::new(id, (&between, port), (host, INTERFACE))),
                None => {
                    between.connect(port, host, INTERFACE);
                    host.finish_frames(INTERFACE);
                }
            }
            host.ip(&format!("address add {v4}/24 dev {INTERFACE}"));
            host.ip(&format!("address add {v6}/64 dev {INTERFACE} nodad"));
            let addresses = [
                format!("\"{GATEWAY}/24\", \"{GATEWAY_V6}/64\""),
                format!("\"{ROUTER}/24\", \"{SHARED}/24\", \"{ROUTER_V6}/64\""),
            ];
            let table = vlan.map_or(String::new(), |id| format!("[[port.vlan]]\nid = {id}\n"));
            config += &format!(
                "[[port]]\nname = {port:?}\ndevice = \"net_af_packet_{port},iface={port}\"\nnamespace = {:?}\n{table}addresses = [{}]\n",
                between.name(),
                addresses[side]
            );
        }
        inside.ip(&format!("address add {INSIDE_TOO}/24 dev {INTERFACE}"));
        inside.ip(&format!("route add default via {GATEWAY}"));
        inside.ip(&format!("route add default via {GATEWAY_V6}"));
        outside.ip(&format!("route add {INSIDE_NET_V6} via {ROUTER_V6}"));
        // So that the answer to an untranslated packet from inside would come back.
        outside.ip(&format!("route add {INSIDE_NET} via {ROUTER}"));
        Self { node: Node::started(&config), inside, outside, vlan, tagged, _between: between, _turn: turn }
    }

    /// Applies a chain of these samples, each with its configuration. All frames from inside pass it forwards, all from outside backwards.
    ///
    /// # Panics
    /// If the node does not accept it.
    #[track_caller]
    pub fn pass_both_ways(&self, stages: &[(&str, &str)], policy: &str) {
        let manifest = chain_both_ways(stages, ["inside", "outside"], "routed = true\n");
        let rules = [
            ("from-inside", "inside", format!("source = \"{INSIDE_NET}\"")),
            ("to-inside", "outside", format!("destination = \"{INSIDE_NET}\"")),
            ("to-shared", "outside", format!("destination = \"{SHARED}\"")),
            ("from-inside-v6", "inside", format!("source = \"{INSIDE_NET_V6}\"")),
            ("to-inside-v6", "outside", format!("destination = \"{INSIDE_NET_V6}\"")),
        ];
        let vlan = self.vlan.map_or(String::new(), |id| format!(", vlan = {id}"));
        let rule = |(name, port, side): &(&str, &str, String)| {
            format!(
                "[[rule]]\nname = {name:?}\npolicy = {policy:?}\nchain = \"between\"\nmatch = {{ port = {port:?}, {side}{vlan} }}\n"
            )
        };
        self.node.apply(manifest.with(rules.iter().map(rule).collect::<String>()).text());
    }

    /// Returns a configuration of the sample `lpm-router` for this border.
    #[must_use]
    pub fn router() -> String {
        format!(
            "addresses = [\"{ROUTER}\", \"{ROUTER_V6}\"]\nroutes = \"\"\"\n{SHARED}/32 inside\n{INSIDE_NET} inside\n\
             0.0.0.0/0 outside\n{INSIDE_NET_V6} inside\n::/0 outside\n\"\"\"\n\
             [[next_hop]]\nname = \"inside\"\n[[next_hop]]\nname = \"outside\"\n"
        )
    }
}

impl Default for Border {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a manifest with a chain named `between` of these samples, each with its configuration, between two ports. Frames that come in by
/// the second port pass it backwards. `more` are further keys of the chain.
#[must_use]
pub fn chain_both_ways(stages: &[(&str, &str)], [inside, outside]: [&str; 2], more: &str) -> Manifest {
    let mut manifest = Manifest::of(TENANT);
    for (at, (sample, _)) in stages.iter().enumerate() {
        if !stages[..at].iter().any(|(other, _)| other == sample) {
            manifest = manifest.module(sample, &build::sample(sample));
        }
    }
    let stage = |(sample, config): &(&str, &str)| format!("{{ module = {sample:?}, config = {config:?} }}");
    let stage = stages.iter().map(stage).collect::<Vec<_>>().join(", ");
    manifest.with(format_args!(
        "[[chain]]\nname = \"between\"\nstage = [{stage}]\negress = {outside:?}\n\
         reverse = {{ from = [{outside:?}], egress = {inside:?} }}\n{more}"
    ))
}
