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

mod bans;
mod cache;
mod catalogue;
mod desk;
mod instances;
mod loads;
mod places;
mod steps;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TryRecvError};
use pinion_control::model::DesiredState;
use pinion_gateway::id::{ChainIndex, FunctionRef, InstanceId};
use pinion_gateway::messages::{Command, Event};
use pinion_gateway::rules::RuleSet;
use pinion_mma::id::FwpId;
use pinion_mma::mover::{MmaCommand, MmaEvent};
use pinion_mma::notify::ReadyView;

use self::bans::Bans;
pub use self::bans::ModuleKey;
pub use self::catalogue::{Books, Catalogue, Shelf, keys, wishes};
use self::catalogue::{ChainEntry, Edition, Followed};
pub use self::desk::{Caller, Desk, Ears, GivenWay, Orders};
pub use self::instances::Instances;
use self::instances::Unprepared;
pub use self::places::{Places, per_worker, stages_max};
use self::steps::Steps;
pub(crate) use self::steps::UNCALLED_STEP;
use crate::activation::Activations;
use crate::board::Board;
use crate::clock::{Moment, RunSlot};
use crate::drops::ChainKey;
use crate::end::EndReason;
use crate::lifecycle::TemplateLife;
use crate::lines::Line;
use crate::meters::TurnMeters;
use crate::plan::CoreId;
use crate::pressure::Level;
use crate::worker::{WorkerCommand, WorkerEvent};

/// How long a chain whose memory is used up waits before it looks again.
const FULL_REST: Duration = Duration::from_millis(100);

/// How often it is looked whether caches are larger than they need to be.
const REVIEW_INTERVAL: Duration = Duration::from_millis(200);

/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(1);

/// How long after it has last heard something the launcher stays awake on a core without a role: clients come in groups, and to
/// wake it takes longer than to prepare an instance.
const AWAKE: Duration = Duration::from_millis(2);

/// How soon it is looked again whether roles have read what they were told: they are awake, or being woken.
const AHEAD_REST: Duration = Duration::from_micros(50);

/// Messages heeded before another instance is prepared.
const HEARD_PER_INSTANCE: usize = 1024;

/// What the node asks of the launcher.
pub enum Order {
    /// Follows this state; answers when new clients meet it.
    Follow(Arc<DesiredState>, Sender<()>),
    /// Gives memory back, as far as this level asks for it, and keeps to it until another level is told.
    Relieve(Level),
    /// Ends the launcher's thread.
    Stop,
}

/// How the launcher reaches one worker, and the thread's entry in that worker's engine's clock.
pub struct WorkerLine {
    /// The worker's core.
    pub core: CoreId,
    /// Commands to it.
    pub commands: Line<WorkerCommand>,
    /// Whether it is told of somebody who has input.
    pub inputs: ReadyView,
    /// For guests that the launcher itself runs, up to their first wait.
    pub clock: RunSlot,
    /// Where its FWPs record how long their clients waited.
    pub activations: Arc<Activations>,
    /// What it measures of its turns.
    pub turns: Arc<TurnMeters>,
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

/// See the module.
pub struct Launcher {
    catalogue: Catalogue,
    instances: Instances,
    board: Arc<Board>,
    ears: Ears,
    /// How short memory is.
    level: Level,
    /// When caches were last reviewed.
    reviewed: Instant,
    /// States that nothing was done about yet, the oldest first.
    ordered: VecDeque<(Arc<DesiredState>, Sender<()>)>,
    /// What comes next into effect. Until it does no other state is followed: a chain's index is given to another one only when
    /// the gateway has rules without the former.
    change: Option<Change>,
    /// States of which the rules are on their way to the gateway, the oldest first.
    following: VecDeque<Following>,
    /// Chains of which instances of older versions may still serve.
    draining: Vec<Draining>,
    bans: Bans,
    desk: Arc<Desk>,
    steps: Steps,
    heard_at: Moment,
}

/// A state that is in effect once the gateway has its rules.
struct Following {
    version: u64,
    /// How its chains are invoked.
    functions: HashMap<ChainKey, FunctionRef>,
    done: Sender<()>,
}

/// What a state changes when it comes into effect.
struct Change {
    following: Following,
    changed: Vec<ChainIndex>,
    retired: Vec<ChainIndex>,
    rules: Arc<RuleSet>,
}

/// Instances of a chain's older editions than this go on until then.
struct Draining {
    chain: ChainIndex,
    edition: Edition,
    until: Instant,
}

/// What became of preparing an instance.
enum Prepared {
    /// One was, or it was tried.
    One,
    /// Roles are to read what they were told first.
    TooFarAhead,
    NobodyLacks,
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
    pub fn new(catalogue: Catalogue, instances: Instances, ears: Ears, desk: Arc<Desk>, board: Arc<Board>) -> Self {
        let steps = Steps::new(Arc::clone(&desk), instances.inputs());
        Self {
            catalogue,
            instances,
            board,
            ears,
            level: Level::Calm,
            reviewed: Instant::now(),
            ordered: VecDeque::new(),
            change: None,
            following: VecDeque::new(),
            draining: Vec::new(),
            bans: Bans::default(),
            desk,
            steps,
            heard_at: Moment::now(),
        }
    }

    /// The launcher's loop, until it is told to stop.
    pub fn run(mut self) {
        self.desk.sit_down();
        loop {
            self.review();
            self.take_effect();
            self.drain();
            let mut wait = match self.prepare_one() {
                Prepared::One => Duration::ZERO,
                Prepared::TooFarAhead => self.rest().min(AHEAD_REST),
                Prepared::NobodyLacks => self.rest(),
            };
            self.steps.give_way();
            // All that was said meanwhile comes before the next instance: ends and orders do not wait for a slow guest.
            for _ in 0..HEARD_PER_INSTANCE {
                match self.listen(wait) {
                    Heard::Order(Order::Stop) => return,
                    Heard::Nothing => break,
                    heard => {
                        self.heed(heard);
                        self.heard_at = Moment::now();
                    }
                }
                self.steps.give_way();
                wait = Duration::ZERO;
            }
        }
    }

    fn listen(&mut self, wait: Duration) -> Heard {
        match self.hear() {
            Heard::Nothing if !wait.is_zero() => {
                let awake = if self.steps.are_apart() { AWAKE } else { Duration::ZERO };
                self.desk.rest(awake.saturating_sub(self.heard_at.elapsed()), wait);
                self.steps.begin();
                self.hear()
            }
            heard => heard,
        }
    }

    /// The next message. Whoever is asked first keeps nobody from being heard for ever: of an instance each says a few things, once.
    fn hear(&self) -> Heard {
        let ears = &self.ears;
        match ears.orders.try_recv() {
            Ok(order) => return Heard::Order(order),
            Err(TryRecvError::Disconnected) => return Heard::Order(Order::Stop),
            Err(TryRecvError::Empty) => {}
        }
        let heard = ears.gateway.try_recv().map(Heard::Gateway);
        let heard = heard.or_else(|_| ears.workers.try_recv().map(Heard::Worker));
        heard.or_else(|_| ears.mmas.try_recv().map(Heard::Mma)).unwrap_or(Heard::Nothing)
    }

    /// How long there is nothing to do unless something is heard: until a chain that failed may be tried again, or an instance that is
    /// replaced is to end.
    fn rest(&self) -> Duration {
        let now = Instant::now();
        let ends = self.draining.iter().map(|draining| draining.until).chain(self.instances.lingers_until());
        let next = self.catalogue.next_resumption(now).into_iter().chain(ends).min();
        next.map_or(REST_MAX, |at| at.saturating_duration_since(now).min(REST_MAX))
    }

    /// Follows states one after the other: each takes effect when the chains are up that it changes.
    fn take_effect(&mut self) {
        loop {
            let is_up = |chain: &ChainIndex| self.catalogue.chain(*chain).is_none_or(ChainEntry::is_up);
            if let Some(change) = self.change.take_if(|change| change.changed.iter().all(is_up)) {
                self.make(change);
            }
            if self.change.is_some() {
                return;
            }
            let Some((state, done)) = self.ordered.pop_front() else { return };
            let following = Following { version: state.version(), functions: HashMap::new(), done };
            self.change = Some(self.follow(&state, following));
        }
    }

    fn make(&mut self, Change { following, changed, retired, rules }: Change) {
        let now = Instant::now();
        for chain in changed {
            let Some(entry) = self.catalogue.chain(chain) else { continue };
            let until = now + Duration::from_millis(entry.spec.drain_timeout_ms);
            self.instances.supersede(chain, entry.edition);
            self.draining.push(Draining { chain, edition: entry.edition, until });
        }
        self.instances.set_rules(rules);
        self.following.push_back(following);
        for chain in retired {
            self.instances.end_chain(chain, &EndReason::Withdrawn);
        }
    }

    /// Replaces instances of older editions that have had the time that their chain allows, and ends those that have been replaced.
    fn drain(&mut self) {
        let now = Instant::now();
        for Draining { chain, edition, .. } in self.draining.extract_if(.., |draining| draining.until <= now) {
            self.instances.replace_older(chain, edition);
        }
        self.instances.end_lingering(now);
    }

    /// Looks from time to time whether caches are larger than they need to be.
    fn review(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.reviewed) < REVIEW_INTERVAL {
            return;
        }
        self.reviewed = now;
        for (chain, keep) in self.catalogue.review(now) {
            self.instances.reclaim(chain, keep);
        }
    }

    fn heed(&mut self, heard: Heard) {
        match heard {
            Heard::Order(Order::Follow(state, done)) => {
                self.ordered.push_back((state, done));
            }
            Heard::Order(Order::Relieve(level)) => self.relieve(level),
            Heard::Gateway(Event::Taken { chain, instance, client }) => {
                self.left_cache(chain, instance);
                self.instances.taken(instance, client);
                if let Some(chain) = self.catalogue.chain_mut(chain) {
                    chain.client_came(Instant::now());
                    chain.terms.note_activation();
                    chain.wanted = false;
                }
            }
            Heard::Gateway(Event::Wanted { chain }) => {
                if let Some(chain) = self.catalogue.chain_mut(chain) {
                    chain.wanted = true;
                }
            }
            Heard::Gateway(Event::Idle { instance, .. }) => self.instances.given_up(instance, &EndReason::Idle),
            Heard::Gateway(Event::FlowEnded { instance, .. }) => {
                self.instances.given_up(instance, &EndReason::FlowEnded);
            }
            Heard::Gateway(Event::Withdrawn { chain, instance }) => {
                self.left_cache(chain, instance);
                self.instances.withdrawn(instance);
            }
            Heard::Gateway(Event::RulesReplaced { old }) => {
                // Freed here, not on the gateway's thread.
                drop(old);
                self.followed();
            }
            Heard::Gateway(Event::Unbound { instance }) => {
                if let Some((chain, edition)) = self.instances.unbound(instance) {
                    self.ended_unused(chain, edition);
                }
            }
            Heard::Mma(MmaEvent::Detached(endpoint)) => self.instances.detached(endpoint),
            Heard::Worker(WorkerEvent::Released(fwp)) => self.instances.released(fwp),
            Heard::Worker(WorkerEvent::Ended { id, reason }) => {
                if matches!(reason, EndReason::Overrun(_)) {
                    self.overran(id);
                }
                self.instances.fwp_ended(id, &reason);
            }
            Heard::Order(Order::Stop) | Heard::Nothing => {}
        }
    }

    fn left_cache(&mut self, chain: ChainIndex, instance: InstanceId) {
        if let (Some(chain), Some(edition)) = (self.catalogue.chain_mut(chain), self.instances.edition(instance)) {
            chain.left_cache(edition);
        }
    }

    fn follow(&mut self, state: &DesiredState, following: Following) -> Change {
        let mut followed = self.catalogue.follow(state);
        self.bans.retain(|(tenant, module)| state.module(tenant, module).is_some());
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
        let mut in_force: HashMap<_, _> =
            self.catalogue.chains().map(|(_, chain)| ((&chain.spec.tenant, &chain.spec.name), chain)).collect();
        for (key, spec) in state.chains() {
            let life = in_force.remove(&(&key.0, &key.1)).map_or(TemplateLife::Object, ChainEntry::template_life);
            board.set_template(spec, life);
        }
        board.warnings = followed.warnings;
        drop(board);
        self.catalogue.set_ready_max(self.level);
        let Followed { changed, retired, rules, .. } = followed;
        let following = Following { functions: self.catalogue.functions(), ..following };
        Change { following, changed, retired, rules }
    }

    /// The gateway goes by the rules of the oldest state on its way there.
    fn followed(&mut self) {
        let Some(Following { version, functions, done }) = self.following.pop_front() else { return };
        let mut board = self.board.entries();
        (board.followed_version, board.functions) = (version, functions);
        drop(board);
        // Nobody may be waiting any more, which is no loss.
        let _ = done.send(());
    }

    /// Gives memory back in the order of the levels; instances that serve clients are never touched. Templates go once their
    /// chain has no instance at all: the level is told again for as long as it lasts.
    fn relieve(&mut self, level: Level) {
        if level != self.level {
            tracing::warn!("memory: {level}");
            self.board.entries().memory_level = level;
        }
        self.level = level;
        self.catalogue.set_ready_max(level);
        if level == Level::Calm {
            return;
        }
        let chains: Vec<_> = self.catalogue.chains().map(|(index, chain)| (index, Arc::clone(&chain.spec))).collect();
        for (index, spec) in chains {
            self.instances.reclaim(index, level.ready_max(&spec));
            let is_wanted = self.catalogue.chain(index).is_some_and(|chain| chain.wanted);
            if level == Level::Templates && !is_wanted && !self.instances.has_any(index) {
                self.catalogue.unload(index);
                self.board.entries().set_template(&spec, TemplateLife::Object);
            }
        }
        self.catalogue.release_spare();
        self.instances.release_spare(&mut self.steps);
    }

    /// Brings a chain's templates back if they were reclaimed.
    fn reload(&mut self, index: ChainIndex) -> Result<(), Unprepared> {
        if self.catalogue.reload(index).map_err(Unprepared::Failed)?
            && let Some(chain) = self.catalogue.chain_mut(index)
        {
            self.board.entries().set_template(&chain.spec, TemplateLife::Template);
        }
        Ok(())
    }

    /// Prepares an instance of the chain that lacks the most, unless there is none or roles are behind: what the machine has taken the core
    /// of comes back to clients, and is not to read of hundreds of instances before it serves these.
    fn prepare_one(&mut self) -> Prepared {
        let now = Instant::now();
        let freed = self.instances.places_freed();
        let Some(index) = self.catalogue.next_lacking(now, freed) else { return Prepared::NobodyLacks };
        // Beside a worker it goes on in steps: to be woken from a rest would take the core amid a packet.
        if self.steps.are_apart() && self.instances.are_ahead() {
            return Prepared::TooFarAhead;
        }
        let reloaded = self.reload(index);
        let Some(chain) = self.catalogue.chain_mut(index) else { return Prepared::NobodyLacks };
        match reloaded.and_then(|()| self.instances.prepare(index, chain, &mut self.steps)) {
            Ok(()) => {
                chain.ready += 1;
                chain.wanted = false;
                chain.prepared(now, Instant::now());
                self.board.preparations().record(now.elapsed());
                Prepared::One
            }
            Err(Unprepared::NoPlace) => {
                chain.found_no_place(freed);
                Prepared::One
            }
            Err(Unprepared::OverLimit(problem)) => {
                // Memory comes back when an instance ends, so this is no fault to back off from.
                chain.rest_until(now + FULL_REST);
                let (tenant, name) = (&chain.spec.tenant, &chain.spec.name);
                if self.board.entries().over_limit(tenant, name, &problem) {
                    tracing::warn!(%tenant, chain = %name, "no instance could be prepared: {problem}");
                }
                Prepared::One
            }
            Err(Unprepared::Failed(problem)) => {
                chain.failed(Instant::now());
                let (tenant, name) = (&chain.spec.tenant, &chain.spec.name);
                if let Some(not_logged) = self.board.entries().failed(tenant, name, problem.clone()) {
                    tracing::warn!(%tenant, chain = %name, not_logged, "no instance could be prepared: {problem}");
                }
                Prepared::One
            }
        }
    }

    /// An FWP has exceeded its budget. If its module is banned for that, no chain that has a stage of it serves new clients for a while.
    fn overran(&mut self, id: FwpId) {
        let module_of = |(chain, stage): (ChainIndex, usize)| {
            let spec = &self.catalogue.chain(chain)?.spec;
            Some((spec.tenant.clone(), spec.stages.get(stage)?.module.clone()))
        };
        let Some(module) = self.instances.stage_of(id).and_then(module_of) else { return };
        let now = Instant::now();
        let Some(until) = self.bans.overran(module.clone(), now) else { return };
        let (tenant, name) = &module;
        let seconds = until.saturating_duration_since(now).as_secs();
        tracing::warn!(%tenant, module = %name, seconds, "it exceeds its budgets again and again: its chains serve no new clients");
        for (index, chain) in self.catalogue.chains_mut() {
            if chain.spec.tenant == *tenant && chain.spec.stages.iter().any(|stage| stage.module == *name) {
                chain.rest_until(until);
                self.instances.reclaim(index, 0);
            }
        }
        self.board.entries().banned(module, until);
    }

    /// An instance has ended before any client had it. One that ends while it serves a client is that client's doing as much as
    /// the chain's: it is counted, but does not keep others waiting.
    fn ended_unused(&mut self, chain: ChainIndex, edition: Edition) {
        if let Some(entry) = self.catalogue.chain_mut(chain).filter(|entry| entry.edition == edition) {
            entry.left_cache(edition);
            entry.failed(Instant::now());
        }
    }
}
