//! Puts a node together from its configuration, starts its threads, and takes it apart again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use pinion_control::journal::Journal;
use pinion_control::model::PortName;
use pinion_gateway::gateway::{Gateway, GatewayConfig, PortSetup};
use pinion_gateway::invoke::{Dispatcher, InvokeCounters, InvokePort};
use pinion_gateway::observer::Observer;
use pinion_gateway::port::{BufferPool, Port};
use pinion_mma::counters::MmaCounters;
use pinion_mma::doorbell::Doorbell;
use pinion_mma::id::PortIndex;
use pinion_mma::link::link;
use pinion_mma::mover::Mma;
use pinion_mma::next_up::NextUp;
use pinion_mma::notify::{Notifier, ReadyQueue};
use wasmtime::Engine;

use crate::accounts::Accounts;
use crate::activation::Activations;
use crate::allocator;
use crate::artifacts::Artifacts;
use crate::board::Board;
use crate::builds::Builds;
use crate::bundles::Bundles;
use crate::clock::{Clock, Haste, LINGER, LINGER_APART, Watch};
use crate::config::{NodeConfig, PortConfig};
use crate::engine::Reset;
use crate::invocations::Invocations;
use crate::launcher::{
    Books, Caller, Catalogue, Desk, Ears, Instances, Launcher, Lines, Order, Orders, Places, Shelf, WorkerLine,
    per_worker, stages_max,
};
use crate::lines::line;
use crate::log::LogHub;
use crate::machine::{MachineFacts, Needs};
use crate::meters::{Meters, TurnMeters};
use crate::node::{DataPlane, DataPlaneParts, PortRecord};
use crate::plan::{CoreId, CorePlan, available_cores, pin_here, stay_on};
use crate::ports::{GatewayThread, Opened};
use crate::pressure::{self, Sources};
use crate::roles::{self, Idle, Role};
use crate::spare::SparePages;
use crate::state::StateStore;
use crate::terms::Tenants;
use crate::worker::Worker;
use crate::workshop::Workshop;
use crate::{engine, imports, log, ports};
use pinion_builder_client::process::{self, Builder};

/// Frames taken from and given to a port at once.
const BURST: usize = 64;

/// The control API's line to functions, and those of whoever embeds the node.
const INVOKE_LINES: u8 = 2;
/// Calls under way on each, at most.
const CALLS_MAX: u32 = 1024;

/// Why a node can't be put together: a sentence naming the value and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// The operator's configuration does not fit the machine.
    #[error("{0}")]
    Unfit(String),
    /// The machine failed.
    #[error("{0}")]
    Failed(String),
}

/// A node at work.
pub struct Assembled {
    /// What the control plane talks to.
    pub data_plane: Arc<DataPlane>,
    stop: Arc<Stop>,
    bells: Vec<Doorbell>,
    ticker_bell: Doorbell,
    pressure: Option<pressure::Ending>,
    orders: Orders,
    invocations: Arc<Invocations>,
    log: LogHub,
    launcher: Option<JoinHandle<()>>,
    roles: Vec<JoinHandle<()>>,
    /// The ticker, the guests' log, and who looks whether memory is short.
    others: Vec<JoinHandle<()>>,
}

/// Who is to stop.
#[derive(Default)]
struct Stop {
    roles: AtomicBool,
    ticker: AtomicBool,
}

fn join(thread: JoinHandle<()>) {
    // A panic has ended the process: see `spawn`.
    let _ = thread.join();
}

impl Drop for Assembled {
    /// Stops every thread and waits for it: the launcher first, then the roles, whose ports close with them, and the ticker
    /// last: until then a worker may be in a guest that nothing else would take off the core.
    fn drop(&mut self) {
        self.pressure.take().inspect(pressure::Ending::ring);
        self.invocations.stop();
        self.orders.give(Order::Stop);
        self.launcher.take().into_iter().for_each(join);
        self.stop.roles.store(true, Ordering::SeqCst);
        self.bells.iter().for_each(Doorbell::ring);
        self.roles.drain(..).for_each(join);
        self.log.end();
        self.stop.ticker.store(true, Ordering::SeqCst);
        self.ticker_bell.ring();
        self.others.drain(..).for_each(join);
    }
}

/// One thread of the core plan while it is being put together.
struct Seat {
    core: CoreId,
    bell: Doorbell,
    roles: Vec<Role>,
}

struct Seats(Vec<Seat>);

impl Seats {
    fn new(plan: &CorePlan) -> Self {
        let seat = |(core, _)| Seat { core, bell: Doorbell::default(), roles: Vec::new() };
        Self(plan.by_core().into_iter().map(seat).collect())
    }

    fn at(&mut self, core: CoreId) -> &mut Seat {
        self.0.iter_mut().find(|seat| seat.core == core).expect("every core of the plan has a seat")
    }

    fn bell(&mut self, core: CoreId) -> Doorbell {
        self.at(core).bell.clone()
    }
}

/// Puts a node together and starts it.
///
/// # Errors
/// What does not fit or fails, before anything runs.
pub fn assemble(config: &NodeConfig) -> Result<Assembled, AssemblyError> {
    assemble_with(config, |gateway_core| ports::open(config, gateway_core))
}

/// Where threads belong that a node has beside its own: to the cores without a role, if there are any.
///
/// # Errors
/// The plan does not fit the machine.
pub fn control_cores(config: &NodeConfig) -> Result<Vec<CoreId>, AssemblyError> {
    core_plan(config).map(|(plan, cores)| plan.for_control(&cores))
}

/// The roles' cores, and all that this process may run on.
fn core_plan(config: &NodeConfig) -> Result<(CorePlan, Vec<CoreId>), AssemblyError> {
    let cores = available_cores().map_err(|error| failed("the cores of this process", &error))?;
    let plan = CorePlan::new(&config.cores, &cores).map_err(|error| AssemblyError::Unfit(error.to_string()))?;
    Ok((plan, cores))
}

/// The same with ports that `open` opens, being told the gateway's core: as many as the configuration has, in its order. Of theirs, the
/// configuration says name and addresses only.
///
/// # Errors
/// As [`assemble`].
pub fn assemble_with(
    config: &NodeConfig,
    open: impl FnOnce(CoreId) -> Result<Opened, String>,
) -> Result<Assembled, AssemblyError> {
    let (plan, cores) = core_plan(config)?;
    allocator::keep_what_is_freed();
    let warnings = MachineFacts::read().check(&Needs::of(config)).map_err(AssemblyError::Unfit)?;
    let fwps_max = config.limits.fwps_max as usize;
    let swaps = std::fs::read_to_string("/proc/swaps").ok();
    let reset = config.memory_reset.resolved(swaps.as_deref());
    let engines = engines(fwps_max, plan.workers.len(), reset)?;
    let artifacts = Artifacts::open(config.state_dir.join("templates"), &engines[0]);
    let artifacts = Arc::new(artifacts.map_err(|error| failed("templates", &error))?);
    let bundles = Bundles::open(config.state_dir.join("files"));
    let bundles = Arc::new(bundles.map_err(|error| failed("files", &error))?);
    let builder = Builder::new(builder(config)?);
    let Opened { ports, pool, thread } = open(plan.gateway).map_err(AssemblyError::Unfit)?;
    if ports.len() != config.ports.len() {
        let (opened, wanted) = (ports.len(), config.ports.len());
        return Err(AssemblyError::Unfit(format!("{opened} ports were opened, and the configuration has {wanted}")));
    }
    let port_records = port_records(config, &ports);

    let mut clock = Clock::new(Duration::from_micros(u64::from(config.quantum_us)));
    let mut seats = Seats::new(&plan);
    let Joined { lines, ears, orders, observer, mmas, activations, turns, invoke, mut dispatchers } =
        data_plane(config, &plan, &mut seats, &engines, &mut clock, ports, pool)?;
    let board = Arc::new(Board::new(Arc::clone(observer.chain_drops())));
    let journal = Arc::<Journal>::default();
    let (log, log_drain) = log::hub(Arc::clone(&journal));
    let by_name = port_records.iter().zip(0..).map(|(port, index)| (port.name.to_string(), PortIndex(index))).collect();
    let accounts = Arc::new(Accounts::new(config.tenant_limits()));
    let cpu_grants = config.cpu_grants();
    let tenants = Tenants::new(cpu_grants.clone());
    let meters = Arc::new(Meters::new(plan.workers.len()));
    let state = Arc::new(StateStore::new(config.state_limits()));
    let shelves = shelves(&engines)?;
    let catalogue = Catalogue::new(
        Arc::clone(&artifacts),
        Arc::clone(&bundles),
        Books { accounts: Arc::clone(&accounts), tenants, meters: Arc::clone(&meters), state: Arc::clone(&state) },
        by_name,
        shelves,
    );
    let places = Places::new(fwps_max, plan.workers.len(), plan.mmas.len());
    let desk = Arc::new(Desk::new(ears.clone()));
    let orders = Orders::new(orders, Arc::clone(&desk));
    let instances = Instances::new(places, SparePages::new(reset), lines, Arc::clone(&board), log.clone());
    let launcher = Launcher::new(catalogue, instances, ears, Arc::clone(&desk), Arc::clone(&board));
    let (launcher_cores, control_cores) = (plan.for_launcher(&cores), plan.for_control(&cores));
    let ticker_cores = plan.for_ticker(&cores);
    let linger = if plan.without_role(&cores).is_empty() { LINGER } else { LINGER_APART };
    let builds = Builds::default();
    let invocations = Arc::new(Invocations::new(dispatchers.remove(0)));
    let linker = imports::linker(&engines[0]).map_err(|error| failed("the imports of guests", &error))?;
    let data_plane = DataPlane::new(DataPlaneParts {
        workshop: Workshop::new(builder, artifacts, bundles, linker, log.clone(), builds.clone()),
        board,
        journal,
        builds,
        accounts,
        state,
        meters,
        cpu_grants,
        orders: orders.clone(),
        observer,
        mmas,
        activations,
        turns,
        ports: port_records,
        invoke,
        invocations: Arc::clone(&invocations),
        dispatchers,
        fwps_max,
        stages_max: stages_max(fwps_max, plan.workers.len(), plan.mmas.len()),
        plan,
        warnings,
    });
    let mut node = Assembled {
        data_plane: Arc::new(data_plane),
        stop: Arc::default(),
        bells: seats.0.iter().map(|seat| seat.bell.clone()).collect(),
        ticker_bell: clock.bell(),
        pressure: None,
        orders,
        invocations: Arc::clone(&invocations),
        log,
        launcher: None,
        roles: Vec::new(),
        others: Vec::new(),
    };
    let launcher_seat = LauncherSeat { cores: launcher_cores.clone(), desk };
    node.launcher = Some(spawn_on(&launcher_cores, "launcher", move || launcher.run())?);
    node.others.push(spawn_on(&control_cores, "guest-log", move || log_drain.run())?);
    node.others.push(spawn_on(&control_cores, "invocations", move || invocations.run())?);
    watch_memory(&mut node, &control_cores, config)?;
    let (watch, stop) = (clock.wind_up(), Arc::clone(&node.stop));
    let ticker = Arc::clone(&watch);
    node.others.push(spawn_on(&ticker_cores, "ticker", move || ticker.run(linger, &stop.ticker))?);
    start_roles(&mut node, seats, thread, &watch, config.idle, &launcher_seat)?;
    Ok(node)
}

/// Has the launcher learn when memory is short.
fn watch_memory(node: &mut Assembled, cores: &[CoreId], config: &NodeConfig) -> Result<(), AssemblyError> {
    let sources = Sources::new(config.memory_cgroup.as_deref());
    let (watch, ending) = pressure::Watch::new(sources).map_err(|error| failed("memory pressure", &error))?;
    let orders = node.orders.clone();
    node.pressure = Some(ending);
    let tell = move |level| orders.give(Order::Relieve(level));
    node.others.push(spawn_on(cores, "pressure", move || watch.run(tell))?);
    Ok(())
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> AssemblyError {
    AssemblyError::Failed(format!("{what}: {error}"))
}

/// The data plane's ends that others hold.
struct Joined {
    lines: Lines,
    ears: Ears,
    orders: Sender<Order>,
    observer: Arc<Observer>,
    mmas: Vec<Arc<MmaCounters>>,
    activations: Vec<Arc<Activations>>,
    turns: Vec<Arc<TurnMeters>>,
    invoke: Arc<InvokeCounters>,
    dispatchers: Vec<Dispatcher>,
}

/// Seats gateway, MMA and workers, and joins them to each other and to the launcher.
fn data_plane(
    config: &NodeConfig,
    plan: &CorePlan,
    seats: &mut Seats,
    engines: &[Engine],
    clock: &mut Clock,
    ports: Vec<Box<dyn Port>>,
    pool: Box<dyn BufferPool>,
) -> Result<Joined, AssemblyError> {
    let fwps_max = config.limits.fwps_max as usize;
    let gateway_bell = seats.bell(plan.gateway);
    let (gateway_line, gateway_reads) = line(&gateway_bell);
    // Room for every event that can be outstanding per FWP, and for answers to all commands under way.
    let (gateway_events, gateway_heard) = crossbeam_channel::bounded(4 * fwps_max + 4096);
    let (mma_events, mma_heard) = crossbeam_channel::bounded(2 * fwps_max + 1);
    let (worker_events, worker_heard) = crossbeam_channel::bounded(2 * fwps_max + 1);
    let (orders, orders_heard) = crossbeam_channel::unbounded();
    let next_up = Arc::<NextUp>::default();

    // Between each MMA and each worker a notifier both ways.
    let mut outputs = ready_queues(&plan.mmas, fwps_max, seats);
    let mut inputs = ready_queues(&plan.workers, fwps_max, seats);
    // A quarter of the buffers may be lent to the MMAs; the rest is for devices and frames that wait.
    let lent_max = (config.limits.buffers / 4) as usize;
    let per_mma = previous_power_of_two(lent_max / plan.mmas.len());
    let (mut gateway_links, mut mma_lines, mut mmas) = (Vec::new(), Vec::new(), Vec::new());
    let to_workers = notifiers(&mut inputs, &plan.mmas);
    let to_mmas = notifiers(&mut outputs, &plan.workers);
    for ((core, ready), workers) in outputs.into_iter().zip(to_workers) {
        let seat = seats.at(core);
        let bells = if core == plan.gateway {
            [Doorbell::of_oneself(), Doorbell::of_oneself()]
        } else {
            [gateway_bell.clone(), seat.bell.clone()]
        };
        let [to_gateway, to_mma] = bells;
        let (gateway_link, mma_link) = link(per_mma, to_gateway, to_mma);
        let (mma_line, mma_reads) = line(&seat.bell);
        let mut mma = Mma::new(fwps_max, ready, workers, mma_link, mma_reads, mma_events.clone());
        mma.keep_warm(Arc::clone(&next_up));
        mmas.push(Arc::clone(mma.counters()));
        seat.roles.push(Role::Mma(Box::new(mma)));
        gateway_links.push(gateway_link);
        mma_lines.push(mma_line);
    }
    let setup = |(port, config): (_, &PortConfig)| PortSetup { port, addresses: config.addresses.clone() };
    // As many as frames may wait for an instance.
    let calls_max = (config.limits.buffers / 8).min(CALLS_MAX) as usize;
    let (invoke_port, dispatchers) = InvokePort::new(INVOKE_LINES, calls_max, &gateway_bell);
    let invoke = Arc::clone(invoke_port.counters());
    let gateway = Gateway::new(GatewayConfig {
        invoke: Some(invoke_port),
        ports: ports.into_iter().zip(&config.ports).map(setup).collect(),
        pool,
        flows_max: config.limits.flows_max as usize,
        instances_max: fwps_max,
        pending_max: (config.limits.buffers / 8) as usize,
        burst: BURST,
        empties_max: per_mma / 4,
        links: gateway_links,
        commands: gateway_reads,
        events: gateway_events,
    });
    let mut gateway = gateway.map_err(|error| AssemblyError::Unfit(error.to_string()))?;
    gateway.announce_to(Arc::clone(&next_up));
    let observer = gateway.observer();
    // Before the MMA, where they share a thread: what came in by a poll of the one is moved in the same round by the other.
    seats.at(plan.gateway).roles.insert(0, Role::Gateway(Box::new(gateway)));
    let places = inputs.into_iter().zip(to_mmas).zip(engines);
    let ends = WorkerEnds { events: &worker_events, observer: &observer, next_up: &next_up };
    let workers = workers(seats, places, fwps_max, clock, &ends);
    let activations = workers.iter().map(|line| Arc::clone(&line.activations)).collect();
    let turns = workers.iter().map(|line| Arc::clone(&line.turns)).collect();

    let lines = Lines { gateway: gateway_line, mmas: mma_lines, workers };
    let ears = Ears { orders: orders_heard, gateway: gateway_heard, mmas: mma_heard, workers: worker_heard };
    Ok(Joined { lines, ears, orders, observer, mmas, activations, turns, invoke, dispatchers })
}

/// Rings have sizes of this kind, and are never to hold more than they were meant to.
fn previous_power_of_two(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

fn engines(fwps_max: usize, workers: usize, reset: Reset) -> Result<Vec<Engine>, AssemblyError> {
    let engine = |_| {
        engine::engine(per_worker(fwps_max, workers), reset).map_err(|error| {
            AssemblyError::Unfit(format!("limits.fwps_max = {fwps_max} does not fit this process: {error:#}"))
        })
    };
    (0..workers).map(engine).collect()
}

fn shelves(engines: &[Engine]) -> Result<Vec<Shelf>, AssemblyError> {
    let shelf = |engine| imports::linker(engine).map(Shelf::new);
    engines.iter().map(shelf).collect::<Result<_, _>>().map_err(|error| AssemblyError::Failed(format!("{error:#}")))
}

/// Where a role is, and who it is notified of there.
type Seated = (CoreId, ReadyQueue);

/// A queue for the role on each of these cores.
fn ready_queues(cores: &[CoreId], fwps_max: usize, seats: &mut Seats) -> Vec<Seated> {
    cores.iter().map(|&core| (core, ReadyQueue::new(fwps_max, seats.bell(core)))).collect()
}

/// For the role on each of these cores, what notifies each of those that have the queues.
fn notifiers(queues: &mut [Seated], cores: &[CoreId]) -> Vec<Vec<Notifier>> {
    let mut of_role = |core: &CoreId| {
        let to = |(there, queue): &mut Seated| {
            if there == core { queue.notifier_of_oneself() } else { queue.notifier() }
        };
        queues.iter_mut().map(to).collect()
    };
    cores.iter().map(&mut of_role).collect()
}

/// What all workers are joined to.
struct WorkerEnds<'a> {
    /// The launcher.
    events: &'a Sender<crate::worker::WorkerEvent>,
    observer: &'a Observer,
    next_up: &'a Arc<NextUp>,
}

fn workers<'a>(
    seats: &mut Seats,
    places: impl Iterator<Item = ((Seated, Vec<Notifier>), &'a Engine)>,
    fwps_max: usize,
    clock: &mut Clock,
    ends: &WorkerEnds<'_>,
) -> Vec<WorkerLine> {
    let WorkerEnds { events, observer, next_up } = *ends;
    let mut lines = Vec::new();
    for (((core, inputs), mmas), engine) in places {
        let seat = seats.at(core);
        let view = inputs.view();
        let (commands, reads) = line(&seat.bell);
        let slot = clock.slot(engine, Haste::Others);
        let mut worker = Worker::new(fwps_max, inputs, mmas, reads, events.clone(), slot);
        worker.keep_warm(Arc::clone(next_up));
        let turns = Arc::clone(worker.meters());
        seat.roles.push(Role::Worker(Box::new(worker)));
        let activations = Arc::new(Activations::new(Arc::clone(observer.flow_misses())));
        lines.push(WorkerLine {
            core,
            commands,
            inputs: view,
            clock: clock.slot(engine, Haste::None),
            activations,
            turns,
        });
    }
    lines
}

/// Where the launcher is.
struct LauncherSeat {
    cores: Vec<CoreId>,
    desk: Arc<Desk>,
}

fn start_roles(
    node: &mut Assembled,
    seats: Seats,
    thread: GatewayThread,
    watch: &Arc<Watch>,
    idle: Idle,
    launcher: &LauncherSeat,
) -> Result<(), AssemblyError> {
    let mut gateway_thread = Some(thread);
    let (report, reports): (Sender<Result<(), String>>, Receiver<_>) = crossbeam_channel::unbounded();
    let wakeups = roles::wakeups(seats.0.iter().map(|seat| (&seat.bell, &*seat.roles)));
    for (Seat { core, mut roles, .. }, wakeup) in seats.0.into_iter().zip(wakeups) {
        let has_gateway = roles.iter().any(|role| matches!(role, Role::Gateway(_)));
        let thread = if has_gateway { gateway_thread.take() } else { None };
        let (watch, stop, report) = (Arc::clone(watch), Arc::clone(&node.stop), report.clone());
        let caller = Caller::new(Arc::clone(&launcher.desk), launcher.cores.contains(&core).then_some(core));
        match &mut roles[..] {
            [Role::Worker(worker)] => worker.has_thread_to_itself(),
            [Role::Gateway(gateway), .., Role::Worker(_)] => gateway.shares_thread_with_functions(),
            _ => {}
        }
        node.roles.push(spawn(&format!("core-{}", core.0), move || {
            let pinned = pin_here(&[core]).map_err(|error| format!("core {}: {error}", core.0));
            let registered = pinned.and_then(|()| thread.as_ref().map(GatewayThread::register).transpose());
            let _ = report.send(registered.as_ref().map(|_| ()).map_err(Clone::clone));
            drop(report);
            if registered.is_ok() {
                roles::run(&mut roles, wakeup, &watch, idle, caller, &stop.roles);
            }
            // Ports close before the thread is unknown to their driver.
            drop(roles);
            drop(registered);
        })?);
    }
    drop(report);
    reports.iter().collect::<Result<(), String>>().map_err(AssemblyError::Failed)
}

/// Starts a thread without which the node is none: should it panic, the process ends rather than go on with clients that
/// nobody serves, and whoever supervises it starts it again.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, AssemblyError> {
    let named = name.to_owned();
    let guarded = move || {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            tracing::error!("thread {named} has panicked; the node can't go on");
            std::process::abort();
        }
    };
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(guarded);
    thread.map_err(|error| failed(&format!("thread {name}"), &error))
}

/// The same, on these cores.
fn spawn_on(
    cores: &[CoreId],
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, AssemblyError> {
    let cores = cores.to_vec();
    spawn(name, move || {
        stay_on(&cores);
        run();
    })
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
