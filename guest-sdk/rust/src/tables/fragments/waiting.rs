//! Fragments that wait for the first one of their datagram: [`Waiting`]. They stay in their own slots.
//!
//! ```text
//!   places  | held | held | free | held | ...      allocated once; a list for each datagram, by the fragments' offsets
//! ```

use crate::Held;

/// No place: places count from 1.
const NONE: u16 = 0;

/// Most fragments that can wait, whatever a function asks for.
pub(super) const WAITING_MAX: usize = 1024;

/// The waiting fragments of one datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct List {
    first: u16,
    len: u16,
}

impl List {
    pub(super) fn len(self) -> usize {
        self.len.into()
    }
}

#[derive(Debug)]
struct Place {
    held: Option<Held>,
    /// The fragment's offset in its datagram.
    start: u16,
    next: u16,
}

/// Places for waiting fragments.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Never longer than `capacity`.
    places: Vec<Place>,
    capacity: usize,
    free: u16,
    len: usize,
}

impl Waiting {
    pub(super) fn new(capacity: usize) -> Self {
        Self { places: Vec::with_capacity(capacity), capacity, free: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Drops all fragments.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        (self.free, self.len) = (NONE, 0);
    }

    /// Adds a fragment to its datagram's list, which is searched for its offset. Drops it if there is no room.
    pub(super) fn add(&mut self, list: &mut List, held: Held, start: u16) {
        let Some(place) = self.take_place() else { return };
        let (mut before, mut next) = (NONE, list.first);
        while next != NONE && self.at(next).start < start {
            (before, next) = (next, self.at(next).next);
        }
        *self.at(place) = Place { held: Some(held), start, next };
        match before {
            NONE => list.first = place,
            _ => self.at(before).next = place,
        }
        list.len += 1;
        self.len += 1;
    }

    /// Takes the fragment with the lowest offset off a datagram's list.
    pub(super) fn next(&mut self, list: &mut List) -> Option<Held> {
        let place = list.first;
        if place == NONE {
            return None;
        }
        let free = self.free;
        let taken = self.at(place);
        let held = taken.held.take();
        list.first = core::mem::replace(&mut taken.next, free);
        list.len -= 1;
        self.free = place;
        self.len -= 1;
        held
    }

    fn take_place(&mut self) -> Option<u16> {
        if self.free != NONE {
            let place = self.free;
            self.free = self.at(place).next;
            return Some(place);
        }
        if self.places.len() == self.capacity {
            return None;
        }
        self.places.push(Place { held: None, start: 0, next: NONE });
        Some(self.places.len() as u16)
    }

    fn at(&mut self, place: u16) -> &mut Place {
        &mut self.places[usize::from(place) - 1]
    }
}
