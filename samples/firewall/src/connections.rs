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
//! opening, then of those that are closing, answered, or conversing. And no host has more than its share: it loses its
//! own in the same order.
//!
//! An RST may be forged, as its number has only to be near the right one. If its supposed sender goes on, the connection
//! was not reset, and is established again (RFC 7857, 2.2).
//!
//! Each state is a queue of the table, with a lifetime. Each packet restarts an entry's idle time, except in the
//! closing state.

use core::net::{IpAddr, Ipv6Addr};

use pinion_sdk::headers::{FlowKey, Headers, ICMP, ICMPV6, Segment, TCP, TcpFlags, is_near};
use pinion_sdk::lru::{Id, Linked, Links, List, Lru};

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

/// How far the responder of a TCP connection has answered while that is opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Responder {
    /// It has sent no SYN.
    Silent,
    /// It has sent a SYN that acknowledges nothing, as if both sides began at once.
    Seen,
    /// It has sent a SYN that acknowledges the originator's.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    state: State,
    /// Whether the originator is the source in the table's key.
    began_by_source: bool,
    /// Direction of its first packet.
    direction: Direction,
    responder: Responder,
    /// The ends that have sent a FIN: a bit for each [`End`].
    fins: u8,
    /// The sender of the RST that made it closing.
    reset_by: Option<End>,
    /// The next sequence numbers of originator and responder; the latter is unknown while the responder is silent.
    next: [u32; 2],
    /// In the list of its host and state.
    links: Links,
}

impl Linked for Connection {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Originator,
    Responder,
}

/// [`Connection::fins`], if both ends have sent a FIN.
const BOTH: u8 = 0b11;

/// The flags of segments that may change the state of an established connection.
const SYN_FIN_RST: u8 = 0x07;

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
    /// What the originators' hosts have.
    hosts: Lru<IpAddr, Entries>,
    per_host_max: u32,
    opening_per_host_max: u32,
}

/// The entries of a host, of which those that are not established are in lists.
#[derive(Clone, Copy, Debug, Default)]
struct Entries {
    count: u32,
    opening: List,
    /// Closing, answered and conversing ones.
    others: List,
}

impl Entries {
    fn list(&mut self, state: State) -> Option<&mut List> {
        match state {
            State::Opening => Some(&mut self.opening),
            State::Answered | State::Conversing | State::Closing => Some(&mut self.others),
            State::Established => None,
        }
    }
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
        let Some(id) = self.live(&key, now_ns) else { return unknown(headers) };
        let connection = self.table.value_mut(id);
        let by_originator = connection.began_by_source == (sender == Sender::Source);
        let end = if by_originator { End::Originator } else { End::Responder };
        let before = connection.state;
        if before == State::Closing {
            return self.follow_closing(id, headers, frame, end, now_ns);
        }
        connection.learn(headers, frame, end);
        let state = connection.state;
        self.table.touch(id, state as usize, now_ns);
        if state != before {
            self.relist(id, before);
        }
        Known::GoesOn
    }

    /// The same for a closing connection, which its packets do not prolong.
    #[cold]
    fn follow_closing(&mut self, id: Id, headers: &Headers, frame: &[u8], end: End, now_ns: u64) -> Known {
        if begins(headers) {
            return Known::MayBegin;
        }
        let connection = self.table.value_mut(id);
        connection.learn(headers, frame, end);
        let state = connection.state;
        if state != State::Closing {
            self.table.touch(id, state as usize, now_ns);
            self.relist(id, State::Closing);
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
        // A closing entry gives way to a new flow of the same addresses and ports.
        let closing = self.table.find(&key);
        let is_own = closing.is_some_and(|id| self.beginner(id) == host);
        self.make_room_of(host, u32::from(is_own))?;
        if let Some(id) = closing {
            self.remove(id);
        }
        if self.table.len() == self.table.capacity() {
            let oldest = |state: State| self.table.oldest(state as usize);
            let (evicted, _) = EVICTED.into_iter().find_map(oldest).ok_or(NoRoom::Full)?;
            self.remove(evicted);
        }
        let connection = Connection {
            state: State::Opening,
            began_by_source: sender == Sender::Source,
            direction,
            responder: Responder::Silent,
            fins: 0,
            reset_by: None,
            next: [Segment::of(headers, frame).map_or(0, Segment::end), 0],
            links: Links::default(),
        };
        let id = self.table.insert(key, connection, State::Opening as usize, now_ns).ok_or(NoRoom::Full)?;
        // There are at most as many hosts as entries, so there is room.
        let known = self.hosts.find(&host);
        if let Some(at) = known.or_else(|| self.hosts.insert(host, Entries::default(), 0, now_ns)) {
            let entries = self.hosts.value_mut(at);
            entries.count += 1;
            entries.opening.append(&mut self.table, id);
        }
        Ok(())
    }

    /// Makes room for a flow among those of its host, of which `given_way` do not count. If the host has its share,
    /// evicts its oldest one that is opening, or else one that is not established.
    fn make_room_of(&mut self, host: IpAddr, given_way: u32) -> Result<(), NoRoom> {
        let Some(at) = self.hosts.find(&host) else { return Ok(()) };
        let Entries { count, opening, others } = self.hosts.value(at);
        let is_full = count - given_way >= self.per_host_max;
        if is_full || opening.len() as u32 >= self.opening_per_host_max {
            let evicted = opening.oldest().or_else(|| others.oldest()).ok_or(NoRoom::HostFull)?;
            self.remove(evicted);
        }
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
        let host = self.beginner(id);
        let state = self.table.value(id).state;
        if let Some(at) = self.hosts.find(&host) {
            let entries = self.hosts.value_mut(at);
            entries.count -= 1;
            if let Some(list) = entries.list(state) {
                list.remove(&mut self.table, id);
            }
            if entries.count == 0 {
                self.hosts.remove(at);
            }
        }
        self.table.remove(id);
    }

    /// Moves an entry whose state has changed to another list of its host.
    #[cold]
    fn relist(&mut self, id: Id, before: State) {
        let Some(at) = self.hosts.find(&self.beginner(id)) else { return };
        let entries = self.hosts.value_mut(at);
        if let Some(list) = entries.list(before) {
            list.remove(&mut self.table, id);
        }
        if let Some(list) = entries.list(self.table.value(id).state) {
            list.append(&mut self.table, id);
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
    #[inline]
    fn learn(&mut self, headers: &Headers, frame: &[u8], sender: End) {
        if headers.protocol != TCP {
            self.state = match (self.state, sender) {
                (State::Opening, End::Responder) => State::Answered,
                (State::Answered, End::Originator) => State::Conversing,
                (state, _) => state,
            };
            return;
        }
        let Some(segment) = Segment::of(headers, frame) else { return };
        let TcpFlags(flags) = segment.flags;
        if self.state == State::Established && flags & SYN_FIN_RST == 0 {
            self.follow(segment, sender);
        } else {
            self.change(segment, sender);
        }
    }

    /// Learns from a segment that may change the state.
    #[inline(never)]
    fn change(&mut self, segment: Segment, sender: End) {
        let flags = segment.flags;
        let is_near = self.is_near(segment, sender);
        if flags.rst() {
            // A number far from its connection's is ignored: its receiver ignores it, too (RFC 5961). Until it is
            // established it stays with the entries that are evicted first.
            if is_near && self.state == State::Established {
                (self.state, self.reset_by) = (State::Closing, Some(sender));
            }
            return;
        }
        match self.state {
            State::Opening => self.open(segment, sender),
            State::Closing if self.reset_by == Some(sender) && is_near && !flags.syn() => {
                (self.state, self.reset_by) = (State::Established, None);
            }
            _ => {}
        }
        self.follow(segment, sender);
        if flags.fin() && self.is_near(segment, sender) {
            self.fins |= 1 << sender as u8;
        }
        if self.state == State::Established && self.fins == BOTH {
            self.state = State::Closing;
        }
    }

    /// Learns from a segment of the handshake, of which the last SYN of each end counts.
    fn open(&mut self, segment: Segment, sender: End) {
        let (flags, [originator, responder]) = (segment.flags, self.next);
        let acknowledges = |next| flags.ack() && is_near(segment.acknowledged, next, SEQUENCE_SLACK);
        match sender {
            End::Originator if flags.syn() => self.next[0] = segment.end(),
            End::Originator => {}
            End::Responder if flags.syn() && acknowledges(originator) => {
                (self.responder, self.next[1]) = (Responder::Answered, segment.end());
            }
            // Of two ends that begin at once; or forged, so it does not replace an answer.
            End::Responder if flags.syn() && self.responder != Responder::Answered => {
                (self.responder, self.next[1]) = (Responder::Seen, segment.end());
            }
            End::Responder => {}
        }
        if sender == End::Originator && self.responder != Responder::Silent && acknowledges(responder) {
            self.state = State::Established;
        }
    }

    /// Returns whether a segment's sequence number is near the sender's next one.
    fn is_near(&self, segment: Segment, sender: End) -> bool {
        let is_known = sender == End::Originator || self.responder != Responder::Silent;
        is_known && is_near(segment.sequence, self.next[sender as usize], SEQUENCE_SLACK)
    }

    #[inline]
    fn follow(&mut self, segment: Segment, sender: End) {
        let next = &mut self.next[sender as usize];
        if segment.end().wrapping_sub(*next) <= SEQUENCE_SLACK {
            *next = segment.end();
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

/// Returns what is known of a packet's flow if there is no entry for it.
#[cold]
fn unknown(headers: &Headers) -> Known {
    if begins(headers) { Known::MayBegin } else { Known::Nothing }
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
