//! Conditional requests and ranges (RFC 9110, sections 13 and 14): what of a file a request gets. The work for any
//! request is linear in the length of its fields, and nothing is allocated.

use std::time::UNIX_EPOCH;

use crate::files::Tag;
use crate::request::Method;

/// The fields of a request that decide what of a file it gets, unparsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `If-Match`: a list.
    pub if_match: Option<Vec<u8>>,
    /// `If-None-Match`: a list.
    pub if_none_match: Option<Vec<u8>>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<Vec<u8>>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<Vec<u8>>,
    /// `If-Range`.
    pub if_range: Option<Vec<u8>>,
    /// `Range`.
    pub range: Option<Vec<u8>>,
}

/// What conditions are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Validators {
    /// The entity tag, which is strong.
    pub tag: Option<Tag>,
    /// The second of its last change, since 1970.
    pub modified_s: Option<u64>,
    /// The length in bytes.
    pub len: u64,
    /// The date of the response, since 1970.
    pub now_s: Option<u64>,
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The whole file.
    Whole,
    /// The bytes from the first to the last.
    Part {
        /// The offset of the first byte.
        first: u64,
        /// The offset of the last byte.
        last: u64,
    },
    /// Nothing, as the client has it: 304.
    NotModified,
    /// Nothing, as it is not what the client takes it for: 412.
    Failed,
    /// Nothing, as there is no such part: 416.
    NotSatisfiable,
}

impl Conditions {
    /// Evaluates the conditions in the order of RFC 9110, section 13.2.2.
    #[must_use]
    pub fn share(&self, method: Method, of: &Validators) -> Share {
        let is_intact = match (&self.if_match, &self.if_unmodified_since) {
            (Some(list), _) => lists(list, of.tag, Comparison::Strong),
            (None, Some(date)) => is_unmodified_since(date, of.modified_s).unwrap_or(true),
            (None, None) => true,
        };
        if !is_intact {
            return Share::Failed;
        }
        let is_known = match (&self.if_none_match, &self.if_modified_since) {
            (Some(list), _) => lists(list, of.tag, Comparison::Weak),
            (None, Some(date)) => is_unmodified_since(date, of.modified_s).unwrap_or(false),
            (None, None) => false,
        };
        if is_known {
            return Share::NotModified;
        }
        match &self.range {
            // Ranges are defined for GET alone (RFC 9110, section 14.2).
            Some(range) if method == Method::Get && self.is_for_this(of) => part(range, of.len),
            _ => Share::Whole,
        }
    }

    /// Evaluates `If-Range` (RFC 9110, section 13.1.5).
    fn is_for_this(&self, of: &Validators) -> bool {
        let Some(validator) = &self.if_range else { return true };
        if let Some(date_s) = seconds_of(validator) {
            // A date is a strong validator only if the file could not change again within its second.
            let is_strong = of.now_s.is_some_and(|now_s| now_s > date_s);
            return is_strong && of.modified_s == Some(date_s);
        }
        let mut rest = &validator[..];
        let is_same = next_tag(&mut rest).is_some_and(|tag| of.tag.is_some_and(|own| tag.is(&own, Comparison::Strong)));
        is_same && rest.is_empty()
    }
}

/// Returns whether a file with this time of its last change was not changed after the date; none if one of both is not
/// known, so that the condition is ignored.
fn is_unmodified_since(date: &[u8], modified_s: Option<u64>) -> Option<bool> {
    Some(modified_s? <= seconds_of(date)?)
}

/// Returns the seconds from 1970 to a date, in any of the forms of RFC 9110, section 5.6.7.
fn seconds_of(date: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(str::from_utf8(date).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// How tags are compared (RFC 9110, section 8.8.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// A weak tag equals no other.
    Strong,
    /// Weak and strong tags are equal if their texts are.
    Weak,
}

/// A client's tag.
struct ClientTag<'b> {
    is_weak: bool,
    /// With its quotes.
    text: &'b [u8],
}

impl ClientTag<'_> {
    fn is(&self, own: &Tag, comparison: Comparison) -> bool {
        self.text == own.as_bytes() && !(self.is_weak && comparison == Comparison::Strong)
    }
}

/// Returns whether a list has the tag, or is `*`. What follows an element that is no tag is ignored.
fn lists(list: &[u8], tag: Option<Tag>, comparison: Comparison) -> bool {
    if list == b"*" {
        return true;
    }
    let Some(own) = tag else { return false };
    let mut rest = list;
    loop {
        while let [b',' | b' ' | b'\t', more @ ..] = rest {
            rest = more;
        }
        match next_tag(&mut rest) {
            Some(tag) if tag.is(&own, comparison) => return true,
            Some(_) if matches!(rest, [] | [b',' | b' ' | b'\t', ..]) => {}
            _ => return false,
        }
    }
}

/// Takes a tag from the start of the bytes.
fn next_tag<'b>(bytes: &mut &'b [u8]) -> Option<ClientTag<'b>> {
    let start: &'b [u8] = bytes;
    let (is_weak, quoted) = start.strip_prefix(b"W/").map_or((false, start), |rest| (true, rest));
    let inner = quoted.strip_prefix(b"\"")?;
    let end = inner.iter().position(|byte| !matches!(byte, b'!' | b'#'..=b'~' | 0x80..))?;
    if inner[end] != b'"' {
        return None;
    }
    let (text, rest) = quoted.split_at(end + 2);
    *bytes = rest;
    Some(ClientTag { is_weak, text })
}

/// Returns what a `Range` field selects. A unit other than bytes is ignored. Several ranges that can be served are
/// ignored as well, so that one response is never longer than the file.
fn part(range: &[u8], len: u64) -> Share {
    let Some(equals) = range.iter().position(|byte| *byte == b'=') else { return Share::Whole };
    if !range[..equals].eq_ignore_ascii_case(b"bytes") {
        return Share::Whole;
    }
    let mut parts = 0_u32;
    let mut found = Share::NotSatisfiable;
    for spec in range[equals + 1..].split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|it| !it.is_empty()) {
        match one(spec, len) {
            // An invalid set is rejected as a whole (RFC 9110, section 14.2).
            None => return Share::NotSatisfiable,
            Some(Share::NotSatisfiable) => {}
            Some(share) => (parts, found) = (parts + 1, share),
        }
    }
    if parts > 1 { Share::Whole } else { found }
}

/// Returns what one range selects of so many bytes, or none if it is invalid.
fn one(spec: &[u8], len: u64) -> Option<Share> {
    let dash = spec.iter().position(|byte| *byte == b'-')?;
    let last_of_all = len.checked_sub(1);
    let share = match (&spec[..dash], &spec[dash + 1..]) {
        ([], suffix) => match (number(suffix)?, last_of_all) {
            (0, _) => Share::NotSatisfiable,
            // The suffix of an empty file is the file.
            (_, None) => Share::Whole,
            (suffix, Some(last)) => Share::Part { first: len.saturating_sub(suffix), last },
        },
        (first, last) => {
            let first = number(first)?;
            let last = if last.is_empty() { u64::MAX } else { number(last)? };
            match last_of_all {
                _ if last < first => return None,
                Some(last_of_all) if first <= last_of_all => Share::Part { first, last: last.min(last_of_all) },
                _ => Share::NotSatisfiable,
            }
        }
    };
    Some(share)
}

/// Returns a number of digits, or the greatest if that is less.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |number: u64, digit: &u8| number.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(digits.iter().fold(0, add))
}
