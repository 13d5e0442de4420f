//! Many sockets at once: a [`Service`] is called on each connection's events and for each datagram, and a [`Server`] makes a function of it.

use core::net::IpAddr;

use super::dns::LOOKUPS_MAX;
use super::protocols::{Protocols, Taken};
use super::stack::News;
use super::{
    ConnectError, Datagram, FlowEvent, FlowId, LookupId, OWN_SLOTS, ResolveError, Settings, Sockets, Stream, StreamId,
};
use crate::headers::Headers;
use crate::{Batch, Function, InitError, Packet, Slots, clock};

/// A service that handles any number of connections and datagrams, and what else comes. [`Server`] makes a [`Function`] of it.
///
/// ```
/// use std::io::{Read, Write};
///
/// use pinion_sdk::net::testing::Network;
/// use pinion_sdk::net::{Datagram, Server, Service, Settings, Sockets, Stream};
/// use pinion_sdk::{InitError, Message, Packet};
///
/// /// Says how often it was asked, over TCP, over UDP and by calls.
/// struct Tally {
///     asked: u32,
/// }
///
/// impl Tally {
///     fn next(&mut self) -> String {
///         self.asked += 1;
///         format!("{}\n", self.asked)
///     }
/// }
///
/// impl Service for Tally {
///     type Connection = ();
///
///     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
///         Ok((Self { asked: 0 }, Settings { tcp_ports: vec![17, 1017], udp_ports: vec![17], ..Settings::default() }))
///     }
///
///     fn accept(&mut self, stream: &mut Stream<'_>) {
///         let _ = stream.write_all(self.next().as_bytes());
///     }
///
///     fn ready(&mut self, _connection: &mut (), stream: &mut Stream<'_>) {
///         stream.close();
///     }
///
///     fn datagram(&mut self, datagram: Datagram<'_>, _sockets: Sockets<'_>) {
///         datagram.answer(self.next().as_bytes());
///     }
///
///     fn packet(&mut self, packet: Packet<'_>, sockets: Sockets<'_>) {
///         match Message::of(packet) {
///             Ok(message) => message.answer(self.next().as_bytes()).expect("it is short"),
///             Err(other) => sockets.refuse(other),
///         }
///     }
/// }
///
/// pinion_sdk::export!(Server<Tally>);
///
/// let mut network = Network::<Server<Tally>>::new(b"").unwrap();
/// let from = "10.0.0.1".parse().unwrap();
/// let client = network.connect(from, "10.0.0.2:1017".parse().unwrap());
/// network.settle();
/// assert_eq!(network.received(client), b"1\n");
/// let asked = network.ask((from, 5000).into(), "10.0.0.2:17".parse().unwrap(), b"");
/// assert_eq!(asked, [b"2\n"]);
/// let verdicts = network.harness.deliver(&[&pinion_sdk::testing::message(b"")]);
/// assert_eq!(pinion_sdk::testing::payload(&verdicts[0].bytes), b"3\n");
/// ```
pub trait Service: Sized + 'static {
    /// The state of one connection.
    type Connection;

    /// Prepares the service from its configuration, as [`Function::init`] does, and returns its settings.
    ///
    /// # Errors
    ///
    /// The error's message goes to the tenant's log, and the configuration is refused.
    fn init(config: &[u8]) -> Result<(Self, Settings), InitError>;

    /// As [`Function::start`].
    fn start(&mut self) {}

    /// Called when a peer has connected. [`Service::ready`] comes next, unless the connection is closed or aborted here.
    fn accept(&mut self, stream: &mut Stream<'_>) -> Self::Connection;

    /// Called when a connection that the service [opens](Sockets::connect) is open: the peer has accepted it. [`Service::ready`] comes next,
    /// unless the connection is closed or aborted here. Without an implementation, or without a state, it is closed.
    fn connected(&mut self, id: StreamId, stream: &mut Stream<'_>) -> Option<Self::Connection> {
        let _ = (id, stream);
        None
    }

    /// Called when a connection cannot be opened.
    fn connect_failed(&mut self, id: StreamId, error: ConnectError, sockets: Sockets<'_>) {
        let _ = (id, error, sockets);
    }

    /// Called when something may have happened to a connection: there may be data to read, or room to write again, the peer may have closed
    /// or reset it, or its [time](Stream::wake_at) may have come. Some calls are spurious. A connection's state is dropped once it was
    /// closed or aborted.
    fn ready(&mut self, connection: &mut Self::Connection, stream: &mut Stream<'_>);

    /// Called for each datagram to one of the service's [ports](Settings::udp_ports), and for each that answers one of its
    /// [flows](Datagram::flow). Without an implementation it is dropped.
    fn datagram(&mut self, datagram: Datagram<'_>, sockets: Sockets<'_>) {
        let _ = (datagram, sockets);
    }

    /// Called when something has happened to a UDP flow that the service [opens](Sockets::open_udp).
    fn flow(&mut self, id: FlowId, event: FlowEvent, sockets: Sockets<'_>) {
        let _ = (id, event, sockets);
    }

    /// Called with the answer to a [lookup](Sockets::resolve): at least one address, and at most 16.
    fn resolved(&mut self, id: LookupId, answer: Result<&[IpAddr], ResolveError>, sockets: Sockets<'_>) {
        let _ = (id, answer, sockets);
    }

    /// Called for each packet that is not for a socket: messages, fragments, ICMP, other protocols, and what is addressed to other ports.
    /// Without an implementation it is [refused](Sockets::refuse).
    fn packet(&mut self, packet: Packet<'_>, sockets: Sockets<'_>) {
        sockets.refuse(packet);
    }

    /// Returns the time at which to call [`Service::expire`], as [`Function::deadline_ns`] does. Connections have
    /// [times of their own](Stream::wake_at).
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Called when the service's deadline has passed, as [`Function::expire`] is.
    fn expire(&mut self, sockets: Sockets<'_>) {
        let _ = sockets;
    }
}

/// The function made from a [`Service`].
pub struct Server<S: Service> {
    service: S,
    protocols: Protocols,
    connections: Box<[Option<S::Connection>]>,
}

impl<S: Service> Server<S> {
    /// Returns the service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// Gives a packet to the socket that it is for, or to the service.
    fn receive(&mut self, packet: Packet<'_>, slots: Slots<'_>, now_ns: u64) {
        let Self { service, protocols, .. } = self;
        let Ok(headers) = Headers::of(packet.data()) else {
            if !protocols.hear_node(&packet, slots, now_ns) {
                service.packet(packet, Sockets::new(protocols, slots));
            }
            return;
        };
        match protocols.receive(&packet, &headers, slots, now_ns) {
            Taken::Done => {}
            Taken::Datagram(own) => {
                let sockets = Sockets::new(protocols, slots).about(&packet, &headers);
                if let Some(datagram) = Datagram::of(packet, &headers, own) {
                    service.datagram(datagram, sockets);
                }
            }
            Taken::Other => {
                let sockets = Sockets::new(protocols, slots).about(&packet, &headers);
                service.packet(packet, sockets);
            }
        }
    }

    /// Calls the service for each connection and flow with an event, and sends what is ready to be sent.
    fn turn(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.protocols.look_up(slots, now_ns);
        // A service may look up a name that is cached whenever it is told of one.
        let mut answers_left = LOOKUPS_MAX;
        loop {
            if let Some(place) = self.protocols.tcp.next_touched() {
                self.serve(place, slots, now_ns);
            } else if let Some((id, event)) = self.protocols.next_flow_event() {
                self.service.flow(id, event, Sockets::new(&mut self.protocols, slots));
            } else if answers_left > 0
                && let Some((id, answer)) = self.protocols.next_answer()
            {
                answers_left -= 1;
                let sockets = Sockets::new(&mut self.protocols, slots);
                self.service.resolved(id, answer.as_deref().map_err(|error| *error), sockets);
            } else {
                break;
            }
        }
        self.protocols.finish_turn(slots, now_ns);
    }

    /// Calls the service for a connection with an event, and sends what is ready to be sent.
    fn serve(&mut self, place: u16, slots: Slots<'_>, now_ns: u64) {
        let Self { service, protocols, connections } = self;
        let connection = &mut connections[usize::from(place)];
        let news = protocols.tcp.look(place, now_ns);
        if let News::Failed(id, error) = news {
            service.connect_failed(id, error, Sockets::new(protocols, slots));
            return protocols.tcp.settle(place, slots, now_ns);
        }
        let mut stream = Stream::new(protocols, place, Some(slots));
        match news {
            News::Opened => *connection = Some(service.accept(&mut stream)),
            News::Connected => *connection = service.connected(stream.id(), &mut stream),
            News::Ready | News::Failed(..) | News::None => {}
        }
        if let Some(known) = connection.as_mut().filter(|_| news != News::None) {
            // `accept` or `connected` may have closed it.
            if !stream.is_left() {
                service.ready(known, &mut stream);
            }
            if stream.is_done() {
                *connection = None;
                protocols.tcp.leave(place);
            }
        } else if news == News::Connected {
            protocols.tcp.leave(place);
        }
        protocols.tcp.settle(place, slots, now_ns);
    }
}

impl<S: Service> Function for Server<S> {
    const OWN_SLOTS: u16 = OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let (service, settings) = S::init(config)?;
        settings.check()?;
        let connections = (0..settings.connections_max).map(|_| None).collect();
        Ok(Self { service, protocols: Protocols::new(settings), connections })
    }

    fn start(&mut self) {
        self.protocols.start();
        self.service.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.protocols.begin_turn();
        for packet in batch {
            self.receive(packet, slots, now_ns);
        }
        self.turn(slots, now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.protocols.deadline_ns().into_iter().chain(self.service.deadline_ns()).min()
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        self.protocols.begin_turn();
        self.protocols.expire(now_ns);
        // Connections first: they send only what their peers have room for, and a service may take all slots that are left.
        self.turn(slots, now_ns);
        if self.service.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.service.expire(Sockets::new(&mut self.protocols, slots));
            // It may have opened or closed something.
            self.turn(slots, now_ns);
        }
    }
}
