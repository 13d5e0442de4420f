//! A rule's conditions in the form in which a flow is compared with them: masks and values of the key's words, and port
//! ranges.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::Match;
use crate::headers::{Field, FlowKey, ICMP_TYPE_THERE};

/// What a flow must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    /// A flow matches if its words, under these masks, equal the values.
    masks: [u64; 6],
    values: [u64; 6],
    /// First and last.
    source_ports: [u16; 2],
    destination_ports: [u16; 2],
}

impl Pattern {
    /// Compiles a rule's conditions. Returns `None` if no flow can match them.
    pub(super) fn new(matches: &Match) -> Option<Self> {
        let versions = [matches.source, matches.destination].map(|net| net.map(|net| matches!(net, IpNet::V6(_))));
        let mixed = matches!(versions, [Some(source), Some(destination)] if source != destination);
        if mixed || [&matches.source_ports, &matches.destination_ports].into_iter().flatten().any(|it| it.is_empty()) {
            return None;
        }
        let range = |ports: &Option<RangeInclusive<u16>>| {
            ports.as_ref().map_or([0, u16::MAX], |ports| [*ports.start(), *ports.end()])
        };
        let mut pattern = Self {
            masks: [0; 6],
            values: [0; 6],
            source_ports: range(&matches.source_ports),
            destination_ports: range(&matches.destination_ports),
        };
        pattern.demand(Field::VLAN, matches.vlan.id.into());
        pattern.demand(Field::INNER_VLAN, matches.vlan.inner_id.into());
        if let Some(port) = matches.port {
            pattern.demand(Field::INGRESS_PORT, port.0.into());
        }
        if let Some(protocol) = matches.protocol {
            pattern.demand(Field::PROTOCOL, protocol.into());
        }
        match matches.icmp_type {
            Some(icmp_type) => pattern.demand(Field::ICMP_TYPE, ICMP_TYPE_THERE | u64::from(icmp_type)),
            None => pattern.demand(Field::ERROR_WANTED, 0),
        }
        if !matches.destination.as_ref().is_some_and(names_group) {
            pattern.demand(Field::GROUP_WANTED, 0);
        }
        for (net, word) in [(&matches.source, 0), (&matches.destination, 2)] {
            if let Some(net) = net {
                pattern.demand_address(net, word);
            }
        }
        Some(pattern)
    }

    fn demand(&mut self, field: Field, value: u64) {
        self.masks[field.word] |= field.mask();
        self.values[field.word] |= field.with(value);
    }

    /// Requires that the address that begins with this word lies in the network.
    fn demand_address(&mut self, net: &IpNet, word: usize) {
        self.demand(Field::IP_VERSION, matches!(net, IpNet::V6(_)).into());
        let (network, netmask) = (bits(net.network()), bits(net.netmask()));
        for (word, shift) in [(word, 64), (word + 1, 0)] {
            self.masks[word] = (netmask >> shift) as u64;
            self.values[word] = (network >> shift) as u64;
        }
    }

    #[inline]
    pub(super) fn fits(&self, flow: &FlowKey) -> bool {
        let words = flow.words().iter().zip(self.masks.iter().zip(&self.values));
        let different = words.fold(0, |different, (word, (mask, value))| different | ((word & mask) ^ value));
        let lies_in = |port: u64, [first, last]: [u16; 2]| u64::from(first) <= port && port <= u64::from(last);
        different == 0
            && lies_in(Field::SOURCE_PORT.of(flow), self.source_ports)
            && lies_in(Field::DESTINATION_PORT.of(flow), self.destination_ports)
    }
}

/// Returns whether a destination in this network is named as a group's or a broadcast address: if all of the network is
/// multicast, or it is one address. (Which other addresses are for broadcast depends on the port.)
fn names_group(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.prefix_len() == 32 || net.prefix_len() >= 4 && net.network().is_multicast(),
        IpNet::V6(net) => net.prefix_len() >= 8 && net.network().is_multicast(),
    }
}

/// Returns an address as a number, in the same form as in a [`FlowKey`].
pub(super) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
