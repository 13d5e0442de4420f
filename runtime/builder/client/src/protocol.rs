//! The protocol of node and builder, besides the bytes of modules and templates.
//!
//! ```text
//!   standard input    build: configuration, files if there are any, the module      check: the module      check-files: the files      model: ONNX
//!   standard output   build: facts, a line of JSON, then native code      model: its form
//!   standard error    a line of JSON each: {"phase":"compiling"}, {"log":[2,"what the guest said"]}, {"sentence":"it is too blue"}
//! ```
//!
//! Text from a module stands within JSON strings only, so no module can forge a message of the builder. A line in another form, such as a
//! library's abort message, counts as a sentence. All text is made printable when it is read, because a module may have taken the builder
//! over.

use std::borrow::Cow;

use pinion_abi::{LogLevel, PoolHeader};
use pinion_text::{SENTENCE_BYTES_MAX, TEXT_BYTES_MAX, printable, printable_lines};
use serde::{Deserialize, Serialize};

use crate::metrics::Metric;

/// The facts about a template, besides its code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Linear memory of an instance at the start, in bytes.
    pub memory_bytes: u64,
    /// What the engine keeps of an instance beside that, in bytes, at most: its record of globals and functions, and its table.
    pub instance_bytes: u64,
    /// The state of an instance after its instantiation.
    pub start: Start,
    /// Counters and gauges of a snapshot. A module that initialises itself declares its metrics afterwards.
    pub metrics: Vec<Metric>,
    /// The top of the stack in linear memory, which grows downwards, as far as it is known.
    pub stack: Option<u32>,
}

/// The state of an instance after its instantiation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Initialised: the module is a snapshot. Its pool has this header.
    Snapshot(Pool),
    /// Not initialised: no snapshot could be taken, for this reason, so each instance initialises itself.
    Module(String),
}

/// A pool header, word by word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool(pub [u32; size_of::<PoolHeader>() / 4]);

impl Pool {
    /// Returns the header.
    #[must_use]
    pub fn header(self) -> PoolHeader {
        let [magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots] = self.0;
        PoolHeader { magic, slot_count, slot_size, slots, ring_entries, rx_ring, tx_ring, own_slots }
    }
}

/// What the builder is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Checking the module.
    Validating,
    /// Running its initialisation.
    Initialising,
    /// Compiling the snapshot.
    Compiling,
}

/// A line on standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuilderMessage {
    /// A phase begins.
    Phase(Phase),
    /// The guest has logged a line during its initialisation.
    Log(LogLevel, String),
    /// A sentence: why the module is refused, or what failed.
    Sentence(String),
}

/// A message in the form in which it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line<'a> {
    Phase(Phase),
    Log(i32, Cow<'a, str>),
    Sentence(Cow<'a, str>),
}

impl BuilderMessage {
    /// Returns the message as a line, without its line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        let line = match self {
            Self::Phase(phase) => Line::Phase(*phase),
            Self::Log(level, text) => Line::Log(*level as i32, text.into()),
            Self::Sentence(sentence) => Line::Sentence(sentence.into()),
        };
        serde_json::to_string(&line).expect("strings and numbers can be written as JSON")
    }

    /// Parses any line. The text is made printable; that of a sentence may have several lines.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Self {
        match serde_json::from_slice(line) {
            Ok(Line::Phase(phase)) => Self::Phase(phase),
            Ok(Line::Log(level, text)) => {
                Self::Log(LogLevel::from_guest(level), printable(text.as_bytes(), SENTENCE_BYTES_MAX))
            }
            Ok(Line::Sentence(sentence)) => Self::Sentence(printable_lines(sentence.as_bytes(), TEXT_BYTES_MAX)),
            Err(_) => Self::Sentence(printable(line, SENTENCE_BYTES_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_parsed_as_it_was_written() {
        let all = [
            BuilderMessage::Phase(Phase::Compiling),
            BuilderMessage::Log(LogLevel::Warn, "phase: compiling".to_owned()),
            BuilderMessage::Log(LogLevel::Error, "a \"word\" \\n".to_owned()),
            BuilderMessage::Sentence("it is too blue\n   0: 0x1f main".to_owned()),
        ];
        for said in all {
            let line = said.to_line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(BuilderMessage::of_line(line.as_bytes()), said);
        }
    }

    #[test]
    fn text_from_a_module_stays_part_of_a_sentence() {
        for name in [
            "phase: compiling",
            "\n{\"phase\":\"compiling\"}\n",
            "\"}\n{\"log\":[1,\"forged\"]}",
            "\r\u{1b}[2K\u{202e}\u{2028}",
        ] {
            let line = BuilderMessage::Sentence(format!("it imports {name}")).to_line();
            let heard: Vec<BuilderMessage> =
                line.split('\n').map(|line| BuilderMessage::of_line(line.as_bytes())).collect();
            assert_eq!(
                heard,
                [BuilderMessage::Sentence(printable_lines(format!("it imports {name}"), TEXT_BYTES_MAX))]
            );
        }
    }

    #[test]
    fn a_line_that_is_not_of_the_protocol_is_a_sentence() {
        for (line, sentence) in [
            (&b"thread 'main' has overflowed its stack"[..], "thread 'main' has overflowed its stack"),
            (b"phase: compiling", "phase: compiling"),
            (b"{\"phase\":\"resting\"}", "{\"phase\":\"resting\"}"),
            (b"{\"phase\":\"compiling\",\"log\":[1,\"x\"]}", "{\"phase\":\"compiling\",\"log\":[1,\"x\"]}"),
            (b"\xff\x1b[2J", "\u{fffd}\\u{1b}[2J"),
            (b"", ""),
        ] {
            assert_eq!(BuilderMessage::of_line(line), BuilderMessage::Sentence(sentence.to_owned()));
        }
    }

    #[test]
    fn messages_are_made_printable_even_if_the_builder_is_compromised() {
        let said = BuilderMessage::Log(LogLevel::Info, "a\u{1b}b\nc".to_owned());
        assert_eq!(
            BuilderMessage::of_line(said.to_line().as_bytes()),
            BuilderMessage::Log(LogLevel::Info, "a\\u{1b}b\\nc".to_owned())
        );
    }

    #[test]
    fn facts_are_one_line() {
        let facts = Facts {
            memory_bytes: 1 << 20,
            instance_bytes: 1 << 12,
            start: Start::Snapshot(Pool([1, 2, 3, 4, 5, 6, 7, 8])),
            metrics: Vec::new(),
            stack: Some(1 << 19),
        };
        let line = serde_json::to_string(&facts).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Facts>(&line).unwrap(), facts);
    }
}
