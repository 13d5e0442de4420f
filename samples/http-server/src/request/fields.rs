//! The fields of a request that concern its host, its content, its connection and its conditions. Anything ambiguous is
//! refused, as a proxy in front of this server may interpret it in another way.

use httparse::Header;

use super::target::is_authority;
use super::{Content, Reason};
use crate::conditions::Conditions;

/// The result of parsing a request's fields.
#[derive(Debug)]
pub(super) struct Fields {
    /// Whether the client wants to keep the connection, and where the next request begins is certain.
    pub(super) is_kept: bool,
    pub(super) content: Content,
    /// `None` if there are none, as is usual.
    pub(super) conditions: Option<Box<Conditions>>,
}

impl Fields {
    pub(super) fn read(headers: &[Header<'_>], is_old: bool) -> Result<Self, Reason> {
        let present = headers.iter().fold(0, |present, header| present | bit(header.name));
        let has = |name: u16| present & name != 0;
        check_host(headers, is_old)?;
        let length = if has(CONTENT_LENGTH) { content_length(headers)? } else { None };
        let has_coding = has(TRANSFER_ENCODING) && transfer_encoding(headers)?;
        // RFC 9112, section 6.1: HTTP/1.0 has no codings. With a coding and a length, the end of the content is ambiguous.
        if has_coding && (is_old || length.is_some()) {
            return Err(Reason::Bad);
        }
        // HTTP/1.0 has no expectations, so they are ignored there. `100-continue` is answered with the final status
        // (RFC 9110, section 10.1.1).
        let has_expectation = has(EXPECT) && !is_old;
        if has_expectation && values(headers, "expect").any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(Reason::Expectation);
        }
        let content = match length {
            _ if has_coding => Content::Chunked,
            Some(length @ 1..) => Content::Length(length),
            _ => Content::None,
        };
        // A client that gets a final status need not send the content for which it asked to be told.
        let is_certain = !has_expectation || content == Content::None;
        let wants_it_kept = if has(CONNECTION) { is_kept(headers, is_old) } else { !is_old };
        let conditions = has(CONDITIONS).then(|| Box::new(conditions(headers)));
        Ok(Self { is_kept: wants_it_kept && is_certain, content, conditions })
    }
}

const CONTENT_LENGTH: u16 = 1;
const TRANSFER_ENCODING: u16 = 1 << 1;
const EXPECT: u16 = 1 << 2;
const CONNECTION: u16 = 1 << 3;
/// Any of the fields of [`Conditions`].
const CONDITIONS: u16 = 1 << 4;

/// Returns the bit of a field's name, or 0 if the field is of no concern. It is asked for each field, so that those that
/// are not there are not looked for.
fn bit(name: &str) -> u16 {
    let known: &[(&str, u16)] = match name.len() {
        5 => &[("range", CONDITIONS)],
        6 => &[("expect", EXPECT)],
        8 => &[("if-match", CONDITIONS), ("if-range", CONDITIONS)],
        10 => &[("connection", CONNECTION)],
        13 => &[("if-none-match", CONDITIONS)],
        14 => &[("content-length", CONTENT_LENGTH)],
        17 => &[("transfer-encoding", TRANSFER_ENCODING), ("if-modified-since", CONDITIONS)],
        19 => &[("if-unmodified-since", CONDITIONS)],
        _ => &[],
    };
    known.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map_or(0, |(_, bit)| *bit)
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

/// Returns the length of the content. It may be repeated with the same value only (RFC 9112, section 6.3).
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

/// Returns whether the content is coded. The only coding allowed is `chunked`.
fn transfer_encoding(headers: &[Header<'_>]) -> Result<bool, Reason> {
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

fn conditions(headers: &[Header<'_>]) -> Conditions {
    // Several fields of a list's name are one list (RFC 9110, section 5.2).
    let list = |name| values(headers, name).map(<[u8]>::to_vec).reduce(|list, more| [&list[..], b",", &more].concat());
    // Of what is no list there can be one field only.
    let single = |name| {
        let mut values = values(headers, name);
        values.next().filter(|_| values.next().is_none()).map(<[u8]>::to_vec)
    };
    Conditions {
        if_match: list("if-match"),
        if_none_match: list("if-none-match"),
        if_modified_since: single("if-modified-since"),
        if_unmodified_since: single("if-unmodified-since"),
        // Two validators for a range match nothing.
        if_range: list("if-range"),
        range: single("range"),
    }
}
