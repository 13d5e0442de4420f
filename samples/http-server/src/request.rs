//! The parser of requests, by RFC 9110 and RFC 9112: what a request asks for, and whether it is valid. It does not
//! panic on any bytes.
//!
//! ```text
//!   bytes --> line.rs    method, target and version
//!                |
//!             httparse   the fields
//!                |
//!             fields.rs  the host, the content's length, the connection's persistence, and conditions
//!             target.rs  the target's path and query
//! ```
//!
//! What follows a head as its content is skipped by `content.rs`.

pub mod content;
mod fields;
mod line;
mod target;

use content::CONTENT_BYTES_MAX;
use fields::Fields;
use httparse::{EMPTY_HEADER, Error, Status};
use line::Line;
use target::Target;

use crate::conditions::Conditions;

/// Most bytes of a request's head, empty lines before it included.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Most fields of a request's head.
const FIELDS_MAX: usize = 64;

/// What is wanted of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The file with its head.
    Get,
    /// The head only.
    Head,
    /// A content for what the path names. No file takes any.
    Post,
    /// A method of HTTP that no file allows.
    Other,
}

/// What follows the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    None,
    /// So many bytes, at least one.
    Length(u64),
    /// Chunks.
    Chunked,
}

/// A valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path, decoded and without `.`, `..` and empty segments. With [`Method::Other`] it may be empty.
    pub path: String,
    /// The query after `?`, not decoded.
    pub query: Option<String>,
    /// Whether the connection is kept after the answer.
    pub is_kept: bool,
    /// Whether the version is HTTP/1.0.
    pub is_old: bool,
    /// What follows the head.
    pub content: Content,
    /// The conditions and the range, if there are any.
    pub conditions: Option<Box<Conditions>>,
}

/// A refused request; the connection is closed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why it is refused.
    pub reason: Reason,
    /// Whether it was a HEAD request, so that the answer must have no body.
    pub is_head: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is malformed or ambiguous: 400.
    Bad,
    /// Its target is too long: 414.
    TargetTooLong,
    /// An expectation other than `100-continue`: 417.
    Expectation,
    /// A target with another scheme: 421.
    Scheme,
    /// Its head is too long: 431.
    TooLong,
    /// An unknown method: 501.
    UnknownMethod,
    /// A content with a coding other than `chunked`: 501.
    Coding,
    /// A major version other than 1: 505.
    Version,
}

/// The result of parsing the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The head is incomplete.
    Partial,
    /// A valid request, and the length of its head in bytes.
    Request(Request, usize),
    /// A refused request.
    Refused(Refusal),
}

/// Parses a request's head.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    // RFC 9112, section 2.2: empty lines before a request are ignored.
    let start = empty_lines(bytes);
    let rest = &bytes[start..];
    let is_head = rest.starts_with(b"HEAD ");
    let outcome = line::read(rest).and_then(|line| {
        let Some((line, len)) = line else { return Ok(None) };
        Ok(judge(&line, &rest[len..])?.map(|(request, fields_len)| (request, start + len + fields_len)))
    });
    match outcome {
        Ok(Some((request, len))) if len <= HEAD_BYTES_MAX => Parsed::Request(request, len),
        Ok(None) if bytes.len() < HEAD_BYTES_MAX => Parsed::Partial,
        Ok(_) => Parsed::Refused(Refusal { reason: what_is_too_long(rest), is_head }),
        Err(reason) => Parsed::Refused(Refusal { reason, is_head }),
    }
}

/// Returns whether there are bytes other than empty lines.
#[must_use]
pub fn has_begun(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| !matches!(byte, b'\r' | b'\n'))
}

/// Returns the length of the empty lines at the start, in bytes.
fn empty_lines(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += match &bytes[at..] {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] => 1,
            _ => return at,
        };
    }
}

fn what_is_too_long(request: &[u8]) -> Reason {
    let is_target = !request.contains(&b'\n') && request.contains(&b' ');
    if is_target { Reason::TargetTooLong } else { Reason::TooLong }
}

/// Validates a request by its line and the bytes after that. Returns none if the head is incomplete, else the request
/// and the length of its fields in bytes.
fn judge(line: &Line<'_>, rest: &[u8]) -> Result<Option<(Request, usize)>, Reason> {
    let mut headers = [EMPTY_HEADER; FIELDS_MAX];
    let (len, headers) = match httparse::parse_headers(rest, &mut headers) {
        Ok(Status::Complete(found)) => found,
        Ok(Status::Partial) => return Ok(None),
        Err(Error::TooManyHeaders) => return Err(Reason::TooLong),
        Err(_) => return Err(Reason::Bad),
    };
    let fields = Fields::read(headers, line.is_old)?;
    if !is_known(line.method) {
        return Err(Reason::UnknownMethod);
    }
    let target = target::read(line.method, line.target)?;
    let method = match line.method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        _ => Method::Other,
    };
    let (path, query) = match target {
        Target::Path { path, query } => (path, query),
        Target::Other if method == Method::Other => (String::new(), None),
        Target::Other => return Err(Reason::Bad),
    };
    let Fields { is_kept, content, conditions } = fields;
    // What a client sends after CONNECT may be for another server.
    let is_skipped = line.method != "CONNECT" && !matches!(content, Content::Length(CONTENT_BYTES_MAX..));
    let is_kept = is_kept && is_skipped;
    Ok(Some((Request { method, path, query, is_kept, is_old: line.is_old, content, conditions }, len)))
}

/// Returns whether RFC 9110 or RFC 5789 defines the method.
fn is_known(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH")
}
