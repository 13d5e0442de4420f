//! TCP connections: a mapping may have several at once, each with its own state and timeout (RFC 5382, REQ-5).
//!
//! ```text
//!   SYN from inside --> Opening --answered, and the answer acknowledged--> Established --RST, or FIN of both--> Closing
//!                                                                                            a SYN from inside <--'
//! ```
//!
//! Opening and Closing last for `tcp_transitory`, Established for `tcp_established`, each after the last packet from
//! inside. If the table is full, an opening connection is evicted first, then a closing one; an established one never
//! is.

use pinion_sdk::headers::{Segment, is_near};
use pinion_sdk::lru::{Id, Lru};

use crate::config::Config;
use crate::mappings::{Endpoint, From};

const SECOND_NS: u64 = 1_000_000_000;

/// Largest distance of a reset's sequence number from the sender's next one. A number further away is guessed: the
/// receiver ignores it (RFC 5961), and so does the translator.
const SEQUENCE_SLACK: u32 = 1 << 20;

/// The state of a connection, which is also its queue in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its handshake is not complete.
    Opening,
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

#[derive(Clone, Copy, Debug)]
struct Connection {
    mapping: Id,
    state: State,
    /// Whether the peer has acknowledged something.
    answered: bool,
    /// Whether a FIN was sent by the inside, and by the peer.
    fins: [bool; 2],
    /// Their next sequence numbers, as far as known.
    next: [Option<u32>; 2],
}

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

    /// Adds a connection that begins with this segment; returns false if there is no room.
    pub fn begin(&mut self, key: ConnectionKey, mapping: Id, segment: Segment, now_ns: u64) -> bool {
        let connection = Connection::beginning(mapping, segment);
        self.table.insert(key, connection, State::Opening as usize, now_ns).is_some()
    }

    /// Removes a connection.
    pub fn remove(&mut self, id: Id) {
        self.table.remove(id);
    }

    /// Updates a connection by one of its segments; returns whether it exists. A segment from outside prolongs it only
    /// if it changes the state.
    pub fn learn(&mut self, key: &ConnectionKey, from: From, segment: Segment, now_ns: u64) -> bool {
        let Some(id) = self.table.find(key) else { return false };
        let connection = self.table.value_mut(id);
        let before = connection.state;
        connection.learn(from, segment);
        let after = connection.state;
        if from == From::Inside || after != before {
            self.table.touch(id, after as usize, now_ns);
        }
        true
    }
}

impl Connection {
    fn beginning(mapping: Id, segment: Segment) -> Self {
        let next = [Some(segment.end()), None];
        Self { mapping, state: State::Opening, answered: false, fins: [false; 2], next }
    }

    fn learn(&mut self, from: From, segment: Segment) {
        let flags = segment.flags;
        let sender = from as usize;
        if from == From::Inside && self.state == State::Closing && flags.syn() && !flags.ack() && !flags.rst() {
            // A new connection on the same ports.
            *self = Self::beginning(self.mapping, segment);
            return;
        }
        if flags.rst() && self.next[sender].is_some_and(|next| !is_near(segment.sequence, next, SEQUENCE_SLACK)) {
            return;
        }
        match from {
            From::Outside => self.answered |= flags.ack() && !flags.rst(),
            From::Inside if self.state == State::Opening && self.answered && flags.ack() && !flags.rst() => {
                self.state = State::Established;
            }
            From::Inside => {}
        }
        self.next[sender] = match self.next[sender] {
            Some(next) if !(flags.syn() && self.state == State::Opening) => {
                let is_further = segment.end().wrapping_sub(next) <= SEQUENCE_SLACK;
                Some(if is_further { segment.end() } else { next })
            }
            _ => Some(segment.end()),
        };
        self.fins[sender] |= flags.fin();
        // Until it is established it stays with the connections that are evicted first.
        if self.state == State::Established && (flags.rst() || self.fins == [true; 2]) {
            self.state = State::Closing;
        }
    }
}
