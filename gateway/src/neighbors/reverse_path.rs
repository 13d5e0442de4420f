//! Whether a packet's source is reached by the network that it came in by (RFC 3704): a sender that forges another
//! network's address is not.

use std::net::IpAddr;

use super::network::Network;
use crate::headers::Ingress;

/// What is asked of the source of a packet that came in by a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// Nothing.
    #[default]
    Off,
    /// A route of some network leads to it.
    Loose,
    /// The best route to it leads through the network that the packet came in by.
    Strict,
}

/// The networks of all ports, by where packets come in.
#[derive(Debug, Default)]
pub(crate) struct ReversePaths {
    networks: Box<[(Ingress, Network)]>,
    /// By port.
    asked: Box<[ReversePath]>,
}

impl ReversePaths {
    pub(crate) fn new(networks: Vec<(Ingress, Network)>, asked: Vec<ReversePath>) -> Self {
        Self { networks: networks.into(), asked: asked.into() }
    }

    /// Returns whether a packet from `source` may have come in there. Searches the networks one after another: not for each
    /// packet, but for each new flow.
    #[inline]
    pub(crate) fn admits(&self, ingress: Ingress, source: IpAddr) -> bool {
        match self.asked.get(usize::from(ingress.port.0)) {
            None | Some(ReversePath::Off) => true,
            Some(asked) => self.is_reached(*asked, ingress, source),
        }
    }

    #[inline(never)]
    fn is_reached(&self, asked: ReversePath, ingress: Ingress, source: IpAddr) -> bool {
        // Each link has these addresses: of hosts that have no other, or ask all others for one.
        let is_of_link = match source {
            IpAddr::V4(source) => source.is_unspecified(),
            IpAddr::V6(source) => source.is_unicast_link_local(),
        };
        if is_of_link {
            return true;
        }
        let best = self.networks.iter().filter_map(|(_, network)| network.route_len(source)).max();
        let leads = |(at, network): &(Ingress, Network)| *at == ingress && network.route_len(source) == best;
        best.is_some() && (asked == ReversePath::Loose || self.networks.iter().any(leads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::Vlan;
    use crate::neighbors::network::{NetworkSetup, Route};
    use pinion_mma::id::PortIndex;
    use smoltcp::wire::EthernetAddress;

    const INSIDE: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };
    const OUTSIDE: Ingress = Ingress { port: PortIndex(1), vlan: Vlan::UNTAGGED };
    const VLAN: Ingress = Ingress { port: PortIndex(0), vlan: Vlan { id: 100, inner_id: 0 } };

    fn paths(asked: ReversePath, gateway: bool) -> ReversePaths {
        let network = |address: &str, routes: &[(&str, &str)]| {
            let route = |(to, via): &(&str, &str)| Route { to: to.parse().unwrap(), via: via.parse().unwrap() };
            let setup = NetworkSetup {
                addresses: vec![address.parse().unwrap()],
                routes: routes.iter().map(route).collect(),
                ..NetworkSetup::default()
            };
            Network::new(&setup, EthernetAddress([2, 0, 0, 0, 0, 1]))
        };
        let out: &[_] = if gateway { &[("0.0.0.0/0", "198.51.100.1")] } else { &[] };
        let networks = vec![
            (INSIDE, network("10.20.0.1/24", &[("10.20.0.0/16", "10.20.0.2")])),
            (OUTSIDE, network("198.51.100.2/24", out)),
            (VLAN, network("10.30.0.1/24", &[])),
        ];
        ReversePaths::new(networks, vec![asked; 2])
    }

    fn admitted(paths: &ReversePaths, source: &str) -> [bool; 3] {
        [INSIDE, OUTSIDE, VLAN].map(|ingress| paths.admits(ingress, source.parse().unwrap()))
    }

    #[test]
    fn strictly_a_source_comes_by_the_network_that_leads_to_it() {
        let paths = paths(ReversePath::Strict, true);
        assert_eq!(admitted(&paths, "10.20.0.9"), [true, false, false]);
        assert_eq!(admitted(&paths, "10.20.7.9"), [true, false, false]);
        assert_eq!(admitted(&paths, "10.30.0.9"), [false, false, true]);
        assert_eq!(admitted(&paths, "8.8.8.8"), [false, true, false]);
        assert_eq!([admitted(&paths, "fe80::1"), admitted(&paths, "0.0.0.0")], [[true; 3]; 2]);
    }

    #[test]
    fn loosely_it_may_come_by_any_network_as_long_as_one_leads_to_it() {
        let with_gateway = paths(ReversePath::Loose, true);
        assert_eq!([admitted(&with_gateway, "10.20.7.9"), admitted(&with_gateway, "8.8.8.8")], [[true; 3]; 2]);
        let without = paths(ReversePath::Loose, false);
        assert_eq!([admitted(&without, "10.20.7.9"), admitted(&without, "8.8.8.8")], [[true; 3], [false; 3]]);
    }

    #[test]
    fn nothing_is_asked_by_default() {
        assert_eq!(admitted(&paths(ReversePath::Off, false), "8.8.8.8"), [true; 3]);
        assert!(ReversePaths::default().admits(INSIDE, "8.8.8.8".parse().unwrap()));
    }
}
