//! The launcher (EdgeOS's FWP manager): prepares chain instances ahead of their clients, and ends them.
//!
//! ```text
//!             prepare          Adopt -> Attach -> Ready              Taken
//!   restoring -------> (made) -------------------------> cached ---------------> active, blocked, ...
//!                                                                                    |
//!   gone <-- dismantle <-- Detached and Released <-- Detach, Release <-- Unbound <-- Unbind
//! ```
//!
//! The launcher is one thread, never a data-plane thread. It applies the desired state and fills each chain's cache, one instance at a
//! time. It drops a store only after gateway, MMA and worker have all released the instance, in this order.

mod active_chains;
mod bans;
mod cache;
mod following;
mod granted_objects;
mod inbox;
mod index_allocator;
mod instances;
mod loaded_templates;
mod loads;
mod preparation_queue;
mod room;
mod steps;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TryRecvError};
use pinion_control::model::DesiredState;
use pinion_gateway::fwp_times::KeepAlives;
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_gateway::messages::{Command, Event, UNPROVEN_AT_ONCE};
use pinion_mma::id::FwpId;
use pinion_mma::mover::{MmaCommand, MmaEvent};
use pinion_mma::notify::ReadyView;

use self::active_chains::ChainEntry;
pub use self::active_chains::{ActiveChains, ChainRecords, keys, wishes};
use self::bans::Bans;
use self::following::{Change, Draining, Following};
pub use self::granted_objects::{GrantNeeds, GrantedObjects, StageGrants};
pub use self::inbox::{LauncherInbox, Orders, Receivers, WakeHandle, Yielded};
pub use self::index_allocator::{IndexAllocator, per_worker, stages_max};
pub use self::instances::Instances;
use self::instances::{EndedUnused, PrepareError, Prepared};
use self::loaded_templates::Unavailable;
pub use self::loaded_templates::{LoadError, LoadedTemplate, LoadedTemplates};
use self::preparation_queue::NoRoom;
use self::steps::Steps;
pub(crate) use self::steps::UNCALLED_STEP;
use crate::clock::TscInstant;
use crate::cores::command_sender::CommandSender;
use crate::cores::plan::CoreId;
use crate::fwp::end_reason::EndReason;
use crate::fwp::instance_states::TemplateLife;
use crate::ids::{ChainKey, ModuleKey};
use crate::instruments::activation::Activations;
use crate::memory::pressure::Level;
use crate::offload::OffloadPort;
use crate::preemption::RunSlot;
use crate::reports::status_table::StatusTable;
use crate::tenants::accounts::Scope;
use crate::tenants::meters::TurnMeters;
use crate::worker::{WorkerCommand, WorkerEvent};

/// How long a chain that has reached a memory limit rests before the next attempt to prepare an instance.
const FULL_REST: Duration = Duration::from_millis(100);

/// The interval at which the launcher checks whether caches are larger than they need to be.
const REVIEW_INTERVAL: Duration = Duration::from_millis(200);

/// The longest time that the launcher sleeps.
const REST_MAX: Duration = Duration::from_secs(1);

/// How long the launcher polls after its last message, on a core without a role. Clients come in groups, and waking the thread takes longer
/// than preparing an instance.
const AWAKE: Duration = Duration::from_millis(2);

/// How soon the launcher checks again whether roles have read their commands. They are awake, or being woken.
const AHEAD_REST: Duration = Duration::from_micros(50);

/// Most messages that are handled before another instance is prepared.
const HEARD_PER_INSTANCE: usize = 1024;

/// An order of the node to the launcher.
pub enum Order {
    /// Applies this state, and answers when it is in effect for new clients.
    Follow(Arc<DesiredState>, Sender<()>),
    /// Lets the change under way take effect although its chains may not be up.
    Hurry,
    /// Gives memory back as far as this level asks for it. The level stays in force until the next such order.
    Relieve(Level),
    /// Ends the launcher's thread.
    Stop,
}

/// The launcher's connection to one worker, and the launcher's own entry in the clock of that worker's engine.
pub struct WorkerLine {
    /// The worker's core.
    pub core: CoreId,
    /// Commands to the worker.
    pub commands: CommandSender<WorkerCommand>,
    /// Shows whether FWPs with input are in the worker's ready queue.
    pub inputs: ReadyView,
    /// Clock entry for guests that the launcher itself runs, up to their first wait.
    pub clock: RunSlot,
    /// Where the worker's FWPs record how long their clients waited.
    pub activations: Arc<Activations>,
    /// What the worker's FWPs submit jobs by; none if there are no threads for them.
    pub offload: Option<OffloadPort>,
    /// What the worker measures of its turns.
    pub turns: Arc<TurnMeters>,
}

/// The command channels to all roles.
pub struct CommandSenders {
    /// The gateway.
    pub gateway: CommandSender<Command>,
    /// The MMAs, in the order of the core plan.
    pub mmas: Vec<CommandSender<MmaCommand>>,
    /// The workers, in the order of the core plan.
    pub workers: Vec<WorkerLine>,
    /// Until when idle instances stay because their functions ask for it.
    pub keep_alives: Arc<KeepAlives>,
}

/// The launcher; see the module.
pub struct Launcher {
    catalogue: ActiveChains,
    instances: Instances,
    status_table: Arc<StatusTable>,
    receivers: Receivers,
    /// The level of memory pressure.
    level: Level,
    /// When caches were last reviewed.
    reviewed: Instant,
    /// States that are not being applied yet, the oldest first.
    ordered: VecDeque<(Arc<DesiredState>, Sender<()>)>,
    /// The change that takes effect next. Until it does, no other state is applied: a chain's index is reused only after the gateway has
    /// rules without that chain.
    change: Option<Change>,
    /// States with rules on their way to the gateway, the oldest first.
    following: VecDeque<Following>,
    /// Chains with instances of older editions that may still serve.
    draining: Vec<Draining>,
    bans: Bans<ModuleKey>,
    chain_bans: Bans<ChainKey>,
    /// Whether a chain had no room for an instance when room was last made.
    lacks_room: bool,
    inbox: Arc<LauncherInbox>,
    steps: Steps,
    heard_at: TscInstant,
}

/// The outcome of an attempt to prepare an instance.
enum Attempt {
    /// One was prepared or had a turn, or the attempt failed.
    One,
    /// Roles must read their commands first.
    TooFarAhead,
    /// No chain lacks an instance.
    NoChainLacks,
}

enum Message {
    Order(Order),
    Gateway(Event),
    Mma(MmaEvent),
    Worker(WorkerEvent),
    Nothing,
}

impl Launcher {
    /// Creates a launcher that has nothing to do yet.
    #[must_use]
    pub fn new(
        catalogue: ActiveChains,
        instances: Instances,
        receivers: Receivers,
        inbox: Arc<LauncherInbox>,
        status_table: Arc<StatusTable>,
    ) -> Self {
        let steps = Steps::new(Arc::clone(&inbox), instances.inputs());
        Self {
            catalogue,
            instances,
            status_table,
            receivers,
            level: Level::Calm,
            reviewed: Instant::now(),
            ordered: VecDeque::new(),
            change: None,
            following: VecDeque::new(),
            draining: Vec::new(),
            bans: Bans::of_modules(),
            chain_bans: Bans::of_chains(),
            lacks_room: false,
            inbox,
            steps,
            heard_at: TscInstant::now(),
        }
    }

    /// Runs the launcher's loop until the order to stop.
    pub fn run(mut self) {
        self.inbox.sit_down();
        loop {
            self.review();
            self.take_effect();
            self.drain();
            let mut wait = match self.prepare_one() {
                Attempt::One => Duration::ZERO,
                Attempt::TooFarAhead => self.rest().min(AHEAD_REST),
                Attempt::NoChainLacks => self.rest(),
            };
            self.steps.give_way();
            // Pending messages come before the next instance, so that ends and orders do not wait for a slow guest.
            for _ in 0..HEARD_PER_INSTANCE {
                match self.listen(wait) {
                    Message::Order(Order::Stop) => return self.instances.abandon_unless(|_, _| false),
                    Message::Nothing => break,
                    heard => {
                        self.heed(heard);
                        self.heard_at = TscInstant::now();
                    }
                }
                self.steps.give_way();
                wait = Duration::ZERO;
            }
        }
    }

    fn listen(&mut self, wait: Duration) -> Message {
        match self.hear() {
            Message::Nothing if !wait.is_zero() => {
                let awake = if self.steps.are_apart() { AWAKE } else { Duration::ZERO };
                self.inbox.rest(awake.saturating_sub(self.heard_at.elapsed()), wait);
                self.steps.begin();
                self.hear()
            }
            heard => heard,
        }
    }

    /// Returns the next message. The fixed order of the channels starves none of them: each sender sends only a few messages per instance.
    fn hear(&self) -> Message {
        let receivers = &self.receivers;
        match receivers.orders.try_recv() {
            Ok(order) => return Message::Order(order),
            Err(TryRecvError::Disconnected) => return Message::Order(Order::Stop),
            Err(TryRecvError::Empty) => {}
        }
        let heard = receivers.gateway.try_recv().map(Message::Gateway);
        let heard = heard.or_else(|_| receivers.workers.try_recv().map(Message::Worker));
        heard.or_else(|_| receivers.mmas.try_recv().map(Message::Mma)).unwrap_or(Message::Nothing)
    }

    /// Returns how long the launcher may sleep if no message comes: until a chain that failed may be tried again, or an instance that is
    /// being replaced must end.
    fn rest(&self) -> Duration {
        let now = Instant::now();
        let ends = self.draining.iter().map(|draining| draining.until).chain(self.instances.lingers_until());
        let room = self.lacks_room.then(|| self.instances.makes_room_at());
        let next = self.catalogue.next_resumption().into_iter().chain(ends).chain(room).min();
        next.map_or(REST_MAX, |at| at.saturating_duration_since(now).min(REST_MAX))
    }

    /// Shrinks caches that are larger than they need to be, once per [`REVIEW_INTERVAL`].
    fn review(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.reviewed) < REVIEW_INTERVAL {
            return;
        }
        self.reviewed = now;
        self.abandon_stale(now);
        for (chain, keep) in self.catalogue.review(now) {
            self.instances.reclaim(chain, keep);
        }
    }

    fn heed(&mut self, heard: Message) {
        match heard {
            Message::Order(Order::Follow(state, done)) => {
                self.ordered.push_back((state, done));
            }
            Message::Order(Order::Hurry) => self.hurry(),
            Message::Order(Order::Relieve(level)) => self.relieve(level),
            Message::Gateway(Event::Taken { chain, instance, client }) => {
                self.left_cache(chain, instance);
                self.instances.taken(instance, client);
                if let Some(chain) = self.catalogue.chain_mut(chain) {
                    chain.client_came(Instant::now());
                    chain.terms.note_activation();
                    chain.wanted = false;
                }
            }
            Message::Gateway(Event::Wanted { chain }) => {
                if let Some(chain) = self.catalogue.chain_mut(chain) {
                    chain.wanted = true;
                }
            }
            Message::Gateway(Event::Idle { instance, .. }) => self.instances.given_up(instance, &EndReason::Idle),
            Message::Gateway(Event::FlowEnded { instance, .. }) => {
                self.instances.given_up(instance, &EndReason::FlowEnded);
            }
            Message::Gateway(Event::Unproven { instance, .. }) => {
                self.instances.given_up(instance, &EndReason::Unproven);
            }
            Message::Gateway(Event::Withdrawn { chain, instance }) => {
                self.left_cache(chain, instance);
                self.instances.withdrawn(instance);
            }
            Message::Gateway(Event::RulesReplaced { old }) => {
                // The old rules are freed here, not on the gateway's thread.
                drop(old);
                self.followed();
            }
            Message::Gateway(Event::Unbound { instance }) => {
                if let Some(ended) = self.instances.unbound(instance) {
                    self.ended_unused(ended);
                }
            }
            Message::Mma(MmaEvent::Detached(endpoint)) => self.instances.detached(endpoint),
            Message::Worker(WorkerEvent::Released(fwp)) => self.instances.released(fwp),
            Message::Worker(WorkerEvent::Charged(_)) => {}
            Message::Worker(WorkerEvent::Ended { id, reason }) => {
                if matches!(reason, EndReason::Overrun(_)) {
                    self.overran(id);
                }
                self.instances.fwp_ended(id, &reason);
                if reason == EndReason::WorkerPanicked {
                    self.worker_panicked(id);
                }
            }
            Message::Order(Order::Stop) | Message::Nothing => {}
        }
    }

    fn left_cache(&mut self, chain: ChainIndex, instance: InstanceId) {
        if let (Some(chain), Some(edition)) = (self.catalogue.chain_mut(chain), self.instances.edition(instance)) {
            chain.left_cache(edition);
        }
    }

    /// Gives memory back, as the level asks for it. Instances that serve clients are never ended. Templates are unloaded once their chain
    /// has no instance; this is tried again because the level is repeated while it lasts.
    fn relieve(&mut self, level: Level) {
        if level != self.level {
            tracing::warn!("memory: {level}");
            self.status_table.entries().memory_level = level;
        }
        self.level = level;
        self.catalogue.set_ready_max(level);
        self.abandon_stale(Instant::now());
        if level == Level::Calm {
            return;
        }
        let chains: Vec<_> = self.catalogue.chains().map(|(index, chain)| (index, Arc::clone(&chain.spec))).collect();
        for (index, spec) in chains {
            self.instances.reclaim(index, level.ready_max(&spec));
            let is_wanted = self.catalogue.chain(index).is_some_and(|chain| chain.wanted);
            if level == Level::Templates && !is_wanted && !self.instances.has_any(index) {
                self.catalogue.unload(index);
                self.status_table.entries().set_template(&spec, TemplateLife::Object);
            }
        }
        self.instances.release_spare(&mut self.steps);
    }

    /// Loads a chain's templates again if they were unloaded.
    fn reload(&mut self, index: ChainIndex) -> Result<(), PrepareError> {
        let failed = |Unavailable { sentence, over_limit }| match over_limit {
            Some(limit) => PrepareError::OverLimit(limit, sentence),
            None => PrepareError::Failed(sentence),
        };
        if self.catalogue.reload(index).map_err(failed)?
            && let Some(chain) = self.catalogue.chain_mut(index)
        {
            self.status_table.entries().set_template(&chain.spec, TemplateLife::Template);
        }
        Ok(())
    }

    /// Prepares an instance of the chain that lacks the most, unless no chain lacks one or a role is behind with its commands. A role that
    /// was off its core for a while must not read commands about hundreds of instances before it serves its clients.
    fn prepare_one(&mut self) -> Attempt {
        let now = Instant::now();
        let next = self.next(now);
        self.make_room(now);
        let Some(index) = next else { return Attempt::NoChainLacks };
        // Beside a worker the launcher continues in steps instead: waking up from a sleep would preempt the worker within a packet.
        if self.steps.are_apart() && self.instances.are_ahead() {
            return Attempt::TooFarAhead;
        }
        self.prepare(index, now);
        let taken = now.elapsed();
        if let Some(tenant) = self.catalogue.charge(index, taken) {
            self.status_table.entries().fwp_shares.prepared(tenant, taken);
        }
        Attempt::One
    }

    /// Returns the chain of which an instance is prepared next. What is under way for its tenant comes first; and what is under way for any
    /// tenant, if no chain lacks an instance that could be prepared. What is not needed any more is given up.
    fn next(&mut self, now: Instant) -> Option<ChainIndex> {
        loop {
            let Self { catalogue, instances, .. } = self;
            let next = catalogue.next_lacking(now, |tenant, stages| instances.can_go_on(tenant, stages));
            let tenant = match next {
                Some(index) => catalogue.chain(index)?.owner().tenant,
                None => instances.first_under_way()?,
            };
            let Some((index, edition)) = instances.under_way(tenant) else { return next };
            if catalogue.still_lacks(index, edition, now) {
                return Some(index);
            }
            // Once more, because there may be no room for a chain that was next for the sake of this.
            instances.abandon(tenant);
        }
    }

    /// Gives up what is under way and not needed any more.
    fn abandon_stale(&mut self, now: Instant) {
        let catalogue = &self.catalogue;
        self.instances.abandon_unless(|index, edition| catalogue.still_lacks(index, edition, now));
    }

    /// Makes room for chains that have none for an instance, if it is time to.
    fn make_room(&mut self, now: Instant) {
        if now < self.instances.makes_room_at() {
            return;
        }
        // What is under way has its room already.
        let without_room = self.catalogue.without_room(|tenant, stages| self.instances.can_go_on(tenant, stages));
        self.lacks_room = !without_room.is_empty();
        if without_room.is_empty() {
            return;
        }
        let mut status_table = self.status_table.entries();
        for NoRoom { first, waited_for, .. } in &without_room {
            let chains = std::iter::once(first).chain(waited_for).filter_map(|index| self.catalogue.chain(*index));
            let keys = chains.map(|chain| (chain.spec.tenant.clone(), chain.spec.name.clone()));
            status_table.fwp_shares.refused(keys);
        }
        drop(status_table);
        self.instances.make_room(&without_room, now);
    }

    /// Prepares an instance of this chain, or notes why that was not possible.
    fn prepare(&mut self, index: ChainIndex, now: Instant) {
        let reloaded = self.reload(index);
        let Some(chain) = self.catalogue.chain_mut(index) else { return };
        match reloaded.and_then(|()| self.instances.prepare(index, chain, &mut self.steps)) {
            Ok(Prepared::UnderWay) => {}
            Ok(Prepared::Ready(taken)) => {
                chain.ready += 1;
                chain.wanted = false;
                chain.prepared(taken, Instant::now());
                self.status_table.preparations().record(taken);
            }
            Err(PrepareError::OverLimit(limit, problem)) => {
                // Memory comes back when an instance ends, so this is not a failure to back off from.
                chain.rest_until(now + FULL_REST);
                // What others of its tenant give up helps a chain that clients wait for.
                if limit.scope == Scope::Tenant
                    && limit.wanted_kib <= limit.limit_kib
                    && chain.wanted
                    && chain.ready == 0
                {
                    self.instances.end_unproven(chain.owner().tenant, UNPROVEN_AT_ONCE);
                }
                let (tenant, name) = (&chain.spec.tenant, &chain.spec.name);
                let mut status_table = self.status_table.entries();
                status_table.fwp_shares.found_room(&(tenant.clone(), name.clone()));
                let is_news = status_table.over_limit(tenant, name, &problem);
                drop(status_table);
                if is_news && let Some(left_out) = self.instances.log().admit(tenant, &problem) {
                    tracing::warn!(%tenant, chain = %name, left_out, "no instance could be prepared: {problem}");
                }
            }
            Err(PrepareError::Failed(problem)) => {
                chain.failed(Instant::now());
                let (tenant, name) = (&chain.spec.tenant, &chain.spec.name);
                let mut status_table = self.status_table.entries();
                status_table.fwp_shares.found_room(&(tenant.clone(), name.clone()));
                let not_logged = status_table.failed(tenant, name, problem.clone());
                drop(status_table);
                if let Some(not_logged) = not_logged
                    && let Some(left_out) = self.instances.log().admit(tenant, &problem)
                {
                    tracing::warn!(%tenant, chain = %name, not_logged, left_out, "no instance could be prepared: {problem}");
                }
            }
        }
    }

    /// Handles an FWP that exceeded its budget. If its module is banned for that, chains with a stage of it serve no new clients for a
    /// while.
    fn overran(&mut self, id: FwpId) {
        let module_of = |(chain, stage): (ChainIndex, usize)| {
            let spec = &self.catalogue.chain(chain)?.spec;
            Some((spec.tenant.clone(), spec.stages.get(stage)?.module.clone()))
        };
        let Some(module) = self.instances.stage_of(id).and_then(module_of) else { return };
        let now = Instant::now();
        let Some(until) = self.bans.note(module.clone(), now) else { return };
        let (tenant, name) = &module;
        let seconds = until.saturating_duration_since(now).as_secs();
        tracing::warn!(%tenant, module = %name, seconds, "it exceeds its budgets again and again: its chains serve no new clients");
        let has_stage = |chain: &ChainEntry| chain.spec.stages.iter().any(|stage| stage.module == *name);
        let of_module = self.catalogue.chains().filter(|(_, chain)| chain.spec.tenant == *tenant && has_stage(chain));
        for index in of_module.map(|(index, _)| index).collect::<Vec<_>>() {
            let Some(chain) = self.catalogue.chain_mut(index) else { continue };
            chain.rest_until(until);
            self.instances.reclaim(index, 0);
        }
        self.status_table.entries().banned(module, until);
    }

    /// Handles an instance that ended before a client got it: the chain backs off. An instance that ends while it serves a client may have
    /// been ended by that client's packets; it is counted, but does not delay other clients. Neither does what others did.
    fn ended_unused(&mut self, EndedUnused { chain, edition, by_others }: EndedUnused) {
        if let Some(entry) = self.catalogue.chain_mut(chain).filter(|entry| entry.edition == edition) {
            entry.left_cache(edition);
            if !by_others {
                entry.failed(Instant::now());
            }
        }
    }
}
