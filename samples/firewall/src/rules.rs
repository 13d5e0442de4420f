//! Rules: which packets may begin a flow.

use core::net::IpAddr;
use core::str::FromStr;

use ipnet::IpNet;
use pinion_sdk::headers::{Headers, TCP, UDP};
use serde::Deserialize;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From inside to any destination.
    Out,
    /// From elsewhere.
    In,
}

/// What a rule does with a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The packet may begin a flow.
    Allow,
    /// The packet is dropped.
    Deny,
}

/// A rule. A field that it does not set matches everything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Rule {
    action: Action,
    direction: Option<Direction>,
    protocol: Option<Protocol>,
    from: Option<Vec<Network>>,
    to: Option<Vec<Network>>,
    from_ports: Option<Vec<Ports>>,
    ports: Option<Vec<Ports>>,
}

/// A rule as it is written in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    action: Action,
    direction: Option<Direction>,
    protocol: Option<Protocol>,
    from: Option<Vec<Network>>,
    to: Option<Vec<Network>>,
    from_ports: Option<Vec<Ports>>,
    ports: Option<Vec<Ports>>,
}

impl TryFrom<Written> for Rule {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, &'static str> {
        let Written { action, direction, protocol, from, to, from_ports, ports } = written;
        let has_ports = matches!(protocol, Some(Protocol::Number(TCP | UDP)));
        if !has_ports && (from_ports.is_some() || ports.is_some()) {
            return Err("only tcp and udp have ports");
        }
        let is_empty = |networks: &Option<Vec<Network>>| networks.as_ref().is_some_and(Vec::is_empty);
        let has_no_ports = |ports: &Option<Vec<Ports>>| ports.as_ref().is_some_and(Vec::is_empty);
        if is_empty(&from) || is_empty(&to) || has_no_ports(&from_ports) || has_no_ports(&ports) {
            return Err("an empty list fits no packet: leave the key out, and all fit");
        }
        Ok(Self { action, direction, protocol, from, to, from_ports, ports })
    }
}

impl Rule {
    /// Returns what the rule does with packets that it matches.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// Returns the rule's action for a packet; none, if the rule does not match it.
    #[must_use]
    pub fn decide(&self, headers: &Headers, direction: Direction) -> Option<Action> {
        let fits_port = |wanted: &Option<Vec<Ports>>, port: Option<u16>| {
            wanted.as_ref().is_none_or(|ranges| ranges.iter().any(|range| port.is_some_and(|port| range.contain(port))))
        };
        let fits_address = |wanted: &Option<Vec<Network>>, address| {
            wanted.as_ref().is_none_or(|networks| networks.iter().any(|network| network.contains(address)))
        };
        let fits = self.direction.is_none_or(|wanted| wanted == direction)
            && self.protocol.is_none_or(|wanted| wanted.fits(headers))
            && fits_address(&self.from, headers.addresses.source())
            && fits_address(&self.to, headers.addresses.destination())
            && fits_port(&self.from_ports, headers.ports.map(|ports| ports.source))
            && fits_port(&self.ports, headers.ports.map(|ports| ports.destination));
        fits.then_some(self.action)
    }
}

/// A protocol above IP: `tcp`, `udp`, `icmp` or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
enum Protocol {
    /// ICMP or ICMPv6, by the packet's IP version.
    Icmp,
    Number(u8),
}

impl Protocol {
    fn fits(self, headers: &Headers) -> bool {
        match self {
            Self::Icmp => headers.protocol == headers.addresses.icmp(),
            Self::Number(number) => headers.protocol == number,
        }
    }
}

impl TryFrom<String> for Protocol {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "tcp" => Ok(Self::Number(TCP)),
            "udp" => Ok(Self::Number(UDP)),
            "icmp" => Ok(Self::Icmp),
            number => number.parse().map(Self::Number).map_err(|_| {
                format!("{text:?} is no protocol: it is \"tcp\", \"udp\", \"icmp\", or a number like \"47\"")
            }),
        }
    }
}

/// A network: addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Network {
    /// Of IPv4.
    V4 {
        /// The mask.
        mask: u32,
        /// The prefix under the mask.
        bits: u32,
    },
    /// Of IPv6.
    V6 {
        /// The mask.
        mask: u128,
        /// The prefix under the mask.
        bits: u128,
    },
}

impl Network {
    /// Returns whether an address is in the network.
    #[inline]
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::V4 { mask, bits }, IpAddr::V4(address)) => address.to_bits() & mask == *bits,
            (Self::V6 { mask, bits }, IpAddr::V6(address)) => address.to_bits() & mask == *bits,
            _ => false,
        }
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let network = IpNet::from_str(&text).or_else(|_| IpAddr::from_str(&text).map(IpNet::from));
        match network {
            Ok(IpNet::V4(net)) => Ok(Self::V4 { mask: net.netmask().to_bits(), bits: net.network().to_bits() }),
            Ok(IpNet::V6(net)) => Ok(Self::V6 { mask: net.netmask().to_bits(), bits: net.network().to_bits() }),
            Err(_) => Err(format!("{text:?} is no network: it looks like 10.0.0.0/8, fd00::/8, or an address alone")),
        }
    }
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The lowest port.
    pub first: u16,
    /// The highest port.
    pub last: u16,
}

impl Ports {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(Self { first, last })
    }

    fn contain(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}
