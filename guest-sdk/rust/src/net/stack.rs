//! The connections of one function: assigns segments to connections, admits new ones, and keeps their timers.
//!
//! ```text
//!             SYN: a free slot, or that of one that     handshake done          the service has closed it
//!    free ---------------------------------> opening ------------------> open ------------------> leaving --> free
//!             is over, or the one that has been opening                             sends the rest, discards the peer's data
//!             for longest; else drops the SYN
//! ```
//!
//! The way of a peer's connection to `opening` is in `stack/accept.rs`. Connections that the function opens itself are in `stack/connect.rs`:
//!
//! ```text
//!             the function asks for one: as for a SYN        the node has opened a flow           the peer has answered the SYN
//!    free -------------------------------------> asking ---------------------> connecting --------------------------> open
//! ```
//!
//! One to the chain's next stage needs no flow and begins with `connecting` (`stack/next_stage.rs`).
//!
//! smoltcp implements the protocol. Each connection is a socket in a set of its own, so that the cost of a segment does not depend on the
//! number of connections, and answers go to the station recorded for the connection. Sockets and their buffers are made once. Nothing here
//! allocates afterwards, except for an answer that finds no slot, and for a connection whose path gets narrower. Every loop is bounded by the settings or by a constant.

mod accept;
mod connect;
mod next_stage;

use core::net::SocketAddr;

use smoltcp::iface::{Config, Interface, PollResult};
use smoltcp::socket::tcp::{RecvError, SendError, Socket, State};
use smoltcp::time::Instant;
use smoltcp::wire::HardwareAddress;

use super::close::CloseReason;
use super::cookie::Cookies;
use super::device::Wire;
use super::link::{Flow, Segment};
use super::outbound::{ConnectError, StreamId, Via};
use super::own_flow::Endings;
use super::path::{Cause, REPEATS_MIN, REPEATS_MIN_AGAIN, Report, fallback_mtu};
use super::place::{NEVER, Own, Phase, Place};
use super::reply::{self, Reply};
use super::sequence::{Changes, Stage, Verdict, is_before, is_sign_of_life, judge};
use super::{MTU_BYTES, Settings};
use crate::headers::{Headers, TCP};
use crate::lru::Lru;
use crate::{Packet, Slots, random};

/// Delay before a connection that has more to send, but found no slot, is polled again.
const RETRY_NS: u64 = 50_000;
/// Most segments that one connection sends before the others get their turn.
const BURST_MAX: usize = 32;

/// Queues of [`Stack::flows`]; each is ordered by age, the oldest first. New connections may replace those in `OVER` and `OPENING`.
const OPENING: usize = 0;
const STAYING: usize = 1;
const OVER: usize = 2;

/// The event that a connection's owner gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    Opened,
    /// The function's own connection is open.
    Connected,
    /// It cannot be opened, and its slot is free again.
    Failed(StreamId, ConnectError),
    Ready,
}

pub(super) struct Stack {
    settings: Settings,
    cookies: Cookies,
    /// When a handshake last gave way to another.
    displaced_ns: Option<u64>,
    /// `None` before the first segment: its random numbers must not be part of a snapshot.
    interface: Option<Interface>,
    places: Box<[Place]>,
    /// For each slot: when to poll it even if nothing has arrived for it.
    due_ns: Box<[u64]>,
    free: Vec<u16>,
    flows: Lru<Flow, u16, 3>,
    /// Slots with an event, each at most once.
    touched: std::collections::VecDeque<u16>,
    /// Slots that had more to send than there was room for.
    hungry: Vec<u16>,
    /// The first slot to be checked for expiry, which rotates for fairness.
    first: usize,
    /// A changed copy of a packet for smoltcp.
    changed: Vec<u8>,
    /// The serial number of the latest connection.
    serial: u64,
    /// Turns so far.
    turn: u64,
    /// Flows of connections that are over.
    endings: Endings,
}

impl Stack {
    pub(super) fn new(settings: Settings) -> Self {
        let count = settings.connections_max;
        Self {
            cookies: Cookies::new(),
            displaced_ns: None,
            interface: None,
            places: (0..count).map(|_| Place::new(&settings)).collect(),
            due_ns: vec![NEVER; count.into()].into(),
            free: (0..count).rev().collect(),
            flows: Lru::with_capacity(count.into()),
            touched: std::collections::VecDeque::with_capacity(count.into()),
            hungry: Vec::with_capacity(2 * usize::from(count)),
            first: 0,
            changed: Vec::with_capacity(MTU_BYTES),
            serial: 0,
            turn: 0,
            endings: Endings::with_capacity(count.into()),
            settings,
        }
    }

    /// Draws the keys of the table of flows and of sequence numbers; called once in each instance.
    pub(super) fn start(&mut self) {
        self.flows.rekey();
        self.cookies.rekey();
    }

    /// Called before a turn's packets: queues the connections first that ran out of slots, so that none is always last.
    pub(super) fn begin_turn(&mut self) {
        self.turn += 1;
        while let Some(number) = self.hungry.pop() {
            self.touch(number);
        }
    }

    /// Processes a packet with these headers, if it is a segment of a connection or to a port that is listened to. Returns whether it is;
    /// damaged segments are.
    pub(super) fn receive(&mut self, packet: &Packet<'_>, headers: &Headers, slots: Slots<'_>, now_ns: u64) -> bool {
        let Some(flow) = Flow::by(packet, headers).filter(|_| headers.protocol == TCP) else { return false };
        let known = self.flows.find(&flow);
        let is_listened_to = self.listens_to(flow.local().port()) && !flow.is_of_next_stage();
        if known.is_none() && !is_listened_to {
            return false;
        }
        let Some(mut segment) = Segment::of(packet, headers) else { return true };
        if let Some(id) = known {
            let number = *self.flows.value(id);
            let place = &self.places[usize::from(number)];
            if flow.is_of_next_stage() {
                // A reply to a reply would leave the node.
                segment.link = place.link;
            }
            if place.state() != State::Closed {
                self.receive_known(number, &segment, slots, now_ns);
                return true;
            }
            self.forget_flow(number);
        }
        if flow.is_of_next_stage() {
            refuse(&segment, slots);
            return true;
        }
        self.receive_unknown(&segment, slots, now_ns);
        true
    }

    /// Takes notice of what a router says. Returns whether it is about a connection.
    pub(super) fn hear(&mut self, report: &Report, seq: u32, now_ns: u64) -> bool {
        let Some(id) = self.flows.find(&report.flow) else { return false };
        let number = *self.flows.value(id);
        let place = &mut self.places[usize::from(number)];
        let at = place.numbers();
        let may_be_on_its_way = !is_before(seq, at.unacknowledged) && is_before(seq, at.send_next);
        if !may_be_on_its_way {
            return true;
        }
        if place.phase == Phase::Connecting {
            self.fail_by_report(number, report);
        } else if report.cause == Cause::Unreachable {
            place.note_unreachable(now_ns);
        } else if let Some(mtu) = report.smaller_mtu(place.mtu) {
            self.narrow(number, mtu, now_ns);
            self.touch(number);
        }
        true
    }

    /// Makes a connection's packets smaller.
    fn narrow(&mut self, number: u16, mtu: u16, now_ns: u64) {
        let place = &mut self.places[usize::from(number)];
        place.mtu = mtu;
        let mut wire = Wire::new(None, place.link, mtu, &mut place.sent);
        place.narrow = Some(Box::new(new_interface(&mut wire, random_seed(), now_ns)));
        place.sent.forget_repeated();
    }

    /// Makes a connection's packets smaller if big ones seem to vanish on their way.
    fn narrow_if_stuck(&mut self, number: u16, now_ns: u64) {
        let place = &self.places[usize::from(number)];
        let times = if place.narrow.is_some() { REPEATS_MIN_AGAIN } else { REPEATS_MIN };
        let (Some(bytes), Some(flow)) = (place.sent.repeated_bytes(times), &place.flow) else { return };
        if let Some(mtu) = fallback_mtu(flow, bytes).filter(|mtu| *mtu < place.mtu) {
            self.narrow(number, mtu, now_ns);
        }
    }

    /// Processes a segment of a connection (RFC 9293, section 3.10.7.4).
    fn receive_known(&mut self, number: u16, segment: &Segment<'_>, slots: Slots<'_>, now_ns: u64) {
        let arrived = segment.arrived();
        let place = &mut self.places[usize::from(number)];
        if !place.sent.has_begun() {
            // There was no slot yet for the answer to its SYN.
            return;
        }
        let at = place.numbers();
        let verdict = judge(&at, &arrived);
        match verdict {
            Verdict::Drop => {}
            Verdict::Repeat => reply::repeat(place.sent.syn_ack(), &segment.link, slots),
            Verdict::Challenge => self.acknowledge(number, segment, slots, now_ns),
            Verdict::Reset => self.reset(number, segment, slots, now_ns),
            Verdict::Refuse => refuse(segment, slots),
            Verdict::Take(_) if at.stage == Stage::Connecting => self.agree(number, segment, slots, now_ns),
            // Peers open no connection to a port of the function's own.
            Verdict::Reopen if place.own.is_some() => {}
            Verdict::Reopen => {
                self.release(number);
                self.open(segment, Some(at.send_next), slots, now_ns);
            }
            Verdict::Take(_) if place.is_only_repeated(&at, &arrived) => place.note_alive(arrived.window, now_ns),
            Verdict::Take(changes) | Verdict::Acknowledge(changes) => {
                self.hand_over(number, segment, changes, slots, now_ns);
                let place = &mut self.places[usize::from(number)];
                if is_sign_of_life(&at, &arrived) && place.state() != State::SynReceived {
                    place.note_alive(arrived.window, now_ns);
                }
                let is_unanswered = place.sent.count == 0 && verdict == Verdict::Acknowledge(changes);
                // A segment with a sequence number is sent again until it is acknowledged, at the peer's pace. An acknowledgement of a
                // segment without one could be answered by another without end.
                if is_unanswered && arrived.seq_len() > 0 {
                    self.acknowledge_at_once(number, segment, slots);
                } else if is_unanswered {
                    self.acknowledge(number, segment, slots, now_ns);
                }
            }
        }
    }

    /// Acknowledges with a connection's current numbers, at a limited rate.
    fn acknowledge(&mut self, number: u16, segment: &Segment<'_>, slots: Slots<'_>, now_ns: u64) {
        if self.places[usize::from(number)].may_challenge(now_ns) {
            self.acknowledge_at_once(number, segment, slots);
        }
    }

    fn acknowledge_at_once(&mut self, number: u16, segment: &Segment<'_>, slots: Slots<'_>) {
        let place = &self.places[usize::from(number)];
        let at = place.numbers();
        let reply = Reply::acknowledging(at.send_next, at.receive_next, place.window(at.receive_next));
        reply.send(&segment.flow, &segment.link, slots);
    }

    /// Handles the peer's reset. An owner that knows of the connection finds the socket closed.
    fn reset(&mut self, number: u16, segment: &Segment<'_>, slots: Slots<'_>, now_ns: u64) {
        match self.places[usize::from(number)].phase {
            Phase::Open => {
                self.places[usize::from(number)].reason = Some(CloseReason::Reset);
                self.hand_over(number, segment, Changes { only_reset: true, ..Changes::default() }, slots, now_ns);
                self.forget_flow(number);
            }
            Phase::Connecting => self.fail(number, ConnectError::RefusedByPeer),
            _ => self.release(number),
        }
    }

    /// Frees the port for another connection, though the owner of this one may not know yet that it is over.
    fn forget_flow(&mut self, number: u16) {
        if let Some(id) = self.places[usize::from(number)].id.take() {
            self.flows.remove(id);
        }
    }

    /// Gives a connection's socket a segment.
    fn hand_over(&mut self, number: u16, segment: &Segment<'_>, changes: Changes, slots: Slots<'_>, now_ns: u64) {
        let Self { interface, places, changed, .. } = self;
        let place = &mut places[usize::from(number)];
        if place.own.is_none() {
            place.link = segment.link;
        }
        let ip = if changes == Changes::default() {
            segment.ip
        } else {
            segment.write_changed(&changes, changed);
            changed
        };
        place.sent.count = 0;
        let mut wire = Wire::with(Some(slots), place.link, place.mtu, &mut place.sent, ip);
        let interface = the_one_for(&mut place.narrow, interface, &mut wire, now_ns);
        interface.poll_ingress_single(instant(now_ns), &mut wire, &mut place.sockets);
        self.touch(number);
    }

    /// Sends a connection's segments, at most `burst_max`.
    fn send(&mut self, number: u16, burst_max: usize, slots: Slots<'_>, now_ns: u64) {
        let Self { interface, places, .. } = self;
        let place = &mut places[usize::from(number)];
        let mut wire = Wire::new(Some(slots), place.link, place.mtu, &mut place.sent);
        let interface = the_one_for(&mut place.narrow, interface, &mut wire, now_ns);
        let mut burst = 0;
        while burst < burst_max
            && interface.poll_egress(instant(now_ns), &mut wire, &mut place.sockets) != PollResult::None
        {
            burst += 1;
        }
    }

    /// Makes smoltcp probe a window that the peer closed over data already sent. smoltcp has no timer for that case once the data is not
    /// acknowledged in time (RFC 9293, section 3.8.6.1). A made-up acknowledgement from the peer that the window is closed starts one.
    fn probe_closed_window(&mut self, number: u16, now_ns: u64) {
        let Self { interface, places, changed, .. } = self;
        let place = &mut places[usize::from(number)];
        let (Some(interface), Some(flow)) = (interface, place.flow) else { return };
        let may_wait = place.socket().send_queue() > 0 && place.state() != State::Closed;
        let at = place.numbers();
        let interface = place.narrow.as_deref_mut().unwrap_or(interface);
        if !may_wait || interface.poll_at(instant(now_ns), &place.sockets).is_some() {
            return;
        }
        Reply::acknowledging(at.receive_next, at.unacknowledged, 0).write_as_from_peer(&flow, changed);
        let mut wire = Wire::with(None, place.link, place.mtu, &mut place.sent, changed);
        interface.poll_ingress_single(instant(now_ns), &mut wire, &mut place.sockets);
    }

    fn release(&mut self, number: u16) {
        let place = &mut self.places[usize::from(number)];
        // No segment is sent: the connection has ended, or was never established.
        place.socket().abort();
        place.phase = Phase::Free;
        place.wake_ns = NEVER;
        place.flow = None;
        if let Some(Own::Outbound(own)) = place.own.take()
            && let Some(flow) = own.number
        {
            self.endings.push(flow, own.via());
        }
        self.forget_flow(number);
        self.due_ns[usize::from(number)] = NEVER;
        self.free.push(number);
    }

    fn touch(&mut self, number: u16) {
        let place = &mut self.places[usize::from(number)];
        if !place.is_touched {
            place.is_touched = true;
            self.touched.push_back(number);
        }
    }

    /// Returns the next slot with an event.
    pub(super) fn next_touched(&mut self) -> Option<u16> {
        let number = self.touched.pop_front()?;
        self.places[usize::from(number)].is_touched = false;
        Some(number)
    }

    /// Returns when to call [`Stack::expire`].
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let due_ns = self.due_ns.iter().copied().min().filter(|due_ns| *due_ns != NEVER);
        due_ns.into_iter().chain(self.endings.deadline_ns()).min()
    }

    /// Queues the slots that are due.
    pub(super) fn expire(&mut self, now_ns: u64) {
        let count = self.places.len();
        for step in 0..count {
            let number = (self.first + step) % count;
            if self.due_ns[number] <= now_ns {
                self.touch(number as u16);
            }
        }
        self.first = (self.first + 1) % count;
    }

    /// Returns the event for the owner of a slot.
    pub(super) fn look(&mut self, number: u16, now_ns: u64) -> News {
        let place = &mut self.places[usize::from(number)];
        if matches!(place.phase, Phase::Asking | Phase::Connecting) {
            return self.look_at_attempt(number, now_ns);
        }
        place.is_woken_again = false;
        if place.wake_ns <= now_ns {
            place.wake_ns = NEVER;
        }
        place.note_progress(now_ns);
        if place.limit_ns(&self.settings) <= now_ns {
            // `settle` sends the reset to the peer, and the owner finds the socket closed.
            place.reason = Some(place.limit_reason(&self.settings, now_ns));
            place.socket().abort();
        }
        match place.phase {
            Phase::Opening if matches!(place.state(), State::Established | State::CloseWait) => {
                place.phase = Phase::Open;
                if let Some(id) = place.id {
                    self.flows.touch(id, STAYING, now_ns);
                }
                News::Opened
            }
            Phase::Open => News::Ready,
            Phase::Leaving => {
                // A peer that is still sending may not have read everything yet, so its data is accepted and discarded.
                place.discard_received();
                News::None
            }
            Phase::Opening | Phase::Asking | Phase::Connecting | Phase::Free => News::None,
        }
    }

    /// Sends a connection's segments, if it may, and frees its slot if it is over.
    pub(super) fn settle(&mut self, number: u16, slots: Slots<'_>, now_ns: u64) {
        let place = &mut self.places[usize::from(number)];
        match place.phase {
            Phase::Free => return,
            Phase::Asking => return self.ask(number, slots, now_ns),
            _ => {}
        }
        let socket = place.socket();
        // While there is much to send, send only full segments; the last one need not wait.
        socket.set_nagle_enabled(socket.send_queue() >= 2 * MTU_BYTES);
        self.send(number, BURST_MAX, slots, now_ns);
        self.probe_closed_window(number, now_ns);
        self.narrow_if_stuck(number, now_ns);
        let Self { interface, places, flows, due_ns, .. } = self;
        let place = &mut places[usize::from(number)];
        place.note_progress(now_ns);
        if place.phase != Phase::Open {
            let is_listening_again = place.state() == State::Listen;
            if place.is_over() || is_listening_again {
                return self.release(number);
            }
            let is_over_but_for_the_peer = matches!(place.state(), State::FinWait2 | State::TimeWait);
            if let Some(id) = place.id.filter(|_| is_over_but_for_the_peer) {
                flows.touch(id, OVER, now_ns);
            }
        }
        let interface = place.narrow.as_deref_mut().or(interface.as_mut());
        let poll_at = interface.and_then(|it| it.poll_at(instant(now_ns), &place.sockets));
        let due = poll_at.map_or(NEVER, |at| at.total_micros().max(0) as u64 * 1_000);
        let limit_ns = place.limit_ns(&self.settings);
        let wake_ns = if place.is_woken_again { 0 } else { place.wake_ns };
        due_ns[usize::from(number)] = due.min(limit_ns).max(now_ns + RETRY_NS).min(wake_ns);
        if due <= now_ns {
            self.hungry.push(number);
        }
    }

    /// Closes an open connection for its owner.
    pub(super) fn leave(&mut self, number: u16) {
        let place = &mut self.places[usize::from(number)];
        place.socket().close();
        place.phase = Phase::Leaving;
        place.wake_ns = NEVER;
        self.touch(number);
    }

    /// Schedules a slot to be polled before the function waits, as its owner has used it.
    pub(super) fn hurry(&mut self, number: u16) {
        self.touch(number);
        self.due_ns[usize::from(number)] = 0;
    }

    /// Returns whether written data, or a FIN, may not have reached its peer.
    pub(super) fn has_unsaid(&self) -> bool {
        let is_unsaid = |place: &Place| {
            let is_closing = matches!(place.state(), State::FinWait1 | State::Closing | State::LastAck);
            place.phase == Phase::Leaving && (is_closing || place.state() == State::CloseWait)
        };
        self.places.iter().any(is_unsaid)
    }

    /// Returns whether the reset of a connection that its owner has aborted has yet to be sent.
    pub(super) fn has_resets(&self) -> bool {
        let is_unsent =
            |place: &Place| place.phase == Phase::Leaving && place.state() == State::Closed && !place.is_over();
        self.places.iter().any(is_unsent)
    }

    /// Returns whether connections to this port are accepted.
    pub(super) fn listens_to(&self, port: u16) -> bool {
        self.settings.tcp_ports.contains(&port)
    }

    pub(super) fn socket(&mut self, number: u16) -> &mut Socket<'static> {
        self.places[usize::from(number)].socket()
    }

    /// Returns why a connection has ended, or why its peer sends no more; `None` while it is open.
    pub(super) fn close_reason(&self, number: u16) -> Option<CloseReason> {
        self.places[usize::from(number)].close_reason()
    }

    /// Aborts an open connection for its owner.
    pub(super) fn abort(&mut self, number: u16) {
        let place = &mut self.places[usize::from(number)];
        place.reason = place.reason.or(Some(CloseReason::Aborted));
        place.socket().abort();
    }

    /// Returns whether a connection is closed or reset.
    pub(super) fn is_closed(&self, number: u16) -> bool {
        self.places[usize::from(number)].state() == State::Closed
    }

    pub(super) fn read(&mut self, number: u16, buffer: &mut [u8]) -> Result<usize, RecvError> {
        self.places[usize::from(number)].read(buffer)
    }

    pub(super) fn write(&mut self, number: u16, bytes: &[u8]) -> Result<usize, SendError> {
        self.places[usize::from(number)].write(bytes)
    }

    /// Returns both ends of an open connection: the peer's, and the local one.
    pub(super) fn ends(&self, number: u16) -> (SocketAddr, SocketAddr) {
        let flow = self.places[usize::from(number)].flow.expect("an open connection is of a flow");
        (flow.peer(), flow.local())
    }

    /// Returns the way by which a connection's segments leave.
    pub(super) fn via(&self, number: u16) -> Via {
        let link = &self.places[usize::from(number)].link;
        Via::answering(link.bytes(), link.way())
    }

    pub(super) fn wake_at(&mut self, number: u16, wake_ns: Option<u64>) {
        self.places[usize::from(number)].wake_ns = wake_ns.unwrap_or(NEVER);
    }
}

/// Answers a segment of no connection, if that is required (RFC 9293, section 3.10.7.1).
pub(super) fn refuse(segment: &Segment<'_>, slots: Slots<'_>) {
    if let Some(reply) = Reply::refusing(&segment.arrived()) {
        reply.send(&segment.flow, &segment.link, slots);
    }
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1_000) as i64)
}

fn random_seed() -> u64 {
    let mut seed = [0; 8];
    random::fill(&mut seed);
    u64::from_le_bytes(seed)
}

/// Returns a connection's interface: its own, if the path to its peer is narrow, or that of all, which is made if there is none yet.
fn the_one_for<'i>(
    narrow: &'i mut Option<Box<Interface>>,
    shared: &'i mut Option<Interface>,
    wire: &mut Wire<'_>,
    now_ns: u64,
) -> &'i mut Interface {
    match narrow {
        Some(narrow) => narrow,
        None => shared.get_or_insert_with(|| new_interface(wire, random_seed(), now_ns)),
    }
}

/// Makes an interface that accepts every address.
fn new_interface(wire: &mut Wire<'_>, seed: u64, now_ns: u64) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, wire, instant(now_ns));
    interface.set_any_ip(true);
    interface
}
