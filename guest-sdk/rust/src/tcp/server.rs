//! Many connections at once: a [`Service`] is called on each connection's events, and a [`Server`] makes a function of it.

use super::stack::{News, Stack};
use super::{OWN_SLOTS, Settings, Stream};
use crate::{Batch, Function, InitError, Slots, clock};

/// A service that handles any number of connections concurrently. [`Server`] makes a [`Function`] of it.
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
}

/// The function made from a [`Service`].
pub struct Server<S: Service> {
    service: S,
    stack: Stack,
    connections: Box<[Option<S::Connection>]>,
}

impl<S: Service> Server<S> {
    /// Returns the service.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
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
        Ok(Self { service, stack: Stack::new(settings), connections })
    }

    fn start(&mut self) {
        self.stack.start();
        self.service.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.stack.begin_turn();
        for packet in batch {
            self.stack.receive(&packet, slots, now_ns);
        }
        self.turn(slots, now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.stack.deadline_ns()
    }

    fn expire(&mut self, slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        self.stack.begin_turn();
        self.stack.expire(now_ns);
        self.turn(slots, now_ns);
    }
}
