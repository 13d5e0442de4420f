//! The request target (RFC 9112, section 3.2): its four forms, and hosts as they occur in it and in `Host`.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use super::Reason;

/// A parsed target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A decoded path without `.`, `..` and empty segments, and the query after `?`, not decoded.
    Path { path: String, query: Option<String> },
    /// The server as a whole, or another server: not a path of ours.
    Other,
}

/// Parses the target of a known method.
pub(super) fn read(method: &str, target: &str) -> Result<Target, Reason> {
    let other = |is_right: bool| if is_right { Ok(Target::Other) } else { Err(Reason::Bad) };
    if method == "CONNECT" {
        return other(is_authority(target) && target.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty()));
    }
    if target == "*" {
        return other(method == "OPTIONS");
    }
    // The fragment after `#` is for the client alone (RFC 9110, section 4.2.5).
    if target.contains('#') {
        return Err(Reason::Bad);
    }
    if target.starts_with('/') {
        return path(target);
    }
    let (scheme, rest) = target.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).ok_or(Reason::Bad)?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Reason::Scheme);
    }
    // The form for proxies. Its host overrides the field's; this server has one host only.
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if !is_authority(authority) {
        return Err(Reason::Bad);
    }
    if rest.starts_with('/') { path(rest) } else { path(&format!("/{rest}")) }
}

/// Parses a path, which begins with `/`, and its query.
fn path(target: &str) -> Result<Target, Reason> {
    let (encoded, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let path = resolve(encoded).ok_or(Reason::Bad)?;
    Ok(Target::Path { path, query })
}

/// Decodes a path and removes its `.`, `..` and empty segments (RFC 3986, sections 5.2.4 and 6.2.2). Returns none if it
/// leads above the root, or a segment is none of one name.
fn resolve(encoded: &str) -> Option<String> {
    let mut path = String::with_capacity(encoded.len() + 1);
    let mut segments = encoded.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let name = decode(segment)?;
        let is_name = !matches!(&*name, "" | "." | "..");
        if is_name {
            path.push('/');
            path.push_str(&name);
        } else if name == ".." {
            path.truncate(path.rfind('/')?);
        }
        if segments.peek().is_none() && !is_name {
            path.push('/');
        }
    }
    Some(path)
}

/// Decodes a segment. What is then no part of one name on every system is refused: a slash, a backslash, NUL.
fn decode(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains(['%', '\\']) {
        return Some(Cow::Borrowed(segment));
    }
    let mut bytes = segment.bytes();
    let mut decoded = Vec::with_capacity(segment.len());
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
    let is_right = !decoded.iter().any(|byte| matches!(byte, b'/' | b'\\' | 0));
    String::from_utf8(decoded).ok().filter(|_| is_right).map(Cow::Owned)
}

/// Returns whether it is a scheme (RFC 3986, section 3.1).
fn is_scheme(scheme: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(is_right)
}

/// Returns whether it is a host, optionally with a port (RFC 3986, section 3.2, without user information).
pub(super) fn is_authority(authority: &str) -> bool {
    let (is_host_right, rest) = match authority.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((literal, rest)) => (is_ip_literal(literal), rest),
            None => return false,
        },
        None => {
            let (host, rest) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (!host.is_empty() && is_name(host), rest)
        }
    };
    is_host_right && rest.strip_prefix(':').map_or(rest.is_empty(), is_port)
}

/// Returns whether it is empty or consists of digits.
fn is_port(port: &str) -> bool {
    let is_number = port.bytes().all(|digit| digit.is_ascii_digit());
    is_number && (port.is_empty() || port.trim_start_matches('0').parse::<u16>().is_ok_and(|port| port > 0))
}

fn is_ip_literal(literal: &str) -> bool {
    let is_future = |(version, address): (&str, &str)| {
        let is_plain = |byte: u8| is_unreserved_or_delimiter(byte) || byte == b':';
        !version.is_empty()
            && version.bytes().all(|digit| digit.is_ascii_hexdigit())
            && !address.is_empty()
            && address.bytes().all(is_plain)
    };
    literal.parse::<Ipv6Addr>().is_ok()
        || literal.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.')).is_some_and(is_future)
}

/// Returns whether it is an IPv4 address or a registered name.
fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        let is_right = match byte {
            b'%' => [bytes.next(), bytes.next()].iter().all(|digit| digit.is_some_and(|it| it.is_ascii_hexdigit())),
            other => is_unreserved_or_delimiter(other),
        };
        if !is_right {
            return false;
        }
    }
    true
}

/// Returns whether a byte may occur in a name unencoded (RFC 3986, section 2).
fn is_unreserved_or_delimiter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
}
