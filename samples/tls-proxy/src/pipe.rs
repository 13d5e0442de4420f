//! Plain text on its way between a client and its upstream: [`Pipe`]. Each side moves its part when it is served.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use http_server::Transport;
use pinion_sdk::net::StreamId;

/// Most bytes that wait in each direction. While there are as many, no more is read, and TCP holds the sender back.
const WAITING_BYTES_MAX: usize = 16 << 10;

/// Two connections, and what goes from one to the other.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) client: StreamId,
    pub(crate) upstream: StreamId,
    pub(crate) to_upstream: Flow,
    pub(crate) to_client: Flow,
    /// When something was moved last.
    pub(crate) moved_ns: u64,
    /// Whether one side was reset or could not be opened.
    pub(crate) is_broken: bool,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    bytes: VecDeque<u8>,
    end: Option<End>,
    /// Whether the end was passed on.
    pub(crate) is_over: bool,
}

/// How the sender has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As the protocol says.
    Proper,
    /// By TCP alone, where TLS has a word for it: something may be missing.
    Cut,
}

impl Pipe {
    pub(crate) fn new(client: StreamId, upstream: StreamId, now_ns: u64) -> Self {
        Self {
            client,
            upstream,
            to_upstream: Flow::default(),
            to_client: Flow::default(),
            moved_ns: now_ns,
            is_broken: false,
        }
    }
}

impl Flow {
    /// Returns how the sender has ended, once all its bytes were passed on.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.filter(|_| self.bytes.is_empty())
    }

    /// Returns whether the sender has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Reads what the sender has sent, by way of `part`. Returns whether there was anything.
    pub(crate) fn fill(&mut self, from: &mut impl Transport, part: &mut [u8]) -> io::Result<bool> {
        let mut has_moved = false;
        while self.end.is_none() && self.bytes.len() < WAITING_BYTES_MAX {
            let most = part.len().min(WAITING_BYTES_MAX - self.bytes.len());
            match from.read(&mut part[..most]) {
                Ok(0) => self.end = Some(End::Proper),
                Ok(count) => self.bytes.extend(&part[..count]),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => self.end = Some(End::Cut),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Writes what waits, as far as there is room. Returns whether anything was written.
    pub(crate) fn drain(&mut self, to: &mut impl Transport) -> io::Result<bool> {
        let mut has_moved = false;
        while !self.bytes.is_empty() {
            let (front, _) = self.bytes.as_slices();
            match to.write(front) {
                Ok(count) => drop(self.bytes.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            has_moved = true;
        }
        to.flush()?;
        Ok(has_moved)
    }
}
