//! A bit for each FWP: a marked FWP is found once, however many threads have marked it since the last look.
//!
//! ```text
//!   mark:    [ a bit per FWP, 64 in a word ]  --if the word was empty-->  [ a bit per word ]
//!   take:    takes the words that have bits one after the other, a word's FWPs at a time
//! ```
//!
//! A mark costs one write to a line that other threads may also write. Taking costs one write for all that are marked
//! in a word. Words are taken in circular order, so an FWP is passed over at most once before it is taken.

use crossbeam_utils::CachePadded;

use crate::id::FwpId;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use crate::tuning;
use crate::tuning::prefetch;

/// As many words as fill a cache line, which they share with nothing else.
type Words = CachePadded<[AtomicU64; WORDS]>;
const WORDS: usize = 8;

/// The marks of all FWPs, shared by all threads that mark.
pub(super) struct Marks {
    /// A bit for each word of `marked` that may have one. On their own lines, as the looking thread reads them at each
    /// poll.
    summary: Box<[CachePadded<AtomicU64>]>,
    /// A bit for each FWP, by index.
    marked: Box<[Words]>,
    /// By index: the generation of the FWP that was marked last.
    tenants: Box<[AtomicU32]>,
}

/// The looking thread's end.
pub(super) struct MarksTaken {
    marks: Arc<Marks>,
    /// Bits of a word of `marked` that were taken and not yet returned, and which word.
    marked: u64,
    word: usize,
    /// Bits of a word of the summary that were taken, and which word.
    summary: u64,
    part: usize,
}

/// Removes the lowest bit and returns its position.
#[inline(always)]
fn take_lowest(bits: &mut u64) -> Option<usize> {
    let lowest = bits.trailing_zeros();
    (*bits != 0).then(|| {
        *bits &= *bits - 1;
        lowest as usize
    })
}

impl Marks {
    /// Makes marks for FWPs with an index below `fwps_max`.
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

    /// Marks an FWP; marking it again changes nothing. If an earlier FWP with the same index is still marked, the new
    /// FWP takes over that mark, and the ended one is not found.
    pub(super) fn mark(&self, id: FwpId) {
        let Some(tenant) = self.tenants.get(id.index as usize) else {
            debug_assert!(false, "FWP {id} has a place beyond the queue's");
            return;
        };
        // The generation seldom changes. Without a store, other threads need not read the line again.
        if tenant.load(Ordering::Relaxed) != id.generation {
            tenant.store(id.generation, Ordering::Relaxed);
        }
        let word = id.index as usize / 64;
        let before = self.marked(word).fetch_or(1 << (id.index % 64), Ordering::AcqRel);
        let (part, bit) = (word / 64, 1 << (word % 64));
        // The thread that marked the word before may not have set this bit yet.
        if before == 0 || self.summary[part].load(Ordering::Relaxed) & bit == 0 {
            self.summary[part].fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Returns whether no FWP is marked. Marks that the looking thread has already taken do not count.
    pub(super) fn is_empty(&self) -> bool {
        self.summary.iter().all(|part| part.load(Ordering::Acquire) == 0)
    }
}

impl MarksTaken {
    pub(super) fn new(marks: Arc<Marks>) -> Self {
        Self { marks, marked: 0, word: 0, summary: 0, part: 0 }
    }

    /// Takes up to `max` marked FWPs; returns how many. Work that comes for them from now on marks them again.
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
                // From here on its FWPs may be marked again.
                *marked = marks.marked(*word).swap(0, Ordering::AcqRel);
                return Some(());
            }
            let parts = marks.summary.len();
            let ahead = |step: &usize| marks.summary[(*part + step) % parts].load(Ordering::Relaxed) != 0;
            let step = (1..=parts).find(ahead)?;
            *part = (*part + step) % parts;
            // Another core has both lines: the word is fetched while the summary is swapped.
            let first = marks.summary[*part].load(Ordering::Relaxed).trailing_zeros() as usize;
            if tuning::is_full() {
                prefetch::to_write(marks.marked(*part * 64 + first % 64));
            }
            *summary = marks.summary[*part].swap(0, Ordering::AcqRel);
        }
    }

    /// Returns whether no FWP is marked.
    pub(super) fn is_empty(&self) -> bool {
        self.marked | self.summary == 0 && self.marks.is_empty()
    }
}
