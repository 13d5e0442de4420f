//! What each source has: its datagrams, the oldest first, and how many of its fragments wait.
//!
//! The lists run through the entries of the datagrams, so that nothing is searched for.

use crate::headers::Addresses;
use crate::lru::{Id, Lru};

/// A source of packets: an address, or a /64 network of IPv6, on one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sender {
    address: u128,
    way: u16,
}

impl Sender {
    pub(super) fn of(addresses: &Addresses, way: u16) -> Self {
        let address = match addresses {
            // No network of IPv6 is the same, as its last 64 bits are zeros.
            Addresses::V4(pair) => 0xffff_0000_0000 | u128::from(pair.source),
            Addresses::V6(pair) => pair.source & !u128::from(u64::MAX),
        };
        Self { address, way }
    }
}

/// The two lists of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Datagrams whose first fragment has not come yet.
    Waiting,
    /// All others.
    Known,
}

/// The neighbours of a datagram in its source's list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    older: Option<Id>,
    newer: Option<Id>,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    oldest: Option<Id>,
    newest: Option<Id>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    /// By [`Kind`].
    lists: [List; 2],
    waiting: usize,
}

/// The sources of all datagrams.
#[derive(Debug)]
pub(super) struct Sources {
    table: Lru<Sender, Source>,
}

impl Sources {
    /// Makes room for the sources of so many datagrams.
    pub(super) fn new(datagrams: usize) -> Self {
        Self { table: Lru::with_capacity(datagrams) }
    }

    pub(super) fn rekey(&mut self) {
        self.table.rekey();
    }

    /// Returns how many fragments of a source wait.
    pub(super) fn waiting(&self, sender: Sender) -> usize {
        self.table.find(&sender).map_or(0, |id| self.table.value(id).waiting)
    }

    pub(super) fn waits_more(&mut self, sender: Sender) {
        if let Some(id) = self.table.find(&sender) {
            self.table.value_mut(id).waiting += 1;
        }
    }

    pub(super) fn waits_less(&mut self, sender: Sender, count: usize) {
        if let Some(id) = self.table.find(&sender) {
            self.table.value_mut(id).waiting -= count;
        }
    }

    /// Returns how many datagrams of a kind a source has.
    pub(super) fn datagrams(&self, sender: Sender, kind: Kind) -> usize {
        self.table.find(&sender).map_or(0, |id| self.table.value(id).lists[kind as usize].len)
    }

    /// Returns a source's oldest datagram of a kind.
    pub(super) fn oldest(&self, sender: Sender, kind: Kind) -> Option<Id> {
        self.table.value(self.table.find(&sender)?).lists[kind as usize].oldest
    }

    /// Appends a datagram to a list of its source. `change` changes the links of a datagram.
    pub(super) fn link(
        &mut self,
        sender: Sender,
        kind: Kind,
        id: Id,
        mut change: impl FnMut(Id, &mut dyn FnMut(&mut Links)),
    ) {
        // Each source in the table has a datagram, so there is room.
        let known = self.table.find(&sender);
        let Some(at) = known.or_else(|| self.table.insert(sender, Source::default(), 0, 0)) else { return };
        let list = &mut self.table.value_mut(at).lists[kind as usize];
        let older = list.newest.replace(id);
        list.len += 1;
        match older {
            Some(older) => change(older, &mut |links| links.newer = Some(id)),
            None => list.oldest = Some(id),
        }
        change(id, &mut |links| *links = Links { older, newer: None });
    }

    /// Takes a datagram off its source's list. Forgets the source if this was its last one.
    pub(super) fn unlink(
        &mut self,
        sender: Sender,
        kind: Kind,
        id: Id,
        mut change: impl FnMut(Id, &mut dyn FnMut(&mut Links)),
    ) {
        let Some(at) = self.table.find(&sender) else { return };
        let mut links = Links::default();
        change(id, &mut |own| links = *own);
        let source = self.table.value_mut(at);
        let list = &mut source.lists[kind as usize];
        list.len -= 1;
        match links.older {
            Some(older) => change(older, &mut |of| of.newer = links.newer),
            None => list.oldest = links.newer,
        }
        match links.newer {
            Some(newer) => change(newer, &mut |of| of.older = links.older),
            None => list.newest = links.older,
        }
        let is_last = source.lists.iter().all(|list| list.len == 0);
        if is_last && source.waiting == 0 {
            self.table.remove(at);
        }
    }
}
