//! Chain instances, from their preparation to their end, and the order in which gateway, MMA and worker must release one.

mod preparing;
mod replacing;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_gateway::flows::ClientLabel;
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_gateway::messages::Command;
use pinion_gateway::rules::RuleSet;
use pinion_mma::accounts::copying::CopyShare;
use pinion_mma::accounts::shares::Shares;
use pinion_mma::id::{FwpId, TenantIndex, WorkerIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::notify::ReadyView;
use pinion_mma::wiring::Endpoint;
use rustc_hash::FxHashMap;

use self::preparing::UnderWay;
pub(super) use self::preparing::{PrepareError, Prepared};
use self::replacing::{LINGER, Replacement};
use super::CommandSenders;
use super::active_chains::Edition;
use super::index_allocator::IndexAllocator;
use super::preparation_queue::NoRoom;
use super::room::{self, Cached, Held};
use super::steps::Steps;
use crate::cores::command_sender::CommandSender;
use crate::cores::plan::CoreId;
use crate::fwp::Fwp;
use crate::fwp::end_reason::EndReason;
use crate::fwp::instance_states::{InstanceEnd, Life, Step};
use crate::instruments::log::LogHub;
use crate::memory::spare_pages::SparePages;
use crate::reports::status_table::StatusTable;
use crate::scheduler::TenantShare;
use crate::templates::trials::Trials;
use crate::worker::WorkerCommand;

/// Most unread commands of a role when another instance is prepared. A role reads its commands before it serves clients, so that clients
/// wait for each.
const UNREAD_MAX: usize = 4;

/// How long after room was made more is made: longer than an instance takes to be given back. And how long after there was nothing to take.
const TAKEN_REST: Duration = Duration::from_millis(5);
const NOTHING_TAKEN_REST: Duration = Duration::from_millis(50);

struct Instance {
    chain: ChainIndex,
    tenant: TenantIndex,
    edition: Edition,
    replacement: Replacement,
    /// No client has had it, as far as the launcher knows: the gateway's events may arrive later than a worker's.
    in_cache: bool,
    /// The gateway was asked to give it back if no client has it.
    reclaimed: bool,
    worker: WorkerIndex,
    fwps: Vec<FwpId>,
    life: Life,
    /// It ended, and what others did ended it.
    ended_by_others: bool,
}

/// An instance that ended before a client had it.
pub struct EndedUnused {
    /// Its chain.
    pub chain: ChainIndex,
    /// Its edition.
    pub edition: Edition,
    /// Whether what others did ended it, so that the next instance is none the worse.
    pub by_others: bool,
}

/// The parts of an ending FWP that MMA and worker have given back.
#[derive(Default)]
struct Remains {
    fwp: Option<Box<Fwp>>,
    endpoint: Option<Box<Endpoint>>,
}

/// Copying that took less than this is not charged when an FWP has ended: its preparation cost its tenant more.
const COPYING_CHARGED_NS: u64 = 5_000;

fn fate(reason: &EndReason) -> InstanceEnd {
    if *reason == EndReason::Reclaimed { InstanceEnd::Reclaimed } else { InstanceEnd::Terminated }
}

/// All chain instances of the node; see the module.
pub struct Instances {
    places: IndexAllocator,
    /// Tenants' shares of the FWP indices.
    shares: Shares,
    /// When room may be made again.
    makes_room_at: Instant,
    ended_unproven: bool,
    lines: CommandSenders,
    status_table: Arc<StatusTable>,
    log: LogHub,
    instances: FxHashMap<InstanceId, Instance>,
    by_fwp: FxHashMap<FwpId, InstanceId>,
    remains: FxHashMap<FwpId, Remains>,
    /// Instances that are being prepared, by tenant.
    under_way: BTreeMap<TenantIndex, UnderWay>,
    spare: SparePages,
    trials: Arc<Trials>,
    /// Instances to which no more frames are sent, and when they are to end, the next first.
    lingering: VecDeque<(Instant, InstanceId)>,
    next_id: u64,
}

impl Instances {
    /// Creates an empty set of instances.
    #[must_use]
    pub fn new(
        places: IndexAllocator,
        spare: SparePages,
        lines: CommandSenders,
        status_table: Arc<StatusTable>,
        log: LogHub,
        trials: Arc<Trials>,
    ) -> Self {
        Self {
            shares: Shares::new(places.count() as u32),
            makes_room_at: Instant::now(),
            ended_unproven: false,
            places,
            lines,
            status_table,
            log,
            instances: FxHashMap::default(),
            by_fwp: FxHashMap::default(),
            remains: FxHashMap::default(),
            under_way: BTreeMap::new(),
            spare,
            trials,
            lingering: VecDeque::new(),
            next_id: 1,
        }
    }

    /// Returns each worker's core and ready queue.
    pub(super) fn inputs(&self) -> Vec<(CoreId, ReadyView)> {
        self.lines.workers.iter().map(|worker| (worker.core, worker.inputs.clone())).collect()
    }

    /// Divides the guaranteed part of the node's FWPs among the tenants with chains, by weight.
    pub fn divide(&mut self, weights: &[(TenantIndex, u32)]) {
        self.shares.divide(weights);
    }

    /// Tells workers and MMAs of tenants that have another weight or rate now.
    pub(super) fn regrant(&self, tenants: &[TenantShare]) {
        for share in tenants {
            let TenantShare { tenant, weight, .. } = *share;
            self.lines.workers.iter().for_each(|worker| worker.commands.command(WorkerCommand::Regrant(*share)));
            self.lines.mmas.iter().for_each(|mma| mma.command(MmaCommand::SetShare(CopyShare { tenant, weight })));
        }
    }

    /// Returns how many FWPs a tenant is guaranteed.
    #[must_use]
    pub fn guaranteed(&self, tenant: TenantIndex) -> u32 {
        self.shares.of(tenant).guaranteed
    }

    /// Returns whether there is room for an instance of so many stages of this tenant.
    #[must_use]
    pub fn has_room(&self, tenant: TenantIndex, stages: u32) -> bool {
        self.shares.has_room(tenant, stages) && self.places.has_room(stages as usize)
    }

    /// Returns when `make_room` should be called again, at the earliest.
    #[must_use]
    pub fn makes_room_at(&self) -> Instant {
        self.makes_room_at
    }

    /// Returns whether a role is far behind with reading its commands.
    #[must_use]
    pub fn are_ahead(&self) -> bool {
        let CommandSenders { gateway, mmas, workers, .. } = &self.lines;
        let workers = workers.iter().map(|worker| worker.commands.unread());
        let unread = workers.chain(mmas.iter().map(CommandSender::unread)).chain([gateway.unread()]);
        unread.max() >= Some(UNREAD_MAX)
    }

    /// Returns the most FWPs at a time.
    #[must_use]
    pub fn fwps_max(&self) -> usize {
        self.places.count()
    }

    /// Frees FWP indices for chains that have no room for an instance. Cached instances are taken back (`room.rs`). If clients wait and there
    /// are none to take back, instances end whose clients have proven nothing. If a client waits, and its tenant is below its share or shares
    /// the node with no other, one of the instances may be ended that stay only because their functions ask for it.
    pub(super) fn make_room(&mut self, without_room: &[NoRoom], now: Instant) {
        if without_room.iter().any(|chains| room::may_end_kept(chains, &self.shares)) {
            self.lines.keep_alives.want_place();
        }
        let cached = self.instances.iter().filter(|(_, instance)| instance.life == Life::Cached);
        let cached = cached.map(|(id, instance)| Cached {
            id: *id,
            tenant: instance.tenant,
            chain: instance.chain,
            fwps: instance.fwps.len() as u32,
            is_reclaimed: instance.reclaimed,
        });
        let (taken, helped) = room::taken_back(without_room, cached.collect(), &self.shares);
        let lacking = without_room.iter().filter(|chains| !helped.contains(&chains.tenant));
        self.end_unproven_for(lacking);
        let has_helped = std::mem::take(&mut self.ended_unproven) || !taken.is_empty();
        self.makes_room_at = now + if has_helped { TAKEN_REST } else { NOTHING_TAKEN_REST };
        taken.into_iter().for_each(|id| self.reclaim_one(id));
    }

    /// Ends instances whose clients have proven nothing for chains that clients wait for.
    fn end_unproven_for<'a>(&self, lacking: impl Iterator<Item = &'a NoRoom>) {
        let mut lacking = lacking.filter(|chains| !chains.waited_for.is_empty()).peekable();
        if lacking.peek().is_none() {
            return;
        }
        let mut held: HashMap<TenantIndex, Held> = HashMap::new();
        for instance in self.instances.values() {
            let (of_tenant, fwps) = (held.entry(instance.tenant).or_default(), instance.fwps.len() as u32);
            match instance.life {
                Life::Serving => of_tenant.largest = of_tenant.largest.max(fwps),
                Life::Making | Life::Cached => {}
                _ => of_tenant.ending += fwps,
            }
        }
        let held = |tenant| held.get(&tenant).copied().unwrap_or_default();
        let mut ends: HashMap<TenantIndex, u32> = HashMap::new();
        for (tenant, count) in lacking.flat_map(|chains| room::unproven_ends(chains, &self.shares, held)) {
            let most = ends.entry(tenant).or_default();
            *most = count.max(*most);
        }
        ends.into_iter().for_each(|(tenant, count)| self.end_unproven(tenant, count as usize));
    }

    /// Ends so many of a tenant's instances whose clients have proven nothing, if there are as many.
    pub fn end_unproven(&self, tenant: TenantIndex, count: usize) {
        self.lines.gateway.command(Command::EndUnproven { tenant, count });
    }

    /// Sends the rules to the gateway.
    pub fn set_rules(&self, rules: Arc<RuleSet>) {
        self.lines.gateway.command(Command::SetRules(rules));
    }

    /// Advances an instance's life by a step and publishes its new state. Returns whether the step was possible.
    fn step(&mut self, id: InstanceId, step: Step) -> bool {
        let Some(instance) = self.instances.get_mut(&id) else { return false };
        match instance.life.after(step) {
            Ok(life) => {
                instance.life = life;
                self.status_table.entries().set_life(id, life);
                true
            }
            // For example an instance that was taken while it ended: messages can cross.
            Err(impossible) => {
                tracing::debug!(instance = %id, "{impossible}");
                false
            }
        }
    }

    fn mma_of(&self, id: FwpId) -> &CommandSender<MmaCommand> {
        &self.lines.mmas[id.mma(self.lines.mmas.len()).0]
    }

    /// Lets a worker charge an FWP's tenant for the copying of what it sent last: it may have ended because it sent that.
    fn charge_copying(&self, fwp: &mut Fwp) {
        let (id, copying_ns) = (fwp.id(), fwp.settle_copying_ns());
        let instance = self.by_fwp.get(&id).and_then(|instance| self.instances.get(instance));
        if let Some(Instance { worker, .. }) = instance
            && copying_ns >= COPYING_CHARGED_NS
        {
            let charge = WorkerCommand::ChargeCopying { id, terms: fwp.terms().clone(), copying_ns };
            self.lines.workers[worker.0].commands.command(charge);
        }
    }

    fn take_apart(&mut self, fwp: Fwp, endpoint: Box<Endpoint>) {
        self.spare.left(fwp.dismantle(endpoint));
    }

    /// Gives pages that no FWP uses any more back to the kernel. It must be known where all FWPs have their memory; so preparations of which
    /// it is not, as their guests run while they are instantiated, are given up.
    pub fn release_spare(&mut self, steps: &mut Steps) {
        let placeless = self.under_way.extract_if(.., |_, under_way| !under_way.has_place());
        for (tenant, under_way) in placeless.collect::<Vec<_>>() {
            self.undo(tenant, under_way);
        }
        self.spare.release(|| steps.give_way());
    }

    /// Notes that the gateway gave an instance to a client. The instance may have served it and ended meanwhile.
    pub fn taken(&mut self, id: InstanceId, client: ClientLabel) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.in_cache = false;
        if instance.life == Life::Cached {
            self.step(id, Step::Taken);
        }
        self.status_table.entries().taken(id, client);
        let is_due = self.instances.get(&id).is_some_and(|instance| instance.replacement == Replacement::Due);
        if is_due && client == ClientLabel::All {
            self.replace(id);
        }
    }

    /// Returns the edition of an instance, as long as any part of it exists.
    #[must_use]
    pub fn edition(&self, id: InstanceId) -> Option<Edition> {
        Some(self.instances.get(&id)?.edition)
    }

    /// Asks the gateway to give cached instances of a chain back, except for `keep`. The oldest go, since clients get the youngest. An
    /// instance that a client gets meanwhile stays with that client.
    pub fn reclaim(&mut self, chain: ChainIndex, keep: u32) {
        let is_cached =
            |instance: &Instance| instance.chain == chain && instance.life == Life::Cached && !instance.reclaimed;
        let cached = self.instances.iter().filter(|(_, instance)| is_cached(instance));
        let mut cached: Vec<InstanceId> = cached.map(|(id, _)| *id).collect();
        cached.sort_by_key(|id| std::cmp::Reverse(*id));
        cached.into_iter().skip(keep as usize).for_each(|id| self.reclaim_one(id));
    }

    fn reclaim_one(&mut self, id: InstanceId) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.reclaimed = true;
            self.lines.gateway.command(Command::Reclaim { instance: id });
        }
    }

    /// Returns the receiver of functions' log lines.
    #[must_use]
    pub fn log(&self) -> &LogHub {
        &self.log
    }

    /// Returns the chain and the stage of an FWP.
    #[must_use]
    pub fn stage_of(&self, fwp: FwpId) -> Option<(ChainIndex, usize)> {
        let instance = self.instances.get(self.by_fwp.get(&fwp)?)?;
        Some((instance.chain, instance.fwps.iter().position(|id| *id == fwp)?))
    }

    /// Returns whether the chain has any instance, in whatever state, or one under preparation.
    #[must_use]
    pub fn has_any(&self, chain: ChainIndex) -> bool {
        let is_under_way = self.under_way.values().any(|under_way| under_way.is_of(chain));
        is_under_way || self.instances.values().any(|instance| instance.chain == chain)
    }

    /// Ends an instance that the gateway gave back because no client had it.
    pub fn withdrawn(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.in_cache = false;
        let reclaimed = instance.reclaimed && instance.replacement == Replacement::None;
        self.given_up(id, if reclaimed { &EndReason::Reclaimed } else { &EndReason::Withdrawn });
    }

    /// Ends an instance that the gateway has already unbound of its own accord.
    pub fn given_up(&mut self, id: InstanceId, reason: &EndReason) {
        self.ended_unproven |= *reason == EndReason::Unproven;
        if self.step(id, Step::End(fate(reason))) {
            self.status_table.entries().ended(id, reason);
        }
        self.unbound(id);
    }

    /// Handles that the gateway has unbound an instance. Returns what ended if that was before a client had it.
    pub fn unbound(&mut self, id: InstanceId) -> Option<EndedUnused> {
        let instance = self.instances.get(&id)?;
        if instance.replacement == Replacement::UnderWay && instance.life == Life::Serving {
            self.lingering.push_back((Instant::now() + LINGER, id));
            return None;
        }
        if self.step(id, Step::Forgotten) {
            self.let_go(id);
        }
        let instance = self.instances.get_mut(&id)?;
        let Instance { chain, edition, ended_by_others, .. } = *instance;
        std::mem::replace(&mut instance.in_cache, false).then_some(EndedUnused {
            chain,
            edition,
            by_others: ended_by_others,
        })
    }

    /// Ends the instance of an FWP that ended by itself.
    pub fn fwp_ended(&mut self, fwp: FwpId, reason: &EndReason) {
        let Some(&id) = self.by_fwp.get(&fwp) else { return };
        let Some(instance) = self.instances.get(&id) else { return };
        if matches!(instance.life, Life::Cached | Life::Serving) {
            let mut status_table = self.status_table.entries();
            if reason.is_failure()
                && let Some(origin) = status_table.origin_of(id, fwp)
            {
                self.log.failed(origin, &reason.account());
            }
            if reason.is_failure()
                && let Some((tenant, chain)) = status_table.name_of(id)
                && let sentence = reason.to_string()
                && let Some(not_logged) = status_table.failed(&tenant, &chain, sentence.clone())
                && let Some(left_out) = self.log.admit(&tenant, &sentence)
            {
                tracing::warn!(%tenant, %chain, instance = %id, %fwp, not_logged, left_out, "{sentence}");
            }
            drop(status_table);
            self.end(id, reason);
        }
    }

    /// Ends all instances of a chain.
    pub fn end_chain(&mut self, chain: ChainIndex, reason: &EndReason) {
        let of_chain = |(id, instance): (&InstanceId, &Instance)| (instance.chain == chain).then_some(*id);
        for id in self.instances.iter().filter_map(of_chain).collect::<Vec<_>>() {
            self.end(id, reason);
        }
    }

    fn end(&mut self, id: InstanceId, reason: &EndReason) {
        if self.step(id, Step::End(fate(reason))) {
            self.lines.gateway.command(Command::Unbind { instance: id });
            self.status_table.entries().ended(id, reason);
            if let Some(instance) = self.instances.get_mut(&id) {
                instance.ended_by_others = reason.is_of_others_doing();
            }
        }
    }

    /// Tells MMA and worker to release an instance that the gateway has unbound.
    fn let_go(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get(&id) else { return };
        for &fwp in &instance.fwps {
            self.remains.insert(fwp, Remains::default());
            self.lines.mmas[fwp.mma(self.lines.mmas.len()).0].command(MmaCommand::Detach(fwp));
            self.lines.workers[instance.worker.0].commands.command(WorkerCommand::Release(fwp));
        }
    }

    /// Takes back an FWP's endpoint, which the MMA has released.
    pub fn detached(&mut self, endpoint: Box<Endpoint>) {
        let id = endpoint.id();
        if let Some(remains) = self.remains.get_mut(&id) {
            remains.endpoint = Some(endpoint);
        }
        self.dismantle_if_whole(id);
    }

    /// Takes back an FWP that the worker has released.
    pub fn released(&mut self, fwp: Box<Fwp>) {
        let id = fwp.id();
        if let Some(remains) = self.remains.get_mut(&id) {
            remains.fwp = Some(fwp);
        }
        self.dismantle_if_whole(id);
    }

    fn dismantle_if_whole(&mut self, id: FwpId) {
        let Some(Remains { fwp: Some(_), endpoint: Some(_) }) = self.remains.get(&id) else { return };
        let Some(Remains { fwp: Some(mut fwp), endpoint: Some(endpoint) }) = self.remains.remove(&id) else { return };
        self.charge_copying(&mut fwp);
        self.take_apart(*fwp, endpoint);
        let Some(instance_id) = self.by_fwp.remove(&id) else { return };
        let Some(instance) = self.instances.get_mut(&instance_id) else { return };
        instance.fwps.retain(|&fwp| fwp != id);
        self.places.give_back(instance.worker, id);
        self.shares.give_back(instance.tenant, 1);
        if instance.fwps.is_empty() {
            self.step(instance_id, Step::TakenApart);
            self.instances.remove(&instance_id);
            // MMA and worker have released all of it, so its counters are final.
            self.status_table.entries().settle(instance_id);
        }
    }
}
