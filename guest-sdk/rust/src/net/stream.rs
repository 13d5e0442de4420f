//! One connection, for its owner to read and write: [`Stream`].

use core::fmt;
use core::net::SocketAddr;
use std::io::{self, ErrorKind, Read, Write};

use smoltcp::socket::tcp::RecvError;

use super::close::CloseReason;
use super::outbound::{ConnectError, FlowId, StreamId, Target, Via};
use super::protocols::Protocols;
use super::{IpVersion, LookupId, ResolveError, Sockets};
use crate::{Slots, clock};

/// A connection of a [`Server`](super::Server), for the duration of a call. No operation blocks: a read without data, and a write without
/// room, return [`ErrorKind::WouldBlock`], and [`Service::ready`](super::Service::ready) is called again when that may have changed. An error
/// of a connection that was reset or aborted contains its [`CloseReason`].
pub struct Stream<'a> {
    protocols: &'a mut Protocols,
    place: u16,
    /// `None` in a [`Program`](super::Program), which sees no `Stream` itself.
    slots: Option<Slots<'a>>,
    is_left: bool,
}

impl<'a> Stream<'a> {
    pub(super) fn new(protocols: &'a mut Protocols, place: u16, slots: Option<Slots<'a>>) -> Self {
        Self { protocols, place, slots, is_left: false }
    }

    /// Returns the function's other means, such as to send datagrams. By default what it opens leaves by the way of this connection's peer.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// use pinion_sdk::net::testing::Network;
    /// use pinion_sdk::net::{Datagram, Server, Service, Settings, Sockets, Stream, UdpPeer};
    /// use pinion_sdk::InitError;
    ///
    /// /// Passes what comes by TCP on to the latest peer that has sent a datagram.
    /// struct Bridge {
    ///     peer: Option<UdpPeer>,
    /// }
    ///
    /// impl Service for Bridge {
    ///     type Connection = ();
    ///
    ///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
    ///         Ok((Self { peer: None }, Settings { tcp_ports: vec![7], udp_ports: vec![7], ..Settings::default() }))
    ///     }
    ///
    ///     fn accept(&mut self, _stream: &mut Stream<'_>) {}
    ///
    ///     fn datagram(&mut self, datagram: Datagram<'_>, _sockets: Sockets<'_>) {
    ///         self.peer = Some(datagram.peer());
    ///         datagram.answer(b"noted");
    ///     }
    ///
    ///     fn ready(&mut self, _connection: &mut (), stream: &mut Stream<'_>) {
    ///         let mut bytes = [0; 100];
    ///         let (Some(peer), Ok(count @ 1..)) = (self.peer, stream.read(&mut bytes)) else { return };
    ///         let _ = peer.send_with(stream.sockets().slots(), |payload| {
    ///             payload[..count].copy_from_slice(&bytes[..count]);
    ///             Some(count)
    ///         });
    ///     }
    /// }
    ///
    /// let mut network = Network::<Server<Bridge>>::new(b"").unwrap();
    /// network.ask("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:7".parse().unwrap(), b"");
    /// let client = network.connect("10.0.0.3".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
    /// network.serve_udp("10.0.0.1:5000".parse().unwrap(), |_from, payload| {
    ///     assert_eq!(payload, b"hello");
    ///     vec![]
    /// });
    /// network.send(client, b"hello");
    /// network.settle();
    /// ```
    ///
    /// # Panics
    ///
    /// If no service was called with this connection.
    pub fn sockets(&mut self) -> Sockets<'_> {
        let (via, slots) = (self.via(), self.slots.expect("a service's connection has the function's slots"));
        Sockets::new(self.protocols, slots).by(via)
    }

    /// Returns the connection's number, by which another one can [wake](Stream::wake) it.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.protocols.tcp.id(self.place)
    }

    /// Returns whether its owner has closed or aborted it in this call.
    pub(super) fn is_left(&self) -> bool {
        self.is_left
    }

    /// Returns whether the connection is over for its owner: it was aborted or [closed](Stream::close).
    pub(super) fn is_done(&mut self) -> bool {
        self.is_left || self.protocols.tcp.is_closed(self.place)
    }

    /// Returns the peer's address and port.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.protocols.tcp.ends(self.place).0
    }

    /// Returns the local address and port, which the peer has connected to.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.protocols.tcp.ends(self.place).1
    }

    /// Returns how many bytes a write would accept now.
    #[must_use]
    pub fn room(&mut self) -> usize {
        let socket = self.protocols.tcp.socket(self.place);
        if socket.may_send() { socket.send_capacity() - socket.send_queue() } else { 0 }
    }

    /// Sends the written data, then a FIN. The peer may still send.
    pub fn shutdown(&mut self) {
        self.protocols.tcp.socket(self.place).close();
    }

    /// Closes the connection: written data is sent, and data that the peer still sends is discarded.
    pub fn close(&mut self) {
        self.is_left = true;
    }

    /// Aborts the connection: data that was not sent yet is discarded.
    pub fn abort(&mut self) {
        self.protocols.tcp.abort(self.place);
        self.is_left = true;
    }

    /// Opens a connection, as [`Sockets::connect`](super::Sockets::connect) does, by default by the way of this connection's peer.
    ///
    /// # Errors
    ///
    /// As [`Sockets::connect`](super::Sockets::connect).
    pub fn connect(&mut self, to: impl Into<Target>) -> Result<StreamId, ConnectError> {
        self.protocols.connect(to.into(), Some(self.via()))
    }

    /// Opens a TCP connection to a port of the chain's next stage, on behalf of this connection's peer: to the address that the peer has
    /// connected to, from the peer's own address and a port that is chosen at random. The next stage needs not know of this function.
    /// What becomes of the connection is told as for [`Sockets::connect`](super::Sockets::connect); no grant is needed, as nothing leaves the
    /// node.
    ///
    /// The chain must have a way back (`reverse` in the manifest; `from = []` is enough): so the next stage's replies pass this function.
    /// Only what the node marks as such a reply belongs to the connection, whatever addresses and ports others write into their packets.
    ///
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// use pinion_sdk::net::testing::Network;
    /// use pinion_sdk::net::{Server, Service, Settings, Stream, StreamId};
    /// use pinion_sdk::InitError;
    ///
    /// /// Greets the next stage for each client.
    /// struct Usher;
    ///
    /// impl Service for Usher {
    ///     type Connection = ();
    ///
    ///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
    ///         Ok((Self, Settings { tcp_ports: vec![7], ..Settings::default() }))
    ///     }
    ///
    ///     fn accept(&mut self, stream: &mut Stream<'_>) {
    ///         if let Err(error) = stream.connect_next_stage(80) {
    ///             pinion_sdk::warn!("{error}");
    ///         }
    ///     }
    ///
    ///     fn connected(&mut self, _id: StreamId, stream: &mut Stream<'_>) -> Option<()> {
    ///         stream.write(b"a client has come").ok().map(drop)
    ///     }
    ///
    ///     fn ready(&mut self, _connection: &mut (), _stream: &mut Stream<'_>) {}
    /// }
    ///
    /// let mut network = Network::<Server<Usher>>::new(b"").unwrap();
    /// let next_stage = network.listen_at_next_stage("10.0.0.2:80".parse().unwrap());
    /// network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
    /// network.settle();
    /// assert_eq!(network.received(next_stage), b"a client has come");
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoWayBack`], [`ConnectError::NoRoom`], and [`ConnectError::RefusedByPeer`] if the port is 0.
    pub fn connect_next_stage(&mut self, port: u16) -> Result<StreamId, ConnectError> {
        self.protocols.tcp.connect_next_stage(self.place, port, clock::now_ns())
    }

    /// Opens a UDP flow, as [`Sockets::open_udp`](super::Sockets::open_udp) does, by default by the way of this connection's peer.
    ///
    /// # Errors
    ///
    /// As [`Sockets::open_udp`](super::Sockets::open_udp).
    pub fn open_udp(&mut self, to: impl Into<Target>) -> Result<FlowId, ConnectError> {
        self.protocols.open_udp(to.into(), Some(self.via()))
    }

    /// Looks up a name, as [`Sockets::resolve`](super::Sockets::resolve) does, by the way of this connection's peer.
    ///
    /// # Errors
    ///
    /// As [`Sockets::resolve`](super::Sockets::resolve).
    pub fn resolve(&mut self, name: &str, version: IpVersion) -> Result<LookupId, ResolveError> {
        self.protocols.resolve(name, version, Some(self.via()))
    }

    /// Returns the way of the peer's last segment; of a connection that the service has opened, the way that it was given.
    #[must_use]
    pub fn via(&self) -> Via {
        self.protocols.tcp.via(self.place)
    }

    /// Returns why the connection has ended, or why the peer sends no more. `None` while the peer may still send.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.protocols.tcp.close_reason(self.place)
    }

    /// Returns the error of a connection that was reset or aborted.
    fn closed(&self) -> io::Error {
        match self.close_reason() {
            Some(reason) => io::Error::new(reason.kind(), reason),
            None => ErrorKind::ConnectionReset.into(),
        }
    }

    /// Schedules a call of [`Service::ready`](super::Service::ready) for another open connection, for example because there is something to
    /// write to it now.
    pub fn wake(&mut self, other: StreamId) {
        self.protocols.tcp.wake(other);
    }

    /// Schedules one call of [`Service::ready`](super::Service::ready) at this time of [`clock::now_ns`](crate::clock::now_ns()), even if
    /// nothing happens until then; `None` cancels it. The latest call counts.
    pub fn wake_at(&mut self, deadline_ns: Option<u64>) {
        self.protocols.tcp.wake_at(self.place, deadline_ns);
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.protocols.tcp.read(self.place, buffer) {
            Ok(0) if !buffer.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Ok(len) => Ok(len),
            Err(RecvError::Finished) => Ok(0),
            Err(RecvError::InvalidState) => Err(self.closed()),
        }
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.protocols.tcp.write(self.place, bytes) {
            Ok(0) if !bytes.is_empty() => Err(ErrorKind::WouldBlock.into()),
            Ok(len) => Ok(len),
            Err(_) if self.protocols.tcp.is_closed(self.place) => Err(self.closed()),
            Err(_) => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    /// Does nothing: written data is sent when the function waits.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("peer", &self.peer()).finish_non_exhaustive()
    }
}
