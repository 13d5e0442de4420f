//! Chain instances, from their making to their end, and the order in which everybody must let go of one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_gateway::flows::ClientLabel;
use pinion_gateway::flows::entrance::{Entrance, WayBack};
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_gateway::messages::Command;
use pinion_gateway::rules::RuleSet;
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::notify::ReadyView;
use pinion_mma::wiring::{Edge, Endpoint, Wiring};
use rustc_hash::FxHashMap;

use super::Lines;
use super::catalogue::{ChainEntry, Edition, Hop};
use super::places::Places;
use super::steps::Steps;
use crate::activation::InstanceActivation;
use crate::board::{Board, FwpEntry, InstanceEntry};
use crate::end::EndReason;
use crate::fwp::{Berth, Fwp};
use crate::lifecycle::{Fate, Life, Step};
use crate::lines::Line;
use crate::log::{LogHub, Origin};
use crate::plan::CoreId;
use crate::spare::SparePages;
use crate::worker::WorkerCommand;

/// How long an instance that is replaced keeps its place when no more frames go there: longer than those take that it has.
const LINGER: Duration = Duration::from_millis(20);

/// Commands that a role may not have read yet when another instance is prepared. Reading one is a tenth of a microsecond to some, and what a
/// role reads before it serves clients, they wait for.
const UNREAD_MAX: usize = 4;

struct Instance {
    chain: ChainIndex,
    edition: Edition,
    replacement: Replacement,
    /// No client has had it, as far as is known: what the gateway says comes later than what a worker says.
    in_cache: bool,
    /// The gateway has been asked for it back, if no client has it.
    reclaimed: bool,
    worker: WorkerIndex,
    fwps: Vec<FwpId>,
    life: Life,
}

/// Whether an instance is to make room for one of a later edition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacement {
    /// It is of the latest, as far as is known.
    None,
    /// There is a later one. A client of its own may keep it for a while.
    Due,
    /// The gateway has been told to forget it. Until it does, and for a moment longer, it serves.
    UnderWay,
}

/// An FWP on its way out: what has come back of it.
#[derive(Default)]
struct Remains {
    fwp: Option<Box<Fwp>>,
    endpoint: Option<Box<Endpoint>>,
}

fn fate(reason: &EndReason) -> Fate {
    if *reason == EndReason::Reclaimed { Fate::Reclaimed } else { Fate::Terminated }
}

/// Why an instance was not prepared.
pub enum Unprepared {
    /// The node has as many FWPs as it may have (`limits.fwps_max`).
    NoPlace,
    /// A stage of it would have more memory than it, its chain or its tenant may have: a sentence for the chain's tenant.
    OverLimit(String),
    /// A stage of it failed: a sentence for the chain's tenant.
    Failed(String),
}

/// See the module.
pub struct Instances {
    places: Places,
    lines: Lines,
    board: Arc<Board>,
    log: LogHub,
    instances: FxHashMap<InstanceId, Instance>,
    by_fwp: FxHashMap<FwpId, InstanceId>,
    remains: FxHashMap<FwpId, Remains>,
    spare: SparePages,
    /// Instances to which no more frames go, and when they are to end, the next first.
    lingering: VecDeque<(Instant, InstanceId)>,
    next_id: u64,
}

impl Instances {
    /// None yet.
    #[must_use]
    pub fn new(places: Places, spare: SparePages, lines: Lines, board: Arc<Board>, log: LogHub) -> Self {
        Self {
            places,
            lines,
            board,
            log,
            instances: FxHashMap::default(),
            by_fwp: FxHashMap::default(),
            remains: FxHashMap::default(),
            spare,
            lingering: VecDeque::new(),
            next_id: 1,
        }
    }

    /// What calls each worker, with its core.
    pub(super) fn inputs(&self) -> Vec<(CoreId, ReadyView)> {
        self.lines.workers.iter().map(|worker| (worker.core, worker.inputs.clone())).collect()
    }

    /// Places that have become free since the node started.
    #[must_use]
    pub fn places_freed(&self) -> u64 {
        self.places.freed()
    }

    /// Whether a role is far behind with reading what it was told.
    #[must_use]
    pub fn are_ahead(&self) -> bool {
        let Lines { gateway, mmas, workers } = &self.lines;
        let workers = workers.iter().map(|worker| worker.commands.unread());
        let unread = workers.chain(mmas.iter().map(Line::unread)).chain([gateway.unread()]);
        unread.max() >= Some(UNREAD_MAX)
    }

    /// FWPs that there is room for.
    #[must_use]
    pub fn fwps_max(&self) -> usize {
        self.places.count()
    }

    /// Tells the gateway the rules.
    pub fn set_rules(&self, rules: Arc<RuleSet>) {
        self.lines.gateway.command(Command::SetRules(rules));
    }

    /// Makes an instance of a chain and puts it into the gateway's cache.
    ///
    /// # Errors
    /// Why there is none; nothing is left behind.
    pub fn prepare(&mut self, index: ChainIndex, chain: &ChainEntry, steps: &mut Steps) -> Result<(), Unprepared> {
        let workers = &self.lines.workers;
        self.places.look(Instant::now(), |worker| workers[worker.0].turns.busy_ns.value());
        let (worker, ids) = self.places.take(chain.spec.stages.len()).ok_or(Unprepared::NoPlace)?;
        let made = self.make_fwps(chain, worker, &ids, steps);
        let fwps = match made {
            Ok(fwps) => fwps,
            Err(problem) => {
                ids.into_iter().for_each(|id| self.places.give_back(worker, id));
                return Err(problem);
            }
        };
        let id = InstanceId(self.next_id);
        self.next_id += 1;
        self.list(id, chain, worker, &fwps);
        // In this order: whoever is told later finds the FWP with those told before.
        for (fwp, endpoint) in fwps {
            self.by_fwp.insert(fwp.id(), id);
            self.lines.workers[worker.0].commands.command(WorkerCommand::Adopt(Box::new(fwp)));
            self.mma_of(ids[0]).command(MmaCommand::Attach(endpoint));
        }
        let way_back = chain.way_back().map(|way_back| WayBack { last: ids[ids.len() - 1], from: way_back.sides.back });
        let entrance = Entrance { first: ids[0], way_back };
        self.lines.gateway.command(Command::Ready { chain: index, instance: id, entrance });
        let instance = Instance {
            chain: index,
            edition: chain.edition,
            replacement: Replacement::None,
            in_cache: true,
            reclaimed: false,
            worker,
            fwps: ids,
            life: Life::Making,
        };
        self.instances.insert(id, instance);
        self.step(id, Step::Ready);
        Ok(())
    }

    /// Has an instance take a step, and shows it; whether it could.
    fn step(&mut self, id: InstanceId, step: Step) -> bool {
        let Some(instance) = self.instances.get_mut(&id) else { return false };
        match instance.life.after(step) {
            Ok(life) => {
                instance.life = life;
                self.board.entries().set_life(id, life);
                true
            }
            // Such as one that was taken while it ended: messages cross each other.
            Err(impossible) => {
                tracing::debug!(instance = %id, "{impossible}");
                false
            }
        }
    }

    fn mma_of(&self, id: FwpId) -> &Line<MmaCommand> {
        &self.lines.mmas[id.mma(self.lines.mmas.len()).0]
    }

    fn take_apart(&mut self, fwp: Fwp, endpoint: Box<Endpoint>) {
        let place = fwp.place();
        fwp.dismantle(endpoint);
        self.spare.left(place);
    }

    /// Gives pages back to the kernel that belong to no FWP any more.
    pub fn release_spare(&mut self, steps: &mut Steps) {
        self.spare.release(|| steps.give_way());
    }

    fn make_fwps(
        &mut self,
        chain: &ChainEntry,
        worker: WorkerIndex,
        ids: &[FwpId],
        steps: &mut Steps,
    ) -> Result<Vec<(Fwp, Box<Endpoint>)>, Unprepared> {
        let line = &self.lines.workers[worker.0];
        let mut made: Vec<(Fwp, Box<Endpoint>)> = Vec::with_capacity(ids.len());
        let activation = InstanceActivation::new(&line.activations, ids[0], ids.len());
        for (stage, (template, &id)) in chain.templates(worker).iter().zip(ids).enumerate() {
            let edge = |hop: &Hop| match *hop {
                Hop::Stage(stage) => Edge::Fwp(ids[stage]),
                Hop::Exit(edge) => edge,
            };
            let edges = |hops: &[Hop]| hops.iter().map(edge).collect();
            let outputs = edges(chain.outputs(stage));
            let wiring = match chain.way_back() {
                Some(way_back) => Wiring::both_ways(outputs, edges(&way_back.outputs[stage]), way_back.sides),
                None => Wiring::new(outputs, chain.backpressure(stage)),
            };
            let activation = activation.of_stage(stage);
            let memory = chain.memory.clone();
            let berth = Berth {
                id,
                worker,
                wiring,
                clock: &line.clock,
                memory,
                activation,
                terms: chain.terms.on_worker(worker.0),
                state: chain.state(stage).clone(),
                spare: &self.spare,
                between: &mut || steps.give_way(),
            };
            let origin = || Origin {
                tenant: chain.spec.tenant.clone(),
                chain: chain.spec.name.clone(),
                stage: stage as u32,
                module: chain.module(stage).clone(),
                fwp: id.to_string(),
            };
            match Fwp::prepare(template, berth, self.log.log(origin())) {
                Ok((mut fwp, endpoint)) => {
                    self.spare.taken(fwp.place());
                    fwp.set_next_stage(ids.get(stage + 1).copied());
                    made.push((fwp, endpoint));
                    steps.give_way();
                }
                Err(reason) => {
                    made.into_iter().for_each(|(fwp, endpoint)| self.take_apart(fwp, endpoint));
                    let problem = format!("stage {stage} ({}): {reason}", chain.module(stage));
                    // Found again and again while memory is in use: the status says so once.
                    if matches!(reason, EndReason::OverLimit(_)) {
                        return Err(Unprepared::OverLimit(problem));
                    }
                    self.log.failed(origin(), &format!("it could not be prepared: {}", reason.account()));
                    return Err(Unprepared::Failed(problem));
                }
            }
        }
        Ok(made)
    }

    fn list(&self, id: InstanceId, chain: &ChainEntry, worker: WorkerIndex, fwps: &[(Fwp, Box<Endpoint>)]) {
        let entry = |(stage, (fwp, _)): (usize, &(Fwp, Box<Endpoint>))| FwpEntry::new(fwp, chain.module(stage).clone());
        self.board.entries().add(InstanceEntry {
            id,
            tenant: chain.spec.tenant.clone(),
            chain: chain.spec.name.clone(),
            core: self.lines.workers[worker.0].core,
            client: None,
            fwps: fwps.iter().enumerate().map(entry).collect(),
            holds: chain.spec.hold_frames > 0,
            made: Instant::now(),
            life: Life::Making,
            ended_because: None,
        });
    }

    /// The gateway has given an instance to a client, which may have been served, and the instance have ended, meanwhile.
    pub fn taken(&mut self, id: InstanceId, client: ClientLabel) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.in_cache = false;
        if instance.life == Life::Cached {
            self.step(id, Step::Taken);
        }
        self.board.entries().taken(id, client);
        let is_due = self.instances.get(&id).is_some_and(|instance| instance.replacement == Replacement::Due);
        if is_due && client == ClientLabel::Everybody {
            self.replace(id);
        }
    }

    /// Which version of its chain an instance is of, while anything is left of it.
    #[must_use]
    pub fn edition(&self, id: InstanceId) -> Option<Edition> {
        Some(self.instances.get(&id)?.edition)
    }

    /// There is an instance of this edition of the chain: those of older ones come out of the cache, and one that serves everybody is
    /// replaced. Others keep their clients.
    pub fn supersede(&mut self, chain: ChainIndex, edition: Edition) {
        for id in self.older(chain, edition) {
            let Some(instance) = self.instances.get_mut(&id) else { continue };
            if instance.replacement != Replacement::None {
                continue;
            }
            instance.replacement = Replacement::Due;
            if instance.life == Life::Cached {
                self.lines.gateway.command(Command::Reclaim { instance: id });
            } else if self.board.entries().client(id) == Some(ClientLabel::Everybody) {
                self.replace(id);
            }
        }
    }

    /// Has those of older editions that still serve replaced.
    pub fn replace_older(&mut self, chain: ChainIndex, edition: Edition) {
        self.older(chain, edition).into_iter().for_each(|id| self.replace(id));
    }

    fn older(&self, chain: ChainIndex, edition: Edition) -> Vec<InstanceId> {
        let is_older = |instance: &Instance| instance.chain == chain && instance.edition < edition;
        self.instances.iter().filter(|(_, instance)| is_older(instance)).map(|(id, _)| *id).collect()
    }

    /// Has clients given another instance in place of one that serves: no frame of theirs is lost.
    fn replace(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        if instance.life == Life::Serving && instance.replacement != Replacement::UnderWay {
            instance.replacement = Replacement::UnderWay;
            self.lines.gateway.command(Command::Unbind { instance: id });
        }
    }

    /// When the next one is to end that lingers.
    #[must_use]
    pub fn lingers_until(&self) -> Option<Instant> {
        Some(self.lingering.front()?.0)
    }

    /// Ends those that have lingered for long enough.
    pub fn end_lingering(&mut self, now: Instant) {
        while let Some((_, id)) = self.lingering.pop_front_if(|(until, _)| *until <= now) {
            self.given_up(id, &EndReason::Withdrawn);
        }
    }

    /// Asks the gateway for cached instances of a chain back, but for as many as may stay: the oldest, as clients are given
    /// the youngest. One that a client gets meanwhile stays that client's.
    pub fn reclaim(&mut self, chain: ChainIndex, keep: u32) {
        let is_cached = |(_, instance): &(&InstanceId, &mut Instance)| {
            instance.chain == chain && instance.life == Life::Cached && !instance.reclaimed
        };
        let mut cached: Vec<(&InstanceId, &mut Instance)> = self.instances.iter_mut().filter(is_cached).collect();
        cached.sort_by_key(|(id, _)| std::cmp::Reverse(**id));
        for (id, instance) in cached.into_iter().skip(keep as usize) {
            instance.reclaimed = true;
            self.lines.gateway.command(Command::Reclaim { instance: *id });
        }
    }

    /// Which stage of which chain an FWP is.
    #[must_use]
    pub fn stage_of(&self, fwp: FwpId) -> Option<(ChainIndex, usize)> {
        let instance = self.instances.get(self.by_fwp.get(&fwp)?)?;
        Some((instance.chain, instance.fwps.iter().position(|id| *id == fwp)?))
    }

    /// Whether there is an instance of the chain, whatever it does.
    #[must_use]
    pub fn has_any(&self, chain: ChainIndex) -> bool {
        self.instances.values().any(|instance| instance.chain == chain)
    }

    /// The gateway has given an instance back that no client had.
    pub fn withdrawn(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.in_cache = false;
        let reclaimed = instance.reclaimed && instance.replacement == Replacement::None;
        self.given_up(id, if reclaimed { &EndReason::Reclaimed } else { &EndReason::Withdrawn });
    }

    /// The gateway has given up an instance of its own accord, and forgotten it.
    pub fn given_up(&mut self, id: InstanceId, reason: &EndReason) {
        if self.step(id, Step::End(fate(reason))) {
            self.board.entries().ended(id, reason.account());
        }
        self.unbound(id);
    }

    /// The gateway has forgotten an instance, as it was told to. Its chain and edition, if it ended before any client had it.
    pub fn unbound(&mut self, id: InstanceId) -> Option<(ChainIndex, Edition)> {
        let instance = self.instances.get(&id)?;
        if instance.replacement == Replacement::UnderWay && instance.life == Life::Serving {
            self.lingering.push_back((Instant::now() + LINGER, id));
            return None;
        }
        if self.step(id, Step::Forgotten) {
            self.let_go(id);
        }
        let instance = self.instances.get_mut(&id)?;
        std::mem::replace(&mut instance.in_cache, false).then_some((instance.chain, instance.edition))
    }

    /// An FWP has ended by itself, and with it its instance.
    pub fn fwp_ended(&mut self, fwp: FwpId, reason: &EndReason) {
        let Some(&id) = self.by_fwp.get(&fwp) else { return };
        let Some(instance) = self.instances.get(&id) else { return };
        if matches!(instance.life, Life::Cached | Life::Serving) {
            let mut board = self.board.entries();
            if reason.is_failure()
                && let Some(origin) = board.origin_of(id, fwp)
            {
                self.log.failed(origin, &reason.account());
            }
            if reason.is_failure()
                && let Some((tenant, chain)) = board.name_of(id)
                && let Some(not_logged) = board.failed(&tenant, &chain, reason.to_string())
            {
                tracing::warn!(%tenant, %chain, instance = %id, %fwp, not_logged, "{reason}");
            }
            drop(board);
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
            self.board.entries().ended(id, reason.account());
        }
    }

    /// The gateway names it no more: MMA and worker are to let go.
    fn let_go(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get(&id) else { return };
        for &fwp in &instance.fwps {
            self.remains.insert(fwp, Remains::default());
            self.lines.mmas[fwp.mma(self.lines.mmas.len()).0].command(MmaCommand::Detach(fwp));
            self.lines.workers[instance.worker.0].commands.command(WorkerCommand::Release(fwp));
        }
    }

    /// The MMA has let go of an FWP.
    pub fn detached(&mut self, endpoint: Box<Endpoint>) {
        let id = endpoint.id();
        if let Some(remains) = self.remains.get_mut(&id) {
            remains.endpoint = Some(endpoint);
        }
        self.dismantle_if_whole(id);
    }

    /// The worker has let go of an FWP.
    pub fn released(&mut self, fwp: Box<Fwp>) {
        let id = fwp.id();
        if let Some(remains) = self.remains.get_mut(&id) {
            remains.fwp = Some(fwp);
        }
        self.dismantle_if_whole(id);
    }

    fn dismantle_if_whole(&mut self, id: FwpId) {
        let Some(Remains { fwp: Some(_), endpoint: Some(_) }) = self.remains.get(&id) else { return };
        let Some(Remains { fwp: Some(fwp), endpoint: Some(endpoint) }) = self.remains.remove(&id) else { return };
        self.take_apart(*fwp, endpoint);
        let Some(instance_id) = self.by_fwp.remove(&id) else { return };
        let Some(instance) = self.instances.get_mut(&instance_id) else { return };
        instance.fwps.retain(|&fwp| fwp != id);
        self.places.give_back(instance.worker, id);
        if instance.fwps.is_empty() {
            self.step(instance_id, Step::TakenApart);
            self.instances.remove(&instance_id);
            // Whoever counted has let go of all of it: what is counted now stays so.
            self.board.entries().settle(instance_id);
        }
    }
}
