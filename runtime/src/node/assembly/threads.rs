//! Starting the threads of a node, each on its cores.

use super::running::{Assembled, Stop};
use super::wiring::{ThreadPlan, ThreadPlans};
use super::{AssemblyError, failed};
use crate::cores::plan::{CoreId, pin_here, stay_on};
use crate::launcher::{LauncherInbox, Order, WakeHandle};
use crate::memory::allocator::keep_large_blocks_here;
use crate::memory::pressure::{self, Sources};
use crate::node::config::NodeConfig;
use crate::node::ports::GatewayThread;
use crate::node::vital;
use crate::offload::{Kind, Offload};
use crate::preemption::Watch;
use crate::preemption::sched_slice::set_slice;
use crate::roles::{self, Idle, Role};
use crossbeam_channel::{Receiver, Sender};
use pinion_inference::processor::learn_caches;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// The scheduler slice of threads that sign.
const SIGNER_SLICE: Duration = Duration::from_micros(200);
/// The niceness of threads that run models.
const INFERENCE_NICENESS: i32 = 10;
/// How many bytes of large blocks a thread that runs models keeps from one run to the next.
const INFERENCE_KEPT_BYTES: usize = 16 << 20;

/// The launcher's cores and its inbox.
pub(super) struct LauncherPlacement {
    pub(super) cores: Vec<CoreId>,
    pub(super) inbox: Arc<LauncherInbox>,
}

pub(super) fn start_roles(
    node: &mut Assembled,
    threads: ThreadPlans,
    thread: GatewayThread,
    watch: &Arc<Watch>,
    idle: Idle,
    launcher: &LauncherPlacement,
) -> Result<(), AssemblyError> {
    let mut gateway_thread = Some(thread);
    let (report, reports): (Sender<Result<(), String>>, Receiver<_>) = crossbeam_channel::unbounded();
    let wakeups = roles::wakeups(threads.0.iter().map(|thread| (&thread.bell, &*thread.roles)));
    for (ThreadPlan { core, mut roles, .. }, wakeup) in threads.0.into_iter().zip(wakeups) {
        let has_gateway = roles.iter().any(|role| matches!(role, Role::Gateway(_)));
        let thread = if has_gateway { gateway_thread.take() } else { None };
        let (watch, stop, report) = (Arc::clone(watch), Arc::clone(&node.stop), report.clone());
        let caller = WakeHandle::new(Arc::clone(&launcher.inbox), launcher.cores.contains(&core).then_some(core));
        match &mut roles[..] {
            [Role::Worker(worker)] => worker.has_thread_to_itself(),
            [Role::Gateway(gateway), .., Role::Worker(_)] => gateway.shares_thread_with_functions(),
            _ => {}
        }
        let name = format!("core-{}", core.0);
        node.roles.push(spawn(&name, &Arc::clone(&node.stop), move || {
            let pinned = pin_here(&[core]).map_err(|error| format!("core {}: {error}", core.0));
            let registered = pinned.and_then(|()| thread.as_ref().map(GatewayThread::register).transpose());
            let _ = report.send(registered.as_ref().map(|_| ()).map_err(Clone::clone));
            drop(report);
            match registered {
                Ok(_) => roles::run(&mut roles, wakeup, &watch, idle, caller, &stop.roles),
                // The node does not start, so this thread may return without ending the process.
                Err(_) => stop.ending.store(true, Ordering::SeqCst),
            }
            // Ports must close before the thread is unregistered from their driver.
            drop(roles);
            drop(registered);
        })?);
    }
    drop(report);
    reports.iter().collect::<Result<(), String>>().map_err(AssemblyError::Failed)
}

/// Starts a vital thread: if it ends before the node stops, the process aborts, so that its supervisor restarts it. Otherwise the node
/// would run on with clients that it no longer serves.
fn spawn(name: &str, stop: &Stop, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, AssemblyError> {
    let thread = vital::spawn(name, Arc::clone(&stop.ending), run);
    thread.map_err(|error| failed(&format!("thread {name}"), &error))
}

/// Starts a vital thread on these cores.
pub(super) fn spawn_on(
    cores: &[CoreId],
    name: &str,
    stop: &Stop,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, AssemblyError> {
    let cores = cores.to_vec();
    spawn(name, stop, move || {
        stay_on(&cores);
        run();
    })
}

/// Starts the threads that do jobs for FWPs, each on its core; `cores` are by their kinds.
pub(super) fn start_offload(
    node: &mut Assembled,
    offload: &Arc<Offload>,
    cores: &[Vec<CoreId>; Kind::ALL.len()],
) -> Result<(), AssemblyError> {
    learn_caches();
    for (kind, cores) in Kind::ALL.into_iter().zip(cores) {
        for core in cores {
            let offload = Arc::clone(offload);
            let run = move || {
                set_priority(kind);
                if kind == Kind::Inference {
                    keep_large_blocks_here(INFERENCE_KEPT_BYTES);
                }
                offload.run(kind);
            };
            node.others.push(spawn_on(&[*core], &format!("{kind}-{}", core.0), &node.stop, run)?);
        }
    }
    Ok(())
}

/// Lets other threads of the core go first while a model runs. A signature takes microseconds, and a client waits for it: it gets the core at
/// once.
fn set_priority(kind: Kind) {
    let set = match kind {
        Kind::Signer => set_slice(SIGNER_SLICE),
        Kind::Inference => rustix::process::nice(INFERENCE_NICENESS).map(|_| ()).map_err(Into::into),
    };
    if let Err(error) = set {
        tracing::warn!("threads of the kind {kind} have the priority of all others: {error}");
    }
}

/// Starts the thread that reports memory pressure to the launcher.
pub(super) fn watch_memory(node: &mut Assembled, cores: &[CoreId], config: &NodeConfig) -> Result<(), AssemblyError> {
    let sources = Sources::new(config.memory_cgroup.as_deref());
    let (watch, ending) = pressure::Watch::new(sources).map_err(|error| failed("memory pressure", &error))?;
    let orders = node.orders.clone();
    node.pressure = Some(ending);
    let tell = move |level| orders.give(Order::Relieve(level));
    node.others.push(spawn_on(cores, "pressure", &node.stop, move || watch.run(tell))?);
    Ok(())
}
