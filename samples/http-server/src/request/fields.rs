//! The fields of a request that concern its host, its body and its connection. Anything ambiguous is refused, as a
//! proxy in front of this server may interpret it in another way.

use httparse::Header;

use super::Reason;
use super::target::is_authority;

/// The result of parsing a request's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    /// Whether the client wants to keep the connection.
    pub(super) is_kept: bool,
    pub(super) has_body: bool,
}

impl Fields {
    pub(super) fn read(headers: &[Header<'_>], is_old: bool) -> Result<Self, Reason> {
        check_host(headers, is_old)?;
        let length = content_length(headers)?;
        let has_coding = transfer_encoding(headers)?;
        // RFC 9112, section 6.1: HTTP/1.0 has no codings. With a coding and a length, the end of the body is ambiguous.
        if has_coding && (is_old || length.is_some()) {
            return Err(Reason::Bad);
        }
        // HTTP/1.0 has no expectations, so they are ignored there. `100-continue` is answered with the final status
        // (RFC 9110, section 10.1.1).
        if !is_old && values(headers, "expect").any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(Reason::Expectation);
        }
        let has_body = has_coding || length.is_some_and(|length| length > 0);
        Ok(Self { is_kept: is_kept(headers, is_old), has_body })
    }
}

/// Returns the values of all fields of a name, without surrounding whitespace.
fn values<'h>(headers: &'h [Header<'_>], name: &'static str) -> impl Iterator<Item = &'h [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| trim(header.value))
}

/// Returns the elements of all lists of a name.
fn elements<'h>(headers: &'h [Header<'_>], name: &'static str) -> impl Iterator<Item = &'h [u8]> {
    values(headers, name).flat_map(|value| value.split(|byte| *byte == b',')).map(trim)
}

/// Trims spaces and tabs.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Checks that there is one valid host (RFC 9112, section 3.2). HTTP/1.0 need not have one, and an empty value means
/// none.
fn check_host(headers: &[Header<'_>], is_old: bool) -> Result<(), Reason> {
    let mut hosts = values(headers, "host");
    match (hosts.next(), hosts.next()) {
        (None, _) if is_old => Ok(()),
        (Some(host), None) if host.is_empty() || str::from_utf8(host).is_ok_and(is_authority) => Ok(()),
        _ => Err(Reason::Bad),
    }
}

/// Returns the length of the body. It may be repeated with the same value only (RFC 9112, section 6.3).
fn content_length(headers: &[Header<'_>]) -> Result<Option<u64>, Reason> {
    let mut length = None;
    for element in elements(headers, "content-length") {
        if element.is_empty() || !element.iter().all(u8::is_ascii_digit) {
            return Err(Reason::Bad);
        }
        // A length that does not fit an integer cannot be valid.
        let number = str::from_utf8(element).ok().and_then(|digits| digits.parse().ok()).ok_or(Reason::Bad)?;
        if length.is_some_and(|length: u64| length != number) {
            return Err(Reason::Bad);
        }
        length = Some(number);
    }
    Ok(length)
}

/// Returns whether the body is coded. The only coding allowed is `chunked`.
fn transfer_encoding(headers: &[Header<'_>]) -> Result<bool, Reason> {
    if values(headers, "transfer-encoding").next().is_none() {
        return Ok(false);
    }
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let codings = || elements(headers, "transfer-encoding").filter(|coding| !coding.is_empty());
    let count = codings().count();
    // `chunked` may occur once only, as the last coding.
    let is_wrong = codings().enumerate().any(|(at, coding)| is_chunked(coding) && at + 1 < count);
    match count {
        0 => Err(Reason::Bad),
        _ if is_wrong => Err(Reason::Bad),
        _ if codings().all(is_chunked) => Ok(true),
        _ => Err(Reason::Coding),
    }
}

/// Returns whether the connection is kept (RFC 9112, section 9.3).
fn is_kept(headers: &[Header<'_>], is_old: bool) -> bool {
    let says = |option: &str| elements(headers, "connection").any(|it| it.eq_ignore_ascii_case(option.as_bytes()));
    !says("close") && (!is_old || says("keep-alive"))
}
