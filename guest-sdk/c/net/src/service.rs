//! A service in C.

use core::net::IpAddr;

use pinion_sdk::net::{
    ConnectError, Datagram, FlowEvent, FlowId, LookupId, ResolveError, Service, Settings, Sockets, Stream, StreamId,
};
use pinion_sdk::{InitError, Packet, foreign};

use crate::boundary::{callbacks, current};
use crate::call::Call;
use crate::frames;
use crate::results::Outcome;
use crate::types::{self, Address};

/// A service whose callbacks are those of the C function.
#[derive(Debug)]
pub struct Guest;

impl Guest {
    /// Calls C about a connection.
    fn about<R>(stream: &mut Stream<'_>, work: impl FnOnce(u64) -> R) -> R {
        let number = foreign::number_of_stream(stream.id());
        current::during(&mut Call::about(stream), || work(number))
    }
}

impl Service for Guest {
    type Connection = callbacks::State;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, callbacks::init(config)?))
    }

    fn start(&mut self) {
        callbacks::start();
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> callbacks::State {
        Self::about(stream, callbacks::accept)
    }

    fn connected(&mut self, _id: StreamId, stream: &mut Stream<'_>) -> Option<callbacks::State> {
        Self::about(stream, callbacks::connected)
    }

    fn connect_failed(&mut self, id: StreamId, error: ConnectError, sockets: Sockets<'_>) {
        let number = foreign::number_of_stream(id);
        current::during(&mut Call::by(sockets), || callbacks::connect_failed(number, error.into()));
    }

    fn ready(&mut self, connection: &mut callbacks::State, stream: &mut Stream<'_>) {
        if !Self::about(stream, |number| callbacks::ready(number, connection)) {
            stream.close();
        }
    }

    fn datagram(&mut self, datagram: Datagram<'_>, sockets: Sockets<'_>) {
        let payload = datagram.payload();
        let described = types::Datagram {
            payload: payload.as_ptr(),
            len: payload.len(),
            peer: datagram.peer().into(),
            is_of_flow: datagram.flow().is_some(),
            flow: datagram.flow().map_or(0, foreign::number_of_flow),
        };
        let mut call = Call::Sockets { sockets, datagram: Some(datagram) };
        current::during(&mut call, || callbacks::datagram(&described));
    }

    fn flow(&mut self, id: FlowId, event: FlowEvent, sockets: Sockets<'_>) {
        let (news, is_over) = match event {
            FlowEvent::Opened(_) => (Outcome::Done, false),
            FlowEvent::Lost(error) => (error.into(), false),
            FlowEvent::Ended(error) => (error.into(), true),
        };
        let number = foreign::number_of_flow(id);
        current::during(&mut Call::by(sockets), || callbacks::flow(number, news, is_over));
    }

    fn resolved(&mut self, id: LookupId, answer: Result<&[IpAddr], ResolveError>, sockets: Sockets<'_>) {
        let (result, addresses): (_, Vec<Address>) = match answer {
            Ok(addresses) => (Outcome::Done, addresses.iter().map(|address| (*address).into()).collect()),
            Err(error) => (error.into(), Vec::new()),
        };
        let number = foreign::number_of_lookup(id);
        current::during(&mut Call::by(sockets), || callbacks::resolved(number, result, &addresses));
    }

    fn packet(&mut self, packet: Packet<'_>, sockets: Sockets<'_>) {
        if !callbacks::has_packet() {
            return sockets.refuse(packet);
        }
        let (descriptor, slot) = frames::lend(packet);
        current::during(&mut Call::by(sockets), || callbacks::deliver(&descriptor, slot));
    }

    fn deadline_ns(&self) -> Option<u64> {
        callbacks::wake_time()
    }

    fn expire(&mut self, sockets: Sockets<'_>) {
        callbacks::set_wake_time(None);
        current::during(&mut Call::by(sockets), callbacks::expire);
    }
}
