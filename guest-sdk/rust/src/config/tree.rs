//! The tree of a TOML text, independent of the type that is read from it.

use super::refusal::Refusal;

/// A value with its position and its key.
pub(super) struct Node {
    /// Empty for an element of an array.
    pub(super) key: Key,
    /// Offset in the text, in bytes; for a table with a header, that of the header.
    pub(super) at: usize,
    pub(super) value: Value,
}

#[derive(Default)]
pub(super) struct Key {
    pub(super) at: usize,
    pub(super) name: String,
}

pub(super) enum Value {
    String(String),
    Integer(i64),
    /// An integer too large for an `i64`.
    Unsigned(u64),
    /// As it is written. Code that parses floating-point numbers is large, so only modules with a field of such a type contain it.
    Float(String),
    Boolean(bool),
    Array(Vec<Node>),
    /// Tables with headers in double brackets.
    Tables(Vec<Node>),
    Table(Table),
}

pub(super) struct Table {
    /// In the text's order. A configuration is small, so a linear search is fast enough, and a map would add several KiB to a module.
    pub(super) entries: Vec<Node>,
    pub(super) origin: Origin,
}

/// How a table was created, which decides what may be added to it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Origin {
    /// By a header of its own, or as the root of the text.
    Header,
    /// By the header of a table within it.
    HeaderWithin,
    /// By a key with dots.
    Key,
    /// By braces, which contain all its entries.
    Braces,
}

impl Node {
    /// Returns the table to which an entry at `at` is added: of tables in double brackets the last.
    pub(super) fn table_mut(&mut self, at: usize) -> Result<&mut Table, Refusal> {
        let value = match &mut self.value {
            Value::Tables(tables) => tables.last_mut().map(|last| &mut last.value),
            value => Some(value),
        };
        match value {
            Some(Value::Table(table)) => Ok(table),
            _ => Err(Refusal::new(format_args!("this is no table")).at(at)),
        }
    }
}

impl Table {
    pub(super) fn new(origin: Origin) -> Self {
        Self { entries: Vec::new(), origin }
    }

    /// Returns the index of the entry with that name.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key.name == name)
    }

    /// Adds an entry and returns its index.
    pub(super) fn add(&mut self, key: Key, at: usize, value: Value) -> usize {
        self.entries.push(Node { key, at, value });
        self.entries.len() - 1
    }
}
