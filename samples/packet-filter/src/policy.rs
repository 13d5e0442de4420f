//! The policy: its text, and the rules made from it.
//!
//! ```text
//!   policy   = line...                 the first rule that matches a packet decides
//!   line     = rule | "default" ("allow" | "deny") | nothing      "#" starts a comment
//!   rule     = ("allow" | "deny") [protocol [ports]] ["from" net] ["from-ports" ports] ["to" net] ["established"]
//!   protocol = "tcp" | "udp" | "icmp" | number
//!   ports    = destination ports: "80", "8000-8099", or several with commas and no spaces between
//! ```
//!
//! The text is parsed once per chain, into a list of rules for each version of IP. The verdict on a packet is a walk
//! over a few words of memory, without allocation, bounded by [`RULES_MAX`].

use core::net::IpAddr;
use core::ops::BitAnd;
use core::str::{FromStr, SplitAsciiWhitespace};

use ipnet::IpNet;
use pinion_sdk::headers::{Addresses, Headers, ICMP, ICMPV6, Pair, TCP, UDP};
use thiserror::Error;

/// Most rules of a policy for one version of IP. A line makes a rule for each of its port ranges.
pub const RULES_MAX: usize = 4096;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is forwarded.
    Allow,
    /// The packet is dropped.
    Deny,
}

/// Why a policy's text is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A line is not a rule.
    #[error("policy, line {line}: {problem}")]
    Line {
        /// The line's number, from 1 on.
        line: usize,
        /// Why the line is invalid.
        problem: LineError,
    },
    /// There is no default.
    #[error("the policy has no default: end it with `default deny` or `default allow`")]
    NoDefault,
}

/// Why a line is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LineError {
    /// It does not start with `allow`, `deny` or `default`.
    #[error("{0:?} is not known: a line starts with `allow`, `deny` or `default`")]
    Verb(String),
    /// `default` is not followed by a verdict alone.
    #[error("{0:?} after `default`: `allow` or `deny` is to follow, and nothing else")]
    Default(String),
    /// There is a line after the default.
    #[error("this is never reached: `default` is the last line")]
    AfterDefault,
    /// An unknown word.
    #[error("{0:?} is not known: after the protocol come `from`, `from-ports`, `to` or `established`")]
    Word(String),
    /// A word without its argument.
    #[error("`{0}` is the last word: say of what")]
    Unfinished(&'static str),
    /// A clause that is given twice.
    #[error("`{0}` is said twice")]
    Twice(&'static str),
    /// Not an address or network.
    #[error("{0:?} is no network: it looks like 10.0.0.0/8, fd00::/8, or an address alone")]
    Network(String),
    /// Not a list of ports.
    #[error("{0:?} are no ports: they look like 80, 8000-8099 or 80,443")]
    Ports(String),
    /// Ports with a protocol that has none.
    #[error("only tcp and udp have ports")]
    PortsOfOther,
    /// `established` with a protocol other than TCP.
    #[error("only tcp has connections, so `established` goes with nothing else")]
    EstablishedOfOther,
    /// An IPv4 network and an IPv6 network in one rule.
    #[error("no packet goes from {0} to {1}")]
    MixedVersions(IpNet, IpNet),
    /// Too many rules.
    #[error("with this line there are more than {RULES_MAX} rules")]
    TooMany,
}

/// A parsed policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    v4: Vec<Rule<u32>>,
    v6: Vec<Rule<u128>>,
    default: Verdict,
}

/// A rule for one version of IP, whose addresses are numbers of type `A`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule<A> {
    source: Prefix<A>,
    destination: Prefix<A>,
    protocol: Option<u8>,
    transport: Option<TransportRule>,
    verdict: Verdict,
}

/// Compares ports and flags. A packet without known ports does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TransportRule {
    source_ports: Ports,
    destination_ports: Ports,
    established_only: bool,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    const ANY: Self = Self { first: 0, last: u16::MAX };

    #[inline]
    fn contain(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// A network: a mask, and the bits that an address must have under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix<A> {
    mask: A,
    bits: A,
}

impl<A: Copy + PartialEq + BitAnd<Output = A>> Prefix<A> {
    #[inline]
    fn contains(self, address: A) -> bool {
        address & self.mask == self.bits
    }
}

impl<A: Copy + PartialEq + BitAnd<Output = A>> Rule<A> {
    #[inline]
    fn fits(&self, addresses: Pair<A>, headers: &Headers) -> bool {
        self.protocol.is_none_or(|protocol| protocol == headers.protocol)
            && self.source.contains(addresses.source)
            && self.destination.contains(addresses.destination)
            && self.transport.as_ref().is_none_or(|wanted| {
                headers.ports.is_some_and(|found| {
                    wanted.destination_ports.contain(found.destination)
                        && wanted.source_ports.contain(found.source)
                        && (!wanted.established_only
                            || headers.tcp_flags.is_some_and(|flags| flags.ack() || flags.rst()))
                })
            })
    }
}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    ///
    /// The line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let (mut v4, mut v6, mut default) = (Vec::new(), Vec::new(), None);
        for (index, line) in text.lines().enumerate() {
            let at_line = |problem| PolicyError::Line { line: index + 1, problem };
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let Some(verb) = words.next() else { continue };
            if default.is_some() {
                return Err(at_line(LineError::AfterDefault));
            }
            if verb == "default" {
                default = Some(parse_default(words).map_err(at_line)?);
                continue;
            }
            let verdict = verdict(verb).ok_or_else(|| LineError::Verb(verb.to_owned()));
            let statement = verdict.and_then(|verdict| Statement::parse(verdict, words)).map_err(at_line)?;
            if v4.len().max(v6.len()) + statement.rule_count() > RULES_MAX {
                return Err(at_line(LineError::TooMany));
            }
            v4.extend(statement.rules_v4());
            v6.extend(statement.rules_v6());
        }
        Ok(Self { v4, v6, default: default.ok_or(PolicyError::NoDefault)? })
    }

    /// Returns the verdict on a packet: that of the first rule that matches it.
    #[inline]
    #[must_use]
    pub fn verdict(&self, headers: &Headers) -> Verdict {
        let decided = match headers.addresses {
            Addresses::V4(pair) => self.v4.iter().find(|rule| rule.fits(pair, headers)).map(|rule| rule.verdict),
            Addresses::V6(pair) => self.v6.iter().find(|rule| rule.fits(pair, headers)).map(|rule| rule.verdict),
        };
        decided.unwrap_or(self.default)
    }
}

fn verdict(word: &str) -> Option<Verdict> {
    match word {
        "allow" => Some(Verdict::Allow),
        "deny" => Some(Verdict::Deny),
        _ => None,
    }
}

fn parse_default(words: SplitAsciiWhitespace<'_>) -> Result<Verdict, LineError> {
    let words = words.collect::<Vec<_>>().join(" ");
    verdict(&words).ok_or(LineError::Default(words))
}

/// A protocol as named in the text.
#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    /// ICMP or ICMPv6, by the packet's IP version.
    Icmp,
    Number(u8),
}

impl Protocol {
    const TCP: Self = Self::Number(TCP);
    const UDP: Self = Self::Number(UDP);

    fn parse(word: &str) -> Option<Self> {
        match word {
            "tcp" => Some(Self::TCP),
            "udp" => Some(Self::UDP),
            "icmp" => Some(Self::Icmp),
            number => number.parse().ok().map(Self::Number),
        }
    }

    fn number(self, icmp: u8) -> u8 {
        match self {
            Self::Icmp => icmp,
            Self::Number(number) => number,
        }
    }
}

/// A line as written.
struct Statement {
    verdict: Verdict,
    protocol: Option<Protocol>,
    source: Option<IpNet>,
    destination: Option<IpNet>,
    source_ports: Option<Vec<Ports>>,
    destination_ports: Option<Vec<Ports>>,
    established: bool,
}

impl Statement {
    fn parse(verdict: Verdict, words: SplitAsciiWhitespace<'_>) -> Result<Self, LineError> {
        let mut words = words.peekable();
        let protocol = words.next_if(|word| Protocol::parse(word).is_some()).and_then(Protocol::parse);
        let (mut source, mut destination, mut source_ports, mut established) = (None, None, None, None);
        let is_ports = |word: &&str| protocol.is_some() && word.starts_with(|first: char| first.is_ascii_digit());
        let destination_ports = words.next_if(is_ports).map(parse_ports).transpose()?;
        while let Some(word) = words.next() {
            match word {
                "from" => once(&mut source, "from", parse_net(words.next().ok_or(LineError::Unfinished("from"))?)?)?,
                "to" => once(&mut destination, "to", parse_net(words.next().ok_or(LineError::Unfinished("to"))?)?)?,
                "from-ports" => {
                    let ports = words.next().ok_or(LineError::Unfinished("from-ports"))?;
                    once(&mut source_ports, "from-ports", parse_ports(ports)?)?;
                }
                "established" => once(&mut established, "established", ())?,
                other => return Err(LineError::Word(other.to_owned())),
            }
        }
        let established = established.is_some();
        let statement = Self { verdict, protocol, source, destination, source_ports, destination_ports, established };
        statement.check()?;
        Ok(statement)
    }

    fn check(&self) -> Result<(), LineError> {
        let names_ports = self.source_ports.is_some() || self.destination_ports.is_some();
        if names_ports && !matches!(self.protocol, Some(Protocol::TCP | Protocol::UDP)) {
            return Err(LineError::PortsOfOther);
        }
        if self.established && self.protocol != Some(Protocol::TCP) {
            return Err(LineError::EstablishedOfOther);
        }
        match (self.source, self.destination) {
            (Some(source @ IpNet::V4(_)), Some(destination @ IpNet::V6(_)))
            | (Some(source @ IpNet::V6(_)), Some(destination @ IpNet::V4(_))) => {
                Err(LineError::MixedVersions(source, destination))
            }
            _ => Ok(()),
        }
    }

    /// Returns how many rules it makes, at most.
    fn rule_count(&self) -> usize {
        let ranges = |ports: &Option<Vec<Ports>>| ports.as_ref().map_or(1, Vec::len);
        ranges(&self.source_ports) * ranges(&self.destination_ports)
    }

    fn rules_v4(&self) -> Vec<Rule<u32>> {
        let prefix = |net| match net {
            None => Some(Prefix { mask: 0, bits: 0 }),
            Some(IpNet::V4(net)) => Some(Prefix { mask: net.netmask().to_bits(), bits: net.network().to_bits() }),
            Some(IpNet::V6(_)) => None,
        };
        self.rules(prefix(self.source), prefix(self.destination), ICMP)
    }

    fn rules_v6(&self) -> Vec<Rule<u128>> {
        let prefix = |net| match net {
            None => Some(Prefix { mask: 0, bits: 0 }),
            Some(IpNet::V6(net)) => Some(Prefix { mask: net.netmask().to_bits(), bits: net.network().to_bits() }),
            Some(IpNet::V4(_)) => None,
        };
        self.rules(prefix(self.source), prefix(self.destination), ICMPV6)
    }

    /// Makes the rules for a version of IP, one for each pair of port ranges; none, if a network is of the other
    /// version.
    fn rules<A: Copy>(&self, source: Option<Prefix<A>>, destination: Option<Prefix<A>>, icmp: u8) -> Vec<Rule<A>> {
        let (Some(source), Some(destination)) = (source, destination) else { return Vec::new() };
        let protocol = self.protocol.map(|protocol| protocol.number(icmp));
        let rule = |transport| Rule { source, destination, protocol, transport, verdict: self.verdict };
        if self.source_ports.is_none() && self.destination_ports.is_none() && !self.established {
            return vec![rule(None)];
        }
        let any = [Ports::ANY];
        let from = self.source_ports.as_deref().unwrap_or(&any);
        let to = self.destination_ports.as_deref().unwrap_or(&any);
        let established_only = self.established;
        let pairs = from.iter().flat_map(|&from| to.iter().map(move |&to| (from, to)));
        pairs
            .map(|(source_ports, destination_ports)| TransportRule {
                source_ports,
                destination_ports,
                established_only,
            })
            .map(|transport| rule(Some(transport)))
            .collect()
    }
}

fn once<T>(place: &mut Option<T>, word: &'static str, value: T) -> Result<(), LineError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(LineError::Twice(word)),
    }
}

fn parse_net(word: &str) -> Result<IpNet, LineError> {
    let net = match word.split_once('/') {
        None => IpAddr::from_str(word).ok().map(IpNet::from),
        Some((address, len)) => parse_number(len).and_then(|len| IpNet::new(address.parse().ok()?, len).ok()),
    };
    net.ok_or_else(|| LineError::Network(word.to_owned()))
}

/// Parses a number of digits only: Rust's parser would accept a sign.
fn parse_number(text: &str) -> Option<u8> {
    if text.starts_with('+') { None } else { text.parse().ok() }
}

fn parse_ports(word: &str) -> Result<Vec<Ports>, LineError> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(Ports { first, last })
    };
    word.split(',').map(range).collect::<Option<_>>().ok_or_else(|| LineError::Ports(word.to_owned()))
}
