//! A node that runs, and how it stops: which threads end in which order.

use crate::instruments::log::LogHub;
use crate::launcher::{Order, Orders};
use crate::memory::pressure::{self};
use crate::node::data_plane::DataPlane;
use crate::node::invocations::Invocations;
use crate::offload::Offload;
use pinion_mma::notify::doorbell::Doorbell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A running node. Dropping it stops all its threads.
pub struct Assembled {
    /// The control plane's interface to the node.
    pub data_plane: Arc<DataPlane>,
    pub(super) stop: Arc<Stop>,
    pub(super) bells: Vec<Doorbell>,
    pub(super) ticker_bell: Doorbell,
    pub(super) pressure: Option<pressure::Ending>,
    pub(super) orders: Orders,
    pub(super) invocations: Arc<Invocations>,
    pub(super) log: LogHub,
    pub(super) launcher: Option<JoinHandle<()>>,
    pub(super) roles: Vec<JoinHandle<()>>,
    pub(super) offload: Arc<Offload>,
    /// The ticker, offload threads, the guests' log, invocations, and the watch over memory pressure.
    pub(super) others: Vec<JoinHandle<()>>,
}

/// Flags that tell threads to stop.
#[derive(Default)]
pub(super) struct Stop {
    /// Set when threads may return, because the node stops or could not start.
    pub(super) ending: Arc<AtomicBool>,
    pub(super) roles: AtomicBool,
    pub(super) ticker: AtomicBool,
}

fn join(thread: JoinHandle<()>) {
    // A panic has ended the process: see `vital`.
    let _ = thread.join();
}

impl Drop for Assembled {
    /// Stops every thread and waits for it: the launcher first, then the roles, which close their ports. The ticker stops last, because
    /// only the ticker can preempt a guest in which a worker still runs.
    fn drop(&mut self) {
        self.stop.ending.store(true, Ordering::SeqCst);
        self.pressure.take().inspect(pressure::Ending::ring);
        self.invocations.stop();
        self.orders.give(Order::Stop);
        self.launcher.take().into_iter().for_each(join);
        self.stop.roles.store(true, Ordering::SeqCst);
        self.bells.iter().for_each(Doorbell::ring);
        self.roles.drain(..).for_each(join);
        self.offload.stop();
        self.log.end();
        self.stop.ticker.store(true, Ordering::SeqCst);
        self.ticker_bell.ring();
        self.others.drain(..).for_each(join);
    }
}
