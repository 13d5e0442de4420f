//! Lookups of names by a DNS resolver: a stub resolver (RFC 1034, section 5.3.1) over UDP flows of its own.
//!
//! ```text
//!   resolve(name) --> cache? --> event
//!                       \
//!                        flow to a resolver --opened--> query --answer--> message.rs --> cache, event
//!                           ^                             |
//!                           \--- the next resolver <------/ no answer in time, failure, ICMP error
//! ```
//!
//! Each lookup has a flow of its own for each resolver that it asks, so that the node draws a port for it, and a random identification. An
//! answer counts only if both are right, it comes from the resolver, and it repeats the question (RFC 5452, section 9.1).

mod cache;
mod message;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use cache::Cache;
use message::Answer;
pub(super) use message::Name;

use super::outbound::{FlowEvent, FlowId, Via};
use super::own_flow::Kind;
use super::udp_flows::UdpFlows;
use super::{ConnectError, UdpPeer};
use crate::{Slots, random};

/// Most lookups at once.
pub(super) const LOOKUPS_MAX: u16 = 16;
/// How often a resolver is asked, the next one each time.
const TRIES_MAX: u8 = 4;
/// How long the first try waits for an answer; later ones wait longer.
const TRY_NS: u64 = 1_000_000_000;
/// Delay before a query is sent for which there was no slot.
const RETRY_NS: u64 = 50_000;

/// The version of IP of the addresses that are looked up: records of type A or AAAA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpVersion {
    /// IPv4: A.
    V4,
    /// IPv6: AAAA.
    V6,
}

/// The number of a lookup, which no other lookup of the instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupId(pub(crate) u64);

/// Why a name was not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolveError {
    /// It is no name: it has more than 253 bytes, an empty label or one of more than 63, or characters other than letters, digits, `-` and
    /// `_`.
    InvalidName,
    /// There is no such name (NXDOMAIN).
    NoSuchName,
    /// The name has no address of this version.
    NoAddress,
    /// The resolvers have failed, or refused to answer.
    ServerFailed,
    /// The answer is longer than a datagram of 1232 bytes. TCP is not tried.
    Truncated,
    /// No resolver has answered within 8 s.
    TimedOut,
    /// There is no flow to a resolver: the chain is not granted it, for example.
    NoFlow(ConnectError),
    /// [`Settings::resolvers`](super::Settings::resolvers) is empty.
    NoResolver,
    /// 16 lookups are under way already.
    NoRoom,
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidName => f.write_str("this is no name"),
            Self::NoSuchName => f.write_str("there is no such name"),
            Self::NoAddress => f.write_str("the name has no address of this version of IP"),
            Self::ServerFailed => f.write_str("the resolver has failed"),
            Self::Truncated => f.write_str("the answer is longer than a datagram"),
            Self::TimedOut => f.write_str("no resolver has answered in time"),
            Self::NoFlow(error) => write!(f, "there is no flow to a resolver: {error}"),
            Self::NoResolver => f.write_str("the settings name no resolver"),
            Self::NoRoom => write!(f, "{LOOKUPS_MAX} lookups are under way already"),
        }
    }
}

impl std::error::Error for ResolveError {}

impl From<ResolveError> for io::Error {
    fn from(error: ResolveError) -> Self {
        let kind = match error {
            ResolveError::InvalidName | ResolveError::NoResolver => ErrorKind::InvalidInput,
            ResolveError::NoSuchName | ResolveError::NoAddress => ErrorKind::NotFound,
            ResolveError::ServerFailed | ResolveError::Truncated => ErrorKind::InvalidData,
            ResolveError::TimedOut => ErrorKind::TimedOut,
            ResolveError::NoFlow(error) => io::Error::from(error).kind(),
            ResolveError::NoRoom => ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

/// A name's addresses, in the order of the answer; at least one, and at most 16.
pub(super) type Outcome = Result<Vec<IpAddr>, ResolveError>;

/// A lookup under way.
struct Lookup {
    id: LookupId,
    name: Name,
    version: IpVersion,
    via: Via,
    /// Tries that have begun.
    tries: u8,
    flow: Option<FlowId>,
    /// The resolver, once its flow is open.
    peer: Option<UdpPeer>,
    query: u16,
    /// Whether the query says how long an answer may be (RFC 6891), which old servers do not understand.
    is_extended: bool,
    is_sent: bool,
    /// When the try ends, or when to try to send again.
    due_ns: u64,
    /// Why the latest try has failed.
    failure: ResolveError,
}

/// The lookups of a function.
pub(super) struct Resolver {
    servers: Box<[SocketAddr]>,
    pub(super) flows: UdpFlows,
    lookups: Vec<Lookup>,
    cache: Cache,
    ended: VecDeque<(LookupId, Outcome)>,
    serial: u64,
}

impl Resolver {
    pub(super) fn new(servers: &[SocketAddr]) -> Self {
        let count = if servers.is_empty() { 0 } else { LOOKUPS_MAX };
        Self {
            servers: servers.into(),
            flows: UdpFlows::new(Kind::Lookup, count),
            lookups: Vec::with_capacity(count.into()),
            cache: Cache::default(),
            ended: VecDeque::new(),
            serial: 0,
        }
    }

    /// Begins to look up a name.
    pub(super) fn resolve(
        &mut self,
        name: &str,
        version: IpVersion,
        via: Via,
        now_ns: u64,
    ) -> Result<LookupId, ResolveError> {
        let name = Name::of(name).ok_or(ResolveError::InvalidName)?;
        if self.servers.is_empty() {
            return Err(ResolveError::NoResolver);
        }
        if self.lookups.len() + self.ended.len() >= LOOKUPS_MAX.into() {
            return Err(ResolveError::NoRoom);
        }
        self.serial += 1;
        let id = LookupId(self.serial);
        if let Some(addresses) = self.cache.find(&name, version, now_ns) {
            self.ended.push_back((id, Ok(addresses)));
            return Ok(id);
        }
        let mut lookup = Lookup {
            id,
            name,
            version,
            via,
            tries: 0,
            flow: None,
            peer: None,
            query: 0,
            is_extended: true,
            is_sent: false,
            due_ns: now_ns,
            failure: ResolveError::TimedOut,
        };
        lookup.next_try(&self.servers, &mut self.flows, now_ns);
        self.lookups.push(lookup);
        Ok(id)
    }

    /// Processes a datagram that answers a lookup's flow.
    pub(super) fn answer(&mut self, flow: FlowId, payload: &[u8], now_ns: u64) {
        let Some(at) = self.lookups.iter().position(|lookup| lookup.flow == Some(flow)) else { return };
        let lookup = &mut self.lookups[at];
        let Some(answer) = message::answer(payload, lookup.query, &lookup.name, lookup.version) else { return };
        let outcome = match answer {
            Answer::Addresses { addresses, ttl_s } => {
                self.cache.keep(&lookup.name, lookup.version, &addresses, ttl_s, now_ns);
                Ok(addresses)
            }
            Answer::NoSuchName => Err(ResolveError::NoSuchName),
            Answer::NoAddress => Err(ResolveError::NoAddress),
            Answer::Truncated => Err(ResolveError::Truncated),
            Answer::NotUnderstood if lookup.is_extended => {
                (lookup.is_extended, lookup.is_sent, lookup.due_ns) = (false, false, now_ns);
                return;
            }
            Answer::NotUnderstood | Answer::Failed => return self.fail_try(at, ResolveError::ServerFailed, now_ns),
        };
        self.end(at, outcome);
    }

    /// Sends queries, and goes on with the next try where one has failed.
    pub(super) fn turn(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.flows.expire(now_ns);
        while let Some((flow, event)) = self.flows.next_event() {
            let Some(at) = self.lookups.iter().position(|lookup| lookup.flow == Some(flow)) else { continue };
            match event {
                FlowEvent::Opened(peer) => (self.lookups[at].peer, self.lookups[at].due_ns) = (Some(peer), now_ns),
                FlowEvent::Lost(_) => self.fail_try(at, ResolveError::ServerFailed, now_ns),
                FlowEvent::Ended(error) => {
                    self.lookups[at].flow = None;
                    self.fail_try(at, ResolveError::NoFlow(error), now_ns);
                }
            }
        }
        for at in (0..self.lookups.len()).rev() {
            let lookup = &self.lookups[at];
            if lookup.due_ns <= now_ns && (lookup.is_sent || lookup.peer.is_none()) {
                self.fail_try(at, ResolveError::TimedOut, now_ns);
            }
            // Another one may be there now, which was looked at before.
            let lookup = self.lookups.get_mut(at).filter(|lookup| lookup.due_ns <= now_ns && !lookup.is_sent);
            if let Some(lookup) = lookup
                && let Some(peer) = lookup.peer
            {
                lookup.send(&peer, slots, now_ns);
            }
        }
    }

    /// Returns the next lookup that has ended.
    pub(super) fn next_event(&mut self) -> Option<(LookupId, Outcome)> {
        self.ended.pop_front()
    }

    /// Returns when to call [`Resolver::turn`].
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let due_ns = self.lookups.iter().map(|lookup| lookup.due_ns).min();
        let now = (!self.ended.is_empty()).then_some(0);
        due_ns.into_iter().chain(now).chain(self.flows.deadline_ns()).min()
    }

    /// Goes on with the next try, or ends the lookup after the last one. A resolver that fails, rather than being silent, is not asked again
    /// if it is the only one.
    fn fail_try(&mut self, at: usize, failure: ResolveError, now_ns: u64) {
        let lookup = &mut self.lookups[at];
        let is_silence = failure == ResolveError::TimedOut;
        // A failure says more than a silence.
        if !is_silence {
            lookup.failure = failure;
        }
        if lookup.tries < TRIES_MAX && (is_silence || self.servers.len() > 1) {
            lookup.next_try(&self.servers, &mut self.flows, now_ns);
        } else {
            let failure = lookup.failure;
            self.end(at, Err(failure));
        }
    }

    fn end(&mut self, at: usize, outcome: Outcome) {
        let mut lookup = self.lookups.swap_remove(at);
        lookup.leave(&mut self.flows);
        self.ended.push_back((lookup.id, outcome));
    }
}

impl Lookup {
    /// Begins the next try: asks the next resolver, by a new flow unless it is the same one.
    fn next_try(&mut self, servers: &[SocketAddr], flows: &mut UdpFlows, now_ns: u64) {
        self.tries += 1;
        self.is_sent = false;
        if servers.len() == 1 && self.peer.is_some() {
            self.due_ns = now_ns;
            return;
        }
        self.leave(flows);
        let mut query = [0; 2];
        random::fill(&mut query);
        self.query = u16::from_be_bytes(query);
        self.is_extended = true;
        self.due_ns = now_ns + self.wait_ns();
        match flows.open(servers[usize::from(self.tries - 1) % servers.len()], self.via, now_ns) {
            Ok(flow) => self.flow = Some(flow),
            Err(error) => self.failure = ResolveError::NoFlow(error),
        }
    }

    /// Returns how long this try lasts: 1, 1, 2 and 4 s.
    fn wait_ns(&self) -> u64 {
        TRY_NS << self.tries.saturating_sub(2)
    }

    /// Closes the flow.
    fn leave(&mut self, flows: &mut UdpFlows) {
        self.peer = None;
        if let Some(flow) = self.flow.take() {
            flows.close(flow);
        }
    }

    fn send(&mut self, peer: &UdpPeer, slots: Slots<'_>, now_ns: u64) {
        let write = |bytes: &mut [u8]| message::query(self.query, &self.name, self.version, self.is_extended, bytes);
        self.is_sent = peer.send_with(slots, write) == Ok(true);
        self.due_ns = now_ns + if self.is_sent { self.wait_ns() } else { RETRY_NS };
    }
}
