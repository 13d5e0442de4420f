//! Caches values by key, with memcached's text protocol and meta commands.
//!
//! ```text
//!   TCP  --> session.rs    a connection: one line, one value, one answer   \
//!                                                                           protocol.rs   one command  -->  store.rs   the items
//!   UDP  --> datagram.rs   the answers to one datagram                     /
//!            pending.rs    answers that are longer than there were slots for
//! ```
//!
//! The protocol, the store, sessions and datagrams know neither transport nor clock.

#![forbid(unsafe_code)]

pub mod config;
pub mod datagram;
mod numbers;
mod pending;
pub mod protocol;
pub mod session;
pub mod store;

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use config::Config;
use datagram::Answers;
use pending::Pending;
use pinion_sdk::net::{self, Datagram, Server, Service, Sockets, Stream};
use pinion_sdk::{InitError, clock, random};
use session::{Session, Status};
use store::Store;

/// How long a client may take nothing of an answer, or next to nothing.
const SEND_NS_MAX: u64 = 60_000_000_000;
/// The longest that TCP lets a peer be silent, if idle connections are kept for ever: a year.
const FOR_EVER_NS: u64 = 365 * 24 * 3600 * 1_000_000_000;

/// The service.
pub struct Memcached {
    store: Store,
    settings: protocol::Settings,
    idle_ns: Option<u64>,
    /// The Unix time at which the node's clock was 0.
    clock_epoch_ns: u64,
    /// Each connection has a copy, so that they are counted.
    open: Rc<()>,
    pending: Pending,
}

/// The state of a connection.
pub struct Connection {
    session: Session,
    _open: Rc<()>,
    /// When it is closed unless something comes.
    deadline_ns: Option<u64>,
}

impl Service for Memcached {
    type Connection = Connection;

    fn init(config: &[u8]) -> Result<(Self, net::Settings), InitError> {
        let config = Config::parse(config)?;
        let idle_ns = (config.idle_timeout_s > 0).then(|| u64::from(config.idle_timeout_s) * 1_000_000_000);
        let settings = net::Settings {
            tcp_ports: vec![config.port],
            udp_ports: config.udp_port().into_iter().collect(),
            connections_max: config.connections_max,
            // So TCP does not end a connection before the server does.
            idle_timeout_ns: idle_ns.map_or(FOR_EVER_NS, |idle_ns| 2 * idle_ns),
            send_timeout_ns: Some(SEND_NS_MAX),
            ..net::Settings::default()
        };
        let store = Store::new(config.memory, config.item_size_max);
        Ok((
            Self {
                store,
                settings: config.settings(),
                idle_ns,
                clock_epoch_ns: 0,
                open: Rc::default(),
                pending: Pending::default(),
            },
            settings,
        ))
    }

    fn start(&mut self) {
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        self.clock_epoch_ns = unix_ns.saturating_sub(clock::now_ns());
        let mut secret = [0; 16];
        random::fill(&mut secret);
        self.store.start(self.now_ns(), &secret);
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> Connection {
        self.store.counters.total_connections += 1;
        let mut connection =
            Connection { session: Session::default(), _open: Rc::clone(&self.open), deadline_ns: None };
        self.wait(&mut connection, stream);
        connection
    }

    fn ready(&mut self, connection: &mut Connection, stream: &mut Stream<'_>) {
        self.store.set_now(self.now_ns());
        self.store.connections = Rc::strong_count(&self.open) as u32 - 1;
        let read = self.store.counters.bytes_read;
        let status = connection.session.ready(&mut self.store, &self.settings, stream);
        if status == Status::Closed {
            return stream.close();
        }
        if self.store.counters.bytes_read != read {
            return self.wait(connection, stream);
        }
        if connection.deadline_ns.is_some_and(|deadline_ns| deadline_ns <= clock::now_ns()) {
            self.store.counters.idle_kicks += 1;
            return stream.close();
        }
        stream.wake_at(connection.deadline_ns);
    }

    fn datagram(&mut self, datagram: Datagram<'_>, sockets: Sockets<'_>) {
        let Some(mut answers) = Answers::new(datagram.payload()) else { return };
        self.store.set_now(self.now_ns());
        let (store, settings, peer) = (&mut self.store, &self.settings, datagram.peer());
        // An answer in one datagram needs no slot of the function's own.
        if datagram.answer_with(|bytes| answers.next(store, settings, bytes)) {
            self.pending.go_on(peer, answers, store, settings, sockets.slots());
        }
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.pending.deadline_ns()
    }

    fn expire(&mut self, sockets: Sockets<'_>) {
        self.store.set_now(self.now_ns());
        self.pending.expire(&mut self.store, &self.settings, sockets.slots());
    }
}

impl Memcached {
    /// The Unix time, by a clock that does not go back.
    fn now_ns(&self) -> u64 {
        self.clock_epoch_ns + clock::now_ns()
    }

    fn wait(&self, connection: &mut Connection, stream: &mut Stream<'_>) {
        connection.deadline_ns = self.idle_ns.map(|idle_ns| clock::now_ns() + idle_ns);
        stream.wake_at(connection.deadline_ns);
    }
}

// As many packets as clients may send at once, each with a request on a connection of its own.
pinion_sdk::export!(Server<Memcached>, slots = 512);
