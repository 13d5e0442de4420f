//! Fragments that came before the first one of their datagram, and wait for it.
//!
//! A frame that waits keeps its buffer. So there is room for a fixed number of frames, and of bytes in them. Those of one
//! source, by the port and VLAN that they came in by, get a part of that only; and those of one port of several, whatever
//! sources are forged there, leave half of it to the others.

use std::hash::{BuildHasher, RandomState};

use pinion_mma::buffer::Frame;

use crate::flows::index::{HashIndex, List, ListLinks};
use crate::headers::{FlowKey, Ingress};

/// A source gets one of so many parts of the room.
const PARTS: usize = 4;
/// Bytes for each frame that may wait, all together: those of a frame on Ethernet, with some room.
const BYTES_PER_FRAME: usize = 1536;

/// Where fragments come from: an IPv4 address, or the upper half of an IPv6 address, in one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    bits: u64,
    is_ipv6: bool,
    ingress: Ingress,
}

impl Source {
    pub(super) fn of(key: &FlowKey) -> Self {
        let (bits, is_ipv6) = (key.source_bits(), key.is_ipv6());
        let bits = if is_ipv6 { (bits >> 64) as u64 } else { bits as u64 };
        Self { bits, is_ipv6, ingress: key.ingress() }
    }
}

/// Frames, and the bytes in them.
#[derive(Clone, Copy, Default)]
struct Room {
    frames: usize,
    bytes: usize,
}

impl Room {
    fn takes(self, len: u32, max: Self) -> bool {
        self.frames < max.frames && self.bytes + len as usize <= max.bytes
    }
}

/// A source with frames that wait.
#[derive(Clone, Copy)]
struct OfSource {
    source: Source,
    used: Room,
}

#[derive(Default)]
struct Slot {
    frame: Option<Frame>,
    datagram: u32,
    /// The place of its source.
    source: u32,
    since_ms: u32,
}

/// See the module.
pub(super) struct WaitingFragments {
    hasher: RandomState,
    slots: Box<[Slot]>,
    /// Links of the free list, and of the datagrams' lists.
    links: ListLinks,
    free: List,
    /// Links of the list of all frames.
    order_links: ListLinks,
    order: List,
    sources: Box<[OfSource]>,
    by_source: HashIndex,
    source_links: ListLinks,
    free_sources: List,
    /// By port of ingress.
    by_port: Box<[Room]>,
    used: Room,
    max: Room,
    max_of_source: Room,
    max_of_port: Room,
}

impl WaitingFragments {
    /// Makes room for `frames_max` frames of so many ports.
    pub(super) fn new(ports: usize, frames_max: usize) -> Self {
        let nowhere = Ingress { port: pinion_mma::id::PortIndex(0), vlan: crate::headers::Vlan::UNTAGGED };
        let nothing = OfSource { source: Source { bits: 0, is_ipv6: false, ingress: nowhere }, used: Room::default() };
        let (mut links, mut source_links) = (ListLinks::new(frames_max), ListLinks::new(frames_max));
        let (free, free_sources) = (List::all(&mut links), List::all(&mut source_links));
        let room = |frames: usize| Room { frames, bytes: frames * BYTES_PER_FRAME };
        Self {
            hasher: RandomState::new(),
            slots: (0..frames_max).map(|_| Slot::default()).collect(),
            links,
            free,
            order_links: ListLinks::new(frames_max),
            order: List::new(),
            sources: vec![nothing; frames_max].into(),
            by_source: HashIndex::new(frames_max.max(1)),
            source_links,
            free_sources,
            by_port: vec![Room::default(); ports].into(),
            used: Room::default(),
            max: room(frames_max),
            max_of_source: room(frames_max.div_ceil(PARTS)),
            max_of_port: room(if ports > 1 { frames_max.div_ceil(2) } else { frames_max }),
        }
    }

    /// Returns how many frames wait.
    pub(super) fn frames(&self) -> usize {
        self.used.frames
    }

    /// Returns whether one more frame of this length may wait, from there.
    pub(super) fn has_room(&self, source: &Source, len: u32) -> bool {
        self.used.takes(len, self.max) && self.source_takes(source, len) && self.port_takes(source, len)
    }

    fn source_takes(&self, source: &Source, len: u32) -> bool {
        let of_source = self.find(source).map_or(Room::default(), |place| self.sources[place as usize].used);
        of_source.takes(len, self.max_of_source)
    }

    fn port_takes(&self, source: &Source, len: u32) -> bool {
        self.by_port[usize::from(source.ingress.port.0)].takes(len, self.max_of_port)
    }

    /// Returns the datagram of the frame that has waited longest, if that is for this time or longer, and if one of this
    /// length from there may not wait for want of the room that it takes.
    pub(super) fn in_the_way_of(&self, source: &Source, len: u32, now_ms: u32, wait_ms: u32) -> Option<u32> {
        if self.has_room(source, len) || !self.source_takes(source, len) {
            return None;
        }
        let longest = &self.slots[self.order.first()? as usize];
        let is_of_port = self.sources[longest.source as usize].source.ingress.port == source.ingress.port;
        let takes_it = self.port_takes(source, len) || is_of_port;
        (takes_it && now_ms.wrapping_sub(longest.since_ms) >= wait_ms).then_some(longest.datagram)
    }

    /// Lets a frame wait, at the end of its datagram's list. Returns the frame if there is no room.
    pub(super) fn hold(
        &mut self,
        list: &mut List,
        datagram: u32,
        source: Source,
        frame: Frame,
        now_ms: u32,
    ) -> Result<(), Frame> {
        let len = frame.len();
        if !self.has_room(&source, len) {
            return Err(frame);
        }
        let Some(slot) = self.free.pop_front(&mut self.links) else { return Err(frame) };
        let Some(place) = self.find(&source).or_else(|| self.begin(source)) else {
            self.free.push_back(&mut self.links, slot);
            return Err(frame);
        };
        let of_port = &mut self.by_port[usize::from(source.ingress.port.0)];
        for used in [&mut self.used, &mut self.sources[place as usize].used, of_port] {
            used.frames += 1;
            used.bytes += len as usize;
        }
        list.push_back(&mut self.links, slot);
        self.order.push_back(&mut self.order_links, slot);
        self.slots[slot as usize] = Slot { frame: Some(frame), datagram, source: place, since_ms: now_ms };
        Ok(())
    }

    /// Releases the frame that has waited longest of a datagram's list.
    pub(super) fn release(&mut self, list: &mut List) -> Option<Frame> {
        let slot = list.pop_front(&mut self.links)?;
        self.order.remove(&mut self.order_links, slot);
        self.free.push_back(&mut self.links, slot);
        let Slot { frame, source: place, .. } = std::mem::take(&mut self.slots[slot as usize]);
        let len = frame.as_ref().map_or(0, Frame::len) as usize;
        let OfSource { source, used } = &mut self.sources[place as usize];
        let of_port = &mut self.by_port[usize::from(source.ingress.port.0)];
        for used in [&mut self.used, of_port, &mut *used] {
            used.frames -= 1;
            used.bytes -= len;
        }
        if used.frames == 0 {
            let source = *source;
            self.by_source.remove(self.hash(&source), place);
            self.free_sources.push_back(&mut self.source_links, place);
        }
        frame
    }

    /// Returns the datagram of the frame that has waited longest, if that is for this time or longer.
    pub(super) fn longest(&self, now_ms: u32, wait_ms: u32) -> Option<u32> {
        let Slot { datagram, since_ms, .. } = &self.slots[self.order.first()? as usize];
        (now_ms.wrapping_sub(*since_ms) >= wait_ms).then_some(*datagram)
    }

    fn find(&self, source: &Source) -> Option<u32> {
        self.by_source.find(self.hash(source), |place| self.sources[place as usize].source == *source)
    }

    fn begin(&mut self, source: Source) -> Option<u32> {
        let place = self.free_sources.pop_front(&mut self.source_links)?;
        self.sources[place as usize] = OfSource { source, used: Room::default() };
        self.by_source.insert(self.hash(&source), place);
        Some(place)
    }

    fn hash(&self, Source { bits, is_ipv6, ingress: Ingress { port, vlan } }: &Source) -> u64 {
        self.hasher.hash_one((bits, is_ipv6, port, vlan))
    }
}
