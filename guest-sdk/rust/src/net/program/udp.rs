//! A program's UDP sockets: [`UdpSocket`] at one of its ports, and [`UdpFlow`], which it has opened.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, ErrorKind};

#[cfg(doc)]
use super::Program;
use super::backlog::{Backlog, Inbox};
use super::{Net, deadline_after};
use crate::net::UdpPeer;
use crate::net::outbound::FlowId;

/// The socket of one of a [`Program`]'s UDP ports.
pub struct UdpSocket<'a> {
    net: Net<'a>,
    port: u16,
    read_timeout: Option<Duration>,
}

/// A UDP flow that a [`Program`] has opened. When it is dropped, the flow is closed.
pub struct UdpFlow<'a> {
    net: Net<'a>,
    id: FlowId,
    read_timeout: Option<Duration>,
}

impl<'a> UdpSocket<'a> {
    pub(super) fn new(net: Net<'a>, port: u16) -> Self {
        Self { net, port, read_timeout: None }
    }

    /// Sets how long [`UdpSocket::recv_from`] waits before it fails with [`ErrorKind::TimedOut`]. `None` sets no limit.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Waits for a datagram. Returns how many bytes of it are in `buffer`, and its sender. What does not fit is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]; in a test, also that the test is over.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, UdpPeer)> {
        let until_ns = self.read_timeout.map(deadline_after);
        let (peer, payload) = self.net.wait(until_ns, |backlog| backlog.inbox(self.port).and_then(Inbox::pop))?;
        Ok((copied(&payload, buffer), peer))
    }

    /// Sends a datagram to a peer that has sent one; waits if very many are to be sent already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`]: it is longer than [`UdpPeer::payload_bytes_max`]. In a test, also that the test is over.
    pub fn send_to(&self, payload: &[u8], peer: &UdpPeer) -> io::Result<()> {
        send(&self.net, payload, peer)
    }
}

impl<'a> UdpFlow<'a> {
    pub(super) fn new(net: Net<'a>, id: FlowId) -> Self {
        Self { net, id, read_timeout: None }
    }

    /// Returns the address and port to which it leads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotConnected`]: the flow was never open.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer()?.address())
    }

    /// Returns the address and port that the node has chosen for it.
    ///
    /// # Errors
    ///
    /// As [`UdpFlow::peer_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer()?.local())
    }

    /// Sets how long [`UdpFlow::recv`] waits before it fails with [`ErrorKind::TimedOut`]. `None` sets no limit.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) {
        self.read_timeout = timeout;
    }

    /// Waits for an answer. Returns how many bytes of it are in `buffer`. What does not fit is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]; [`ErrorKind::ConnectionRefused`] or [`ErrorKind::HostUnreachable`], once, if a datagram of the flow has not
    /// arrived; [`ErrorKind::ConnectionAborted`] if the node has ended the flow. In a test, also that the test is over.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let until_ns = self.read_timeout.map(deadline_after);
        let payload = self.net.wait(until_ns, |backlog| received(backlog, self.id))??;
        Ok(copied(&payload, buffer))
    }

    /// Sends a datagram; waits if very many are to be sent already.
    ///
    /// # Errors
    ///
    /// As [`UdpSocket::send_to`], and as [`UdpFlow::recv`] for a flow that is over or a datagram before this one.
    pub fn send(&self, payload: &[u8]) -> io::Result<()> {
        if let Some(error) = self.net.with(|backlog| backlog.flow_error(self.id)) {
            return Err(error.into());
        }
        send(&self.net, payload, &self.peer()?)
    }

    fn peer(&self) -> io::Result<UdpPeer> {
        self.net.with(|backlog| backlog.flow_peer(self.id)).ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

/// Returns the next datagram of a flow, or what is wrong with the flow.
fn received(backlog: &mut Backlog, id: FlowId) -> Option<io::Result<Vec<u8>>> {
    let datagram = backlog.flow_inbox(id).and_then(Inbox::pop);
    let error = |backlog: &mut Backlog| backlog.flow_error(id).map(|error| Err(error.into()));
    datagram.map(|(_, payload)| Ok(payload)).or_else(|| error(backlog))
}

pub(super) fn send(net: &Net<'_>, payload: &[u8], peer: &UdpPeer) -> io::Result<()> {
    if payload.len() > peer.payload_bytes_max() {
        return Err(ErrorKind::InvalidInput.into());
    }
    net.wait(None, |backlog| backlog.send(*peer, payload))
}

fn copied(payload: &[u8], buffer: &mut [u8]) -> usize {
    let count = payload.len().min(buffer.len());
    buffer[..count].copy_from_slice(&payload[..count]);
    count
}

impl Drop for UdpFlow<'_> {
    fn drop(&mut self) {
        self.net.with(|backlog| backlog.close_udp(self.id));
    }
}

impl fmt::Debug for UdpSocket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpSocket").field("port", &self.port).finish_non_exhaustive()
    }
}

impl fmt::Debug for UdpFlow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpFlow").field("peer", &self.peer_addr().ok()).finish_non_exhaustive()
    }
}
