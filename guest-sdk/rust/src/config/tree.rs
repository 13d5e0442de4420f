//! What a text of TOML says, as one tree, whatever is to be made of it.

use super::refusal::Refusal;

/// A value, where it stands, and by which name.
pub(super) struct Node {
    /// Empty in an array.
    pub(super) key: Key,
    /// In bytes from the text's beginning; of a table with a header, the header.
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
    /// An integer greater than those.
    Unsigned(u64),
    /// As it is written. What reads numbers of this kind is large, and so is a part only of modules that have use for one.
    Float(String),
    Boolean(bool),
    Array(Vec<Node>),
    /// Tables whose headers are in double brackets.
    Tables(Vec<Node>),
    Table(Table),
}

pub(super) struct Table {
    /// In the text's order. A configuration is small: to look at one after the other is fast enough, and a map is several KiB of module.
    pub(super) entries: Vec<Node>,
    pub(super) origin: Origin,
}

/// What has made a table, and so decides what may be added to it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Origin {
    /// A header of its own, or the text.
    Header,
    /// The header of a table within.
    HeaderWithin,
    /// A key with dots.
    Key,
    /// Braces, which say all there is.
    Braces,
}

impl Node {
    /// The table to which something is added by this name, which stands there: of tables in double brackets the last.
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

    /// Where the entry of that name is.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key.name == name)
    }

    /// Adds an entry, and says where it is.
    pub(super) fn add(&mut self, key: Key, at: usize, value: Value) -> usize {
        self.entries.push(Node { key, at, value });
        self.entries.len() - 1
    }
}
