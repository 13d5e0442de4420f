//! The verdict on a packet: [`Judge::verdict`]. It does not allocate, and its number of steps is bounded by the rules.

use core::net::IpAddr;

use pinion_sdk::Side;
use pinion_sdk::headers::Headers;

use crate::config::Config;
use crate::connections::{Connections, Known};
use crate::counters::RuleCounters;
use crate::datagrams::{Datagrams, Part};
use crate::rules::{Action, Direction, Network, Rule};

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is sent on, in this direction.
    Allow(Direction),
    /// The packet is dropped.
    Deny(Denial),
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// A rule denies it, or none matches.
    ByRules,
    /// It belongs to no known flow or datagram, and cannot begin one: TCP in mid-connection, an unsolicited answer, an
    /// ICMP error about something else.
    NotBegun,
    /// It may begin a flow, but the table has no room for another connection.
    NoRoom,
    /// Its source does not belong to the side that it comes from (RFC 3704).
    Spoofed,
    /// Its headers cannot be parsed.
    Unreadable,
}

impl Denial {
    /// Number of reasons.
    pub const COUNT: usize = 5;
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
    datagrams: Datagrams,
}

impl Judge {
    /// Makes a judge with empty tables.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let connections = Connections::new(&config);
        let decisions = RuleCounters::new(&config.rule);
        Self { inside: config.inside, rules: config.rule, decisions, connections, datagrams: Datagrams::new() }
    }

    /// Draws the tables' hash keys.
    pub fn start(&mut self) {
        self.connections.start();
        self.datagrams.start();
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

    /// Returns the verdict on a packet with these headers. `from` is the side that it came from, if the node knows it.
    pub fn verdict(&mut self, headers: &Headers, frame: &[u8], from: Option<From>, now_ns: u64) -> Verdict {
        let source = headers.addresses.source();
        let is_inside = self.inside.iter().any(|network| network.contains(source));
        let side = match from {
            // The source is believed if nothing else tells the side.
            None if is_inside => Side::Inside,
            None => Side::Outside,
            Some(From { side, is_reply }) => {
                let fits = is_inside == (side == Side::Inside) || is_reply || is_of_any_link(source);
                if !fits {
                    return Verdict::Deny(Denial::Spoofed);
                }
                side
            }
        };
        let direction = if side == Side::Inside { Direction::Out } else { Direction::In };
        match self.judge(headers, frame, direction, now_ns) {
            Ok(()) => Verdict::Allow(direction),
            Err(denial) => Verdict::Deny(denial),
        }
    }

    fn judge(&mut self, headers: &Headers, frame: &[u8], direction: Direction, now_ns: u64) -> Result<(), Denial> {
        match headers.fragment {
            None => self.judge_whole(headers, frame, direction, now_ns),
            Some(first) if first.is_first() => {
                self.judge_whole(headers, frame, direction, now_ns)?;
                goes_on(self.datagrams.begin(headers, first, frame, now_ns))
            }
            // A fragment without ports follows the first one.
            Some(later) => goes_on(self.datagrams.follow(headers, later, frame, now_ns)),
        }
    }

    fn judge_whole(
        &mut self,
        headers: &Headers,
        frame: &[u8],
        direction: Direction,
        now_ns: u64,
    ) -> Result<(), Denial> {
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

    /// Allows an ICMP error that quotes a packet of a known flow and is addressed to the sender of that packet.
    fn judge_error(&mut self, headers: &Headers, frame: &[u8], now_ns: u64) -> Result<(), Denial> {
        let quoted = headers.quoted(frame).ok_or(Denial::NotBegun)?;
        let flow = quoted.flow().ok_or(Denial::NotBegun)?;
        let is_senders = quoted.addresses.source() == headers.addresses.destination();
        let goes_on = is_senders && self.connections.goes_on(&quoted, flow, now_ns);
        goes_on.then_some(()).ok_or(Denial::NotBegun)
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

fn goes_on(part: Part) -> Result<(), Denial> {
    match part {
        Part::GoesOn => Ok(()),
        Part::Nothing => Err(Denial::NotBegun),
    }
}
