//! The launcher (EdgeOS's FWP manager): prepares chain instances ahead of their clients, and ends them.
//!
//! ```text
//!             prepare          Adopt -> Attach -> Ready              Taken
//!   restoring -------> (made) -------------------------> cached ---------------> active, blocked, ...
//!                                                                                    |
//!   gone <-- dismantle <-- Detached and Released <-- Detach, Release <-- Unbound <-- Unbind
//! ```
//!
//! One thread, never a data-plane one. It follows the desired state, keeps each chain's cache filled in steps of one
//! instance, and drops a store only when gateway, MMA and worker have all let go, in this order.

mod catalogue;
mod instances;
mod places;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};
use pinion_control::model::DesiredState;
use pinion_gateway::messages::{Command, Event};
use pinion_mma::mover::{MmaCommand, MmaEvent};
use pinion_mma::notify::ReadyQueue;

pub use self::catalogue::{Catalogue, Shelf};
pub use self::instances::Instances;
use self::instances::Unprepared;
pub use self::places::{Places, per_worker, stages_max};
use crate::board::Board;
use crate::clock::RunSlot;
use crate::end::EndReason;
use crate::lines::Line;
use crate::log::LogHub;
use crate::plan::CoreId;
use crate::worker::{WorkerCommand, WorkerEvent};

/// How long a chain for which there is no place waits before it looks again.
const FULL_REST: Duration = Duration::from_millis(100);

/// Messages heeded before another instance is prepared.
const HEARD_PER_INSTANCE: usize = 1024;

/// What the node asks of the launcher.
pub enum Order {
    /// Follows this state; answers when new clients meet it.
    Follow(Arc<DesiredState>, Sender<()>),
    /// Ends the launcher's thread.
    Stop,
}

/// How the launcher reaches one worker, and the thread's entry in that worker's engine's clock.
pub struct WorkerLine {
    /// The worker's core.
    pub core: CoreId,
    /// Commands to it.
    pub commands: Line<WorkerCommand>,
    /// Where it learns who has input.
    pub inputs: ReadyQueue,
    /// For guests that the launcher itself runs, up to their first wait.
    pub clock: RunSlot,
}

/// Everything the launcher commands.
pub struct Lines {
    /// The gateway.
    pub gateway: Line<Command>,
    /// The MMAs, in the order of the core plan.
    pub mmas: Vec<Line<MmaCommand>>,
    /// The workers, in the order of the core plan.
    pub workers: Vec<WorkerLine>,
}

/// Everything the launcher hears.
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

/// See the module.
pub struct Launcher {
    catalogue: Catalogue,
    instances: Instances,
    board: Arc<Board>,
    ears: Ears,
    /// States whose rules are on their way to the gateway, the oldest first.
    following: VecDeque<Following>,
}

/// A state that is in effect once the gateway has its rules.
struct Following {
    version: u64,
    done: Sender<()>,
}

enum Heard {
    Order(Order),
    Gateway(Event),
    Mma(MmaEvent),
    Worker(WorkerEvent),
    Nothing,
}

impl Launcher {
    /// A launcher with nothing to do yet.
    #[must_use]
    pub fn new(catalogue: Catalogue, places: Places, lines: Lines, ears: Ears, board: Arc<Board>, log: LogHub) -> Self {
        let instances = Instances::new(places, lines, Arc::clone(&board), log);
        Self { catalogue, instances, board, ears, following: VecDeque::new() }
    }

    /// The launcher's loop, until it is told to stop.
    pub fn run(mut self) {
        loop {
            let mut wait = if self.prepare_one() { Duration::ZERO } else { self.rest() };
            // All that was said meanwhile comes before the next instance: ends and orders do not wait for a slow guest.
            for _ in 0..HEARD_PER_INSTANCE {
                match self.listen(wait) {
                    Heard::Order(Order::Stop) => return,
                    Heard::Nothing => break,
                    heard => self.heed(heard),
                }
                wait = Duration::ZERO;
            }
        }
    }

    fn listen(&self, wait: Duration) -> Heard {
        let ears = &self.ears;
        select! {
            recv(ears.orders) -> order => order.map_or(Heard::Order(Order::Stop), Heard::Order),
            recv(ears.gateway) -> event => event.map_or(Heard::Nothing, Heard::Gateway),
            recv(ears.mmas) -> event => event.map_or(Heard::Nothing, Heard::Mma),
            recv(ears.workers) -> event => event.map_or(Heard::Nothing, Heard::Worker),
            default(wait) => Heard::Nothing,
        }
    }

    /// How long there is nothing to do unless something is heard: until a chain that failed may be tried again.
    fn rest(&self) -> Duration {
        let now = Instant::now();
        let resume = self.catalogue.chains().filter_map(|(_, chain)| chain.resume_at()).filter(|at| *at > now).min();
        resume.map_or(Duration::from_secs(1), |at| at - now)
    }

    fn heed(&mut self, heard: Heard) {
        match heard {
            Heard::Order(Order::Follow(state, done)) => {
                self.follow(&state);
                self.following.push_back(Following { version: state.version(), done });
            }
            Heard::Gateway(Event::Taken { chain, instance, client }) => {
                let was_ready = self.instances.taken(instance, client);
                if let Some(chain) = self.catalogue.chain_mut(chain)
                    && was_ready
                {
                    chain.ready = chain.ready.saturating_sub(1);
                    chain.wanted = false;
                }
            }
            Heard::Gateway(Event::Wanted { chain }) => {
                if let Some(chain) = self.catalogue.chain_mut(chain) {
                    chain.wanted = true;
                }
            }
            Heard::Gateway(Event::Idle { instance, .. }) => self.instances.given_up(instance, &EndReason::Idle),
            Heard::Gateway(Event::Withdrawn { chain, instance }) => {
                self.instances.given_up(instance, &EndReason::Withdrawn);
                if let Some(chain) = self.catalogue.chain_mut(chain) {
                    chain.ready = chain.ready.saturating_sub(1);
                }
            }
            Heard::Gateway(Event::RulesReplaced { old }) => {
                // Freed here, not on the gateway's thread.
                drop(old);
                self.followed();
            }
            Heard::Gateway(Event::Unbound { instance }) => self.instances.unbound(instance),
            Heard::Mma(MmaEvent::Detached(endpoint)) => self.instances.detached(endpoint),
            Heard::Worker(WorkerEvent::Released(fwp)) => self.instances.released(fwp),
            Heard::Worker(WorkerEvent::Ended { id, reason }) => self.ended(id, reason),
            Heard::Order(Order::Stop) | Heard::Nothing => {}
        }
    }

    fn follow(&mut self, state: &DesiredState) {
        let mut followed = self.catalogue.follow(state);
        let (wanted, room) = (self.catalogue.fwps_wanted(), self.instances.fwps_max());
        if wanted > room {
            followed.warnings.push(format!(
                "the chains' cache_min asks for {wanted} FWPs to be ready, but limits.fwps_max is {room}: some will not be"
            ));
        }
        for warning in &followed.warnings {
            tracing::warn!("{warning}");
        }
        let mut board = self.board.entries();
        board.follow(state.chains().values().map(|spec| &**spec));
        for (index, chain) in self.catalogue.chains() {
            board.set_index(index, &chain.spec);
        }
        board.warnings = followed.warnings;
        drop(board);
        self.instances.set_rules(followed.rules);
        for chain in followed.retired {
            self.instances.end_chain(chain, &EndReason::Withdrawn);
        }
    }

    /// The gateway goes by the rules of the oldest state on its way there.
    fn followed(&mut self) {
        let Some(Following { version, done }) = self.following.pop_front() else { return };
        self.board.entries().followed_version = version;
        // Nobody may be waiting any more, which is no loss.
        let _ = done.send(());
    }

    /// Prepares an instance of the chain that lacks the most; whether there was one to prepare.
    fn prepare_one(&mut self) -> bool {
        let now = Instant::now();
        let lacking = self.catalogue.chains().filter(|(_, chain)| chain.wants_instance(now));
        let Some(index) = lacking.max_by_key(|(_, chain)| (chain.wanted, !chain.ready)).map(|(index, _)| index) else {
            return false;
        };
        let Some(chain) = self.catalogue.chain_mut(index) else { return false };
        match self.instances.prepare(index, chain) {
            Ok(()) => {
                chain.ready += 1;
                chain.wanted = false;
                chain.prepared(now, Instant::now());
                true
            }
            Err(Unprepared::NoPlace) => {
                chain.rest_until(now + FULL_REST);
                true
            }
            Err(Unprepared::Failed(problem)) => {
                chain.failed(Instant::now());
                let (tenant, name) = (&chain.spec.tenant, &chain.spec.name);
                tracing::warn!(%tenant, chain = %name, "no instance could be prepared: {problem}");
                self.board.entries().failed(tenant, name, problem);
                true
            }
        }
    }

    fn ended(&mut self, fwp: pinion_mma::id::FwpId, reason: EndReason) {
        let Some((chain, was_ready)) = self.instances.fwp_ended(fwp, &reason) else { return };
        let Some(entry) = self.catalogue.chain_mut(chain) else { return };
        // One that ends while it serves a client is that client's doing as much as the chain's: it is counted, but does not
        // keep others waiting.
        if was_ready {
            entry.ready = entry.ready.saturating_sub(1);
            entry.failed(Instant::now());
        }
    }
}
