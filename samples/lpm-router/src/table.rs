//! The forwarding table: the next hop of an address.
//!
//! Prefixes either nest or are disjoint. So the table is a list of disjoint ranges, each with the hop of the longest
//! prefix that covers it. `n` prefixes make at most `2 n + 1` ranges. A lookup finds the last range that starts at or
//! before the address: an index of the top bits narrows it to a few ranges, and a binary search finds it among these.
//! That is DXR (Zec, Rizzo, Mikuc, 2012), for addresses of both lengths.
//!
//! ```text
//!   index    | 0 | 1 | 1 | 3 | ...        by an address's top bits: the range of the address whose other bits are zero
//!                  |
//!   starts   | 0.0.0.0 | 10.0.0.0 | 10.1.0.0 | 10.2.0.0 | 11.0.0.0 |
//!   hops     | none    | a        | b        | a        | none     |
//! ```
//!
//! The table is built once and never changed. No lookup allocates or panics, and each takes at most as many steps as
//! the number of ranges has bits.

/// Index of a next hop.
pub type Hop = u16;

/// Stands for no next hop.
const NO_HOP: Hop = Hop::MAX;

/// An index of more bits would cost more memory than it saves steps.
const INDEX_BITS_MAX: u32 = 16;

/// An address as a number: `u32` or `u128`.
pub trait Address: Copy + Ord {
    /// Number of its bits.
    const BITS: u32;
    /// The lowest address.
    const FIRST: Self;

    /// Returns the top bits as a number.
    fn top(self, bits: u32) -> usize;

    /// Returns the first address whose top bits are these.
    fn from_top(top: usize, bits: u32) -> Self;

    /// Returns the last address with the same top bits.
    fn last_of(self, bits: u32) -> Self;

    /// Returns the next address, if this is not the last.
    fn next(self) -> Option<Self>;
}

macro_rules! address {
    ($number:ty) => {
        impl Address for $number {
            const BITS: u32 = <$number>::BITS;
            const FIRST: Self = 0;

            #[inline]
            fn top(self, bits: u32) -> usize {
                // With zero bits it would be shifted by its full width.
                self.checked_shr(Self::BITS - bits).unwrap_or(0) as usize
            }

            fn from_top(top: usize, bits: u32) -> Self {
                (top as Self).checked_shl(Self::BITS - bits).unwrap_or(0)
            }

            fn last_of(self, bits: u32) -> Self {
                self | Self::MAX.checked_shr(bits).unwrap_or(0)
            }

            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }
        }
    };
}

address!(u32);
address!(u128);

/// A prefix and its next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<A> {
    /// The first address of the prefix.
    pub address: A,
    /// Bits of the prefix.
    pub len: u8,
    /// The next hop's index, less than [`Hop::MAX`].
    pub hop: Hop,
}

/// The forwarding table: next hops by address.
#[derive(Clone, Debug)]
pub struct Table<A> {
    index_bits: u32,
    index: Box<[u32]>,
    starts: Box<[A]>,
    hops: Box<[Hop]>,
}

impl<A: Address> Table<A> {
    /// Builds a table of these routes. Of two routes for a prefix, the later is used.
    #[must_use]
    pub fn new(mut routes: Vec<Route<A>>) -> Self {
        // A prefix is sorted before those that it covers.
        routes.sort_by_key(|route| (route.address, route.len));
        let mut ranges = Ranges { starts: Vec::new(), hops: Vec::new() };
        ranges.start(A::FIRST, NO_HOP);
        // The prefixes around the current position, with their last addresses.
        let mut within: Vec<(A, Hop)> = Vec::new();
        let outer = |within: &[(A, Hop)]| within.last().map_or(NO_HOP, |(_, hop)| *hop);
        for route in routes {
            while let Some((last, _)) = within.pop_if(|(last, _)| *last < route.address) {
                ranges.start_after(last, outer(&within));
            }
            ranges.start(route.address, route.hop);
            within.push((route.address.last_of(route.len.into()), route.hop));
        }
        while let Some((last, _)) = within.pop() {
            ranges.start_after(last, outer(&within));
        }
        Self::indexed(ranges)
    }

    fn indexed(ranges: Ranges<A>) -> Self {
        let Ranges { starts, hops } = ranges;
        // About as many index entries as there are ranges, so that a small table stays small.
        let index_bits = starts.len().ilog2().min(INDEX_BITS_MAX);
        let mut range = 0;
        let index = (0..1 << index_bits).map(|top| {
            let first = A::from_top(top, index_bits);
            while starts.get(range + 1).is_some_and(|start| *start <= first) {
                range += 1;
            }
            range as u32
        });
        let index = index.collect();
        Self { index_bits, index, starts: starts.into(), hops: hops.into() }
    }

    /// Returns the next hop of the longest prefix that covers the address.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: A) -> Option<Hop> {
        let top = address.top(self.index_bits);
        let low = *self.index.get(top)? as usize;
        let high = self.index.get(top + 1).map_or(self.starts.len(), |next| *next as usize + 1);
        let after = self.starts.get(low..high)?.partition_point(|start| *start <= address);
        // The first range starts no later than any address with these top bits, so there is one before.
        let hop = *self.hops.get((low + after).checked_sub(1)?)?;
        (hop != NO_HOP).then_some(hop)
    }

    /// Returns the table's memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.index) + size_of_val(&*self.starts) + size_of_val(&*self.hops)
    }
}

/// Ranges in the order of their starts; no two neighbours have the same hop.
struct Ranges<A> {
    starts: Vec<A>,
    hops: Vec<Hop>,
}

impl<A: Address> Ranges<A> {
    fn start(&mut self, address: A, hop: Hop) {
        if self.starts.last() == Some(&address) {
            self.starts.pop();
            self.hops.pop();
        }
        if self.hops.last() != Some(&hop) {
            self.starts.push(address);
            self.hops.push(hop);
        }
    }

    fn start_after(&mut self, last: A, hop: Hop) {
        if let Some(address) = last.next() {
            self.start(address, hop);
        }
    }
}
