//! TCP connections: a mapping may have several at once, each with its own state and timeout (RFC 5382, REQ-5).
//!
//! ```text
//!   SYN from inside --> Opening --answered, and the answer acknowledged--> Established --RST, or FIN of both--> Closing
//!                          ^                                                    ^--more from the RST's sender--'  |
//!                          '--------------------------a SYN from inside-------------------------------------------'
//! ```
//!
//! Only an acknowledgement with a number near the other side's next one counts: a sender with a forged address never
//! sees that number. An RST may still be forged, as its number has only to be near: if its supposed sender goes on, the
//! connection was not reset (RFC 7857, 2.2).
//!
//! Opening and Closing last for `tcp_transitory`, Established for `tcp_established`, each after the last packet from
//! inside. If the table is full, an opening connection is evicted first, then a closing one; an established one never
//! is.

use pinion_sdk::headers::{Segment, TcpFlags, is_near};
use pinion_sdk::lru::{Id, Linked, Links, List, Lru};

use crate::config::Config;
use crate::mappings::{Endpoint, From};

const SECOND_NS: u64 = 1_000_000_000;

/// Largest distance of a segment's sequence number, or of its acknowledgement, from the sender's next sequence number.
/// A number further away is taken for a guess.
const SEQUENCE_SLACK: u32 = 1 << 20;

/// The flags of segments that may change the state of an established connection.
const SYN_FIN_RST: u8 = 0x07;

/// The state of a connection, which is also its queue in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its handshake is not complete.
    Opening,
    /// Both sides have acknowledged each other.
    Established,
    /// It was established, and then reset or closed by both sides.
    Closing,
}

const STATES: usize = 3;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    /// The end inside.
    pub inside: Endpoint,
    /// The end outside.
    pub peer: Endpoint,
}

/// How far the peer has answered while the connection is opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// It has sent nothing.
    Silent,
    /// It has sent a SYN, or the inside has acknowledged one.
    Seen,
    /// It has acknowledged what the inside has sent.
    Answered,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    mapping: Id,
    state: State,
    peer: Peer,
    /// The sides that have sent a FIN: a bit for each [`From`].
    fins: u8,
    /// The sender of the RST that made it closing.
    reset_by: Option<From>,
    /// The next sequence numbers of the inside and of the peer; the latter is unknown while the peer is silent.
    next: [u32; 2],
    /// In the list of its host and state.
    links: Links,
}

impl Linked for Connection {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// A host's connections that may be evicted, the oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evictable {
    opening: List,
    closing: List,
}

impl Evictable {
    fn of(&mut self, state: State) -> Option<&mut List> {
        match state {
            State::Opening => Some(&mut self.opening),
            State::Established => None,
            State::Closing => Some(&mut self.closing),
        }
    }

    /// Returns the connection to evict for another one of the host.
    #[must_use]
    pub fn oldest(&self) -> Option<Id> {
        self.opening.oldest().or_else(|| self.closing.oldest())
    }
}

/// A connection that a segment belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The connection.
    pub id: Id,
    /// Its state before, if the segment has changed that. It has to be [listed](Connections::relist) anew then.
    pub before: Option<State>,
}

/// [`Connection::fins`], if both sides have sent a FIN.
const BOTH: u8 = 0b11;

/// The connection table.
#[derive(Debug)]
pub struct Connections {
    table: Lru<ConnectionKey, Connection, STATES>,
    timeouts_ns: [u64; STATES],
}

impl Connections {
    /// Makes an empty table.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let times = config.timeouts_s;
        let timeouts_s = [times.tcp_transitory, times.tcp_established, times.tcp_transitory];
        Self {
            table: Lru::with_capacity(config.connections_max()),
            timeouts_ns: timeouts_s.map(|seconds| seconds * SECOND_NS),
        }
    }

    /// Draws the hash key.
    pub fn rekey(&mut self) {
        self.table.rekey();
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns whether the table is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.table.len() == self.table.capacity()
    }

    /// Returns until when a connection is remembered if no further packet comes.
    #[must_use]
    pub fn needed_until_ns(&self) -> Option<u64> {
        let last = |state: usize| self.table.newest(state).map(|(_, used_ns)| used_ns + self.timeouts_ns[state]);
        (0..STATES).filter_map(last).max()
    }

    /// Returns a connection that has timed out.
    #[must_use]
    pub fn next_over(&self, now_ns: u64) -> Option<Id> {
        let oldest = |state: usize| {
            let (id, used_ns) = self.table.oldest(state)?;
            (now_ns >= used_ns.saturating_add(self.timeouts_ns[state])).then_some(id)
        };
        (0..STATES).find_map(oldest)
    }

    /// Returns the connection to evict for another one.
    #[must_use]
    pub fn weakest(&self) -> Option<Id> {
        [State::Opening, State::Closing].into_iter().find_map(|state| Some(self.table.oldest(state as usize)?.0))
    }

    /// Returns the mapping of a connection.
    #[must_use]
    pub fn mapping(&self, id: Id) -> Id {
        self.table.value(id).mapping
    }

    /// Adds a connection that begins with this segment, also to the list of its host; returns false if there is no room.
    pub fn begin(
        &mut self,
        key: ConnectionKey,
        mapping: Id,
        segment: Segment,
        evictable: &mut Evictable,
        now_ns: u64,
    ) -> bool {
        let connection = Connection::beginning(mapping, segment);
        let Some(id) = self.table.insert(key, connection, State::Opening as usize, now_ns) else { return false };
        evictable.opening.append(&mut self.table, id);
        true
    }

    /// Removes a connection, also from the list of its host.
    pub fn remove(&mut self, id: Id, evictable: &mut Evictable) {
        if let Some(list) = evictable.of(self.table.value(id).state) {
            list.remove(&mut self.table, id);
        }
        self.table.remove(id);
    }

    /// Updates a connection by one of its segments; `None` if there is none. A segment from outside prolongs it only if
    /// it changes the state.
    #[inline]
    pub fn learn(&mut self, key: &ConnectionKey, from: From, segment: Segment, now_ns: u64) -> Option<Known> {
        let id = self.table.find(key)?;
        let connection = self.table.value_mut(id);
        let before = connection.state;
        connection.learn(from, segment);
        let after = connection.state;
        if from == From::Inside || after != before {
            self.table.touch(id, after as usize, now_ns);
        }
        Some(Known { id, before: (after != before).then_some(before) })
    }

    /// Moves a connection whose state has changed to another list of its host.
    #[cold]
    pub fn relist(&mut self, id: Id, before: State, evictable: &mut Evictable) {
        if let Some(list) = evictable.of(before) {
            list.remove(&mut self.table, id);
        }
        if let Some(list) = evictable.of(self.table.value(id).state) {
            list.append(&mut self.table, id);
        }
    }
}

impl Connection {
    fn beginning(mapping: Id, segment: Segment) -> Self {
        // An answer to a SYN says what comes next from the peer.
        let peer = if segment.flags.ack() { Peer::Seen } else { Peer::Silent };
        let next = [segment.end(), segment.acknowledged];
        Self { mapping, state: State::Opening, peer, fins: 0, reset_by: None, next, links: Links::default() }
    }

    #[inline]
    fn learn(&mut self, from: From, segment: Segment) {
        let TcpFlags(flags) = segment.flags;
        if self.state == State::Established && flags & SYN_FIN_RST == 0 {
            self.follow(from, segment);
        } else {
            self.change(from, segment);
        }
    }

    /// Learns from a segment that may change the state.
    #[inline(never)]
    fn change(&mut self, from: From, segment: Segment) {
        let flags = segment.flags;
        let is_near = self.is_near(from, segment);
        if flags.rst() {
            // Until it is established it stays with the connections that are evicted first.
            if is_near && self.state == State::Established {
                (self.state, self.reset_by) = (State::Closing, Some(from));
            }
            return;
        }
        match self.state {
            // A new connection on the same ports, by the inside or by the peer, whose SYN this answers.
            State::Closing if from == From::Inside && flags.syn() => {
                *self = Self { links: self.links, ..Self::beginning(self.mapping, segment) };
                return;
            }
            State::Closing if self.reset_by == Some(from) && is_near && !flags.syn() => {
                (self.state, self.reset_by) = (State::Established, None);
            }
            State::Opening => self.open(from, segment),
            State::Established | State::Closing => {}
        }
        self.follow(from, segment);
        if flags.fin() && self.is_near(from, segment) {
            self.fins |= 1 << from as u8;
        }
        if self.state == State::Established && self.fins == BOTH {
            self.state = State::Closing;
        }
    }

    /// Learns from a segment of the handshake.
    fn open(&mut self, from: From, segment: Segment) {
        let (flags, [inside, peer]) = (segment.flags, self.next);
        let acknowledges = |next| flags.ack() && is_near(segment.acknowledged, next, SEQUENCE_SLACK);
        match from {
            From::Inside => {
                if self.peer == Peer::Answered && acknowledges(peer) {
                    self.state = State::Established;
                } else if flags.syn() {
                    self.next[0] = segment.end();
                }
            }
            From::Outside if acknowledges(inside) => {
                if flags.syn() || self.peer == Peer::Silent {
                    self.next[1] = segment.end();
                }
                self.peer = Peer::Answered;
            }
            // Of two sides that begin at once; or forged, so it does not replace a number that is proved.
            From::Outside if flags.syn() && self.peer != Peer::Answered => {
                (self.peer, self.next[1]) = (Peer::Seen, segment.end());
            }
            From::Outside => {}
        }
    }

    /// Returns whether a segment's sequence number is near the sender's next one.
    fn is_near(&self, from: From, segment: Segment) -> bool {
        let is_known = from == From::Inside || self.peer != Peer::Silent;
        is_known && is_near(segment.sequence, self.next[from as usize], SEQUENCE_SLACK)
    }

    fn follow(&mut self, from: From, segment: Segment) {
        let next = &mut self.next[from as usize];
        if segment.end().wrapping_sub(*next) <= SEQUENCE_SLACK {
            *next = segment.end();
        }
    }
}
