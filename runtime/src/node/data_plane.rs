//! The node as the control plane sees it: validates modules, checks and applies desired states, and reports statuses.
//!
//! [`DataPlane`] implements [`Node`]. It runs on control threads, and changes the data plane only by orders to the launcher.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use pinion_control::journal::Journal;
use pinion_control::metrics::{MetricFilter, MetricStatus};
use pinion_control::model::{
    Chain, ChainKey, ChainName, DesiredState, Digest, ObjectRef, PortName, Rule, RuleName, TenantName,
};
use pinion_control::node::{
    Answered, Call, CallHandle, ChainInstanceStatus, FwpStatus, Hold, Node, NodeStatus, Pages, Refusal, ResourceUse,
    UploadedBytes,
};
use pinion_gateway::gateway::Observer;
use pinion_gateway::invoke::{Dispatcher, InvokeCounters};
use pinion_gateway::port::{PortCounters, PortFacts};
use pinion_mma::accounts::counters::MmaCounters;
use tokio::sync::watch;

use crate::cores::plan::CorePlan;
use crate::instruments::activation::Activations;
use crate::instruments::latencies::{Latencies, LatencySnapshot};
use crate::instruments::log::LogHub;
use crate::launcher::{self, Order, Orders};
use crate::memory::pressure::Level;
use crate::node::invocations::Invocations;
use crate::node::machine::MachineRequirements;
use crate::node::template_builds::TemplateBuilds;
use crate::offload::Offload;
use crate::reports::lists;
use crate::reports::status_table::StatusTable;
use crate::state::StateStore;
use crate::templates::artifacts::TemplateKey;
use crate::templates::build_progress::Builds;
use crate::templates::trials::Trials;
use crate::tenants::accounts::Accounts;
use crate::tenants::meters::{Meters, TurnMeters};
use crate::tenants::scheduling_params::CpuGrants;

mod invoke;
mod resources;
mod status;
#[cfg(test)]
mod tests;

/// The longest time that a change of the desired state waits until the gateway applies it.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a change keeps other changes waiting for the first instances of its chains.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a change that is not in effect yet looks whether others wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A port as it was opened.
pub struct PortRecord {
    /// Its name in rules and chains.
    pub name: PortName,
    /// Its device, as configured.
    pub device: String,
    /// Its facts when it was opened.
    pub facts: PortFacts,
    /// Its traffic counters.
    pub counters: Arc<PortCounters>,
}

/// The control plane's view of this node.
pub struct DataPlane {
    parts: DataPlaneParts,
    started: Instant,
}

/// Distributions of latencies since the node started.
#[derive(Clone, Debug)]
pub struct NodeLatencies {
    /// See [`Activations::entry`].
    pub activation: LatencySnapshot,
    /// See [`Activations::chain`].
    pub chain_activation: LatencySnapshot,
    /// See [`StatusTable::preparations`].
    pub preparation: LatencySnapshot,
    /// See [`TurnMeters::waits`].
    pub run_queue_wait: LatencySnapshot,
    /// See [`TurnMeters::lateness`].
    pub preemption_lateness: LatencySnapshot,
}

/// The parts of a [`DataPlane`].
pub struct DataPlaneParts {
    /// Builds templates.
    pub workshop: TemplateBuilds,
    /// The trials of templates, and which are withheld.
    pub trials: Arc<Trials>,
    /// Statuses, which the launcher writes.
    pub status_table: Arc<StatusTable>,
    /// The log lines of functions.
    pub journal: Arc<Journal>,
    /// Templates that are being built.
    pub builds: Builds,
    /// Memory accounts of chains and tenants.
    pub accounts: Arc<Accounts>,
    /// What functions keep outside their instances.
    pub state: Arc<StateStore>,
    /// Processor time that chains have used.
    pub meters: Arc<Meters>,
    /// The jobs that wait or are under way.
    pub offload: Arc<Offload>,
    /// What the operator grants tenants of the cores, by the state that is followed.
    pub cpu_grants: Mutex<CpuGrants>,
    /// Orders to the launcher.
    pub orders: Orders,
    /// The gateway's counters.
    pub observer: Arc<Observer>,
    /// The MMAs' counters.
    pub mmas: Vec<Arc<MmaCounters>>,
    /// How long new clients waited, by worker.
    pub activations: Vec<Arc<Activations>>,
    /// What each worker measures of turns.
    pub turns: Vec<Arc<TurnMeters>>,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortRecord>,
    /// Counters of messages to functions and of answers.
    pub invoke: Arc<InvokeCounters>,
    /// Calls of functions for the control API.
    pub invocations: Arc<Invocations>,
    /// Dispatchers for programs that embed the node and call functions themselves.
    pub dispatchers: Mutex<Vec<Dispatcher>>,
    /// The core plan.
    pub plan: CorePlan,
    /// Most stages that a chain can have.
    pub stages_max: usize,
    /// Warnings found at start, for the operator.
    pub warnings: Vec<String>,
    /// What the node needs of the machine, for further ones.
    pub machine: MachineRequirements,
    /// Receives the log lines of functions.
    pub log: LogHub,
}

impl DataPlane {
    /// Creates the node's data plane of these parts.
    #[must_use]
    pub fn new(parts: DataPlaneParts) -> Self {
        Self { parts, started: Instant::now() }
    }

    /// Returns how long new clients waited and their instances took to prepare, since the node started.
    #[must_use]
    pub fn latencies(&self) -> NodeLatencies {
        let of_workers = |which: fn(&Activations) -> &Latencies| {
            LatencySnapshot::all(self.parts.activations.iter().map(|activations| which(activations)))
        };
        NodeLatencies {
            activation: of_workers(|activations| &activations.entry),
            chain_activation: of_workers(|activations| &activations.chain),
            preparation: self.parts.status_table.preparations().snapshot(),
            run_queue_wait: LatencySnapshot::all(self.parts.turns.iter().map(|turns| &turns.waits)),
            preemption_lateness: LatencySnapshot::all(self.parts.turns.iter().map(|turns| &turns.lateness)),
        }
    }

    /// Unloads the templates of all chains without an instance and drops what is prepared ahead, as when memory is short. Both come
    /// back on demand.
    pub fn let_go_of_what_is_idle(&self) {
        self.parts.orders.give(Order::Relieve(Level::Templates));
        self.parts.orders.give(Order::Relieve(Level::Calm));
    }

    /// Waits until the launcher says that a state is in effect, and hurries it if others wait for long.
    fn await_effect(&self, followed: &Receiver<()>, is_waited_for: &dyn Fn() -> bool) {
        let (began, mut others_since) = (Instant::now(), None);
        while began.elapsed() < FOLLOW_TIME_MAX {
            match followed.recv_timeout(LOOK_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                // The launcher ends when the node stops.
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if is_waited_for() && others_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
                // Again and again, as the launcher may not have begun with the change.
                self.parts.orders.give(Order::Hurry);
            }
        }
        // The gateway does not answer: the status shows that.
    }

    /// Returns what the operator grants tenants of the cores.
    fn cpu_grants(&self) -> MutexGuard<'_, CpuGrants> {
        self.parts.cpu_grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the ports that tenants are granted exist, of those tenants that differ.
    fn check_tenants(&self, before: &DesiredState, state: &DesiredState) -> Result<(), Refusal> {
        for (name, terms) in state.tenants().iter().filter(|(name, terms)| before.tenant(name) != Some(terms)) {
            let known = |port| self.port_known(Some(port), &format_args!("tenant {name}"));
            terms.ports.iter().try_for_each(known)?;
        }
        Ok(())
    }

    fn port_known(&self, port: Option<&PortName>, object: &dyn std::fmt::Display) -> Result<(), Refusal> {
        let Some(port) = port else { return Ok(()) };
        if self.parts.ports.iter().any(|record| record.name == *port) {
            return Ok(());
        }
        let known: Vec<&str> = self.parts.ports.iter().map(|record| record.name.as_str()).collect();
        Err(Refusal::Unfit(format!("{object}: this node has no port {port}; it has {}", known.join(", "))))
    }
}

impl Node for DataPlane {
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.parts.workshop.check(wasm)
    }

    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.parts.workshop.check_files(archive)
    }

    fn admit_model(&self, onnx: &[u8]) -> Result<(), Refusal> {
        self.parts.workshop.check_model(onnx)
    }

    fn build(
        &self,
        state: &DesiredState,
        chains: &BTreeSet<ChainKey>,
        uploads: &dyn UploadedBytes,
    ) -> Vec<(ObjectRef, Refusal)> {
        // The chains may be within the terms of a tenant that change with them.
        self.parts.accounts.raise(state);
        self.parts.workshop.build(state, chains, uploads)
    }

    fn unfit(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Vec<(ObjectRef, Refusal)> {
        self.parts.workshop.unfit(state, chains)
    }

    fn hold(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> Hold {
        self.parts.workshop.hold(state, chains)
    }

    fn lacks(&self, state: &DesiredState, chains: &BTreeSet<ChainKey>) -> bool {
        self.parts.workshop.lacks(state, chains)
    }

    fn stop_builds(&self) {
        self.parts.workshop.stop();
    }

    fn damaged(&self) -> watch::Receiver<u64> {
        self.parts.workshop.derived().found()
    }

    fn retry(&self, state: &DesiredState, objects: &[&ObjectRef]) -> bool {
        let objects: BTreeSet<&ObjectRef> = objects.iter().copied().collect();
        let modules = state.modules().values().filter(|module| objects.contains(&ObjectRef::from(&***module)));
        let modules: BTreeSet<(&str, Digest)> = modules.map(|it| (it.tenant.as_str(), it.digest)).collect();
        let named = || state.chains().values().filter(|chain| objects.contains(&ObjectRef::from(&***chain)));
        let keys: BTreeSet<TemplateKey> = named().filter_map(|chain| launcher::keys(state, chain)).flatten().collect();
        let is_released = self.parts.trials.release(&keys, &modules);
        let is_out_of_force = self.parts.status_table.read(|entries| {
            named().any(|chain| !entries.functions.contains_key(&(chain.tenant.clone(), chain.name.clone())))
        });
        let has_built = self.parts.workshop.take_built();
        is_released || is_out_of_force || has_built
    }

    fn check(&self, before: &DesiredState, state: &DesiredState) -> Result<(), Refusal> {
        self.check_tenants(before, state)?;
        let default = self.cpu_grants().default;
        let is_new = |(key, chain): &(&(TenantName, ChainName), &Arc<Chain>)| before.chains().get(key) != Some(chain);
        for ((tenant, name), chain) in state.chains().iter().filter(is_new) {
            let reverse = chain.reverse.iter().flat_map(|reverse| reverse.from.iter().chain(&reverse.egress));
            for port in chain.egress.iter().chain(chain.ports_of_edges()).chain(reverse) {
                self.port_known(Some(port), &format_args!("chain {tenant}/{name}"))?;
            }
            let grant = default.with(state.tenant(tenant).map(|terms| &**terms));
            let (class, class_max) = (chain.scheduling.class, grant.class_max);
            if class < class_max {
                return Err(Refusal::Unfit(format!(
                    "chain {tenant}/{name}: class is {class}, and the highest that the operator grants the tenant is {class_max}: use \
                     that, or ask the operator for more (class_max of the tenant {tenant})"
                )));
            }
            if chain.stages.len() > self.parts.stages_max {
                let (stages, places) = (chain.stages.len(), self.parts.stages_max);
                return Err(Refusal::Exhausted(format!(
                    "chain {tenant}/{name}: it has {stages} stages, and one worker and one MMA have room for {places} FWPs: raise \
                     limits.fwps_max"
                )));
            }
        }
        let is_new = |(key, rule): &(&(TenantName, RuleName), &Arc<Rule>)| before.rules().get(key) != Some(rule);
        for ((tenant, name), rule) in state.rules().iter().filter(is_new) {
            self.port_known(rule.matcher.port.as_ref(), &format_args!("rule {tenant}/{name}"))?;
        }
        self.parts.state.check(before, state).map_err(Refusal::Exhausted)
    }

    fn invoke(&self, call: Call, answered: Answered) -> CallHandle {
        self.call(call, answered)
    }

    fn resources(&self, tenant: &TenantName) -> Vec<ResourceUse> {
        resources::of_tenant(self, tenant)
    }

    fn clear_up(&self, state: &DesiredState) {
        self.parts.accounts.follow(state);
        self.parts.workshop.clear_up_built(state);
    }

    fn follow(&self, state: Arc<DesiredState>, is_waited_for: &dyn Fn() -> bool) {
        self.parts.workshop.take_built();
        self.parts.accounts.follow(&state);
        self.cpu_grants().follow(&state);
        // Allocating state may take long. Here only the caller that made the change waits for it.
        self.parts.state.prepare(&state);
        let (done, followed) = crossbeam_channel::bounded(1);
        self.parts.orders.give(Order::Follow(Arc::clone(&state), done));
        self.await_effect(&followed, is_waited_for);
        self.parts.workshop.clear_up(&state);
    }

    fn chain_instances(&self, of: Option<&TenantName>) -> Pages<ChainInstanceStatus> {
        lists::chain_instances(Arc::clone(&self.parts.status_table), of.cloned())
    }

    fn fwps(&self, of: Option<&TenantName>) -> Pages<FwpStatus> {
        lists::fwps(Arc::clone(&self.parts.status_table), of.cloned())
    }

    fn journal(&self) -> &Arc<Journal> {
        &self.parts.journal
    }

    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus> {
        lists::metrics(&self.parts.status_table, |(tenant, chain)| filter.passes(tenant, chain))
    }

    fn status(&self) -> NodeStatus {
        self.node_status()
    }
}
