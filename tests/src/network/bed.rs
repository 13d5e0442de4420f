//! A complete test bed: a node, a switch and clients. See the picture in the crate's documentation.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::machine::cores::two_cores;
use crate::machine::process::require_root;
use crate::network::namespace::Namespace;
use crate::product::build;
use crate::product::manifest::Manifest;
use crate::product::node::Node;
use crate::traffic::ping::flood;

/// The node's own addresses.
pub const NODE: &str = "10.77.0.2";
/// The same for IPv6.
pub const NODE_V6: &str = "fd77::2";
/// The tenant whose chain answers pings to these.
pub const TENANT: &str = "demo";
/// The kernel's side of a TAP device.
const TAP: &str = "pinion0";
/// Clients cache the port's address, so it must be the same after a restart.
const TAP_MAC: &str = "02:70:69:6e:00:10";
/// The interface that the node's device uses on a virtual cable; the far end is the constant below.
const PORT: &str = "port0";
const PORT_FAR_END: &str = "port0-far";
const BRIDGE: &str = "bridge0";

/// Only one bed exists at a time, as beds compete for cores.
static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test of this process has a turn. The turn ends when the value is dropped.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind of the node's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `net_tap`.
    Tap,
    /// `net_af_packet` on a virtual cable.
    AfPacket,
    /// `net_af_xdp` on a virtual cable.
    AfXdp,
}

impl Device {
    fn text(self) -> String {
        match self {
            Self::Tap => format!("net_tap0,iface={TAP},mac={TAP_MAC}"),
            Self::AfPacket => format!("net_af_packet0,iface={PORT}"),
            Self::AfXdp => format!("net_af_xdp0,iface={PORT}"),
        }
    }
}

/// A running node, and three clients that reach it.
#[derive(Debug)]
pub struct Bed {
    /// The node.
    pub node: Node,
    /// The clients.
    pub clients: Vec<Client>,
    switch: Namespace,
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

/// A client machine without any part of Pinion.
#[derive(Debug)]
pub struct Client {
    /// Its network namespace, with the interface `eth0`.
    pub namespace: Namespace,
    /// Its address.
    pub address: String,
    /// The same for IPv6.
    pub address_v6: String,
}

impl Bed {
    /// Makes a bed whose node answers ARP for [`NODE`] and [`NODE_V6`] only.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self::with_addresses(device, &[])
    }

    /// Makes a bed whose node has further addresses.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn with_addresses(device: Device, more: &[&str]) -> Self {
        Self::with_settings(device, more, &one_worker())
    }

    /// Makes a bed whose node has these roles on these cores. `settings` are the lines of the configuration's `[cores]`, and any settings
    /// that go before it.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    #[must_use]
    pub fn with_settings(device: Device, more: &[&str], settings: &str) -> Self {
        require_root();
        let turn = turn();
        let switch = Namespace::new("switch");
        switch.ip(&format!("link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0"));
        switch.ip(&format!("link set {BRIDGE} up"));
        let clients = (1..=3).map(|number| client(number, &switch)).collect();
        if device != Device::Tap {
            switch.connect(PORT, &switch, PORT_FAR_END);
            switch.ip(&format!("link set {PORT_FAR_END} master {BRIDGE}"));
        }
        let node = Node::new(&config(device, &switch, more, settings));
        let mut bed = Self { node, clients, switch, device, _turn: turn };
        bed.start_node();
        bed
    }

    /// Starts the node after it was stopped or killed.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    pub fn start_node(&mut self) {
        self.node.start();
        if self.device == Device::Tap {
            self.connect_tap();
        }
    }

    /// Connects the node's tap to the switch, as after each start of the node.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn connect_tap(&self) {
        self.switch.ip(&format!("link set {TAP} master {BRIDGE} up"));
    }

    /// Returns the namespace that the node's device is in.
    #[must_use]
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// Connects an interface in [`Self::switch`] to the node and its clients.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn plug(&self, port: &str) {
        self.switch.ip(&format!("link set {port} master {BRIDGE}"));
    }

    /// Returns the interface in [`Self::switch`] that leads only to the node's port.
    #[must_use]
    pub fn wire(&self) -> &'static str {
        if self.device == Device::Tap { TAP } else { PORT_FAR_END }
    }

    /// Floods the node with so many pings from each client, all clients at once, when the tenant's chains have instances for them. Returns how
    /// many requests they sent together: some more if an answer was late.
    ///
    /// # Panics
    /// If a ping is lost.
    #[track_caller]
    pub fn assert_floods_are_answered(&self, pings: u64) -> u64 {
        self.node.await_instances(TENANT, self.clients.len() as u64);
        thread::scope(|scope| {
            let start = |client: &'_ Client| (client.address.clone(), flood(&client.namespace, NODE, pings));
            let floods: Vec<_> = self.clients.iter().map(|client| scope.spawn(move || start(client))).collect();
            let mut sent = 0;
            for flood in floods {
                let (client, summary) = flood.join().expect("ping runs to its end");
                println!("{:?}, client {client}: {summary:?}", self.device);
                summary.assert_all(pings);
                sent += summary.sent;
            }
            sent
        })
    }

    /// Applies a chain in which `icmp-echo` answers pings to the node's addresses.
    ///
    /// # Panics
    /// If the node does not accept it.
    #[track_caller]
    pub fn apply_echo(&self, policy: &str) {
        self.node.apply(echo(policy).text());
    }
}

/// Returns a manifest of [`TENANT`] with `icmp-echo` for pings to the node's addresses.
///
/// # Panics
/// If the sample has not been built.
#[track_caller]
#[must_use]
pub fn echo(policy: &str) -> Manifest {
    Manifest::of(TENANT)
        .module("icmp-echo", &build::sample("icmp-echo"))
        .chain("echo", "icmp-echo", "")
        .ping_rule("ping", "echo", policy, NODE)
        .ping_rule("ping-v6", "echo", policy, NODE_V6)
}

#[track_caller]
fn client(number: u32, switch: &Namespace) -> Client {
    let client = Client {
        namespace: Namespace::new(&format!("client{number}")),
        address: format!("10.77.0.{}", 10 + number),
        address_v6: format!("fd77::{}", 10 + number),
    };
    let port = format!("client{number}");
    client.namespace.connect("eth0", switch, &port);
    switch.ip(&format!("link set {port} master {BRIDGE}"));
    client.namespace.ip(&format!("address add {}/24 dev eth0", client.address));
    client.namespace.ip(&format!("address add {}/64 dev eth0 nodad", client.address_v6));
    client
}

fn config(device: Device, switch: &Namespace, more: &[&str], settings: &str) -> String {
    let mut addresses = vec![format!("{NODE}/24"), format!("{NODE_V6}/64")];
    addresses.extend(more.iter().map(|address| format!("{address}/24")));
    let (device, namespace) = (device.text(), switch.name());
    format!(
        "{settings}\n[[port]]\nname = \"lan\"\ndevice = {device:?}\nnamespace = {namespace:?}\naddresses = {addresses:?}\n"
    )
}

/// Returns a plan with one worker on every machine, so that all FWPs share one core everywhere.
fn one_worker() -> String {
    let (first, second) = two_cores();
    format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n")
}
