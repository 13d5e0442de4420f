//! Reads TOML documents that people write. Errors name the line and the key.
//!
//! Called for manifests and for a node's configuration. The parser tells where in the text an error lies. This module
//! finds the key in the document itself, so that an error in a nested table, a list or an inline table names the full
//! path of its key. The index in an array of tables is left out, as the line tells which table it is.
//!
//! ```text
//!   [[port]]
//!   queues = 2.0     ->  line 2, port.queues: invalid type: floating point `2.0`, expected a whole number from 1 to 64
//! ```

use std::ops::{Range, RangeInclusive};

use pinion_text::{SENTENCE_BYTES_MAX, printable};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[cfg(test)]
mod tests;

/// What is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The position in the text, in bytes.
    pub span: Range<usize>,
    /// What is wrong, with the key if it concerns one; printable in a line.
    pub problem: String,
}

/// Reads a document. `allowed` returns what values a key may have, where the type alone does not tell. It gets the full
/// path of the key, such as `port.queues`.
///
/// # Errors
/// The first error in the document.
pub fn read<T: DeserializeOwned>(text: &str, allowed: impl Fn(&str) -> Option<String>) -> Result<T, Fault> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        let (tree, _) = DeTable::parse_recoverable(text);
        let document = Document { text, tree: tree.get_ref() };
        let with = |value: &str| {
            let changed = format!("{}{value}{}", text.get(..span.start)?, text.get(span.end..)?);
            Some(toml::from_str::<T>(&changed).err()?.message().to_owned())
        };
        let problem = document.problem(&message, &span, allowed, with);
        Fault { problem: printable(problem, SENTENCE_BYTES_MAX), span }
    })
}

/// Formats a key's bounds for `allowed` of [`read`].
#[must_use]
pub fn whole_number(bounds: &RangeInclusive<u64>) -> String {
    format!("a whole number from {} to {}", bounds.start(), bounds.end())
}

/// Returns the line of a text, from 1, that contains a position.
#[must_use]
pub fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The names of tables and keys that lead to a value.
type Way = Vec<String>;

struct Document<'a> {
    text: &'a str,
    tree: &'a DeTable<'a>,
}

impl Document<'_> {
    /// Describes an error of the parser. `with` returns the parser's message if another value stood at the position.
    fn problem(
        &self,
        message: &str,
        span: &Range<usize>,
        allowed: impl Fn(&str) -> Option<String>,
        with: impl Fn(&str) -> Option<String>,
    ) -> String {
        if message == "duplicate key" {
            return format!(
                "{}: duplicate key: it has a value already, give it once",
                dotted(&self.way_of_second(span))
            );
        }
        let mut way = way_in(self.tree, &[], span).unwrap_or_default();
        let problem = if let Some(rest) = message.strip_prefix("unknown field") {
            way.pop();
            format!("unknown key{rest}")
        } else if let Some(rest) = message.strip_prefix("missing field") {
            format!("missing key{rest}")
        } else {
            self.expected(message, span, allowed(&dotted(&way)), with)
        };
        if way.is_empty() { problem } else { format!("{}: {problem}", dotted(&way)) }
    }

    /// Formats a message about a value, with the allowed values in plain words.
    fn expected(
        &self,
        message: &str,
        span: &Range<usize>,
        allowed: Option<String>,
        with: impl Fn(&str) -> Option<String>,
    ) -> String {
        let value = self.text.get(span.clone()).unwrap_or_default();
        let of_type = |message: &str| {
            let (found, expected) = message.split_once(", expected ")?;
            found.starts_with("invalid ").then(|| (in_words(found), plain(expected)))
        };
        let (found, expected) = match of_type(message) {
            Some((found, expected)) => (found, Some(expected)),
            // Of an enumeration the parser lists the words only when it finds another word.
            None if message.starts_with("wanted ") => {
                let of_words = with("\"?\"");
                let words =
                    of_words.as_deref().and_then(|message| message.strip_prefix("unknown variant `?`, expected "));
                (format!("invalid type: {value}"), Some(words.unwrap_or("a string").to_owned()))
            }
            None if message == "integer number overflowed" => (format!("invalid value: integer `{value}`"), None),
            None => return message.to_owned(),
        };
        match allowed.or(expected) {
            Some(expected) => format!("{found}, expected {expected}"),
            None => format!("{found}: it is too large"),
        }
    }

    /// Returns the path of a duplicate key. The parser leaves the second one out of the tree.
    fn way_of_second(&self, span: &Range<usize>) -> Way {
        let before = self.text.get(..span.start).unwrap_or_default();
        let key = self.text.get(span.clone()).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default().trim_start();
        if line.starts_with('[') {
            return vec![format!("{}{key}", line.trim_start_matches('[').trim_start())];
        }
        let inline = way_in(self.tree, &[], span);
        let mut way = inline.unwrap_or_else(|| {
            let mut header = (0, Way::new());
            self.last_header(self.tree, &[], span.start, &mut header);
            header.1
        });
        let parents = line.rsplit(['{', ',']).next().unwrap_or_default().trim();
        way.push(format!("{parents}{key}"));
        way
    }

    /// Finds the table whose header is the last one before a position.
    fn last_header(&self, table: &DeTable<'_>, way: &[String], before: usize, last: &mut (usize, Way)) {
        for (key, value) in table {
            let way = with(way, key.get_ref());
            let values = match value.get_ref() {
                DeValue::Array(values) => values.iter().collect(),
                _ => vec![value],
            };
            for value in values {
                let start = value.span().start;
                let DeValue::Table(table) = value.get_ref() else { continue };
                if self.text.get(start..).is_some_and(|text| text.starts_with('[')) && (last.0..before).contains(&start)
                {
                    *last = (start, way.clone());
                }
                self.last_header(table, &way, before, last);
            }
        }
    }
}

/// Returns the path to what lies at a position: to the key or the header itself, or to the innermost value that
/// contains it.
fn way_in(table: &DeTable<'_>, way: &[String], span: &Range<usize>) -> Option<Way> {
    table.iter().find_map(|(key, value)| {
        let way = with(way, key.get_ref());
        if key.span() == *span { Some(way) } else { way_in_value(value, &way, span) }
    })
}

fn way_in_value(value: &Spanned<DeValue<'_>>, way: &[String], span: &Range<usize>) -> Option<Way> {
    let within = match value.get_ref() {
        DeValue::Table(table) => way_in(table, way, span),
        DeValue::Array(values) => values.iter().find_map(|value| way_in_value(value, way, span)),
        _ => None,
    };
    let own = value.span();
    within.or_else(|| (own.start <= span.start && span.end <= own.end).then(|| way.to_vec()))
}

fn with(way: &[String], key: &str) -> Way {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let bare = !key.is_empty() && key.bytes().all(is_bare);
    let key = if bare { key.to_owned() } else { toml::Value::from(key).to_string() };
    way.iter().cloned().chain([key]).collect()
}

fn dotted(way: &[String]) -> String {
    way.join(".")
}

/// Returns what was found, without the type names of Rust.
fn in_words(found: &str) -> String {
    // A number that is too large for any type that documents use.
    if let Some(number) = found.strip_suffix(" as i128").or_else(|| found.strip_suffix(" as u128")) {
        return number.replace("invalid type", "invalid value");
    }
    found.replace("type: map", "type: a table").replace("type: sequence", "type: a list")
}

/// Returns what was expected, without the type names of Rust.
fn plain(expected: &str) -> String {
    let whole = |max: u64| format!("a whole number from 0 to {max}");
    match expected {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" | "usize" => whole(i64::MAX as u64),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        "path string" => "a path, which is a string".to_owned(),
        _ if expected.starts_with("struct ") => "a table".to_owned(),
        _ => expected.to_owned(),
    }
}
