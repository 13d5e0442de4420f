//! How the parts of the data plane are joined: queues, notifiers, links and channels between gateway, MMAs, workers and launcher.

use super::AssemblyError;
use crate::clock::stopwatch;
use crate::cores::command_sender::line;
use crate::cores::plan::{CoreId, CorePlan};
use crate::instruments::activation::Activations;
use crate::launcher::{CommandSenders, Order, Receivers, WorkerLine};
use crate::node::config::{NodeConfig, PortConfig};
use crate::offload::{Offload, OffloadPort};
use crate::preemption::{Clock, TickUrgency};
use crate::roles::Role;
use crate::tenants::meters::TurnMeters;
use crate::tenants::node_use::UseElsewhere;
use crate::worker::Worker;
use crossbeam_channel::Sender;
use pinion_gateway::fwp_times::KeepAlives;
use pinion_gateway::gateway::Observer;
use pinion_gateway::gateway::{Gateway, GatewayConfig, PortSetup};
use pinion_gateway::invoke::{Dispatcher, InvokeCounters, InvokePort};
use pinion_gateway::port::{BufferPool, Port};
use pinion_mma::accounts::counters::MmaCounters;
use pinion_mma::link::link;
use pinion_mma::mover::Mma;
use pinion_mma::notify::doorbell::Doorbell;
use pinion_mma::notify::{Notifier, ReadyQueue};
use pinion_mma::tuning::upcoming::UpcomingInstances;
use std::sync::Arc;
use wasmtime::Engine;

/// Frames received from or sent to a port in one batch.
const BURST: usize = 64;

/// Dispatchers: one for the control API, the rest for the program that embeds the node.
const INVOKE_LINES: u8 = 2;
/// Most calls under way on each dispatcher.
const CALLS_MAX: u32 = 1024;

/// One thread of the core plan during assembly.
pub(super) struct ThreadPlan {
    pub(super) core: CoreId,
    pub(super) bell: Doorbell,
    pub(super) roles: Vec<Role>,
}

pub(super) struct ThreadPlans(pub(super) Vec<ThreadPlan>);

impl ThreadPlans {
    pub(super) fn new(plan: &CorePlan) -> Self {
        let thread = |(core, _)| ThreadPlan { core, bell: Doorbell::default(), roles: Vec::new() };
        Self(plan.by_core().into_iter().map(thread).collect())
    }

    pub(super) fn at(&mut self, core: CoreId) -> &mut ThreadPlan {
        self.0.iter_mut().find(|thread| thread.core == core).expect("every core of the plan has a thread")
    }

    pub(super) fn bell(&mut self, core: CoreId) -> Doorbell {
        self.at(core).bell.clone()
    }
}

/// The ends of the data plane's channels and counters that control threads and the launcher hold.
pub(super) struct Joined {
    pub(super) lines: CommandSenders,
    pub(super) receivers: Receivers,
    pub(super) orders: Sender<Order>,
    pub(super) observer: Arc<Observer>,
    pub(super) mmas: Vec<Arc<MmaCounters>>,
    pub(super) activations: Vec<Arc<Activations>>,
    pub(super) turns: Vec<Arc<TurnMeters>>,
    pub(super) invoke: Arc<InvokeCounters>,
    pub(super) dispatchers: Vec<Dispatcher>,
}

/// Assigns gateway, MMAs and workers to their threads, and connects them to each other and to the launcher.
pub(super) fn data_plane(
    config: &NodeConfig,
    plan: &CorePlan,
    threads: &mut ThreadPlans,
    engines: &[Engine],
    clock: &mut Clock,
    (ports, pool): (Vec<Box<dyn Port>>, Box<dyn BufferPool>),
    offload: &Arc<Offload>,
) -> Result<Joined, AssemblyError> {
    let fwps_max = config.limits.fwps_max as usize;
    let gateway_bell = threads.bell(plan.gateway);
    let (gateway_line, gateway_reads) = line(&gateway_bell);
    // The capacities cover every event that can be outstanding per FWP, and answers to all commands under way.
    let (gateway_events, gateway_heard) = crossbeam_channel::bounded(4 * fwps_max + 4096);
    let (mma_events, mma_heard) = crossbeam_channel::bounded(2 * fwps_max + 1);
    let (worker_events, worker_heard) = crossbeam_channel::bounded(4 * fwps_max + 1);
    let (orders, orders_heard) = crossbeam_channel::unbounded();
    let upcoming = Arc::<UpcomingInstances>::default();

    // Each pair of MMA and worker has a notifier in both directions.
    let mut outputs = ready_queues(&plan.mmas, fwps_max, threads);
    let mut inputs = ready_queues(&plan.workers, fwps_max, threads);
    // A quarter of the buffers may be lent to the MMAs; the rest is for devices and pending frames.
    let lent_max = (config.limits.buffers / 4) as usize;
    let per_mma = previous_power_of_two(lent_max / plan.mmas.len());
    let (mut gateway_links, mut mma_lines, mut mmas) = (Vec::new(), Vec::new(), Vec::new());
    let to_workers = notifiers(&mut inputs, &plan.mmas);
    let to_mmas = notifiers(&mut outputs, &plan.workers);
    for ((core, ready), workers) in outputs.into_iter().zip(to_workers) {
        let thread = threads.at(core);
        let bells = if core == plan.gateway {
            [Doorbell::of_oneself(), Doorbell::of_oneself()]
        } else {
            [gateway_bell.clone(), thread.bell.clone()]
        };
        let [to_gateway, to_mma] = bells;
        let (gateway_link, mma_link) = link(per_mma, to_gateway, to_mma);
        let (mma_line, mma_reads) = line(&thread.bell);
        let mut mma = Mma::new(fwps_max, ready, workers, mma_link, mma_reads, mma_events.clone(), stopwatch());
        mma.keep_warm(Arc::clone(&upcoming));
        mmas.push(Arc::clone(mma.counters()));
        thread.roles.push(Role::Mma(Box::new(mma)));
        gateway_links.push(gateway_link);
        mma_lines.push(mma_line);
    }
    let setup = |(port, config): (_, &PortConfig)| PortSetup {
        port,
        networks: config.networks(),
        reverse_path: config.reverse_path.into(),
    };
    // At most as many calls as frames may wait for an instance.
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
    gateway.publish_upcoming_to(Arc::clone(&upcoming));
    let observer = gateway.observer();
    let keep_alive_max_ns = u64::from(config.limits.keep_alive_max_s) * 1_000_000_000;
    let keep_alives = Arc::new(KeepAlives::new(fwps_max, keep_alive_max_ns, Arc::clone(observer.flow_misses())));
    gateway.keep_alive_by(Arc::clone(&keep_alives));
    // The gateway precedes the MMA where they share a thread, so that the MMA moves a received frame in the same round of polls.
    threads.at(plan.gateway).roles.insert(0, Role::Gateway(Box::new(gateway)));
    let views = UseElsewhere::of_workers(plan.workers.len());
    let places = inputs.into_iter().zip(to_mmas).zip(engines).zip(views);
    let ends = WorkerEnds { events: &worker_events, observer: &observer, upcoming: &upcoming, offload };
    let workers = workers(threads, places, fwps_max, clock, &ends);
    let activations = workers.iter().map(|line| Arc::clone(&line.activations)).collect();
    let turns = workers.iter().map(|line| Arc::clone(&line.turns)).collect();

    let lines = CommandSenders { gateway: gateway_line, mmas: mma_lines, workers, keep_alives };
    let receivers = Receivers { orders: orders_heard, gateway: gateway_heard, mmas: mma_heard, workers: worker_heard };
    Ok(Joined { lines, receivers, orders, observer, mmas, activations, turns, invoke, dispatchers })
}

/// Returns the largest power of two not above `value`: ring sizes are powers of two, and a ring must not exceed its limit.
fn previous_power_of_two(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

/// A role's core, and the queue of FWPs that are ready for it.
type PlacedQueue = (CoreId, ReadyQueue);

/// Returns a ready queue for the role on each of these cores.
fn ready_queues(cores: &[CoreId], fwps_max: usize, threads: &mut ThreadPlans) -> Vec<PlacedQueue> {
    cores.iter().map(|&core| (core, ReadyQueue::new(fwps_max, threads.bell(core)))).collect()
}

/// Returns, for the role on each of `cores`, one notifier per queue.
fn notifiers(queues: &mut [PlacedQueue], cores: &[CoreId]) -> Vec<Vec<Notifier>> {
    let mut of_role = |core: &CoreId| {
        let to = |(there, queue): &mut PlacedQueue| {
            if there == core { queue.notifier_of_oneself() } else { queue.notifier() }
        };
        queues.iter_mut().map(to).collect()
    };
    cores.iter().map(&mut of_role).collect()
}

/// What all workers share.
struct WorkerEnds<'a> {
    /// Events to the launcher.
    events: &'a Sender<crate::worker::WorkerEvent>,
    observer: &'a Observer,
    upcoming: &'a Arc<UpcomingInstances>,
    offload: &'a Arc<Offload>,
}

fn workers<'a>(
    threads: &mut ThreadPlans,
    places: impl Iterator<Item = (((PlacedQueue, Vec<Notifier>), &'a Engine), Option<UseElsewhere>)>,
    fwps_max: usize,
    clock: &mut Clock,
    ends: &WorkerEnds<'_>,
) -> Vec<WorkerLine> {
    let WorkerEnds { events, observer, upcoming, offload } = *ends;
    let mut lines = Vec::new();
    for ((((core, inputs), mmas), engine), elsewhere) in places {
        let thread = threads.at(core);
        let view = inputs.view();
        let (commands, reads) = line(&thread.bell);
        let slot = clock.slot(engine, TickUrgency::Others);
        let mut worker = Worker::new(fwps_max, inputs, mmas, reads, events.clone(), slot);
        worker.keep_warm(Arc::clone(upcoming));
        worker.count_elsewhere(elsewhere);
        let turns = Arc::clone(worker.meters());
        thread.roles.push(Role::Worker(Box::new(worker)));
        let activations = Arc::new(Activations::new(Arc::clone(observer.flow_misses())));
        let wake = Arc::new(commands.clone());
        lines.push(WorkerLine {
            core,
            commands,
            offload: Some(OffloadPort { offload: Arc::clone(offload), wake }),
            inputs: view,
            clock: clock.slot(engine, TickUrgency::None),
            activations,
            turns,
        });
    }
    lines
}
