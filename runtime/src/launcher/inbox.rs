//! The launcher's inbox: its channels, how it is woken for a message, and how it shares a core with threads that poll.
//!
//! A polling thread never sleeps, and the kernel preempts it only every few milliseconds. A launcher on the same core would be late by that
//! with each instance. To wake the launcher from another core takes longer than to handle a new client's packet. So the polling threads on
//! the launcher's cores, its attendants, wake it:
//!
//! ```text
//!   gateway, MMA, worker --events--> channels         no doorbell as long as an attendant is awake
//!   attendant, once it has nothing else to do:        rings the doorbell on its own core, and yields
//!   launcher, after each step (steps.rs):             yields
//! ```
//!
//! No message is missed. An attendant that falls asleep first takes itself off the count of attendants and then checks the channels. A
//! thread that sends a message checks the count afterwards. Both are sequentially consistent, so at least one of them rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use pinion_gateway::messages::Event;
use pinion_mma::mover::MmaEvent;
use pinion_mma::notify::doorbell::Doorbell;

use super::Order;
use crate::clock::TscInstant;
use crate::cores::plan::CoreId;
use crate::worker::WorkerEvent;

/// How often a polling launcher yields, and how many spin-loop hints it issues between two polls.
const GIVE_WAY_EVERY: Duration = Duration::from_micros(20);
const PAUSES: usize = 16;

/// The receiving ends of the launcher's channels.
#[derive(Clone)]
pub struct Receivers {
    /// From the node.
    pub orders: Receiver<Order>,
    /// From the gateway.
    pub gateway: Receiver<Event>,
    /// From the MMAs.
    pub mmas: Receiver<MmaEvent>,
    /// From the workers.
    pub workers: Receiver<WorkerEvent>,
}

impl Receivers {
    fn hear_nothing(&self) -> bool {
        self.gateway.is_empty() && self.workers.is_empty() && self.mmas.is_empty() && self.orders.is_empty()
    }
}

/// The launcher's inbox; see the module. Shared by the launcher and all data-plane threads. Only the launcher blocks on it, in `rest`.
pub struct LauncherInbox {
    receivers: Receivers,
    bell: Doorbell,
    /// The launcher is awake.
    is_busy: CachePadded<AtomicBool>,
    /// Polling threads on the launcher's cores that are awake.
    attendants: CachePadded<AtomicUsize>,
    patient: CachePadded<YieldState>,
}

/// The core, plus one, of the attendant that last yielded until its ready queue is raised; zero once it has resumed.
#[derive(Default)]
struct YieldState(AtomicU32);

impl YieldState {
    fn set(&self, core: Option<CoreId>) {
        self.0.store(core.map_or(0, |core| u32::from(core.0) + 1), Ordering::Relaxed);
    }

    fn core(&self) -> Option<CoreId> {
        Some(CoreId(self.0.load(Ordering::Relaxed).checked_sub(1)? as u16))
    }
}

impl LauncherInbox {
    /// Creates the inbox of these channels.
    #[must_use]
    pub fn new(receivers: Receivers) -> Self {
        Self {
            receivers,
            bell: Doorbell::default(),
            is_busy: CachePadded::default(),
            attendants: CachePadded::default(),
            patient: CachePadded::default(),
        }
    }

    /// Makes the calling thread the one that the doorbell wakes. The launcher's thread calls it once, before its first `rest`.
    pub(super) fn sit_down(&self) {
        self.bell.answer_here();
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// Sleeps until a message comes or `timeout` passes. Before that it polls for `awake`, at most `timeout`, so that senders need not wake
    /// the launcher. `awake` must be zero except on a core without a role: elsewhere polling would keep the core from a woken thread.
    pub(super) fn rest(&self, awake: Duration, timeout: Duration) {
        self.is_busy.store(false, Ordering::Relaxed);
        self.look_for(awake.min(timeout));
        if self.receivers.hear_nothing() {
            self.bell.sleep(timeout, || !self.receivers.hear_nothing());
        }
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// Polls the channels for `time`, and yields now and then.
    fn look_for(&self, time: Duration) {
        let began = TscInstant::now();
        let mut gave_way_at = began;
        while began.elapsed() < time && self.receivers.hear_nothing() {
            // The hints leave execution units to the sibling hyperthread.
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            if gave_way_at.elapsed() >= GIVE_WAY_EVERY {
                std::thread::yield_now();
                gave_way_at = TscInstant::now();
            }
        }
    }

    /// Returns the core of a polling thread that has yielded until its ready queue is raised; one of them, if there are several.
    pub(super) fn patient_on(&self) -> Option<CoreId> {
        self.patient.core()
    }

    /// Whether the launcher has something to do.
    fn has_work(&self) -> bool {
        self.is_busy.load(Ordering::Relaxed) || !self.receivers.hear_nothing()
    }

    /// Wakes the launcher for messages that the calling thread may have sent, unless an attendant is awake that will do so.
    fn left_something(&self) {
        if self.attendants.load(Ordering::SeqCst) == 0 && !self.receivers.hear_nothing() {
            self.bell.ring();
        }
    }
}

/// The node's channel of orders to the launcher.
#[derive(Clone)]
pub struct Orders {
    sender: Sender<Order>,
    inbox: Arc<LauncherInbox>,
}

impl Orders {
    /// Creates a channel to the launcher with this inbox; `sender` is the sending end of its `orders`.
    #[must_use]
    pub fn new(sender: Sender<Order>, inbox: Arc<LauncherInbox>) -> Self {
        Self { sender, inbox }
    }

    /// Sends an order and wakes the launcher. Does not wait until the order is carried out.
    pub fn give(&self, order: Order) {
        // Cannot fail: the inbox keeps a receiving end.
        let _ = self.sender.send(order);
        self.inbox.bell.ring();
    }
}

/// A data-plane thread's handle to wake the launcher and to yield its core to it.
pub struct WakeHandle {
    inbox: Arc<LauncherInbox>,
    /// The thread's core, if the launcher may run on it.
    attends_on: Option<CoreId>,
    gave_way_at: TscInstant,
}

/// When a thread that yields needs its core again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yielded {
    /// In a moment.
    ForAStep,
    /// When its ready queue is raised. The thread has nothing to do before that, for a while.
    UntilCalled,
}

impl WakeHandle {
    /// Creates the handle of a thread that is awake. `attends_on` is its core, if the launcher may run on it.
    #[must_use]
    pub fn new(inbox: Arc<LauncherInbox>, attends_on: Option<CoreId>) -> Self {
        let caller = Self { inbox, attends_on, gave_way_at: TscInstant::now() };
        caller.wake_up();
        caller
    }

    /// Returns whether the thread should yield its core to the launcher when it has nothing to do: only if the launcher has work and may
    /// run here.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.attends_on.is_some() && self.inbox.has_work()
    }

    /// Yields the core to the launcher for one step or several.
    pub fn give_way(&mut self, given: Yielded) {
        self.inbox.bell.ring();
        self.inbox.patient.set(self.attends_on.filter(|_| given == Yielded::UntilCalled));
        std::thread::yield_now();
        self.inbox.patient.set(None);
        self.gave_way_at = TscInstant::now();
    }

    /// Called after a round of polls with work. Wakes the launcher for messages, or, on a core of the launcher's, yields to it if this
    /// thread has not yielded for `patience`.
    pub fn after_work(&mut self, patience: Duration) {
        if self.attends_on.is_none() {
            self.inbox.left_something();
        } else if self.inbox.has_work() && self.gave_way_at.elapsed() >= patience {
            self.give_way(Yielded::ForAStep);
        }
    }

    /// Called before the thread falls asleep.
    pub fn fall_asleep(&self) {
        if self.attends_on.is_some() {
            self.inbox.attendants.fetch_sub(1, Ordering::SeqCst);
        }
        self.inbox.left_something();
    }

    /// Called when the thread is awake again.
    pub fn wake_up(&self) {
        if self.attends_on.is_some() {
            self.inbox.attendants.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for WakeHandle {
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
        inbox: Arc<LauncherInbox>,
        gateway: Sender<Event>,
    }

    fn inbox() -> Ends {
        let (gateway, heard) = bounded(16);
        let receivers = Receivers { orders: unbounded().1, gateway: heard, mmas: bounded(1).1, workers: bounded(1).1 };
        Ends { inbox: Arc::new(LauncherInbox::new(receivers)), gateway }
    }

    /// Returns how long a launcher with this inbox rests if it polls for `awake` first, while `meanwhile` runs.
    fn rests_for(inbox: &Arc<LauncherInbox>, awake: Duration, meanwhile: impl FnOnce()) -> Duration {
        std::thread::scope(|scope| {
            let launcher = scope.spawn(|| {
                inbox.sit_down();
                let start = Instant::now();
                inbox.rest(awake, NEVER);
                start.elapsed()
            });
            // If the launcher does not rest yet, it finds the message before it sleeps, with the same result.
            meanwhile();
            launcher.join().unwrap()
        })
    }

    #[test]
    fn without_attendants_the_sender_of_a_message_wakes_the_launcher() {
        let Ends { inbox, gateway } = inbox();
        let mut caller = WakeHandle::new(Arc::clone(&inbox), None);
        let rested = rests_for(&inbox, Duration::ZERO, || {
            gateway.send(EVENT).unwrap();
            caller.after_work(Duration::ZERO);
        });
        assert!(rested < NEVER / 2, "{rested:?}");
    }

    #[test]
    fn an_attendant_wakes_the_launcher_when_it_is_idle_or_has_made_it_wait_for_long_or_falls_asleep() {
        for way in 0..3 {
            let Ends { inbox, gateway } = inbox();
            let (mut gateway_thread, mut worker_thread) =
                (WakeHandle::new(Arc::clone(&inbox), None), WakeHandle::new(Arc::clone(&inbox), Some(CORE)));
            let rested = rests_for(&inbox, NEVER, || {
                gateway.send(EVENT).unwrap();
                gateway_thread.after_work(Duration::ZERO);
                assert!(worker_thread.is_wanted());
                match way {
                    0 => worker_thread.give_way(Yielded::UntilCalled),
                    1 => worker_thread.after_work(Duration::ZERO),
                    _ => worker_thread.fall_asleep(),
                }
                worker_thread.wake_up();
            });
            assert!(rested < NEVER / 2, "{way}: {rested:?}");
        }
    }

    #[test]
    fn without_attendants_a_polling_launcher_finds_a_message_by_itself() {
        let Ends { inbox, gateway } = inbox();
        let rested = rests_for(&inbox, NEVER, || {
            while inbox.is_busy.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            // A launcher that sleeps instead of polling is asleep after this time, and nothing wakes it.
            let began = TscInstant::now();
            while began.elapsed() < Duration::from_millis(5) {
                std::thread::yield_now();
            }
            gateway.send(EVENT).unwrap();
        });
        assert!(rested < NEVER / 2, "{rested:?}");
    }

    #[test]
    fn a_thread_yields_only_if_the_launcher_has_work_and_may_run_on_its_core() {
        let Ends { inbox, gateway } = inbox();
        let callers = [None, Some(CORE)].map(|core| WakeHandle::new(Arc::clone(&inbox), core));
        assert!(callers.iter().all(|caller| !caller.is_wanted()));
        gateway.send(EVENT).unwrap();
        assert_eq!(callers.map(|caller| caller.is_wanted()), [false, true]);
    }

    #[test]
    fn no_message_is_missed_while_attendants_fall_asleep_and_wake_up() {
        const ROUNDS: usize = 20_000;
        let Ends { inbox, gateway } = inbox();
        let (stop, heard) = (AtomicBool::new(false), inbox.receivers.gateway.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let caller = WakeHandle::new(Arc::clone(&inbox), Some(CORE));
                while !stop.load(Ordering::Relaxed) {
                    caller.fall_asleep();
                    caller.wake_up();
                }
            });
            scope.spawn(|| {
                let mut caller = WakeHandle::new(Arc::clone(&inbox), None);
                for _ in 0..ROUNDS {
                    gateway.send(EVENT).unwrap();
                    caller.after_work(Duration::ZERO);
                }
            });
            inbox.sit_down();
            let mut count = 0;
            while count < ROUNDS {
                let start = Instant::now();
                inbox.rest(Duration::ZERO, NEVER);
                // A launcher that was not woken rests until the timeout although there is a message.
                assert!(start.elapsed() < NEVER / 2, "after {count} events one was left");
                count += heard.try_iter().count();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
