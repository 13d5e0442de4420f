//! The connections of one function: which segment is whose, who may begin one, and what is due when.
//!
//! ```text
//!             SYN: a free place, or that of who is      handshake done          the service is done with it
//!    free ---------------------------------> opening ------------------> open ------------------> leaving --> free
//!             leaving already, or has been opening                                  sends the rest, hears the peer out
//!             for longest; else the SYN is dropped
//! ```
//!
//! smoltcp has the protocol; each connection is a socket in a set of its own, so that a segment costs the same however many there are,
//! and what is sent goes to the station that the connection is known by. Sockets and their buffers are made once. Nothing here allocates afterwards,
//! but for an answer that finds no slot; every loop is bounded by the settings or by a constant.

use core::net::SocketAddr;

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::HardwareAddress;

use super::device::Wire;
use super::link::{Flow, Link, Segment};
use super::{MTU_BYTES, Settings};
use crate::lru::{Id, Lru};
use crate::{Packet, Shelf, random};

/// How long a handshake may take.
const OPENING_MS_MAX: u64 = 10_000;
/// When a connection is looked at again that has more to send and nothing to send it in.
const RETRY_NS: u64 = 50_000;
/// Segments that one connection may send at a time, before the others have theirs.
const BURST_MAX: usize = 32;
const NEVER: u64 = u64::MAX;

/// Queues of [`Stack::flows`]: who gives way to newcomers, the oldest first.
const OPENING: usize = 0;
const STAYING: usize = 1;
const OVER: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Opening,
    Open,
    Leaving,
}

/// What a connection's owner is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    Opened,
    Ready,
}

/// A place for a connection.
struct Place {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    phase: Phase,
    flow: Option<(Flow, Id)>,
    link: Link,
    /// When the service wants to be called.
    wake_ns: u64,
    is_touched: bool,
}

impl Place {
    fn new(settings: &Settings) -> Self {
        let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
        let socket = Socket::new(buffer(settings.receive_bytes), buffer(settings.send_bytes));
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let (phase, link) = (Phase::Free, Link::default());
        Self { sockets, handle, phase, flow: None, link, wake_ns: NEVER, is_touched: false }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn state(&self) -> State {
        self.sockets.get::<Socket<'_>>(self.handle).state()
    }

    /// Whether nothing is left to be said to the peer, not even that it was broken off.
    fn is_over(&self) -> bool {
        let socket = self.sockets.get::<Socket<'_>>(self.handle);
        socket.state() == State::Closed && socket.remote_endpoint().is_none()
    }
}

pub(super) struct Stack {
    settings: Settings,
    /// None before the first segment: what it draws must not be in a snapshot.
    interface: Option<Interface>,
    places: Box<[Place]>,
    /// By place: when it is to be looked at though nothing has come for it.
    due_ns: Box<[u64]>,
    free: Vec<u16>,
    flows: Lru<Flow, u16, 3>,
    /// Places that something has happened to, each once.
    touched: std::collections::VecDeque<u16>,
    /// Places that had more to send than there was room for.
    hungry: Vec<u16>,
    /// The first place to be looked at for what is due, so that none is always the last.
    first: usize,
}

impl Stack {
    pub(super) fn new(settings: Settings) -> Self {
        let count = settings.connections_max;
        Self {
            interface: None,
            places: (0..count).map(|_| Place::new(&settings)).collect(),
            due_ns: vec![NEVER; count.into()].into(),
            free: (0..count).rev().collect(),
            flows: Lru::with_capacity(count.into()),
            touched: std::collections::VecDeque::with_capacity(count.into()),
            hungry: Vec::with_capacity(2 * usize::from(count)),
            first: 0,
            settings,
        }
    }

    /// Once in each instance.
    pub(super) fn start(&mut self) {
        self.flows.rekey();
    }

    /// Before anything is received: those that had to stop come first, so that none is always the last.
    pub(super) fn begin_turn(&mut self) {
        while let Some(number) = self.hungry.pop() {
            self.touch(number);
        }
    }

    /// Takes in what has come; a packet that is of no connection is answered if it asks for that.
    pub(super) fn receive(&mut self, packet: &Packet<'_>, shelf: Shelf<'_>, now_ns: u64) {
        let Some(segment) = Segment::of(packet) else { return };
        let known = self.flows.find(&segment.flow).map(|id| *self.flows.value(id));
        let place = match known {
            // It has been long enough for the peer, who may use the port again (RFC 9293, section 3.6.1).
            Some(place) if segment.opens() && self.places[usize::from(place)].state() == State::TimeWait => {
                self.release(place);
                None
            }
            known => known,
        };
        match place {
            Some(place) => self.hand_over(place, &segment, shelf, now_ns),
            None if segment.opens() && segment.flow.local().port() == self.settings.port => {
                self.open(&segment, shelf, now_ns);
            }
            None => self.refuse(&segment, shelf, now_ns),
        }
    }

    /// Gives a connection its segment.
    fn hand_over(&mut self, number: u16, segment: &Segment<'_>, shelf: Shelf<'_>, now_ns: u64) {
        let Self { interface, places, .. } = self;
        let place = &mut places[usize::from(number)];
        place.link = segment.link;
        let mut wire = Wire::with(shelf, segment.link, segment.ip);
        let interface = interface.get_or_insert_with(|| new_interface(&mut wire, now_ns));
        interface.poll_ingress_single(instant(now_ns), &mut wire, &mut place.sockets);
        self.touch(number);
    }

    /// Begins a connection, if there is a place for it. Whoever is told nothing asks again.
    fn open(&mut self, segment: &Segment<'_>, shelf: Shelf<'_>, now_ns: u64) {
        let Some(number) = self.vacant() else { return };
        // The numbers that a connection begins with follow from the interface's seed: with a new one for each, none of them
        // tells of another (RFC 6528).
        self.interface = None;
        let place = &mut self.places[usize::from(number)];
        let port = self.settings.port;
        let socket = place.socket();
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.set_timeout(Some(Duration::from_millis(OPENING_MS_MAX)));
        socket.abort();
        socket.listen(port).expect("it is closed, and the port is not 0");
        self.hand_over(number, segment, shelf, now_ns);
        let place = &mut self.places[usize::from(number)];
        place.phase = Phase::Opening;
        if place.state() == State::SynReceived {
            let id = self.flows.insert(segment.flow, number, OPENING, now_ns);
            place.flow = Some((segment.flow, id.expect("there are as many as places")));
        } else {
            self.release(number);
        }
    }

    fn refuse(&mut self, segment: &Segment<'_>, shelf: Shelf<'_>, now_ns: u64) {
        let mut wire = Wire::with(shelf, segment.link, segment.ip);
        let interface = self.interface.get_or_insert_with(|| new_interface(&mut wire, now_ns));
        interface.poll_ingress_single(instant(now_ns), &mut wire, &mut SocketSet::new([]));
    }

    /// A place for a newcomer: a free one, or that of who gives way.
    fn vacant(&mut self) -> Option<u16> {
        if self.free.is_empty() {
            let (id, _) = self.flows.oldest(OVER).or_else(|| self.flows.oldest(OPENING))?;
            let gives_way = *self.flows.value(id);
            self.release(gives_way);
        }
        self.free.pop()
    }

    fn release(&mut self, number: u16) {
        let place = &mut self.places[usize::from(number)];
        // Nobody is told: who goes like this has said all, or has never answered.
        place.socket().abort();
        place.phase = Phase::Free;
        place.wake_ns = NEVER;
        if let Some((_, id)) = place.flow.take() {
            self.flows.remove(id);
        }
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

    /// A place that something has happened to since it was last looked at.
    pub(super) fn next_touched(&mut self) -> Option<u16> {
        let number = self.touched.pop_front()?;
        self.places[usize::from(number)].is_touched = false;
        Some(number)
    }

    /// When [`Stack::expire`] is to be called.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.due_ns.iter().copied().min().filter(|due_ns| *due_ns != NEVER)
    }

    /// Touches the places that something is due for.
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

    /// What the owner of a place that was touched is to be told.
    pub(super) fn look(&mut self, number: u16, now_ns: u64) -> News {
        let idle_timeout = Duration::from_micros(self.settings.idle_timeout_ns / 1_000);
        let place = &mut self.places[usize::from(number)];
        if place.wake_ns <= now_ns {
            place.wake_ns = NEVER;
        }
        match place.phase {
            Phase::Opening if matches!(place.state(), State::Established | State::CloseWait) => {
                place.phase = Phase::Open;
                place.socket().set_timeout(Some(idle_timeout));
                if let Some((_, id)) = place.flow {
                    self.flows.touch(id, STAYING, now_ns);
                }
                News::Opened
            }
            Phase::Open => News::Ready,
            Phase::Leaving => {
                // Who is still sending may not have read what it was told: it is heard out.
                while place.socket().recv(|bytes| (bytes.len(), bytes.len())).is_ok_and(|len| len > 0) {}
                News::None
            }
            Phase::Opening | Phase::Free => News::None,
        }
    }

    /// Sends what a connection has to send, if it may, and frees its place if it is over.
    pub(super) fn settle(&mut self, number: u16, shelf: Shelf<'_>, now_ns: u64) {
        let Self { interface, places, flows, due_ns, .. } = self;
        let place = &mut places[usize::from(number)];
        if place.phase == Phase::Free {
            return;
        }
        let now = instant(now_ns);
        let mut wire = Wire::new(shelf, place.link);
        let interface = interface.get_or_insert_with(|| new_interface(&mut wire, now_ns));
        let socket = place.socket();
        // While there is much to send, in whole segments only; the last one waits for nothing.
        socket.set_nagle_enabled(socket.send_queue() >= 2 * MTU_BYTES);
        let mut burst = 0;
        while burst < BURST_MAX && interface.poll_egress(now, &mut wire, &mut place.sockets) != PollResult::None {
            burst += 1;
        }
        if place.phase != Phase::Open {
            let is_listening_again = place.state() == State::Listen;
            if place.is_over() || is_listening_again {
                return self.release(number);
            }
            let is_over_but_for_the_peer = matches!(place.state(), State::FinWait2 | State::TimeWait);
            if let Some((_, id)) = place.flow.filter(|_| is_over_but_for_the_peer) {
                flows.touch(id, OVER, now_ns);
            }
        }
        let due = interface.poll_at(now, &place.sockets).map_or(NEVER, |at| at.total_micros().max(0) as u64 * 1_000);
        due_ns[usize::from(number)] = due.max(now_ns + RETRY_NS).min(place.wake_ns);
        if due <= now_ns {
            self.hungry.push(number);
        }
    }

    /// The owner of an open connection is done with it.
    pub(super) fn leave(&mut self, number: u16) {
        let place = &mut self.places[usize::from(number)];
        place.socket().close();
        place.phase = Phase::Leaving;
        place.wake_ns = NEVER;
        self.touch(number);
    }

    /// Has a place be looked at before the function waits: its owner has done something with it.
    pub(super) fn hurry(&mut self, number: u16) {
        self.touch(number);
        self.due_ns[usize::from(number)] = 0;
    }

    /// Whether something was written, or closed, that its peer may not have heard.
    pub(super) fn has_unsaid(&self) -> bool {
        let is_unsaid = |place: &Place| {
            let is_closing = matches!(place.state(), State::FinWait1 | State::Closing | State::LastAck);
            place.phase == Phase::Leaving && (is_closing || place.state() == State::CloseWait)
        };
        self.places.iter().any(is_unsaid)
    }

    pub(super) fn socket(&mut self, number: u16) -> &mut Socket<'static> {
        self.places[usize::from(number)].socket()
    }

    /// Both ends of an open connection: the peer's, and the one that it has addressed.
    pub(super) fn ends(&self, number: u16) -> (SocketAddr, SocketAddr) {
        let (flow, _) = self.places[usize::from(number)].flow.expect("an open connection is of a flow");
        (flow.peer(), flow.local())
    }

    pub(super) fn wake_at(&mut self, number: u16, wake_ns: Option<u64>) {
        self.places[usize::from(number)].wake_ns = wake_ns.unwrap_or(NEVER);
    }
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1_000) as i64)
}

/// An interface that has every address.
fn new_interface(wire: &mut Wire<'_>, now_ns: u64) -> Interface {
    let mut seed = [0; 8];
    random::fill(&mut seed);
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = u64::from_le_bytes(seed);
    let mut interface = Interface::new(config, wire, instant(now_ns));
    interface.set_any_ip(true);
    interface
}
