//! What waits for a program to look at it: connections that are not accepted yet, datagrams, and what has become of those that it opens.

use core::net::SocketAddr;
use std::collections::VecDeque;

use crate::Slots;
use crate::net::dns::{LookupId, Outcome};
use crate::net::outbound::{ConnectError, FlowEvent, FlowId, StreamId, Target};
use crate::net::protocols::Protocols;
use crate::net::stack::News;
use crate::net::{Datagram, Settings, UdpPeer};

/// Most datagrams that wait to be received by one socket, or to be sent by all.
const DATAGRAMS_MAX: usize = 32;
/// Delay before a datagram is sent for which there was no slot.
const RETRY_NS: u64 = 50_000;

pub(super) struct Backlog {
    pub(super) protocols: Protocols,
    waiting: VecDeque<u16>,
    /// The connection that the program opens, and what has become of it.
    attempt: Option<(StreamId, Option<Result<u16, ConnectError>>)>,
    ports: Box<[(u16, Inbox)]>,
    flows: Vec<OpenedFlow>,
    outbox: VecDeque<(UdpPeer, Vec<u8>)>,
    /// When to try again to send a datagram.
    retry_ns: u64,
}

/// Datagrams that wait for the program.
#[derive(Default)]
pub(super) struct Inbox(VecDeque<(UdpPeer, Vec<u8>)>);

/// A flow that the program has opened.
struct OpenedFlow {
    id: FlowId,
    inbox: Inbox,
    peer: Option<UdpPeer>,
    /// What is said of the flow next time.
    error: Option<ConnectError>,
    is_over: bool,
}

impl Inbox {
    fn push(&mut self, datagram: &Datagram<'_>) {
        if self.0.len() < DATAGRAMS_MAX {
            self.0.push_back((datagram.peer(), datagram.payload().to_vec()));
        }
    }

    pub(super) fn pop(&mut self) -> Option<(UdpPeer, Vec<u8>)> {
        self.0.pop_front()
    }
}

impl Backlog {
    pub(super) fn new(settings: Settings) -> Self {
        let ports = settings.udp_ports.iter().map(|port| (*port, Inbox::default())).collect();
        Self {
            waiting: VecDeque::with_capacity(settings.connections_max.into()),
            attempt: None,
            ports,
            flows: Vec::new(),
            outbox: VecDeque::new(),
            retry_ns: 0,
            protocols: Protocols::new(settings),
        }
    }

    /// Sends what is ready to be sent, and records new connections and what else has happened.
    pub(super) fn turn(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.protocols.look_up(slots, now_ns);
        while let Some(place) = self.protocols.tcp.next_touched() {
            match self.protocols.tcp.look(place, now_ns) {
                News::Opened => self.waiting.push_back(place),
                News::Connected => self.end_attempt(self.protocols.tcp.id(place), Ok(place)),
                News::Failed(id, error) => self.end_attempt(id, Err(error)),
                News::Ready if self.protocols.tcp.is_closed(place) => self.forget(place),
                News::Ready | News::None => {}
            }
            self.protocols.tcp.settle(place, slots, now_ns);
        }
        while let Some((id, event)) = self.protocols.next_flow_event() {
            let Some(flow) = self.flows.iter_mut().find(|flow| flow.id == id) else { continue };
            match event {
                FlowEvent::Opened(peer) => flow.peer = Some(peer),
                FlowEvent::Lost(error) => flow.error = Some(error),
                FlowEvent::Ended(error) => (flow.error, flow.is_over) = (Some(error), true),
            }
        }
        if !self.outbox.is_empty() {
            self.send_datagrams(slots, now_ns);
        }
        self.protocols.finish_turn(slots, now_ns);
    }

    fn send_datagrams(&mut self, slots: Slots<'_>, now_ns: u64) {
        while let Some((peer, payload)) = self.outbox.front() {
            let sent = peer.send_with(slots, |bytes| {
                bytes.get_mut(..payload.len())?.copy_from_slice(payload);
                Some(payload.len())
            });
            if sent.is_err() {
                self.retry_ns = now_ns + RETRY_NS;
                return;
            }
            self.outbox.pop_front();
        }
        self.retry_ns = 0;
    }

    /// Returns when the program's sockets have something to do.
    #[inline]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let deadline_ns = self.protocols.deadline_ns();
        if self.outbox.is_empty() { deadline_ns } else { deadline_ns.or(Some(u64::MAX)).min(Some(self.retry_ns)) }
    }

    /// Returns whether written data, or a FIN, may not have reached its peer.
    pub(super) fn is_to_be_acknowledged(&self) -> bool {
        self.protocols.tcp.has_unsaid()
    }

    /// Returns whether a reset or a datagram has yet to be sent, for which no answer is waited.
    pub(super) fn is_to_be_sent(&self) -> bool {
        self.protocols.tcp.has_resets() || !self.outbox.is_empty()
    }

    /// Keeps a datagram for the program, if there is room.
    pub(super) fn keep(&mut self, datagram: &Datagram<'_>) {
        let inbox = match datagram.flow() {
            Some(id) => self.flow_inbox(id),
            None => self.inbox(datagram.peer().local().port()),
        };
        if let Some(inbox) = inbox {
            inbox.push(datagram);
        }
    }

    pub(super) fn inbox(&mut self, port: u16) -> Option<&mut Inbox> {
        self.ports.iter_mut().find(|(of, _)| *of == port).map(|(_, inbox)| inbox)
    }

    pub(super) fn flow_inbox(&mut self, id: FlowId) -> Option<&mut Inbox> {
        self.flows.iter_mut().find(|flow| flow.id == id).map(|flow| &mut flow.inbox)
    }

    /// Queues a datagram. `None` if as many wait already as may.
    pub(super) fn send(&mut self, peer: UdpPeer, payload: &[u8]) -> Option<()> {
        if self.outbox.len() >= DATAGRAMS_MAX {
            return None;
        }
        self.outbox.push_back((peer, payload.to_vec()));
        Some(())
    }

    /// Returns the first connection that waits to be accepted at a wanted local end.
    pub(super) fn accepted(&mut self, is_wanted: impl Fn(SocketAddr) -> bool) -> Option<u16> {
        let at = self.waiting.iter().position(|place| is_wanted(self.protocols.tcp.ends(*place).1))?;
        self.waiting.remove(at)
    }

    pub(super) fn connect(&mut self, target: Target) -> Result<StreamId, ConnectError> {
        let id = self.protocols.connect(target, None)?;
        self.attempt = Some((id, None));
        Ok(id)
    }

    /// Returns what has become of the connection that the program opens.
    pub(super) fn outcome(&mut self, id: StreamId) -> Option<Result<u16, ConnectError>> {
        let outcome = self.attempt.filter(|(of, _)| *of == id)?.1?;
        self.attempt = None;
        Some(outcome)
    }

    fn end_attempt(&mut self, id: StreamId, outcome: Result<u16, ConnectError>) {
        match &mut self.attempt {
            Some((of, ended)) if *of == id => *ended = Some(outcome),
            _ => {}
        }
    }

    pub(super) fn open_udp(&mut self, target: Target) -> Result<FlowId, ConnectError> {
        let id = self.protocols.open_udp(target, None)?;
        self.flows.push(OpenedFlow { id, inbox: Inbox::default(), peer: None, error: None, is_over: false });
        Ok(id)
    }

    /// Returns what has become of a flow that the program opens.
    pub(super) fn flow_outcome(&mut self, id: FlowId) -> Option<Result<UdpPeer, ConnectError>> {
        let flow = self.flows.iter().find(|flow| flow.id == id)?;
        flow.error.map(Err).or(flow.peer.map(Ok))
    }

    /// Returns the far end of a flow.
    pub(super) fn flow_peer(&self, id: FlowId) -> Option<UdpPeer> {
        self.flows.iter().find(|flow| flow.id == id)?.peer
    }

    /// Returns what went wrong with a flow: that a datagram was lost, once; and that the flow is over.
    pub(super) fn flow_error(&mut self, id: FlowId) -> Option<ConnectError> {
        let flow = self.flows.iter_mut().find(|flow| flow.id == id)?;
        if flow.is_over { flow.error } else { flow.error.take() }
    }

    pub(super) fn close_udp(&mut self, id: FlowId) {
        self.protocols.udp.close(id);
        self.flows.retain(|flow| flow.id != id);
    }

    /// Returns the answer to a lookup, the only one that is under way.
    pub(super) fn answer(&mut self, id: LookupId) -> Option<Outcome> {
        while let Some((answered, answer)) = self.protocols.next_answer() {
            if answered == id {
                return Some(answer);
            }
        }
        None
    }

    /// Releases the slot of a peer that has reset its connection before it was accepted.
    fn forget(&mut self, place: u16) {
        if let Some(at) = self.waiting.iter().position(|waiting| *waiting == place) {
            self.waiting.remove(at);
            self.protocols.tcp.leave(place);
        }
    }
}
