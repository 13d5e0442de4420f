//! How an instance is made: an FWP for each stage, wired to the next ones, and known to worker, MMA and gateway, in this order.

use std::sync::Arc;
use std::time::Instant;

use pinion_control::model::Chain;
use pinion_gateway::flows::entry_fwp::{EntryFwp, WayBack};
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_gateway::messages::Command;
use pinion_mma::id::{FwpId, WorkerIndex};
use pinion_mma::mover::MmaCommand;
use pinion_mma::wiring::{Edge, Endpoint, Wiring};

use super::replacing::Replacement;
use super::{Instance, Instances};
use crate::fwp::end_reason::EndReason;
use crate::fwp::instance_states::{Life, Step};
use crate::fwp::{Fwp, NewFwpSite};
use crate::instruments::activation::InstanceActivation;
use crate::instruments::log::Origin;
use crate::launcher::active_chains::{ChainEntry, Hop};
use crate::launcher::steps::Steps;
use crate::reports::status_table::{FwpEntry, InstanceEntry};
use crate::tenants::accounts::OverLimit;
use crate::worker::WorkerCommand;

/// Why an instance was not prepared.
pub enum PrepareError {
    /// A stage would exceed its own, its chain's or its tenant's memory limit: which, and a sentence for the chain's tenant.
    OverLimit(OverLimit, String),
    /// A stage failed: a sentence for the chain's tenant.
    Failed(String),
}

impl Instances {
    /// Prepares an instance of a chain and puts it into the gateway's cache.
    ///
    /// # Errors
    /// Returns why the instance could not be prepared. Nothing of it remains.
    pub fn prepare(&mut self, index: ChainIndex, chain: &ChainEntry, steps: &mut Steps) -> Result<(), PrepareError> {
        let (tenant, stages) = (chain.owner().tenant, chain.spec.stages.len());
        let workers = &self.lines.workers;
        self.places.look(Instant::now(), |worker| workers[worker.0].turns.busy_ns.value());
        let (worker, ids) =
            self.places.take(stages).ok_or_else(|| PrepareError::Failed("there is no free FWP index".to_owned()))?;
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
        // The order matters: a role that is told of the FWP later relies on it being known to those told before.
        for (fwp, endpoint) in fwps {
            self.by_fwp.insert(fwp.id(), id);
            self.lines.workers[worker.0].commands.command(WorkerCommand::Adopt(Box::new(fwp)));
            self.mma_of(ids[0]).command(MmaCommand::Attach(endpoint));
        }
        let way_back = chain.way_back().map(|way_back| WayBack { last: ids[ids.len() - 1], from: way_back.sides.back });
        let entrance = EntryFwp { first: ids[0], way_back };
        self.lines.gateway.command(Command::Ready { chain: index, instance: id, entrance });
        let instance = Instance {
            chain: index,
            tenant,
            edition: chain.edition,
            replacement: Replacement::None,
            in_cache: true,
            reclaimed: false,
            worker,
            fwps: ids,
            life: Life::Making,
        };
        self.instances.insert(id, instance);
        self.shares.take(tenant, stages as u32);
        self.lines.keep_alives.found_place();
        self.step(id, Step::Ready);
        Ok(())
    }

    fn make_fwps(
        &mut self,
        chain: &ChainEntry,
        worker: WorkerIndex,
        ids: &[FwpId],
        steps: &mut Steps,
    ) -> Result<Vec<(Fwp, Box<Endpoint>)>, PrepareError> {
        let line = &self.lines.workers[worker.0];
        let mut made: Vec<(Fwp, Box<Endpoint>)> = Vec::with_capacity(ids.len());
        let activation = InstanceActivation::new(&line.activations, ids[0], ids.len());
        self.lines.keep_alives.begin(ids);
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
            let site = NewFwpSite {
                id,
                worker,
                wiring,
                clock: &line.clock,
                memory,
                activation,
                terms: chain.terms.on_worker(worker.0),
                state: chain.state(stage).clone(),
                keep_alives: Some(Arc::clone(&self.lines.keep_alives)),
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
            let Chain { tenant, name, .. } = &*chain.spec;
            let module = chain.module(stage);
            let started = self.trials.begin(chain.key(stage), tenant.as_str(), name.as_str(), module.as_str());
            match Fwp::prepare(template, site, self.log.log(origin())) {
                Ok((mut fwp, endpoint)) => {
                    started.well();
                    self.spare.taken(fwp.place());
                    fwp.set_next_stage(ids.get(stage + 1).copied());
                    made.push((fwp, endpoint));
                    steps.give_way();
                }
                Err(reason) => {
                    drop(started);
                    made.into_iter().for_each(|(fwp, endpoint)| self.take_apart(fwp, endpoint));
                    let problem = format!("stage {stage} ({}): {reason}", chain.module(stage));
                    // Not logged here: this recurs as long as memory is in use, and the status reports it once.
                    if let EndReason::OverLimit(limit) = reason {
                        return Err(PrepareError::OverLimit(limit, problem));
                    }
                    self.log.failed(origin(), &format!("it could not be prepared: {}", reason.account()));
                    return Err(PrepareError::Failed(problem));
                }
            }
        }
        Ok(made)
    }

    fn list(&self, id: InstanceId, chain: &ChainEntry, worker: WorkerIndex, fwps: &[(Fwp, Box<Endpoint>)]) {
        let entry = |(stage, (fwp, _)): (usize, &(Fwp, Box<Endpoint>))| FwpEntry::new(fwp, chain.module(stage).clone());
        self.status_table.entries().add(InstanceEntry {
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
}
