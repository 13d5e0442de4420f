//! What lies between the generator's two ports: a cable, a node, or the kernel.
//!
//! ```text
//!   cable    generator == net_memif =========================================== generator
//!   node     generator == net_memif == piniond: lan -> packet-filter -> wan == net_memif == generator
//!   patch    generator == net_af_packet == veth ============================== net_af_packet == generator
//!   kernel   generator == net_af_packet == veth == bridge, nftables == veth == net_af_packet == generator
//! ```
//!
//! A path is made for one measurement and gone when dropped, with its namespaces, processes and sockets.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use pinion_gateway::port::dpdk::{DpdkPool, DpdkPort, PortConfig};
use pinion_tests::build::sample;
use pinion_tests::manifest::Manifest;
use pinion_tests::namespace::Namespace;
use pinion_tests::node::Node;
use pinion_tests::process::run;
use pinion_tests::until::until;
use tempfile::TempDir;

use super::frames::{Link, SERVER_PORT, address};
use crate::figure::Cores;

/// The generator's and the middlebox's hardware addresses.
pub(crate) const LINK: Link = Link { source: [2, 0x70, 0x69, 0x6e, 2, 1], destination: [2, 0x70, 0x69, 0x6e, 2, 2] };
const MIDDLEBOX_MAC: &str = "02:70:69:6e:02:02";

/// Rings of 4,096 frames, so that all clients' may be under way at once.
const MEMIF: &str = "socket-abstract=no,rsize=12";
const AF_PACKET: &str = "framesz=2048,framecnt=4096,qdisc_bypass=1";

/// Includes that the other side is started.
const LINK_MAX: Duration = Duration::from_secs(30);

/// Instances that are ready for the next clients.
const CACHE: usize = 256;
const TENANT: &str = "clients";

/// What every client's firewall does, in the words of the sample: the last line but one lets the clients' frames pass.
fn policy() -> String {
    format!(
        "deny from 10.66.0.0/16\nallow icmp\nallow tcp 80,443\nallow udp 53\nallow udp {SERVER_PORT} to 10.200.0.0/16\ndefault deny"
    )
}

/// The generator's two ends of a path, and all that keeps it.
pub(crate) struct Way {
    pub(crate) out: DpdkPort,
    pub(crate) back: DpdkPort,
    /// Goes after the ports.
    pub(crate) keeps: Keeps,
}

/// What a way is made of, beside the generator's ports.
#[derive(Default)]
pub(crate) struct Keeps {
    node: Option<Node>,
    _folder: Option<TempDir>,
    _namespaces: Vec<Namespace>,
}

impl Keeps {
    /// Until nobody prepares anything any more: a node has as many instances ready as it is to have.
    pub(crate) fn await_rest(&self) -> anyhow::Result<()> {
        self.node.as_ref().map_or(Ok(()), await_instances)
    }
}

fn folder() -> anyhow::Result<TempDir> {
    tempfile::Builder::new().prefix("pinion-bench-").tempdir().context("a folder for sockets")
}

/// Opens a port; a thread that does so takes a handle of the pool with it.
fn open(pool: &DpdkPool, name: &str, device: &str, namespace: Option<PathBuf>) -> anyhow::Result<DpdkPort> {
    let config = PortConfig { link_timeout: LINK_MAX, network_namespace: namespace, ..PortConfig::new(name, device) };
    DpdkPort::open(&config, pool).with_context(|| format!("the generator's port {name}"))
}

fn memif_server(number: usize, socket: &Path) -> String {
    format!("net_memif{number},role=server,socket={},{MEMIF}", socket.display())
}

/// The generator's port talks to itself.
pub(crate) fn cable(pool: &DpdkPool) -> anyhow::Result<Way> {
    let folder = folder()?;
    let socket = folder.path().join("cable");
    // Another name for the same socket: one process can't have both ends of one by the same name.
    let other_name = folder.path().join(".").join("cable");
    let server = memif_server(0, &socket);
    let client = format!("net_memif1,role=client,socket={},{MEMIF}", other_name.display());
    thread::scope(|scope| {
        let handle = pool.clone();
        let back = scope.spawn(move || open(&handle, "back", &server, None));
        until("socket of the cable", LINK_MAX, || socket.exists().then_some(()));
        let out = open(pool, "out", &client, None);
        let back = back.join().expect("opening a port does not panic");
        Ok(Way { out: out?, back: back?, keeps: Keeps { _folder: Some(folder), ..Keeps::default() } })
    })
}

/// A node whose `lan` leads through a firewall for each client to its `wan`.
pub(crate) fn node(pool: &DpdkPool, cores: Cores) -> anyhow::Result<Way> {
    let folder = folder()?;
    let [lan, wan] = ["lan", "wan"].map(|name| folder.path().join(name));
    let (out_device, back_device) = (memif_server(0, &lan), memif_server(1, &wan));
    let port = |number: usize, name: &str, socket: &Path| {
        let device = format!("net_memif{number},role=client,socket={},{MEMIF},mac={MIDDLEBOX_MAC}", socket.display());
        format!("[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\n")
    };
    let limits = "[limits]\nfwps_max = 4096\nbuffers = 16384\n";
    let config =
        format!("idle = \"busy\"\n{}{limits}{}{}", cores.node_config(), port(0, "lan", &lan), port(1, "wan", &wan));
    thread::scope(|scope| {
        let handle = pool.clone();
        let out = scope.spawn(move || open(&handle, "out", &out_device, None));
        let handle = pool.clone();
        let back = scope.spawn(move || open(&handle, "back", &back_device, None));
        until("sockets for the node", LINK_MAX, || (lan.exists() && wan.exists()).then_some(()));
        let node = Node::started(&config);
        let [out, back] = [out, back].map(|port| port.join().expect("opening a port does not panic"));
        let (out, back) = (out?, back?);
        node.apply(manifest().text());
        await_instances(&node)?;
        Ok(Way { out, back, keeps: Keeps { node: Some(node), _folder: Some(folder), ..Keeps::default() } })
    })
}

fn manifest() -> Manifest {
    let stage = format!("{{ module = \"packet-filter\", config = {:?} }}", policy());
    Manifest::of(TENANT).module("packet-filter", &sample("packet-filter")).with(format_args!(
        "[[chain]]\nname = \"firewall\"\nstage = [{stage}]\negress = \"wan\"\ncache_min = {CACHE}\nidle_timeout_ms = 3600000\n\
         [[rule]]\nname = \"clients\"\npolicy = \"per-client\"\nchain = \"firewall\"\nmatch = {{ port = \"lan\" }}\n"
    ))
}

fn await_instances(node: &Node) -> anyhow::Result<()> {
    let ready = || {
        let status = node.cli().chain_status(TENANT, "firewall");
        (status["ready"].as_u64() >= Some(CACHE as u64)).then_some(())
    };
    until("full cache of firewalls", LINK_MAX, ready);
    Ok(())
}

/// One veth pair, and nothing between its ends.
pub(crate) fn patch(pool: &DpdkPool) -> anyhow::Result<Way> {
    let namespace = quiet_namespace("generator");
    namespace.connect("out", &namespace, "back");
    let (out, back) = af_packet_ports(pool, &namespace)?;
    Ok(Way { out, back, keeps: Keeps { _namespaces: vec![namespace], ..Keeps::default() } })
}

/// The kernel's bridge, with a chain of firewall rules for each client, on the second core.
pub(crate) fn kernel(pool: &DpdkPool, cores: Cores, clients: usize) -> anyhow::Result<Way> {
    let (generator, middlebox) = (quiet_namespace("generator"), quiet_namespace("middlebox"));
    generator.connect("out", &middlebox, "lan");
    generator.connect("back", &middlebox, "wan");
    middlebox.ip("link add bridge0 type bridge forward_delay 0 mcast_snooping 0 stp_state 0");
    for interface in ["lan", "wan"] {
        middlebox.ip(&format!("link set {interface} master bridge0"));
    }
    middlebox.ip("link set bridge0 up");
    run(middlebox.command("bridge").args(["fdb", "add", MIDDLEBOX_MAC, "dev", "wan", "master", "static"]));
    // What comes in by these is handled on the second core, as the node's work is.
    receive_on(&middlebox, "lan", cores.second);
    receive_on(&generator, "back", cores.second);
    load_rules(&middlebox, clients)?;
    let (out, back) = af_packet_ports(pool, &generator)?;
    Ok(Way { out, back, keeps: Keeps { _namespaces: vec![generator, middlebox], ..Keeps::default() } })
}

fn quiet_namespace(role: &str) -> Namespace {
    let namespace = Namespace::new(role);
    let setting = ["-q", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
    run(namespace.command("sysctl").args(setting));
    namespace
}

fn receive_on(namespace: &Namespace, interface: &str, core: usize) {
    // In words of 32 bits, the highest first.
    let words = (0..=core / 32).rev().map(|word| if word == core / 32 { 1_u32 << (core % 32) } else { 0 });
    let mask = words.map(|word| format!("{word:x}")).collect::<Vec<_>>().join(",");
    let order = format!("echo {mask} > /sys/class/net/{interface}/queues/rx-0/rps_cpus");
    run(namespace.command("sh").args(["-c", &order]));
}

fn af_packet_ports(pool: &DpdkPool, namespace: &Namespace) -> anyhow::Result<(DpdkPort, DpdkPort)> {
    let device = |number: usize, interface: &str| format!("net_af_packet{number},iface={interface},{AF_PACKET}");
    let out = open(pool, "out", &device(0, "out"), Some(namespace.path()))?;
    let back = open(pool, "back", &device(1, "back"), Some(namespace.path()))?;
    Ok((out, back))
}

/// The policy of the sample, as a chain for each client, found by one look at a map.
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
    let output = pinion_tests::process::output(middlebox.command("nft").args(["-f", path]));
    if !output.status.success() {
        bail!("nft takes no rules for {clients} clients: {}", pinion_tests::process::errors(&output));
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
