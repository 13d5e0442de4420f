//! A bit for each FWP: whoever is marked is marked once until somebody looks, however many mark.
//!
//! ```text
//!   mark:    [ a bit per FWP, 64 in a word ]  --if the word was empty-->  [ a bit per word ]
//!   take:    takes the words that have bits one after the other, a word's FWPs at a time
//! ```
//!
//! A mark costs one write that others may be making too; taking costs one for all that are marked in a word. Places are gone round in
//! order, so nobody is passed over twice.

use crossbeam_utils::CachePadded;

use crate::id::FwpId;
use crate::prefetch;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};

/// As many words as share a cache line with each other and with nothing else.
type Words = CachePadded<[AtomicU64; WORDS]>;
const WORDS: usize = 8;

/// The marks of all FWPs, for all who mark.
pub(super) struct Marks {
    /// A bit for each word of `marked` that may have one. On lines of their own: the one thread reads them at each poll.
    summary: Box<[CachePadded<AtomicU64>]>,
    /// A bit for each place.
    marked: Box<[Words]>,
    /// By place: the generation of the tenant that was marked last.
    tenants: Box<[AtomicU32]>,
}

/// The one thread's end.
pub(super) struct MarksTaken {
    marks: Arc<Marks>,
    /// Bits of a word of `marked` that were taken and not yet looked at, and which word.
    marked: u64,
    word: usize,
    /// Bits of a word of the summary, and which.
    summary: u64,
    part: usize,
}

/// Removes the lowest bit; which one it was.
#[inline(always)]
fn take_lowest(bits: &mut u64) -> Option<usize> {
    let lowest = bits.trailing_zeros();
    (*bits != 0).then(|| {
        *bits &= *bits - 1;
        lowest as usize
    })
}

impl Marks {
    /// Of FWPs in places below this.
    pub(super) fn new(fwps_max: usize) -> Self {
        let words = fwps_max.max(1).div_ceil(64);
        Self {
            summary: (0..words.div_ceil(64)).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            marked: (0..words.div_ceil(WORDS))
                .map(|_| Words::new(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
            tenants: (0..fwps_max).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    #[inline(always)]
    fn marked(&self, word: usize) -> &AtomicU64 {
        &self.marked[word / WORDS][word % WORDS]
    }

    /// Marks an FWP. One that is marked already stays so. A place's next tenant takes over a mark that is still there of the last one;
    /// who ended is not looked for.
    pub(super) fn mark(&self, id: FwpId) {
        let Some(tenant) = self.tenants.get(id.index as usize) else {
            debug_assert!(false, "FWP {id} has a place beyond the queue's");
            return;
        };
        // Most often it is the same still: then others need not read the line anew.
        if tenant.load(Ordering::Relaxed) != id.generation {
            tenant.store(id.generation, Ordering::Relaxed);
        }
        let word = id.index as usize / 64;
        let before = self.marked(word).fetch_or(1 << (id.index % 64), Ordering::AcqRel);
        let (part, bit) = (word / 64, 1 << (word % 64));
        // Whoever marked the word before may not have come to this yet.
        if before == 0 || self.summary[part].load(Ordering::Relaxed) & bit == 0 {
            self.summary[part].fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Whether nobody is marked, but for those whom the one thread has at hand.
    pub(super) fn is_empty(&self) -> bool {
        self.summary.iter().all(|part| part.load(Ordering::Acquire) == 0)
    }
}

impl MarksTaken {
    pub(super) fn new(marks: Arc<Marks>) -> Self {
        Self { marks, marked: 0, word: 0, summary: 0, part: 0 }
    }

    /// Takes up to so many FWPs that are marked; how many. Whatever comes for them from now on marks them again.
    #[inline]
    pub(super) fn take(&mut self, max: usize, mut take: impl FnMut(FwpId)) -> usize {
        let mut left = max;
        while left > 0
            && let Some(id) = self.next()
        {
            take(id);
            left -= 1;
        }
        max - left
    }

    #[inline]
    fn next(&mut self) -> Option<FwpId> {
        loop {
            if let Some(bit) = take_lowest(&mut self.marked) {
                let index = self.word * 64 + bit;
                let generation = self.marks.tenants[index].load(Ordering::Relaxed);
                return Some(FwpId { index: index as u32, generation });
            }
            self.take_word()?;
        }
    }

    /// Takes the next word that may have bits.
    fn take_word(&mut self) -> Option<()> {
        let Self { marks, marked, word, summary, part } = self;
        loop {
            if let Some(bit) = take_lowest(summary) {
                *word = *part * 64 + bit;
                // From here on its places may be marked again.
                *marked = marks.marked(*word).swap(0, Ordering::AcqRel);
                return Some(());
            }
            let parts = marks.summary.len();
            let ahead = |step: &usize| marks.summary[(*part + step) % parts].load(Ordering::Relaxed) != 0;
            let step = (1..=parts).find(ahead)?;
            *part = (*part + step) % parts;
            // Both are with who marked them: the word comes while the summary is taken.
            let first = marks.summary[*part].load(Ordering::Relaxed).trailing_zeros() as usize;
            prefetch::to_write(marks.marked(*part * 64 + first % 64));
            *summary = marks.summary[*part].swap(0, Ordering::AcqRel);
        }
    }

    /// Whether nobody is marked.
    pub(super) fn is_empty(&self) -> bool {
        self.marked | self.summary == 0 && self.marks.is_empty()
    }
}
