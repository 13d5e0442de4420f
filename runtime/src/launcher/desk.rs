//! The launcher's desk: what it hears, who wakes it for that, and how it shares a core with threads that poll.
//!
//! A thread that polls never sleeps, and the kernel takes a core from it only every few milliseconds: a launcher on the same core
//! would be that late with each instance. And whoever wakes the launcher from another core spends more time on that than on a new
//! client's packet. So the threads that poll on its cores attend to it:
//!
//! ```text
//!   gateway, MMA, worker --events--> channels         no bell as long as an attendant is awake
//!   attendant, once it has nothing else to do:        rings, on its own core, and gives way
//!   launcher, after each step (steps.rs):             gives way
//! ```
//!
//! Who falls asleep looks whether anything was left on the desk, after it has said that it attends no more; who leaves something looks,
//! after that, whether anybody attends. All of it is sequentially consistent, so at least one of them rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use pinion_gateway::messages::Event;
use pinion_mma::doorbell::Doorbell;
use pinion_mma::mover::MmaEvent;

use super::Order;
use crate::clock::Moment;
use crate::plan::CoreId;
use crate::worker::WorkerEvent;

/// How often a launcher that looks for something gives way, and how many pauses of the processor it makes between two looks.
const GIVE_WAY_EVERY: Duration = Duration::from_micros(20);
const PAUSES: usize = 16;

/// Everything the launcher hears.
#[derive(Clone)]
pub struct Ears {
    /// The node.
    pub orders: Receiver<Order>,
    /// The gateway.
    pub gateway: Receiver<Event>,
    /// The MMAs.
    pub mmas: Receiver<MmaEvent>,
    /// The workers.
    pub workers: Receiver<WorkerEvent>,
}

impl Ears {
    fn hear_nothing(&self) -> bool {
        self.gateway.is_empty() && self.workers.is_empty() && self.mmas.is_empty() && self.orders.is_empty()
    }
}

/// See the module. Shared by the launcher and all data-plane threads; nothing here waits but the launcher itself, when it rests.
pub struct Desk {
    ears: Ears,
    bell: Doorbell,
    /// The launcher is awake.
    is_busy: CachePadded<AtomicBool>,
    /// Threads on its cores that are awake.
    attendants: CachePadded<AtomicUsize>,
    patient: CachePadded<Patient>,
}

/// The core, plus one, of the attendant that last gave way with nothing to do until somebody raises its queue; zero, if it has gone on.
#[derive(Default)]
struct Patient(AtomicU32);

impl Patient {
    fn set(&self, core: Option<CoreId>) {
        self.0.store(core.map_or(0, |core| u32::from(core.0) + 1), Ordering::Relaxed);
    }

    fn core(&self) -> Option<CoreId> {
        Some(CoreId(self.0.load(Ordering::Relaxed).checked_sub(1)? as u16))
    }
}

impl Desk {
    /// Where these ears are.
    #[must_use]
    pub fn new(ears: Ears) -> Self {
        Self {
            ears,
            bell: Doorbell::default(),
            is_busy: CachePadded::default(),
            attendants: CachePadded::default(),
            patient: CachePadded::default(),
        }
    }

    /// To be called once by the launcher's thread, before it rests.
    pub(super) fn sit_down(&self) {
        self.bell.answer_here();
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// Sleeps until there is something to hear, or for so long. Looks by itself for the first part of that, `awake`: whoever has something for
    /// it need not wake it then. Only for a launcher on a core without a role: elsewhere it would keep the core from a thread that is woken.
    pub(super) fn rest(&self, awake: Duration, timeout: Duration) {
        self.is_busy.store(false, Ordering::Relaxed);
        self.look_for(awake.min(timeout));
        if self.ears.hear_nothing() {
            self.bell.sleep(timeout, || !self.ears.hear_nothing());
        }
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// Looks for something to hear for so long, and gives way now and then.
    fn look_for(&self, time: Duration) {
        let began = Moment::now();
        let mut gave_way_at = began;
        while began.elapsed() < time && self.ears.hear_nothing() {
            // This core may be half of one on which others have work.
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            if gave_way_at.elapsed() >= GIVE_WAY_EVERY {
                std::thread::yield_now();
                gave_way_at = Moment::now();
            }
        }
    }

    /// Where a thread polls that has given way until its queue is raised. If several have, this is one of them.
    pub(super) fn patient_on(&self) -> Option<CoreId> {
        self.patient.core()
    }

    /// Whether the launcher has something to do.
    fn has_work(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed) || !self.ears.hear_nothing()
    }

    /// To be called by a thread that may have left something here: somebody sees to it.
    fn left_something(&self) {
        if self.attendants.load(Ordering::SeqCst) == 0 && !self.ears.hear_nothing() {
            self.bell.ring();
        }
    }
}

/// The node's way to have something done.
#[derive(Clone)]
pub struct Orders {
    sender: Sender<Order>,
    desk: Arc<Desk>,
}

impl Orders {
    /// To the launcher at this desk, by the sending end of its ears.
    #[must_use]
    pub fn new(sender: Sender<Order>, desk: Arc<Desk>) -> Self {
        Self { sender, desk }
    }

    /// Has it done in its turn.
    pub fn give(&self, order: Order) {
        // The desk keeps the other end.
        let _ = self.sender.send(order);
        self.desk.bell.ring();
    }
}

/// A data-plane thread's dealings with the launcher.
pub struct Caller {
    desk: Arc<Desk>,
    /// Where it polls, if that is a core of the launcher's.
    attends_on: Option<CoreId>,
    gave_way_at: Moment,
}

/// When a thread that gives way needs its core again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenWay {
    /// In a moment.
    ForAStep,
    /// When somebody raises its queue; for a while there is nothing to do before that.
    UntilCalled,
}

impl Caller {
    /// Of a thread that is awake.
    #[must_use]
    pub fn new(desk: Arc<Desk>, attends_on: Option<CoreId>) -> Self {
        let caller = Self { desk, attends_on, gave_way_at: Moment::now() };
        caller.wake_up();
        caller
    }

    /// Whether the launcher is to have the core when the thread has nothing to do. Never, if it may not run here.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.attends_on.is_some() && self.desk.has_work()
    }

    /// Lets the launcher take a step, or some.
    pub fn give_way(&mut self, given: GivenWay) {
        self.desk.bell.ring();
        self.desk.patient.set(self.attends_on.filter(|_| given == GivenWay::UntilCalled));
        std::thread::yield_now();
        self.desk.patient.set(None);
        self.gave_way_at = Moment::now();
    }

    /// To be called when something was done. Lets the launcher take a step if it has waited since its last one for longer than that.
    pub fn after_work(&mut self, patience: Duration) {
        if self.attends_on.is_none() {
            self.desk.left_something();
        } else if self.desk.has_work() && self.gave_way_at.elapsed() >= patience {
            self.give_way(GivenWay::ForAStep);
        }
    }

    /// To be called when the thread falls asleep.
    pub fn fall_asleep(&self) {
        if self.attends_on.is_some() {
            self.desk.attendants.fetch_sub(1, Ordering::SeqCst);
        }
        self.desk.left_something();
    }

    /// To be called when it is awake again.
    pub fn wake_up(&self) {
        if self.attends_on.is_some() {
            self.desk.attendants.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.fall_asleep();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crossbeam_channel::{bounded, unbounded};
    use pinion_gateway::id::ChainIndex;

    const NEVER: Duration = Duration::from_secs(20);
    const CORE: CoreId = CoreId(1);
    const EVENT: Event = Event::Wanted { chain: ChainIndex(0) };

    struct Ends {
        desk: Arc<Desk>,
        gateway: Sender<Event>,
    }

    fn desk() -> Ends {
        let (gateway, heard) = bounded(16);
        let ears = Ears { orders: unbounded().1, gateway: heard, mmas: bounded(1).1, workers: bounded(1).1 };
        Ends { desk: Arc::new(Desk::new(ears)), gateway }
    }

    /// How long a launcher rests at this desk that stays awake for so long, while `meanwhile` goes on.
    fn rests_for(desk: &Arc<Desk>, awake: Duration, meanwhile: impl FnOnce()) -> Duration {
        std::thread::scope(|scope| {
            let launcher = scope.spawn(|| {
                desk.sit_down();
                let start = Instant::now();
                desk.rest(awake, NEVER);
                start.elapsed()
            });
            // Until it does, whatever is said is heard before it sleeps: the same comes of it.
            meanwhile();
            launcher.join().unwrap()
        })
    }

    #[test]
    fn with_nobody_there_whoever_leaves_something_wakes_the_launcher() {
        let Ends { desk, gateway } = desk();
        let mut caller = Caller::new(Arc::clone(&desk), None);
        let rested = rests_for(&desk, Duration::ZERO, || {
            gateway.send(EVENT).unwrap();
            caller.after_work(Duration::ZERO);
        });
        assert!(rested < NEVER / 2, "{rested:?}");
    }

    #[test]
    fn an_attendant_wakes_the_launcher_when_it_has_time_or_has_kept_it_waiting_for_long_or_falls_asleep() {
        for way in 0..3 {
            let Ends { desk, gateway } = desk();
            let (mut gateway_thread, mut worker_thread) =
                (Caller::new(Arc::clone(&desk), None), Caller::new(Arc::clone(&desk), Some(CORE)));
            let rested = rests_for(&desk, NEVER, || {
                gateway.send(EVENT).unwrap();
                gateway_thread.after_work(Duration::ZERO);
                assert!(worker_thread.is_wanted());
                match way {
                    0 => worker_thread.give_way(GivenWay::UntilCalled),
                    1 => worker_thread.after_work(Duration::ZERO),
                    _ => worker_thread.fall_asleep(),
                }
                worker_thread.wake_up();
            });
            assert!(rested < NEVER / 2, "{way}: {rested:?}");
        }
    }

    #[test]
    fn with_nobody_there_a_launcher_that_is_awake_finds_what_is_left_by_itself() {
        let Ends { desk, gateway } = desk();
        let rested = rests_for(&desk, NEVER, || {
            while desk.is_busy.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            // One that sleeps instead is asleep by then, and nobody wakes it.
            let began = Moment::now();
            while began.elapsed() < Duration::from_millis(5) {
                std::thread::yield_now();
            }
            gateway.send(EVENT).unwrap();
        });
        assert!(rested < NEVER / 2, "{rested:?}");
    }

    #[test]
    fn nobody_is_wanted_to_give_way_for_nothing_or_on_another_core() {
        let Ends { desk, gateway } = desk();
        let callers = [None, Some(CORE)].map(|core| Caller::new(Arc::clone(&desk), core));
        assert!(callers.iter().all(|caller| !caller.is_wanted()));
        gateway.send(EVENT).unwrap();
        assert_eq!(callers.map(|caller| caller.is_wanted()), [false, true]);
    }

    #[test]
    fn nothing_is_left_on_the_desk_while_attendants_come_and_go() {
        const ROUNDS: usize = 20_000;
        let Ends { desk, gateway } = desk();
        let (stop, heard) = (AtomicBool::new(false), desk.ears.gateway.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let caller = Caller::new(Arc::clone(&desk), Some(CORE));
                while !stop.load(Ordering::Relaxed) {
                    caller.fall_asleep();
                    caller.wake_up();
                }
            });
            scope.spawn(|| {
                let mut caller = Caller::new(Arc::clone(&desk), None);
                for _ in 0..ROUNDS {
                    gateway.send(EVENT).unwrap();
                    caller.after_work(Duration::ZERO);
                }
            });
            desk.sit_down();
            let mut count = 0;
            while count < ROUNDS {
                let start = Instant::now();
                desk.rest(Duration::ZERO, NEVER);
                // A launcher that nobody woke rests to the end, with something there.
                assert!(start.elapsed() < NEVER / 2, "after {count} events one was left");
                count += heard.try_iter().count();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
