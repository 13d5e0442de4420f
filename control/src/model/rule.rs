//! Flow rules: which packets go to which chain, and which of them share an instance of it.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ChainName, PortName, RuleName, RuleProblem, TenantName, quoted};

/// Sends matching packets to a chain of the same tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The tenant that owns it.
    pub tenant: TenantName,
    /// Its name within the tenant.
    pub name: RuleName,
    /// The matching rule with the highest priority wins.
    pub priority: u32,
    /// The packets it applies to.
    #[serde(rename = "match")]
    pub matcher: Match,
    /// Which packets share a chain instance.
    pub policy: Policy,
    /// The chain that matching packets go to.
    pub chain: ChainName,
}

/// Conditions on a packet. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Match {
    /// The port by which it arrived.
    pub port: Option<PortName>,
    /// Its VLAN; if absent, untagged packets only.
    pub vlan: Option<VlanId>,
    /// Its inner VLAN; if absent, packets with one tag only.
    pub inner_vlan: Option<VlanId>,
    /// Its source address.
    pub source: Option<Prefix>,
    /// Its destination address. A group's or a broadcast address only matches if this names it.
    pub destination: Option<Prefix>,
    /// Its IP protocol.
    pub protocol: Option<Protocol>,
    /// Its ICMP or ICMPv6 message type. An error as such only matches if this names its type.
    pub icmp_type: Option<u8>,
    /// Its TCP or UDP source port.
    pub source_ports: Option<PortRange>,
    /// Its TCP or UDP destination port.
    pub destination_ports: Option<PortRange>,
}

impl Match {
    /// Checks that at least some packet could match.
    pub fn check(&self) -> Result<(), RuleProblem> {
        if let (Some(source), Some(destination)) = (self.source, self.destination)
            && source.is_ipv4() != destination.is_ipv4()
        {
            return Err(RuleProblem::MixedFamilies { from: source, to: destination });
        }
        let with_ports = self.source_ports.or(self.destination_ports);
        if with_ports.is_some() && !self.protocol.is_some_and(Protocol::has_ports) {
            return Err(RuleProblem::PortsWithoutProtocol(self.protocol));
        }
        if let (Some(protocol), Some(prefix)) = (self.protocol, self.source.or(self.destination))
            && protocol == (if prefix.is_ipv4() { Protocol::ICMPV6 } else { Protocol::ICMP })
        {
            return Err(RuleProblem::WrongIcmp { protocol, prefix });
        }
        if self.icmp_type.is_some() && !self.protocol.is_some_and(Protocol::has_icmp_types) {
            return Err(RuleProblem::IcmpTypeWithoutProtocol(self.protocol));
        }
        if let (None, Some(inner_vlan)) = (self.vlan, self.inner_vlan) {
            return Err(RuleProblem::InnerVlanWithoutVlan(inner_vlan));
        }
        Ok(())
    }

    /// Returns whether each packet that the other one matches is matched by this one, too, as far as that follows from each
    /// condition by itself.
    pub fn covers(&self, other: &Self) -> bool {
        let contains = |all: Option<Prefix>, some: Option<Prefix>| {
            all.is_none_or(|all| some.is_some_and(|some| all.net().contains(&some.net())))
        };
        let spans = |all: Option<PortRange>, some: Option<PortRange>| {
            all.is_none_or(|all| some.is_some_and(|some| all.first <= some.first && some.last <= all.last))
        };
        let is_for_groups = other.destination.is_some_and(Prefix::is_of_groups);
        (self.port.is_none() || self.port == other.port)
            && (self.vlan, self.inner_vlan) == (other.vlan, other.inner_vlan)
            && contains(self.source, other.source)
            && contains(self.destination, other.destination)
            && (!is_for_groups || self.destination.is_some_and(Prefix::names_groups))
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && (self.icmp_type == other.icmp_type || self.icmp_type.is_none() && !other.is_for_icmp_errors())
            && spans(self.source_ports, other.source_ports)
            && spans(self.destination_ports, other.destination_ports)
    }

    /// Returns whether it matches ICMP errors as such: only a match that names their type does.
    fn is_for_icmp_errors(&self) -> bool {
        match (self.protocol, self.icmp_type) {
            (Some(Protocol::ICMP), Some(icmp_type)) => matches!(icmp_type, 3 | 4 | 11 | 12),
            (Some(Protocol::ICMPV6), Some(icmp_type)) => matches!(icmp_type, 1..=4),
            _ => false,
        }
    }
}

impl fmt::Display for Match {
    /// Formats it as `destination 10.77.0.2/32, protocol icmp`, or `everything` for all untagged packets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions: [(&str, Option<&dyn fmt::Display>); 9] = [
            ("port", self.port.as_ref().map(|v| v as _)),
            ("vlan", self.vlan.as_ref().map(|v| v as _)),
            ("inner-vlan", self.inner_vlan.as_ref().map(|v| v as _)),
            ("source", self.source.as_ref().map(|v| v as _)),
            ("destination", self.destination.as_ref().map(|v| v as _)),
            ("protocol", self.protocol.as_ref().map(|v| v as _)),
            ("icmp-type", self.icmp_type.as_ref().map(|v| v as _)),
            ("source-ports", self.source_ports.as_ref().map(|v| v as _)),
            ("destination-ports", self.destination_ports.as_ref().map(|v| v as _)),
        ];
        let mut comma = "";
        for (name, value) in conditions {
            if let Some(value) = value {
                write!(f, "{comma}{name} {value}")?;
                comma = ", ";
            }
        }
        if comma.is_empty() { f.write_str("everything") } else { Ok(()) }
    }
}

/// Which packets share a chain instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// One instance for all matching packets.
    Shared,
    /// One instance for each source address in each VLAN.
    PerClient,
    /// One instance for each 5-tuple in each VLAN.
    PerFlow,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Shared => "shared",
            Policy::PerClient => "per-client",
            Policy::PerFlow => "per-flow",
        })
    }
}

/// Text that is not a valid condition of a match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMatch {
    /// Neither an address nor a prefix.
    #[error("{} is not an IP prefix: write one like 10.77.0.0/24, 10.77.0.2 or fd00::/64", quoted(.0))]
    Prefix(String),
    /// A prefix with bits set beyond its length.
    #[error("{given} has bits set beyond its prefix length: write {given_trunc} if you mean all of these", given_trunc = .given.trunc())]
    HostBits {
        /// The prefix as given.
        given: IpNet,
    },
    /// Neither a known name nor a number.
    #[error(
        "{} is not a protocol: use tcp, udp, icmp, icmpv6, sctp, gre, esp, ah, ipip, ipv6-in-ip or a number from 0 to 255",
        quoted(.0)
    )]
    Protocol(String),
    /// Not a VLAN id.
    #[error("{} is not a VLAN id: use a number from 1 to 4094", quoted(.0))]
    VlanId(String),
    /// Neither a port nor a range of ports.
    #[error("{} is not a port or a range of ports: write one like 80 or 8000-8999", quoted(.0))]
    PortRange(String),
    /// A range whose end lies before its start.
    #[error("the port range {first}-{last} is empty: write the lower port first")]
    EmptyPortRange {
        /// The lower end as given.
        first: u16,
        /// The upper end as given.
        last: u16,
    },
    /// A range of all ports, which is expressed by leaving the key out.
    #[error("0-65535 is every port: leave the key out")]
    EveryPort,
}

/// An IP prefix without host bits, so that equal prefixes compare equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(IpNet);

impl Prefix {
    /// Refuses a prefix with bits set beyond its length.
    pub fn new(net: IpNet) -> Result<Self, BadMatch> {
        if net == net.trunc() { Ok(Self(net)) } else { Err(BadMatch::HostBits { given: net }) }
    }

    /// Returns the prefix as a network.
    pub fn net(self) -> IpNet {
        self.0
    }

    /// Returns whether it is a prefix of IPv4 addresses.
    pub fn is_ipv4(self) -> bool {
        matches!(self.0, IpNet::V4(_))
    }

    /// Returns whether a match with this destination names groups, so that packets to them may match: it is within the
    /// range of multicast, or one address of IPv4.
    fn names_groups(self) -> bool {
        match self.0 {
            IpNet::V4(net) => net.prefix_len() == 32 || net.prefix_len() >= 4 && net.network().is_multicast(),
            IpNet::V6(net) => net.prefix_len() >= 8 && net.network().is_multicast(),
        }
    }

    /// Returns whether all its addresses are of groups.
    fn is_of_groups(self) -> bool {
        let is_broadcast = matches!(self.0, IpNet::V4(net) if net.prefix_len() == 32 && net.network().is_broadcast());
        is_broadcast || self.names_groups() && self.0.network().is_multicast()
    }
}

impl FromStr for Prefix {
    type Err = BadMatch;

    /// Parses a prefix, or an address as the prefix of that address alone.
    fn from_str(text: &str) -> Result<Self, BadMatch> {
        let net =
            text.parse::<IpNet>().ok().or_else(|| text.parse().ok().map(|address: std::net::IpAddr| address.into()));
        Self::new(net.ok_or_else(|| BadMatch::Prefix(text.to_owned()))?)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A visitor, so that a document's error points to this prefix and not to the list that contains it.
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Prefix;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prefix, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// The id of a VLAN, as in its tag: from 1 to 4094. (0 stands for no VLAN, and 4095 is reserved.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VlanId(u16);

impl VlanId {
    /// Refuses an id that no VLAN can have.
    pub fn new(id: u16) -> Result<Self, BadMatch> {
        if (1..=4094).contains(&id) { Ok(Self(id)) } else { Err(BadMatch::VlanId(id.to_string())) }
    }

    /// Returns the id as a number.
    pub fn number(self) -> u16 {
        self.0
    }
}

impl FromStr for VlanId {
    type Err = BadMatch;

    fn from_str(text: &str) -> Result<Self, BadMatch> {
        text.parse().map_err(|_| BadMatch::VlanId(text.to_owned())).and_then(Self::new)
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for VlanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.0)
    }
}

/// An IP protocol number: of what follows the IP header, in IPv6 behind hop-by-hop, routing, fragment and destination
/// headers. Common ones have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);

    const NAMES: [(&'static str, Protocol); 10] = [
        ("icmp", Self::ICMP),
        ("tcp", Self::TCP),
        ("udp", Self::UDP),
        ("icmpv6", Self::ICMPV6),
        ("ipip", Protocol(4)),
        ("ipv6-in-ip", Protocol(41)),
        ("gre", Protocol(47)),
        ("esp", Protocol(50)),
        ("ah", Protocol(51)),
        ("sctp", Protocol(132)),
    ];

    /// Returns whether its packets have source and destination ports that rules can match.
    pub fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP)
    }

    /// Returns whether its messages have types that rules can match.
    pub fn has_icmp_types(self) -> bool {
        matches!(self, Self::ICMP | Self::ICMPV6)
    }
}

impl FromStr for Protocol {
    type Err = BadMatch;

    fn from_str(text: &str) -> Result<Self, BadMatch> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, protocol)| *protocol);
        named.or_else(|| text.parse().ok().map(Protocol)).ok_or_else(|| BadMatch::Protocol(text.to_owned()))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(_, protocol)| protocol == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A range of TCP or UDP ports, both ends included. Never empty, and never all ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Creates the range from `first` to `last`.
    pub fn new(first: u16, last: u16) -> Result<Self, BadMatch> {
        match (first, last) {
            (0, u16::MAX) => Err(BadMatch::EveryPort),
            _ if first > last => Err(BadMatch::EmptyPortRange { first, last }),
            _ => Ok(Self { first, last }),
        }
    }

    /// Returns the lowest port.
    pub fn first(self) -> u16 {
        self.first
    }

    /// Returns the highest port.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Returns whether the port lies in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = BadMatch;

    fn from_str(text: &str) -> Result<Self, BadMatch> {
        let bad = |_| BadMatch::PortRange(text.to_owned());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Self::new(first.parse().map_err(bad)?, last.parse().map_err(bad)?)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

macro_rules! serialize_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
serialize_as_text!(Prefix, Protocol, PortRange);
