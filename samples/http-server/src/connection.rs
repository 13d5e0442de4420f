//! The state of a connection, [`Connection`]: what was received, the response under way, and the deadlines.
//!
//! ```text
//!   idle --> head --> response --> content of that request --> idle
//!                        |
//!                        +--> ending --> closed     after the last response
//!
//!   request deadline:   idle, head and content
//!   pace:               whatever the client has not acknowledged, in any state
//! ```

use std::io::ErrorKind;

use crate::pace::Pace;
use crate::request::content::Rest;
use crate::request::{self, HEAD_BYTES_MAX, Parsed};
use crate::response::Response;
use crate::transport::Transport;

/// How long a client may take to send a request's head, and to send its content after that.
const REQUEST_NS_MAX: u64 = 10_000_000_000;

/// The state of a connection.
pub struct Connection {
    /// Bytes that were received.
    received: Vec<u8>,
    /// How many of them are done with.
    consumed: usize,
    pub(crate) response: Option<Response>,
    /// What is still to come of the content of the request that was answered last.
    rest: Option<Rest>,
    /// When it is closed unless the request, or its content, is complete by then.
    deadline_ns: u64,
    /// Whether the deadline counts from the first bytes of a request.
    has_begun: bool,
    /// Whether the last response was sent.
    pub(crate) is_ending: bool,
    pub(crate) opened_ns: u64,
    pub(crate) answered: u32,
    /// Bytes that were written into the send buffer.
    pub(crate) written: u64,
    pub(crate) pace: Pace,
}

/// What to do with a connection for which nothing is left to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait until the client has taken more.
    WaitForRoom,
    /// Wait until the client has sent more, or this time has come.
    WaitForRequest { until_ns: u64 },
    /// Close it, as no other request is answered on it.
    End,
    /// Reset it, so that the client notices that the response is not complete.
    Abort,
}

impl Connection {
    /// Makes the state of a connection in whose send buffer are so many bytes.
    pub(crate) fn new(now_ns: u64, idle_ns: u64, unacknowledged: u64) -> Self {
        Self {
            received: Vec::new(),
            consumed: 0,
            response: None,
            rest: None,
            deadline_ns: now_ns + idle_ns,
            has_begun: false,
            is_ending: false,
            opened_ns: now_ns,
            answered: 0,
            written: unacknowledged,
            pace: Pace::default(),
        }
    }

    /// Starts the time for the next request, or for the content of the last one.
    pub(crate) fn wait(&mut self, now_ns: u64, idle_ns: u64) {
        // A part of the next request may already be here.
        self.has_begun = self.rest.is_none() && request::has_begun(self.unread());
        let is_under_way = self.has_begun || self.rest.is_some();
        self.deadline_ns = now_ns + if is_under_way { REQUEST_NS_MAX } else { idle_ns };
    }

    /// Records what follows the head of a request that was accepted.
    pub(crate) fn expect(&mut self, rest: Option<Rest>) {
        self.rest = rest;
    }

    /// Skips what is there of the content of the last request. Returns false if its end cannot be found.
    pub(crate) fn skip_content(&mut self, now_ns: u64, idle_ns: u64) -> bool {
        let Some(rest) = &mut self.rest else { return true };
        let Ok(count) = rest.skip(&self.received[self.consumed..]) else { return false };
        self.consumed += count;
        if rest.is_over() {
            self.rest = None;
            self.wait(now_ns, idle_ns);
        }
        true
    }

    /// Takes the next request of what was received.
    pub(crate) fn next_request(&mut self) -> Parsed {
        if self.rest.is_some() {
            return Parsed::Partial;
        }
        let parsed = request::parse(self.unread());
        if let Parsed::Request(_, len) = &parsed {
            self.consumed += len;
        }
        parsed
    }

    /// Reads what has come, by way of `part`; returns what to do if there is nothing.
    pub(crate) fn read(&mut self, stream: &mut impl Transport, part: &mut [u8], now_ns: u64) -> Option<Next> {
        self.received.drain(..self.consumed);
        self.consumed = 0;
        let most = (HEAD_BYTES_MAX - self.received.len()).min(part.len());
        match stream.read(&mut part[..most]) {
            Ok(count @ 1..) => {
                self.received.extend_from_slice(&part[..count]);
                if self.rest.is_none() && !self.has_begun && request::has_begun(&self.received) {
                    self.has_begun = true;
                    self.deadline_ns = now_ns + REQUEST_NS_MAX;
                }
                None
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && now_ns < self.deadline_ns => {
                Some(Next::WaitForRequest { until_ns: self.deadline_ns })
            }
            // All complete requests are answered.
            _ => Some(Next::End),
        }
    }

    fn unread(&self) -> &[u8] {
        &self.received[self.consumed..]
    }
}
