//! Work is found by notification, never by scanning: a thread that makes work for an FWP queues the FWP's id for the
//! thread that will look.
//!
//! ```text
//!   Notifier  --name-->  [ a lane for each notifier ]  --\
//!        \----if it is full---->  [ a mark per FWP ]  -----+-->  ReadyQueue
//!         \--------------------------------------------------->  doorbell
//! ```
//!
//! An id on a lane costs one write, to a cache line that moves from core to core once for eight ids (`lane.rs`). A lane
//! fills up if its thread does not look for long, as while a guest runs for its quantum. From then on there is a bit
//! for each FWP, so that nothing is lost and everything is bounded (`marks.rs`). An FWP may be queued more than once,
//! up to the length of its lane, before the thread looks. The thread takes that many at a time, and an id whose work is
//! already done costs it little.

pub mod doorbell;
mod lane;
mod marks;

use self::lane::{LaneIn, LaneOut, LaneView, PLACES_MAX, lane};
use self::marks::{Marks, MarksTaken};
use crate::id::FwpId;
use crate::notify::doorbell::Doorbell;
use crate::sync::Arc;

/// Ids that one notifier can have under way. A thread that takes so many at a time finds each FWP soon, however often
/// others are queued.
pub const NAMES_MAX: usize = if cfg!(all(test, loom)) { 2 } else { 1024 };

/// The receiving end of notifications: the FWPs that its thread should look at. Bounded and lock-free.
pub struct ReadyQueue {
    lanes: Vec<LaneOut>,
    marks: Arc<Marks>,
    marked: MarksTaken,
    /// Which lane, or the marks, is taken from first. It rotates, so that none is always last.
    first: usize,
    bell: Doorbell,
}

/// The sending end: one thread queues FWPs for another.
pub struct Notifier {
    lane: LaneIn,
    marks: Arc<Marks>,
    bell: Doorbell,
    /// Whether an FWP was queued since the doorbell was rung.
    named: bool,
}

/// A view by which any thread can see whether a thread has notifications.
#[derive(Clone)]
pub struct ReadyView {
    lanes: Box<[LaneView]>,
    marks: Arc<Marks>,
}

impl ReadyQueue {
    /// Makes a queue for a thread that handles FWPs with an index below `fwps_max` and sleeps at `bell`.
    ///
    /// # Panics
    /// If `fwps_max` is more than the indices that an entry can hold.
    #[must_use]
    pub fn new(fwps_max: usize, bell: Doorbell) -> Self {
        assert!(fwps_max <= PLACES_MAX, "{fwps_max} places of FWPs");
        let marks = Arc::new(Marks::new(fwps_max));
        let marked = MarksTaken::new(Arc::clone(&marks));
        Self { lanes: Vec::new(), marks, marked, first: 0, bell }
    }

    /// Makes a sending end for another thread.
    #[must_use]
    pub fn notifier(&mut self) -> Notifier {
        self.notifier_with(self.bell.clone())
    }

    /// Makes a sending end for the receiving thread itself. Its doorbell does nothing, as the thread looks before it
    /// sleeps.
    #[must_use]
    pub fn notifier_of_oneself(&mut self) -> Notifier {
        self.notifier_with(Doorbell::of_oneself())
    }

    fn notifier_with(&mut self, bell: Doorbell) -> Notifier {
        let (lane, out) = lane();
        self.lanes.push(out);
        Notifier { lane, marks: Arc::clone(&self.marks), bell, named: false }
    }

    /// Returns a view of the queue. To be called once it has all of its notifiers.
    #[must_use]
    pub fn view(&self) -> ReadyView {
        ReadyView { lanes: self.lanes.iter().map(LaneOut::view).collect(), marks: Arc::clone(&self.marks) }
    }

    /// Takes up to `max` FWPs that are to be looked at; returns how many. Work that comes for them from now on is
    /// notified again. So look at the FWPs after this call, not before.
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

    /// Takes one FWP: see [`ReadyQueue::take`].
    pub fn pop(&mut self) -> Option<FwpId> {
        let mut taken = None;
        self.take(1, |id| taken = Some(id));
        taken
    }

    /// Returns whether the queue is empty.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(LaneOut::is_empty) && self.marked.is_empty()
    }
}

impl Notifier {
    /// Queues an FWP and wakes the thread that is to look. Push the FWP's work before calling it.
    pub fn raise(&mut self, id: FwpId) {
        self.name(id);
        self.ring();
    }

    /// Queues an FWP without waking the thread: call [`Notifier::ring`] then, once for many.
    #[inline]
    pub fn name(&mut self, id: FwpId) {
        if !self.lane.push(id) {
            self.marks.mark(id);
        }
        self.named = true;
    }

    /// Wakes the thread if it sleeps and an FWP was queued since the last call.
    #[inline]
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.named) {
            self.bell.ring();
        }
    }
}

impl ReadyView {
    /// Returns whether the queue was empty a moment ago. FWPs whose marks the thread has already taken do not count.
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
    fn a_new_fwp_takes_over_the_mark_of_the_last_one_at_its_index() {
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
    fn the_last_generation_is_not_mistaken_for_an_empty_entry() {
        let mut queue = ReadyQueue::new(1, Doorbell::default());
        let mut notifier = queue.notifier();
        let id = FwpId { index: 0, generation: u32::MAX };
        (0..=NAMES_MAX).for_each(|_| notifier.raise(id));
        assert_eq!(all(&mut queue), vec![id; NAMES_MAX + 1]);
    }

    #[test]
    fn an_fwp_queued_by_one_notifier_does_not_wait_for_all_of_another() {
        let mut queue = ReadyQueue::new(2, Doorbell::default());
        let (mut busy, mut other) = (queue.notifier(), queue.notifier());
        let [many, one] = [0, 1].map(|index| FwpId { index, generation: 0 });
        // As many as the lane holds, and a mark.
        (0..=NAMES_MAX).for_each(|_| busy.raise(many));
        other.raise(one);
        let mut taken = Vec::new();
        (0..3).for_each(|_| assert_eq!(queue.take(8, |id| taken.push(id)), 8));
        assert!(taken.contains(&one), "{taken:?}");
    }

    #[test]
    fn a_view_sees_queued_ids_and_marks() {
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
        /// A frame arrives for an FWP, from one of two threads, this many times.
        Send(u32, usize, usize),
        /// The FWP's thread takes the next id from the queue and looks.
        Take,
        /// The FWP's thread looks without a notification, as a running guest's wait does.
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
        fn after_any_sequence_each_fwp_with_work_is_found(steps in proptest::collection::vec(step(), 0..30)) {
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
            // What the lanes hold, a mark of each that was taken already, and one of what came since.
            prop_assert!(taken.len() <= 2 * NAMES_MAX + 2 * FWPS as usize);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::rings::spsc;
    use crate::sync::explore;
    use loom::thread::{self, yield_now};
    use std::time::Duration;

    const FWP: FwpId = FwpId { index: 0, generation: 0 };
    const OTHER: FwpId = FwpId { index: 1, generation: 0 };
    const NEXT_TENANT: FwpId = FwpId { index: 0, generation: 1 };

    /// One FWP's input, and the thread that sends it.
    struct Input {
        rx: spsc::Consumer<u32>,
        sender: thread::JoinHandle<Notifier>,
    }

    impl Input {
        /// Starts a thread that pushes `count` entries and notifies the queue's thread of each.
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

        /// Looks at the FWP as the MMA and the workers do; returns how many entries there were.
        fn look(&mut self) -> u32 {
            self.rx.pop_batch(usize::MAX, |_| ()) as u32
        }
    }

    /// Makes a notifier whose lane is full, and leaves in the queue only the marks beyond the lane.
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
    fn a_thread_that_looks_only_when_notified_sees_everything() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let notifier = queue.notifier();
            sees_everything(queue, notifier);
        });
    }

    #[test]
    fn a_thread_that_looks_only_when_notified_sees_everything_beyond_a_full_lane() {
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
    fn a_thread_that_sleeps_until_notified_sees_everything() {
        explore(|| {
            let bell = Doorbell::default();
            let mut queue = ReadyQueue::new(1, bell.clone());
            let notifier = queue.notifier();
            sleeps_until_told(&bell, queue, notifier);
        });
    }

    #[test]
    fn a_thread_that_sleeps_until_notified_sees_everything_beyond_a_full_lane() {
        explore(|| {
            let bell = Doorbell::default();
            let mut queue = ReadyQueue::new(1, bell.clone());
            let notifier = overfull(FWP, &mut queue);
            sleeps_until_told(&bell, queue, notifier);
        });
    }

    #[test]
    fn an_fwp_that_looks_for_its_own_input_is_marked_at_most_once() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let notifier = overfull(FWP, &mut queue);
            let mut input = Input::sent(FWP, 2, notifier);
            // Looks without a notification, as a running guest's wait does.
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
    fn two_fwps_notified_by_two_threads_at_once_are_each_found_once() {
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
    fn a_new_fwp_is_found_even_if_the_last_one_at_its_index_is_still_marked() {
        explore(|| {
            let mut queue = ReadyQueue::new(1, Doorbell::default());
            let mut notifier = overfull(FWP, &mut queue);
            notifier.raise(FWP);
            let mut input = Input::sent(NEXT_TENANT, 1, notifier);
            let mut seen = 0;
            while seen < 1 {
                match queue.pop() {
                    Some(NEXT_TENANT) => seen += input.look(),
                    // An FWP that has ended is skipped.
                    Some(_) => {}
                    None => yield_now(),
                }
            }
            input.sender.join().unwrap();
        });
    }
}
