//! What node and builder say to each other, beside the bytes of modules and templates.
//!
//! ```text
//!   standard input    build: configuration, files if there are any, the module      check: the module      check-files: the files
//!   standard output   build: facts, a line of JSON, then native code
//!   standard error    a line each: "phase: compiling", "log 2: what the guest said", and else a sentence
//! ```

use std::fmt;
use std::str::FromStr;

use pinion_abi::{LogLevel, PoolHeader};
use serde::{Deserialize, Serialize};

use crate::metrics::Metric;

/// What is known of a template beside its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Linear memory that an instance starts with, in bytes.
    pub memory_bytes: u64,
    /// How far an instance is when it has been instantiated.
    pub start: Start,
    /// Counters and gauges that a snapshot has. A module that initialises itself says then which it has.
    pub metrics: Vec<Metric>,
    /// Where the stack begins that its code has in linear memory, downwards, as far as can be told.
    pub stack: Option<u32>,
}

/// How far an instance is when it has been instantiated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Initialised: it is a snapshot. Its pool is laid out like this.
    Snapshot(Pool),
    /// Not yet: no snapshot could be taken, for this reason, so each instance initialises itself.
    Module(String),
}

/// A pool header, word by word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool(pub [u32; size_of::<PoolHeader>() / 4]);

impl Pool {
    /// The header.
    #[must_use]
    pub fn header(self) -> PoolHeader {
        let [magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots] = self.0;
        PoolHeader { magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots }
    }
}

/// What the builder is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Judging the module.
    Validating,
    /// Running its initialisation.
    Initialising,
    /// Compiling the snapshot.
    Compiling,
}

impl Phase {
    const ALL: [(Self, &str); 3] =
        [(Self::Validating, "validating"), (Self::Initialising, "initialising"), (Self::Compiling, "compiling")];
}

/// A line on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// A phase begins.
    Phase(Phase),
    /// The guest has logged a line during its initialisation.
    Log(LogLevel, String),
    /// A sentence: why the module is refused, or what failed.
    Sentence(String),
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Phase(phase) => {
                let name = Phase::ALL.iter().find(|(other, _)| other == phase).map_or("", |(_, name)| name);
                write!(f, "phase: {name}")
            }
            Self::Log(level, text) => write!(f, "log {}: {text}", *level as i32),
            Self::Sentence(sentence) => f.write_str(sentence),
        }
    }
}

impl From<&str> for Said {
    fn from(line: &str) -> Self {
        let phase = line.strip_prefix("phase: ").and_then(|name| Phase::ALL.iter().find(|(_, other)| *other == name));
        if let Some((phase, _)) = phase {
            return Self::Phase(*phase);
        }
        let log = line.strip_prefix("log ").and_then(|rest| rest.split_once(": "));
        match log.and_then(|(level, text)| Some((i32::from_str(level).ok()?, text))) {
            Some((level, text)) => Self::Log(LogLevel::from_guest(level), text.to_owned()),
            None => Self::Sentence(line.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let all = [
            Said::Phase(Phase::Compiling),
            Said::Log(LogLevel::Warn, "phase: compiling".to_owned()),
            Said::Sentence("it is too blue: phase: compiling".to_owned()),
        ];
        for said in all {
            assert_eq!(Said::from(said.to_string().as_str()), said);
        }
    }

    #[test]
    fn facts_are_one_line() {
        let facts = Facts {
            memory_bytes: 1 << 20,
            start: Start::Snapshot(Pool([1, 2, 3, 4, 5, 6, 7, 8])),
            metrics: Vec::new(),
            stack: Some(1 << 19),
        };
        let line = serde_json::to_string(&facts).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Facts>(&line).unwrap(), facts);
    }
}
