//! What a request asks for, and whether it may: the head of one, and the path that its target means. No panic on any bytes.

use httparse::{EMPTY_HEADER, Error, Status};

/// Bytes that a request's head has at most.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Fields that it has at most.
const FIELDS_MAX: usize = 64;

/// What is sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The file.
    Get,
    /// What is known of it.
    Head,
}

/// A request that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whether the file is wanted.
    pub method: Method,
    /// The path, decoded.
    pub path: String,
    /// Whether the client may ask for more on the same connection.
    pub is_kept: bool,
    /// Whether it is of HTTP/1.0.
    pub is_old: bool,
}

/// A request that is refused, and with it the connection, unless one knows where the next request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It makes no sense: 400.
    Bad,
    /// Neither GET nor HEAD: 405.
    Method,
    /// Its head is too long: 431.
    TooLong,
    /// A version that is not 1: 505.
    Version,
}

/// What is known of what has come so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// There is more to come.
    Partial,
    /// A request, whose head has so many bytes.
    Request(Request, usize),
    /// No request.
    Refused(Refusal),
}

/// Reads a request's head.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    match head.parse(bytes) {
        Ok(Status::Complete(len)) if len <= HEAD_BYTES_MAX => match judge(&head) {
            Ok(request) => Parsed::Request(request, len),
            Err(refusal) => Parsed::Refused(refusal),
        },
        Ok(Status::Complete(_)) => Parsed::Refused(Refusal::TooLong),
        Ok(Status::Partial) if bytes.len() < HEAD_BYTES_MAX => Parsed::Partial,
        Ok(Status::Partial) | Err(Error::TooManyHeaders) => Parsed::Refused(Refusal::TooLong),
        Err(Error::Version) => Parsed::Refused(Refusal::Version),
        Err(_) => Parsed::Refused(Refusal::Bad),
    }
}

fn judge(head: &httparse::Request<'_, '_>) -> Result<Request, Refusal> {
    let is_old = head.version == Some(0);
    let (mut is_kept, mut hosts, mut has_body) = (!is_old, 0, false);
    for field in head.headers.iter() {
        match field.name {
            name if name.eq_ignore_ascii_case("host") => hosts += 1,
            name if name.eq_ignore_ascii_case("connection") => {
                for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        is_kept = false;
                    } else if is_old && option.eq_ignore_ascii_case(b"keep-alive") {
                        is_kept = true;
                    }
                }
            }
            name if name.eq_ignore_ascii_case("content-length") => {
                let is_number = !field.value.is_empty() && field.value.iter().all(u8::is_ascii_digit);
                if !is_number {
                    return Err(Refusal::Bad);
                }
                has_body |= field.value.iter().any(|digit| *digit != b'0');
            }
            name if name.eq_ignore_ascii_case("transfer-encoding") => has_body = true,
            _ => {}
        }
    }
    // RFC 9112, section 3.2.
    if hosts > 1 || (hosts == 0 && !is_old) {
        return Err(Refusal::Bad);
    }
    let method = match head.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => return Err(Refusal::Method),
    };
    let path = path_of(head.path.unwrap_or_default()).ok_or(Refusal::Bad)?;
    // Where a body ends nobody looks, and what follows it is no request for us.
    Ok(Request { method, path, is_kept: is_kept && !has_body, is_old })
}

/// The path that a request's target means: decoded, without what is behind `?`, and with nothing that leads up or nowhere.
fn path_of(target: &str) -> Option<String> {
    let target = match target.split_once("://") {
        // As if it were said to a proxy (RFC 9112, section 3.2.2).
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => target,
    };
    let encoded = target.split(['?', '#']).next().unwrap_or_default();
    if !encoded.starts_with('/') {
        return None;
    }
    let decoded = decode(encoded)?;
    let parts = decoded.split('/').skip(1);
    let leads_away = |part: &str| part == "." || part == ".." || part.contains(['\0', '\\']);
    let count = parts.clone().count();
    let is_plain = parts.enumerate().all(|(at, part)| !leads_away(part) && (!part.is_empty() || at + 1 == count));
    is_plain.then_some(decoded)
}

fn decode(encoded: &str) -> Option<String> {
    let mut bytes = encoded.bytes();
    let mut decoded = Vec::with_capacity(encoded.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                (high * 16 + low) as u8
            }
            plain => plain,
        });
    }
    String::from_utf8(decoded).ok()
}
