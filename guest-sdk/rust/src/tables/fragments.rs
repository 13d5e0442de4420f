//! Datagrams in fragments, for functions that decide by ports, in whatever order the fragments come: [`Fragments`].
//!
//! Only the first fragment of a datagram has ports. A function decides on that one, and all others follow its decision
//! (RFC 4787, REQ-14). A fragment that comes before the first one waits in its own slot:
//!
//! ```text
//!   not a fragment  --> Whole
//!   first           --> First: the function decides --decide--> the datagram passes; next_held returns those that waited
//!   later           --> Later, with the decision    if the first one has passed
//!                   --> Taken: waits                if the first one has not come yet
//!                   --> Taken: dropped, counted     if the datagram has ended or was refused, or there is no room
//! ```
//!
//! Nothing is reassembled. But what a receiver reassembles begins with the headers that were decided on: a fragment that
//! overlaps another, a first one that differs from an earlier first one, and data beyond 65,535 bytes end the datagram
//! (RFC 5722). So does the 129th fragment. Nothing more of an ended datagram passes. A frame that came twice ends nothing (RFC 8200, 4.5).
//!
//! Strangers fill the tables, so everything is bounded, and all memory is allocated when they are made. A source has a
//! share of the datagrams and of the waiting fragments. If it uses more, it loses its own oldest ones. If all are in use,
//! the oldest ones are dropped: ended and refused datagrams first, then complete ones. Of IPv6, a /64 network counts as
//! one source, as one host may have any address of it (RFC 8981).

mod limits;
mod losses;
mod parts;
mod sources;
mod waiting;

use core::fmt;

pub use limits::Limits;
use losses::Counters;
pub use losses::Loss;
use parts::{Part, Parts, Relation};
use sources::{Kind, Sender, Sources};
use waiting::{List, WAITING_MAX, Waiting};

use crate::headers::{Addresses, Fragment, Headers};
use crate::lru::{Id, Linked, Links, Lru};
use crate::{Packet, Slots};

/// Most datagrams of a phase that are removed at once, so that no batch waits until all old ones are.
const EXPIRED_MAX: usize = 64;

/// What to do with a packet that has arrived.
#[derive(Debug)]
#[must_use = "a packet that is not sent is dropped"]
pub enum Arrival<'a, D> {
    /// It is not a fragment.
    Whole(Packet<'a>),
    /// It is the first fragment of a datagram: decide on it, and call [`Fragments::decide`].
    First(Packet<'a>, FirstFragment),
    /// It is a later fragment of a datagram on which this was decided.
    Later(Packet<'a>, D),
    /// It waits for its first fragment, or was dropped and counted.
    Taken,
}

/// The datagram of a first fragment, until [`Fragments::decide`].
#[derive(Clone, Copy, Debug)]
pub struct FirstFragment {
    key: Key,
    part: Part,
}

/// What all fragments of a datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    addresses: Addresses,
    /// Only the first fragment of IPv6 states the protocol, so all of them have 44 in its place.
    protocol: u8,
    id: u32,
    way: u16,
}

impl Key {
    fn of(headers: &Headers, fragment: Fragment, way: u16) -> Self {
        Self { addresses: headers.addresses, protocol: headers.without_ports().protocol, id: fragment.id, way }
    }

    fn sender(&self) -> Sender {
        Sender::of(&self.addresses, self.way)
    }

    fn is_v4(&self) -> bool {
        matches!(self.addresses, Addresses::V4(_))
    }
}

/// The phase of a datagram, which is also its queue in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its first fragment has not come yet. At least one fragment waits for it.
    Waiting,
    /// Its first fragment has passed.
    Passing,
    /// All its fragments have come. Of IPv6 only: IPv4 has so few identifications that a busy host soon uses them again.
    Complete,
    /// The function has refused its first fragment.
    Refused,
    /// Its fragments contradict each other.
    Ended,
}

const PHASES: [Phase; 5] = [Phase::Waiting, Phase::Passing, Phase::Complete, Phase::Refused, Phase::Ended];
/// The order in which datagrams are evicted.
const EVICTED: [Phase; 4] = [Phase::Ended, Phase::Refused, Phase::Complete, Phase::Passing];

impl Phase {
    /// Returns the share of its source that the datagram belongs to.
    fn kind(self) -> Kind {
        if self == Self::Waiting { Kind::Waiting } else { Kind::Known }
    }
}

#[derive(Clone, Copy, Debug)]
struct Datagram<D> {
    phase: Phase,
    /// Set from [`Phase::Passing`] on.
    decision: Option<D>,
    parts: Parts,
    waiting: List,
    links: Links,
}

impl<D> Datagram<D> {
    fn new(phase: Phase, decision: Option<D>) -> Self {
        Self { phase, decision, parts: Parts::NONE, waiting: List::default(), links: Links::default() }
    }
}

impl<D> Linked for Datagram<D> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The datagrams in fragments that a function remembers, with a decision on each.
///
/// Make it in [`Function::init`](crate::Function::init), where it declares its metrics, and call [`Fragments::start`] in
/// [`Function::start`](crate::Function::start). Read packets with [`Headers::of_part`]: overlaps are found here.
///
/// ```
/// use pinion_sdk::fragments::{Arrival, Fragments, Limits};
/// use pinion_sdk::headers::Headers;
/// use pinion_sdk::{Batch, Function, InitError, Slots, clock};
///
/// /// Sends datagrams to port 53 to output 1, with all their fragments, and others to output 0.
/// struct Sort(Fragments<u16>);
///
/// fn output(headers: &Headers) -> u16 {
///     u16::from(headers.ports.is_some_and(|ports| ports.destination == 53))
/// }
///
/// impl Function for Sort {
///     fn init(_config: &[u8]) -> Result<Self, InitError> {
///         Ok(Self(Fragments::new("sort", Limits::default())))
///     }
///
///     fn start(&mut self) {
///         self.0.start();
///     }
///
///     fn handle(&mut self, batch: Batch<'_>) {
///         let (slots, now_ns) = (batch.slots(), clock::now_ns());
///         for packet in batch {
///             let Ok(headers) = Headers::of_part(packet.data()) else { continue };
///             let way = packet.ingress_port();
///             match self.0.arrive(packet, &headers, way, now_ns) {
///                 Arrival::Whole(packet) => packet.send_to(output(&headers)),
///                 Arrival::First(packet, first) => {
///                     let decision = output(&headers);
///                     if self.0.decide(first, Some(decision), now_ns) {
///                         packet.send_to(decision);
///                     }
///                     while let Some(packet) = self.0.next_held(first, slots, now_ns) {
///                         packet.send_to(decision);
///                     }
///                 }
///                 Arrival::Later(packet, decision) => packet.send_to(decision),
///                 Arrival::Taken => {}
///             }
///         }
///     }
///
///     fn deadline_ns(&self) -> Option<u64> {
///         self.0.deadline_ns()
///     }
///
///     fn expire(&mut self, _slots: Slots<'_>) {
///         self.0.expire(clock::now_ns());
///     }
/// }
///
/// # use pinion_sdk::testing::{Harness, Outcome};
/// # let part = |offset: u8, more: u8, payload: &[u8]| {
/// #     let ip = [0x45, 0, 0, 20 + payload.len() as u8, 0, 9, more, offset, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
/// #     [&[2; 12][..], &[8, 0], &ip, payload].concat()
/// # };
/// let later = part(1, 0, &[7; 24]);
/// let first = part(0, 0x20, &[0x13, 0x88, 0, 53, 0, 32, 0, 0]);
/// let mut harness = Harness::<Sort>::new(b"").unwrap();
/// assert!(harness.deliver(&[&later]).is_empty(), "it waits");
/// let verdicts = harness.deliver(&[&first]);
/// assert_eq!([0, 1].map(|at| verdicts[at].outcome), [Outcome::SentTo(1); 2]);
/// assert_eq!(verdicts[1].bytes, later);
/// ```
pub struct Fragments<D> {
    table: Lru<Key, Datagram<D>, { PHASES.len() }>,
    /// Datagrams in another phase than [`Phase::Waiting`].
    known: usize,
    sources: Sources,
    waiting: Waiting,
    limits: Limits,
    counters: Counters,
}

impl<D: Copy + PartialEq> Fragments<D> {
    /// Makes an empty table, and declares the [metrics](crate::metrics) `PREFIX_fragments_held` and
    /// `PREFIX_fragments_dropped`, the latter for each reason ([`Loss`]).
    ///
    /// # Panics
    ///
    /// If a bound is 0, or more than 1,024 fragments may wait. Or if it is not called in
    /// [`Function::init`](crate::Function::init).
    #[must_use]
    pub fn new(prefix: &str, limits: Limits) -> Self {
        let Limits { datagrams_max, datagrams_per_source_max, waiting_max, waiting_per_source_max, .. } = limits;
        let bounds = [datagrams_max, datagrams_per_source_max, waiting_max, waiting_per_source_max];
        assert!(bounds.iter().all(|bound| *bound > 0), "{limits:?}: each bound is at least 1");
        assert!(waiting_max <= WAITING_MAX, "{waiting_max} fragments may wait; at most {WAITING_MAX} are possible");
        // A waiting datagram has at least one fragment that waits.
        let capacity = datagrams_max + waiting_max;
        Self {
            table: Lru::with_capacity(capacity),
            known: 0,
            sources: Sources::new(capacity),
            waiting: Waiting::new(waiting_max),
            limits,
            counters: Counters::new(prefix),
        }
    }

    /// Draws the hash keys, and forgets all datagrams.
    pub fn start(&mut self) {
        self.table.rekey();
        self.sources.rekey();
        self.waiting.clear();
        self.known = 0;
    }

    /// Returns how many fragments wait for their first one.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Returns how many fragments have been dropped here, for all reasons.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.counters.dropped()
    }

    /// Returns how many fragments have been dropped here for a reason.
    #[must_use]
    pub fn dropped_for(&self, loss: Loss) -> u64 {
        self.counters.of(loss)
    }

    /// Takes a packet with these headers. `way` says where it came from, if the function treats packets of several ways
    /// differently, by its ingress port or its direction for example: fragments of different ways belong to different
    /// datagrams.
    #[inline]
    pub fn arrive<'a>(&mut self, packet: Packet<'a>, headers: &Headers, way: u16, now_ns: u64) -> Arrival<'a, D> {
        match headers.fragment {
            None => Arrival::Whole(packet),
            Some(fragment) => self.arrive_part(packet, headers, Key::of(headers, fragment, way), now_ns),
        }
    }

    fn arrive_part<'a>(&mut self, packet: Packet<'a>, headers: &Headers, key: Key, now_ns: u64) -> Arrival<'a, D> {
        let known = self.live(&key, now_ns);
        let Some(part) = Part::of(headers, packet.data()) else {
            return self.contradicted(known, key, Loss::BadLength, now_ns);
        };
        let first = FirstFragment { key, part };
        let Some(id) = known else {
            if part.is_first() {
                return Arrival::First(packet, first);
            }
            self.hold(None, first, packet, now_ns);
            return Arrival::Taken;
        };
        let datagram = self.table.value_mut(id);
        match datagram.phase {
            Phase::Refused if part.is_first() => return Arrival::First(packet, first),
            Phase::Refused => return self.lost(Loss::Refused),
            Phase::Ended => return self.lost(Loss::Ended),
            Phase::Waiting | Phase::Passing | Phase::Complete => {}
        }
        match (datagram.parts.add(part), datagram.decision) {
            (Relation::Contradicts, _) => self.contradicted(Some(id), key, Loss::Overlap, now_ns),
            (Relation::TooMany, _) => self.contradicted(Some(id), key, Loss::TooMany, now_ns),
            _ if part.is_first() => Arrival::First(packet, first),
            (_, Some(decision)) => {
                self.settle(id, now_ns);
                Arrival::Later(packet, decision)
            }
            (Relation::Repeated, None) => self.lost(Loss::Repeated),
            (Relation::New, None) => {
                self.hold(Some(id), first, packet, now_ns);
                Arrival::Taken
            }
        }
    }

    /// Records the decision on a datagram's first fragment; with `None` the datagram is refused. Returns whether the
    /// first fragment passes. If it does not, drop it. If it does, send it, and then those that
    /// [`Fragments::next_held`] returns.
    ///
    /// A first fragment that came twice passes if the decision is the same both times; else it ends the datagram.
    pub fn decide(&mut self, first: FirstFragment, decision: Option<D>, now_ns: u64) -> bool {
        let known = self.live(&first.key, now_ns);
        let phase = known.map(|id| self.table.value(id).phase);
        let Some(decision) = decision else {
            self.refuse(known, first.key, now_ns);
            return false;
        };
        match (known, phase) {
            (Some(id), Some(Phase::Passing | Phase::Complete)) => {
                let is_same = self.table.value(id).decision == Some(decision);
                if !is_same {
                    let _: Arrival<'_, D> = self.contradicted(known, first.key, Loss::Overlap, now_ns);
                }
                is_same
            }
            (Some(id), Some(Phase::Waiting)) => {
                self.table.value_mut(id).decision = Some(decision);
                self.move_to(id, Phase::Passing, now_ns);
                true
            }
            (Some(_), Some(Phase::Ended)) => {
                self.counters.count(Loss::Ended);
                false
            }
            // What was refused begins anew.
            (known, _) => {
                if let Some(id) = known {
                    self.remove(id, Loss::Refused);
                }
                let mut datagram = Datagram::new(Phase::Passing, Some(decision));
                datagram.parts.add(first.part);
                self.insert(first.key, datagram, now_ns);
                true
            }
        }
    }

    /// Returns the next of the fragments that waited for this first one, in the order of their offsets. Call it until it
    /// returns `None`.
    pub fn next_held<'a>(&mut self, first: FirstFragment, slots: Slots<'a>, now_ns: u64) -> Option<Packet<'a>> {
        let id = self.table.find(&first.key)?;
        let datagram = self.table.value_mut(id);
        if datagram.phase != Phase::Passing {
            return None;
        }
        match self.waiting.next(&mut datagram.waiting) {
            Some(held) => {
                self.sources.waits_less(first.key.sender(), 1);
                Some(slots.take(held))
            }
            None => {
                self.settle(id, now_ns);
                None
            }
        }
    }

    /// Returns when [`Fragments::expire`] has something to do, for [`Function::deadline_ns`](crate::Function::deadline_ns):
    /// when the fragment that has waited for longest is to be dropped.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        let (_, since_ns) = self.table.oldest(Phase::Waiting as usize)?;
        Some(since_ns.saturating_add(self.limits.waiting_ns))
    }

    /// Drops fragments that have waited for too long, and forgets old datagrams: a bounded number of each. Those that
    /// remain count as forgotten.
    #[inline]
    pub fn expire(&mut self, now_ns: u64) {
        if !self.table.is_empty() {
            self.expire_some(now_ns);
        }
    }

    fn expire_some(&mut self, now_ns: u64) {
        for phase in PHASES {
            for _ in 0..EXPIRED_MAX {
                match self.table.oldest(phase as usize) {
                    Some((id, _)) if self.is_over(id, now_ns) => self.remove(id, Loss::NoFirst),
                    _ => break,
                }
            }
        }
    }

    /// Counts a fragment that is dropped.
    fn lost<'a>(&self, loss: Loss) -> Arrival<'a, D> {
        self.counters.count(loss);
        Arrival::Taken
    }

    /// Ends the datagram of a fragment that contradicts others, or that no datagram can have.
    fn contradicted<'a>(&mut self, known: Option<Id>, key: Key, loss: Loss, now_ns: u64) -> Arrival<'a, D> {
        match known {
            Some(id) => self.end(id, now_ns),
            None => self.insert(key, Datagram::new(Phase::Ended, None), now_ns),
        }
        self.lost(loss)
    }

    fn end(&mut self, id: Id, now_ns: u64) {
        self.drop_waiting(id, Loss::Ended);
        self.table.value_mut(id).decision = None;
        self.move_to(id, Phase::Ended, now_ns);
    }

    fn refuse(&mut self, known: Option<Id>, key: Key, now_ns: u64) {
        match known {
            Some(id) if self.table.value(id).phase != Phase::Ended => {
                self.drop_waiting(id, Loss::Refused);
                self.table.value_mut(id).decision = None;
                self.move_to(id, Phase::Refused, now_ns);
            }
            Some(_) => {}
            // A refused datagram is only remembered so that its fragments need not wait: none is evicted for it.
            None if self.has_room(key.sender()) => self.insert(key, Datagram::new(Phase::Refused, None), now_ns),
            None => {}
        }
    }

    /// Forgets a datagram whose fragments have all come, or moves it to those that are evicted first.
    fn settle(&mut self, id: Id, now_ns: u64) {
        let Datagram { phase, parts, waiting, .. } = self.table.value(id);
        if *phase != Phase::Passing || waiting.len() > 0 || !parts.are_complete() {
            return;
        }
        if self.table.key(id).is_v4() {
            self.remove(id, Loss::Ended);
        } else {
            self.move_to(id, Phase::Complete, now_ns);
        }
    }

    /// Makes a later fragment wait. Drops what has waited for longest if there is no room: of its own source, if that
    /// has its share.
    fn hold(&mut self, known: Option<Id>, first: FirstFragment, packet: Packet<'_>, now_ns: u64) {
        let sender = first.key.sender();
        loop {
            let has_its_share = self.sources.waiting(sender) >= self.limits.waiting_per_source_max;
            let oldest = if has_its_share {
                self.sources.oldest(sender, Kind::Waiting)
            } else if self.waiting.is_full() {
                self.table.oldest(Phase::Waiting as usize).map(|(id, _)| id)
            } else {
                break;
            };
            match oldest {
                // Others take the room, and that does not end it.
                Some(id) if known == Some(id) && !has_its_share => return self.counters.count(Loss::NoRoom),
                // It has more fragments than may wait.
                Some(id) if known == Some(id) => {
                    let _: Arrival<'_, D> = self.contradicted(known, first.key, Loss::NoRoom, now_ns);
                    return;
                }
                Some(id) => self.remove(id, Loss::NoRoom),
                None => return self.counters.count(Loss::NoRoom),
            }
        }
        let id = known.or_else(|| {
            let mut datagram = Datagram::new(Phase::Waiting, None);
            datagram.parts.add(first.part);
            self.insert(first.key, datagram, now_ns);
            self.table.find(&first.key)
        });
        let Some(id) = id else { return self.counters.count(Loss::NoRoom) };
        self.waiting.add(&mut self.table.value_mut(id).waiting, packet.hold(), first.part.start);
        self.sources.waits_more(sender);
        self.counters.held.increment();
    }

    /// Returns the entry of a datagram. If its time has passed, removes it instead.
    fn live(&mut self, key: &Key, now_ns: u64) -> Option<Id> {
        let id = self.table.find(key)?;
        if self.is_over(id, now_ns) {
            self.remove(id, Loss::NoFirst);
            return None;
        }
        Some(id)
    }

    fn is_over(&self, id: Id, now_ns: u64) -> bool {
        let is_waiting = self.table.value(id).phase == Phase::Waiting;
        let lifetime_ns = if is_waiting { self.limits.waiting_ns } else { self.limits.datagram_ns };
        now_ns.saturating_sub(self.table.used_ns(id)) >= lifetime_ns
    }

    fn has_room(&self, sender: Sender) -> bool {
        self.known < self.limits.datagrams_max
            && self.sources.datagrams(sender, Kind::Known) < self.limits.datagrams_per_source_max
    }

    /// Makes room for one more datagram that does not wait: evicts its source's oldest one, or the oldest of all.
    fn make_room(&mut self, sender: Sender) {
        if self.sources.datagrams(sender, Kind::Known) >= self.limits.datagrams_per_source_max
            && let Some(id) = self.sources.oldest(sender, Kind::Known)
        {
            self.remove(id, Loss::NoRoom);
        }
        if self.known >= self.limits.datagrams_max
            && let Some((id, _)) = EVICTED.into_iter().find_map(|phase| self.table.oldest(phase as usize))
        {
            self.remove(id, Loss::NoRoom);
        }
    }

    /// Adds a datagram.
    fn insert(&mut self, key: Key, datagram: Datagram<D>, now_ns: u64) {
        let kind = datagram.phase.kind();
        if kind == Kind::Known {
            self.make_room(key.sender());
        }
        // There is room: for each waiting datagram a fragment waits, and of the others some were evicted.
        if let Some(id) = self.table.insert(key, datagram, datagram.phase as usize, now_ns) {
            self.known += usize::from(kind == Kind::Known);
            self.link(id);
        }
    }

    /// Moves a datagram to another phase, but not back to [`Phase::Waiting`].
    fn move_to(&mut self, id: Id, phase: Phase, now_ns: u64) {
        if self.table.value(id).phase == Phase::Waiting {
            self.make_room(self.table.key(id).sender());
            self.unlink(id);
            self.table.value_mut(id).phase = phase;
            self.link(id);
            self.known += 1;
        }
        self.table.value_mut(id).phase = phase;
        self.table.touch(id, phase as usize, now_ns);
    }

    fn remove(&mut self, id: Id, loss: Loss) {
        self.drop_waiting(id, loss);
        self.unlink(id);
        let (_, datagram) = self.table.remove(id);
        self.known -= usize::from(datagram.phase.kind() == Kind::Known);
    }

    /// Drops the fragments of a datagram that wait.
    fn drop_waiting(&mut self, id: Id, loss: Loss) {
        let sender = self.table.key(id).sender();
        let list = &mut self.table.value_mut(id).waiting;
        while let Some(held) = self.waiting.next(list) {
            drop(held);
            self.sources.waits_less(sender, 1);
            self.counters.count(loss);
        }
    }

    fn link(&mut self, id: Id) {
        let (sender, kind) = (self.table.key(id).sender(), self.table.value(id).phase.kind());
        self.sources.link(sender, kind, id, &mut self.table);
    }

    fn unlink(&mut self, id: Id) {
        let (sender, kind) = (self.table.key(id).sender(), self.table.value(id).phase.kind());
        self.sources.unlink(sender, kind, id, &mut self.table);
    }
}

impl<D> fmt::Debug for Fragments<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { known, waiting, limits, .. } = self;
        let waiting = waiting.len();
        f.debug_struct("Fragments").field("known", known).field("waiting", &waiting).field("limits", limits).finish()
    }
}
