//! Serves files over HTTP/1.1 (RFC 9112), to any number of connections at once: GET and HEAD, with persistent
//! connections and pipelined requests.
//!
//! ```text
//!   bytes --> request.rs   the request  --> files.rs   the file
//!                                                   |
//!             response.rs  head and body  --> as far as there is room
//! ```
//!
//! A connection holds at most one incomplete head of a request and one response that is being sent.

#![forbid(unsafe_code)]

pub mod config;
pub mod files;
pub mod request;
pub mod response;

use std::io::{ErrorKind, Read};

use config::Config;
use files::Files;
use pinion_sdk::net::{Server, Service, Settings, Stream};
use pinion_sdk::{InitError, clock};
use request::{HEAD_BYTES_MAX, Parsed, Request};
use response::{HEAD_ROOM, Response};

/// How long a client may take to send a request's head.
const HEAD_NS_MAX: u64 = 10_000_000_000;
/// How long a client may take nothing of a response, or next to nothing.
const SEND_NS_MAX: u64 = 60_000_000_000;
/// Bytes that are read from a file at a time.
const PART_BYTES: usize = 16 << 10;

/// The service.
pub struct HttpServer {
    files: Box<dyn Files>,
    idle_ns: u64,
    part: Box<[u8]>,
}

/// The state of a connection.
#[derive(Default)]
pub struct Connection {
    /// Bytes that were received and not answered.
    received: Vec<u8>,
    response: Option<Response>,
    /// When it is closed unless a request is complete by then.
    deadline_ns: u64,
    /// Whether the deadline counts from the first bytes of a request.
    has_begun: bool,
}

impl Service for HttpServer {
    type Connection = Connection;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let Config { source, port, connections_max, idle_ns } = Config::parse(config)?;
        let service = Self { files: files::of(source), idle_ns, part: vec![0; PART_BYTES].into() };
        let defaults = Settings::default();
        // So TCP does not end a connection before the server's own deadlines do.
        let idle_timeout_ns = defaults.idle_timeout_ns.max(2 * idle_ns);
        let send_timeout_ns = Some(SEND_NS_MAX);
        Ok((service, Settings { tcp_ports: vec![port], connections_max, idle_timeout_ns, send_timeout_ns, ..defaults }))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> Connection {
        let mut connection = Connection::default();
        connection.wait(stream, self.idle_ns);
        connection
    }

    fn ready(&mut self, connection: &mut Connection, stream: &mut Stream<'_>) {
        loop {
            if let Some(response) = &mut connection.response {
                match response.send(stream, &mut self.part) {
                    Ok(response::Sent::All) if response.is_last() => return stream.close(),
                    Ok(response::Sent::All) => {
                        connection.response = None;
                        // A part of the next request may already be here.
                        connection.has_begun = request::has_begun(&connection.received);
                        let limit_ns = if connection.has_begun { HEAD_NS_MAX } else { self.idle_ns };
                        connection.wait(stream, limit_ns);
                    }
                    Ok(response::Sent::Part) => return,
                    // The announced length cannot be kept, and the client must notice that.
                    Err(_) => return stream.abort(),
                }
            }
            if stream.room() < HEAD_ROOM {
                return;
            }
            connection.response = match request::parse(&connection.received) {
                Parsed::Request(request, len) => {
                    connection.received.drain(..len);
                    Some(self.answer(&request))
                }
                Parsed::Refused(refusal) => Some(Response::refusing(refusal)),
                Parsed::Partial => None,
            };
            if connection.response.is_some() {
                stream.wake_at(None);
            } else if !connection.read(stream) {
                return;
            }
        }
    }
}

impl HttpServer {
    fn answer(&self, request: &Request) -> Response {
        match self.files.find(&request.path) {
            Ok(found) => Response::of(request, found),
            Err(error) => Response::without(request, error.kind()),
        }
    }
}

impl Connection {
    fn wait(&mut self, stream: &mut Stream<'_>, duration_ns: u64) {
        self.deadline_ns = clock::now_ns() + duration_ns;
        stream.wake_at(Some(self.deadline_ns));
    }

    /// Reads what was received; returns whether there was something. Closes the connection if no more will come.
    fn read(&mut self, stream: &mut Stream<'_>) -> bool {
        let len = self.received.len();
        self.received.resize(HEAD_BYTES_MAX, 0);
        let read = stream.read(&mut self.received[len..]);
        self.received.truncate(len + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(1..) => {
                if !self.has_begun && request::has_begun(&self.received) {
                    self.has_begun = true;
                    self.wait(stream, HEAD_NS_MAX);
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if self.deadline_ns <= clock::now_ns() {
                    stream.close();
                } else {
                    stream.wake_at(Some(self.deadline_ns));
                }
                false
            }
            // All complete requests are answered.
            _ => {
                stream.close();
                false
            }
        }
    }
}

// As many packets as a shared instance may get at once: one request on each of hundreds of connections. A packet that
// finds no slot is dropped, and its client sends it again only after a fifth of a second or more.
pinion_sdk::export!(Server<HttpServer>, slots = 512);
