//! Work is found by notification, never by scanning: who has new work is marked once until somebody looks.
//!
//! ```text
//!   raise:   [ a bit per FWP, 64 in a word ]  --if the word was empty-->  [ a bit per word ]   --> doorbell
//!   pop:     takes the words that have bits one after the other, a word's FWPs at a time
//! ```
//!
//! A mark costs one write that others may be making too, and so do all marks in one word that are made together; taking
//! costs one for all that are marked in a word. Places are gone round in order, so nobody is passed over twice.

use crossbeam_utils::CachePadded;

use crate::doorbell::Doorbell;
use crate::id::FwpId;
use crate::prefetch;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};

/// The FWPs that one thread should look at. Bounded, lock-free, shared by all who notify that thread.
pub struct ReadyQueue {
    shared: Arc<Shared>,
    bell: Doorbell,
    round: Round,
}

/// As many words as share a cache line with each other and with nothing else.
type Words = CachePadded<[AtomicU64; WORDS]>;
const WORDS: usize = 8;

struct Shared {
    /// A bit for each word of `marked` that may have one. On lines of their own: the one thread reads them at each poll.
    summary: Box<[CachePadded<AtomicU64>]>,
    /// A bit for each place.
    marked: Box<[Words]>,
    /// By place: the generation of the tenant that was marked last.
    tenants: Box<[AtomicU32]>,
}

/// What the one thread that takes has taken and not yet looked at.
#[derive(Default)]
struct Round {
    /// Bits of a word of `marked`, and which word.
    marked: u64,
    word: usize,
    /// Bits of a word of the summary, and which.
    summary: u64,
    part: usize,
}

impl Clone for ReadyQueue {
    /// Another handle to notify by. What the thread that takes has at hand stays there.
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), bell: self.bell.clone(), round: Round::default() }
    }
}

impl Shared {
    #[inline(always)]
    fn marked(&self, word: usize) -> &AtomicU64 {
        &self.marked[word / WORDS][word % WORDS]
    }
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

impl ReadyQueue {
    /// A queue for a thread that deals with FWPs in places below `fwps_max` and sleeps at `bell`.
    #[must_use]
    pub fn new(fwps_max: usize, bell: Doorbell) -> Self {
        let words = fwps_max.max(1).div_ceil(64);
        let shared = Shared {
            summary: (0..words.div_ceil(64)).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            marked: (0..words.div_ceil(WORDS))
                .map(|_| Words::new(std::array::from_fn(|_| AtomicU64::new(0))))
                .collect(),
            tenants: (0..fwps_max).map(|_| AtomicU32::new(0)).collect(),
        };
        Self { shared: Arc::new(shared), bell, round: Round::default() }
    }

    /// The next FWP to look at, by the one thread and by one handle. Whatever comes for it from now on marks it again, so the
    /// thread looks after this call, not before.
    #[must_use]
    #[inline]
    pub fn pop(&mut self) -> Option<FwpId> {
        loop {
            if let Some(bit) = take_lowest(&mut self.round.marked) {
                let index = self.round.word * 64 + bit;
                let generation = self.shared.tenants[index].load(Ordering::Relaxed);
                return Some(FwpId { index: index as u32, generation });
            }
            self.take_word()?;
        }
    }

    /// Takes the next word that may have bits.
    fn take_word(&mut self) -> Option<()> {
        let Self { shared, round, .. } = self;
        loop {
            if let Some(bit) = take_lowest(&mut round.summary) {
                round.word = round.part * 64 + bit;
                // From here on its places may be marked again.
                round.marked = shared.marked(round.word).swap(0, Ordering::AcqRel);
                return Some(());
            }
            let parts = shared.summary.len();
            let ahead = |step: &usize| shared.summary[(round.part + step) % parts].load(Ordering::Relaxed) != 0;
            let step = (1..=parts).find(ahead)?;
            round.part = (round.part + step) % parts;
            // Both are with who marked them: the word comes while the summary is taken.
            let first = shared.summary[round.part].load(Ordering::Relaxed).trailing_zeros() as usize;
            prefetch::to_write(shared.marked(round.part * 64 + first % 64));
            round.summary = shared.summary[round.part].swap(0, Ordering::AcqRel);
        }
    }

    /// Asks for what marking an FWP touches, but the line that its thread reads at each poll: that would go there and back once more.
    #[inline]
    pub fn prefetch(&self, id: FwpId) {
        if let Some(tenant) = self.shared.tenants.get(id.index as usize) {
            prefetch::to_read(tenant);
            prefetch::to_write(self.shared.marked(id.index as usize / 64));
        }
    }

    /// Marks an FWP and wakes the thread that is to look. What it should find must have been pushed before.
    pub fn raise(&self, id: FwpId) {
        if self.raise_silently(id) {
            self.ring();
        }
    }

    /// The same without waking anybody; true if [`ReadyQueue::ring`] is to be called, which can be done once for many.
    ///
    /// An FWP that is marked already stays so: a guest that helps itself to what was delivered is notified of each time
    /// without its mark being taken. A place's next tenant takes over a mark that is still there of the last one; who ended is
    /// not looked for.
    #[must_use]
    #[inline]
    pub fn raise_silently(&self, id: FwpId) -> bool {
        self.note_tenant(id) && self.mark(id.index as usize / 64, 1 << (id.index % 64))
    }

    /// Marks all of these, and wakes the thread once. The more of them have places next to each other the better.
    #[inline]
    pub fn raise_all(&self, ids: &[FwpId]) {
        let (mut word, mut bits) = (0, 0);
        for &id in ids.iter().filter(|id| self.note_tenant(**id)) {
            let its_word = id.index as usize / 64;
            if its_word != word && bits != 0 {
                let _ = self.mark(word, bits);
                bits = 0;
            }
            word = its_word;
            bits |= 1 << (id.index % 64);
        }
        if bits != 0 {
            let _ = self.mark(word, bits);
            self.ring();
        }
    }

    /// Whether there is such a place.
    #[inline(always)]
    fn note_tenant(&self, id: FwpId) -> bool {
        let Some(tenant) = self.shared.tenants.get(id.index as usize) else {
            debug_assert!(false, "FWP {id} has a place beyond the queue's");
            return false;
        };
        // Most often it is the same still: then others need not read the line anew.
        if tenant.load(Ordering::Relaxed) != id.generation {
            tenant.store(id.generation, Ordering::Relaxed);
        }
        true
    }

    /// Whether any of the places was not marked before.
    #[inline(always)]
    fn mark(&self, word: usize, bits: u64) -> bool {
        let before = self.shared.marked(word).fetch_or(bits, Ordering::AcqRel);
        let (part, bit) = (word / 64, 1 << (word % 64));
        // Whoever marked the word before may not have come to this yet.
        if before == 0 || self.shared.summary[part].load(Ordering::Relaxed) & bit == 0 {
            self.shared.summary[part].fetch_or(bit, Ordering::AcqRel);
        }
        before & bits != bits
    }

    /// Wakes the thread if it sleeps; to be called when [`ReadyQueue::raise_silently`] said so.
    #[inline]
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Whether both notify the same thread.
    #[must_use]
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether nobody is to be looked at. Says so to the thread that takes only.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Round { marked, summary, .. } = self.round;
        marked | summary == 0 && self.shared.summary.iter().all(|part| part.load(Ordering::Acquire) == 0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FWPS: u32 = 3;

    #[test]
    fn a_next_tenant_takes_over_what_is_queued_of_the_last_one() {
        let mut queue = ReadyQueue::new(1, Doorbell::default());
        let (old, new) = (FwpId { index: 0, generation: 4 }, FwpId { index: 0, generation: 5 });
        queue.raise(old);
        queue.raise(new);
        assert_eq!((queue.pop(), queue.pop()), (Some(new), None));
    }

    #[test]
    fn the_last_of_all_generations_is_told_apart_from_nobody() {
        let mut queue = ReadyQueue::new(1, Doorbell::default());
        let id = FwpId { index: 0, generation: u32::MAX };
        queue.raise(id);
        assert_eq!((queue.pop(), queue.pop()), (Some(id), None));
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Something arrives for an FWP.
        Send(u32),
        /// Its thread takes the next id from the queue and looks.
        Take,
        /// Its thread looks without being told, as a running guest's wait does.
        Help(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..FWPS).prop_map(Step::Send),
            1 => Just(Step::Take),
            2 => (0..FWPS).prop_map(Step::Help),
        ]
    }

    proptest! {
        #[test]
        fn after_any_sequence_whoever_has_work_is_found_and_nobody_more_than_twice(
            steps in proptest::collection::vec(step(), 0..100),
        ) {
            let mut queue = ReadyQueue::new(FWPS as usize, Doorbell::default());
            let mut work = [0; FWPS as usize];
            let look = |work: &mut [u32], index: u32| work[index as usize] = 0;
            for step in steps {
                match step {
                    Step::Send(index) => {
                        work[index as usize] += 1;
                        queue.raise(FwpId { index, generation: 0 });
                    }
                    Step::Take => {
                        if let Some(id) = queue.pop() {
                            look(&mut work, id.index);
                        }
                    }
                    Step::Help(index) => look(&mut work, index),
                }
            }
            let taken: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|id| id.index).collect();
            for &index in &taken {
                look(&mut work, index);
            }
            prop_assert_eq!(work, [0; FWPS as usize]);
            // Once of what was taken already, and once for what came since.
            for index in 0..FWPS {
                prop_assert!(taken.iter().filter(|&&other| other == index).count() <= 2);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::spsc;
    use crate::sync::explore;
    use loom::thread::{self, yield_now};
    use std::time::Duration;

    const FWP: FwpId = FwpId { index: 0, generation: 0 };
    const OTHER: FwpId = FwpId { index: 1, generation: 0 };
    const NEXT_TENANT: FwpId = FwpId { index: 0, generation: 1 };

    /// One FWP's input, and who sends it.
    struct Input {
        rx: spsc::Consumer<u32>,
        sender: thread::JoinHandle<()>,
    }

    impl Input {
        /// A thread pushes `count` entries, telling the queue's thread of each.
        fn sent(id: FwpId, count: u32, queue: &ReadyQueue) -> Self {
            let (mut tx, rx) = spsc::ring(count as usize);
            let queue = queue.clone();
            let sender = thread::spawn(move || {
                for number in 0..count {
                    tx.push(number).unwrap();
                    queue.raise(id);
                }
            });
            Self { rx, sender }
        }

        /// Looks at the FWP as the MMA and the workers do; returns how much there was.
        fn look(&mut self) -> u32 {
            self.rx.pop_batch(usize::MAX, |_| ()) as u32
        }
    }

    #[test]
    fn whoever_looks_only_when_told_sees_everything() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let mut input = Input::sent(FWP, 3, &queue);
            let mut seen = 0;
            while seen < 3 {
                match queue.pop() {
                    Some(_) => seen += input.look(),
                    None => yield_now(),
                }
            }
            input.sender.join().unwrap();
        });
    }

    #[test]
    fn whoever_sleeps_until_told_sees_everything() {
        explore(|| {
            let bell = Doorbell::default();
            let mut queue = ReadyQueue::new(1, bell.clone());
            let mut input = Input::sent(FWP, 2, &queue);
            bell.answer_here();
            let mut seen = 0;
            while seen < 2 {
                match queue.pop() {
                    Some(_) => seen += input.look(),
                    None => bell.sleep(Duration::MAX, || !queue.is_empty()),
                }
            }
            input.sender.join().unwrap();
        });
    }

    #[test]
    fn an_fwp_that_helps_itself_is_queued_at_most_once() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let mut input = Input::sent(FWP, 3, &queue);
            // Looks without having been told, as a running guest's wait does.
            let mut seen = input.look() + input.look();
            let Input { mut rx, sender } = input;
            sender.join().unwrap();
            assert_eq!(queue.pop(), Some(FWP));
            assert_eq!(queue.pop(), None);
            seen += rx.pop_batch(usize::MAX, |_| ()) as u32;
            assert_eq!(seen, 3);
        });
    }

    #[test]
    fn two_fwps_told_of_at_once_are_each_found_once() {
        explore(|| {
            let mut queue = ReadyQueue::new(2, Doorbell::default());
            let mut inputs = [Input::sent(FWP, 1, &queue), Input::sent(OTHER, 1, &queue)];
            let mut seen = [0, 0];
            while seen != [1, 1] {
                match queue.pop() {
                    Some(id) => seen[id.index as usize] += inputs[id.index as usize].look(),
                    None => yield_now(),
                }
            }
            assert_eq!(queue.pop(), None);
            for input in inputs {
                input.sender.join().unwrap();
            }
        });
    }

    #[test]
    fn a_next_tenant_is_found_though_the_last_one_may_be_queued_still() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            queue.raise(FWP);
            let mut input = Input::sent(NEXT_TENANT, 1, &queue);
            let mut seen = 0;
            while seen < 1 {
                match queue.pop() {
                    Some(NEXT_TENANT) => seen += input.look(),
                    // Who ended is not looked for.
                    Some(_) => {}
                    None => yield_now(),
                }
            }
            input.sender.join().unwrap();
            // It may be found by the last one's mark, before its own is made.
            assert!(matches!(queue.pop(), None | Some(NEXT_TENANT)));
        });
    }
}
