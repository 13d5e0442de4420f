//! One network that a port is in: the untagged one, or a VLAN. Which addresses the node has there, and by which next hop
//! it reaches others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use smoltcp::wire::EthernetAddress;

use super::link_header::Tags;
use crate::headers::Vlan;

/// The most routes of a network, on-link prefixes not counted. They are searched one after another.
pub const ROUTES_MAX: usize = 64;

/// A network that a port is in, as it is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSetup {
    /// The VLAN.
    pub vlan: Vlan,
    /// The node's addresses there. The rest of their prefixes is on the link.
    pub addresses: Vec<IpNet>,
    /// How other networks are reached, at most [`ROUTES_MAX`]. A gateway is the route of all addresses of its version.
    pub routes: Vec<Route>,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network that it leads to.
    pub to: IpNet,
    /// The router on the link to which packets for it are sent.
    pub via: IpAddr,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    vlan: Vlan,
    /// The tags of the message of neighbours that was heard last, which the node's own have too.
    tags: Tags,
    /// The node's addresses, each with its prefix.
    addresses: Box<[IpNet]>,
    /// The node's addresses alone, sorted, as there may be hundreds.
    ipv4: Box<[Ipv4Addr]>,
    ipv6: Box<[Ipv6Addr]>,
    /// The broadcast addresses of the prefixes of IPv4.
    broadcast: Box<[Ipv4Addr]>,
    /// The node's own link-local address, if it has another IPv6 address there (RFC 4291, appendix A).
    link_local: Option<Ipv6Addr>,
    /// The longest prefix first. Without a router, the network is on the link.
    routes: Box<[(IpNet, Option<IpAddr>)]>,
}

impl Network {
    /// Makes a network of a port with this hardware address.
    #[must_use]
    pub fn new(setup: &NetworkSetup, station: EthernetAddress) -> Self {
        let NetworkSetup { vlan, addresses, routes } = setup;
        let mut ipv4: Vec<_> = addresses.iter().filter_map(ipv4_of).collect();
        let mut ipv6: Vec<_> = addresses.iter().filter_map(ipv6_of).collect();
        ipv4.sort_unstable();
        ipv6.sort_unstable();
        let on_link = addresses.iter().map(|net| (net.trunc(), None));
        let mut routes: Vec<_> = on_link.chain(routes.iter().map(|route| (route.to, Some(route.via)))).collect();
        routes.sort_by_key(|(to, via)| (std::cmp::Reverse(to.prefix_len()), *via));
        let mut network = Self {
            vlan: *vlan,
            tags: Tags::standard(*vlan),
            addresses: addresses.as_slice().into(),
            ipv4: ipv4.into(),
            ipv6: ipv6.into(),
            broadcast: addresses.iter().filter_map(broadcast_of).collect(),
            link_local: None,
            routes: routes.into(),
        };
        network.set_station(station);
        network
    }

    /// Sets the port's hardware address, from which the link-local address follows.
    pub(crate) fn set_station(&mut self, station: EthernetAddress) {
        self.link_local = (!self.ipv6.is_empty()).then(|| link_local_of(station));
    }

    pub(crate) fn vlan(&self) -> Vlan {
        self.vlan
    }

    pub(crate) fn link_local(&self) -> Option<Ipv6Addr> {
        self.link_local
    }

    pub(crate) fn tags(&self) -> Tags {
        self.tags
    }

    /// Takes over the tags of a message that was heard there.
    pub(crate) fn set_tags(&mut self, tags: Tags) {
        self.tags = tags;
    }

    /// Returns the addresses that the node announces when it starts.
    pub(crate) fn announced(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let ipv6 = self.ipv6.iter().chain(&self.link_local).copied().map(IpAddr::V6);
        self.ipv4.iter().copied().map(IpAddr::V4).chain(ipv6)
    }

    /// Returns whether the node has this address.
    pub(crate) fn has_v4(&self, address: Ipv4Addr) -> bool {
        self.ipv4.binary_search(&address).is_ok()
    }

    /// Returns whether the node has this address.
    pub(crate) fn has_v6(&self, address: Ipv6Addr) -> bool {
        self.link_local == Some(address) || self.ipv6.binary_search(&address).is_ok()
    }

    /// Returns whether the node has this address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.has_v4(address),
            IpAddr::V6(address) => self.has_v6(address),
        }
    }

    /// Returns whether packets for this address are for all stations on the link (RFC 919).
    pub(crate) fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        address.is_broadcast() || self.broadcast.contains(&address)
    }

    /// Returns the station's address to which packets for `to` are sent: its own if it is on the link, or a router's.
    /// `None` if no route leads there.
    pub(crate) fn next_hop(&self, to: IpAddr) -> Option<IpAddr> {
        match to {
            IpAddr::V6(address) if address.is_unicast_link_local() => self.link_local.map(|_| to),
            _ => self.route(to).map(|(_, via)| via.unwrap_or(to)),
        }
    }

    /// Returns the length of the prefix of the route that leads to `to`, if there is one.
    pub(crate) fn route_len(&self, to: IpAddr) -> Option<u8> {
        self.route(to).map(|(net, _)| net.prefix_len())
    }

    /// Returns the node's address from which packets for `to` are sent: one in the prefix of the next hop, else the one of that
    /// version that has the longest prefix in common with `to`. None that is link-local, unless `to` is, or IPv4 has no other
    /// (RFC 6724, section 5, rules 2, 6 and 8). `None` if there is none, if no route leads there, or if it is the node's own
    /// address.
    pub(crate) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let hop = self.next_hop(to).filter(|hop| !self.has(to) && !self.has(*hop))?;
        let of_scope = |is_link_local| {
            let is_candidate =
                |net: &&IpNet| net.addr().is_ipv4() == to.is_ipv4() && is_link_local == link_local(net.addr());
            let is_beside = |net: &&IpNet| is_link_local == link_local(hop) && net.contains(&hop);
            let candidates = || self.addresses.iter().filter(is_candidate);
            // The first of those that have as much in common.
            let nearest = || candidates().min_by_key(|net| (bits(net.addr()) ^ bits(to)).checked_ilog2());
            candidates().find(is_beside).or_else(nearest).map(IpNet::addr)
        };
        let is_link_local = link_local(to);
        of_scope(is_link_local).or_else(|| of_scope(!is_link_local).filter(|_| to.is_ipv4()))
    }

    fn route(&self, to: IpAddr) -> Option<(IpNet, Option<IpAddr>)> {
        self.routes.iter().find(|(net, _)| net.contains(&to)).copied()
    }

    /// Returns the node's address that asks for `target`: one in the same prefix if there is one. `None` if the node has
    /// no address of that version there.
    pub(crate) fn asker_for(&self, target: IpAddr) -> Option<IpAddr> {
        let beside = self.addresses.iter().find(|net| net.contains(&target)).map(IpNet::addr);
        beside.or_else(|| match target {
            IpAddr::V4(_) => self.ipv4.first().copied().map(IpAddr::V4),
            IpAddr::V6(_) => self.link_local.map(IpAddr::V6),
        })
    }
}

/// Returns whether an address is for one link only.
fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns an address as a number.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the link-local address that is made of a hardware address (modified EUI-64).
pub(crate) fn link_local_of(station: EthernetAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = station.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn ipv4_of(net: &IpNet) -> Option<Ipv4Addr> {
    match net {
        IpNet::V4(net) => Some(net.addr()),
        IpNet::V6(_) => None,
    }
}

/// Networks of two addresses have none (RFC 3021).
fn broadcast_of(net: &IpNet) -> Option<Ipv4Addr> {
    match net {
        IpNet::V4(net) => (net.prefix_len() <= 30).then(|| net.broadcast()),
        IpNet::V6(_) => None,
    }
}

fn ipv6_of(net: &IpNet) -> Option<Ipv6Addr> {
    match net {
        IpNet::V4(_) => None,
        IpNet::V6(net) => Some(net.addr()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> Network {
        let nets = ["10.0.0.1/24", "10.0.0.9/24", "192.168.7.1/24", "fd00::1/64"];
        let route = |(to, via): (&str, &str)| Route { to: to.parse().unwrap(), via: via.parse().unwrap() };
        let routes = [
            ("10.1.0.0/16", "10.0.0.2"),
            ("10.1.2.0/24", "10.0.0.3"),
            ("0.0.0.0/0", "10.0.0.254"),
            ("::/0", "fe80::9"),
        ];
        let setup = NetworkSetup {
            vlan: Vlan::UNTAGGED,
            addresses: nets.map(|net| net.parse().unwrap()).to_vec(),
            routes: routes.map(route).to_vec(),
        };
        Network::new(&setup, EthernetAddress([2, 0, 0, 0, 0, 7]))
    }

    fn hop(to: &str) -> Option<String> {
        network().next_hop(to.parse().unwrap()).map(|hop| hop.to_string())
    }

    #[test]
    fn a_host_on_the_link_is_its_own_next_hop_and_others_are_reached_by_the_longest_route() {
        let hops = ["10.0.0.77", "192.168.7.3", "10.1.9.9", "10.1.2.3", "8.8.8.8", "fd00::5", "2001:db8::1", "fe80::3"];
        let expected =
            ["10.0.0.77", "192.168.7.3", "10.0.0.2", "10.0.0.3", "10.0.0.254", "fd00::5", "fe80::9", "fe80::3"];
        assert_eq!(hops.map(|to| hop(to).unwrap()), expected);
    }

    #[test]
    fn the_last_address_of_a_prefix_is_for_all_on_the_link() {
        let nets = ["10.0.0.1/24", "10.8.0.1/30", "10.9.0.0/31", "10.9.1.1/32"].map(|net| net.parse().unwrap());
        let setup = NetworkSetup { addresses: nets.to_vec(), ..NetworkSetup::default() };
        let network = Network::new(&setup, EthernetAddress([2, 0, 0, 0, 0, 7]));
        let is_broadcast = |address: &str| network.is_broadcast(address.parse().unwrap());
        assert_eq!(["10.0.0.255", "10.8.0.3", "255.255.255.255"].map(is_broadcast), [true; 3]);
        assert_eq!(["10.0.0.254", "10.0.1.255", "10.9.0.1", "10.9.1.1"].map(is_broadcast), [false; 4]);
    }

    #[test]
    fn without_a_gateway_only_the_link_is_reached() {
        let setup = NetworkSetup { addresses: vec!["10.0.0.1/24".parse().unwrap()], ..NetworkSetup::default() };
        let network = Network::new(&setup, EthernetAddress([2, 0, 0, 0, 0, 7]));
        let hop = |to: &str| network.next_hop(to.parse().unwrap());
        assert_eq!((hop("10.0.0.2"), hop("10.0.1.2"), hop("fe80::1")), ("10.0.0.2".parse().ok(), None, None));
    }

    #[test]
    fn it_asks_by_an_address_in_the_targets_prefix_or_by_its_link_local_one() {
        let asker = |target: &str| network().asker_for(target.parse().unwrap()).unwrap().to_string();
        assert_eq!(["192.168.7.9", "172.16.0.1", "fd00::9"].map(asker), ["192.168.7.1", "10.0.0.1", "fd00::1"]);
        assert_eq!(asker("fe80::9"), "fe80::ff:fe00:7");
    }

    fn source(addresses: &[&str], via: &str, to: &str) -> Option<String> {
        let default = if via.contains(':') { "::/0" } else { "0.0.0.0/0" };
        let setup = NetworkSetup {
            addresses: addresses.iter().map(|net| net.parse().unwrap()).collect(),
            routes: vec![Route { to: default.parse().unwrap(), via: via.parse().unwrap() }],
            ..NetworkSetup::default()
        };
        let network = Network::new(&setup, EthernetAddress([2, 0, 0, 0, 0, 7]));
        network.source_for(to.parse().unwrap()).map(|source| source.to_string())
    }

    #[test]
    fn packets_leave_from_an_address_beside_the_next_hop() {
        let addresses = ["fd00::1/64", "2001:db8:1::1/64", "10.0.0.1/24", "10.0.0.9/24", "192.168.7.1/24"];
        let from = |via, to| source(&addresses, via, to).unwrap();
        assert_eq!(from("fd00::9", "2001:db8:2::2"), "fd00::1");
        assert_eq!(from("fe80::9", "2001:db8:1::2"), "2001:db8:1::1", "on the link");
        assert_eq!([from("10.0.0.254", "192.168.8.1"), from("10.0.0.254", "192.168.7.3")], ["10.0.0.1", "192.168.7.1"]);
    }

    #[test]
    fn behind_a_link_local_router_packets_leave_from_the_address_nearest_to_where_they_go() {
        let addresses = ["fe80::1/64", "fd00::1/64", "2001:db8:1::1/64", "2001:db8:1::2/64", "2001:db8:2::1/64"];
        let from = |to| source(&addresses, "fe80::9", to).unwrap();
        assert_eq!(
            ["2001:db8:1:9::9", "2001:db8:2:9::9", "2a00::1"].map(from),
            ["2001:db8:1::1", "2001:db8:2::1", "2001:db8:1::1"]
        );
        assert_eq!(from("fd00:9::1"), "fd00::1");
        assert_eq!(
            source(&["10.0.0.1/24", "192.168.7.1/24"], "169.254.0.1", "192.168.8.8"),
            Some("192.168.7.1".into())
        );
    }

    #[test]
    fn no_link_local_address_is_the_source_of_packets_that_go_further() {
        assert_eq!(source(&["fe80::1/64"], "fe80::9", "2001:db8::1"), None);
        assert_eq!(source(&["169.254.0.2/30", "10.0.0.1/32"], "169.254.0.1", "8.8.8.8"), Some("10.0.0.1".into()));
        assert_eq!(
            source(&["169.254.0.2/30"], "169.254.0.1", "10.1.1.1"),
            Some("169.254.0.2".into()),
            "IPv4 has no other"
        );
        assert_eq!(
            source(&["fe80::1/64", "fd00::1/64"], "fe80::9", "fe80::5"),
            Some("fe80::1".into()),
            "but of those that do not"
        );
    }

    #[test]
    fn the_link_local_address_follows_the_hardware_address() {
        let mut network = network();
        let own = |network: &Network| network.announced().last().unwrap().to_string();
        assert_eq!((own(&network), network.has("fe80::ff:fe00:7".parse().unwrap())), ("fe80::ff:fe00:7".into(), true));
        network.set_station(EthernetAddress([2, 0, 0, 0, 0, 8]));
        assert_eq!((own(&network), network.has("fe80::ff:fe00:7".parse().unwrap())), ("fe80::ff:fe00:8".into(), false));
    }
}
