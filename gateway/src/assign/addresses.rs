//! Which addresses a packet may have that comes in by a port.
//!
//! Judged when a flow is looked up in the rules: the verdict is noted in the flow cache, so that the further frames of a
//! flow cost nothing. What is the node's in one network may be another's in the next.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use pinion_mma::id::PortIndex;
use smoltcp::wire::EthernetAddress;

use crate::drops::DropReason;
use crate::headers::{FlowKey, Ingress, Vlan};
use crate::neighbors::network::{NetworkSetup, link_local_of};

/// Whom a packet is for, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// One host.
    Host,
    /// A multicast group, or all hosts.
    Group,
}

/// A port's addresses, by VLAN.
type OfPort = Box<[(Vlan, OfNetwork)]>;

/// The addresses of all ports.
#[derive(Default)]
pub(crate) struct OwnAddresses {
    /// By port.
    ports: Box<[OfPort]>,
}

/// A port's addresses in one network, in order.
#[derive(Default)]
struct OfNetwork {
    ipv4: Box<[Ipv4Addr]>,
    ipv6: Box<[Ipv6Addr]>,
    /// The one that follows from the port's hardware address, if there are others of IPv6.
    link_local: Option<Ipv6Addr>,
    /// Those for broadcast to the networks that it has an address in.
    broadcast: Box<[Ipv4Addr]>,
    /// Those of these networks themselves, which were for broadcast once and are no host's either (RFC 1122, section 3.2.1.3).
    networks: Box<[Ipv4Addr]>,
}

impl OwnAddresses {
    /// Makes the table of the addresses that ports have in their networks.
    pub(crate) fn new<'a>(ports: impl Iterator<Item = &'a [NetworkSetup]>) -> Self {
        let of_network = |setup: &NetworkSetup| (setup.vlan, OfNetwork::new(&setup.addresses));
        Self { ports: ports.map(|networks| networks.iter().map(of_network).collect()).collect() }
    }

    /// Sets a port's hardware address, from which its link-local addresses follow.
    pub(crate) fn set_station(&mut self, port: PortIndex, station: EthernetAddress) {
        for (_, network) in self.ports.get_mut(usize::from(port.0)).into_iter().flatten() {
            network.link_local = (!network.ipv6.is_empty()).then(|| link_local_of(station));
        }
    }

    fn of(&self, ingress: Ingress) -> Option<&OfNetwork> {
        let networks = self.ports.get(usize::from(ingress.port.0))?;
        networks.iter().find(|(vlan, _)| *vlan == ingress.vlan).map(|(_, network)| network)
    }

    /// Returns whether an address is the node's own in a network.
    pub(crate) fn has(&self, ingress: Ingress, address: IpAddr) -> bool {
        self.of(ingress).is_some_and(|network| match address {
            IpAddr::V4(address) => network.ipv4.binary_search(&address).is_ok(),
            IpAddr::V6(address) => network.has_v6(address),
        })
    }

    /// Returns whether an address is that of a network on the link or the one for broadcast to it, and so no host's.
    pub(super) fn is_of_network(&self, ingress: Ingress, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        let has = |them: &[Ipv4Addr]| them.binary_search(&address).is_ok();
        self.of(ingress).is_some_and(|network| has(&network.broadcast) || has(&network.networks))
    }

    /// Returns whom the packets of a flow are for.
    ///
    /// # Errors
    /// Why they are dropped, whatever the rules are: [`DropReason::Martian`], or [`DropReason::UnicastToGroup`].
    pub(super) fn judge(&self, flow: &FlowKey) -> Result<Destination, DropReason> {
        let network = self.of(flow.ingress());
        let destination = if flow.is_ipv6() {
            let (source, destination) = (flow.source_bits().into(), flow.destination_bits().into());
            judge_ipv6(source, destination, network)
        } else {
            let [source, destination] = [flow.source_bits(), flow.destination_bits()].map(|bits| bits as u32);
            judge_ipv4(source.into(), destination.into(), network)
        };
        match destination.ok_or(DropReason::Martian)? {
            Destination::Host if flow.is_in_group_frames() => Err(DropReason::UnicastToGroup),
            destination => Ok(destination),
        }
    }
}

impl OfNetwork {
    fn new(addresses: &[IpNet]) -> Self {
        let (mut ipv4, mut ipv6, mut broadcast, mut networks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for net in addresses {
            match net {
                IpNet::V4(net) => {
                    ipv4.push(net.addr());
                    // Networks of two addresses have none for broadcast (RFC 3021).
                    if net.prefix_len() <= 30 {
                        broadcast.push(net.broadcast());
                        networks.push(net.network());
                    }
                }
                IpNet::V6(net) => ipv6.push(net.addr()),
            }
        }
        ipv4.sort_unstable();
        ipv6.sort_unstable();
        broadcast.sort_unstable();
        networks.sort_unstable();
        let [ipv4, broadcast, networks] = [ipv4, broadcast, networks].map(Vec::into_boxed_slice);
        Self { ipv4, ipv6: ipv6.into(), link_local: None, broadcast, networks }
    }

    fn has_v6(&self, address: Ipv6Addr) -> bool {
        self.link_local == Some(address) || self.ipv6.binary_search(&address).is_ok()
    }
}

/// Returns `None` for a martian (RFC 1812, section 5.3.7).
fn judge_ipv4(source: Ipv4Addr, destination: Ipv4Addr, network: Option<&OfNetwork>) -> Option<Destination> {
    let is_for_broadcast = |address| network.is_some_and(|network| network.broadcast.binary_search(&address).is_ok());
    let is_of_no_host = |address: Ipv4Addr| address.octets()[0] == 0 || address.is_loopback();
    // Multicast, and what is reserved above, which includes broadcast.
    let is_above_hosts = |address: Ipv4Addr| address.octets()[0] >= 224;

    let is_own = network.is_some_and(|network| network.ipv4.binary_search(&source).is_ok());
    // A host without an address asks all others for one (RFC 2131).
    let has_none_yet = source.is_unspecified() && destination.is_broadcast();
    if is_own || is_for_broadcast(source) || is_above_hosts(source) || is_of_no_host(source) && !has_none_yet {
        return None;
    }
    if destination.is_multicast() || destination.is_broadcast() || is_for_broadcast(destination) {
        return Some(Destination::Group);
    }
    (!is_of_no_host(destination) && !is_above_hosts(destination)).then_some(Destination::Host)
}

/// Returns `None` for a martian.
fn judge_ipv6(source: Ipv6Addr, destination: Ipv6Addr, network: Option<&OfNetwork>) -> Option<Destination> {
    let is_of_no_host =
        |address: Ipv6Addr| address.is_unspecified() || address.is_loopback() || address.to_ipv4_mapped().is_some();
    let is_own = network.is_some_and(|network| network.has_v6(source));
    if is_own || source.is_multicast() || is_of_no_host(source) || is_of_no_host(destination) {
        return None;
    }
    if !destination.is_multicast() {
        return Some(Destination::Host);
    }
    // Those of the interface only, and a reserved scope (RFC 4291, section 2.7).
    let scope = destination.octets()[1] & 0xf;
    (scope > 1).then_some(Destination::Group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGGED: Vlan = Vlan { id: 7, inner_id: 0 };
    /// A VLAN in which the first port has an address.
    const VLAN: Vlan = Vlan { id: 8, inner_id: 0 };

    fn own() -> OwnAddresses {
        let nets: Vec<IpNet> = ["10.77.0.2/24", "10.78.0.2/16", "10.79.0.2/31", "10.79.1.2/32", "fd77::2/64"]
            .map(|net| net.parse().unwrap())
            .into();
        let untagged = |addresses| NetworkSetup { addresses, ..NetworkSetup::default() };
        let in_vlan = NetworkSetup { vlan: VLAN, ..untagged(vec!["10.80.0.2/24".parse().unwrap()]) };
        OwnAddresses::new([&[untagged(nets), in_vlan][..], &[untagged(Vec::new())]].into_iter())
    }

    fn judge_at(port: u16, vlan: Vlan, source: &str, destination: &str) -> Result<Destination, DropReason> {
        let ingress = Ingress { port: PortIndex(port), vlan };
        let flow = match (source.parse().unwrap(), destination.parse().unwrap()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => FlowKey::ipv4(source, destination, 17, ingress),
            (IpAddr::V6(source), IpAddr::V6(destination)) => FlowKey::ipv6(source, destination, 17, ingress),
            mixed => panic!("{mixed:?}"),
        };
        own().judge(&flow)
    }

    fn judge(source: &str, destination: &str) -> Result<Destination, DropReason> {
        judge_at(0, Vlan::UNTAGGED, source, destination)
    }

    #[test]
    fn packets_from_addresses_of_no_host_are_martians() {
        for source in
            ["0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.0.9", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"]
        {
            assert_eq!(judge(source, "10.77.0.9"), Err(DropReason::Martian), "{source}");
        }
        for source in ["::", "::1", "::ffff:10.0.0.1", "ff02::1", "ff0e::1"] {
            assert_eq!(judge(source, "fd77::9"), Err(DropReason::Martian), "{source}");
        }
        for source in ["10.0.0.1", "1.0.0.0", "126.255.255.255", "128.0.0.1", "169.254.3.4", "223.255.255.255"] {
            assert_eq!(judge(source, "10.77.0.9"), Ok(Destination::Host), "{source}");
        }
        for source in ["fe80::1", "2001:db8::1", "::2", "64:ff9b::10.0.0.1"] {
            assert_eq!(judge(source, "fd77::9"), Ok(Destination::Host), "{source}");
        }
    }

    #[test]
    fn packets_to_addresses_of_no_host_and_no_group_are_martians() {
        for destination in ["0.0.0.0", "0.9.9.9", "127.0.0.1", "240.0.0.1", "255.255.255.254"] {
            assert_eq!(judge("10.77.0.9", destination), Err(DropReason::Martian), "{destination}");
        }
        for destination in ["::", "::1", "::ffff:10.0.0.1", "ff01::1", "ff00::1", "ff11::1", "ff10::1"] {
            assert_eq!(judge("fd77::9", destination), Err(DropReason::Martian), "{destination}");
        }
    }

    #[test]
    fn what_is_the_nodes_in_a_vlan_is_others_elsewhere() {
        assert_eq!(judge_at(0, VLAN, "10.80.0.2", "10.80.0.9"), Err(DropReason::Martian));
        assert_eq!(judge_at(0, VLAN, "10.80.0.9", "10.80.0.255"), Ok(Destination::Group));
        assert_eq!(judge_at(0, VLAN, "10.77.0.2", "10.80.0.9"), Ok(Destination::Host));
        assert_eq!(judge("10.80.0.2", "10.80.0.255"), Ok(Destination::Host));
    }

    #[test]
    fn a_packet_from_an_own_address_of_its_port_is_a_martian_on_the_untagged_network_of_that_port_only() {
        for (source, destination) in [("10.77.0.2", "10.77.0.9"), ("10.79.1.2", "10.0.0.1"), ("fd77::2", "fd77::9")] {
            assert_eq!(judge(source, destination), Err(DropReason::Martian));
            assert_eq!(judge_at(1, Vlan::UNTAGGED, source, destination), Ok(Destination::Host));
            assert_eq!(judge_at(0, TAGGED, source, destination), Ok(Destination::Host));
            assert_eq!(judge_at(9, Vlan::UNTAGGED, source, destination), Ok(Destination::Host), "no such port");
        }
    }

    #[test]
    fn the_link_local_address_that_a_port_has_beside_others_is_its_own_and_follows_its_hardware_address() {
        let mut own = own();
        let ingress = |port| Ingress { port: PortIndex(port), vlan: Vlan::UNTAGGED };
        let is_martian = |own: &OwnAddresses, port, source: &str| {
            let flow = FlowKey::ipv6(source.parse().unwrap(), "fd77::9".parse().unwrap(), 17, ingress(port));
            own.judge(&flow) == Err(DropReason::Martian)
        };
        for (station, link_local) in [(1, "fe80::ff:fe00:1"), (2, "fe80::ff:fe00:2")] {
            [0, 1]
                .into_iter()
                .for_each(|port| own.set_station(PortIndex(port), EthernetAddress([2, 0, 0, 0, 0, station])));
            assert_eq!(
                [0, 1].map(|port| is_martian(&own, port, link_local)),
                [true, false],
                "the second has no others"
            );
            assert!(own.has(ingress(0), link_local.parse().unwrap()));
        }
        assert!(!is_martian(&own, 0, "fe80::ff:fe00:1"), "another's now");
    }

    #[test]
    fn groups_are_multicast_broadcast_and_the_broadcast_addresses_of_the_ports_networks() {
        for destination in ["224.0.0.1", "239.255.255.250", "255.255.255.255", "10.77.0.255", "10.78.255.255"] {
            assert_eq!(judge("10.77.0.9", destination), Ok(Destination::Group), "{destination}");
        }
        for destination in ["ff02::1", "ff05::2", "ff3e::7"] {
            assert_eq!(judge("fd77::9", destination), Ok(Destination::Group), "{destination}");
        }
        for destination in ["10.78.0.255", "10.79.0.3", "10.79.1.2", "10.77.0.2"] {
            assert_eq!(judge("10.77.0.9", destination), Ok(Destination::Host), "{destination}");
        }
        assert_eq!(judge_at(1, Vlan::UNTAGGED, "10.77.0.9", "10.77.0.255"), Ok(Destination::Host));
        assert_eq!(judge("10.77.0.255", "10.77.0.9"), Err(DropReason::Martian), "as a source");
    }

    #[test]
    fn a_host_without_an_address_may_ask_all_hosts_for_one() {
        assert_eq!(judge("0.0.0.0", "255.255.255.255"), Ok(Destination::Group));
        assert_eq!(judge("0.0.0.1", "255.255.255.255"), Err(DropReason::Martian));
        assert_eq!(judge("0.0.0.0", "10.77.0.255"), Err(DropReason::Martian));
    }
}
