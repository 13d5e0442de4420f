//! Responses: a head, written at once, and a body, sent as far as there is room.

use std::io::{self, ErrorKind, Read, Write};

use pinion_sdk::net::Stream;

use crate::files::Found;
use crate::request::{Method, Reason, Refusal, Request};

/// Room for any head, except for a path in it.
const FIELDS_ROOM: usize = 512;
/// Room for any head. A path and its query are shorter than a request's head, and encoding takes at most three bytes
/// for each of theirs.
pub const HEAD_ROOM: usize = FIELDS_ROOM + 3 * crate::request::HEAD_BYTES_MAX;

/// How much of a response was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All of it.
    All,
    /// As much as there was room for.
    Part,
}

/// A response under way.
pub struct Response {
    /// Empty once it was sent.
    head: Vec<u8>,
    body: Box<dyn Read>,
    /// Bytes of the body left to send.
    left: u64,
    is_last: bool,
}

impl Response {
    /// Makes the response for what a request's path names.
    #[must_use]
    pub fn of(request: &Request, found: Found) -> Self {
        match found {
            Found::File { len, bytes, content_type } => {
                let fields = format!("Content-Type: {content_type}\r\n");
                Self::new("200 OK", &fields, len, bytes, request)
            }
            Found::Directory => {
                // A location with one slash at its start is on this host: a path never begins with two slashes.
                let query = request.query.as_ref().map_or_else(String::new, |query| format!("?{}", visible(query)));
                let fields = format!("Location: {}/{query}\r\n", encode(&request.path));
                Self::saying("301 Moved Permanently", &fields, request)
            }
        }
    }

    /// Makes the response for a request whose file cannot be read.
    #[must_use]
    pub fn without(request: &Request, why: ErrorKind) -> Self {
        let status = match why {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput | ErrorKind::InvalidFilename => {
                "404 Not Found"
            }
            ErrorKind::PermissionDenied => "403 Forbidden",
            _ => "500 Internal Server Error",
        };
        Self::saying(status, "", request)
    }

    /// Makes the response for a refused request. It is the connection's last.
    #[must_use]
    pub fn refusing(refusal: Refusal) -> Self {
        let (status, fields) = match refusal.reason {
            Reason::Bad => ("400 Bad Request", ""),
            Reason::Method => ("405 Method Not Allowed", "Allow: GET, HEAD\r\n"),
            Reason::TargetTooLong => ("414 URI Too Long", ""),
            Reason::Expectation => ("417 Expectation Failed", ""),
            Reason::Scheme => ("421 Misdirected Request", ""),
            Reason::TooLong => ("431 Request Header Fields Too Large", ""),
            Reason::UnknownMethod | Reason::Coding => ("501 Not Implemented", ""),
            Reason::Version => ("505 HTTP Version Not Supported", ""),
        };
        let method = if refusal.is_head { Method::Head } else { Method::Get };
        let nothing = Request { method, path: String::new(), query: None, is_kept: false, is_old: false };
        Self::saying(status, fields, &nothing)
    }

    /// Makes a response whose body is its status.
    fn saying(status: &str, fields: &str, request: &Request) -> Self {
        let text = format!("{status}\n").into_bytes();
        let fields = format!("{fields}Content-Type: text/plain; charset=utf-8\r\n");
        Self::new(status, &fields, text.len() as u64, Box::new(io::Cursor::new(text)), request)
    }

    fn new(status: &str, fields: &str, len: u64, body: Box<dyn Read>, request: &Request) -> Self {
        let connection = match (request.is_kept, request.is_old) {
            (false, _) => "Connection: close\r\n",
            (true, true) => "Connection: keep-alive\r\n",
            (true, false) => "",
        };
        let head = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {len}\r\n{connection}\r\n").into_bytes();
        let left = if request.method == Method::Head { 0 } else { len };
        Self { head, body, left, is_last: !request.is_kept }
    }

    /// Returns whether the connection is to be closed after it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Sends as much as there is room for. The head needs [`HEAD_ROOM`].
    ///
    /// # Errors
    ///
    /// The connection was reset, or the body is shorter than its head announced.
    pub fn send(&mut self, stream: &mut Stream<'_>, part: &mut [u8]) -> io::Result<Sent> {
        if !self.head.is_empty() {
            stream.write_all(&self.head)?;
            self.head.clear();
        }
        while self.left > 0 {
            let most = (stream.room() as u64).min(self.left).min(part.len() as u64) as usize;
            if most == 0 {
                return Ok(Sent::Part);
            }
            let count = match self.body.read(&mut part[..most]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            stream.write_all(&part[..count])?;
            self.left -= count as u64;
        }
        Ok(Sent::All)
    }
}

/// Returns a query with all bytes escaped that may not occur in a field.
fn visible(query: &str) -> String {
    let mut encoded = String::with_capacity(query.len());
    for byte in query.bytes() {
        match byte {
            b'!'..=b'~' => encoded.push(byte.into()),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// Encodes a path for a field: bytes other than letters, digits and slashes become `%` and two digits.
fn encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => encoded.push(byte.into()),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}
