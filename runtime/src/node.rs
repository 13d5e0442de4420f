//! The node as the control plane sees it: admits modules, checks and follows desired states, reports.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinion_control::journal::Journal;
use pinion_control::metrics::{MetricFilter, MetricStatus};
use pinion_control::model::{DesiredState, ObjectRef, Output, PortName, TenantName};
use pinion_control::node::{
    Answered, Call, ChainInstanceStatus, ChainStatus, CoreStatus, DropCount, FwpStatus, MeterStatus, Node, NodeStatus,
    PortStatus, Refusal, TenantStatus, UploadedBytes,
};
use pinion_gateway::invoke::{Dispatcher, InvokeCounters};
use pinion_gateway::observer::{Observer, PortObserver};
use pinion_gateway::port::{PortCounters, PortFacts};
use pinion_mma::counters::{Counter, MmaCounters};

use crate::accounts::{Accounts, Usage};
use crate::activation::Activations;
use crate::board::{Board, Entries};
use crate::builds::Builds;
use crate::invocations::Invocations;
use crate::latency::{Latencies, LatencySnapshot};
use crate::launcher::{Order, Orders};
use crate::meters::{Meters, TurnMeters};
use crate::metrics::ChainSums;
use crate::plan::CorePlan;
use crate::pressure::Level;
use crate::state::StateStore;
use crate::terms::CpuGrants;
use crate::workshop::Workshop;

mod invoke;

/// How long a change waits for the gateway to go by it.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(10);

/// A port as it was opened.
pub struct PortRecord {
    /// Its name.
    pub name: PortName,
    /// Its device.
    pub device: String,
    /// Its facts when it was opened.
    pub facts: PortFacts,
    /// Its traffic.
    pub counters: Arc<PortCounters>,
}

/// The control plane's view of this node.
pub struct DataPlane {
    workshop: Workshop,
    board: Arc<Board>,
    journal: Arc<Journal>,
    builds: Builds,
    accounts: Arc<Accounts>,
    state: Arc<StateStore>,
    meters: Arc<Meters>,
    cpu_grants: CpuGrants,
    orders: Orders,
    observer: Arc<Observer>,
    mmas: Vec<Arc<MmaCounters>>,
    activations: Vec<Arc<Activations>>,
    turns: Vec<Arc<TurnMeters>>,
    ports: Vec<PortRecord>,
    invoke: Arc<InvokeCounters>,
    invocations: Arc<Invocations>,
    dispatchers: Mutex<Vec<Dispatcher>>,
    fwps_max: usize,
    plan: CorePlan,
    stages_max: usize,
    warnings: Vec<String>,
    started: Instant,
}

/// How long things took since the node started.
#[derive(Clone, Debug)]
pub struct NodeLatencies {
    /// See [`Activations::entry`].
    pub activation: LatencySnapshot,
    /// See [`Activations::chain`].
    pub chain_activation: LatencySnapshot,
    /// See [`Activations::call`].
    pub call: LatencySnapshot,
    /// See [`Board::preparations`].
    pub preparation: LatencySnapshot,
    /// See [`TurnMeters::waits`].
    pub run_queue_wait: LatencySnapshot,
    /// See [`TurnMeters::lateness`].
    pub preemption_lateness: LatencySnapshot,
}

/// What a [`DataPlane`] is made of.
pub struct DataPlaneParts {
    /// What makes templates.
    pub workshop: Workshop,
    /// What the launcher writes down.
    pub board: Arc<Board>,
    /// What functions have said.
    pub journal: Arc<Journal>,
    /// Templates that are being built.
    pub builds: Builds,
    /// Memory of chains and tenants.
    pub accounts: Arc<Accounts>,
    /// What functions keep outside their instances.
    pub state: Arc<StateStore>,
    /// What chains have had of the cores.
    pub meters: Arc<Meters>,
    /// What the operator grants tenants of the cores.
    pub cpu_grants: CpuGrants,
    /// The launcher.
    pub orders: Orders,
    /// The gateway's counters.
    pub observer: Arc<Observer>,
    /// The MMAs' counters.
    pub mmas: Vec<Arc<MmaCounters>>,
    /// How long the workers' new clients waited.
    pub activations: Vec<Arc<Activations>>,
    /// What the workers measure of turns.
    pub turns: Vec<Arc<TurnMeters>>,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortRecord>,
    /// What is seen of messages and answers.
    pub invoke: Arc<InvokeCounters>,
    /// Who calls functions for the control API.
    pub invocations: Arc<Invocations>,
    /// For those who call functions by themselves.
    pub dispatchers: Vec<Dispatcher>,
    /// FWPs that there are places for.
    pub fwps_max: usize,
    /// The core plan.
    pub plan: CorePlan,
    /// Stages of a chain that there can be places for.
    pub stages_max: usize,
    /// What was found at start that an operator ought to know.
    pub warnings: Vec<String>,
}

impl DataPlane {
    /// See the module.
    #[must_use]
    pub fn new(parts: DataPlaneParts) -> Self {
        let DataPlaneParts { workshop, board, builds, accounts, orders, observer, mmas, activations, ports, .. } =
            parts;
        let DataPlaneParts { meters, cpu_grants, turns, invoke, invocations, dispatchers, fwps_max, .. } = parts;
        let DataPlaneParts { journal, state, plan, stages_max, warnings, .. } = parts;
        let started = Instant::now();
        Self {
            workshop,
            board,
            journal,
            builds,
            accounts,
            state,
            meters,
            cpu_grants,
            orders,
            observer,
            mmas,
            activations,
            turns,
            ports,
            invoke,
            invocations,
            dispatchers: Mutex::new(dispatchers),
            fwps_max,
            plan,
            stages_max,
            warnings,
            started,
        }
    }

    /// How long clients have waited so far, and their instances took to prepare.
    #[must_use]
    pub fn latencies(&self) -> NodeLatencies {
        let of_workers = |which: fn(&Activations) -> &Latencies| {
            LatencySnapshot::all(self.activations.iter().map(|activations| which(activations)))
        };
        NodeLatencies {
            activation: of_workers(|activations| &activations.entry),
            chain_activation: of_workers(|activations| &activations.chain),
            call: of_workers(|activations| &activations.call),
            preparation: self.board.preparations().snapshot(),
            run_queue_wait: LatencySnapshot::all(self.turns.iter().map(|turns| &turns.waits)),
            preemption_lateness: LatencySnapshot::all(self.turns.iter().map(|turns| &turns.lateness)),
        }
    }

    /// Has all functions timed that are made from now on, at each call of theirs. For measuring: it is no part of the way otherwise.
    pub fn time_calls(&self) {
        self.activations.iter().for_each(|activations| activations.time_calls());
    }

    /// Lets go of the templates of all chains without an instance, and of what is kept ready, as when memory is short. They come back
    /// when they are wanted.
    pub fn let_go_of_what_is_idle(&self) {
        self.orders.give(Order::Relieve(Level::Templates));
        self.orders.give(Order::Relieve(Level::Calm));
    }

    fn port_known(&self, port: Option<&PortName>, object: &dyn std::fmt::Display) -> Result<(), Refusal> {
        let Some(port) = port else { return Ok(()) };
        if self.ports.iter().any(|record| record.name == *port) {
            return Ok(());
        }
        let known: Vec<&str> = self.ports.iter().map(|record| record.name.as_str()).collect();
        Err(Refusal::Unfit(format!("{object}: this node has no port {port}; it has {}", known.join(", "))))
    }

    fn port_status(&self, index: usize) -> PortStatus {
        let record = &self.ports[index];
        let (received, sent) = (&record.counters.received, &record.counters.sent);
        let observed = self.observer.ports().nth(index);
        let device_drops = [
            ("missed-by-device", observed.map_or(0, PortObserver::missed)),
            ("malformed-by-device", received.dropped_malformed.value()),
            ("transmit-full", sent.dropped_full.value()),
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

    /// How the chains are doing, with what they have had of the node.
    fn chain_statuses(&self, entries: &Entries) -> Vec<ChainStatus> {
        let (mut chains, copied) = (entries.chain_statuses(), entries.copied_bytes());
        for chain in &mut chains {
            let key = (chain.tenant.clone(), chain.chain.clone());
            chain.meter = MeterStatus {
                copied_bytes: copied.get(&key).copied().unwrap_or(0),
                dropped: chain.drops.iter().map(|drop| drop.count).sum(),
                ..self.meters.status(|of| *of == key)
            };
            if let Some(usage) = self.accounts.of_chain(&key) {
                (chain.memory_kib, chain.memory_limit_kib) = (usage.used_kib, usage.limit_kib);
            }
        }
        chains
    }

    /// How the tenants are doing. What became of their packets is what these chains say: both are of one look at the counters.
    fn tenant_statuses(&self, chains: &[ChainStatus]) -> Vec<TenantStatus> {
        let status = |(tenant, usage): (TenantName, Usage)| {
            let sum = |count: fn(&MeterStatus) -> u64| {
                chains.iter().filter(|chain| chain.tenant == tenant).map(|chain| count(&chain.meter)).sum()
            };
            let meter = MeterStatus {
                copied_bytes: sum(|meter| meter.copied_bytes),
                dropped: sum(|meter| meter.dropped),
                ..self.meters.status(|(of, _)| *of == tenant)
            };
            let (state, state_limit_kib) = self.state.of_tenant(&tenant);
            let (memory_kib, memory_limit_kib) = (usage.used_kib, usage.limit_kib);
            TenantStatus { tenant, memory_kib, memory_limit_kib, meter, state, state_limit_kib }
        };
        self.accounts.of_tenants().into_iter().map(status).collect()
    }
}

impl Node for DataPlane {
    fn admit(&self, wasm: &[u8]) -> Result<(), Refusal> {
        self.workshop.check(wasm)
    }

    fn admit_files(&self, archive: &[u8]) -> Result<(), Refusal> {
        self.workshop.check_files(archive)
    }

    fn build(&self, state: &DesiredState, uploads: &dyn UploadedBytes) -> Vec<(ObjectRef, Refusal)> {
        self.workshop.build(state, uploads)
    }

    fn check(&self, state: &DesiredState) -> Result<(), Refusal> {
        for ((tenant, name), chain) in state.chains() {
            let named = chain.stages.iter().flat_map(|stage| &stage.outputs).filter_map(|output| match output {
                Output::Port(port) => Some(port),
                Output::Stage(_) | Output::Egress => None,
            });
            let reverse = chain.reverse.iter().flat_map(|reverse| reverse.from.iter().chain([&reverse.egress]));
            for port in chain.egress.iter().chain(named).chain(reverse) {
                self.port_known(Some(port), &format_args!("chain {tenant}/{name}"))?;
            }
            let (class, class_max) = (chain.scheduling.class, self.cpu_grants.of(tenant).class_max);
            if class < class_max {
                return Err(Refusal::Unfit(format!(
                    "chain {tenant}/{name}: class is {class}, and the highest that the operator grants the tenant is {class_max}: use \
                     that, or ask for more (class_max of the tenant, in the node's configuration)"
                )));
            }
            if chain.stages.len() > self.stages_max {
                let (stages, places) = (chain.stages.len(), self.stages_max);
                return Err(Refusal::Exhausted(format!(
                    "chain {tenant}/{name}: its {stages} stages need as many places on one worker and one MMA, and each has \
                     {places}: raise limits.fwps_max"
                )));
            }
        }
        for ((tenant, name), rule) in state.rules() {
            self.port_known(rule.matcher.port.as_ref(), &format_args!("rule {tenant}/{name}"))?;
        }
        self.state.check(state).map_err(Refusal::Exhausted)
    }

    fn invoke(&self, call: Call, answered: Answered) {
        self.call(call, answered);
    }

    fn follow(&self, state: Arc<DesiredState>) {
        // Here, as it may take long, and nobody but who made the change waits.
        self.state.prepare(&state);
        let (done, followed) = crossbeam_channel::bounded(1);
        self.orders.give(Order::Follow(Arc::clone(&state), done));
        // Fails when the launcher has ended, as the node is stopping, or the gateway is stuck: then the status tells.
        let _ = followed.recv_timeout(FOLLOW_TIME_MAX);
        self.workshop.clear_up(&state);
    }

    fn chain_instances(&self) -> Vec<ChainInstanceStatus> {
        self.board.entries().chain_instances()
    }

    fn fwps(&self) -> Vec<FwpStatus> {
        self.board.entries().fwps()
    }

    fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    fn metrics(&self, filter: &MetricFilter) -> Vec<MetricStatus> {
        let chains = self.board.entries().metrics(|(tenant, chain)| filter.passes(tenant, chain));
        chains.iter().flat_map(ChainSums::series).collect()
    }

    fn status(&self) -> NodeStatus {
        let cores = self.plan.by_core().into_iter().map(|(core, roles)| CoreStatus {
            core: u32::from(core.0),
            roles: roles.into_iter().map(str::to_owned).collect(),
        });
        let of_mmas =
            |count: fn(&MmaCounters) -> &Counter| -> u64 { self.mmas.iter().map(|mma| count(mma).value()).sum() };
        let ports = (0..self.ports.len()).map(|index| self.port_status(index)).chain([self.invoke_status()]).collect();
        let latencies = self.latencies();
        let entries = self.board.entries();
        let chains = self.chain_statuses(&entries);
        let mut warnings: Vec<String> = self.warnings.iter().chain(&entries.warnings).cloned().collect();
        warnings.extend(entries.bans());
        if entries.memory_level != Level::Calm {
            warnings.push(format!("memory: {}", entries.memory_level));
        }
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
            dropped_gone: of_mmas(|mma| &mma.dropped_gone),
            builds: self.builds.statuses(),
            activation: latencies.activation.status(),
            chain_activation: latencies.chain_activation.status(),
            preparation: latencies.preparation.status(),
            run_queue_wait: latencies.run_queue_wait.status(),
            preemption_lateness: latencies.preemption_lateness.status(),
        }
    }
}
