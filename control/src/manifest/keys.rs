//! The keys of manifests: their values, bounds and defaults, as `pinion explain` shows them.
//!
//! The parser is in the files beside. Tests compare each key here with what the parser accepts and says, so that neither
//! changes alone.

mod tables;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Serialize, Serializer};

pub use tables::tables;

use crate::document::whole_number;

/// A table of a manifest.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its path, such as `chain.stage`; empty for the top of a manifest.
    pub path: &'static str,
    /// How it is written, such as `[[chain]]`.
    pub header: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Its keys.
    pub keys: Vec<Key>,
}

/// A key of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The values that it may have.
    #[serde(serialize_with = "as_text")]
    pub values: Values,
    /// Whether it may be left out.
    #[serde(serialize_with = "as_text")]
    pub default: IfAbsent,
    /// What it says.
    pub about: &'static str,
}

/// The values that a key may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// A string, with the strings that are meant.
    Text(&'static str),
    /// A whole number within bounds.
    Number(RangeInclusive<u64>),
    /// True or false.
    Boolean,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A list, with what its items are.
    List(&'static str),
    /// A table of its own, or several.
    Tables(&'static str),
    /// A string or a number, with those that are meant.
    TextOrNumber(&'static str),
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(which) => write!(f, "string: {which}"),
            Self::Number(bounds) => f.write_str(&whole_number(bounds)),
            Self::Boolean => f.write_str("true or false"),
            Self::OneOf(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                write!(f, "one of {}", quoted.join(", "))
            }
            Self::List(items) => write!(f, "list: {items}"),
            Self::Tables(how) => write!(f, "{how}"),
            Self::TextOrNumber(which) => write!(f, "string or number: {which}"),
        }
    }
}

/// What a key has if it is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfAbsent {
    /// The key must be there.
    Required,
    /// The same as this number.
    Number(u64),
    /// The same as false.
    False,
    /// The same as this word.
    Word(String),
    /// In words, what is done without it.
    None(&'static str),
}

impl fmt::Display for IfAbsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required => f.write_str("required"),
            Self::Number(number) => number.fmt(f),
            Self::False => f.write_str("false"),
            Self::Word(word) => write!(f, "\"{word}\""),
            Self::None(words) => f.write_str(words),
        }
    }
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
