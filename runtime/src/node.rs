//! The node as the control plane sees it: admits modules, checks and follows desired states, reports.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use pinion_control::model::{Chain, DesiredState, Digest, Output, PortName};
use pinion_control::node::{
    ChainInstanceStatus, CoreStatus, DropCount, FwpStatus, Node, NodeStatus, PortStatus, Refusal,
};
use pinion_gateway::observer::{Observer, PortObserver};
use pinion_gateway::port::{PortCounters, PortFacts};
use pinion_mma::counters::{Counter, MmaCounters};

use wasmtime::Linker;

use crate::artifacts::{Admitted, ArtifactError, Artifacts};
use crate::board::Board;
use crate::fwp::FwpContext;
use crate::launcher::Order;
use crate::plan::CorePlan;

/// How long a change waits for the gateway to go by it.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(10);

const WASM_PAGE_BYTES: u64 = 64 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    artifacts: Arc<Artifacts>,
    /// Of any of the workers' engines: they are alike.
    linker: Linker<FwpContext>,
    /// Memory that FWPs of an admitted module start with.
    memory_bytes: Mutex<HashMap<Digest, u64>>,
    board: Arc<Board>,
    orders: Sender<Order>,
    observer: Arc<Observer>,
    mmas: Vec<Arc<MmaCounters>>,
    ports: Vec<PortRecord>,
    plan: CorePlan,
    stages_max: usize,
    warnings: Vec<String>,
    started: Instant,
}

/// What a [`DataPlane`] is made of.
pub struct DataPlaneParts {
    /// Compiled modules.
    pub artifacts: Arc<Artifacts>,
    /// What guests may import, for any of the workers' engines.
    pub linker: Linker<FwpContext>,
    /// What the launcher writes down.
    pub board: Arc<Board>,
    /// The launcher.
    pub orders: Sender<Order>,
    /// The gateway's counters.
    pub observer: Arc<Observer>,
    /// The MMAs' counters.
    pub mmas: Vec<Arc<MmaCounters>>,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortRecord>,
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
        let DataPlaneParts { artifacts, linker, board, orders, observer, mmas, ports, plan, stages_max, warnings } =
            parts;
        let (memory_bytes, started) = (Mutex::default(), Instant::now());
        Self {
            artifacts,
            linker,
            memory_bytes,
            board,
            orders,
            observer,
            mmas,
            ports,
            plan,
            stages_max,
            warnings,
            started,
        }
    }

    /// Loads an admitted module as a worker would, and joins it to its imports: whatever would fail there fails here. The
    /// memory that an FWP of it starts with, in bytes.
    fn try_out(&self, digest: &Digest) -> Result<u64, String> {
        let module = self.artifacts.load(self.linker.engine(), digest).map_err(|error| error.to_string())?;
        self.linker.instantiate_pre(&module).map_err(|error| format!("{error:#}"))?;
        Ok(module.resources_required().max_initial_memory_size.unwrap_or(0) * WASM_PAGE_BYTES)
    }

    fn memory_suffices(&self, state: &DesiredState, chain: &Chain) -> Result<(), Refusal> {
        let known = lock(&self.memory_bytes);
        for stage in &chain.stages {
            let Some(module) = state.module(&chain.tenant, &stage.module) else { continue };
            let needed_kib = known.get(&module.digest).map_or(0, |bytes| bytes / 1024);
            if needed_kib > u64::from(chain.memory_limit_kib) {
                let (tenant, name, limit_kib) = (&chain.tenant, &chain.name, chain.memory_limit_kib);
                return Err(Refusal::Invalid(format!(
                    "chain {tenant}/{name}: module {} starts with {needed_kib} KiB of memory, and memory_limit_kib is \
                     {limit_kib}: raise it",
                    module.name
                )));
            }
        }
        Ok(())
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
}

impl Node for DataPlane {
    fn admit(&self, digest: &Digest, wasm: &[u8]) -> Result<(), Refusal> {
        let admitted = self.artifacts.admit(digest, wasm).map_err(|error| match error {
            ArtifactError::Refused(_) | ArtifactError::Limits(_) => Refusal::Invalid(error.to_string()),
            _ => Refusal::Failed(error.to_string()),
        })?;
        match self.try_out(digest) {
            Ok(memory_bytes) => {
                lock(&self.memory_bytes).insert(*digest, memory_bytes);
                Ok(())
            }
            Err(reason) if admitted == Admitted::Now => {
                self.forget(digest);
                Err(Refusal::Invalid(format!("it cannot run on this node: {reason}")))
            }
            // It ran here before, so the fault is not the module's; and it may be in use.
            Err(reason) => Err(Refusal::Failed(format!("it cannot be loaded now: {reason}"))),
        }
    }

    fn check(&self, state: &DesiredState) -> Result<(), Refusal> {
        for ((tenant, name), chain) in state.chains() {
            let named = chain.stages.iter().flat_map(|stage| &stage.outputs).filter_map(|output| match output {
                Output::Port(port) => Some(port),
                Output::Stage(_) | Output::Egress => None,
            });
            for port in chain.egress.iter().chain(named) {
                self.port_known(Some(port), &format_args!("chain {tenant}/{name}"))?;
            }
            self.memory_suffices(state, chain)?;
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
        for ((tenant, name), module) in state.modules() {
            if !self.artifacts.has(&module.digest).map_err(|error| Refusal::Failed(error.to_string()))? {
                return Err(Refusal::Unfit(format!("module {tenant}/{name}: {} was not admitted", module.digest)));
            }
        }
        Ok(())
    }

    fn follow(&self, state: Arc<DesiredState>) {
        let (done, followed) = crossbeam_channel::bounded(1);
        if self.orders.send(Order::Follow(state, done)).is_ok() {
            // Fails when the launcher has ended, as the node is stopping, or the gateway is stuck: then the status tells.
            let _ = followed.recv_timeout(FOLLOW_TIME_MAX);
        }
    }

    fn forget(&self, digest: &Digest) {
        lock(&self.memory_bytes).remove(digest);
        if let Err(error) = self.artifacts.forget(digest) {
            tracing::warn!(%digest, "an artifact stays: {error}");
        }
    }

    fn chain_instances(&self) -> Vec<ChainInstanceStatus> {
        self.board.entries().chain_instances()
    }

    fn fwps(&self) -> Vec<FwpStatus> {
        self.board.entries().fwps()
    }

    fn status(&self) -> NodeStatus {
        let cores = self.plan.by_core().into_iter().map(|(core, roles)| CoreStatus {
            core: u32::from(core.0),
            roles: roles.into_iter().map(str::to_owned).collect(),
        });
        let of_mmas =
            |count: fn(&MmaCounters) -> &Counter| -> u64 { self.mmas.iter().map(|mma| count(mma).value()).sum() };
        let ports = (0..self.ports.len()).map(|index| self.port_status(index)).collect();
        let entries = self.board.entries();
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: self.started.elapsed().as_millis() as u64,
            followed_version: entries.followed_version,
            cores: cores.collect(),
            ports,
            chains: entries.chain_statuses(),
            warnings: self.warnings.iter().chain(&entries.warnings).cloned().collect(),
            copied_bytes: of_mmas(|mma| &mma.copied_bytes),
            dropped_gone: of_mmas(|mma| &mma.dropped_gone),
        }
    }
}
