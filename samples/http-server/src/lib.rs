//! Serves files over HTTP/1.1 (RFC 9112), to any number of connections at once: GET and HEAD, with connections that are kept, and requests
//! that come before the one ahead of them is answered.
//!
//! ```text
//!   bytes --> request.rs   what is asked for  --> files.rs   what is there
//!                                                   |
//!             response.rs  head, and what is left of the body  --> as far as there is room
//! ```
//!
//! A connection holds a head of a request that is not whole, and the response that is being sent; never both more than once.

#![forbid(unsafe_code)]

pub mod config;
pub mod files;
pub mod request;
pub mod response;

use std::io::{ErrorKind, Read};

use config::Config;
use files::Files;
use pinion_sdk::tcp::{Server, Service, Settings, Stream};
use pinion_sdk::{InitError, clock};
use request::{HEAD_BYTES_MAX, Parsed, Request};
use response::{HEAD_ROOM, Response};

/// How long a client may take for a request's head.
const HEAD_NS_MAX: u64 = 10_000_000_000;
/// Bytes that are brought from a file at a time.
const PART_BYTES: usize = 16 << 10;

/// The service.
pub struct HttpServer {
    files: Box<dyn Files>,
    idle_ns: u64,
    part: Box<[u8]>,
}

/// What is known of a connection.
#[derive(Default)]
pub struct Connection {
    /// What has come and was not answered.
    received: Vec<u8>,
    response: Option<Response>,
    /// When it is closed unless a request is whole by then.
    deadline_ns: u64,
    /// Whether that is since a part of a request has come.
    has_begun: bool,
}

impl Service for HttpServer {
    type Connection = Connection;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let Config { source, port, connections_max, idle_ns } = Config::parse(config)?;
        let service = Self { files: files::of(source), idle_ns, part: vec![0; PART_BYTES].into() };
        let defaults = Settings::default();
        // A client that is waited for is not broken off before.
        let idle_timeout_ns = defaults.idle_timeout_ns.max(2 * idle_ns);
        Ok((service, Settings { port, connections_max, idle_timeout_ns, ..defaults }))
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
                        connection.has_begun = false;
                        connection.wait(stream, self.idle_ns);
                    }
                    Ok(response::Sent::Part) => return,
                    // What was promised cannot be kept, and the client is to notice.
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

    /// Takes what has come; whether there was something. Closes the connection if there is nothing more to be expected.
    fn read(&mut self, stream: &mut Stream<'_>) -> bool {
        let len = self.received.len();
        self.received.resize(HEAD_BYTES_MAX, 0);
        let read = stream.read(&mut self.received[len..]);
        self.received.truncate(len + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(count @ 1..) => {
                if !self.has_begun {
                    self.has_begun = true;
                    self.wait(stream, HEAD_NS_MAX);
                }
                count > 0
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if self.deadline_ns <= clock::now_ns() {
                    stream.close();
                } else {
                    stream.wake_at(Some(self.deadline_ns));
                }
                false
            }
            // All was answered that is whole.
            _ => {
                stream.close();
                false
            }
        }
    }
}

pinion_sdk::export!(Server<HttpServer>);
