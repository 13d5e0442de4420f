//! Ends TLS (1.3, RFC 8446, and 1.2, RFC 5246), and serves files over HTTP/1.1 or passes the plain text on to another server or
//! to the chain's next stage.
//!
//! ```text
//!   client --TCP--> session.rs    records and handshakes, by rustls
//!                      |    \---- provider.rs       its cryptography
//!                      |    \---- certificates.rs   which certificate for which name
//!                      |    \---- keys.rs           signatures and tickets, which the node makes
//!                      |
//!                  plain text --> http-server (files)
//!                            \--> pipe.rs, upstream.rs --TCP or TLS--> another server, or the chain's next stage
//! ```
//!
//! The private key is never in this function: a client that breaks out of it has broken its own session.

#![forbid(unsafe_code)]

mod certificates;
pub mod config;
mod keys;
mod pipe;
pub mod provider;
mod session;
mod upstream;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use certificates::Certificates;
use config::Config;
use http_server::{HttpServer, PACE_NS, Terms, Transport, Verdict};
use keys::Tickets;
use pinion_sdk::keys::Key;
use pinion_sdk::metrics::Counter;
use pinion_sdk::net::{ConnectError, Server, Service, Settings, Sockets, Stream, StreamId};
use pinion_sdk::{InitError, clock};
use pipe::{End, Flow, Pipe};
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use session::{Handshake, Secure, Session};
use upstream::{Upstream, UpstreamEnd};

/// Tickets that a client of TLS 1.3 gets after its handshake, and how many it may ask for (RFC 9149). Each is for one connection.
const TICKETS: usize = 1;
/// See [`TICKETS`].
const TICKETS_MAX: usize = 4;
/// Bytes that are read from a connection at a time.
const PART_BYTES: usize = 4 << 10;
const NS_PER_S: u64 = 1_000_000_000;

/// The service.
pub struct TlsProxy {
    certificates: Arc<Certificates>,
    ticket_key: Key,
    protocols: Vec<Vec<u8>>,
    /// Made in each instance anew: it draws random numbers.
    config: Option<Arc<ServerConfig>>,
    back: Back,
    handshake_ns: u64,
    idle_ns: u64,
    part: Box<[u8]>,
    /// For [`Secure`].
    plain: Vec<u8>,
    counters: Counters,
}

/// What is behind TLS.
enum Back {
    Site(Box<HttpServer>),
    Upstream(Upstream),
}

struct Counters {
    full: Counter,
    resumed: Counter,
    failed: Counter,
}

/// A connection.
pub enum Connection {
    /// A client's.
    Client(Box<Client>),
    /// One to the upstream.
    Upstream(Box<UpstreamEnd>),
}

/// A client's connection.
pub struct Client {
    session: Session,
    state: State,
}

enum State {
    Handshake { deadline_ns: u64 },
    Site(Box<http_server::Connection>),
    Proxied(Rc<RefCell<Pipe>>),
}

/// Which end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Upstream,
}

impl Service for TlsProxy {
    type Connection = Connection;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let config = Config::parse(config)?;
        let defaults = Settings::default();
        let (certificates, ticket_key) = Certificates::read(&config.certificate)?;
        let idle_ns = u64::from(config.idle_timeout_s) * NS_PER_S;
        let (back, protocols) = match (&config.site, &config.upstream) {
            (Some(site), _) => {
                let (source, requests_max) = (site.source()?, site.requests_max);
                let terms = Terms { source, idle_ns, requests_max, send_bytes: defaults.send_bytes };
                (Back::Site(Box::new(HttpServer::new(terms))), vec![b"http/1.1".to_vec()])
            }
            (None, Some(upstream)) => {
                let protocols = upstream.protocols.iter().map(|name| name.clone().into_bytes()).collect();
                (Back::Upstream(Upstream::new(upstream)?), protocols)
            }
            (None, None) => unreachable!("a configuration has one of them"),
        };
        let service = Self {
            certificates: Arc::new(certificates),
            ticket_key,
            protocols,
            config: None,
            back,
            handshake_ns: u64::from(config.handshake_timeout_s) * NS_PER_S,
            idle_ns,
            part: vec![0; PART_BYTES].into(),
            plain: Vec::new(),
            counters: Counters {
                full: Counter::with_labels("tls_handshakes", "Handshakes that were completed.", &[("kind", "full")]),
                resumed: Counter::with_labels(
                    "tls_handshakes",
                    "Handshakes that were completed.",
                    &[("kind", "resumed")],
                ),
                failed: Counter::new("tls_handshakes_failed", "Handshakes that were not completed."),
            },
        };
        let settings = Settings {
            tcp_ports: vec![config.port],
            connections_max: config.connections_max,
            // So TCP does not end a connection before the server's own deadlines do.
            idle_timeout_ns: defaults.idle_timeout_ns.max(2 * idle_ns.max(service.handshake_ns)),
            send_timeout_ns: Some(PACE_NS),
            ..defaults
        };
        Ok((service, settings))
    }

    fn start(&mut self) {
        let provider = Arc::new(provider::provider());
        if let Back::Upstream(upstream) = &mut self.back {
            upstream.start(&provider);
        }
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("the provider has suites of all versions");
        let mut config = config.with_no_client_auth().with_cert_resolver(Arc::clone(&self.certificates) as _);
        config.ignore_client_order = true;
        config.alpn_protocols.clone_from(&self.protocols);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(Tickets(self.ticket_key));
        config.send_tls13_tickets = TICKETS;
        config.max_tls13_tickets = TICKETS_MAX;
        self.config = Some(Arc::new(config));
    }

    fn accept(&mut self, _stream: &mut Stream<'_>) -> Connection {
        let config = self.config.clone().expect("it was started");
        let session = Session::server(config).expect("the size of fragments is the default");
        let deadline_ns = clock::now_ns() + self.handshake_ns;
        Connection::Client(Box::new(Client { session, state: State::Handshake { deadline_ns } }))
    }

    fn connected(&mut self, id: StreamId, _stream: &mut Stream<'_>) -> Option<Connection> {
        let Back::Upstream(upstream) = &mut self.back else { return None };
        let end = upstream.connected(id, clock::now_ns() + self.handshake_ns)?;
        Some(Connection::Upstream(Box::new(end)))
    }

    fn connect_failed(&mut self, id: StreamId, error: ConnectError, mut sockets: Sockets<'_>) {
        pinion_sdk::warn!("the upstream cannot be reached: {error}");
        let Back::Upstream(upstream) = &mut self.back else { return };
        if let Some(pipe) = upstream.opened(id) {
            pipe.borrow_mut().is_broken = true;
            sockets.wake(pipe.borrow().client);
        }
    }

    fn ready(&mut self, connection: &mut Connection, stream: &mut Stream<'_>) {
        match connection {
            Connection::Client(client) => self.serve_client(client, stream),
            Connection::Upstream(end) => self.serve_upstream(end, stream),
        }
    }
}

impl TlsProxy {
    fn serve_client(&mut self, client: &mut Client, stream: &mut Stream<'_>) {
        if let State::Handshake { deadline_ns } = client.state {
            match client.session.shake_hands(stream) {
                Ok(Handshake::UnderWay) if clock::now_ns() < deadline_ns => return stream.wake_at(Some(deadline_ns)),
                Ok(Handshake::UnderWay) => {
                    self.counters.failed.increment();
                    client.session.end(stream);
                    return stream.close();
                }
                Ok(Handshake::Done) => match self.begin(&mut client.session, stream) {
                    Some(state) => client.state = state,
                    None => return stream.abort(),
                },
                Err(_) => {
                    self.counters.failed.increment();
                    return stream.close();
                }
            }
        }
        let Client { session, state } = client;
        match (state, &mut self.back) {
            (State::Site(connection), Back::Site(site)) => {
                match site.serve(connection, &mut Secure::new(session, stream, &mut self.plain)) {
                    Verdict::Wait { until_ns } => stream.wake_at(until_ns),
                    Verdict::Close => {
                        session.end(stream);
                        stream.close();
                    }
                    Verdict::Abort => stream.abort(),
                }
            }
            (State::Proxied(pipe), _) => {
                let pipe = Rc::clone(pipe);
                self.pass_on(Side::Client, &pipe, Some(session), stream);
            }
            _ => stream.abort(),
        }
    }

    /// Begins to serve a client after its handshake; `None` if that is not possible.
    fn begin(&mut self, session: &mut Session, stream: &mut Stream<'_>) -> Option<State> {
        let counters = &self.counters;
        if session.is_resumed() { &counters.resumed } else { &counters.full }.increment();
        match &mut self.back {
            Back::Site(site) => {
                let connection = site.connection(&mut Secure::new(session, stream, &mut self.plain));
                Some(State::Site(Box::new(connection)))
            }
            Back::Upstream(upstream) => match upstream.open(stream, clock::now_ns()) {
                Ok(pipe) => Some(State::Proxied(pipe)),
                Err(error) => {
                    pinion_sdk::warn!("the upstream cannot be reached: {error}");
                    None
                }
            },
        }
    }

    fn serve_upstream(&mut self, end: &mut UpstreamEnd, stream: &mut Stream<'_>) {
        let UpstreamEnd { session, is_shaking_hands, deadline_ns, pipe } = end;
        if *is_shaking_hands && let Some(session) = session {
            let why = match session.shake_hands(stream) {
                Ok(Handshake::Done) => None,
                Ok(Handshake::UnderWay) if clock::now_ns() < *deadline_ns && !pipe.borrow().is_broken => {
                    return stream.wake_at(Some(*deadline_ns));
                }
                Ok(Handshake::UnderWay) => Some("it is too slow, or the client has gone".into()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = why {
                pinion_sdk::warn!("no handshake with the upstream: {why}");
                return break_off(Side::Upstream, &mut pipe.borrow_mut(), stream);
            }
            *is_shaking_hands = false;
        }
        let pipe = Rc::clone(pipe);
        self.pass_on(Side::Upstream, &pipe, session.as_mut(), stream);
    }

    /// Moves plain text between one side of a pipe and what waits in it.
    fn pass_on(&mut self, side: Side, pipe: &RefCell<Pipe>, session: Option<&mut Session>, stream: &mut Stream<'_>) {
        let pipe = &mut *pipe.borrow_mut();
        let now_ns = clock::now_ns();
        if pipe.is_broken || pipe.moved_ns + self.idle_ns <= now_ns {
            return break_off(side, pipe, stream);
        }
        let (from, to) = match side {
            Side::Client => (&mut pipe.to_upstream, &mut pipe.to_client),
            Side::Upstream => (&mut pipe.to_client, &mut pipe.to_upstream),
        };
        let moved = match session {
            Some(session) => {
                let moved = shuttle(from, to, &mut Secure::new(session, stream, &mut self.plain), &mut self.part);
                if to.end() == Some(End::Proper) && !to.is_over {
                    session.end(stream);
                }
                moved
            }
            None => shuttle(from, to, stream, &mut self.part),
        };
        let Ok(has_moved) = moved else { return break_off(side, pipe, stream) };
        if let Some(end) = to.end().filter(|_| !to.is_over) {
            to.is_over = true;
            // In plain text only a reset says that something is missing.
            if end == End::Cut && side == Side::Upstream {
                return break_off(side, pipe, stream);
            }
            stream.shutdown();
        }
        let is_done = from.is_ended() && to.is_over;
        if has_moved {
            pipe.moved_ns = now_ns;
            stream.wake(pipe.other(side));
        }
        if is_done { stream.close() } else { stream.wake_at(Some(pipe.moved_ns + self.idle_ns)) }
    }
}

/// Moves bytes both ways between a transport and what waits. Returns whether any were moved.
fn shuttle(from: &mut Flow, to: &mut Flow, by: &mut impl Transport, part: &mut [u8]) -> io::Result<bool> {
    let has_written = to.drain(by)?;
    let has_read = from.fill(by, part)?;
    Ok(has_written || has_read)
}

/// Resets one side, and has the other do the same.
fn break_off(side: Side, pipe: &mut Pipe, stream: &mut Stream<'_>) {
    pipe.is_broken = true;
    stream.wake(pipe.other(side));
    stream.abort();
}

impl Pipe {
    /// Returns the connection at the other end.
    fn other(&self, side: Side) -> StreamId {
        match side {
            Side::Client => self.upstream,
            Side::Upstream => self.client,
        }
    }
}

// As many packets as a shared instance may get at once: see `http-server`.
pinion_sdk::export!(Server<TlsProxy>, slots = 512);
