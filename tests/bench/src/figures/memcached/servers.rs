//! The servers, each on the second core behind the same kind of interface, a veth pair: a node with an instance of the function for each
//! client, Debian's memcached with a process for each, or a reflector, which shows what generator and interface can do at most.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use pinion_gateway::port::Port;
use pinion_gateway::port::dpdk::DpdkPool;
use pinion_tests::machine::process::run;
use pinion_tests::network::bed::NODE;
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;

use crate::clients::port;
use crate::figures::memcached::datagrams::{CLIENTS, Link, Replies};
use crate::measurement::run::Cores;
use crate::systems::lab::{CLIENT, CLIENT_PORT, Lab, PORT};
use crate::systems::processes::Children;
use crate::systems::testpmd::Testpmd;

/// memcached's port; with several processes, the first one's.
pub(crate) const SERVICE_PORT: u16 = 11_211;
/// The generator's address on the link, which is not that of its interface, so that its kernel ignores what comes for it.
const GENERATOR_MAC: [u8; 6] = [2, 0x70, 0x69, 0x6e, 3, 1];
const GENERATOR: &str = "02:70:69:6e:03:01";
const AF_PACKET: &str = "framesz=2048,framecnt=4096,qdisc_bypass=1";
const TENANT: &str = "cache";
const CHAIN: &str = "memcached";

/// A transport of memcached's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Udp,
    Tcp,
}

/// A server in a lab of its own. When dropped, both end.
pub(crate) struct Server {
    running: Running,
    pub(crate) lab: Lab,
    instances: usize,
    replies: Replies,
    /// Whether every client has a port of its own.
    has_ports: bool,
}

enum Running {
    Node { _node: Node },
    Processes { children: Children },
    Reflector { testpmd: Testpmd },
}

impl Server {
    /// Starts a node whose clients get an instance each.
    pub(crate) fn node(cores: Cores, instances: usize, over: Over) -> Self {
        let lab = Lab::new();
        let node = lab.start_node(&format!(
            "idle = \"busy\"\n{}[limits]\nfwps_max = {}\n",
            cores.together().node_config(),
            instances + 64
        ));
        node.apply(manifest(over).text());
        node.await_instance(TENANT, CHAIN);
        Self { running: Running::Node { _node: node }, lab, instances, replies: Replies::Memcached, has_ports: false }
    }

    /// Starts so many processes of Debian's memcached, with a thread each that serves.
    pub(crate) fn debian(cores: Cores, instances: usize, over: Over) -> anyhow::Result<Self> {
        let lab = Lab::new();
        lab.answer_by_kernel();
        lab.server.ip(&format!("route add {CLIENTS} via {CLIENT}"));
        if over == Over::Udp {
            lab.server.ip(&format!("neigh replace {CLIENT} lladdr {GENERATOR} dev {PORT} nud permanent"));
        }
        let mut children = Children::default();
        for instance in 0..instances {
            let own_port = (SERVICE_PORT + instance as u16).to_string();
            let [tcp, udp] = match over {
                Over::Udp => ["0", &own_port],
                Over::Tcp => [&own_port, "0"],
            };
            let mut command = lab.server_command("taskset");
            command.args(["--cpu-list", &cores.second.to_string(), "memcached", "-u", "nobody", "-t", "1"]);
            command.args(["-l", NODE, "-p", tcp, "-U", udp]);
            children.0.push(quiet(command).spawn().context("memcached, of Debian's memcached package, cannot be run")?);
        }
        let running = Running::Processes { children };
        Ok(Self { running, lab, instances, replies: Replies::Memcached, has_ports: true })
    }

    /// Starts DPDK's forwarder, which sends each request back as it is.
    pub(crate) fn reflector(cores: Cores) -> anyhow::Result<Self> {
        let lab = Lab::new();
        let device = format!("net_af_xdp0,iface={PORT}");
        let testpmd = Testpmd::start(lab.server_command("dpdk-testpmd"), cores, &[device], "5tswap")?;
        let running = Running::Reflector { testpmd };
        Ok(Self { running, lab, instances: 1, replies: Replies::Reflected, has_ports: false })
    }

    /// Opens the generator's port to it.
    pub(crate) fn open(&self, pool: &DpdkPool) -> anyhow::Result<Box<dyn Port>> {
        let device = format!("net_af_packet0,iface={CLIENT_PORT},{AF_PACKET}");
        port::open(pool, "generator", &device, Some(self.lab.client.path()))
    }

    /// Returns the addresses of requests to it.
    pub(crate) fn link(&self) -> anyhow::Result<Link> {
        let server: Ipv4Addr = NODE.parse().context("the node's address")?;
        let destination = mac(&self.lab.server, PORT)?;
        let port_step = u16::from(self.has_ports);
        Ok(Link { source: GENERATOR_MAC, destination, server, port: SERVICE_PORT, port_step })
    }

    pub(crate) fn instances(&self) -> usize {
        self.instances
    }

    pub(crate) fn replies(&self) -> Replies {
        self.replies
    }

    /// Fails if it has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.running {
            Running::Reflector { testpmd } => testpmd.check(),
            Running::Processes { children } => {
                for child in &mut children.0 {
                    if let Some(status) = child.try_wait().context("memcached")? {
                        bail!("a memcached has ended by itself: {status}");
                    }
                }
                Ok(())
            }
            Running::Node { .. } => Ok(()),
        }
    }
}

fn quiet(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Requests that come at once wait, as in the buffer of the other server's socket.
const UDP_CHAIN: &str = "idle_timeout_ms = 3600000\nhold_frames = 1024\n";

/// A chain with memcached, and a rule that gives each client an instance of it, or all TCP connections one.
fn manifest(over: Over) -> Manifest {
    let (config, policy, protocol, more) = match over {
        Over::Udp => ("udp = true\\nconnections_max = 4", "per-client", "udp", UDP_CHAIN),
        Over::Tcp => ("connections_max = 128", "shared", "tcp", "memory_limit_kib = 32768\n"),
    };
    Manifest::of(TENANT).module(CHAIN, &sample(CHAIN)).with(format_args!(
        "[[chain]]\nname = {CHAIN:?}\nstage = [{{ module = {CHAIN:?}, config = \"{config}\" }}]\ncache_min = 1\n{more}\
         [[rule]]\nname = \"clients\"\npolicy = {policy:?}\nchain = {CHAIN:?}\n\
         match = {{ destination = \"{NODE}\", protocol = {protocol:?}, destination_ports = \"{SERVICE_PORT}\" }}\n"
    ))
}

/// Returns an interface's hardware address.
fn mac(namespace: &Namespace, interface: &str) -> anyhow::Result<[u8; 6]> {
    let text = run(namespace.command("cat").arg(format!("/sys/class/net/{interface}/address")));
    let bytes: Option<Vec<u8>> = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).with_context(|| format!("{interface} has the address {text:?}"))
}
