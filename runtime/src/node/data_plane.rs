//! The node as the control plane sees it: validates modules, checks and applies desired states, and reports statuses.
//!
//! [`DataPlane`] implements [`Node`]. It runs on control threads, and changes the data plane only by orders to the launcher.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinion_control::journal::Journal;
use pinion_control::metrics::{MetricFilter, MetricStatus};
use pinion_control::model::{
    Chain, ChainName, DesiredState, Digest, ObjectRef, Output, PortName, Rule, RuleName, TenantName,
};
use pinion_control::node::{
    Answered, Call, ChainInstanceStatus, ChainStatus, CoreStatus, DropCount, FwpStatus, MeterStatus, Node, NodeStatus,
    PortStatus, Refusal, TenantStatus, UploadedBytes,
};
use pinion_gateway::invoke::{Dispatcher, InvokeCounters};
use pinion_gateway::observer::{Observer, PortObserver};
use pinion_gateway::port::{PortCounters, PortFacts};
use pinion_mma::counters::{Counter, MmaCounters};
use tokio::sync::watch;

use crate::cores::plan::CorePlan;
use crate::instruments::activation::Activations;
use crate::instruments::latencies::{Latencies, LatencySnapshot};
use crate::instruments::log::LogHub;
use crate::instruments::metrics::ChainSums;
use crate::launcher::{self, Order, Orders};
use crate::memory::pressure::Level;
use crate::node::invocations::Invocations;
use crate::node::node_log::{self, LogStatus};
use crate::node::template_builds::TemplateBuilds;
use crate::reports::status_table::{Entries, StatusTable};
use crate::state::StateStore;
use crate::templates::artifacts::TemplateKey;
use crate::templates::build_progress::Builds;
use crate::templates::trials::Trials;
use crate::tenants::accounts::{Accounts, Usage};
use crate::tenants::meters::{Meters, TurnMeters};
use crate::tenants::scheduling_params::CpuGrants;

mod invoke;

/// The longest time that a change of the desired state waits until the gateway applies it.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(10);

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
    /// What the operator grants tenants of the cores.
    pub cpu_grants: CpuGrants,
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
    /// Most FWPs at a time.
    pub fwps_max: usize,
    /// The core plan.
    pub plan: CorePlan,
    /// Most stages that a chain can have.
    pub stages_max: usize,
    /// Warnings found at start, for the operator.
    pub warnings: Vec<String>,
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

    fn port_known(&self, port: Option<&PortName>, object: &dyn std::fmt::Display) -> Result<(), Refusal> {
        let Some(port) = port else { return Ok(()) };
        if self.parts.ports.iter().any(|record| record.name == *port) {
            return Ok(());
        }
        let known: Vec<&str> = self.parts.ports.iter().map(|record| record.name.as_str()).collect();
        Err(Refusal::Unfit(format!("{object}: this node has no port {port}; it has {}", known.join(", "))))
    }

    fn port_status(&self, index: usize) -> PortStatus {
        let record = &self.parts.ports[index];
        let (received, sent) = (&record.counters.received, &record.counters.sent);
        let observed = self.parts.observer.ports().nth(index);
        let device_drops = [
            ("missed-by-device", observed.map_or(0, PortObserver::missed)),
            ("malformed-by-device", received.dropped_malformed.value()),
            ("transmit-full", sent.dropped_full.value()),
            ("transmit-refused", sent.dropped_refused.value()),
            ("transmit-runt", sent.dropped_runt.value()),
            ("transmit-unfit", sent.dropped_unfit.value()),
        ];
        let parsed_drops = observed.into_iter().flat_map(|port| port.drops.iter());
        let drops = parsed_drops
            .map(|(reason, count)| (reason.name(), count))
            .chain(device_drops)
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| DropCount { reason: reason.to_owned(), count })
            .collect();
        let mac = record.facts.mac.map(|byte| format!("{byte:02x}")).join(":");
        PortStatus {
            name: record.name.clone(),
            device: record.device.clone(),
            mac,
            mtu: u32::from(record.facts.mtu),
            link_up: observed.is_none_or(PortObserver::link_up),
            received: received.frames.value(),
            sent: sent.frames.value(),
            drops,
        }
    }

    /// Returns the statuses of the chains, with what they have used of the node.
    fn chain_statuses(&self, entries: &Entries) -> Vec<ChainStatus> {
        let (mut chains, copied) = (entries.chain_statuses(), entries.copied_bytes());
        for chain in &mut chains {
            let key = (chain.tenant.clone(), chain.chain.clone());
            chain.meter = MeterStatus {
                copied_bytes: copied.get(&key).copied().unwrap_or(0),
                dropped: chain.drops.iter().map(|drop| drop.count).sum(),
                ..self.parts.meters.status(|of| *of == key)
            };
            if let Some(usage) = self.parts.accounts.of_chain(&key) {
                (chain.memory_kib, chain.memory_limit_kib) = (usage.used_kib, usage.limit_kib);
            }
        }
        chains
    }

    /// Returns the statuses of the tenants. Packet counts are sums over `chains`, so that chains and tenants agree: they come from one
    /// reading of the counters.
    fn tenant_statuses(&self, chains: &[ChainStatus]) -> Vec<TenantStatus> {
        let status = |(tenant, usage): (TenantName, Usage)| {
            let sum = |count: fn(&MeterStatus) -> u64| {
                chains.iter().filter(|chain| chain.tenant == tenant).map(|chain| count(&chain.meter)).sum()
            };
            let meter = MeterStatus {
                copied_bytes: sum(|meter| meter.copied_bytes),
                dropped: sum(|meter| meter.dropped),
                ..self.parts.meters.status(|(of, _)| *of == tenant)
            };
            let (state, state_limit_kib) = self.parts.state.of_tenant(&tenant);
            let (memory_kib, memory_limit_kib) = (usage.used_kib, usage.limit_kib);
            TenantStatus { tenant, memory_kib, memory_limit_kib, meter, state, state_limit_kib }
        };
        self.parts.accounts.of_tenants().into_iter().map(status).collect()
    }
}

impl Node for DataPlane {
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.parts.workshop.check(wasm)
    }

    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.parts.workshop.check_files(archive)
    }

    fn build(&self, state: &DesiredState, uploads: &dyn UploadedBytes) -> Vec<(ObjectRef, Refusal)> {
        self.parts.workshop.build(state, uploads)
    }

    fn lacks(&self, state: &DesiredState) -> bool {
        self.parts.workshop.lacks(state)
    }

    fn damaged(&self) -> watch::Receiver<u64> {
        self.parts.workshop.derived().found()
    }

    fn retry(&self, state: &DesiredState, objects: &[&ObjectRef]) -> bool {
        let objects: BTreeSet<&ObjectRef> = objects.iter().copied().collect();
        let modules = state.modules().values().filter(|module| objects.contains(&ObjectRef::from(&***module)));
        let modules: BTreeSet<Digest> = modules.map(|module| module.digest).collect();
        let named = || state.chains().values().filter(|chain| objects.contains(&ObjectRef::from(&***chain)));
        let keys: BTreeSet<TemplateKey> = named().filter_map(|chain| launcher::keys(state, chain)).flatten().collect();
        let is_released = self.parts.trials.release(|key| keys.contains(key) || modules.contains(key.module()));
        let entries = self.parts.status_table.entries();
        let is_out_of_force =
            named().any(|chain| !entries.functions.contains_key(&(chain.tenant.clone(), chain.name.clone())));
        drop(entries);
        let has_built = self.parts.workshop.take_built();
        is_released || is_out_of_force || has_built
    }

    fn check(&self, before: &DesiredState, state: &DesiredState) -> Result<(), Refusal> {
        let is_new = |(key, chain): &(&(TenantName, ChainName), &Arc<Chain>)| before.chains().get(key) != Some(chain);
        for ((tenant, name), chain) in state.chains().iter().filter(is_new) {
            let named = chain.stages.iter().flat_map(|stage| &stage.outputs).filter_map(|output| match output {
                Output::Port(port) => Some(port),
                Output::Stage(_) | Output::Egress => None,
            });
            let reverse = chain.reverse.iter().flat_map(|reverse| reverse.from.iter().chain([&reverse.egress]));
            for port in chain.egress.iter().chain(named).chain(reverse) {
                self.port_known(Some(port), &format_args!("chain {tenant}/{name}"))?;
            }
            let (class, class_max) = (chain.scheduling.class, self.parts.cpu_grants.of(tenant).class_max);
            if class < class_max {
                return Err(Refusal::Unfit(format!(
                    "chain {tenant}/{name}: class is {class}, and the highest that the operator grants the tenant is {class_max}: use \
                     that, or ask the operator for more (class_max of a [[tenant]] named {tenant}, in the node's configuration)"
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

    fn invoke(&self, call: Call, answered: Answered) {
        self.call(call, answered);
    }

    fn follow(&self, state: Arc<DesiredState>) {
        self.parts.workshop.take_built();
        // Allocating state may take long. Here only the caller that made the change waits for it.
        self.parts.state.prepare(&state);
        let (done, followed) = crossbeam_channel::bounded(1);
        self.parts.orders.give(Order::Follow(Arc::clone(&state), done));
        // Fails when the launcher has ended because the node stops, or when the gateway does not answer: the status shows that.
        let _ = followed.recv_timeout(FOLLOW_TIME_MAX);
        self.parts.workshop.clear_up(&state);
    }

    fn chain_instances(&self) -> Vec<ChainInstanceStatus> {
        self.parts.status_table.entries().chain_instances()
    }

    fn fwps(&self) -> Vec<FwpStatus> {
        self.parts.status_table.entries().fwps()
    }

    fn journal(&self) -> &Arc<Journal> {
        &self.parts.journal
    }

    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus> {
        let chains = self.parts.status_table.entries().metrics(|(tenant, chain)| filter.passes(tenant, chain));
        chains.iter().flat_map(ChainSums::series).collect()
    }

    fn status(&self) -> NodeStatus {
        let cores = self.parts.plan.by_core().into_iter().map(|(core, roles)| CoreStatus {
            core: u32::from(core.0),
            roles: roles.into_iter().map(str::to_owned).collect(),
        });
        let of_mmas =
            |count: fn(&MmaCounters) -> &Counter| -> u64 { self.parts.mmas.iter().map(|mma| count(mma).value()).sum() };
        let ports =
            (0..self.parts.ports.len()).map(|index| self.port_status(index)).chain([self.invoke_status()]).collect();
        let latencies = self.latencies();
        let entries = self.parts.status_table.entries();
        let chains = self.chain_statuses(&entries);
        let mut warnings: Vec<String> = self.parts.warnings.iter().chain(&entries.warnings).cloned().collect();
        warnings.extend(entries.bans());
        warnings.extend(self.parts.workshop.derived().warnings());
        if entries.memory_level != Level::Calm {
            warnings.push(format!("memory: {}", entries.memory_level));
        }
        let LogStatus { lost_lines: log_lines_lost, warning } = node_log::status();
        warnings.extend(warning);
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            followed_version: entries.followed_version,
            cores: cores.collect(),
            ports,
            tenants: self.tenant_statuses(&chains),
            chains,
            warnings,
            copied_bytes: of_mmas(|mma| &mma.copied_bytes),
            dropped_instance_ended: of_mmas(|mma| &mma.dropped_instance_ended),
            log_lines_lost,
            guest_lines_left_out: self.parts.log.left_out(),
            builds: self.parts.builds.statuses(),
            activation: latencies.activation.status(),
            chain_activation: latencies.chain_activation.status(),
            preparation: latencies.preparation.status(),
            run_queue_wait: latencies.run_queue_wait.status(),
            preemption_lateness: latencies.preemption_lateness.status(),
        }
    }
}
