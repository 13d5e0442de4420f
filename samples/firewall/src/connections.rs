//! What goes on: flows that somebody was allowed to begin, with their answers, and datagrams whose first part has passed.
//!
//! ```text
//!   began --> Opening --an answer--> Tcp or Other --TCP: RST, or FIN of both--> Closing --> forgotten
//! ```
//!
//! Each state is a lifetime of the table. If there is no room, whoever was answered stays: the longest idle one that
//! was not, or that is being closed, makes room for another.

use pinion_sdk::headers::{Addresses, FlowKey, Fragment, Headers, ICMP, ICMPV6, TCP, TcpFlags};
use pinion_sdk::table::{Full, Table};

use crate::config::Idle;

/// Datagrams whose other parts may still come.
const DATAGRAMS_MAX: usize = 256;
/// How long they may take, as long as receivers wait for them.
const DATAGRAM_NS: u64 = 30 * NS_PER_S;

const NS_PER_S: u64 = 1_000_000_000;

/// How a connection is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has answered.
    Opening,
    /// TCP that was answered.
    Tcp,
    /// Another protocol, answered.
    Other,
    /// TCP that was closed or reset. What comes does not prolong it.
    Closing,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    state: State,
    /// Whether the one who began it is the source in the table's key.
    began_by_source: bool,
    /// Who has no more to say: the one who began, the other.
    fins: [bool; 2],
}

/// What is known of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The packet belongs to one that goes on.
    GoesOn,
    /// None goes on; the packet may begin one.
    MayBegin,
    /// None goes on, and the packet is none that begins one.
    Nothing,
}

/// The tables.
#[derive(Debug)]
pub struct Connections {
    table: Table<FlowKey, Connection>,
    datagrams: Table<DatagramKey, ()>,
}

/// What the parts of a datagram have in common; in IPv6 their protocol may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DatagramKey {
    addresses: Addresses,
    protocol: u8,
    id: u32,
}

/// Who sends a packet of a flow.
#[derive(Clone, Copy, PartialEq)]
enum Sender {
    Source,
    Destination,
}

impl Connections {
    /// Empty tables.
    #[must_use]
    pub fn new(connections_max: usize, idle: Idle) -> Self {
        let lifetimes_ns = [idle.opening_s, idle.tcp_s, idle.other_s, idle.closing_s]
            .map(|seconds| u64::from(seconds.get()) * NS_PER_S);
        Self { table: Table::new(connections_max, &lifetimes_ns), datagrams: Table::new(DATAGRAMS_MAX, &[DATAGRAM_NS]) }
    }

    /// Draws the tables' secrets.
    pub fn start(&mut self) {
        self.table.start();
        self.datagrams.start();
    }

    /// Whether a packet's flow goes on, which it has to be told of.
    pub fn follow(&mut self, headers: &Headers, flow: FlowKey, now_ns: u64) -> Known {
        let (key, sender) = key_of(headers, flow);
        let begins = begins(headers);
        let nothing = if begins { Known::MayBegin } else { Known::Nothing };
        let Some(connection) = self.table.get(&key, now_ns) else { return nothing };
        if connection.state == State::Closing {
            return if begins { Known::MayBegin } else { Known::GoesOn };
        }
        connection.learn(headers, connection.began_by_source == (sender == Sender::Source));
        let state = connection.state;
        self.table.touch(&key, state as usize, now_ns);
        Known::GoesOn
    }

    /// Whether a flow goes on, of which somebody else tells: an ICMP error is no sign of life.
    pub fn goes_on(&mut self, headers: &Headers, flow: FlowKey, now_ns: u64) -> bool {
        self.table.get(&key_of(headers, flow).0, now_ns).is_some()
    }

    /// Notes that the packet was allowed to begin a flow.
    ///
    /// # Errors
    ///
    /// There is no room: all others were answered.
    pub fn begin(&mut self, headers: &Headers, flow: FlowKey, now_ns: u64) -> Result<(), Full> {
        let (key, sender) = key_of(headers, flow);
        let began_by_source = sender == Sender::Source;
        let connection = Connection { state: State::Opening, began_by_source, fins: [false; 2] };
        let insert = |table: &mut Table<_, _>| table.insert(key, connection, State::Opening as usize, now_ns);
        insert(&mut self.table).or_else(|full| {
            let unanswered = self.table.evict(State::Opening as usize);
            unanswered.or_else(|| self.table.evict(State::Closing as usize)).ok_or(full)?;
            insert(&mut self.table)
        })
    }

    /// Notes that the first part of a datagram has passed.
    pub fn begin_datagram(&mut self, headers: &Headers, fragment: Fragment, now_ns: u64) {
        let key = datagram_key(headers, fragment);
        if self.datagrams.insert(key, (), 0, now_ns).is_err() {
            self.datagrams.evict(0);
            let _ = self.datagrams.insert(key, (), 0, now_ns);
        }
    }

    /// Whether the first part of a datagram has passed.
    pub fn datagram_goes_on(&mut self, headers: &Headers, fragment: Fragment, now_ns: u64) -> bool {
        self.datagrams.get(&datagram_key(headers, fragment), now_ns).is_some()
    }
}

impl Connection {
    fn learn(&mut self, headers: &Headers, by_beginner: bool) {
        if headers.protocol != TCP {
            if !by_beginner {
                self.state = State::Other;
            }
            return;
        }
        let flags = headers.tcp_flags.unwrap_or_default();
        if flags.fin() {
            self.fins[usize::from(!by_beginner)] = true;
        }
        if flags.rst() || self.fins == [true; 2] {
            self.state = State::Closing;
        } else if !by_beginner && flags.syn() && flags.ack() {
            self.state = State::Tcp;
        }
    }
}

/// The key of a packet's connection, and on which side of that its sender is. Those who ping each other with the same identifier have two
/// connections, as which packet is whose answer is to be seen.
fn key_of(headers: &Headers, flow: FlowKey) -> (FlowKey, Sender) {
    let key = match headers.icmp.and_then(|icmp| icmp.echo) {
        Some(echo) if echo.is_request => flow,
        Some(_) => flow.reversed(),
        None => flow.both_ways(),
    };
    (key, if key == flow { Sender::Source } else { Sender::Destination })
}

/// Whether a packet is one that can begin a flow.
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

fn datagram_key(headers: &Headers, fragment: Fragment) -> DatagramKey {
    let protocol = match headers.addresses {
        Addresses::V4(_) => headers.protocol,
        Addresses::V6(_) => 0,
    };
    DatagramKey { addresses: headers.addresses, protocol, id: fragment.id }
}
