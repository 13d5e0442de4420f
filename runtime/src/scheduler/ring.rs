//! Round robin among FWPs: rings that share one table of links, since each FWP is in at most one of them.

/// No FWP has this index.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct RingLink {
    before: u32,
    after: u32,
}

/// By index: the neighbours in the ring that an FWP is in.
#[derive(Debug)]
pub(super) struct RingLinks(Box<[RingLink]>);

impl RingLinks {
    pub(super) fn new(count: usize) -> Self {
        Self(vec![RingLink { before: NONE, after: NONE }; count].into())
    }
}

/// Indices in the order in which they were added.
#[derive(Debug)]
pub(super) struct Ring {
    first: u32,
    last: u32,
}

impl Default for Ring {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl Ring {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    #[inline]
    pub(super) fn first(&self) -> Option<u32> {
        Some(self.first).filter(|first| *first != NONE)
    }

    /// Appends an index that is in no ring.
    #[inline]
    pub(super) fn push(&mut self, links: &mut RingLinks, index: u32) {
        links.0[index as usize] = RingLink { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = index,
            last => links.0[last as usize].after = index,
        }
        self.last = index;
    }

    #[inline]
    pub(super) fn pop(&mut self, links: &mut RingLinks) -> Option<u32> {
        let first = self.first()?;
        self.remove(links, first);
        Some(first)
    }

    /// Removes an index that is in this ring.
    #[inline]
    pub(super) fn remove(&mut self, links: &mut RingLinks, index: u32) {
        let RingLink { before, after } = links.0[index as usize];
        match before {
            NONE => self.first = after,
            before => links.0[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => links.0[after as usize].before = before,
        }
    }

    #[inline]
    pub(super) fn iter(&self, links: &RingLinks) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(), |at| Some(links.0[*at as usize].after).filter(|next| *next != NONE))
    }
}
