//! `pinion dev --tap`: the addresses of the device, on both sides.
//!
//! The node's side has the destination addresses of the manifest's rules, so that a client can send to them directly.
//! The kernel's side has an address beside them, or the one that the user gives.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use ipnet::IpNet;
use pinion_control::model::PortName;

use super::node::PortConfig;
use super::{BadInput, Function};

/// The longest name of an interface in the kernel.
const NAME_BYTES_MAX: usize = 15;
/// The prefix length of a network that is assumed around an address.
const PREFIX_V4: u8 = 24;
const PREFIX_V6: u8 = 64;
/// Rules about larger networks do not tell which addresses this network has.
const PREFIX_MIN: u8 = 8;
/// The kernel's address if neither the rules nor the user give one.
const ANYWHERE: &str = "10.78.0.1/24";

/// The devices and their addresses.
#[derive(Debug)]
pub(super) struct Plan {
    /// Ports, with the names of their interfaces. The first has the addresses.
    ports: Vec<(PortName, String)>,
    sides: Sides,
}

/// The addresses of both sides.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sides {
    /// The kernel's addresses, with their networks.
    clients: Vec<IpNet>,
    /// The node's addresses.
    node: Vec<IpNet>,
    /// The node's addresses that are in none of the kernel's networks.
    routes: Vec<IpNet>,
}

impl Sides {
    /// Chooses addresses for rules with these destinations.
    fn new(destinations: impl Iterator<Item = IpNet>, wanted: Option<IpNet>) -> Self {
        let mut hosts: Vec<IpAddr> = destinations.filter_map(host_of).collect();
        hosts.sort();
        hosts.dedup();
        let mut sides = Self::default();
        let of_family = |v4: bool| hosts.iter().copied().filter(move |host| host.is_ipv4() == v4);
        for v4 in [true, false] {
            let family: Vec<IpAddr> = of_family(v4).collect();
            let wanted = wanted.filter(|wanted| wanted.addr().is_ipv4() == v4);
            if let Some(client) = wanted.or_else(|| client_beside(&family)) {
                sides.add(client, &family);
            }
        }
        if sides.clients.is_empty() {
            sides.add(ANYWHERE.parse().expect("it is an address"), &[]);
        }
        sides
    }

    fn add(&mut self, client: IpNet, hosts: &[IpAddr]) {
        self.clients.push(client);
        if hosts.is_empty() {
            self.node.extend(host_beside(client).map(|host| with_len(host, client.prefix_len())));
        }
        for host in hosts.iter().copied().filter(|host| *host != client.addr()) {
            if client.contains(&host) {
                self.node.push(with_len(host, client.prefix_len()));
            } else {
                self.node.push(IpNet::from(host));
                self.routes.push(IpNet::from(host));
            }
        }
    }
}

/// Returns an address that a rule with this destination matches. For a network, an address in it, unless the network is
/// too large.
fn host_of(destination: IpNet) -> Option<IpAddr> {
    if destination.prefix_len() < PREFIX_MIN {
        return None;
    }
    let is_host = destination.prefix_len() == destination.max_prefix_len();
    let host = if is_host { Some(destination.addr()) } else { destination.hosts().nth(1) };
    let is_of_none = |host: &IpAddr| host.is_unspecified() || host.is_loopback() || *host == Ipv4Addr::BROADCAST;
    host.filter(|host| !host.is_multicast() && !is_of_none(host))
}

/// Returns an address for the kernel's side, in a network around the first of these.
fn client_beside(hosts: &[IpAddr]) -> Option<IpNet> {
    let first = *hosts.first()?;
    let len = if first.is_ipv4() { PREFIX_V4 } else { PREFIX_V6 };
    let client =
        with_len(first, len).trunc().hosts().find(|address| is_station(*address) && !hosts.contains(address))?;
    Some(with_len(client, len))
}

fn host_beside(client: IpNet) -> Option<IpAddr> {
    client.trunc().hosts().find(|address| is_station(*address) && *address != client.addr())
}

/// The first address of an IPv6 network belongs to its routers.
fn is_station(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.segments()[4..] != [0; 4],
    }
}

fn with_len(address: IpAddr, len: u8) -> IpNet {
    IpNet::new(address, len).expect("a length that addresses of its version have")
}

impl Plan {
    /// Plans the devices for a function. Refuses what this machine does not allow.
    pub(super) fn new(device: &str, address: Option<IpNet>, function: &Function) -> anyhow::Result<Self> {
        let bundle = function.bundle()?;
        let destinations = bundle.rules().filter_map(|rule| rule.matcher.destination).map(|prefix| prefix.net());
        let sides = Sides::new(destinations, address);
        let mut ports = Vec::new();
        for (number, port) in function.ports()?.into_iter().enumerate() {
            let interface = if number == 0 { device.to_owned() } else { format!("{device}-{port}") };
            check_name(&interface)?;
            ports.push((port, interface));
        }
        for (_, interface) in &ports {
            if ip(&format!("link show dev {interface}")).is_ok() {
                let sentence = format!("there is an interface {interface} already: name another by --tap");
                return Err(BadInput::Machine(sentence).into());
            }
        }
        for network in sides.clients.iter().map(IpNet::trunc).chain(sides.routes.iter().copied()) {
            let found = ip(&format!("{} route show root {network}", family(network)))?;
            if let Some(route) = found.lines().next() {
                let sentence = format!(
                    "this machine has a route to {network} already ({}): take another network by --address, or a network \
                     namespace (ip netns exec NAME pinion dev ...)",
                    route.trim()
                );
                return Err(BadInput::Machine(sentence).into());
            }
        }
        Ok(Self { ports, sides })
    }

    /// Returns the node's ports. The first has the addresses.
    pub(super) fn node_ports(&self) -> Vec<PortConfig> {
        let port = |(number, (name, interface)): (usize, &(PortName, String))| PortConfig {
            name: name.clone(),
            device: format!("net_tap{number},iface={interface}"),
            promiscuous: false,
            addresses: if number == 0 { self.sides.node.clone() } else { Vec::new() },
        };
        self.ports.iter().enumerate().map(port).collect()
    }

    /// Sets the addresses of the kernel's side, once the node has created the devices.
    pub(super) fn set_up(&self) -> anyhow::Result<()> {
        for (_, interface) in &self.ports {
            ip(&format!("link set {interface} up"))?;
        }
        let (_, interface) = &self.ports[0];
        for client in &self.sides.clients {
            let at_once = if client.addr().is_ipv4() { "" } else { "nodad" };
            ip(&format!("address add {client} dev {interface} {at_once}"))?;
        }
        for route in &self.sides.routes {
            ip(&format!("{} route add {route} dev {interface}", family(*route)))?;
        }
        Ok(())
    }

    /// Formats it as `tap0: this machine is 10.77.0.1, the node answers for 10.77.0.2`.
    pub(super) fn described(&self) -> String {
        let list = |networks: &[IpNet]| {
            networks.iter().map(|network| network.addr().to_string()).collect::<Vec<_>>().join(" and ")
        };
        let Sides { clients, node, .. } = &self.sides;
        let mut text =
            format!("{}: this machine is {}, the node answers for {}.", self.ports[0].1, list(clients), list(node));
        for (port, interface) in &self.ports[1..] {
            let _ = write!(text, "\n{interface} is the port {port}.");
        }
        text
    }
}

fn check_name(interface: &str) -> Result<(), BadInput> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_right = !interface.is_empty()
        && interface.len() <= NAME_BYTES_MAX
        && interface.bytes().all(is_plain)
        && interface.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_right {
        return Ok(());
    }
    Err(BadInput::Machine(format!(
        "{interface:?} is no name for a device: it takes letters, digits, - and _, at most {NAME_BYTES_MAX}"
    )))
}

fn family(network: IpNet) -> &'static str {
    if network.addr().is_ipv4() { "-4" } else { "-6" }
}

/// Runs iproute2, and returns its output.
fn ip(words: &str) -> Result<String, BadInput> {
    let mut command = Command::new("ip");
    let output = command.args(words.split_whitespace()).output();
    let output = output.map_err(|error| {
        BadInput::Machine(format!("the program ip cannot be run ({error}): Debian's package iproute2 has it"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', ", ");
    Err(BadInput::Machine(format!("ip {words} failed: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(destinations: &[&str], wanted: Option<&str>) -> Sides {
        Sides::new(destinations.iter().map(|text| net(text)), wanted.map(net))
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| net(text)).collect()
    }

    #[test]
    fn the_node_has_the_destinations_of_rules_and_this_machine_an_address_beside_them() {
        let found = sides(&["10.77.0.2/32", "10.77.0.1/32", "10.77.0.2/32", "fd77::2/128"], None);
        assert_eq!(found.clients, nets(&["10.77.0.3/24", "fd77::1/64"]));
        assert_eq!(found.node, nets(&["10.77.0.1/24", "10.77.0.2/24", "fd77::2/64"]));
        assert_eq!(found.routes, []);
    }

    #[test]
    fn a_rule_about_a_network_gives_the_node_an_address_in_it() {
        let found = sides(&["10.77.0.0/24"], None);
        assert_eq!((found.clients, found.node), (nets(&["10.77.0.1/24"]), nets(&["10.77.0.2/24"])));
    }

    #[test]
    fn an_address_in_another_network_gets_routes_to_the_destinations_of_rules() {
        let found = sides(&["10.77.0.2/32", "10.78.0.9/32"], Some("10.78.0.1/24"));
        assert_eq!(found.clients, nets(&["10.78.0.1/24"]));
        assert_eq!(found.node, nets(&["10.77.0.2/32", "10.78.0.9/24"]));
        assert_eq!(found.routes, nets(&["10.77.0.2/32"]));
    }

    #[test]
    fn without_any_destination_the_node_still_has_an_address_beside_this_machine() {
        for (destinations, wanted, client, node) in [
            (&[][..], None, "10.78.0.1/24", "10.78.0.2/24"),
            (&[], Some("192.168.7.9/24"), "192.168.7.9/24", "192.168.7.1/24"),
            (&["0.0.0.0/0", "224.0.0.5/32"], None, "10.78.0.1/24", "10.78.0.2/24"),
        ] {
            let found = sides(destinations, wanted);
            assert_eq!((found.clients, found.node), (nets(&[client]), nets(&[node])), "{destinations:?}");
        }
    }

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for name in ["", "a-name-of-16-byte", "a/b", "a,mac=x", "-x", "a b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        check_name("tap0").unwrap();
    }
}
