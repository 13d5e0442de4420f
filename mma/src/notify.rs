//! Work is found by notification, never by scanning: who has new work is queued once until somebody looks.

use crate::doorbell::Doorbell;
use crate::id::FwpId;
use crate::sync::{Arc, ArrayQueue, AtomicU64, Ordering};

/// The FWPs that one thread should look at. Bounded, lock-free, shared by all who notify that thread.
#[derive(Clone)]
pub struct ReadyQueue {
    shared: Arc<Shared>,
    bell: Doorbell,
}

struct Shared {
    /// Places of FWPs, each at most once: so it is never full.
    queue: ArrayQueue<u32>,
    /// By place: which of its tenants is queued, as its generation and one; or zero.
    queued: Box<[AtomicU64]>,
}

impl ReadyQueue {
    /// A queue for a thread that deals with FWPs in places below `fwps_max` and sleeps at `bell`.
    #[must_use]
    pub fn new(fwps_max: usize, bell: Doorbell) -> Self {
        let shared = Shared {
            queue: ArrayQueue::new(fwps_max.max(1)),
            queued: (0..fwps_max).map(|_| AtomicU64::new(0)).collect(),
        };
        Self { shared: Arc::new(shared), bell }
    }

    /// The next FWP to look at, by one thread. Whatever comes for it from now on queues it again, so the thread looks after
    /// this call, not before.
    #[must_use]
    pub fn pop(&self) -> Option<FwpId> {
        let index = self.shared.queue.pop()?;
        // From here on the place may be queued again.
        let queued = self.shared.queued[index as usize].swap(0, Ordering::AcqRel);
        debug_assert!(queued > 0);
        Some(FwpId { index, generation: queued.wrapping_sub(1) as u32 })
    }

    /// Queues an FWP unless it is queued already, and wakes the thread that is to look. What it should find must have been
    /// pushed before.
    pub fn raise(&self, id: FwpId) {
        if self.raise_silently(id) {
            self.ring();
        }
    }

    /// The same without waking anybody; true if [`ReadyQueue::ring`] is to be called, which can be done once for many.
    ///
    /// Each FWP is queued once at most, so the queue is never full, even if nobody takes from it for long: a guest that helps
    /// itself to what was delivered is notified of each time without its id being taken. A place's next tenant takes over
    /// an entry that is still there of the last one; who ended is not looked for.
    #[must_use]
    #[inline]
    pub fn raise_silently(&self, id: FwpId) -> bool {
        let Some(queued) = self.shared.queued.get(id.index as usize) else {
            debug_assert!(false, "FWP {id} has a place beyond the queue's");
            return false;
        };
        let is_news = queued.swap(u64::from(id.generation) + 1, Ordering::AcqRel) == 0;
        if is_news {
            let pushed = self.shared.queue.push(id.index);
            debug_assert!(pushed.is_ok());
        }
        is_news
    }

    /// Wakes the thread if it sleeps; to be called when [`ReadyQueue::raise_silently`] said so.
    #[inline]
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Whether both are the same thread's queue.
    #[must_use]
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether nobody is waiting to be looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FWPS: u32 = 3;

    #[test]
    fn a_next_tenant_takes_over_what_is_queued_of_the_last_one() {
        let queue = ReadyQueue::new(1, Doorbell::default());
        let (old, new) = (FwpId { index: 0, generation: 4 }, FwpId { index: 0, generation: 5 });
        queue.raise(old);
        queue.raise(new);
        assert_eq!((queue.pop(), queue.pop()), (Some(new), None));
    }

    #[test]
    fn the_last_of_all_generations_is_told_apart_from_nobody() {
        let queue = ReadyQueue::new(1, Doorbell::default());
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
        fn after_any_sequence_whoever_has_work_is_queued_and_nobody_twice(
            steps in proptest::collection::vec(step(), 0..100),
        ) {
            let queue = ReadyQueue::new(FWPS as usize, Doorbell::default());
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
            let mut taken: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|id| id.index).collect();
            for &index in &taken {
                look(&mut work, index);
            }
            prop_assert_eq!(work, [0; FWPS as usize]);
            let all = taken.len();
            taken.sort_unstable();
            taken.dedup();
            prop_assert_eq!(taken.len(), all);
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
            let queue = ReadyQueue::new(1, Doorbell::default());
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
            let queue = ReadyQueue::new(1, bell.clone());
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
            let queue = ReadyQueue::new(1, Doorbell::default());
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
            let queue = ReadyQueue::new(2, Doorbell::default());
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
            let queue = ReadyQueue::new(1, Doorbell::default());
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
            assert_eq!(queue.pop(), None);
        });
    }
}
