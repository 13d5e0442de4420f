//! The paths between the generator's two ports: a node, the kernel, or, for comparison, either of these without a firewall.
//!
//! ```text
//!   forwarder   generator == net_memif == dpdk-testpmd, io                 == net_memif == generator
//!   node        generator == net_memif == piniond: lan, functions, wan     == net_memif == generator
//!   bridge      generator == net_af_packet, veth == bridge                 == veth, net_af_packet == generator
//!   kernel      generator == net_af_packet, veth == bridge, nftables       == veth, net_af_packet == generator
//! ```
//!
//! A path is made for one measurement. When dropped, its namespaces, processes and sockets are removed.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use pinion_gateway::port::Port;
use pinion_gateway::port::dpdk::DpdkPool;
use pinion_tests::machine::process::run;
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::until;
use tempfile::TempDir;

use super::frames::{Link, SERVER_PORT, address};
use crate::clients::port;
use crate::measurement::run::Cores;
use crate::systems::lab::silence;
use crate::systems::testpmd::Testpmd;

/// The MAC addresses of the generator and of the middlebox.
pub(crate) const LINK: Link = Link { source: [2, 0x70, 0x69, 0x6e, 2, 1], destination: [2, 0x70, 0x69, 0x6e, 2, 2] };
/// The names of the middlebox's ports.
const SIDES: [&str; 2] = ["lan", "wan"];
const MIDDLEBOX_MAC: &str = "02:70:69:6e:02:02";

/// Rings of 4,096 frames, so that frames of all clients can be in flight at once.
const MEMIF: &str = "socket-abstract=no,rsize=12";
const AF_PACKET: &str = "framesz=2048,framecnt=4096,qdisc_bypass=1";

/// The longest wait for ready instances.
const READY_MAX: Duration = Duration::from_secs(30);

/// Instances that are ready for the next clients.
const CACHE: usize = 256;
const TENANT: &str = "clients";
const CHAIN: &str = "middlebox";
/// The flow table's size in a function with state; each client has one flow.
const FLOWS: usize = 64;

/// The functions that each client's frames pass in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    /// One function without state.
    PacketFilter,
    /// Two functions, both of which remember each flow.
    FirewallAndMonitor,
}

impl Serving {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PacketFilter => "packet-filter",
            Self::FirewallAndMonitor => "firewall-monitor",
        }
    }

    /// Returns the functions in their order, with their configurations.
    fn stages(self) -> Vec<(&'static str, String)> {
        match self {
            Self::PacketFilter => vec![("packet-filter", policy())],
            Self::FirewallAndMonitor => vec![("firewall", rules_with_state()), ("monitor", format!("flows {FLOWS}"))],
        }
    }

    fn manifest(self) -> Manifest {
        let (mut manifest, mut stages) = (Manifest::of(TENANT), Vec::new());
        for (module, config) in self.stages() {
            manifest = manifest.module(module, &sample(module));
            stages.push(format!("{{ module = {module:?}, config = {config:?} }}"));
        }
        let stages = stages.join(", ");
        manifest.with(format_args!(
            "[[chain]]\nname = {CHAIN:?}\nstage = [{stages}]\negress = \"wan\"\ncache_min = {CACHE}\nidle_timeout_ms = 3600000\n\
             [[rule]]\nname = \"clients\"\npolicy = \"per-client\"\nchain = {CHAIN:?}\nmatch = {{ port = \"lan\" }}\n"
        ))
    }
}

/// The policy of every client's packet filter, in the sample's syntax. The last line but one lets the clients' frames pass.
fn policy() -> String {
    format!(
        "deny from 10.66.0.0/16\nallow icmp\nallow tcp 80,443\nallow udp 53\nallow udp {SERVER_PORT} to 10.200.0.0/16\ndefault deny"
    )
}

/// The same rules in the firewall's syntax; the firewall denies what no rule matches.
fn rules_with_state() -> String {
    format!(
        "inside = [\"10.100.0.0/16\"]\nconnections_max = {FLOWS}\nconnections_per_host_max = {FLOWS}\nopening_per_host_max = {FLOWS}\n\
         [[rule]]\naction = \"deny\"\nfrom = [\"10.66.0.0/16\"]\n\
         [[rule]]\naction = \"allow\"\nprotocol = \"icmp\"\n\
         [[rule]]\naction = \"allow\"\nprotocol = \"tcp\"\nports = [80, 443]\n\
         [[rule]]\naction = \"allow\"\nprotocol = \"udp\"\nports = [53]\n\
         [[rule]]\naction = \"allow\"\nprotocol = \"udp\"\nports = [{SERVER_PORT}]\nto = [\"10.200.0.0/16\"]\n"
    )
}

/// The generator's two ends of a path, and the resources of the path.
pub(crate) struct Way {
    pub(crate) out: Box<dyn Port>,
    pub(crate) back: Box<dyn Port>,
    /// Dropped after the ports.
    pub(crate) keeps: Keeps,
}

/// The resources of a path other than the generator's ports.
#[derive(Default)]
pub(crate) struct Keeps {
    node: Option<Node>,
    _testpmd: Option<Testpmd>,
    _sockets: Option<Sockets>,
    _namespaces: Vec<Namespace>,
}

impl Keeps {
    /// Waits until no instance is being prepared, and the node has its full number of ready instances.
    pub(crate) fn await_rest(&self) -> anyhow::Result<()> {
        self.node.as_ref().map_or(Ok(()), await_instances)
    }
}

/// The sockets of both directions, which the middlebox serves.
struct Sockets {
    folder: TempDir,
}

impl Sockets {
    fn new() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("pinion-bench-").tempdir().context("a folder for sockets")?;
        Ok(Self { folder })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(SIDES[number])
    }

    /// Returns the middlebox's device.
    fn served(&self, number: usize) -> String {
        let path = self.path(number);
        format!("net_memif{number},role=server,socket={},{MEMIF},mac={MIDDLEBOX_MAC}", path.display())
    }

    /// Opens the generator's ports, each as soon as it is served.
    fn open(&self, pool: &DpdkPool) -> anyhow::Result<(Box<dyn Port>, Box<dyn Port>)> {
        let port = |number: usize| {
            let device = format!("net_memif{number},role=client,socket={},{MEMIF}", self.path(number).display());
            port::open(pool, SIDES[number], &device, None)
        };
        Ok((port(0)?, port(1)?))
    }
}

/// DPDK's own forwarder, without any function.
pub(crate) fn forwarder(pool: &DpdkPool, cores: Cores) -> anyhow::Result<Way> {
    let sockets = Sockets::new()?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "dpdk-testpmd"]);
    let mut testpmd = Testpmd::start(command, cores, &[sockets.served(0), sockets.served(1)], "io")?;
    let opened = sockets.open(pool);
    testpmd.check()?;
    let (out, back) = opened?;
    Ok(Way { out, back, keeps: Keeps { _testpmd: Some(testpmd), _sockets: Some(sockets), ..Keeps::default() } })
}

/// A node that forwards from `lan` to `wan` through each client's own functions.
pub(crate) fn node(pool: &DpdkPool, cores: Cores, serving: Serving) -> anyhow::Result<Way> {
    let sockets = Sockets::new()?;
    let port = |number: usize| format!("[[port]]\nname = {:?}\ndevice = {:?}\n", SIDES[number], sockets.served(number));
    let limits = "[limits]\nfwps_max = 8192\nbuffers = 16384\n";
    let config = format!("idle = \"busy\"\n{}{limits}{}{}", cores.node_config(), port(0), port(1));
    // The node is not up before its ports have links, and it ends with the thread that starts it.
    let (node, opened) = thread::scope(|scope| {
        let (handle, sockets) = (pool.clone(), &sockets);
        let ports = scope.spawn(move || sockets.open(&handle));
        (Node::started(&config), ports.join().expect("opening ports does not panic"))
    });
    let (out, back) = opened?;
    node.apply(serving.manifest().text());
    await_instances(&node)?;
    Ok(Way { out, back, keeps: Keeps { node: Some(node), _sockets: Some(sockets), ..Keeps::default() } })
}

fn await_instances(node: &Node) -> anyhow::Result<()> {
    let ready = || {
        let status = node.cli().chain_status(TENANT, CHAIN);
        (status["ready"].as_u64() >= Some(CACHE as u64)).then_some(())
    };
    until("full cache of functions", READY_MAX, ready);
    Ok(())
}

/// The kernel's bridge on the second core, with a chain of firewall rules for each client, or without any rules.
pub(crate) fn kernel(pool: &DpdkPool, cores: Cores, clients: Option<usize>) -> anyhow::Result<Way> {
    let (generator, middlebox) = (quiet_namespace("generator"), quiet_namespace("middlebox"));
    generator.connect("out", &middlebox, "lan");
    generator.connect("back", &middlebox, "wan");
    middlebox.ip("link add bridge0 type bridge forward_delay 0 mcast_snooping 0 stp_state 0");
    for interface in ["lan", "wan"] {
        middlebox.ip(&format!("link set {interface} master bridge0"));
    }
    middlebox.ip("link set bridge0 up");
    run(middlebox.command("bridge").args(["fdb", "add", MIDDLEBOX_MAC, "dev", "wan", "master", "static"]));
    // Frames that come in by these are handled on the second core, as the node's work is.
    receive_on(&middlebox, "lan", cores.second);
    receive_on(&generator, "back", cores.second);
    if let Some(clients) = clients {
        load_rules(&middlebox, clients)?;
    }
    let (out, back) = af_packet_ports(pool, &generator)?;
    Ok(Way { out, back, keeps: Keeps { _namespaces: vec![generator, middlebox], ..Keeps::default() } })
}

fn quiet_namespace(role: &str) -> Namespace {
    let namespace = Namespace::new(role);
    silence(&namespace);
    namespace
}

fn receive_on(namespace: &Namespace, interface: &str, core: usize) {
    // In 32-bit words, the highest first.
    let words = (0..=core / 32).rev().map(|word| if word == core / 32 { 1_u32 << (core % 32) } else { 0 });
    let mask = words.map(|word| format!("{word:x}")).collect::<Vec<_>>().join(",");
    let order = format!("echo {mask} > /sys/class/net/{interface}/queues/rx-0/rps_cpus");
    run(namespace.command("sh").args(["-c", &order]));
}

fn af_packet_ports(pool: &DpdkPool, namespace: &Namespace) -> anyhow::Result<(Box<dyn Port>, Box<dyn Port>)> {
    let device = |number: usize, interface: &str| format!("net_af_packet{number},iface={interface},{AF_PACKET}");
    let out = port::open(pool, "out", &device(0, "out"), Some(namespace.path()))?;
    let back = port::open(pool, "back", &device(1, "back"), Some(namespace.path()))?;
    Ok((out, back))
}

/// Returns the sample's policy as a chain for each client, found by one lookup in a map.
fn rules(clients: usize) -> String {
    let mut text = String::from("table bridge firewall {\n");
    for client in 0..clients {
        text += &format!(
            "  chain c{client} {{\n    ip saddr 10.66.0.0/16 drop\n    ip protocol icmp accept\n    \
             tcp dport {{ 80, 443 }} accept\n    udp dport 53 accept\n    \
             ip daddr 10.200.0.0/16 udp dport {SERVER_PORT} accept\n    drop\n  }}\n"
        );
    }
    let jumps: Vec<_> = (0..clients).map(|client| format!("{} : jump c{client}", address(client))).collect();
    text += &format!(
        "  chain forward {{\n    type filter hook forward priority 0; policy drop;\n    ip saddr vmap {{ {} }}\n  }}\n}}\n",
        jumps.join(", ")
    );
    text
}

fn load_rules(middlebox: &Namespace, clients: usize) -> anyhow::Result<()> {
    let file = tempfile::NamedTempFile::new().context("a file for nftables")?;
    std::fs::write(file.path(), rules(clients)).context("a file for nftables")?;
    let path = file.path().to_str().context("a folder for temporary files whose name is text")?;
    let output = pinion_tests::machine::process::output(middlebox.command("nft").args(["-f", path]));
    if !output.status.success() {
        bail!("nft takes no rules for {clients} clients: {}", pinion_tests::machine::process::errors(&output));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_a_chain_and_a_jump_for_each_client() {
        let rules = rules(3);
        assert_eq!(rules.matches("chain c").count(), 3);
        assert!(rules.contains("10.100.0.1 : jump c0, 10.100.0.2 : jump c1, 10.100.0.3 : jump c2"), "{rules}");
    }
}
