//! What a service can do besides reading and writing a connection: [`Sockets`].

use core::fmt;

use super::link::Segment;
use super::outbound::{ConnectError, FlowId, StreamId, Target, Via};
use super::protocols::Protocols;
use super::stack::refuse;
use super::{IpVersion, LookupId, ResolveError, UdpPeer};
use crate::headers::Headers;
use crate::{Packet, Slots};

/// The function's means to send and to connect, for the duration of a call.
pub struct Sockets<'a> {
    protocols: &'a mut Protocols,
    slots: Slots<'a>,
    /// The way of the packet or the connection that the call is about.
    via: Option<Via>,
    /// The slot of the packet that the call is about, and its headers.
    about: Option<(u16, &'a Headers)>,
}

impl<'a> Sockets<'a> {
    #[inline]
    pub(super) fn new(protocols: &'a mut Protocols, slots: Slots<'a>) -> Self {
        Self { protocols, slots, via: None, about: None }
    }

    /// Makes the means for a call about something that came by this way.
    pub(super) fn by(self, via: Via) -> Self {
        Self { via: Some(via), ..self }
    }

    /// Makes the means for a call about a packet with these headers.
    #[inline]
    pub(super) fn about(self, packet: &Packet<'_>, headers: &'a Headers) -> Self {
        Self { about: Some((packet.slot(), headers)), via: Some(Via::of_known(packet, headers)), ..self }
    }

    /// Returns access to the function's own slots and to the packets that it holds.
    #[must_use]
    pub fn slots(&self) -> Slots<'a> {
        self.slots
    }

    /// Opens a TCP connection to an address that the chain is granted. Returns its number at once. When the handshake is done,
    /// [`Service::connected`](super::Service::connected) is called, and from then on it is a connection like those that peers have opened.
    /// Else [`Service::connect_failed`](super::Service::connect_failed) is called, after 10 s at most.
    ///
    /// ```
    /// use std::io::{Read, Write};
    ///
    /// use pinion_sdk::net::testing::Network;
    /// use pinion_sdk::net::{ConnectError, Datagram, Server, Service, Settings, Sockets, Stream, StreamId};
    /// use pinion_sdk::InitError;
    ///
    /// /// Asks a server for the time when a datagram comes, and logs its answer.
    /// struct Clock;
    ///
    /// impl Service for Clock {
    ///     type Connection = ();
    ///
    ///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
    ///         Ok((Self, Settings { udp_ports: vec![9], ..Settings::default() }))
    ///     }
    ///
    ///     fn datagram(&mut self, _datagram: Datagram<'_>, mut sockets: Sockets<'_>) {
    ///         if let Err(error) = sockets.connect("192.0.2.5:13".parse::<std::net::SocketAddr>().unwrap()) {
    ///             pinion_sdk::warn!("{error}");
    ///         }
    ///     }
    ///
    ///     fn accept(&mut self, _stream: &mut Stream<'_>) {}
    ///
    ///     fn connected(&mut self, _id: StreamId, _stream: &mut Stream<'_>) -> Option<()> {
    ///         Some(())
    ///     }
    ///
    ///     fn connect_failed(&mut self, _id: StreamId, error: ConnectError, _sockets: Sockets<'_>) {
    ///         pinion_sdk::warn!("{error}");
    ///     }
    ///
    ///     fn ready(&mut self, _connection: &mut (), stream: &mut Stream<'_>) {
    ///         let mut text = [0; 64];
    ///         if let Ok(count @ 1..) = stream.read(&mut text) {
    ///             pinion_sdk::info!("{}", String::from_utf8_lossy(&text[..count]));
    ///             stream.close();
    ///         }
    ///     }
    /// }
    ///
    /// let mut network = Network::<Server<Clock>>::new(b"").unwrap();
    /// let server = network.listen("192.0.2.5:13".parse().unwrap());
    /// network.ask("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:9".parse().unwrap(), b"");
    /// network.settle();
    /// network.send(server, b"noon");
    /// network.settle();
    /// assert_eq!(pinion_sdk::testing::take_log()[0].1, "noon");
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoRoom`] and [`ConnectError::NoWay`].
    pub fn connect(&mut self, to: impl Into<Target>) -> Result<StreamId, ConnectError> {
        self.protocols.connect(to.into(), self.via())
    }

    /// Opens a flow of UDP datagrams to an address that the chain is granted. Returns its number at once. When it is open, and when it has
    /// ended, [`Service::flow`](super::Service::flow) is called. Datagrams that answer it come to
    /// [`Service::datagram`](super::Service::datagram), [with its number](super::Datagram::flow).
    ///
    /// The node ends a flow by which nothing was sent for 60 s.
    ///
    /// # Errors
    ///
    /// [`ConnectError::NoRoom`] and [`ConnectError::NoWay`].
    pub fn open_udp(&mut self, to: impl Into<Target>) -> Result<FlowId, ConnectError> {
        self.protocols.open_udp(to.into(), self.via())
    }

    /// Returns the far end of a UDP flow, while it is open.
    #[must_use]
    pub fn udp_peer(&self, flow: FlowId) -> Option<UdpPeer> {
        self.protocols.udp.peer(flow)
    }

    /// Closes a UDP flow. [`Service::flow`](super::Service::flow) is not called for it any more.
    pub fn close_udp(&mut self, flow: FlowId) {
        self.protocols.udp.close(flow);
    }

    /// Looks up the addresses of a name, by the [resolvers](super::Settings::resolvers) of the settings. Returns its number at once;
    /// [`Service::resolved`](super::Service::resolved) is called with the answer, within 8 s. The resolvers are asked by the same way as
    /// [`Sockets::connect`] connects by default.
    ///
    /// Answers are kept for as long as they say, an hour at most, those of 32 names; failures are not kept.
    ///
    /// # Errors
    ///
    /// [`ResolveError::InvalidName`], [`ResolveError::NoResolver`], [`ResolveError::NoRoom`], and [`ResolveError::NoFlow`] if no packet has
    /// come yet.
    pub fn resolve(&mut self, name: &str, version: IpVersion) -> Result<LookupId, ResolveError> {
        self.protocols.resolve(name, version, self.via())
    }

    /// Returns whether the service has a connection of this number: open or being opened, and not closed by the service.
    #[must_use]
    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.protocols.tcp.has(stream)
    }

    /// Returns whether there is a UDP flow of this number, open or being opened.
    #[must_use]
    pub fn has_flow(&self, flow: FlowId) -> bool {
        self.protocols.udp.entry_of(flow.0).is_some()
    }

    /// Aborts a connection. [`Service::ready`](super::Service::ready) is called once more if it was open; there is no call if it was not.
    pub fn abort(&mut self, stream: StreamId) {
        self.protocols.tcp.abort_by_id(stream);
    }

    /// Schedules a call of [`Service::ready`](super::Service::ready) for an open connection.
    pub fn wake(&mut self, stream: StreamId) {
        self.protocols.tcp.wake(stream);
    }

    /// Returns the way of the packet or the connection that the call is about. `None` if there is none.
    #[must_use]
    pub fn via(&self) -> Option<Via> {
        self.via
    }

    /// Refuses a packet that is not for a socket: a segment of TCP is answered with a reset, if that is required (RFC 9293, section 3.10.7.1).
    /// Any other packet is dropped, and so is another stage's [reply](Packet::is_reply): an answer would go on to where the reply does.
    pub fn refuse(&self, packet: Packet<'_>) {
        match self.about {
            // Its owner may have cut it.
            Some((slot, headers)) if slot == packet.slot() && headers.at.end <= packet.data().len() => {
                self.refuse_with(&packet, headers)
            }
            _ => Headers::of(packet.data()).into_iter().for_each(|headers| self.refuse_with(&packet, &headers)),
        }
        packet.discard();
    }

    fn refuse_with(&self, packet: &Packet<'_>, headers: &Headers) {
        if let Some(segment) = Segment::of(packet, headers).filter(|_| !packet.is_reply()) {
            refuse(&segment, self.slots);
        }
    }
}

impl fmt::Debug for Sockets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").finish_non_exhaustive()
    }
}
