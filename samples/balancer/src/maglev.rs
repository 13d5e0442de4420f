//! The lookup table of Maglev (Eisenbud et al., NSDI 2016, section 3.4): places that backends take in turns, each in an order of its own.
//!
//! ```text
//!   a: 3 0 4 1 ...  \
//!   b: 0 2 4 1 ...   >  in turns, each takes the next place of its order that is free  -->  | b | a | b | a | c | ...
//!   c: 3 4 0 1 ...  /                                                                         a flow's hash picks one
//! ```
//!
//! Each has a share of places by its weight, almost exactly, and when one goes, most of the others' places stay as they were. The order of a
//! backend depends on its name alone, so tables made anywhere of the same backends are the same.

use core::hash::Hasher;
use std::hash::DefaultHasher;

/// Number of a backend.
pub type Backend = u16;

/// The number that is no backend's.
const NOBODY: Backend = Backend::MAX;

/// A place that nobody has.
const EMPTY: Backend = NOBODY;

/// In which order a backend takes places: every `skip`-th from `offset` on. The number of places is a prime, so each comes once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The first.
    pub offset: u32,
    /// From one to the next, 1 at least.
    pub skip: u32,
}

impl Order {
    /// That of a name, in a table of so many places.
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

/// A backend that takes part.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its number, less than the greatest there is.
    pub backend: Backend,
    /// In which order it takes places.
    pub order: Order,
    /// Its share, relative to others'; none, if it is zero.
    pub weight: u32,
}

/// Backends by hash.
#[derive(Clone, Debug)]
pub struct Maglev {
    places: Box<[Backend]>,
}

impl Maglev {
    /// A table of that many places, a prime, with nobody in it.
    #[must_use]
    pub fn new(places: u32) -> Self {
        Self { places: vec![EMPTY; places as usize].into() }
    }

    /// Gives all places anew. Takes some steps for each place, and no memory but a word for each backend.
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
                // Whoever has the greatest weight takes part in each round, others in their share of them.
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

    /// Whose a flow of that hash is; nobody's, if there are no backends.
    #[inline]
    #[must_use]
    pub fn backend(&self, hash: u64) -> Option<Backend> {
        // The upper half of a product is a number below the count, as evenly as matters.
        let place = (u128::from(hash) * self.places.len() as u128) >> 64;
        self.places.get(place as usize).copied().filter(|backend| *backend != NOBODY)
    }

    /// The places, in order.
    #[must_use]
    pub fn places(&self) -> &[Backend] {
        &self.places
    }
}
