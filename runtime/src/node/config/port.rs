//! Ports of the node's configuration: their devices, and the networks that they are in.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use pinion_gateway::headers::Vlan;
use pinion_gateway::neighbors::network::{NetworkSetup, ROUTES_MAX, Route};
use pinion_gateway::neighbors::reverse_path;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

/// One port of the gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name in rules and chains.
    pub name: String,
    /// The device: a PCI address, or a DPDK virtual device with its arguments.
    pub device: String,
    /// The network namespace in which the device is opened, by its name for `ip netns`; by default the node's own.
    pub namespace: Option<String>,
    /// Addresses the node answers ARP and neighbour discovery for, with their networks' prefix lengths.
    #[serde(default, deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// Routers to all networks without a route of their own: one for each IP version at most.
    #[serde(default)]
    pub gateway: Vec<IpAddr>,
    /// How other networks are reached.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
    /// VLANs in which the port has addresses.
    #[serde(default, rename = "vlan")]
    pub vlans: Vec<VlanConfig>,
    /// What is asked of the sources of packets that come in.
    #[serde(default)]
    pub reverse_path: ReversePath,
    /// The largest packet, without the Ethernet header, in bytes.
    #[serde(default = "default_mtu_bytes")]
    pub mtu_bytes: u16,
    /// Receive queues over which the device spreads flows; there are as many transmit queues.
    #[serde(default = "default_queues")]
    pub queues: u16,
    /// Whether frames for other stations are received too.
    #[serde(default)]
    pub promiscuous: bool,
}

/// A VLAN in which a port has addresses.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VlanConfig {
    /// Its number: that of the outer tag if there are two.
    pub id: u16,
    /// The number of the inner tag, if there are two.
    pub inner_id: Option<u16>,
    /// As those of the port.
    #[serde(default, deserialize_with = "networks")]
    pub addresses: Vec<IpNet>,
    /// As that of the port.
    #[serde(default)]
    pub gateway: Vec<IpAddr>,
    /// As those of the port.
    #[serde(default)]
    pub routes: Vec<RouteConfig>,
}

/// A route.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The network that it leads to.
    pub to: IpNet,
    /// The router on the link to which packets are sent.
    pub via: IpAddr,
}

/// What is asked of the sources of packets that come in by a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReversePath {
    /// Nothing.
    #[default]
    Off,
    /// Some route leads to it.
    Loose,
    /// The best route to it leads out by the same port and VLAN.
    Strict,
}

impl From<ReversePath> for reverse_path::ReversePath {
    fn from(asked: ReversePath) -> Self {
        match asked {
            ReversePath::Off => Self::Off,
            ReversePath::Loose => Self::Loose,
            ReversePath::Strict => Self::Strict,
        }
    }
}

/// VLAN numbers that a tag can have.
const VLAN_IDS: std::ops::RangeInclusive<u16> = 1..=4094;

fn default_mtu_bytes() -> u16 {
    1500
}

fn default_queues() -> u16 {
    1
}

impl PortConfig {
    /// Returns the networks that it is in, as the gateway wants them.
    #[must_use]
    pub fn networks(&self) -> Vec<NetworkSetup> {
        let Self { addresses, gateway, routes, .. } = self;
        let untagged = network(Vlan::UNTAGGED, addresses, gateway, routes);
        let in_vlan = |vlan: &VlanConfig| network(vlan.vlan(), &vlan.addresses, &vlan.gateway, &vlan.routes);
        std::iter::once(untagged).chain(self.vlans.iter().map(in_vlan)).collect()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let Self { name, namespace, .. } = self;
        if let Some(namespace) = namespace
            && (namespace.is_empty() || namespace.contains('/') || [".", ".."].contains(&namespace.as_str()))
        {
            return Err(format!(
                "port {name}: namespace = {namespace:?} is not the name of a network namespace: give one that `ip netns` lists"
            ));
        }
        for (i, vlan) in self.vlans.iter().enumerate() {
            let ids = [vlan.id].into_iter().chain(vlan.inner_id);
            if let Some(id) = ids.into_iter().find(|id| !VLAN_IDS.contains(id)) {
                return Err(format!(
                    "port {name}: vlan {id}: from {} to {} is possible",
                    VLAN_IDS.start(),
                    VLAN_IDS.end()
                ));
            }
            if self.vlans[..i].iter().any(|other| other.vlan() == vlan.vlan()) {
                return Err(format!("port {name}: {} is given twice", vlan.vlan()));
            }
        }
        for setup in self.networks() {
            let place = match setup.vlan {
                Vlan::UNTAGGED => format!("port {name}"),
                vlan => format!("port {name}, {vlan}"),
            };
            check_addresses(&place, &setup.addresses)?;
            check_routes(&place, &setup)?;
        }
        Ok(())
    }
}

impl VlanConfig {
    fn vlan(&self) -> Vlan {
        Vlan { id: self.id, inner_id: self.inner_id.unwrap_or(0) }
    }
}

fn network(vlan: Vlan, addresses: &[IpNet], gateway: &[IpAddr], routes: &[RouteConfig]) -> NetworkSetup {
    let to_all = |via: &IpAddr| {
        let all = if via.is_ipv4() { IpNet::V4(Default::default()) } else { IpNet::V6(Default::default()) };
        Route { to: all, via: *via }
    };
    let own = routes.iter().map(|route| Route { to: route.to.trunc(), via: route.via });
    NetworkSetup { vlan, addresses: addresses.to_vec(), routes: gateway.iter().map(to_all).chain(own).collect() }
}

fn check_addresses(place: &str, addresses: &[IpNet]) -> Result<(), String> {
    let is_known = |i: usize, address: IpAddr| addresses[..i].iter().any(|other| other.addr() == address);
    if let Some((_, network)) = addresses.iter().enumerate().find(|(i, network)| is_known(*i, network.addr())) {
        return Err(format!("{place}: addresses: {} is given twice", network.addr()));
    }
    let unfit = |network: &&IpNet| {
        let address = network.addr();
        // In networks of one or two addresses, each address belongs to a station (RFC 3021, RFC 6164).
        let has_ends = network.prefix_len() + 1 < network.max_prefix_len();
        let is_end = match network {
            IpNet::V4(network) => [network.network(), network.broadcast()].contains(&network.addr()),
            IpNet::V6(network) => network.network() == network.addr(),
        };
        is_no_host(address) || (has_ends && is_end)
    };
    match addresses.iter().find(unfit) {
        Some(network) => Err(format!(
            "{place}: addresses: {network} is an unspecified, loopback, multicast, broadcast or network address: give a unicast \
             address of the port"
        )),
        None => Ok(()),
    }
}

fn is_no_host(address: IpAddr) -> bool {
    address.is_unspecified()
        || address.is_multicast()
        || address.is_loopback()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Checks that each router is on the link, and that no network has two routes.
fn check_routes(place: &str, setup: &NetworkSetup) -> Result<(), String> {
    let NetworkSetup { addresses, routes, .. } = setup;
    if routes.len() > ROUTES_MAX {
        return Err(format!("{place}: there are {} routes: a network has at most {ROUTES_MAX}", routes.len()));
    }
    for (i, Route { to, via }) in routes.iter().enumerate() {
        if to.addr().is_ipv4() != via.is_ipv4() {
            return Err(format!("{place}: routes: {to} via {via}: both must be of one IP version"));
        }
        let is_link_local = matches!(via, IpAddr::V6(via) if via.is_unicast_link_local());
        let has_version = |net: &IpNet| net.addr().is_ipv4() == via.is_ipv4();
        let is_on_link =
            addresses.iter().any(|net| net.contains(via)) || (is_link_local && addresses.iter().any(has_version));
        if is_no_host(*via) || !is_on_link {
            return Err(format!(
                "{place}: {via} is the router to {to}, and is not in the network of one of its addresses: give a router on the \
                 link, or the port an address there"
            ));
        }
        if addresses.iter().any(|net| net.addr() == *via) {
            return Err(format!(
                "{place}: {via} is the router to {to}, and the node's own address: give another router"
            ));
        }
        if routes[..i].iter().any(|other| other.to == *to) {
            return Err(format!("{place}: there are two routes to {to}"));
        }
    }
    Ok(())
}

/// Reads addresses, each with the length of its network's prefix.
fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    struct Network(IpNet);

    /// A visitor, so that an error points at the address and not at the whole list.
    struct Text;

    impl Visitor<'_> for Text {
        type Value = Network;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("ADDRESS/LENGTH")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Network, E> {
            let error = |_| {
                E::custom(format_args!("{text:?} is not ADDRESS/LENGTH, such as \"10.77.0.2/24\" or \"fd77::2/64\""))
            };
            text.parse().map(Network).map_err(error)
        }
    }

    impl<'de> Deserialize<'de> for Network {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(Text)
        }
    }

    Ok(Vec::<Network>::deserialize(deserializer)?.into_iter().map(|Network(network)| network).collect())
}
