//! Work is found by notification, never by scanning: who has new work is named to the thread that is to look.
//!
//! ```text
//!   Notifier  --name-->  [ a lane for each notifier ]  --\
//!        \----if it is full---->  [ a mark per FWP ]  -----+-->  ReadyQueue
//!         \--------------------------------------------------->  doorbell
//! ```
//!
//! A name on a lane costs one write, to a line that goes from core to core once for eight of them (`lane.rs`). A thread that does not look for long, as a
//! guest has its quantum, fills it; from then on there is a bit for each FWP, so that nothing is lost and all is bounded (`marks.rs`). An FWP may be
//! named as often as its lane holds names before anybody looks: the looking thread takes that many at a time, and is quick about those that it has found already.

mod lane;
mod marks;

use self::lane::{LaneIn, LaneOut, LaneView, PLACES_MAX, lane};
use self::marks::{Marks, MarksTaken};
use crate::doorbell::Doorbell;
use crate::id::FwpId;
use crate::sync::Arc;

/// Names that one notifier can have under way. A thread that takes so many at a time finds everybody soon, however often somebody is named.
pub const NAMES_MAX: usize = if cfg!(all(test, loom)) { 2 } else { 1024 };

/// The FWPs that one thread should look at, and that thread's end. Bounded and lock-free.
pub struct ReadyQueue {
    lanes: Vec<LaneOut>,
    marks: Arc<Marks>,
    marked: MarksTaken,
    /// The lane that is looked at first, or the marks, so that none is always last.
    first: usize,
    bell: Doorbell,
}

/// Names FWPs to a thread: one thread's end.
pub struct Notifier {
    lane: LaneIn,
    marks: Arc<Marks>,
    bell: Doorbell,
    /// Somebody was named since the bell was rung.
    named: bool,
}

/// For anybody to see whether a thread has been notified.
#[derive(Clone)]
pub struct ReadyView {
    lanes: Box<[LaneView]>,
    marks: Arc<Marks>,
}

impl ReadyQueue {
    /// A queue for a thread that deals with FWPs in places below `fwps_max` and sleeps at `bell`.
    ///
    /// # Panics
    /// If there are more places than names.
    #[must_use]
    pub fn new(fwps_max: usize, bell: Doorbell) -> Self {
        assert!(fwps_max <= PLACES_MAX, "{fwps_max} places of FWPs");
        let marks = Arc::new(Marks::new(fwps_max));
        let marked = MarksTaken::new(Arc::clone(&marks));
        Self { lanes: Vec::new(), marks, marked, first: 0, bell }
    }

    /// The end of another thread that notifies.
    #[must_use]
    pub fn notifier(&mut self) -> Notifier {
        self.notifier_with(self.bell.clone())
    }

    /// The end of a role on the very thread that looks: it looks before it sleeps, and need not be woken.
    #[must_use]
    pub fn notifier_of_oneself(&mut self) -> Notifier {
        self.notifier_with(Doorbell::of_oneself())
    }

    fn notifier_with(&mut self, bell: Doorbell) -> Notifier {
        let (lane, out) = lane();
        self.lanes.push(out);
        Notifier { lane, marks: Arc::clone(&self.marks), bell, named: false }
    }

    /// To see from elsewhere whether it is empty, once it has all of its notifiers.
    #[must_use]
    pub fn view(&self) -> ReadyView {
        ReadyView { lanes: self.lanes.iter().map(LaneOut::view).collect(), marks: Arc::clone(&self.marks) }
    }

    /// Takes up to `max` FWPs that are to be looked at; how many. Whatever comes for them from now on is notified of again, so the thread
    /// looks after this call, not before.
    #[inline]
    pub fn take(&mut self, max: usize, mut take: impl FnMut(FwpId)) -> usize {
        let Self { lanes, marked, first, .. } = self;
        let (mut left, mut at, last) = (max, *first, lanes.len());
        for _ in 0..=last {
            left -= match lanes.get_mut(at) {
                Some(lane) => lane.take(left, &mut take),
                None => marked.take(left, &mut take),
            };
            at = if at == last { 0 } else { at + 1 };
        }
        *first = if *first == last { 0 } else { *first + 1 };
        max - left
    }

    /// Takes one: see [`ReadyQueue::take`].
    pub fn pop(&mut self) -> Option<FwpId> {
        let mut taken = None;
        self.take(1, |id| taken = Some(id));
        taken
    }

    /// Whether nobody is to be looked at.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(LaneOut::is_empty) && self.marked.is_empty()
    }
}

impl Notifier {
    /// Names an FWP and wakes the thread that is to look. What it should find must have been pushed before.
    pub fn raise(&mut self, id: FwpId) {
        self.name(id);
        self.ring();
    }

    /// The same without waking anybody: [`Notifier::ring`] is to be called then, once for many.
    #[inline]
    pub fn name(&mut self, id: FwpId) {
        if !self.lane.push(id) {
            self.marks.mark(id);
        }
        self.named = true;
    }

    /// Wakes the thread if it sleeps and somebody was named.
    #[inline]
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.named) {
            self.bell.ring();
        }
    }
}

impl ReadyView {
    /// Whether nobody was to be looked at a moment ago, but for those whom the thread has at hand.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(LaneView::is_empty) && self.marks.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FWPS: u32 = 3;

    fn all(queue: &mut ReadyQueue) -> Vec<FwpId> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn a_next_tenant_takes_over_what_is_marked_of_the_last_one() {
        let mut queue = ReadyQueue::new(2, Doorbell::default());
        let mut notifier = queue.notifier();
        let other = FwpId { index: 1, generation: 0 };
        (0..NAMES_MAX).for_each(|_| notifier.raise(other));
        let (old, new) = (FwpId { index: 0, generation: 4 }, FwpId { index: 0, generation: 5 });
        notifier.raise(old);
        notifier.raise(new);
        let beyond: Vec<FwpId> = all(&mut queue).into_iter().filter(|id| *id != other).collect();
        assert_eq!(beyond, [new]);
    }

    #[test]
    fn the_last_of_all_generations_is_told_apart_from_nobody() {
        let mut queue = ReadyQueue::new(1, Doorbell::default());
        let mut notifier = queue.notifier();
        let id = FwpId { index: 0, generation: u32::MAX };
        (0..=NAMES_MAX).for_each(|_| notifier.raise(id));
        assert_eq!(all(&mut queue), vec![id; NAMES_MAX + 1]);
    }

    #[test]
    fn who_is_named_by_one_does_not_wait_for_all_whom_another_names() {
        let mut queue = ReadyQueue::new(2, Doorbell::default());
        let (mut busy, mut other) = (queue.notifier(), queue.notifier());
        let [many, one] = [0, 1].map(|index| FwpId { index, generation: 0 });
        // All that the lane holds, and a mark.
        (0..=NAMES_MAX).for_each(|_| busy.raise(many));
        other.raise(one);
        let mut taken = Vec::new();
        (0..3).for_each(|_| assert_eq!(queue.take(8, |id| taken.push(id)), 8));
        assert!(taken.contains(&one), "{taken:?}");
    }

    #[test]
    fn who_looks_from_elsewhere_sees_names_and_marks() {
        let mut queue = ReadyQueue::new(1, Doorbell::default());
        let (mut notifier, id) = (queue.notifier(), FwpId { index: 0, generation: 1 });
        let view = queue.view();
        assert!(view.is_empty() && queue.is_empty());
        (0..=NAMES_MAX).for_each(|_| notifier.raise(id));
        while !queue.is_empty() {
            assert!(!view.is_empty());
            assert_eq!(queue.take(1, |_| ()), 1);
        }
        assert!(view.is_empty());
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Something arrives for an FWP, from one of two threads, so many times.
        Send(u32, usize, usize),
        /// Its thread takes the next id from the queue and looks.
        Take,
        /// Its thread looks without being told, as a running guest's wait does.
        Help(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..FWPS, 0_usize..2, 1..NAMES_MAX).prop_map(|(index, by, times)| Step::Send(index, by, times)),
            1 => Just(Step::Take),
            2 => (0..FWPS).prop_map(Step::Help),
        ]
    }

    proptest! {
        #[test]
        fn after_any_sequence_whoever_has_work_is_found(steps in proptest::collection::vec(step(), 0..30)) {
            let mut queue = ReadyQueue::new(FWPS as usize, Doorbell::default());
            let mut notifiers = [queue.notifier(), queue.notifier()];
            let mut work = [0; FWPS as usize];
            let look = |work: &mut [u32], index: u32| work[index as usize] = 0;
            for step in steps {
                match step {
                    Step::Send(index, by, times) => {
                        work[index as usize] += 1;
                        (0..times).for_each(|_| notifiers[by].raise(FwpId { index, generation: 0 }));
                    }
                    Step::Take => {
                        queue.take(1, |id| look(&mut work, id.index));
                    }
                    Step::Help(index) => look(&mut work, index),
                }
            }
            let taken = all(&mut queue);
            taken.iter().for_each(|id| look(&mut work, id.index));
            prop_assert_eq!(work, [0; FWPS as usize]);
            // What the lanes hold, and a mark of each that was taken already and one of what came since.
            prop_assert!(taken.len() <= 2 * NAMES_MAX + 2 * FWPS as usize);
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
        sender: thread::JoinHandle<Notifier>,
    }

    impl Input {
        /// A thread pushes `count` entries, telling the queue's thread of each.
        fn sent(id: FwpId, count: u32, mut notifier: Notifier) -> Self {
            let (mut tx, rx) = spsc::ring(count as usize);
            let sender = thread::spawn(move || {
                for number in 0..count {
                    tx.push(number).unwrap();
                    notifier.raise(id);
                }
                notifier
            });
            Self { rx, sender }
        }

        /// Looks at the FWP as the MMA and the workers do; returns how much there was.
        fn look(&mut self) -> u32 {
            self.rx.pop_batch(usize::MAX, |_| ()) as u32
        }
    }

    /// A notifier whose lane is full, and a queue that has only the marks beyond it.
    fn overfull(id: FwpId, queue: &mut ReadyQueue) -> Notifier {
        let mut notifier = queue.notifier();
        (0..NAMES_MAX).for_each(|_| notifier.name(id));
        notifier
    }

    fn sees_everything(mut queue: ReadyQueue, notifier: Notifier) {
        let mut input = Input::sent(FWP, 3, notifier);
        let mut seen = 0;
        while seen < 3 {
            match queue.pop() {
                Some(_) => seen += input.look(),
                None => yield_now(),
            }
        }
        input.sender.join().unwrap();
    }

    #[test]
    fn whoever_looks_only_when_told_sees_everything() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let notifier = queue.notifier();
            sees_everything(queue, notifier);
        });
    }

    #[test]
    fn whoever_looks_only_when_told_sees_everything_beyond_a_full_lane() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let notifier = overfull(FWP, &mut queue);
            sees_everything(queue, notifier);
        });
    }

    fn sleeps_until_told(bell: &Doorbell, mut queue: ReadyQueue, notifier: Notifier) {
        let mut input = Input::sent(FWP, 2, notifier);
        bell.answer_here();
        let mut seen = 0;
        while seen < 2 {
            match queue.pop() {
                Some(_) => seen += input.look(),
                None => bell.sleep(Duration::MAX, || !queue.is_empty()),
            }
        }
        input.sender.join().unwrap();
    }

    #[test]
    fn whoever_sleeps_until_told_sees_everything() {
        explore(|| {
            let bell = Doorbell::default();
            let mut queue = ReadyQueue::new(1, bell.clone());
            let notifier = queue.notifier();
            sleeps_until_told(&bell, queue, notifier);
        });
    }

    #[test]
    fn whoever_sleeps_until_told_sees_everything_beyond_a_full_lane() {
        explore(|| {
            let bell = Doorbell::default();
            let mut queue = ReadyQueue::new(1, bell.clone());
            let notifier = overfull(FWP, &mut queue);
            sleeps_until_told(&bell, queue, notifier);
        });
    }

    #[test]
    fn an_fwp_that_helps_itself_is_marked_at_most_once() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let notifier = overfull(FWP, &mut queue);
            let mut input = Input::sent(FWP, 2, notifier);
            // Looks without having been told, as a running guest's wait does.
            let mut seen = input.look() + input.look();
            let Input { mut rx, sender } = input;
            sender.join().unwrap();
            let mut named = 0;
            while queue.pop().is_some() {
                named += 1;
            }
            assert_eq!(named, NAMES_MAX + 1);
            seen += rx.pop_batch(usize::MAX, |_| ()) as u32;
            assert_eq!(seen, 2);
        });
    }

    #[test]
    fn two_fwps_told_of_by_two_at_once_are_each_found_once() {
        explore(|| {
            let mut queue = ReadyQueue::new(2, Doorbell::default());
            let mut inputs = [FWP, OTHER].map(|id| Input::sent(id, 1, queue.notifier()));
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
    fn a_next_tenant_is_found_though_the_last_one_may_be_marked_still() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let mut notifier = overfull(FWP, &mut queue);
            notifier.raise(FWP);
            let mut input = Input::sent(NEXT_TENANT, 1, notifier);
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
        });
    }
}
