//! The request line (RFC 9112, section 3).

use super::Reason;

/// A request line whose target is not parsed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'b> {
    pub(super) method: &'b str,
    pub(super) target: &'b str,
    /// Whether the version is HTTP/1.0.
    pub(super) is_old: bool,
}

/// Parses the line; returns it with its length, line end included. Returns none if the line is incomplete and may still
/// be valid.
pub(super) fn read(bytes: &[u8]) -> Result<Option<(Line<'_>, usize)>, Reason> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        // The last byte may be the first half of the line's end.
        return check_start(bytes.strip_suffix(b"\r").unwrap_or(bytes)).map(|()| None);
    };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    check_start(line)?;
    // Exactly one space between the parts: any other whitespace is ambiguous.
    let line = str::from_utf8(line).map_err(|_| Reason::Bad)?;
    let mut parts = line.split(' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Reason::Bad);
    };
    if method.is_empty() || target.is_empty() {
        return Err(Reason::Bad);
    }
    let is_old = is_old(version)?;
    Ok(Some((Line { method, target, is_old }, end + 1)))
}

/// Refuses bytes with which no request line begins.
fn check_start(line: &[u8]) -> Result<(), Reason> {
    let mut parts = line.split(|byte| *byte == b' ');
    let method = parts.next().unwrap_or_default();
    let is_visible = |byte: &u8| !byte.is_ascii_control();
    let is_method = method.iter().all(|byte| is_token(*byte)) && !line.starts_with(b" ");
    let is_right = is_method && line.iter().all(is_visible);
    is_right.then_some(()).ok_or(Reason::Bad)
}

/// Returns whether a byte may be in a token (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether a version is 1.0. Later versions of HTTP/1 are answered as 1.1 (RFC 9110, section 6.2).
fn is_old(version: &str) -> Result<bool, Reason> {
    match version.strip_prefix("HTTP/").map(str::as_bytes) {
        Some([b'1', b'.', b'0']) => Ok(true),
        Some([b'1', b'.', b'1'..=b'9']) => Ok(false),
        Some([b'0'..=b'9', b'.', b'0'..=b'9']) => Err(Reason::Version),
        _ => Err(Reason::Bad),
    }
}
