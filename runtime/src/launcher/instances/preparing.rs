//! How an instance is made: an FWP for each stage, wired to the next ones, and known to worker, MMA and gateway, in this order.
//!
//! A guest that uses a turn before its first wait is continued in its tenant's next turn (see `preparation_queue.rs`). Meanwhile other
//! tenants get instances, and its own tenant gets no other one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::Chain;
use pinion_gateway::flows::entry_fwp::{EntryFwp, WayBack};
use pinion_gateway::flows::sources::SourceLimit;
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_gateway::messages::Command;
use pinion_mma::id::{FwpId, TenantIndex, WorkerIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::Endpoint;

use super::replacing::Replacement;
use super::{Instance, Instances};
use crate::fwp::end_reason::EndReason;
use crate::fwp::granted::Granted;
use crate::fwp::instance_states::{Life, Step};
use crate::fwp::{Fwp, NewFwpSite, Preparation, Progress};
use crate::instruments::activation::InstanceActivation;
use crate::instruments::log::Origin;
use crate::launcher::active_chains::{ChainEntry, Edition};
use crate::launcher::granted_objects::StageGrants;
use crate::launcher::steps::Steps;
use crate::reports::status_table::{FwpEntry, InstanceEntry};
use crate::templates::artifacts::TemplateKey;
use crate::tenants::accounts::OverLimit;
use crate::worker::WorkerCommand;

/// The part of what a tenant can have that the clients of one source prefix may have, as one part in so many.
const SOURCE_PART: u32 = 2;

/// Why an instance was not prepared.
pub enum PrepareError {
    /// A stage would exceed its own, its chain's or its tenant's memory limit: which, and a sentence for the chain's tenant.
    OverLimit(OverLimit, String),
    /// A stage failed: a sentence for the chain's tenant.
    Failed(String),
}

/// An instance that is being prepared, stage by stage.
pub(super) struct UnderWay {
    chain: ChainIndex,
    edition: Edition,
    worker: WorkerIndex,
    ids: Vec<FwpId>,
    activation: InstanceActivation,
    /// The stages that wait for the first time.
    made: Vec<(Box<Fwp>, Box<Endpoint>)>,
    /// The stage after those, and its template.
    current: Option<(Preparation, TemplateKey)>,
    /// How long all this has taken the launcher.
    taken: Duration,
}

impl UnderWay {
    pub(super) fn is_of(&self, chain: ChainIndex) -> bool {
        self.chain == chain
    }

    /// Returns whether it is known where all of its FWPs have their memory.
    pub(super) fn has_place(&self) -> bool {
        self.current.as_ref().is_none_or(|(current, _)| current.has_place())
    }
}

/// How far the preparation of an instance has come.
pub enum Prepared {
    /// It is in the gateway's cache, after so much of the launcher's time.
    Ready(Duration),
    /// A guest has used a turn without coming to its first wait. It continues in its tenant's next turn.
    UnderWay,
}

impl Instances {
    /// Returns whether a preparation of this tenant can go on: one that is under way, or one of so many stages for which there is room.
    #[must_use]
    pub fn can_go_on(&self, tenant: TenantIndex, stages: u32) -> bool {
        self.under_way.contains_key(&tenant) || self.has_room(tenant, stages)
    }

    /// Returns the chain and the edition of the instance of this tenant that is being prepared.
    #[must_use]
    pub fn under_way(&self, tenant: TenantIndex) -> Option<(ChainIndex, Edition)> {
        self.under_way.get(&tenant).map(|under_way| (under_way.chain, under_way.edition))
    }

    /// Returns the first tenant of which an instance is being prepared.
    #[must_use]
    pub fn first_under_way(&self) -> Option<TenantIndex> {
        self.under_way.keys().next().copied()
    }

    /// Gives up instances that are being prepared for chains of which this does not hold.
    pub fn abandon_unless(&mut self, is_needed: impl Fn(ChainIndex, Edition) -> bool) {
        let stale = self.under_way.extract_if(.., |_, under_way| !is_needed(under_way.chain, under_way.edition));
        for (tenant, under_way) in stale.collect::<Vec<_>>() {
            self.undo(tenant, under_way);
        }
    }

    /// Prepares an instance of a chain and puts it into the gateway's cache. A tenant has one instance under preparation at most: if there is
    /// one, it must be of this chain, and is continued. Its guests run for a quantum, and at most for one turn more.
    ///
    /// # Errors
    /// Returns why the instance could not be prepared. Nothing of it remains.
    pub fn prepare(
        &mut self,
        index: ChainIndex,
        chain: &ChainEntry,
        steps: &mut Steps,
    ) -> Result<Prepared, PrepareError> {
        let (tenant, began) = (chain.owner().tenant, Instant::now());
        let mut under_way = match self.under_way.remove(&tenant) {
            Some(under_way) => under_way,
            None => self.begin(index, chain)?,
        };
        let is_made = self.make_fwps(chain, &mut under_way, steps);
        under_way.taken += began.elapsed();
        match is_made {
            Ok(true) => {
                let taken = under_way.taken;
                self.finish(chain, under_way);
                Ok(Prepared::Ready(taken))
            }
            Ok(false) => {
                self.under_way.insert(tenant, under_way);
                Ok(Prepared::UnderWay)
            }
            Err(problem) => {
                self.undo(tenant, under_way);
                Err(problem)
            }
        }
    }

    /// Gives up the instance of this tenant that is being prepared.
    pub fn abandon(&mut self, tenant: TenantIndex) {
        if let Some(under_way) = self.under_way.remove(&tenant) {
            self.undo(tenant, under_way);
        }
    }

    fn begin(&mut self, index: ChainIndex, chain: &ChainEntry) -> Result<UnderWay, PrepareError> {
        let stages = chain.spec.stages.len();
        let workers = &self.lines.workers;
        self.places.look(Instant::now(), |worker| workers[worker.0].turns.busy_ns.value());
        let (worker, ids) =
            self.places.take(stages).ok_or_else(|| PrepareError::Failed("there is no free FWP index".to_owned()))?;
        self.shares.take(chain.owner().tenant, stages as u32);
        self.lines.keep_alives.begin(&ids);
        let activations = &self.lines.workers[worker.0].activations;
        let activation = InstanceActivation::new(activations, ids[0], stages, chain.graph.entered_by());
        Ok(UnderWay {
            chain: index,
            edition: chain.edition,
            worker,
            made: Vec::with_capacity(stages),
            ids,
            activation,
            current: None,
            taken: Duration::ZERO,
        })
    }

    pub(super) fn undo(&mut self, tenant: TenantIndex, under_way: UnderWay) {
        let UnderWay { worker, ids, made, current, .. } = under_way;
        if let Some((current, key)) = current {
            drop(current);
            self.trials.ended(&key);
        }
        made.into_iter().for_each(|(fwp, endpoint)| self.take_apart(*fwp, endpoint));
        self.shares.give_back(tenant, ids.len() as u32);
        ids.into_iter().for_each(|id| self.places.give_back(worker, id));
    }

    /// Hands an instance whose stages all wait for the first time to worker, MMA and gateway.
    fn finish(&mut self, chain: &ChainEntry, under_way: UnderWay) {
        let UnderWay { chain: index, worker, ids, made, .. } = under_way;
        let id = InstanceId(self.next_id);
        self.next_id += 1;
        self.list(id, chain, worker, &made);
        // The order matters: a role that is told of the FWP later relies on it being known to those told before.
        for (fwp, mut endpoint) in made {
            // Its tenant's weight may be another since it was begun.
            endpoint.set_share(fwp.terms().copy_share());
            endpoint.set_sender(index.0 as u16, id.0 as u32);
            self.by_fwp.insert(fwp.id(), id);
            self.lines.workers[worker.0].commands.command(WorkerCommand::Adopt(fwp));
            self.mma_of(ids[0]).command(MmaCommand::Attach(endpoint));
        }
        let way_back = chain.graph.back().map(|from| WayBack { last: ids[ids.len() - 1], from });
        let entrance = EntryFwp { first: ids[0], way_back };
        let limit = self.source_limit(chain.owner().tenant, ids.len() as u32);
        self.lines.gateway.command(Command::Ready { chain: index, instance: id, entrance, limit });
        let instance = Instance {
            chain: index,
            tenant: chain.owner().tenant,
            edition: chain.edition,
            replacement: Replacement::None,
            in_cache: true,
            reclaimed: false,
            worker,
            fwps: ids,
            life: Life::Making,
            ended_by_others: false,
        };
        self.instances.insert(id, instance);
        self.lines.keep_alives.found_place();
        self.step(id, Step::Ready);
    }

    /// Returns how many FWPs the clients of one source prefix may have, of this tenant's: half of what it can have now.
    fn source_limit(&self, tenant: TenantIndex, fwps: u32) -> SourceLimit {
        SourceLimit { tenant, fwps_max: (self.shares.reach(tenant) / SOURCE_PART).max(fwps) }
    }

    /// Continues with the stages of an instance. Returns whether all of them wait for the first time; if not, their guests have used a
    /// quantum.
    fn make_fwps(&self, chain: &ChainEntry, under_way: &mut UnderWay, steps: &mut Steps) -> Result<bool, PrepareError> {
        let mut ran_ns = 0;
        let quantum_ns = self.lines.workers[under_way.worker.0].clock.quantum_ns();
        while under_way.made.len() < under_way.ids.len() {
            if ran_ns >= quantum_ns {
                return Ok(false);
            }
            let stage = under_way.made.len();
            let mut current = match under_way.current.take() {
                Some((current, _)) => current,
                None => self.begin_stage(chain, stage, under_way),
            };
            // Again for each turn, because another tenant's guest may have had the last one.
            let Chain { tenant, name, .. } = &*chain.spec;
            let started =
                self.trials.begin(chain.key(stage), tenant.as_str(), name.as_str(), chain.module(stage).as_str());
            let prepared = loop {
                match current.step(&mut ran_ns) {
                    Progress::Part => steps.give_way(),
                    Progress::Turn => {
                        started.paused();
                        under_way.current = Some((current, *chain.key(stage)));
                        return Ok(false);
                    }
                    Progress::Done(prepared) => break prepared,
                }
            };
            let (mut fwp, endpoint) = prepared.map_err(|reason| self.stage_failed(chain, stage, under_way, reason))?;
            started.well();
            fwp.set_next_stage(under_way.ids.get(stage + 1).copied());
            under_way.made.push((fwp, endpoint));
            steps.give_way();
        }
        Ok(true)
    }

    fn begin_stage(&self, chain: &ChainEntry, stage: usize, under_way: &UnderWay) -> Preparation {
        let UnderWay { worker, ids, activation, .. } = under_way;
        let wiring = chain.graph.wiring(stage, ids, chain.backpressure(stage));
        let terms = chain.terms.on_worker(worker.0);
        let StageGrants { keys, models, .. } = chain.granted(stage);
        let port = self.lines.workers[worker.0].offload.as_ref();
        let granted = Granted::new(keys, models, port, (ids[stage], &terms));
        let site = NewFwpSite {
            id: ids[stage],
            worker: *worker,
            wiring,
            clock: self.lines.workers[worker.0].clock.clone(),
            memory: chain.memory.clone(),
            activation: activation.of_stage(stage),
            terms,
            state: chain.state(stage).clone(),
            granted,
            keep_alives: Some(Arc::clone(&self.lines.keep_alives)),
            spare: self.spare.clone(),
        };
        let log = self.log.log(origin(chain, stage, ids[stage]));
        Preparation::begin(&chain.templates(*worker)[stage], site, log)
    }

    fn stage_failed(&self, chain: &ChainEntry, stage: usize, under_way: &UnderWay, reason: EndReason) -> PrepareError {
        let problem = format!("stage {stage} ({}): {reason}", chain.module(stage));
        // Not logged here: this recurs as long as memory is in use, and the status reports it once.
        if let EndReason::OverLimit(limit) = reason {
            return PrepareError::OverLimit(limit, problem);
        }
        let origin = origin(chain, stage, under_way.ids[stage]);
        self.log.failed(origin, &format!("it could not be prepared: {}", reason.account()));
        PrepareError::Failed(problem)
    }

    fn list(&self, id: InstanceId, chain: &ChainEntry, worker: WorkerIndex, fwps: &[(Box<Fwp>, Box<Endpoint>)]) {
        let entry =
            |(stage, (fwp, _)): (usize, &(Box<Fwp>, Box<Endpoint>))| FwpEntry::new(fwp, chain.module(stage).clone());
        self.status_table.entries().add(InstanceEntry {
            id,
            chain: (chain.spec.tenant.clone(), chain.spec.name.clone()),
            core: self.lines.workers[worker.0].core,
            client: None,
            fwps: fwps.iter().enumerate().map(entry).collect(),
            holds: chain.spec.hold_frames > 0,
            made: Instant::now(),
            life: Life::Making,
            ended_because: None,
        });
    }
}

/// Returns where the lines of an FWP come from.
fn origin(chain: &ChainEntry, stage: usize, fwp: FwpId) -> Origin {
    Origin {
        tenant: chain.spec.tenant.clone(),
        chain: chain.spec.name.clone(),
        stage: stage as u32,
        module: chain.module(stage).clone(),
        fwp: fwp.to_string(),
    }
}
