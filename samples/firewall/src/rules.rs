//! Rules: who may begin a flow.

use core::net::IpAddr;
use core::str::FromStr;

use ipnet::IpNet;
use pinion_sdk::headers::{Headers, TCP, UDP};
use serde::Deserialize;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From inside, wherever it goes.
    Out,
    /// From elsewhere.
    In,
}

/// What becomes of whoever a rule fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// He may begin.
    Allow,
    /// He may not.
    Deny,
}

/// A rule. What it does not say fits everything.
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

/// A rule as it is written.
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
        Ok(Self { action, direction, protocol, from, to, from_ports, ports })
    }
}

impl Rule {
    /// What becomes of whoever it fits.
    #[must_use]
    pub fn action(&self) -> Action {
        self.action
    }

    /// What this rule says of a packet, if it fits it.
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
    /// The one of the packet's version of IP.
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

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Network {
    /// Of IPv4.
    V4 {
        /// The bits that count.
        mask: u32,
        /// What they have to be.
        bits: u32,
    },
    /// Of IPv6.
    V6 {
        /// The bits that count.
        mask: u128,
        /// What they have to be.
        bits: u128,
    },
}

impl Network {
    /// Whether an address is one of these.
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
    /// The lowest.
    pub first: u16,
    /// The highest.
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
