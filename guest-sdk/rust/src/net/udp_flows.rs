//! UDP flows that the function opens itself, for its owner or to look up names: asks the node for them, and finds the flow that a datagram answers.
//!
//! ```text
//!           the function asks for one            the node has opened it            closed by the function, or ended by the node
//!    free ---------------------------> asking ---------------------------> open ---------------------------> free
//! ```
//!
//! A full table refuses new flows. Nothing here allocates after [`UdpFlows::new`].

use core::net::SocketAddr;
use std::collections::VecDeque;

use super::UdpPeer;
use super::link::{Flow, Link};
use super::outbound::{ConnectError, FlowEvent, FlowId, Via};
use super::own_flow::{Endings, Kind, OwnFlow, Tag};
use super::path::{Cause, Report};
use crate::Slots;
use crate::lru::{Id, Lru};
use crate::outbound::{self, Event, Protocol, Refusal, Request};

/// One flow.
#[derive(Default)]
struct Entry {
    /// Tells the flows of this entry apart.
    serial: u64,
    /// `None` if the entry is free.
    own: Option<OwnFlow>,
    /// Its entry in the table of open flows, and its far end.
    open: Option<(Id, UdpPeer)>,
    news: News,
}

/// What the owner is yet to be told.
#[derive(Default)]
struct News {
    is_opened: bool,
    lost: Option<ConnectError>,
    ended: Option<ConnectError>,
    is_queued: bool,
}

pub(super) struct UdpFlows {
    kind: Kind,
    entries: Box<[Entry]>,
    free: Vec<u16>,
    open: Lru<Flow, u16>,
    /// How many flows the node is asked for.
    asking: u16,
    serial: u64,
    /// Entries with news, each at most once.
    queue: VecDeque<u16>,
    endings: Endings,
}

impl UdpFlows {
    pub(super) fn new(kind: Kind, count: u16) -> Self {
        Self {
            kind,
            entries: (0..count).map(|_| Entry::default()).collect(),
            free: (0..count).rev().collect(),
            open: Lru::with_capacity(count.into()),
            asking: 0,
            serial: 0,
            queue: VecDeque::with_capacity(count.into()),
            endings: Endings::with_capacity(count.into()),
        }
    }

    /// Draws the key of the table; called once in each instance.
    pub(super) fn start(&mut self) {
        self.open.rekey();
    }

    /// Begins to open a flow.
    pub(super) fn open(&mut self, to: SocketAddr, via: Via, now_ns: u64) -> Result<FlowId, ConnectError> {
        let index = self.free.pop().ok_or(ConnectError::NoRoom)?;
        self.serial += 1;
        let tag = Tag { kind: self.kind, serial: self.serial, index }.number();
        let request = Request { tag, protocol: Protocol::Udp, to, vlan: via.vlan };
        let own = Some(OwnFlow::new(request, via, now_ns));
        self.entries[usize::from(index)] = Entry { serial: self.serial, own, ..Entry::default() };
        self.asking += 1;
        Ok(FlowId(tag))
    }

    /// Closes a flow. Its owner hears no more of it.
    pub(super) fn close(&mut self, id: FlowId) {
        if let Some(index) = self.entry_of(id.0) {
            self.release(index);
        }
    }

    /// Returns the far end of an open flow.
    pub(super) fn peer(&self, id: FlowId) -> Option<UdpPeer> {
        let index = self.entry_of(id.0)?;
        self.entries[usize::from(index)].open.map(|(_, peer)| peer)
    }

    /// Returns the open flow to which a datagram with these ends belongs. Costs nothing if there is none.
    pub(super) fn find(&self, flow: &Flow) -> Option<FlowId> {
        if self.open.is_empty() {
            return None;
        }
        let index = *self.open.value(self.open.find(flow)?);
        Some(self.id(index))
    }

    /// Takes notice of an ICMP error. Returns whether it is about a flow.
    pub(super) fn hear(&mut self, report: &Report) -> bool {
        let Some(id) = self.find(&report.flow) else { return false };
        let lost = match report.cause {
            Cause::Unreachable => ConnectError::Unreachable,
            Cause::NoSocket => ConnectError::RefusedByPeer,
            Cause::TooBig(_) | Cause::Other => return true,
        };
        let index = Tag::of(id.0).index;
        self.entries[usize::from(index)].news.lost = Some(lost);
        self.announce(index);
        true
    }

    /// Takes notice of what the node says about a flow.
    pub(super) fn hear_node(&mut self, event: &Event, via: Via, now_ns: u64) {
        match *event {
            Event::Opened { tag, flow } => match self.asking(tag) {
                Some(index) => self.begin(index, &flow, now_ns),
                // The request was repeated, or nothing waits for it any more.
                None => self.endings.push(flow.number, via),
            },
            Event::Refused { tag, refusal } => {
                if let Some(index) = self.asking(tag) {
                    self.end(index, ConnectError::ByNode(refusal));
                }
            }
            Event::Closed { tag, number, end } => {
                let Some(index) = self.entry_of(tag) else { return };
                let own = self.entries[usize::from(index)].own.as_mut();
                if let Some(own) = own.filter(|own| own.number == Some(number)) {
                    own.number = None;
                    self.end(index, ConnectError::FlowEnded(end));
                }
            }
        }
    }

    /// Returns the next news of a flow.
    pub(super) fn next_event(&mut self) -> Option<(FlowId, FlowEvent)> {
        while let Some(index) = self.queue.front().copied() {
            let id = self.id(index);
            let entry = &mut self.entries[usize::from(index)];
            let opened = entry.open.filter(|_| std::mem::take(&mut entry.news.is_opened));
            if let Some((_, peer)) = opened {
                return Some((id, FlowEvent::Opened(peer)));
            }
            if let Some(error) = entry.news.lost.take() {
                return Some((id, FlowEvent::Lost(error)));
            }
            self.queue.pop_front();
            entry.news.is_queued = false;
            if let Some(error) = entry.news.ended {
                self.release(index);
                return Some((id, FlowEvent::Ended(error)));
            }
        }
        None
    }

    /// Asks the node for flows, and to close others, as far as it is time and there are slots.
    pub(super) fn send(&mut self, slots: Slots<'_>, now_ns: u64) {
        self.endings.send(slots, now_ns);
        if self.asking == 0 {
            return;
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.is_asking()) {
            entry.own.iter_mut().for_each(|own| _ = own.ask(slots, now_ns));
        }
    }

    /// Ends the requests that the node has not answered in time.
    pub(super) fn expire(&mut self, now_ns: u64) {
        if self.asking == 0 {
            return;
        }
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.is_asking() && entry.own.is_some_and(|own| own.until_ns <= now_ns) {
                self.end(index as u16, ConnectError::TimedOut);
            }
        }
    }

    /// Returns when to call [`UdpFlows::expire`] and [`UdpFlows::send`].
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let ending_ns = self.endings.deadline_ns();
        if self.asking == 0 {
            return ending_ns;
        }
        let asking = self.entries.iter().filter(|entry| entry.is_asking());
        let due_ns = asking.filter_map(|entry| entry.own).map(|own| own.due_ns()).min();
        due_ns.into_iter().chain(ending_ns).min()
    }

    fn id(&self, index: u16) -> FlowId {
        let serial = self.entries[usize::from(index)].serial;
        FlowId(Tag { kind: self.kind, serial, index }.number())
    }

    /// Returns the entry of the flow with this number, if there is one.
    pub(super) fn entry_of(&self, number: u64) -> Option<u16> {
        let tag = Tag::of(number);
        let entry = self.entries.get(usize::from(tag.index))?;
        (entry.own.is_some() && entry.serial == tag.serial && tag.kind == self.kind).then_some(tag.index)
    }

    fn asking(&self, tag: u64) -> Option<u16> {
        self.entry_of(tag).filter(|index| self.entries[usize::from(*index)].is_asking())
    }

    fn begin(&mut self, index: u16, flow: &outbound::Flow, now_ns: u64) {
        let entry = &mut self.entries[usize::from(index)];
        let Some(own) = entry.own.as_mut() else { return };
        own.number = Some(flow.number);
        self.asking -= 1;
        let via = own.via();
        let key = Flow::between(flow.to, flow.source).filter(Flow::is_between_hosts);
        let Some(key) = key.filter(|key| self.open.find(key).is_none()) else {
            return self.end(index, ConnectError::ByNode(Refusal::NoPort));
        };
        let Some(id) = self.open.insert(key, index, 0, now_ns) else { return };
        entry.open = Some((id, UdpPeer::of_flow(key, Link::of_flow(&key, via.vlan, via.way))));
        entry.news.is_opened = true;
        self.announce(index);
    }

    /// Ends a flow: its owner is told in this turn.
    fn end(&mut self, index: u16, error: ConnectError) {
        if self.entries[usize::from(index)].is_asking() {
            self.asking -= 1;
        }
        self.entries[usize::from(index)].news.ended = Some(error);
        self.announce(index);
    }

    fn announce(&mut self, index: u16) {
        let news = &mut self.entries[usize::from(index)].news;
        if !news.is_queued {
            news.is_queued = true;
            self.queue.push_back(index);
        }
    }

    fn release(&mut self, index: u16) {
        let entry = &mut self.entries[usize::from(index)];
        if entry.is_asking() {
            self.asking -= 1;
        }
        if let Some((id, _)) = entry.open.take() {
            self.open.remove(id);
        }
        if let Some(own) = entry.own.take()
            && let Some(number) = own.number
        {
            self.endings.push(number, own.via());
        }
        if entry.news.is_queued {
            self.queue.retain(|queued| *queued != index);
        }
        entry.news = News::default();
        self.free.push(index);
    }
}

impl Entry {
    /// Returns whether the node is yet to answer.
    fn is_asking(&self) -> bool {
        self.own.is_some_and(|own| own.number.is_none()) && self.open.is_none() && self.news.ended.is_none()
    }
}
