//! A program's TCP connection: [`TcpStream`].

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, ErrorKind, Read, Write};

use super::{Net, deadline_after};
#[cfg(doc)]
use super::{Program, Settings};
use crate::net::{CloseReason, Stream, Via};

/// A connection of a [`Program`]. When it is dropped, written data is sent, and data that the peer still sends is discarded.
pub struct TcpStream<'a> {
    net: Net<'a>,
    place: u16,
    read_timeout: Option<Duration>,
}

impl<'a> TcpStream<'a> {
    pub(super) fn new(net: Net<'a>, place: u16) -> Self {
        Self { net, place, read_timeout: None }
    }

    /// Returns the peer's address and port.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.net.with(|backlog| backlog.protocols.tcp.ends(self.place).0)
    }

    /// Returns the local address and port: those that the peer has connected to, or that the node has chosen for the program's own
    /// connection.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.net.with(|backlog| backlog.protocols.tcp.ends(self.place).1)
    }

    /// Sets how long a read waits before it fails with [`ErrorKind::TimedOut`]. `None` sets no limit but [`Settings::idle_timeout_ns`].
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Sends the written data, then a FIN. The peer may still send.
    pub fn shutdown(&mut self) {
        self.net.with(|backlog| {
            Stream::new(&mut backlog.protocols, self.place, None).shutdown();
            backlog.protocols.tcp.hurry(self.place);
        });
    }

    /// Aborts the connection: data that was not sent yet is discarded.
    pub fn abort(self) {
        self.net.with(|backlog| backlog.protocols.tcp.abort(self.place));
    }

    /// Returns the way of the peer's last segment; of a connection that the program has opened, the way that it was given.
    #[must_use]
    pub fn via(&self) -> Via {
        self.net.with(|backlog| backlog.protocols.tcp.via(self.place))
    }

    /// Returns why the connection has ended, or why the peer sends no more. `None` while the peer may still send.
    ///
    /// Reads and writes fail with [`ErrorKind::ConnectionReset`], [`ErrorKind::TimedOut`] (a time-out of the [`Settings`]),
    /// [`ErrorKind::HostUnreachable`] or [`ErrorKind::ConnectionAborted`] then.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.net.with(|backlog| backlog.protocols.tcp.close_reason(self.place))
    }

    /// Repeats `work` until it need not wait.
    fn wait<R>(
        &mut self,
        until_ns: Option<u64>,
        mut work: impl FnMut(&mut Stream<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        let place = self.place;
        let done = self.net.wait(until_ns, |backlog| {
            // Work that would block has changed nothing that the peer must be informed of.
            match work(&mut Stream::new(&mut backlog.protocols, place, None)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                done => Some(done),
            }
        });
        self.net.with(|backlog| backlog.protocols.tcp.hurry(place));
        done?
    }
}

impl Read for TcpStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let until_ns = self.read_timeout.map(deadline_after);
        self.wait(until_ns, |stream| stream.read(buffer))
    }
}

impl Write for TcpStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(None, |stream| stream.write(bytes))
    }

    /// Does nothing: written data is sent when the program waits.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TcpStream<'_> {
    fn drop(&mut self) {
        self.net.with(|backlog| {
            backlog.protocols.tcp.leave(self.place);
            backlog.protocols.tcp.hurry(self.place);
        });
    }
}

impl fmt::Debug for TcpStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream").field("peer", &self.peer_addr()).finish_non_exhaustive()
    }
}
