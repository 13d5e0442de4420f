//! Two network namespaces with a cable between them: one for a client, one for the system under test.
//!
//! ```text
//!   "client": eth0 10.77.0.10/24 ----- veth ----- "server": port0, for the system under test
//! ```
//!
//! The kernels send no traffic of their own while something is measured: IPv6 is off, and whom they have once asked for its MAC address
//! they do not ask again for an hour. The first ping, which does not count, makes them ask.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::Context;
use pinion_tests::machine::process::run;
use pinion_tests::network::bed::{NODE, echo};
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::figures::ping::pin_here;
use crate::measurement::run::Cores;

/// The server's interface.
pub(crate) const PORT: &str = "port0";
/// The client's interface, and its address.
pub(crate) const CLIENT_PORT: &str = "eth0";
pub(crate) const CLIENT: &str = "10.77.0.10";

/// The namespaces; removed when dropped.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
}

impl Lab {
    /// Makes a lab without a system under test.
    pub(crate) fn new() -> Self {
        let lab = Self { client: Namespace::new("client"), server: Namespace::new("server") };
        for namespace in [&lab.client, &lab.server] {
            silence(namespace);
        }
        lab.client.connect(CLIENT_PORT, &lab.server, PORT);
        believe_answers(&lab.client, CLIENT_PORT);
        believe_answers(&lab.server, PORT);
        lab.client.ip(&format!("address add {CLIENT}/24 dev {CLIENT_PORT}"));
        lab
    }

    /// Gives the kernel the server's address: it answers pings itself, and its programs can serve.
    pub(crate) fn answer_by_kernel(&self) {
        self.server.ip(&format!("address add {NODE}/24 dev {PORT}"));
    }

    /// Starts a node on the server's interface, with these settings before its ports.
    pub(crate) fn start_node(&self, settings: &str) -> Node {
        let mut config = format!("{settings}\n[[port]]\nname = \"lan\"\n");
        let (server, addresses) = (self.server.name(), format!("[\"{NODE}/24\"]"));
        write!(config, "device = \"net_af_xdp0,iface={PORT}\"\nnamespace = \"{server}\"\naddresses = {addresses}\n")
            .expect("memory takes all");
        Node::started(&config)
    }

    /// Starts a node as [`Self::start_node`] does, with all its roles and its other threads on the second core: those that prepare instances,
    /// sign and infer have no more than a peer's processes.
    pub(crate) fn start_node_on_one_core(&self, cores: Cores, settings: &str) -> anyhow::Result<Node> {
        let own = sched_getaffinity(None).context("this thread's cores")?;
        pin_here(cores.second)?;
        // Its process inherits this thread's cores. It ends with the thread that starts it, which can't be one made for this.
        let node = self.start_node(&format!("{settings}\n{}", cores.together().node_config()));
        sched_setaffinity(None, &own).context("this thread's cores")?;
        Ok(node)
    }

    /// Starts a node as [`Self::start_node`] does, whose `icmp-echo` answers pings.
    pub(crate) fn answer_by_node(&self, settings: &str) -> Node {
        let node = self.start_node(settings);
        node.apply(echo("per-client").text());
        until("instance of the chain that answers pings", SOON, || {
            node.cli().get("instances").iter().any(|instance| instance["state"] == "cached").then_some(())
        });
        node
    }

    /// Returns a command for a program in the server's namespace, which ends when this process does.
    pub(crate) fn server_command(&self, program: &str) -> Command {
        let mut command = self.server.command("setpriv");
        command.args(["--pdeathsig", "TERM", program]);
        command
    }
}

/// Keeps the kernel from sending packets of its own on interfaces that are created in this namespace from now on, but for what it must ask
/// for before it can send what it is told to.
pub(crate) fn silence(namespace: &Namespace) {
    for whose in ["all", "default"] {
        set(namespace, &format!("ipv6/conf/{whose}/disable_ipv6"), "1");
    }
}

/// Makes a kernel rely for an hour on the neighbours that it knows behind an interface.
fn believe_answers(namespace: &Namespace, interface: &str) {
    set(namespace, &format!("ipv4/neigh/{interface}/base_reachable_time_ms"), "3600000");
}

fn set(namespace: &Namespace, key: &str, value: &str) {
    run(namespace.command("sh").args(["-c", &format!("echo {value} > /proc/sys/net/{key}")]));
}

/// Returns the address that the client pings.
pub(crate) fn node_address() -> anyhow::Result<Ipv4Addr> {
    NODE.parse().context("the node's address")
}
