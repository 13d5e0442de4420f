//! Which flow a datagram's fragments belong to: the first fragment has the ports, later ones follow it.
//!
//! ```text
//!   fragment --> key --> datagram:  waiting   its first fragment has not come; later ones wait for it
//!                                   known     its fragments go where the first one's flow goes
//!                                   ended     its fragments are dropped
//! ```
//!
//! Fragments of a datagram share source, destination, protocol, identification, and the port and VLAN that they came in
//! by. So a datagram cannot be disturbed from another port or VLAN, whatever source is forged there. On the same link, it
//! can be ended, but not be taken over: no byte of a datagram passes twice, and a second first fragment passes never
//! (RFC 5722, RFC 3128). A datagram of which all bytes have passed is forgotten, so that its identification can be used
//! again; any other when it was unseen for [`FRAGMENTS_IDLE_NS`].
//!
//! The table has a fixed size. If it is full, a new datagram takes the place of the one unseen for longest of those of
//! the port that has most; but not at the expense of one of its own port that was seen within [`PROTECTED_MS`]. So a flood
//! evicts datagrams of the port that it comes in by, and none of them before its fragments, one right after another, have
//! passed. Owned by the gateway's thread; allocates nothing after it was made.

mod ranges;
mod waiting;

use std::hash::{BuildHasher, RandomState};

use pinion_mma::buffer::Frame;

use self::ranges::Ranges;
use self::waiting::{Source, WaitingFragments};
use crate::drops::DropReason;
use crate::flows::index::{HashIndex, List, ListLinks};
use crate::headers::{BeyondDatagram, FlowKey, Fragment, Ingress, Part, Vlan};

/// How long after the previous fragment of its datagram a further one may come. In nanoseconds.
const FRAGMENTS_IDLE_NS: u64 = 3_000_000_000;
const IDLE_MS: u32 = (FRAGMENTS_IDLE_NS / NS_PER_MS) as u32;
/// How long a fragment may wait for the first one of its datagram.
const WAIT_MS: u32 = 1_000;
/// After this time, a fragment that waits gives way to another one: those that were only overtaken have long met.
const GIVES_WAY_MS: u32 = 50;
/// Datagrams that give way to one fragment, at most.
const GIVE_WAY_MAX: usize = 4;
/// A datagram seen within this time is not evicted for others of its port.
const PROTECTED_MS: u32 = 8;
const NS_PER_MS: u64 = 1_000_000;
/// Datagrams that a sweep forgets, at most; and as many whose fragments have waited for too long.
const FORGOTTEN_PER_SWEEP: usize = 64;
/// For each so many flows, one datagram in fragments may be in progress.
const FLOWS_PER_DATAGRAM: usize = 16;
const DATAGRAMS_MIN: usize = 64;

#[derive(Clone, Copy)]
enum State {
    /// Its first fragment has not come.
    Waiting,
    /// Its flow is known: this is what the datagram's key lacks.
    Known { ports: u32, icmp_type: u16, protocol: u8 },
    /// Its fragments are dropped.
    Ended,
}

/// A datagram in fragments.
#[derive(Clone, Copy)]
struct Datagram {
    key: FlowKey,
    state: State,
    /// What has come of it.
    ranges: Ranges,
    /// Fragments that wait, in order of arrival.
    waiting: List,
    seen_ms: u32,
}

/// The datagrams that came in by one port.
#[derive(Clone, Copy)]
struct OfPort {
    /// The one unseen for longest is in front.
    by_age: List,
    count: u32,
}

/// A datagram in the table, until the next call that changes the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramIndex(u32);

/// A fragment that goes on to its flow's instance.
pub(crate) struct Passing {
    pub(crate) frame: Frame,
    pub(crate) flow: FlowKey,
    /// If it is the first one: its datagram. Those that have waited for it follow: see [`Fragments::next_waiting`].
    pub(crate) first_of: Option<DatagramIndex>,
}

/// A fragment that is dropped.
pub(crate) struct Refused {
    pub(crate) frame: Frame,
    pub(crate) reason: DropReason,
    /// The flow that its datagram belongs to, if that is known.
    pub(crate) flow: Option<FlowKey>,
}

/// See the module.
pub(crate) struct Fragments {
    hasher: RandomState,
    datagrams: Box<[Datagram]>,
    by_key: HashIndex,
    /// Links of the free list and of the ports' lists.
    links: ListLinks,
    free: List,
    ports: Box<[OfPort]>,
    waiting: WaitingFragments,
}

impl Fragments {
    /// Makes room for the datagrams that may be in progress with so many flows, and for `waiting_max` fragments that
    /// wait.
    pub(crate) fn new(ports: usize, flows_max: usize, waiting_max: usize) -> Self {
        Self::of(ports, (flows_max / FLOWS_PER_DATAGRAM).max(DATAGRAMS_MIN), waiting_max)
    }

    fn of(ports: usize, datagrams: usize, waiting_max: usize) -> Self {
        let nowhere = Ingress { port: pinion_mma::id::PortIndex(0), vlan: Vlan::UNTAGGED };
        let unused = Datagram {
            key: FlowKey::ipv4([0; 4].into(), [0; 4].into(), 0, nowhere),
            state: State::Ended,
            ranges: Ranges::NONE,
            waiting: List::new(),
            seen_ms: 0,
        };
        let mut links = ListLinks::new(datagrams);
        let free = List::all(&mut links);
        Self {
            hasher: RandomState::new(),
            datagrams: vec![unused; datagrams].into(),
            by_key: HashIndex::new(datagrams),
            links,
            free,
            ports: vec![OfPort { by_age: List::new(), count: 0 }; ports].into(),
            waiting: WaitingFragments::new(ports, waiting_max),
        }
    }

    /// Returns the bytes of memory that the datagrams take, which never change.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.datagrams) + self.by_key.bytes() + self.links.bytes()
    }

    /// Returns how many fragments wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.frames()
    }

    /// Takes a fragment, which is `frame`. Returns it if it goes on at once. Otherwise it waits, or is given to `refuse`;
    /// and so are others of its datagram if that has ended.
    pub(crate) fn take(
        &mut self,
        frame: Frame,
        fragment: &Fragment,
        now_ns: u64,
        mut refuse: impl FnMut(Refused),
    ) -> Option<Passing> {
        let now_ms = to_ms(now_ns);
        let key = fragment.flow.datagram(fragment.identification);
        let known = self.find(&key, now_ms, &mut refuse);
        if fragment.part == Part::Later {
            self.make_room_to_wait(known, &key, frame.len(), now_ms, &mut refuse);
        }
        let Some(index) = known.or_else(|| self.begin(&key, fragment.part, frame.len(), now_ms, &mut refuse)) else {
            refuse(Refused { frame, reason: DropReason::FragmentsFull, flow: None });
            return None;
        };
        let datagram = &mut self.datagrams[index as usize];
        if matches!(datagram.state, State::Ended) {
            refuse(Refused { frame, reason: DropReason::DatagramEnded, flow: None });
            return None;
        }
        if let Err(reason) = datagram.ranges.add(fragment.extent) {
            self.end(index, frame, reason, refuse);
            return None;
        }
        self.note_seen(index, now_ms);
        match fragment.part {
            Part::First | Part::Whole => {
                let BeyondDatagram { ports, icmp_type, protocol } = fragment.flow.beyond_datagram();
                self.datagrams[index as usize].state = State::Known { ports, icmp_type, protocol };
                Some(Passing { frame, flow: fragment.flow, first_of: Some(DatagramIndex(index)) })
            }
            Part::Later => self.take_later(index, frame, now_ms, refuse),
        }
    }

    fn take_later(&mut self, index: u32, frame: Frame, now_ms: u32, refuse: impl FnMut(Refused)) -> Option<Passing> {
        let datagram = &mut self.datagrams[index as usize];
        if let Some(flow) = datagram.flow() {
            self.forget_if_complete(index);
            return Some(Passing { frame, flow, first_of: None });
        }
        let source = Source::of(&datagram.key);
        if let Err(frame) = self.waiting.hold(&mut datagram.waiting, index, source, frame, now_ms) {
            // It lacks this fragment now, so it can't become whole.
            self.end(index, frame, DropReason::FragmentsFull, refuse);
        }
        None
    }

    /// Returns the next fragment that has waited for the first one of this datagram, in order of arrival. Call it until
    /// there is none, right after the first one was taken.
    pub(crate) fn next_waiting(&mut self, DatagramIndex(index): DatagramIndex) -> Option<Frame> {
        let next = self.waiting.release(&mut self.datagrams[index as usize].waiting);
        if next.is_none() {
            self.forget_if_complete(index);
        }
        next
    }

    /// Forgets datagrams that are idle, and those whose fragments have waited for too long: these are given to `refuse`.
    pub(crate) fn sweep(&mut self, now_ns: u64, mut refuse: impl FnMut(Refused)) {
        let now_ms = to_ms(now_ns);
        for _ in 0..FORGOTTEN_PER_SWEEP {
            let Some(index) = self.waiting.longest(now_ms, WAIT_MS) else { break };
            self.forget(index, &mut refuse);
        }
        for port in 0..self.ports.len() {
            for _ in 0..FORGOTTEN_PER_SWEEP {
                let oldest = self.ports[port].by_age.first().filter(|index| self.age_ms(*index, now_ms) > IDLE_MS);
                let Some(index) = oldest else { break };
                self.forget(index, &mut refuse);
            }
        }
    }

    /// Returns a fragment that waits, if any does, for the end of the table.
    pub(crate) fn pop_waiting(&mut self) -> Option<Frame> {
        let index = self.waiting.longest(0, 0)?;
        self.waiting.release(&mut self.datagrams[index as usize].waiting)
    }

    /// Returns the place of a datagram, unless it is idle.
    fn find(&mut self, key: &FlowKey, now_ms: u32, refuse: &mut impl FnMut(Refused)) -> Option<u32> {
        let index = self.by_key.find(self.hash(key), |index| self.datagrams[index as usize].key == *key)?;
        if self.age_ms(index, now_ms) > IDLE_MS {
            self.forget(index, refuse);
            return None;
        }
        Some(index)
    }

    /// Ends datagrams that have waited for some time, if a later fragment of this datagram would find no room to wait in.
    fn make_room_to_wait(
        &mut self,
        known: Option<u32>,
        key: &FlowKey,
        len: u32,
        now_ms: u32,
        refuse: &mut impl FnMut(Refused),
    ) {
        if known.is_some_and(|index| !matches!(self.datagrams[index as usize].state, State::Waiting)) {
            return;
        }
        let source = Source::of(key);
        for _ in 0..GIVE_WAY_MAX {
            let in_the_way = self.waiting.in_the_way_of(&source, len, now_ms, GIVES_WAY_MS);
            let Some(index) = in_the_way.filter(|index| known != Some(*index)) else { return };
            self.forget(index, refuse);
        }
    }

    /// Returns a place for a new datagram, of which a fragment of `len` bytes has come, unless there is none.
    fn begin(
        &mut self,
        key: &FlowKey,
        part: Part,
        len: u32,
        now_ms: u32,
        refuse: &mut impl FnMut(Refused),
    ) -> Option<u32> {
        if part == Part::Later && !self.waiting.has_room(&Source::of(key), len) {
            return None;
        }
        let port = key.ingress().port.0;
        if self.free.first().is_none() {
            let index = self.evictable(usize::from(port), now_ms)?;
            self.forget(index, refuse);
        }
        let index = self.free.pop_front(&mut self.links)?;
        self.datagrams[index as usize] =
            Datagram { key: *key, state: State::Waiting, ranges: Ranges::NONE, waiting: List::new(), seen_ms: now_ms };
        self.by_key.insert(self.hash(key), index);
        let of_port = &mut self.ports[usize::from(port)];
        of_port.by_age.push_back(&mut self.links, index);
        of_port.count += 1;
        Some(index)
    }

    /// Returns the datagram that one of this port may take the place of.
    fn evictable(&self, port: usize, now_ms: u32) -> Option<u32> {
        let (largest, of_largest) = self.ports.iter().enumerate().max_by_key(|(_, of_port)| of_port.count)?;
        if of_largest.count > self.ports[port].count {
            return self.ports[largest].by_age.first();
        }
        self.ports[port].by_age.first().filter(|index| self.age_ms(*index, now_ms) >= PROTECTED_MS)
    }

    /// Ends a datagram because of this fragment of it: all others that wait, and those to come, are dropped.
    fn end(&mut self, index: u32, frame: Frame, reason: DropReason, mut refuse: impl FnMut(Refused)) {
        let datagram = &mut self.datagrams[index as usize];
        let flow = datagram.flow();
        datagram.state = State::Ended;
        while let Some(frame) = self.waiting.release(&mut datagram.waiting) {
            refuse(Refused { frame, reason: DropReason::DatagramEnded, flow: None });
        }
        refuse(Refused { frame, reason, flow });
    }

    fn forget_if_complete(&mut self, index: u32) {
        let Datagram { state, ranges, .. } = &self.datagrams[index as usize];
        if matches!(state, State::Known { .. }) && ranges.is_complete() {
            self.forget(index, &mut |_| debug_assert!(false, "none waits for a first fragment that has come"));
        }
    }

    /// Forgets a datagram. Fragments that wait are dropped.
    fn forget(&mut self, index: u32, refuse: &mut impl FnMut(Refused)) {
        let datagram = &mut self.datagrams[index as usize];
        while let Some(frame) = self.waiting.release(&mut datagram.waiting) {
            refuse(Refused { frame, reason: DropReason::FragmentWithoutFirst, flow: None });
        }
        let key = datagram.key;
        self.by_key.remove(self.hash(&key), index);
        let of_port = &mut self.ports[usize::from(key.ingress().port.0)];
        of_port.by_age.remove(&mut self.links, index);
        of_port.count -= 1;
        self.free.push_back(&mut self.links, index);
    }

    fn note_seen(&mut self, index: u32, now_ms: u32) {
        let datagram = &mut self.datagrams[index as usize];
        datagram.seen_ms = now_ms;
        let by_age = &mut self.ports[usize::from(datagram.key.ingress().port.0)].by_age;
        by_age.remove(&mut self.links, index);
        by_age.push_back(&mut self.links, index);
    }

    fn age_ms(&self, index: u32, now_ms: u32) -> u32 {
        now_ms.wrapping_sub(self.datagrams[index as usize].seen_ms)
    }

    fn hash(&self, key: &FlowKey) -> u64 {
        self.hasher.hash_one(key.words())
    }
}

impl Datagram {
    /// Returns the flow that it belongs to, if that is known.
    fn flow(&self) -> Option<FlowKey> {
        match self.state {
            State::Known { ports, icmp_type, protocol } => {
                Some(self.key.of_datagram(BeyondDatagram { ports, icmp_type, protocol }))
            }
            State::Waiting | State::Ended => None,
        }
    }
}

/// Wraps around after 49 days; no datagram gets as old as that.
fn to_ms(now_ns: u64) -> u32 {
    (now_ns / NS_PER_MS) as u32
}

#[cfg(test)]
mod tests;
