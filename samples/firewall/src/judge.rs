//! What becomes of a packet: [`Judge::verdict`]. No allocation, and a number of steps bounded by the rules.

use pinion_sdk::headers::{Fragment, Headers};

use crate::config::Config;
use crate::connections::{Connections, Known};
use crate::counters::RuleCounters;
use crate::rules::{Action, Direction, Network, Rule};

/// What is to become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent on, as it goes this way.
    Allow(Direction),
    /// It is dropped.
    Deny(Denial),
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// A rule says so, or none fits.
    ByRules,
    /// It belongs to no flow or datagram that goes on, and begins none: TCP in mid-connection, an answer without a question, an
    /// ICMP error about something else.
    NotBegun,
    /// It may begin, but there is no room for another connection.
    NoRoom,
    /// Its headers can't be read.
    Unreadable,
}

impl Denial {
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// The rules and what goes on.
#[derive(Debug)]
pub struct Judge {
    inside: Vec<Network>,
    rules: Vec<Rule>,
    decisions: RuleCounters,
    connections: Connections,
}

impl Judge {
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let connections = Connections::new(config.connections_max, config.idle);
        let decisions = RuleCounters::new(&config.rule);
        Self { inside: config.inside, rules: config.rule, decisions, connections }
    }

    /// Draws the tables' secrets.
    pub fn start(&mut self) {
        self.connections.start();
    }

    /// What becomes of a packet that has these headers.
    pub fn verdict(&mut self, headers: &Headers, frame: &[u8], now_ns: u64) -> Verdict {
        let source = headers.addresses.source();
        let is_inside = self.inside.iter().any(|network| network.contains(source));
        let direction = if is_inside { Direction::Out } else { Direction::In };
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
                self.connections.begin_datagram(headers, first, now_ns);
                Ok(())
            }
            Some(later) => self.judge_later(headers, later, now_ns),
        }
    }

    /// A fragment without ports goes where the first one went.
    fn judge_later(&mut self, headers: &Headers, fragment: Fragment, now_ns: u64) -> Result<(), Denial> {
        let goes_on = self.connections.datagram_goes_on(headers, fragment, now_ns);
        goes_on.then_some(()).ok_or(Denial::NotBegun)
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
        match self.connections.follow(headers, flow, now_ns) {
            Known::GoesOn => Ok(()),
            Known::Nothing => Err(Denial::NotBegun),
            Known::MayBegin => {
                self.consult(headers, direction)?;
                self.connections.begin(headers, flow, now_ns).map_err(|_| Denial::NoRoom)
            }
        }
    }

    /// An error passes if it quotes a packet of a flow that goes on, and goes to who has sent that.
    fn judge_error(&mut self, headers: &Headers, frame: &[u8], now_ns: u64) -> Result<(), Denial> {
        let quoted = headers.quoted(frame).ok_or(Denial::NotBegun)?;
        let flow = quoted.flow().ok_or(Denial::NotBegun)?;
        let is_senders = quoted.addresses.source() == headers.addresses.destination();
        let goes_on = is_senders && self.connections.goes_on(&quoted, flow, now_ns);
        goes_on.then_some(()).ok_or(Denial::NotBegun)
    }

    /// What the rules say.
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
