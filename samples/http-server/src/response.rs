//! Responses: a head, written at once, and a body, sent as far as there is room.

use std::io::{self, ErrorKind, Read, Write};

use crate::conditions::{Share, Validators};
use crate::date::Date;
use crate::files::{About, Bytes, Found};
use crate::request::{Content, Method, Reason, Refusal, Request};
use crate::transport::Transport;

/// Room for any head and a status as its body, except for a path in it.
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
    /// Empty once it was sent. A short body is part of it.
    head: Vec<u8>,
    body: Bytes,
    /// Bytes of the body left to send.
    left: u64,
    is_last: bool,
}

impl Response {
    /// Makes the response to a request, for what its path names.
    #[must_use]
    pub fn to(request: &Request, found: io::Result<Found>, date: Option<&Date>) -> Self {
        match found {
            _ if matches!(request.method, Method::Post | Method::Other) => {
                let head = Head::new("405 Method Not Allowed", date).field("Allow", "GET, HEAD");
                head.saying("405 Method Not Allowed", request)
            }
            Ok(Found::File { about, bytes }) => Self::of_file(request, &about, bytes, date),
            Ok(Found::Directory) => {
                // The location is on this host: a path never begins with two slashes.
                let query = request.query.as_ref().map_or_else(String::new, |query| format!("?{}", visible(query)));
                let location = format!("{}/{query}", encode(&request.path));
                let head = Head::new("301 Moved Permanently", date).field("Location", location);
                head.saying("301 Moved Permanently", request)
            }
            Err(error) => Self::without(request, error.kind(), date),
        }
    }

    fn of_file(request: &Request, about: &About, mut bytes: Bytes, date: Option<&Date>) -> Self {
        let now_s = date.map(|date| date.unix_s);
        // A date of the future is none that a client could compare (RFC 9110, section 8.8.2.1).
        let modified_s = about.modified_s.map(|modified_s| now_s.map_or(modified_s, |now_s| modified_s.min(now_s)));
        let About { len, content_type, tag, .. } = *about;
        let of = Validators { tag, modified_s, len, now_s };
        let share = request.conditions.as_ref().map_or(Share::Whole, |it| it.share(request.method, &of));
        match share {
            Share::Whole => {
                let head = Head::new("200 OK", date).field("Content-Type", content_type).validators(&of);
                head.field("Accept-Ranges", "bytes").with(bytes, len, request)
            }
            Share::Part { first, last } => match bytes.go_to(first) {
                Ok(()) => {
                    let head = Head::new("206 Partial Content", date).field("Content-Type", content_type);
                    let head = head.field("Content-Range", format!("bytes {first}-{last}/{len}")).validators(&of);
                    head.with(bytes, last - first + 1, request)
                }
                Err(error) => Self::without(request, error.kind(), date),
            },
            Share::NotModified => Head::new("304 Not Modified", date).validators(&of).alone(request),
            Share::Failed => Head::new("412 Precondition Failed", date).saying("412 Precondition Failed", request),
            Share::NotSatisfiable => {
                let status = "416 Range Not Satisfiable";
                Head::new(status, date).field("Content-Range", format!("bytes */{len}")).saying(status, request)
            }
        }
    }

    /// Makes the response for a request whose file cannot be read.
    fn without(request: &Request, why: ErrorKind, date: Option<&Date>) -> Self {
        let status = match why {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidInput | ErrorKind::InvalidFilename => {
                "404 Not Found"
            }
            ErrorKind::PermissionDenied => "403 Forbidden",
            _ => "500 Internal Server Error",
        };
        Head::new(status, date).saying(status, request)
    }

    /// Makes the response for a refused request. It is the connection's last.
    #[must_use]
    pub fn refusing(refusal: Refusal, date: Option<&Date>) -> Self {
        let status = match refusal.reason {
            Reason::Bad => "400 Bad Request",
            Reason::TargetTooLong => "414 URI Too Long",
            Reason::Expectation => "417 Expectation Failed",
            Reason::Scheme => "421 Misdirected Request",
            Reason::TooLong => "431 Request Header Fields Too Large",
            Reason::UnknownMethod | Reason::Coding => "501 Not Implemented",
            Reason::Version => "505 HTTP Version Not Supported",
        };
        let nothing = Request {
            method: if refusal.is_head { Method::Head } else { Method::Get },
            path: String::new(),
            query: None,
            is_kept: false,
            is_old: false,
            content: Content::None,
            conditions: None,
        };
        Head::new(status, date).saying(status, &nothing)
    }

    /// Returns whether the connection is to be closed after it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns how many bytes of it are left to send.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.head.len() as u64 + self.left
    }

    /// Sends as much as there is room for. The head needs [`HEAD_ROOM`].
    ///
    /// # Errors
    ///
    /// The connection was reset, or the body is shorter than its head announced.
    pub fn send(&mut self, stream: &mut impl Transport, part: &mut [u8]) -> io::Result<Sent> {
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

/// The head of a response, which is being written.
struct Head(Vec<u8>);

impl Head {
    fn new(status: &str, date: Option<&Date>) -> Self {
        let mut head = Vec::with_capacity(FIELDS_ROOM);
        head.extend_from_slice(b"HTTP/1.1 ");
        head.extend_from_slice(status.as_bytes());
        head.extend_from_slice(b"\r\n");
        match date {
            Some(date) => Self(head).field("Date", &date.text),
            None => Self(head),
        }
    }

    fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        for piece in [name.as_bytes(), b": ", value.as_ref(), b"\r\n"] {
            self.0.extend_from_slice(piece);
        }
        self
    }

    fn validators(self, of: &Validators) -> Self {
        let head = match of.tag {
            Some(tag) => self.field("ETag", tag.as_bytes()),
            None => self,
        };
        match of.modified_s.and_then(Date::of) {
            Some(date) => head.field("Last-Modified", date.text),
            None => head,
        }
    }

    /// Ends the head; the body has its length, or is left out for HEAD.
    fn with(mut self, body: Bytes, len: u64, request: &Request) -> Response {
        write!(self.0, "Content-Length: {len}\r\n").expect("a vector takes all");
        let response = self.alone(request);
        let left = if request.method == Method::Head { 0 } else { len };
        Response { body, left, ..response }
    }

    /// Ends the head of a response whose body is its status.
    fn saying(mut self, status: &str, request: &Request) -> Response {
        self = self.field("Content-Type", "text/plain; charset=utf-8");
        let mut response = self.with(Bytes::None, status.len() as u64 + 1, request);
        if request.method != Method::Head {
            response.head.extend_from_slice(status.as_bytes());
            response.head.push(b'\n');
            response.left = 0;
        }
        response
    }

    /// Ends the head of a response without a body.
    fn alone(self, request: &Request) -> Response {
        let head = match (request.is_kept, request.is_old) {
            (false, _) => self.field("Connection", "close"),
            (true, true) => self.field("Connection", "keep-alive"),
            (true, false) => self,
        };
        let mut head = head.0;
        head.extend_from_slice(b"\r\n");
        Response { head, body: Bytes::None, left: 0, is_last: !request.is_kept }
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
