//! Connections that the function opens itself: asks the node for a flow, and the peer for a connection.
//!
//! Their slots are those of all connections. From the SYN on, such a connection is in the queue of those that no other may replace.

use core::net::SocketAddr;

use smoltcp::socket::tcp::{CongestionControl, State};

use super::{Changes, News, Own, Phase, Reply, STAYING, Segment, Stack, Wire, instant, new_interface};
use crate::Slots;
use crate::net::close::CloseReason;
use crate::net::cookie::seed_of;
use crate::net::link::{Flow, Link};
use crate::net::outbound::{ConnectError, StreamId, Via};
use crate::net::own_flow::{Kind, OwnFlow, Tag};
use crate::net::path::{Cause, Report};
use crate::outbound::{self, Event, Protocol, Refusal, Request};

impl Stack {
    /// Begins to open a connection.
    ///
    /// # Errors
    ///
    /// All slots are in use by connections that cannot be replaced.
    pub(in crate::net) fn connect(&mut self, to: SocketAddr, via: Via, now_ns: u64) -> Result<StreamId, ConnectError> {
        let number = self.vacant(now_ns).ok_or(ConnectError::NoRoom)?;
        self.serial += 1;
        let place = &mut self.places[usize::from(number)];
        (place.serial, place.phase, place.failure) = (self.serial, Phase::Asking, None);
        let id = self.id(number);
        let request = Request { tag: id.0, protocol: Protocol::Tcp, to, vlan: via.vlan };
        self.places[usize::from(number)].own = Some(Own::Outbound(OwnFlow::new(request, via, now_ns)));
        self.hurry(number);
        Ok(id)
    }

    /// Aborts a connection. One that is being opened is forgotten; the owner of an open one finds it closed.
    pub(in crate::net) fn abort_by_id(&mut self, id: StreamId) {
        let Some(number) = self.place_of(id.0) else { return };
        match self.places[usize::from(number)].phase {
            Phase::Asking | Phase::Connecting => self.release(number),
            Phase::Open => {
                self.abort(number);
                self.hurry(number);
            }
            Phase::Opening | Phase::Leaving | Phase::Free => {}
        }
    }

    /// Returns the number of a slot's connection.
    pub(in crate::net) fn id(&self, number: u16) -> StreamId {
        let serial = self.places[usize::from(number)].serial;
        StreamId(Tag { kind: Kind::Connection, serial, index: number }.number())
    }

    /// Queues an open connection for its owner, at most once in each turn, and else for the next one: two connections may wake each other.
    pub(in crate::net) fn wake(&mut self, id: StreamId) {
        let Some(number) = self.place_of(id.0) else { return };
        let turn = self.turn;
        let place = &mut self.places[usize::from(number)];
        if place.phase != Phase::Open {
            return;
        }
        if place.woken_in == turn {
            place.is_woken_again = true;
            self.due_ns[usize::from(number)] = 0;
        } else {
            place.woken_in = turn;
            self.touch(number);
        }
    }

    /// Asks the node to close the flows of connections that are over.
    pub(in crate::net) fn send_endings(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.endings.send(slots, now_ns);
    }

    /// Takes notice of what the node says about a flow.
    pub(in crate::net) fn hear_node(&mut self, event: &Event, via: Via, slots: Slots<'_>, now_ns: u64) {
        match *event {
            Event::Opened { tag, flow } => match self.asking(tag) {
                Some(number) => self.begin(number, &flow, slots, now_ns),
                // The request was repeated, or nothing waits for it any more.
                None => self.endings.push(flow.number, via),
            },
            Event::Refused { tag, refusal } => {
                if let Some(number) = self.asking(tag) {
                    self.fail(number, ConnectError::ByNode(refusal));
                }
            }
            Event::Closed { tag, number: flow, end } => {
                let Some(number) = self.place_of(tag) else { return };
                let own = self.places[usize::from(number)].own.as_mut().and_then(Own::flow);
                if let Some(own) = own.filter(|own| own.number == Some(flow)) {
                    own.number = None;
                    self.end(number, end, now_ns);
                }
            }
        }
    }

    /// Returns whether the function has a connection of this number: open or being opened, and not left by the function.
    pub(in crate::net) fn has(&self, id: StreamId) -> bool {
        let phase = self.place_of(id.0).map(|number| self.places[usize::from(number)].phase);
        matches!(phase, Some(Phase::Asking | Phase::Connecting | Phase::Open))
    }

    /// Returns the slot whose connection has this number.
    fn place_of(&self, number: u64) -> Option<u16> {
        let tag = Tag::of(number);
        let place = self.places.get(usize::from(tag.index))?;
        (place.phase != Phase::Free && place.serial == tag.serial && tag.kind == Kind::Connection).then_some(tag.index)
    }

    fn asking(&self, tag: u64) -> Option<u16> {
        self.place_of(tag).filter(|number| self.places[usize::from(*number)].phase == Phase::Asking)
    }

    /// Asks the node for a connection's flow, if it is time.
    pub(super) fn ask(&mut self, number: u16, slots: Slots<'_>, now_ns: u64) {
        let own = self.places[usize::from(number)].own.as_mut().and_then(Own::flow);
        if let Some(own) = own {
            self.due_ns[usize::from(number)] = own.ask(slots, now_ns);
        }
    }

    /// Sends the SYN of a connection for which the node has opened a flow.
    fn begin(&mut self, number: u16, flow: &outbound::Flow, slots: Slots<'_>, now_ns: u64) {
        let key = Flow::between(flow.to, flow.source).filter(Flow::is_between_hosts);
        // A peer may have connected from there: the node leaves that to the function.
        let is_in_use = key.is_none_or(|key| self.flows.find(&key).is_some());
        let place = &mut self.places[usize::from(number)];
        let Some(own) = place.own.as_mut().and_then(Own::flow) else { return };
        own.number = Some(flow.number);
        let via = own.via();
        let (Some(key), false) = (key, is_in_use) else {
            return self.fail(number, ConnectError::ByNode(Refusal::NoPort));
        };
        self.shake_hands(number, key, Link::of_flow(&key, via.vlan, via.way), now_ns);
        self.send(number, 1, slots, now_ns);
    }

    /// Begins the handshake of a connection of the function's own; its SYN is the next segment that is sent.
    pub(super) fn shake_hands(&mut self, number: u16, key: Flow, link: Link, now_ns: u64) {
        let place = &mut self.places[usize::from(number)];
        place.begin(0, 0, None, now_ns);
        (place.phase, place.link) = (Phase::Connecting, link);
        // smoltcp draws its number from the interface's seed.
        let seed = seed_of(self.cookies.first(&key, now_ns));
        let mut interface = new_interface(&mut Wire::new(None, place.link, place.mtu, &mut place.sent), seed, now_ns);
        let socket = place.socket();
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.abort();
        socket.connect(interface.context(), key.peer(), key.local()).expect("it is closed, and both ends are hosts'");
        self.interface = Some(interface);
        let id = self.flows.insert(key, number, STAYING, now_ns);
        (place.flow, place.id) = (Some(key), Some(id.expect("there are as many as places")));
        self.touch(number);
    }

    /// Processes the peer's answer to a SYN, and acknowledges it: the peer's next segment, which may have arrived already, is judged by
    /// that.
    pub(super) fn agree(&mut self, number: u16, segment: &Segment<'_>, slots: Slots<'_>, now_ns: u64) {
        let (arrived, scale) = (segment.arrived(), segment.offer().scale);
        self.places[usize::from(number)].agree(&arrived, scale, now_ns);
        self.hand_over(number, segment, Changes::default(), slots, now_ns);
        self.send(number, 1, slots, now_ns);
    }

    /// Ends the attempt to open a connection: its owner is told in this turn.
    pub(super) fn fail(&mut self, number: u16, failure: ConnectError) {
        self.places[usize::from(number)].failure = Some(failure);
        self.touch(number);
    }

    /// Ends the attempt if a router says that the SYN cannot reach the peer (RFC 1122, section 4.2.3.9; soft errors end it too, as RFC 5461,
    /// section 4.1, describes).
    pub(super) fn fail_by_report(&mut self, number: u16, report: &Report) {
        match report.cause {
            Cause::Unreachable => self.fail(number, ConnectError::Unreachable),
            Cause::NoSocket => self.fail(number, ConnectError::RefusedByPeer),
            Cause::TooBig(_) | Cause::Other => {}
        }
    }

    /// Handles the end of a connection's flow.
    fn end(&mut self, number: u16, end: outbound::End, now_ns: u64) {
        match self.places[usize::from(number)].phase {
            Phase::Asking | Phase::Connecting => self.fail(number, ConnectError::FlowEnded(end)),
            Phase::Open => {
                // If both sides have closed, that is how it ended.
                if !self.is_finished(number) {
                    self.places[usize::from(number)].reason = Some(CloseReason::FlowEnded(end));
                }
                self.reset_locally(number, now_ns);
            }
            Phase::Leaving | Phase::Opening => self.release(number),
            Phase::Free => {}
        }
    }

    /// Returns whether both sides have closed.
    fn is_finished(&self, number: u16) -> bool {
        matches!(self.places[usize::from(number)].state(), State::TimeWait | State::Closed)
    }

    /// Closes an open connection without a segment to the peer, as if that had reset it. What was received can still be read.
    fn reset_locally(&mut self, number: u16, now_ns: u64) {
        let Self { interface, places, changed, .. } = self;
        let place = &mut places[usize::from(number)];
        if let (Some(interface), Some(flow)) = (interface, place.flow) {
            Reply::resetting(place.numbers().receive_next).write_as_from_peer(&flow, changed);
            let mut wire = Wire::with(None, place.link, place.mtu, &mut place.sent, changed);
            interface.poll_ingress_single(instant(now_ns), &mut wire, &mut place.sockets);
        }
        self.forget_flow(number);
        self.touch(number);
    }

    /// Returns the event for the owner of a connection that is being opened.
    pub(super) fn look_at_attempt(&mut self, number: u16, now_ns: u64) -> News {
        let place = &mut self.places[usize::from(number)];
        if place.failure.is_none() && matches!(place.state(), State::Established | State::CloseWait) {
            place.phase = Phase::Open;
            return News::Connected;
        }
        let is_late = place.own.is_none_or(|own| own.until_ns() <= now_ns);
        let Some(failure) = place.failure.take().or(is_late.then_some(ConnectError::TimedOut)) else {
            return News::None;
        };
        let id = self.id(number);
        self.release(number);
        News::Failed(id, failure)
    }
}
