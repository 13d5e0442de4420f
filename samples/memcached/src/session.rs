//! A connection of TCP: bytes in, bytes out. It holds one line, the value that is being received, and one answer. An answer's value stays in
//! the store, pinned, and is sent in parts, so a client that reads nothing costs no more than that.

use std::io::{ErrorKind, Read, Write};

use crate::protocol::{self, Answer, Command, Get, Receive, Settings};
use crate::store::{Cursor, Pin, Store};

/// The first byte of a connection that speaks the binary protocol.
pub const BINARY_MAGIC: u8 = 0x80;

/// Bytes that are read, or written, at a time.
const PART_BYTES: usize = 4096;
/// Longest line without an end, unless it is one of keys.
const LINE_BYTES_MAX: usize = 2048;
/// Longest line of keys.
const KEYS_LINE_BYTES_MAX: usize = 64 << 10;
/// Most spaces before the command of a line of keys.
const SPACES_MAX: usize = 100;

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It waits for more input, or for room.
    Open,
    /// It is over; what was written is to be sent.
    Closed,
}

/// Why nothing more can be done now.
enum Stop {
    Waits,
    Ends,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Line,
    /// The keys of the line at the start of the input are being fetched.
    Get {
        get: Get,
        line_bytes: usize,
        with_end_bytes: usize,
    },
    Receive(Receive),
    Discard(u64),
    Close,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub struct Session {
    input: Vec<u8>,
    /// Bytes at the start of the input that are done with.
    done: usize,
    state: State,
    has_begun: bool,
    text: Vec<u8>,
    text_sent: usize,
    value: Option<(Pin, Cursor)>,
}

impl Session {
    /// Reads and answers commands, as far as there is input and room for output. The store's time must be set.
    pub fn ready(&mut self, store: &mut Store, settings: &Settings, io: &mut (impl Read + Write)) -> Status {
        loop {
            match self.step(store, settings, io) {
                Ok(()) => {}
                Err(Stop::Waits) => return Status::Open,
                Err(Stop::Ends) => return Status::Closed,
            }
        }
    }

    /// Returns how many bytes the session holds itself, without the value that it receives.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.input.capacity() + self.text.capacity()
    }

    fn step(&mut self, store: &mut Store, settings: &Settings, io: &mut (impl Read + Write)) -> Result<(), Stop> {
        self.send(store, io)?;
        match core::mem::take(&mut self.state) {
            State::Line => self.line(store, settings, io)?,
            State::Get { mut get, line_bytes, with_end_bytes } => {
                let line = &self.input[self.done..self.done + line_bytes];
                match get.next(line, store) {
                    Some(answer) => {
                        self.answer(answer, store);
                        self.state = State::Get { get, line_bytes, with_end_bytes };
                    }
                    None => self.done += with_end_bytes,
                }
            }
            State::Receive(receive) => self.receive(receive, store, io)?,
            State::Discard(0) => {}
            State::Discard(left) => {
                let held = self.input.len() - self.done;
                if held == 0 {
                    self.state = State::Discard(left);
                    return self.read(store, io);
                }
                let discarded = left.min(held as u64);
                self.done += discarded as usize;
                self.state = State::Discard(left - discarded);
            }
            State::Close => {
                self.state = State::Close;
                return Err(Stop::Ends);
            }
        }
        Ok(())
    }

    /// Executes the next line, or reads more of it.
    fn line(&mut self, store: &mut Store, settings: &Settings, io: &mut (impl Read + Write)) -> Result<(), Stop> {
        let held = &self.input[self.done..];
        // Only the first byte of a connection says which protocol it speaks.
        if !self.has_begun && held.first() == Some(&BINARY_MAGIC) {
            self.state = State::Close;
            return Ok(());
        }
        self.has_begun |= !held.is_empty();
        let Some(line) = Line::find(held) else {
            if held.len() > LINE_BYTES_MAX && !(is_of_keys(held) && held.len() <= KEYS_LINE_BYTES_MAX) {
                self.state = State::Close;
                return Ok(());
            }
            return self.read(store, io);
        };
        match protocol::execute(&held[..line.bytes], store, settings) {
            Command::Answer(answer) => self.answer(answer, store),
            Command::Get(get) => {
                self.state = State::Get { get, line_bytes: line.bytes, with_end_bytes: line.with_end_bytes };
                return Ok(());
            }
            Command::Receive(receive) => self.state = State::Receive(receive),
            Command::Discard(answer, left) => {
                self.answer(answer, store);
                self.state = State::Discard(left);
            }
            Command::Close => self.state = State::Close,
        }
        self.done += line.with_end_bytes;
        Ok(())
    }

    fn receive(&mut self, mut receive: Receive, store: &mut Store, io: &mut (impl Read + Write)) -> Result<(), Stop> {
        let held = &self.input[self.done..];
        if receive.left() > 0 && held.is_empty() {
            self.state = State::Receive(receive);
            return self.read(store, io);
        }
        match receive.take(held, store) {
            Ok(taken) => {
                self.done += taken;
                if receive.left() > 0 {
                    self.state = State::Receive(receive);
                } else {
                    let answer = receive.complete(store);
                    self.answer(answer, store);
                }
            }
            Err(_) => {
                let (answer, left) = receive.abandon();
                self.answer(answer, store);
                self.state = State::Discard(left);
            }
        }
        Ok(())
    }

    fn read(&mut self, store: &mut Store, io: &mut impl Read) -> Result<(), Stop> {
        self.input.drain(..self.done);
        self.done = 0;
        let held = self.input.len();
        if held == 0 && self.input.capacity() > 2 * PART_BYTES {
            self.input = Vec::new();
        }
        self.input.resize(held + PART_BYTES, 0);
        let read = io.read(&mut self.input[held..]);
        let count = read.as_ref().map_or(0, |count| *count);
        self.input.truncate(held + count);
        store.counters.bytes_read += count as u64;
        match read {
            Ok(1..) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Stop::Waits),
            _ => Err(Stop::Ends),
        }
    }

    fn answer(&mut self, answer: Answer, store: &Store) {
        debug_assert!(self.value.is_none(), "an answer replaces one that was not sent");
        self.text = answer.text;
        self.text_sent = 0;
        self.value = answer.value.map(|pin| {
            let cursor = store.value(pin.id());
            (pin, cursor)
        });
    }

    /// Sends the answer, as far as there is room.
    fn send(&mut self, store: &mut Store, io: &mut impl Write) -> Result<(), Stop> {
        loop {
            while self.text_sent < self.text.len() {
                self.text_sent += write(io, &self.text[self.text_sent..], store)?;
            }
            let Some((pin, cursor)) = &mut self.value else {
                self.text = Vec::new();
                self.text_sent = 0;
                return Ok(());
            };
            if cursor.left() == 0 {
                // Kept in the room of the text, as it may have to wait.
                self.text = b"\r\n".to_vec();
                self.text_sent = 0;
                self.value = None;
                continue;
            }
            debug_assert!(store.is_pinned(pin.id()), "a value is sent that may be overwritten");
            let mut part = [0; PART_BYTES];
            let len = store.copy(cursor, &mut part);
            let sent = write(io, &part[..len], store)?;
            store.skip(cursor, sent);
        }
    }
}

fn write(io: &mut impl Write, bytes: &[u8], store: &mut Store) -> Result<usize, Stop> {
    match io.write(bytes) {
        Ok(count @ 1..) => {
            store.counters.bytes_written += count as u64;
            Ok(count)
        }
        Ok(0) => Err(Stop::Waits),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Err(Stop::Waits),
        Err(_) => Err(Stop::Ends),
    }
}

/// The first line of a text.
pub(crate) struct Line {
    /// Bytes without its end.
    pub(crate) bytes: usize,
    /// Bytes with LF, and perhaps CR, at its end.
    pub(crate) with_end_bytes: usize,
}

impl Line {
    pub(crate) fn find(text: &[u8]) -> Option<Self> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let has_cr = end > 1 && text[end - 1] == b'\r';
        Some(Self { bytes: end - usize::from(has_cr), with_end_bytes: end + 1 })
    }
}

fn is_of_keys(line: &[u8]) -> bool {
    let spaces = line.iter().take_while(|byte| **byte == b' ').count();
    spaces <= SPACES_MAX && (line[spaces..].starts_with(b"get ") || line[spaces..].starts_with(b"gets "))
}
