//! What lies between packets and the owner of sockets: [`Protocols`], which assigns each packet to TCP's connections, to a UDP flow or to
//! neither, and passes on what the node says about flows.

use super::Settings;
use super::datagram;
use super::dns::{IpVersion, LookupId, Outcome, ResolveError, Resolver};
use super::link::Flow;
use super::outbound::{ConnectError, FlowEvent, FlowId, StreamId, Target, Via};
use super::own_flow::{Kind, Tag};
use super::path::{Quoted, Report};
use super::stack::Stack;
use super::udp_flows::UdpFlows;
use crate::headers::{Headers, UDP};
use crate::outbound::Event;
use crate::{Packet, Slots, clock};

/// TCP, UDP and lookups of one function.
pub(super) struct Protocols {
    pub(super) tcp: Stack,
    pub(super) udp: UdpFlows,
    pub(super) dns: Resolver,
    udp_ports: Box<[u16]>,
    /// The way by which the function's first packet came.
    via: Option<Via>,
    /// Whether the function has opened anything yet. One that only serves does nothing for what it does not use.
    has_opened: bool,
}

/// What a packet is for.
#[derive(Clone, Copy)]
pub(super) enum Taken {
    /// It was processed, or is damaged.
    Done,
    /// A UDP socket: one of the function's ports, or a flow that it has opened.
    Datagram(Option<FlowId>),
    /// It is for no socket.
    Other,
}

impl Protocols {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            udp: UdpFlows::new(Kind::Udp, settings.udp_flows_max),
            dns: Resolver::new(&settings.resolvers),
            udp_ports: settings.udp_ports.clone().into(),
            via: None,
            has_opened: false,
            tcp: Stack::new(settings),
        }
    }

    /// Draws keys; called once in each instance.
    pub(super) fn start(&mut self) {
        self.tcp.start();
        self.udp.start();
        self.dns.flows.start();
    }

    /// Called before a turn's packets.
    pub(super) fn begin_turn(&mut self) {
        self.tcp.begin_turn();
    }

    /// Processes a packet with these headers.
    #[inline]
    pub(super) fn receive(&mut self, packet: &Packet<'_>, headers: &Headers, slots: Slots<'_>, now_ns: u64) -> Taken {
        if self.via.is_none() {
            self.via = Some(Via::of_known(packet, headers));
        }
        if headers.protocol == UDP && headers.fragment.is_none() {
            return self.receive_udp(packet, headers, now_ns);
        }
        let is_processed = if headers.icmp.is_some() {
            self.hear(packet, headers, now_ns)
        } else {
            self.tcp.receive(packet, headers, slots, now_ns)
        };
        if is_processed { Taken::Done } else { Taken::Other }
    }

    #[inline]
    fn receive_udp(&mut self, packet: &Packet<'_>, headers: &Headers, now_ns: u64) -> Taken {
        let flow = if self.has_opened { Flow::of(headers) } else { None };
        if let Some(flow) = flow {
            if let Some(id) = self.dns.flows.find(&flow) {
                if let Some(payload) = datagram::payload_of(packet, headers) {
                    self.dns.answer(id, payload, now_ns);
                }
                return Taken::Done;
            }
            if let Some(own) = self.udp.find(&flow) {
                return Taken::Datagram(Some(own));
            }
        }
        let is_to = |port: &u16| headers.ports.is_some_and(|ports| ports.destination == *port);
        if self.udp_ports.iter().any(is_to) { Taken::Datagram(None) } else { Taken::Other }
    }

    /// Takes notice of an ICMP error. Returns whether it is about a connection or a flow.
    fn hear(&mut self, packet: &Packet<'_>, headers: &Headers, now_ns: u64) -> bool {
        let Some(report) = Report::of(packet, headers) else { return false };
        match report.quoted {
            Quoted::Segment(seq) => self.tcp.hear(&report, seq, now_ns),
            Quoted::Datagram => self.udp.hear(&report) || self.dns.flows.hear(&report),
        }
    }

    /// Takes notice of what the node says about a flow. Returns whether the packet is such a message; called for packets without IP headers
    /// only.
    pub(super) fn hear_node(&mut self, packet: &Packet<'_>, slots: Slots<'_>, now_ns: u64) -> bool {
        let Some(event) = Event::of(packet) else { return false };
        let via = Via::of(packet);
        match Tag::of(event.tag()).kind {
            Kind::Connection => self.tcp.hear_node(&event, via, slots, now_ns),
            Kind::Udp => self.udp.hear_node(&event, via, now_ns),
            Kind::Lookup => self.dns.flows.hear_node(&event, via, now_ns),
        }
        true
    }

    /// Begins to open a connection; by default by the way `about`.
    pub(super) fn connect(&mut self, target: Target, about: Option<Via>) -> Result<StreamId, ConnectError> {
        self.has_opened = true;
        self.tcp.connect(target.to, self.way_of(target, about)?, clock::now_ns())
    }

    /// Begins to open a UDP flow, as [`Protocols::connect`] does.
    pub(super) fn open_udp(&mut self, target: Target, about: Option<Via>) -> Result<FlowId, ConnectError> {
        self.has_opened = true;
        self.udp.open(target.to, self.way_of(target, about)?, clock::now_ns())
    }

    /// Begins to look up a name; the resolvers are asked by the way `via`, or by the default one.
    pub(super) fn resolve(
        &mut self,
        name: &str,
        version: IpVersion,
        via: Option<Via>,
    ) -> Result<LookupId, ResolveError> {
        let via = via.or(self.via).ok_or(ResolveError::NoFlow(ConnectError::NoWay))?;
        self.has_opened = true;
        self.dns.resolve(name, version, via, clock::now_ns())
    }

    fn way_of(&self, target: Target, about: Option<Via>) -> Result<Via, ConnectError> {
        target.via.or(about).or(self.via).ok_or(ConnectError::NoWay)
    }

    /// Returns whether a way is known by which a flow can leave.
    pub(super) fn has_way(&self) -> bool {
        self.via.is_some()
    }

    /// Goes on with lookups. Called before the events of a turn are.
    #[inline]
    pub(super) fn look_up(&mut self, slots: Slots<'_>, now_ns: u64) {
        if self.has_opened {
            self.dns.turn(slots, now_ns);
        }
    }

    /// Returns the next news of a UDP flow.
    #[inline]
    pub(super) fn next_flow_event(&mut self) -> Option<(FlowId, FlowEvent)> {
        if self.has_opened { self.udp.next_event() } else { None }
    }

    /// Returns the next lookup that has ended.
    #[inline]
    pub(super) fn next_answer(&mut self) -> Option<(LookupId, Outcome)> {
        if self.has_opened { self.dns.next_event() } else { None }
    }

    /// Sends what the node is asked for.
    #[inline]
    pub(super) fn finish_turn(&mut self, slots: Slots<'_>, now_ns: u64) {
        if self.has_opened {
            self.send_requests(slots, now_ns);
        }
    }

    #[inline(never)]
    fn send_requests(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.tcp.send_endings(slots, now_ns);
        self.udp.send(slots, now_ns);
        self.dns.flows.send(slots, now_ns);
    }

    /// Returns when to call [`Protocols::expire`].
    #[inline]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let deadline_ns = self.tcp.deadline_ns();
        if self.has_opened { self.deadline_with_flows_ns(deadline_ns) } else { deadline_ns }
    }

    #[inline(never)]
    fn deadline_with_flows_ns(&self, tcp_ns: Option<u64>) -> Option<u64> {
        tcp_ns.into_iter().chain(self.udp.deadline_ns()).chain(self.dns.deadline_ns()).min()
    }

    /// Queues what is due.
    pub(super) fn expire(&mut self, now_ns: u64) {
        self.tcp.expire(now_ns);
        if self.has_opened {
            self.udp.expire(now_ns);
        }
    }
}
