//! The configuration of a stage, and the [`Routes`] and next hops that it becomes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use pinion_sdk::InitError;
use pinion_sdk::headers::{self, Pair};
use serde::Deserialize;

use crate::table::{Hop, Route, Table};

/// Outputs that a stage of a chain can have.
const OUTPUTS_MAX: u16 = 16;
/// Most next hops.
const HOPS_MAX: usize = 4096;
/// The least MTU of IPv6 (RFC 8200). Links of IPv4 alone may have less, but none of a node's ports should.
const MTU_MIN: u16 = 1280;
/// A route whose packets are dropped without an ICMP error.
const BLACKHOLE: &str = "blackhole";
/// A route whose packets are dropped with an ICMP error to the sender.
const UNREACHABLE: &str = "unreachable";

/// The hardware addresses of a frame for which the node finds the station: all zero.
pub const FOUND_BY_NODE: Pair<headers::Mac> = Pair { source: headers::Mac([0; 6]), destination: headers::Mac([0; 6]) };

/// The configuration, as deserialized from TOML.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The router's own hardware address; by default that of the port by which each packet leaves.
    pub mac: Option<Mac>,
    /// The source addresses of ICMP errors: at most one of each version.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Most errors that may be sent in a second.
    #[serde(default = "errors_per_second")]
    pub errors_per_second: u32,
    /// The next hops.
    #[serde(default)]
    pub next_hop: Vec<NextHop>,
    /// The routes.
    #[serde(default)]
    pub route: Vec<RouteTo>,
    /// Further routes: a prefix and a next hop's name in each line.
    #[serde(default)]
    pub routes: String,
}

fn errors_per_second() -> u32 {
    100
}

/// A next hop.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// The name by which routes refer to it.
    pub name: String,
    /// The stage's output that leads to it.
    #[serde(default)]
    pub output: u16,
    /// Its hardware address; by default the node finds the station to which each packet goes, by its port's routes.
    pub mac: Option<Mac>,
    /// The router's own hardware address on that link, if it is not the configuration's `mac`. Only beside `mac`.
    pub source_mac: Option<Mac>,
    /// The longest datagram that the way to it carries, in bytes; by default any.
    pub mtu: Option<u16>,
}

/// One route.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTo {
    /// The prefix of its destinations.
    pub prefix: IpNet,
    /// The next hop's name.
    pub via: String,
}

/// A hardware address of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac(pub headers::Mac);

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse::<headers::Mac>() {
            Ok(mac) if !mac.is_group() => Ok(Self(mac)),
            _ => Err(format!("{text:?} is no hardware address of a station: one looks like 02:00:00:00:00:01")),
        }
    }
}

/// What the router does with packets for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It sends them to a next hop.
    Forward {
        /// On this output.
        output: u16,
        /// The frame's hardware addresses.
        macs: Pair<headers::Mac>,
        /// The longest datagram that can go there, in bytes.
        mtu: u16,
    },
    /// It drops them.
    Blackhole,
    /// It drops them and sends their senders an ICMP error.
    Unreachable,
}

/// The router's tables and next hops.
#[derive(Clone, Debug)]
pub struct Routes {
    actions: Vec<Action>,
    v4: Table<u32>,
    v6: Table<u128>,
}

impl Routes {
    /// Makes the routes of a configuration and of a list that is compiled into the module. If both have a route for a
    /// prefix, the configuration's is used.
    ///
    /// # Errors
    ///
    /// A contradiction, or an undefined next hop.
    pub fn new(config: &Config, list: &str) -> Result<Self, InitError> {
        let (names, actions) = hops(config)?;
        let mut reader = Reader { names, v4: Vec::new(), v6: Vec::new() };
        reader.list("the module's routes", list)?;
        let mut own = Reader { names: reader.names.clone(), v4: Vec::new(), v6: Vec::new() };
        own.list("routes", &config.routes)?;
        for route in &config.route {
            own.add(route.prefix, &route.via).map_err(InitError::new)?;
        }
        own.refuse_twice()?;
        // Of two routes for a prefix, the table uses the later.
        reader.v4.append(&mut own.v4);
        reader.v6.append(&mut own.v6);
        Ok(Self { actions, v4: Table::new(reader.v4), v6: Table::new(reader.v6) })
    }

    /// Returns what to do with packets for this address.
    #[inline]
    #[must_use]
    pub fn for_v4(&self, address: u32) -> Action {
        self.action(self.v4.lookup(address))
    }

    /// Returns what to do with packets for this address.
    #[inline]
    #[must_use]
    pub fn for_v6(&self, address: u128) -> Action {
        self.action(self.v6.lookup(address))
    }

    fn action(&self, hop: Option<Hop>) -> Action {
        hop.and_then(|hop| self.actions.get(usize::from(hop))).copied().unwrap_or(Action::Unreachable)
    }
}

type Names = BTreeMap<String, Hop>;

fn hops(config: &Config) -> Result<(Names, Vec<Action>), InitError> {
    if config.next_hop.len() > HOPS_MAX {
        return Err(InitError::new(format!("{} next hops; at most {HOPS_MAX} are possible", config.next_hop.len())));
    }
    let mut names = Names::from([(BLACKHOLE.to_owned(), 0), (UNREACHABLE.to_owned(), 1)]);
    let mut actions = vec![Action::Blackhole, Action::Unreachable];
    for hop in &config.next_hop {
        let NextHop { name, output, .. } = hop;
        if *output >= OUTPUTS_MAX {
            return Err(InitError::new(format!("next hop {name:?}: output {output}; 0 to 15 are possible")));
        }
        if let Some(mtu) = hop.mtu.filter(|mtu| *mtu < MTU_MIN) {
            return Err(InitError::new(format!(
                "next hop {name:?}: mtu {mtu}; at least {MTU_MIN} is needed, as IPv6 does"
            )));
        }
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(InitError::new(format!("next hop {name:?}: a name is a word without spaces")));
        }
        if names.insert(name.clone(), actions.len() as Hop).is_some() {
            return Err(InitError::new(format!("next hop {name:?} is there already: give it another name")));
        }
        let macs = macs(hop, config.mac)?;
        actions.push(Action::Forward { output: *output, macs, mtu: hop.mtu.unwrap_or(u16::MAX) });
    }
    Ok((names, actions))
}

/// Returns the addresses of frames to a next hop: both are given, or neither.
fn macs(hop: &NextHop, own: Option<Mac>) -> Result<Pair<headers::Mac>, InitError> {
    let name = &hop.name;
    match (hop.mac, hop.source_mac) {
        (Some(to), from) => {
            let from = from.or(own).ok_or_else(|| {
                InitError::new(format!(
                    "next hop {name:?} has a mac: give the router's own, too, as source_mac or as mac"
                ))
            })?;
            Ok(Pair { source: from.0, destination: to.0 })
        }
        (None, None) => Ok(FOUND_BY_NODE),
        (None, Some(_)) => {
            Err(InitError::new(format!("next hop {name:?} has a source_mac and no mac: give both, or neither")))
        }
    }
}

/// Routes while they are read.
struct Reader {
    names: Names,
    v4: Vec<Route<u32>>,
    v6: Vec<Route<u128>>,
}

impl Reader {
    /// Reads lines of a prefix and a name; `#` starts a comment.
    fn list(&mut self, of: &str, list: &str) -> Result<(), InitError> {
        for (number, line) in list.lines().enumerate() {
            let refuse = |problem: String| InitError::new(format!("{of}, line {}: {problem}", number + 1));
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let Some(prefix) = words.next() else { continue };
            let parsed =
                prefix.parse().map_err(|_| refuse(format!("{prefix:?} is no prefix: one looks like 10.0.0.0/8")))?;
            match (words.next(), words.next()) {
                (Some(via), None) => self.add(parsed, via).map_err(refuse)?,
                _ => return Err(refuse(format!("after {prefix} comes the name of one next hop"))),
            }
        }
        Ok(())
    }

    fn add(&mut self, prefix: IpNet, via: &str) -> Result<(), String> {
        if prefix.trunc() != prefix {
            return Err(format!("{prefix} has bits behind its length: write {}", prefix.trunc()));
        }
        let hop = *self.names.get(via).ok_or_else(|| format!("{prefix} goes to {via:?}, which is no next hop"))?;
        let len = prefix.prefix_len();
        match prefix {
            IpNet::V4(net) => self.v4.push(Route { address: net.network().to_bits(), len, hop }),
            IpNet::V6(net) => self.v6.push(Route { address: net.network().to_bits(), len, hop }),
        }
        Ok(())
    }

    fn refuse_twice(&mut self) -> Result<(), InitError> {
        self.v4.sort_by_key(|route| (route.address, route.len));
        self.v6.sort_by_key(|route| (route.address, route.len));
        let twice = |prefix: String| InitError::new(format!("{prefix} has two routes: remove one"));
        if let Some([route, _]) = self.v4.array_windows().find(|[a, b]| (a.address, a.len) == (b.address, b.len)) {
            return Err(twice(format!("{}/{}", Ipv4Addr::from_bits(route.address), route.len)));
        }
        if let Some([route, _]) = self.v6.array_windows().find(|[a, b]| (a.address, a.len) == (b.address, b.len)) {
            return Err(twice(format!("{}/{}", Ipv6Addr::from_bits(route.address), route.len)));
        }
        Ok(())
    }
}
