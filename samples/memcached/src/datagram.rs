//! Requests and answers over UDP, each in datagrams with a header of its own.
//!
//! ```text
//!   0          2           4           6          8
//!   | request  | sequence  | datagrams | reserved | text or part of it
//! ```
//!
//! A request is one datagram. Each of its commands is answered in as many as are needed, which are numbered from 0.

use std::collections::VecDeque;

use crate::protocol::{self, Answer, Command, Settings};
use crate::session::{BINARY_MAGIC, Line};
use crate::store::{Cursor, Pin, Store};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 8;
/// Most bytes of a datagram of an answer, with its header.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// Bytes of answers to one request after which no further value is fetched for it: a short request could ask for gigabytes.
pub const ANSWERS_BYTES_MAX: usize = 2 << 20;
const DATA_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES;

/// The answers to one datagram, which are made while they are sent: the rest of the request, and the answer under way with the items that it
/// needs.
#[derive(Debug)]
pub struct Answers {
    request_id: [u8; 2],
    request: Vec<u8>,
    /// Bytes of the request that are done with.
    done: usize,
    parts: VecDeque<Part>,
    /// Bytes of all answers so far.
    bytes: usize,
    sequence: u16,
    datagrams: u16,
}

#[derive(Debug)]
enum Part {
    Text(Vec<u8>, usize),
    /// The pin keeps the value as it is.
    Value {
        cursor: Cursor,
        _pin: Pin,
    },
}

impl Part {
    fn left(&self) -> usize {
        match self {
            Self::Text(text, sent) => text.len() - sent,
            Self::Value { cursor, .. } => cursor.left(),
        }
    }
}

impl Answers {
    /// Reads a datagram. `None` if it is not answered: it is too short, or part of a longer request, or of the binary protocol.
    #[must_use]
    pub fn new(datagram: &[u8]) -> Option<Self> {
        let (header, request) = datagram.split_at_checked(HEADER_BYTES)?;
        let is_whole = header[4..6] == [0, 1];
        if !is_whole || request.first().is_none_or(|first| *first == BINARY_MAGIC) {
            return None;
        }
        Some(Self {
            request_id: [header[0], header[1]],
            request: request.to_vec(),
            done: 0,
            parts: VecDeque::new(),
            bytes: 0,
            sequence: 0,
            datagrams: 0,
        })
    }

    /// Makes the next datagram; returns its length, or `None` if there is none. The store's time must be set.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than [`DATAGRAM_BYTES_MAX`].
    pub fn next(&mut self, store: &mut Store, settings: &Settings, buffer: &mut [u8]) -> Option<usize> {
        while self.parts.is_empty() {
            self.execute(store, settings)?;
        }
        let mut len = HEADER_BYTES;
        buffer[..2].copy_from_slice(&self.request_id);
        buffer[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        buffer[4..6].copy_from_slice(&self.datagrams.to_be_bytes());
        buffer[6..HEADER_BYTES].fill(0);
        while let Some(part) = self.parts.front_mut().filter(|_| len < DATAGRAM_BYTES_MAX) {
            let room = &mut buffer[len..DATAGRAM_BYTES_MAX];
            len += match part {
                Part::Text(text, sent) => {
                    let count = room.len().min(text.len() - *sent);
                    room[..count].copy_from_slice(&text[*sent..*sent + count]);
                    *sent += count;
                    count
                }
                Part::Value { cursor, .. } => {
                    let count = store.copy(cursor, room);
                    store.skip(cursor, count);
                    count
                }
            };
            if part.left() == 0 {
                self.parts.pop_front();
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        store.counters.bytes_written += len as u64;
        Some(len)
    }

    /// Returns whether nothing is left to be sent or executed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.parts.is_empty() && self.done >= self.request.len()
    }

    /// Executes the next command of the request; `None` if there is none, or if the answers are as long as they may be.
    fn execute(&mut self, store: &mut Store, settings: &Settings) -> Option<()> {
        if self.bytes >= ANSWERS_BYTES_MAX {
            self.done = self.request.len();
            return None;
        }
        let rest = &self.request[self.done..];
        let line = Line::find(rest)?;
        let end = self.done + line.with_end_bytes;
        let range = self.done..self.done + line.bytes;
        self.done = end;
        match protocol::execute(&self.request[range.clone()], store, settings) {
            Command::Answer(answer) => self.push(answer, store),
            Command::Get(mut get) => {
                while let Some(answer) = get.next(&self.request[range.clone()], store) {
                    // A key that is left out is a miss for the client, as any may be.
                    if answer.value.is_none() || self.bytes < ANSWERS_BYTES_MAX {
                        self.push(answer, store);
                    }
                }
            }
            Command::Receive(mut receive) => {
                let rest = &self.request[end..];
                match receive.take(rest, store) {
                    Ok(taken) => {
                        self.done += taken;
                        // The rest of a value that is cut cannot come.
                        if receive.left() > 0 {
                            return None;
                        }
                        let answer = receive.complete(store);
                        self.push(answer, store);
                    }
                    Err(_) => {
                        let (answer, _) = receive.abandon();
                        self.done = self.request.len();
                        self.push(answer, store);
                    }
                }
            }
            Command::Discard(answer, count) => {
                self.push(answer, store);
                self.done = self.request.len().min(end.saturating_add(usize::try_from(count).unwrap_or(usize::MAX)));
            }
            Command::Close => {
                self.done = self.request.len();
                return None;
            }
        }
        let left: usize = self.parts.iter().map(Part::left).sum();
        self.sequence = 0;
        // The field has no room for more, and the largest value after as many bytes as there may be is not so long.
        self.datagrams = u16::try_from(left.div_ceil(DATA_BYTES_MAX)).unwrap_or(u16::MAX);
        Some(())
    }

    fn push(&mut self, answer: Answer, store: &Store) {
        self.bytes += answer.text.len();
        if !answer.text.is_empty() {
            self.parts.push_back(Part::Text(answer.text, 0));
        }
        if let Some(pin) = answer.value {
            let cursor = store.value(pin.id());
            self.bytes += cursor.left();
            if cursor.left() > 0 {
                self.parts.push_back(Part::Value { cursor, _pin: pin });
            }
            self.parts.push_back(Part::Text(b"\r\n".to_vec(), 0));
        }
    }
}
