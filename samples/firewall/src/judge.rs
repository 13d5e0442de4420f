//! The verdict on a packet: [`Judge::direction`] and [`Judge::judge`]. It does not allocate, and its number of steps is
//! bounded by the rules.

use core::net::IpAddr;

use pinion_sdk::Side;
use pinion_sdk::headers::Headers;

use crate::config::Config;
use crate::connections::{Connections, Known};
use crate::counters::RuleCounters;
use crate::rules::{Action, Direction, Network, Rule};

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// A rule denies it, or none matches.
    ByRules,
    /// It belongs to no known flow, and cannot begin one: TCP in mid-connection, an unsolicited answer.
    NotBegun,
    /// It may begin a flow, but the table has no room for another connection.
    NoRoom,
    /// Its source does not belong to the side that it comes from (RFC 3704).
    Spoofed,
    /// Its headers cannot be parsed.
    Unreadable,
    /// It is an ICMP error that reports on no packet of a known flow, or of a kind that hosts ignore.
    BadError,
}

impl Denial {
    /// Number of reasons.
    pub const COUNT: usize = 6;
}

/// The side from which a packet came, as the node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From {
    /// The side.
    pub side: Side,
    /// Another stage of the chain has made the packet, so its source may be of any network.
    pub is_reply: bool,
}

/// The rules and the flow tables.
#[derive(Debug)]
pub struct Judge {
    inside: Vec<Network>,
    rules: Vec<Rule>,
    decisions: RuleCounters,
    connections: Connections,
}

impl Judge {
    /// Makes a judge with empty tables.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let connections = Connections::new(&config);
        let decisions = RuleCounters::new(&config.rule);
        Self { inside: config.inside, rules: config.rule, decisions, connections }
    }

    /// Draws the tables' hash keys.
    pub fn start(&mut self) {
        self.connections.start();
    }

    /// Removes flows that have been idle for too long.
    pub fn expire(&mut self, now_ns: u64) {
        self.connections.expire(now_ns);
    }

    /// Returns the connection table.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Returns the direction of a packet with these headers. `from` is the side that it came from, if the node knows it.
    ///
    /// # Errors
    ///
    /// Its source does not belong to that side.
    pub fn direction(&self, headers: &Headers, from: Option<From>) -> Result<Direction, Denial> {
        let source = headers.addresses.source();
        let is_inside = self.inside.iter().any(|network| network.contains(source));
        let side = match from {
            // The source is believed if nothing else tells the side.
            None if is_inside => Side::Inside,
            None => Side::Outside,
            Some(From { side, is_reply }) => {
                let fits = is_inside == (side == Side::Inside) || is_reply || is_of_any_link(source);
                if !fits {
                    return Err(Denial::Spoofed);
                }
                side
            }
        };
        Ok(if side == Side::Inside { Direction::Out } else { Direction::In })
    }

    /// Judges a packet that is whole, or the first fragment of its datagram.
    ///
    /// # Errors
    ///
    /// The packet is to be dropped.
    pub fn judge(&mut self, headers: &Headers, frame: &[u8], direction: Direction, now_ns: u64) -> Result<(), Denial> {
        if headers.icmp.is_some_and(|icmp| icmp.is_error) {
            return self.judge_error(headers, frame, now_ns);
        }
        let Some(flow) = headers.flow() else { return self.consult(headers, direction) };
        match self.connections.follow(headers, frame, flow, now_ns) {
            Known::GoesOn => Ok(()),
            Known::Nothing => Err(Denial::NotBegun),
            Known::MayBegin => {
                self.consult(headers, direction)?;
                self.connections.begin(headers, frame, flow, direction, now_ns).map_err(|_| Denial::NoRoom)
            }
        }
    }

    /// Allows an ICMP error that reports on a packet of a known flow, in either direction of that.
    fn judge_error(&mut self, headers: &Headers, frame: &[u8], now_ns: u64) -> Result<(), Denial> {
        let quoted = headers.reported(frame).ok().flatten().ok_or(Denial::BadError)?;
        let flow = quoted.flow().ok_or(Denial::BadError)?;
        let goes_on = self.connections.goes_on(&quoted, flow, now_ns);
        goes_on.then_some(()).ok_or(Denial::BadError)
    }

    /// Applies the rules.
    fn consult(&self, headers: &Headers, direction: Direction) -> Result<(), Denial> {
        let mut rules = self.rules.iter().enumerate();
        let decided = rules.find_map(|(at, rule)| Some((at, rule.decide(headers, direction)?)));
        match decided {
            Some((at, action)) => self.decisions.decided(at, action),
            None => self.decisions.none_fitted(),
        }
        match decided {
            Some((_, Action::Allow)) => Ok(()),
            Some((_, Action::Deny)) | None => Err(Denial::ByRules),
        }
    }
}

/// Returns whether hosts of any network may have the address: link-local addresses, and the unspecified one, which a
/// host uses while it asks for an address.
fn is_of_any_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    }
}
