//! The lookup table of Maglev (Eisenbud et al., NSDI 2016, section 3.4): backends take entries in turns, each in its
//! own order.
//!
//! ```text
//!   a: 3 0 4 1 ...  \
//!   b: 0 2 4 1 ...   >  in turns, each takes the next free entry of its order          -->  | b | a | b | a | c | ...
//!   c: 3 4 0 1 ...  /                                                                         a flow's hash picks one
//! ```
//!
//! Each backend has a share of the entries by its weight, almost exactly. When a backend goes, most entries of the
//! others stay as they were. The order of a backend depends on its name alone, so instances with the same backends make
//! the same table.

use core::hash::Hasher;
use std::hash::DefaultHasher;

/// Index of a backend.
pub type Backend = u16;

/// Stands for no backend.
const NO_BACKEND: Backend = Backend::MAX;

/// An entry that no backend has.
const EMPTY: Backend = NO_BACKEND;

/// The order in which a backend takes entries: every `skip`-th from `offset` on. The number of entries is a prime, so
/// each comes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The first entry.
    pub offset: u32,
    /// Distance from one entry to the next, at least 1.
    pub skip: u32,
}

impl Order {
    /// Returns the order for a name, in a table of so many entries.
    #[must_use]
    pub fn of(name: &str, places: u32) -> Self {
        let hash = |of: u8| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u8(of);
            hasher.write(name.as_bytes());
            hasher.finish()
        };
        let (places, others) = (u64::from(places), u64::from(places) - 1);
        Self { offset: (hash(0) % places) as u32, skip: (hash(1) % others) as u32 + 1 }
    }
}

/// A backend in the table.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its index, less than [`Backend::MAX`].
    pub backend: Backend,
    /// The order in which it takes entries.
    pub order: Order,
    /// Its weight, relative to the others'; with zero it gets no entries.
    pub weight: u32,
}

/// The lookup table: backends by hash.
#[derive(Clone, Debug)]
pub struct Maglev {
    places: Box<[Backend]>,
}

impl Maglev {
    /// Makes an empty table of that many entries, a prime.
    #[must_use]
    pub fn new(places: u32) -> Self {
        Self { places: vec![EMPTY; places as usize].into() }
    }

    /// Assigns all entries anew. Takes some steps for each entry, and allocates a word for each backend.
    pub fn fill(&mut self, parts: &[Part]) {
        self.places.fill(EMPTY);
        let weight_max = parts.iter().map(|part| part.weight).max().unwrap_or(0);
        if weight_max == 0 {
            return;
        }
        let count = self.places.len() as u32;
        let mut next: Vec<u32> = parts.iter().map(|part| part.order.offset).collect();
        let mut left = self.places.len();
        for round in 0_u64.. {
            for (part, next) in parts.iter().zip(&mut next) {
                // The backend of the greatest weight takes part in each round, others in a part of the rounds by their
                // weight.
                let turns = |round: u64| round * u64::from(part.weight) / u64::from(weight_max);
                if turns(round + 1) == turns(round) {
                    continue;
                }
                while self.places[*next as usize] != EMPTY {
                    *next = (*next + part.order.skip) % count;
                }
                self.places[*next as usize] = part.backend;
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }

    /// Returns the backend of a flow's hash; none, if there are no backends.
    #[inline]
    #[must_use]
    pub fn backend(&self, hash: u64) -> Option<Backend> {
        // The upper half of the product is a number below the count, uniform enough.
        let place = (u128::from(hash) * self.places.len() as u128) >> 64;
        self.places.get(place as usize).copied().filter(|backend| *backend != NO_BACKEND)
    }

    /// Returns the entries, in order.
    #[must_use]
    pub fn places(&self) -> &[Backend] {
        &self.places
    }
}
