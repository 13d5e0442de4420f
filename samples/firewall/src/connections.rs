//! Connection tracking: flows that were allowed to begin, with their answers.
//!
//! ```text
//!   began --> Opening --TCP: the answer to a SYN, and its acknowledgement--> Established --RST, or FIN of both--> Closing
//!                `--other protocols: an answer--> Answered --more from the originator--> Conversing
//! ```
//!
//! An originator that acknowledges the answer to its SYN has proved that its address is its own: a sender with a forged
//! address never sees the number that it would have to acknowledge. So only established connections are safe from
//! eviction. If the table is full, the entry that has been idle for longest is evicted: first of those that are
//! opening, then of those that are closing, answered, or conversing. And no host has more than its share.
//!
//! Each state is a queue of the table, with a lifetime. Each packet restarts an entry's idle time, except in the
//! closing state.

use core::net::{IpAddr, Ipv6Addr};

use pinion_sdk::headers::{FlowKey, Headers, ICMP, ICMPV6, Segment, TCP, TcpFlags, is_near};
use pinion_sdk::lru::{Id, Lru};

use crate::config::{Config, Idle};
use crate::rules::Direction;

const NS_PER_S: u64 = 1_000_000_000;

/// Most entries of each state that are expired at once, so that no batch waits until all idle ones are removed.
const EXPIRED_MAX: usize = 64;

/// Largest distance of a segment's sequence number, or of its acknowledgement, from the sender's next sequence number.
/// A number further away is taken for a guess.
const SEQUENCE_SLACK: u32 = 1 << 20;

/// The state of a connection, which is also its queue in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// TCP with an incomplete handshake; other protocols without an answer.
    Opening,
    /// A protocol other than TCP, answered.
    Answered,
    /// The same, after more packets from the originator.
    Conversing,
    /// TCP: the originator has acknowledged the answer.
    Established,
    /// TCP that was established, and was closed or reset. Further packets do not prolong it.
    Closing,
}

const STATES: usize = 5;

/// The order in which entries are evicted.
const EVICTED: [State; 4] = [State::Opening, State::Closing, State::Answered, State::Conversing];

#[derive(Clone, Copy, Debug)]
struct Connection {
    state: State,
    /// Whether the originator is the source in the table's key.
    began_by_source: bool,
    /// Direction of its first packet.
    direction: Direction,
    /// Whether a FIN was sent by the originator, and by the responder.
    fins: [bool; 2],
    /// The next sequence numbers of originator and responder, once they have sent their SYNs.
    next: [Option<u32>; 2],
}

/// What the table knows of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The packet belongs to an existing flow.
    GoesOn,
    /// There is no such flow; the packet may begin one.
    MayBegin,
    /// There is no such flow, and the packet cannot begin one.
    Nothing,
}

/// Why a flow that the rules allow cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// Established connections take up the whole table.
    Full,
    /// The originator's host has as many flows, or as many opening ones, as a host may have.
    HostFull,
}

/// The connection table.
#[derive(Debug)]
pub struct Connections {
    table: Lru<FlowKey, Connection, STATES>,
    lifetimes_ns: [u64; STATES],
    /// Counts by the originator's host.
    hosts: Lru<IpAddr, Entries>,
    per_host_max: u32,
    opening_per_host_max: u32,
}

/// Number of a host's entries: all, and those that are opening.
#[derive(Clone, Copy, Debug, Default)]
struct Entries {
    all: u32,
    opening: u32,
}

/// The sender of a packet, as an end of its flow.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Source,
    Destination,
}

impl Connections {
    /// Makes empty tables.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let Idle { opening_s, tcp_s, other_s, closing_s } = config.idle;
        let lifetimes_s = [opening_s.get(), other_s.get(), other_s.get(), tcp_s, closing_s.get()];
        Self {
            table: Lru::with_capacity(config.connections_max),
            lifetimes_ns: lifetimes_s.map(|seconds| u64::from(seconds) * NS_PER_S),
            hosts: Lru::with_capacity(config.connections_max),
            per_host_max: config.connections_per_host_max(),
            opening_per_host_max: config.opening_per_host_max(),
        }
    }

    /// Draws the tables' hash keys.
    pub fn start(&mut self) {
        self.table.rekey();
        self.hosts.rekey();
    }

    /// Returns the number of flows in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns until when an entry is remembered if no further packet comes.
    #[must_use]
    pub fn needed_until_ns(&self) -> Option<u64> {
        let last = |state: usize| self.table.newest(state).map(|(_, used_ns)| used_ns + self.lifetimes_ns[state]);
        (0..STATES).filter_map(last).max()
    }

    /// Removes a bounded number of entries that have been idle for too long. Those that remain count as removed.
    pub fn expire(&mut self, now_ns: u64) {
        for state in 0..STATES {
            for _ in 0..EXPIRED_MAX {
                match self.table.oldest(state) {
                    Some((id, _)) if self.is_over(id, now_ns) => self.remove(id),
                    _ => break,
                }
            }
        }
    }

    /// Returns what is known of a packet's flow, and updates the flow's state by the packet.
    pub fn follow(&mut self, headers: &Headers, frame: &[u8], flow: FlowKey, now_ns: u64) -> Known {
        let (key, sender) = key_of(headers, flow);
        let begins = begins(headers);
        let Some(id) = self.live(&key, now_ns) else { return if begins { Known::MayBegin } else { Known::Nothing } };
        let connection = self.table.value_mut(id);
        let before = connection.state;
        if before == State::Closing {
            return if begins { Known::MayBegin } else { Known::GoesOn };
        }
        connection.learn(headers, frame, connection.began_by_source == (sender == Sender::Source));
        let state = connection.state;
        self.table.touch(id, state as usize, now_ns);
        if before == State::Opening && state != State::Opening {
            self.count(id, |entries| entries.opening -= 1);
        }
        Known::GoesOn
    }

    /// Returns whether the flow that an ICMP error quotes exists. The error does not restart the flow's idle time.
    pub fn goes_on(&mut self, headers: &Headers, flow: FlowKey, now_ns: u64) -> bool {
        self.live(&key_of(headers, flow).0, now_ns).is_some()
    }

    /// Adds the flow of a packet that was allowed to begin one.
    ///
    /// # Errors
    ///
    /// There is no room for it.
    pub fn begin(
        &mut self,
        headers: &Headers,
        frame: &[u8],
        flow: FlowKey,
        direction: Direction,
        now_ns: u64,
    ) -> Result<(), NoRoom> {
        let (key, sender) = key_of(headers, flow);
        let host = host_of(headers.addresses.source(), direction);
        let entries = self.hosts.find(&host).map(|id| *self.hosts.value(id)).unwrap_or_default();
        // A closing entry gives way to a new flow of the same addresses and ports.
        let closing = self.table.find(&key);
        let is_own = closing.is_some_and(|id| self.beginner(id) == host);
        if entries.all - u32::from(is_own) >= self.per_host_max || entries.opening >= self.opening_per_host_max {
            return Err(NoRoom::HostFull);
        }
        if let Some(id) = closing {
            self.remove(id);
        }
        if self.table.len() == self.table.capacity() {
            let oldest = |state: State| self.table.oldest(state as usize);
            let (evicted, _) = EVICTED.into_iter().find_map(oldest).ok_or(NoRoom::Full)?;
            self.remove(evicted);
        }
        let segment = Segment::of(headers, frame);
        let connection = Connection {
            state: State::Opening,
            began_by_source: sender == Sender::Source,
            direction,
            fins: [false; 2],
            next: [segment.map(|segment| segment.end()), None],
        };
        let id = self.table.insert(key, connection, State::Opening as usize, now_ns).ok_or(NoRoom::Full)?;
        // There are at most as many hosts as entries, so there is room.
        if self.hosts.find(&host).is_none() {
            self.hosts.insert(host, Entries::default(), 0, now_ns);
        }
        self.count(id, |entries| {
            entries.all += 1;
            entries.opening += 1;
        });
        Ok(())
    }

    /// Returns the entry of a key. If it has been idle for too long, removes it instead.
    fn live(&mut self, key: &FlowKey, now_ns: u64) -> Option<Id> {
        let id = self.table.find(key)?;
        if self.is_over(id, now_ns) {
            self.remove(id);
            return None;
        }
        Some(id)
    }

    fn is_over(&self, id: Id, now_ns: u64) -> bool {
        let lifetime_ns = self.lifetimes_ns[self.table.value(id).state as usize];
        now_ns.saturating_sub(self.table.used_ns(id)) >= lifetime_ns
    }

    fn remove(&mut self, id: Id) {
        let was_opening = self.table.value(id).state == State::Opening;
        self.count(id, |entries| {
            entries.all -= 1;
            entries.opening -= u32::from(was_opening);
        });
        let host = self.beginner(id);
        self.table.remove(id);
        if let Some(host) = self.hosts.find(&host).filter(|host| self.hosts.value(*host).all == 0) {
            self.hosts.remove(host);
        }
    }

    /// Changes the entry counts of the host that began this flow.
    fn count(&mut self, id: Id, change: impl FnOnce(&mut Entries)) {
        let host = self.beginner(id);
        if let Some(host) = self.hosts.find(&host) {
            change(self.hosts.value_mut(host));
        }
    }

    /// Returns the host that began a flow.
    fn beginner(&self, id: Id) -> IpAddr {
        let addresses = self.table.key(id).addresses;
        let Connection { began_by_source, direction, .. } = *self.table.value(id);
        host_of(if began_by_source { addresses.source() } else { addresses.destination() }, direction)
    }
}

impl Connection {
    fn learn(&mut self, headers: &Headers, frame: &[u8], by_beginner: bool) {
        if headers.protocol != TCP {
            self.state = match (self.state, by_beginner) {
                (State::Opening, false) => State::Answered,
                (State::Answered, true) => State::Conversing,
                (state, _) => state,
            };
            return;
        }
        if let Some(segment) = Segment::of(headers, frame) {
            self.learn_segment(segment, usize::from(!by_beginner));
        }
    }

    fn learn_segment(&mut self, segment: Segment, sender: usize) {
        let Segment { flags, sequence, acknowledged, .. } = segment;
        // A reset with a number far from its connection's is ignored: its receiver ignores it, too (RFC 5961).
        if flags.rst() && !self.next[sender].is_some_and(|next| is_near(sequence, next, SEQUENCE_SLACK)) {
            return;
        }
        if let (false, true, [_, Some(answered)], State::Opening) = (flags.rst(), flags.ack(), self.next, self.state)
            && sender == 0
            && is_near(acknowledged, answered, SEQUENCE_SLACK)
        {
            self.state = State::Established;
        }
        self.follow_sequence(segment, sender);
        self.fins[sender] |= flags.fin();
        // Until it is established it stays with the entries that are evicted first.
        if self.state == State::Established && (flags.rst() || self.fins == [true; 2]) {
            self.state = State::Closing;
        }
    }

    fn follow_sequence(&mut self, segment: Segment, sender: usize) {
        match self.next[sender] {
            // Until the handshake is complete, the last SYN of each side counts.
            _ if segment.flags.syn() && self.state == State::Opening => self.next[sender] = Some(segment.end()),
            Some(next) if segment.end().wrapping_sub(next) <= SEQUENCE_SLACK => self.next[sender] = Some(segment.end()),
            _ => {}
        }
    }
}

/// Returns the address, or the network, that counts as one host.
fn host_of(address: IpAddr, direction: Direction) -> IpAddr {
    match (address, direction) {
        // Inside, several hosts share such a network. Outside, one host may have any address of it (RFC 8981).
        (IpAddr::V6(address), Direction::In) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        _ => address,
    }
}

/// Returns the key of a packet's connection, and which of its ends the sender is. Two hosts that ping each other with
/// the same identifier have two connections, as requests and answers can be told apart.
fn key_of(headers: &Headers, flow: FlowKey) -> (FlowKey, Sender) {
    let key = match headers.icmp.and_then(|icmp| icmp.echo) {
        Some(echo) if echo.is_request => flow,
        Some(_) => flow.reversed(),
        None => flow.both_ways(),
    };
    (key, if key == flow { Sender::Source } else { Sender::Destination })
}

/// Returns whether a packet can begin a flow.
fn begins(headers: &Headers) -> bool {
    match headers.protocol {
        TCP => headers.tcp_flags.is_some_and(opens_connection),
        ICMP | ICMPV6 => headers.icmp.and_then(|icmp| icmp.echo).is_none_or(|echo| echo.is_request),
        _ => true,
    }
}

fn opens_connection(flags: TcpFlags) -> bool {
    flags.syn() && !flags.ack() && !flags.rst() && !flags.fin()
}
