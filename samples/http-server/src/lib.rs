//! Serves files over HTTP/1.1 (RFC 9110 and 9112), to any number of connections at once: GET and HEAD, with conditions,
//! ranges, persistent connections and pipelined requests.
//!
//! ```text
//!   bytes --> request.rs   the request  --> files.rs       the file and its validators
//!                                              |
//!                                           conditions.rs  which part of it, if any
//!                                              |
//!                                           response.rs    head and body  --> as far as there is room
//! ```
//!
//! A connection holds at most one incomplete head of a request and one response that is being sent. Its client is bound
//! by the deadlines of `connection.rs` and `pace.rs`. What a connection is read from and written to is a [`Transport`]: TCP
//! itself here, and TLS in the sample `tls-proxy`.

#![forbid(unsafe_code)]

pub mod conditions;
pub mod config;
mod connection;
pub mod date;
pub mod files;
mod pace;
pub mod request;
pub mod response;
mod transport;

use std::io::ErrorKind;

use config::{Config, Source};
pub use connection::Connection;
use connection::Next;
use date::Calendar;
use files::Files;
pub use pace::PACE_NS;
#[cfg(feature = "module")]
use pinion_sdk::net::Server;
use pinion_sdk::net::{Service, Settings, Stream};
use pinion_sdk::{InitError, clock};
use request::content::Rest;
use request::{Method, Parsed, Request};
use response::{HEAD_ROOM, Response, Sent};
pub use transport::Transport;

/// How long requests are answered on one connection.
const LIFE_NS_MAX: u64 = 3_600_000_000_000;
/// Bytes that are read from a file at a time.
const PART_BYTES: usize = 16 << 10;
/// Most bytes that a client may have left to take when its connection is closed: TCP alone bounds the time for that.
const CLOSING_BYTES_MAX: u64 = 4 << 10;

/// How a server answers, and for how long.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Where files come from.
    pub source: Source,
    /// How long a connection is kept without a request under way.
    pub idle_ns: u64,
    /// Most requests that are answered on one connection.
    pub requests_max: u32,
    /// The size of a connection's send buffer ([`Settings::send_bytes`]).
    pub send_bytes: usize,
}

/// What to do with a connection after [`HttpServer::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Serve it again when something has happened to it, and at this time.
    Wait {
        /// In nanoseconds of [`clock::now_ns`].
        until_ns: Option<u64>,
    },
    /// Close it: all answers were sent.
    Close,
    /// Reset it: its client is too slow, or must notice that its answer is not complete.
    Abort,
}

/// The service.
pub struct HttpServer {
    files: Box<dyn Files>,
    calendar: Calendar,
    idle_ns: u64,
    requests_max: u32,
    send_bytes: u64,
    part: Box<[u8]>,
}

impl Service for HttpServer {
    type Connection = Connection;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let Config { source, port, connections_max, idle_ns, requests_max } = Config::parse(config)?;
        let defaults = Settings::default();
        let service = Self::new(Terms { source, idle_ns, requests_max, send_bytes: defaults.send_bytes });
        // So TCP does not end a connection before the server's own deadlines do.
        let idle_timeout_ns = defaults.idle_timeout_ns.max(2 * idle_ns);
        let send_timeout_ns = Some(PACE_NS);
        Ok((service, Settings { tcp_ports: vec![port], connections_max, idle_timeout_ns, send_timeout_ns, ..defaults }))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> Connection {
        self.connection(stream)
    }

    fn ready(&mut self, connection: &mut Connection, stream: &mut Stream<'_>) {
        match self.serve(connection, stream) {
            Verdict::Wait { until_ns } => stream.wake_at(until_ns),
            Verdict::Close => stream.close(),
            Verdict::Abort => stream.abort(),
        }
    }
}

impl HttpServer {
    /// Makes a server. Its files are read now, for their tags.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        let Terms { source, idle_ns, requests_max, send_bytes } = terms;
        Self {
            files: files::of(source),
            calendar: Calendar::default(),
            idle_ns,
            requests_max,
            send_bytes: send_bytes as u64,
            part: vec![0; PART_BYTES].into(),
        }
    }

    /// Makes the state of a connection that begins now.
    pub fn connection(&self, transport: &mut impl Transport) -> Connection {
        Connection::new(clock::now_ns(), self.idle_ns, self.unacknowledged(transport))
    }

    /// Answers what a client has asked, as far as there is room. Reads at most one head of a request more than it answers.
    pub fn serve(&mut self, connection: &mut Connection, transport: &mut impl Transport) -> Verdict {
        let now_ns = clock::now_ns();
        let before = self.unacknowledged(transport);
        let taken = connection.written.saturating_sub(before);
        if connection.pace.is_missed(taken, now_ns) {
            return Verdict::Abort;
        }
        let next = self.advance(connection, transport, now_ns);
        // If the connection is closed, the next read says so.
        let _ = transport.flush();
        let unacknowledged = self.unacknowledged(transport);
        connection.written += unacknowledged.saturating_sub(before);
        if next == Next::Abort {
            return Verdict::Abort;
        }
        if next == Next::End && unacknowledged <= CLOSING_BYTES_MAX {
            return Verdict::Close;
        }
        let ready = unacknowledged + connection.response.as_ref().map_or(0, Response::left);
        let by_pace_ns = connection.pace.until_ns(taken, ready, now_ns);
        let by_request_ns = match next {
            Next::WaitForRequest { until_ns } => Some(until_ns),
            _ => None,
        };
        Verdict::Wait { until_ns: by_pace_ns.into_iter().chain(by_request_ns).min() }
    }

    /// Returns the bytes in the send buffer, which the client has not acknowledged.
    fn unacknowledged(&self, transport: &mut impl Transport) -> u64 {
        self.send_bytes.saturating_sub(transport.buffer_room() as u64)
    }

    /// Answers requests as long as there are any, and room.
    fn advance(&mut self, connection: &mut Connection, stream: &mut impl Transport, now_ns: u64) -> Next {
        loop {
            if let Some(response) = &mut connection.response {
                match response.send(stream, &mut self.part) {
                    Ok(Sent::All) => {
                        connection.is_ending = response.is_last();
                        connection.response = None;
                        connection.wait(now_ns, self.idle_ns);
                    }
                    Ok(Sent::Part) => return Next::WaitForRoom,
                    // The announced length cannot be kept, and the client must notice that.
                    Err(_) => return Next::Abort,
                }
            }
            if connection.is_ending || !connection.skip_content(now_ns, self.idle_ns) {
                connection.is_ending = true;
                return Next::End;
            }
            if stream.room() < HEAD_ROOM {
                // A client that has no room for the next response has time for its request once it has.
                connection.wait(now_ns, self.idle_ns);
                return Next::WaitForRoom;
            }
            match connection.next_request() {
                Parsed::Request(request, _) => connection.response = Some(self.answer(connection, request, now_ns)),
                Parsed::Refused(refusal) => {
                    connection.response = Some(Response::refusing(refusal, self.calendar.today(now_ns)));
                }
                Parsed::Partial => {
                    if let Some(next) = connection.read(stream, &mut self.part, now_ns) {
                        connection.is_ending = next == Next::End;
                        return next;
                    }
                }
            }
        }
    }

    fn answer(&mut self, connection: &mut Connection, mut request: Request, now_ns: u64) -> Response {
        connection.answered += 1;
        let is_last = connection.answered >= self.requests_max || now_ns - connection.opened_ns >= LIFE_NS_MAX;
        request.is_kept &= !is_last;
        connection.expect(Rest::of(request.content).filter(|_| request.is_kept));
        let found = match request.method {
            Method::Get | Method::Head => self.files.find(&request.path),
            Method::Post | Method::Other => Err(ErrorKind::Unsupported.into()),
        };
        Response::to(&request, found, self.calendar.today(now_ns))
    }
}

// As many packets as a shared instance may get at once: one request on each of hundreds of connections. A packet that
// finds no slot is dropped, and its client sends it again only after a fifth of a second or more.
#[cfg(feature = "module")]
pinion_sdk::export!(Server<HttpServer>, slots = 512);
