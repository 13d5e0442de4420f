//! Connections that peers open: a slot for each, and the answer to its SYN.

use smoltcp::socket::tcp::{CongestionControl, State};

use super::{
    OPENING, OVER, Phase, Reply, Segment, Stack, Wire, instant, is_before, new_interface, random_seed, refuse,
};
use crate::Slots;
use crate::net::cookie::{PROOF_NS_MAX, seed_of};
use crate::net::link::{Flow, Link};

/// Most initial sequence numbers that are drawn to find one after the last of the flow's previous connection.
const FIRST_NUMBERS_MAX: usize = 16;

/// What is known of a SYN.
struct Syn {
    flow: Flow,
    link: Link,
    seq: u32,
    window: u16,
    scale: Option<u8>,
}

impl Stack {
    /// Processes a segment of no connection to a port that is listened to (RFC 9293, section 3.10.7.2).
    pub(super) fn receive_unknown(&mut self, segment: &Segment<'_>, slots: Slots<'_>, now_ns: u64) {
        if segment.opens() {
            self.open(segment, None, slots, now_ns);
        } else if segment.flags.ack() && !self.finish(segment, slots, now_ns) {
            refuse(segment, slots);
        }
        // A listener ignores a segment without an acknowledgement.
    }

    /// Opens a connection, if there is a free slot, with an initial sequence number after `after`. A client that gets no answer repeats its
    /// SYN.
    pub(super) fn open(&mut self, segment: &Segment<'_>, after: Option<u32>, slots: Slots<'_>, now_ns: u64) {
        let Some(number) = self.vacant(now_ns) else { return };
        let (arrived, offer) = (segment.arrived(), segment.offer());
        let mut first = self.cookies.number(&segment.flow, arrived.seq, offer, now_ns);
        if let Some(after) = after {
            // It proves nothing then. About every second number is after another (RFC 1122, section 4.2.2.13).
            let mut draws = (0..FIRST_NUMBERS_MAX).map(|_| random_seed() as u32);
            first = draws.find(|first| is_before(after, *first)).unwrap_or(after.wrapping_add(1));
        }
        let syn = Syn {
            flow: segment.flow,
            link: segment.link,
            seq: arrived.seq,
            window: arrived.window,
            scale: offer.scale,
        };
        self.answer_syn(number, &syn, segment.ip, first, Some(slots), now_ns);
    }

    /// Finishes a handshake of which nothing is known any more, if a segment's acknowledgement proves that its SYN was answered. Returns whether
    /// it does.
    fn finish(&mut self, segment: &Segment<'_>, slots: Slots<'_>, now_ns: u64) -> bool {
        let arrived = segment.arrived();
        // Otherwise the connection has ended meanwhile, and the segment is a late one.
        let may_be_displaced = self.displaced_ns.is_some_and(|displaced_ns| now_ns < displaced_ns + PROOF_NS_MAX);
        if !may_be_displaced || arrived.flags.syn() || arrived.flags.rst() {
            return false;
        }
        let Some(offer) = self.cookies.proven(&segment.flow, &arrived, now_ns) else { return false };
        // Without a free slot the client's next segment is another attempt.
        let Some(number) = self.vacant(now_ns) else { return true };
        let (flow, seq) = (segment.flow, arrived.seq.wrapping_sub(1));
        let mut ip = std::mem::take(&mut self.changed);
        Reply::write_syn(&flow, seq, arrived.window, offer, &mut ip);
        let syn = Syn { flow, link: segment.link, seq, window: arrived.window, scale: offer.scale };
        let is_open = self.answer_syn(number, &syn, &ip, arrived.ack.wrapping_sub(1), None, now_ns);
        self.changed = ip;
        if is_open {
            self.receive_known(number, segment, slots, now_ns);
        }
        is_open
    }

    /// Lets a slot's socket answer a SYN with this initial sequence number; without slots nothing is sent. Returns whether it does.
    fn answer_syn(
        &mut self,
        number: u16,
        syn: &Syn,
        ip: &[u8],
        first: u32,
        slots: Option<Slots<'_>>,
        now_ns: u64,
    ) -> bool {
        self.serial += 1;
        let place = &mut self.places[usize::from(number)];
        place.serial = self.serial;
        place.begin(syn.seq, syn.window, syn.scale, now_ns);
        let socket = place.socket();
        socket.set_congestion_control(CongestionControl::Cubic);
        socket.abort();
        socket.listen(syn.flow.local().port()).expect("it is closed, and the port is not 0");
        let mut wire = Wire::with(slots, syn.link, place.mtu, &mut place.sent, ip);
        // smoltcp draws its number from the interface's seed.
        let mut interface = new_interface(&mut wire, seed_of(first), now_ns);
        interface.poll_ingress_single(instant(now_ns), &mut wire, &mut place.sockets);
        // The next segment, which may have arrived already, is judged by the answer to this one.
        interface.poll_egress(instant(now_ns), &mut wire, &mut place.sockets);
        self.interface = Some(interface);
        self.touch(number);
        let place = &mut self.places[usize::from(number)];
        place.link = syn.link;
        place.phase = Phase::Opening;
        if place.state() != State::SynReceived {
            self.release(number);
            return false;
        }
        let id = self.flows.insert(syn.flow, number, OPENING, now_ns);
        (place.flow, place.id) = (Some(syn.flow), Some(id.expect("there are as many as places")));
        true
    }

    /// Finds a slot for a new connection: a free one, or that of a connection that may be replaced.
    pub(super) fn vacant(&mut self, now_ns: u64) -> Option<u16> {
        if self.free.is_empty() {
            let over = self.flows.oldest(OVER);
            let (id, _) = over.or_else(|| self.flows.oldest(OPENING))?;
            if over.is_none() {
                self.displaced_ns = Some(now_ns);
            }
            let gives_way = *self.flows.value(id);
            self.release(gives_way);
        }
        self.free.pop()
    }
}
