//! What each source has: its datagrams, the oldest first, and how many of its fragments wait.
//!
//! The lists run through the entries of the datagrams, so that nothing is searched for.

use core::hash::Hash;

use crate::headers::Addresses;
use crate::lru::{Id, Linked, List, Lru};

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
        self.table.find(&sender).map_or(0, |id| self.table.value(id).lists[kind as usize].len())
    }

    /// Returns a source's oldest datagram of a kind.
    pub(super) fn oldest(&self, sender: Sender, kind: Kind) -> Option<Id> {
        self.table.value(self.table.find(&sender)?).lists[kind as usize].oldest()
    }

    /// Appends a datagram of this table to a list of its source.
    pub(super) fn link<K: Copy + Eq + Hash, V: Copy + Linked, const QUEUES: usize>(
        &mut self,
        sender: Sender,
        kind: Kind,
        id: Id,
        datagrams: &mut Lru<K, V, QUEUES>,
    ) {
        // Each source in the table has a datagram, so there is room.
        let known = self.table.find(&sender);
        let Some(at) = known.or_else(|| self.table.insert(sender, Source::default(), 0, 0)) else { return };
        self.table.value_mut(at).lists[kind as usize].append(datagrams, id);
    }

    /// Takes a datagram of this table off its source's list. Forgets the source if this was its last one.
    pub(super) fn unlink<K: Copy + Eq + Hash, V: Copy + Linked, const QUEUES: usize>(
        &mut self,
        sender: Sender,
        kind: Kind,
        id: Id,
        datagrams: &mut Lru<K, V, QUEUES>,
    ) {
        let Some(at) = self.table.find(&sender) else { return };
        let source = self.table.value_mut(at);
        source.lists[kind as usize].remove(datagrams, id);
        if source.lists.iter().all(List::is_empty) && source.waiting == 0 {
            self.table.remove(at);
        }
    }
}
