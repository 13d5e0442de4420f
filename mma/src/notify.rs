//! Work is found by notification, never by scanning: who has new work is queued once until somebody looks.

use crossbeam_utils::CachePadded;

use crate::doorbell::Doorbell;
use crate::id::FwpId;
use crate::sync::{Arc, ArrayQueue, AtomicBool, AtomicU64, Ordering};

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

    /// The next FWP to look at. To be called by one thread.
    #[must_use]
    pub fn pop(&self) -> Option<FwpId> {
        let index = self.shared.queue.pop()?;
        // From here on the place may be queued again.
        let queued = self.shared.queued[index as usize].swap(0, Ordering::AcqRel);
        debug_assert!(queued > 0);
        Some(FwpId { index, generation: queued.wrapping_sub(1) as u32 })
    }

    /// Queues an FWP unless it is queued already. A guest that helps itself to what was delivered, time and again, is
    /// notified of each time without its id being taken from the queue: that must not fill the queue.
    ///
    /// A place's next tenant takes over an entry that is still there of the last one; who ended is not looked for.
    fn push(&self, id: FwpId) {
        let Some(queued) = self.shared.queued.get(id.index as usize) else {
            debug_assert!(false, "FWP {id} has a place beyond the queue's");
            return;
        };
        if queued.swap(u64::from(id.generation) + 1, Ordering::AcqRel) == 0 {
            let pushed = self.shared.queue.push(id.index);
            debug_assert!(pushed.is_ok());
        }
    }

    /// Wakes the thread if it sleeps; to be called after [`Notice::raise_silently`] said so.
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

/// One direction's flag of one FWP: whether its thread was told since it last looked.
#[derive(Debug, Default)]
pub struct Notice(CachePadded<AtomicBool>);

impl Notice {
    /// Queues the FWP unless its thread has been told already, and wakes the thread that is to look. What it should find
    /// must have been pushed before.
    pub fn raise(&self, id: FwpId, queue: &ReadyQueue) {
        if self.raise_silently(id, queue) {
            queue.ring();
        }
    }

    /// The same without waking anybody; true if the queue's bell is to be rung, which can be done once for many.
    #[must_use]
    #[inline]
    pub fn raise_silently(&self, id: FwpId, queue: &ReadyQueue) -> bool {
        let is_news = !self.0.swap(true, Ordering::AcqRel);
        if is_news {
            queue.push(id);
        }
        is_news
    }

    /// To be called by the looking thread before it looks, so that whatever comes after raises again.
    pub fn lower(&self) {
        self.0.swap(false, Ordering::AcqRel);
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
        Notice::default().raise(old, &queue);
        Notice::default().raise(new, &queue);
        assert_eq!((queue.pop(), queue.pop()), (Some(new), None));
    }

    #[test]
    fn the_last_of_all_generations_is_told_apart_from_nobody() {
        let queue = ReadyQueue::new(1, Doorbell::default());
        let id = FwpId { index: 0, generation: u32::MAX };
        Notice::default().raise(id, &queue);
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
            let notices: Vec<Notice> = (0..FWPS).map(|_| Notice::default()).collect();
            let mut work = [0; FWPS as usize];
            let look = |work: &mut [u32], index: u32| {
                notices[index as usize].lower();
                work[index as usize] = 0;
            };
            for step in steps {
                match step {
                    Step::Send(index) => {
                        work[index as usize] += 1;
                        notices[index as usize].raise(FwpId { index, generation: 0 }, &queue);
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

    /// Pushes `count` entries, telling the other thread of each.
    fn send(tx: &mut spsc::Producer<u32>, notice: &Notice, queue: &ReadyQueue, count: u32) {
        for number in 0..count {
            tx.push(number).unwrap();
            notice.raise(FWP, queue);
        }
    }

    /// Looks at the FWP as the MMA and the workers do; returns how much there was.
    fn look(rx: &mut spsc::Consumer<u32>, notice: &Notice) -> u32 {
        notice.lower();
        rx.pop_batch(usize::MAX, |_| ()) as u32
    }

    #[test]
    fn whoever_looks_only_when_told_sees_everything() {
        explore(|| {
            let queue = ReadyQueue::new(1, Doorbell::default());
            let notice = Arc::new(Notice::default());
            let (mut tx, mut rx) = spsc::ring(4);
            let sender = thread::spawn({
                let (notice, queue) = (Arc::clone(&notice), queue.clone());
                move || send(&mut tx, &notice, &queue, 3)
            });
            let mut seen = 0;
            while seen < 3 {
                match queue.pop() {
                    Some(_) => seen += look(&mut rx, &notice),
                    None => yield_now(),
                }
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn whoever_sleeps_until_told_sees_everything() {
        explore(|| {
            let bell = Doorbell::default();
            let queue = ReadyQueue::new(1, bell.clone());
            let notice = Arc::new(Notice::default());
            let (mut tx, mut rx) = spsc::ring(2);
            let sender = thread::spawn({
                let (notice, queue) = (Arc::clone(&notice), queue.clone());
                move || send(&mut tx, &notice, &queue, 2)
            });
            bell.answer_here();
            let mut seen = 0;
            while seen < 2 {
                match queue.pop() {
                    Some(_) => seen += look(&mut rx, &notice),
                    None => bell.sleep(Duration::MAX, || !queue.is_empty()),
                }
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn an_fwp_that_helps_itself_is_queued_at_most_once() {
        explore(|| {
            let queue = ReadyQueue::new(1, Doorbell::default());
            let notice = Arc::new(Notice::default());
            let (mut tx, mut rx) = spsc::ring(4);
            let sender = thread::spawn({
                let (notice, queue) = (Arc::clone(&notice), queue.clone());
                move || send(&mut tx, &notice, &queue, 3)
            });
            // Looks without having been told, as a running guest's wait does.
            let mut seen = look(&mut rx, &notice) + look(&mut rx, &notice);
            sender.join().unwrap();
            assert_eq!(queue.pop(), Some(FWP));
            assert_eq!(queue.pop(), None);
            seen += look(&mut rx, &notice);
            assert_eq!(seen, 3);
        });
    }
}
