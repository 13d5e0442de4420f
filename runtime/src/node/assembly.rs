//! Assembles a node from its configuration, starts its threads, and stops them again.
//!
//! ```text
//!   assemble --> wiring: parts of the data plane, joined --> threads: each started on its cores --> running: until it is dropped
//! ```

mod running;
mod threads;
mod wiring;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pinion_builder_client::process::{self, Builder};
use pinion_control::journal::Journal;
use pinion_control::model::PortName;
use pinion_gateway::port::Port;
use pinion_mma::id::PortIndex;
use wasmtime::{Engine, Linker};

use crate::cores::plan::{CoreId, CorePlan, available_cores};
use crate::fwp::{FwpContext, imports};
use crate::instruments::log;
use crate::launcher::{
    ActiveChains, ChainRecords, GrantedObjects, IndexAllocator, Instances, Launcher, LauncherInbox, LoadedTemplates,
    Orders, per_worker, stages_max,
};
use crate::memory::spare_pages::SparePages;
use crate::memory::{allocator, reset_check};
use crate::node::config::{NodeConfig, PortConfig};
use crate::node::data_plane::{DataPlane, DataPlaneParts, PortRecord};
use crate::node::invocations::Invocations;
use crate::node::machine::{MachineFacts, MachineRequirements};
use crate::node::ports::{self, Opened};
use crate::node::template_builds::{TemplateBuilds, TemplateBuildsParts};
use crate::offload::Offload;
use crate::preemption::{Clock, TickerCore};
use crate::reports::status_table::StatusTable;
use crate::state::StateStore;
use crate::supervisor::Supervised;
use crate::templates::artifacts::Artifacts;
use crate::templates::build_progress::Builds;
use crate::templates::bundles::Bundles;
use crate::templates::derived::Derived;
use crate::templates::engine::{self, Reset};
use crate::templates::model_forms::ModelForms;
use crate::templates::trials::Trials;
use crate::tenants::accounts::Accounts;
use crate::tenants::meters::Meters;
use crate::tenants::scheduling_params::Tenants;

pub use self::running::Assembled;
use self::threads::{LauncherPlacement, spawn_on, start_offload, start_roles, watch_memory};
use self::wiring::{Joined, ThreadPlans, data_plane};

/// Why a node cannot be assembled: a sentence that names the value and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// The operator's configuration does not fit the machine.
    #[error("{0}")]
    Unfit(String),
    /// An operation on the machine failed.
    #[error("{0}")]
    Failed(String),
}

/// Assembles a node and starts it, with the supervisor that starts its builders, if it has one.
///
/// # Errors
/// Returns what does not fit the machine or fails. No node runs then.
pub fn assemble(config: &NodeConfig, supervised: Option<&Supervised>) -> Result<Assembled, AssemblyError> {
    let builder = Builder::new(builder(config)?);
    let builder = match supervised {
        Some(Supervised { link, .. }) => builder.supervised_by(Arc::clone(link)),
        None => builder,
    };
    let supervisor = supervised.map(|Supervised { link, .. }| link);
    assemble_parts(config, builder, |gateway_core| ports::open(config, gateway_core, supervisor))
}

/// Returns the cores for the threads of the process that do not belong to the node: the cores without a role, if there are any.
///
/// # Errors
/// Fails if the core plan does not fit the machine.
pub fn control_cores(config: &NodeConfig) -> Result<Vec<CoreId>, AssemblyError> {
    core_plan(config).map(|(plan, cores)| plan.for_control(&cores))
}

/// Returns the plan of roles to cores, and all cores that this process may run on.
fn core_plan(config: &NodeConfig) -> Result<(CorePlan, Vec<CoreId>), AssemblyError> {
    let cores = available_cores().map_err(|error| failed("the cores of this process", &error))?;
    let plan = CorePlan::new(&config.cores, &cores).map_err(|error| AssemblyError::Unfit(error.to_string()))?;
    Ok((plan, cores))
}

/// Assembles a node with ports that `open` opens; it gets the gateway's core. `open` returns as many ports as the configuration has, in the
/// same order. Of the ports' configuration only name, device (as a label) and addresses are used.
///
/// # Errors
/// As for [`assemble`], and if `open` fails or returns another number of ports.
pub fn assemble_with(
    config: &NodeConfig,
    open: impl FnOnce(CoreId) -> Result<Opened, String>,
) -> Result<Assembled, AssemblyError> {
    assemble_parts(config, Builder::new(builder(config)?), open)
}

fn assemble_parts(
    config: &NodeConfig,
    builder: Builder,
    open: impl FnOnce(CoreId) -> Result<Opened, String>,
) -> Result<Assembled, AssemblyError> {
    let (plan, cores) = core_plan(config)?;
    allocator::keep_what_is_freed();
    pinion_mma::tuning::set(config.tuning.into());
    let machine = MachineFacts::read();
    machine.check().map_err(AssemblyError::Unfit)?;
    let mut warnings = Vec::new();
    let fwps_max = config.limits.fwps_max as usize;
    let reset = reset(config.memory_reset, &machine, &mut warnings)?;
    let engines = engines(fwps_max, plan.workers.len(), reset)?;
    let derived = Arc::new(Derived::new(&config.state_dir));
    let artifacts = Artifacts::open(config.state_dir.join("templates"), &engines[0], Arc::clone(&derived));
    let artifacts = Arc::new(artifacts.map_err(|error| failed("templates", &error))?);
    let bundles = Bundles::open(config.state_dir.join("files"), Arc::clone(&derived));
    let bundles = Arc::new(bundles.map_err(|error| failed("files", &error))?);
    let forms = ModelForms::open(config.state_dir.join("forms"), Arc::clone(&derived));
    let forms = forms.map_err(|error| failed("forms of models", &error))?;
    let Opened { ports, pool, thread } = open(plan.gateway).map_err(AssemblyError::Unfit)?;
    if ports.len() != config.ports.len() {
        let (opened, wanted) = (ports.len(), config.ports.len());
        return Err(AssemblyError::Unfit(format!("{opened} ports were opened, and the configuration has {wanted}")));
    }
    let port_records = port_records(config, &ports);

    let mut clock = Clock::new(Duration::from_micros(u64::from(config.quantum_us)));
    let mut threads = ThreadPlans::new(&plan);
    let offload = Arc::new(Offload::new(config.offload_limits()));
    let Joined { lines, receivers, orders, observer, mmas, activations, turns, invoke, mut dispatchers } =
        data_plane(config, &plan, &mut threads, &engines, &mut clock, (ports, pool), &offload)?;
    let status_table = Arc::new(StatusTable::new(Arc::clone(observer.chain_drops())));
    let journal = Arc::<Journal>::default();
    let (log, log_drain) = log::hub(Arc::clone(&journal));
    let by_name = port_records.iter().zip(0..).map(|(port, index)| (port.name.to_string(), PortIndex(index))).collect();
    let accounts = Arc::new(Accounts::new(config.tenant_limits()));
    let cpu_grants = config.cpu_grants();
    let tenants = Tenants::new(cpu_grants.clone());
    let meters = Arc::new(Meters::new(plan.workers.len()));
    let state = Arc::new(StateStore::new(config.state_limits()));
    let (artifacts_of_loaded, linkers) = (Arc::clone(&artifacts), linkers(&engines)?);
    let loaded = LoadedTemplates::new(artifacts_of_loaded, Arc::clone(&bundles), Arc::clone(&accounts), linkers);
    let loaded = Arc::new(loaded);
    let trials = Arc::new(Trials::open(&config.state_dir));
    let granted = Arc::new(GrantedObjects::new(Arc::clone(&accounts)));
    let records = ChainRecords {
        accounts: Arc::clone(&accounts),
        tenants,
        meters: Arc::clone(&meters),
        state: Arc::clone(&state),
        granted: Arc::clone(&granted),
        trials: Arc::clone(&trials),
    };
    let catalogue = ActiveChains::new(Arc::clone(&loaded), records, by_name);
    let places = IndexAllocator::new(fwps_max, plan.workers.len(), plan.mmas.len());
    let inbox = Arc::new(LauncherInbox::new(receivers.clone()));
    let orders = Orders::new(orders, Arc::clone(&inbox));
    let spare = SparePages::new(reset);
    let instances = Instances::new(places, spare, lines, Arc::clone(&status_table), log.clone(), Arc::clone(&trials));
    let launcher = Launcher::new(catalogue, instances, receivers, Arc::clone(&inbox), Arc::clone(&status_table));
    let (launcher_cores, control_cores) = (plan.for_launcher(&cores), plan.for_control(&cores));
    let ticker_cores = plan.for_ticker(&cores);
    let ticker_core = if plan.without_role(&cores).is_empty() { TickerCore::Shared } else { TickerCore::Apart };
    let offload_cores =
        [plan.signers.as_deref(), plan.inference.as_deref()].map(|named| plan.for_offload(named, &cores));
    let builds = Builds::default();
    let invocations = Arc::new(Invocations::new(dispatchers.remove(0)));
    let workshop = TemplateBuilds::new(TemplateBuildsParts {
        builder,
        artifacts,
        bundles,
        forms,
        loaded,
        granted,
        log: log.clone(),
        builds: builds.clone(),
        derived,
        trials: Arc::clone(&trials),
    });
    let data_plane = DataPlane::new(DataPlaneParts {
        workshop,
        trials,
        status_table,
        journal,
        builds,
        accounts,
        state,
        meters,
        offload: Arc::clone(&offload),
        cpu_grants: Mutex::new(cpu_grants),
        orders: orders.clone(),
        observer,
        mmas,
        activations,
        turns,
        ports: port_records,
        invoke,
        invocations: Arc::clone(&invocations),
        dispatchers: Mutex::new(dispatchers),
        stages_max: stages_max(fwps_max, plan.workers.len(), plan.mmas.len()),
        plan,
        warnings,
        machine: MachineRequirements::of(config, &machine),
        log: log.clone(),
    });
    let mut node = Assembled {
        data_plane: Arc::new(data_plane),
        stop: Arc::default(),
        bells: threads.0.iter().map(|thread| thread.bell.clone()).collect(),
        ticker_bell: clock.bell(),
        pressure: None,
        orders,
        invocations: Arc::clone(&invocations),
        log,
        launcher: None,
        roles: Vec::new(),
        offload: Arc::clone(&offload),
        others: Vec::new(),
    };
    start_offload(&mut node, &offload, &offload_cores)?;
    let launcher_seat = LauncherPlacement { cores: launcher_cores.clone(), inbox };
    node.launcher = Some(spawn_on(&launcher_cores, "launcher", &node.stop, move || launcher.run())?);
    node.others.push(spawn_on(&control_cores, "guest-log", &node.stop, move || log_drain.run())?);
    node.others.push(spawn_on(&control_cores, "invocations", &node.stop, move || invocations.run())?);
    watch_memory(&mut node, &control_cores, config)?;
    let (watch, stop) = (clock.wind_up(), Arc::clone(&node.stop));
    let ticker = Arc::clone(&watch);
    let ticking = move || ticker.run(ticker_core, &stop.ticker);
    node.others.push(spawn_on(&ticker_cores, "ticker", &node.stop, ticking)?);
    start_roles(&mut node, threads, thread, &watch, config.idle, &launcher_seat)?;
    Ok(node)
}

fn builder(config: &NodeConfig) -> Result<PathBuf, AssemblyError> {
    let program = process::place(config.builder.clone());
    if program.is_file() {
        return Ok(program);
    }
    let path = program.display();
    Err(AssemblyError::Unfit(format!("there is no builder at {path}: set `builder` to the path of pinion-builder")))
}

fn port_records(config: &NodeConfig, ports: &[Box<dyn Port>]) -> Vec<PortRecord> {
    let record = |(port, config): (&dyn Port, &PortConfig)| PortRecord {
        name: PortName::new(config.name.clone()).expect("checked with the configuration"),
        device: config.device.clone(),
        facts: port.facts(),
        counters: Arc::clone(port.counters()),
    };
    ports.iter().map(|port| &**port).zip(&config.ports).map(record).collect()
}

/// A page that the kernel moves in a trial fails it.
const TRIALS: usize = 3;

/// Returns how memory is reset here. Tries first whether it can be overwritten.
fn reset(asked: Reset, machine: &MachineFacts, warnings: &mut Vec<String>) -> Result<Reset, AssemblyError> {
    if asked == Reset::Unmap {
        return Ok(asked);
    }
    let trial = (0..TRIALS).map(|_| reset_check::self_test()).reduce(Result::or).expect("there are trials");
    match (&trial, asked) {
        (Err(fault), Reset::Overwrite) => {
            let refusal =
                format!("memory_reset is \"overwrite\", which does not work here: {fault}: set it to \"auto\"");
            return Err(AssemblyError::Unfit(refusal));
        }
        (Err(fault), Reset::Auto) => {
            warnings.push(format!(
                "the memory of ended instances takes longer to reset, as it cannot be overwritten: {fault}"
            ));
        }
        _ => {}
    }
    Ok(asked.resolved(trial.is_ok(), machine.may_swap()))
}

fn engines(fwps_max: usize, workers: usize, reset: Reset) -> Result<Vec<Engine>, AssemblyError> {
    let engine = |_| {
        engine::engine(per_worker(fwps_max, workers), reset).map_err(|error| {
            AssemblyError::Unfit(format!("limits.fwps_max = {fwps_max} does not fit this process: {error:#}"))
        })
    };
    (0..workers).map(engine).collect()
}

fn linkers(engines: &[Engine]) -> Result<Vec<Linker<FwpContext>>, AssemblyError> {
    let linkers = engines.iter().map(imports::linker).collect::<wasmtime::Result<_>>();
    linkers.map_err(|error| failed("the imports of guests", &error))
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> AssemblyError {
    AssemblyError::Failed(format!("{what}: {error}"))
}
