//! memcached's text protocol (protocol.txt of memcached 1.6.18), one command at a time, independent of what carries it.
//!
//! ```text
//!   line --execute--> Command   a whole answer, keys to be fetched one by one, or a value that follows
//!            classic.rs  the commands of old      meta.rs  those of two letters      stats.rs  what is counted
//! ```
//!
//! Errors are those of memcached, to the letter, and so is what it accepts.

pub mod base64;
mod classic;
mod meta;
mod stats;

use std::io::Write as _;

use crate::store::{KEY_BYTES_MAX, Mode, OutOfMemory, Pin, Store, Stored};

/// The version whose protocol this is.
pub const VERSION: &str = "1.6.18";

/// Tokens into which a line is divided; what follows is only read by `get` and its like.
const TOKENS_MAX: usize = 23;

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";

/// What `stats settings` says besides the store's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The port of TCP.
    pub tcp_port: u16,
    /// The port of UDP; 0 if there is none.
    pub udp_port: u16,
    /// Most connections at once.
    pub connections_max: u16,
    /// How long a connection may be idle, in seconds; 0 is for ever.
    pub idle_timeout_s: u32,
}

/// An answer: a text, and after it perhaps a value with CRLF.
#[derive(Debug, Default)]
pub struct Answer {
    /// The text; empty if there is nothing to be said.
    pub text: Vec<u8>,
    /// The item whose value follows the text.
    pub value: Option<Pin>,
}

impl Answer {
    /// Returns an answer of one line.
    #[must_use]
    pub fn line(text: &str) -> Self {
        Self { text: [text.as_bytes(), b"\r\n"].concat(), value: None }
    }

    fn line_unless(text: &str, no_reply: bool) -> Self {
        if no_reply { Self::default() } else { Self::line(text) }
    }
}

/// What is to be done after a command's line.
#[derive(Debug)]
pub enum Command {
    /// This is the whole answer.
    Answer(Answer),
    /// The answers for the keys of the line follow.
    Get(Get),
    /// A value follows, to be stored.
    Receive(Receive),
    /// This is the answer, and so many bytes follow that are discarded.
    Discard(Answer, u64),
    /// The connection ends.
    Close,
}

impl Command {
    fn line(text: &str) -> Self {
        Self::Answer(Answer::line(text))
    }

    fn line_unless(text: &str, no_reply: bool) -> Self {
        Self::Answer(Answer::line_unless(text, no_reply))
    }
}

/// A line in tokens, which are divided by spaces.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    tokens: [&'a [u8]; TOKENS_MAX],
    len: usize,
}

impl<'a> Tokens<'a> {
    fn new(line: &'a [u8]) -> Self {
        let mut tokens: [&[u8]; TOKENS_MAX] = [&[]; TOKENS_MAX];
        let mut len = 0;
        for (place, token) in tokens.iter_mut().zip(words(line)) {
            *place = token;
            len += 1;
        }
        Self { tokens, len }
    }

    /// Returns a token; an empty one if there are not so many.
    fn at(&self, index: usize) -> &'a [u8] {
        self.tokens.get(index).copied().unwrap_or_default()
    }

    /// Returns whether the last token says that no answer is wanted.
    fn no_reply(&self) -> bool {
        self.at(self.len - 1) == b"noreply"
    }

    fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Self { tokens, len } = *self;
        (index..len).map(move |index| tokens[index])
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Executes the command of a line, which has no CR and LF at its end.
pub fn execute(line: &[u8], store: &mut Store, settings: &Settings) -> Command {
    // memcached takes it for a string of C.
    let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let tokens = Tokens::new(line);
    let command = tokens.at(0);
    // The numbers of tokens that a command may have, itself included.
    let wants = |counts: core::ops::RangeInclusive<usize>| counts.contains(&tokens.len);
    match command {
        [] | [_] => Command::line("ERROR"),
        [b'm', b'n'] => Command::line("MN"),
        [b'm', b'g' | b's' | b'd' | b'a'] if !wants(2..=TOKENS_MAX) => Command::line("ERROR"),
        b"mg" => meta::get(&tokens, store),
        b"ms" => meta::set(&tokens, store),
        b"md" => meta::delete(&tokens, store),
        b"ma" => meta::arithmetic(&tokens, store),
        b"me" => meta::debug(&tokens, store),
        b"get" | b"bget" if wants(2..=TOKENS_MAX) => classic::get(line, false, false, store),
        b"gets" if wants(2..=TOKENS_MAX) => classic::get(line, true, false, store),
        b"gat" if wants(2..=TOKENS_MAX) => classic::get(line, false, true, store),
        b"gats" if wants(2..=TOKENS_MAX) => classic::get(line, true, true, store),
        b"set" if wants(5..=6) => classic::update(&tokens, Mode::Set, store),
        b"add" if wants(5..=6) => classic::update(&tokens, Mode::Add, store),
        b"replace" if wants(5..=6) => classic::update(&tokens, Mode::Replace, store),
        b"append" if wants(5..=6) => classic::update(&tokens, Mode::Append, store),
        b"prepend" if wants(5..=6) => classic::update(&tokens, Mode::Prepend, store),
        b"cas" if wants(6..=7) => classic::update(&tokens, Mode::Cas, store),
        b"incr" if wants(3..=4) => classic::arithmetic(&tokens, true, store),
        b"decr" if wants(3..=4) => classic::arithmetic(&tokens, false, store),
        b"delete" if wants(2..=4) => classic::delete(&tokens, store),
        b"touch" if wants(3..=4) => classic::touch(&tokens, store),
        b"flush_all" if wants(1..=3) => classic::flush_all(&tokens, store),
        b"verbosity" if wants(2..=3) => classic::verbosity(&tokens),
        b"stats" => stats::stats(&tokens, store, settings),
        b"version" => Command::line(&format!("VERSION {VERSION}")),
        b"quit" => Command::Close,
        _ => other(&tokens),
    }
}

/// Answers commands that change what memcached has and this server has not, as memcached does with that disabled; and unknown ones.
fn other(tokens: &Tokens<'_>) -> Command {
    match (tokens.at(0), tokens.len) {
        (b"shutdown", _) => Command::line("ERROR: shutdown not enabled"),
        (b"watch", _) => Command::line_unless("CLIENT_ERROR watch commands not allowed", tokens.no_reply()),
        (b"lru_crawler", 2) if tokens.at(1) == b"enable" => Command::line("ERROR failed to start lru crawler thread"),
        (b"lru_crawler", 3) if tokens.at(1) == b"crawl" => Command::line("CLIENT_ERROR lru crawler disabled"),
        (b"lru_crawler", 3) if tokens.at(1) == b"metadump" => Command::line("CLIENT_ERROR lru crawler disabled"),
        (b"slabs", 4) if tokens.at(1) == b"reassign" => Command::line("CLIENT_ERROR slab reassignment disabled"),
        (b"cache_memlimit", 2..=3) => classic::memory_limit(tokens),
        (command, len) if !is_ours(command) && tokens.at(len - 1).starts_with(b"HTTP/") => Command::Close,
        _ => Command::line("ERROR"),
    }
}

/// Returns whether a command's name is, or begins as, one of memcached's, so that the line is no request of HTTP.
fn is_ours(command: &[u8]) -> bool {
    const NAMES: &str = "replace prepend bget flush_all version quit lru_crawler watch verbosity lru extstore";
    match command {
        [b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't', ..] | [b'm', _] => true,
        _ => NAMES.split(' ').any(|name| name.as_bytes() == command),
    }
}

/// The keys of a line that are fetched one by one. The line must be kept for that.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    with_cas: bool,
    /// The expiry that each item gets.
    touch: Option<u32>,
    /// Where in the line the next key is looked for.
    at: usize,
    is_done: bool,
}

impl Get {
    /// Returns the answer for the next key of the line that there is, and in the end the last line. `None` after that.
    pub fn next(&mut self, line: &[u8], store: &mut Store) -> Option<Answer> {
        while let Some(key) = self.next_key(line) {
            let found = store.find(key);
            let counters = &mut store.counters;
            match (found.is_some(), self.touch.is_some()) {
                (true, true) => {
                    (counters.touch_cmds, counters.touch_hits) = (counters.touch_cmds + 1, counters.touch_hits + 1)
                }
                (false, true) => {
                    (counters.touch_cmds, counters.touch_misses) = (counters.touch_cmds + 1, counters.touch_misses + 1)
                }
                (true, false) => {
                    (counters.get_cmds, counters.get_hits) = (counters.get_cmds + 1, counters.get_hits + 1)
                }
                (false, false) => {
                    (counters.get_cmds, counters.get_misses) = (counters.get_cmds + 1, counters.get_misses + 1)
                }
            }
            let Some(id) = found else { continue };
            store.bump(id);
            if let Some(exptime) = self.touch {
                store.set_exptime(id, exptime);
            }
            let item = store.attributes(id);
            let mut text = [&b"VALUE "[..], key].concat();
            append(&mut text, format_args!(" {} {}", item.client_flags, item.value_len));
            if self.with_cas {
                append(&mut text, format_args!(" {}", item.cas));
            }
            text.extend_from_slice(b"\r\n");
            return Some(Answer { text, value: Some(store.pin(id)) });
        }
        if core::mem::replace(&mut self.is_done, true) { None } else { Some(Answer::line("END")) }
    }

    fn next_key<'l>(&mut self, line: &'l [u8]) -> Option<&'l [u8]> {
        let line = line.split(|byte| *byte == 0).next()?;
        let rest = line.get(self.at..)?;
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let len = rest[start..].iter().position(|byte| *byte == b' ').unwrap_or(rest.len() - start);
        self.at += start + len;
        Some(&rest[start..start + len])
    }
}

/// Part of the answer of `ms`.
#[derive(Debug)]
enum Returned {
    Text(Vec<u8>),
    Cas,
}

/// A value that is being received.
#[derive(Debug)]
pub struct Receive {
    pin: Pin,
    value_left: usize,
    /// What follows the value; must be CRLF.
    end: [u8; 2],
    end_len: usize,
    mode: Mode,
    cas: u64,
    set_stale: bool,
    no_reply: bool,
    /// What `ms` says after its code; `None` for a classic command.
    returned: Option<Vec<Returned>>,
}

impl Receive {
    fn new(pin: Pin, value_len: usize, mode: Mode, no_reply: bool) -> Self {
        Self {
            pin,
            value_left: value_len,
            end: [0; 2],
            end_len: 0,
            mode,
            cas: 0,
            set_stale: false,
            no_reply,
            returned: None,
        }
    }

    /// Returns how many bytes are still to come.
    #[must_use]
    pub fn left(&self) -> usize {
        self.value_left + self.end.len() - self.end_len
    }

    /// Takes bytes; returns how many.
    ///
    /// # Errors
    ///
    /// There is no memory for the value.
    pub fn take(&mut self, bytes: &[u8], store: &mut Store) -> Result<usize, OutOfMemory> {
        let (value, rest) = bytes.split_at(bytes.len().min(self.value_left));
        store.push(self.pin.id(), value)?;
        self.value_left -= value.len();
        let end = &rest[..rest.len().min(self.end.len() - self.end_len)];
        self.end[self.end_len..self.end_len + end.len()].copy_from_slice(end);
        self.end_len += end.len();
        Ok(value.len() + end.len())
    }

    /// Stores the value, which must be complete.
    pub fn complete(self, store: &mut Store) -> Answer {
        debug_assert_eq!(self.left(), 0, "a value is stored that is not complete");
        store.counters.set_cmds += 1;
        if self.end != *b"\r\n" {
            return Answer::line_unless("CLIENT_ERROR bad data chunk", self.no_reply && self.returned.is_none());
        }
        let stored = store.store(&self.pin, self.mode, self.cas, self.set_stale);
        let Some(returned) = self.returned else {
            let text = match stored {
                Stored::Stored(_) => "STORED",
                Stored::Exists => "EXISTS",
                Stored::NotFound => "NOT_FOUND",
                Stored::NotStored => "NOT_STORED",
            };
            return Answer::line_unless(text, self.no_reply);
        };
        let (code, cas) = match stored {
            Stored::Stored(_) if self.no_reply => return Answer::default(),
            Stored::Stored(cas) => ("HD", cas),
            Stored::Exists => ("EX", 0),
            Stored::NotFound => ("NF", 0),
            Stored::NotStored => ("NS", 0),
        };
        let mut text = code.as_bytes().to_vec();
        for part in &returned {
            match part {
                Returned::Text(part) => text.extend_from_slice(part),
                Returned::Cas => append(&mut text, format_args!(" c{cas}")),
            }
        }
        text.extend_from_slice(b"\r\n");
        Answer { text, value: None }
    }

    /// Gives the value up for want of memory: returns the answer, and how many bytes are to be discarded.
    #[must_use]
    pub fn abandon(self) -> (Answer, u64) {
        (Answer::line_unless("SERVER_ERROR Out of memory during read", self.no_reply), self.left() as u64)
    }
}

fn append(text: &mut Vec<u8>, arguments: core::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a vector takes all that is written to it");
}

fn is_too_long(key: &[u8]) -> bool {
    key.len() > KEY_BYTES_MAX
}
