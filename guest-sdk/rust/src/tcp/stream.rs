//! One connection, as its owner reads from it and writes to it: [`Stream`].

use core::fmt;
use core::net::SocketAddr;
use std::io::{self, ErrorKind, Read, Write};

use smoltcp::socket::tcp::{RecvError, State};

use super::stack::Stack;

/// A connection of a [`Server`](super::Server)'s, for as long as it is looked at. Nothing waits here: a read that finds nothing, and a write that finds no room,
/// is [`ErrorKind::WouldBlock`], and [`Service::ready`](super::Service::ready) is called again when that may have changed.
pub struct Stream<'a> {
    stack: &'a mut Stack,
    place: u16,
    is_left: bool,
}

impl<'a> Stream<'a> {
    pub(super) fn new(stack: &'a mut Stack, place: u16) -> Self {
        Self { stack, place, is_left: false }
    }

    /// Whether nothing more is to be expected of it, as it is broken off or was [closed](Stream::close).
    pub(super) fn is_done(&mut self) -> bool {
        self.is_left || self.stack.socket(self.place).state() == State::Closed
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.stack.ends(self.place).0
    }

    /// The address and port that the peer speaks to.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.stack.ends(self.place).1
    }

    /// Bytes that a write would take now.
    #[must_use]
    pub fn room(&mut self) -> usize {
        let socket = self.stack.socket(self.place);
        if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
    }

    /// Sends what was written, and then says that nothing more comes. The connection goes on the other way.
    pub fn shutdown(&mut self) {
        self.stack.socket(self.place).close();
    }

    /// Is done with it: what was written is sent, and what the peer sends from now on is nobody's.
    pub fn close(&mut self) {
        self.is_left = true;
    }

    /// Breaks it off: what was written and not sent is not sent any more.
    pub fn abort(&mut self) {
        self.stack.socket(self.place).abort();
        self.is_left = true;
    }

    /// Has [`Service::ready`](super::Service::ready) be called at that time of [`clock::now_ns`](crate::clock::now_ns()), once, even if nothing
    /// happens until then; never, if none. The last word counts.
    pub fn wake_at(&mut self, deadline_ns: Option<u64>) {
        self.stack.wake_at(self.place, deadline_ns);
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stack.socket(self.place).recv_slice(buffer) {
            Ok(0) if !buffer.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Ok(len) => Ok(len),
            Err(RecvError::Finished) => Ok(0),
            Err(RecvError::InvalidState) => Err(ErrorKind::ConnectionReset.into()),
        }
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.stack.socket(self.place);
        match socket.send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Ok(len) => Ok(len),
            Err(_) if socket.state() == State::Closed => Err(ErrorKind::ConnectionReset.into()),
            Err(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    /// What is written is sent when the function waits: there is nothing to be done.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("peer", &self.peer()).finish_non_exhaustive()
    }
}
