//! Many sockets at once: a [`Service`] is called on each connection's events and for each datagram, and a [`Server`] makes a function of it.

use super::stack::{News, Stack};
use super::{Datagram, OWN_SLOTS, Settings, Sockets, Stream};
use crate::headers::{Headers, UDP};
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

    /// Called when a peer has connected. [`Service::ready`] comes next.
    fn accept(&mut self, stream: &mut Stream<'_>) -> Self::Connection;

    /// Called when something may have happened to a connection: there may be data to read, or room to write again, the peer may have closed
    /// or reset it, or its [time](Stream::wake_at) may have come. Some calls are spurious. A connection's state is dropped once it was
    /// closed or aborted.
    fn ready(&mut self, connection: &mut Self::Connection, stream: &mut Stream<'_>);

    /// Called for each datagram to one of the service's [ports](Settings::udp_ports). Without an implementation it is dropped.
    fn datagram(&mut self, datagram: Datagram<'_>, sockets: Sockets<'_>) {
        let _ = (datagram, sockets);
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
    udp_ports: Box<[u16]>,
    stack: Stack,
    connections: Box<[Option<S::Connection>]>,
}

impl<S: Service> Server<S> {
    /// Returns the service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// Gives a packet to the socket that it is for, or to the service.
    fn receive(&mut self, packet: Packet<'_>, slots: Slots<'_>, now_ns: u64) {
        let Ok(headers) = Headers::of(packet.data()) else { return self.service.packet(packet, Sockets::new(slots)) };
        let sockets = Sockets::about(&packet, &headers, slots);
        let is_datagram = headers.protocol == UDP
            && headers.fragment.is_none()
            && headers.ports.is_some_and(|ports| self.udp_ports.contains(&ports.destination));
        if is_datagram {
            if let Some(datagram) = Datagram::of(packet, &headers) {
                self.service.datagram(datagram, sockets);
            }
        } else if !self.stack.receive(&packet, &headers, slots, now_ns) {
            self.service.packet(packet, sockets);
        }
    }

    /// Calls the service for each connection with an event, and sends what is ready to be sent.
    fn turn(&mut self, slots: Slots<'_>, now_ns: u64) {
        while let Some(place) = self.stack.next_touched() {
            let connection = &mut self.connections[usize::from(place)];
            let news = self.stack.look(place, now_ns);
            let mut stream = Stream::new(&mut self.stack, place);
            if news == News::Opened {
                *connection = Some(self.service.accept(&mut stream));
            }
            if let Some(known) = connection.as_mut().filter(|_| news != News::None) {
                self.service.ready(known, &mut stream);
                if stream.is_done() {
                    *connection = None;
                    self.stack.leave(place);
                }
            }
            self.stack.settle(place, slots, now_ns);
        }
    }
}

impl<S: Service> Function for Server<S> {
    const OWN_SLOTS: u16 = OWN_SLOTS;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let (service, settings) = S::init(config)?;
        settings.check()?;
        let connections = (0..settings.connections_max).map(|_| None).collect();
        let udp_ports = settings.udp_ports.clone().into();
        Ok(Self { service, udp_ports, stack: Stack::new(settings), connections })
    }

    fn start(&mut self) {
        self.stack.start();
        self.service.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.stack.begin_turn();
        for packet in batch {
            self.receive(packet, slots, now_ns);
        }
        self.turn(slots, now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.stack.deadline_ns().into_iter().chain(self.service.deadline_ns()).min()
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        self.stack.begin_turn();
        self.stack.expire(now_ns);
        // Connections first: they send only what their peers have room for, and a service may take all slots that are left.
        self.turn(slots, now_ns);
        if self.service.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.service.expire(Sockets::new(slots));
        }
    }
}
