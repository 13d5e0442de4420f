//! The gateway's state as other threads can read it, at any time and without waiting for the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use pinion_mma::accounts::counters::Counter;
use pinion_mma::id::PortIndex;

use crate::drops::{DropCounters, DropsByChain};
use crate::flows::waiting_frames::WaitingFrames;
use crate::fwp_times::ActivationClock;
use crate::headers::Ingress;
use crate::neighbors::view::NeighborView;
use crate::port::{LinkState, PortFacts};

/// A gateway's state as numbers, shared with the threads that report it. Only the gateway's thread writes it.
#[derive(Debug)]
pub struct Observer {
    ports: Box<[CachePadded<PortObserver>]>,
    gauges: CachePadded<Gauges>,
    chains: Arc<DropsByChain>,
    misses: Arc<ActivationClock>,
    waiting: Arc<WaitingFrames>,
    neighbors: Arc<NeighborView>,
    /// The networks of all ports, by their numbers.
    networks: Box<[Ingress]>,
}

/// What happened to one port's frames. The device's own counts are in [`crate::port::PortCounters`].
#[derive(Debug)]
pub struct PortObserver {
    name: String,
    /// Received frames that were dropped, by reason.
    pub drops: DropCounters,
    /// Received frames that went to a chain instance.
    pub delivered: Counter,
    /// ARP requests and neighbour solicitations answered.
    pub neighbors_answered: Counter,
    /// Messages of neighbours that the node sends to.
    pub neighbors_heard: Counter,
    link_up: AtomicBool,
    missed: AtomicU64,
}

#[derive(Debug, Default)]
struct Gauges {
    flows: AtomicUsize,
    bound: AtomicUsize,
    ready: AtomicUsize,
    pending: AtomicUsize,
}

impl PortObserver {
    /// Returns the port's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the link was up when the port was last queried, at most a second ago. A link of unknown state
    /// counts as up.
    #[must_use]
    pub fn link_up(&self) -> bool {
        self.link_up.load(Ordering::Relaxed)
    }

    /// Returns how many frames were lost before the gateway saw them, as far as the device counts them, or the
    /// kernel for it. At most a second old.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_facts(&self, facts: &PortFacts) {
        self.link_up.store(facts.link != LinkState::Down, Ordering::Relaxed);
        self.missed.store(facts.missed, Ordering::Relaxed);
    }
}

impl Observer {
    pub(crate) fn new<'a>(
        port_names: impl Iterator<Item = &'a str>,
        misses: Arc<ActivationClock>,
        waiting: Arc<WaitingFrames>,
        networks: Box<[Ingress]>,
    ) -> Self {
        let observer = |name: &str| PortObserver {
            name: name.to_owned(),
            drops: DropCounters::default(),
            delivered: Counter::default(),
            neighbors_answered: Counter::default(),
            neighbors_heard: Counter::default(),
            link_up: AtomicBool::new(true),
            missed: AtomicU64::new(0),
        };
        let ports = port_names.map(|name| CachePadded::new(observer(name))).collect();
        Self {
            ports,
            gauges: CachePadded::default(),
            chains: Arc::default(),
            misses,
            waiting,
            neighbors: Arc::default(),
            networks,
        }
    }

    /// Returns the gateway's ports, in the order of the configuration.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = &PortObserver> {
        self.ports.iter().map(|port| &**port)
    }

    /// Returns what is known of neighbours.
    #[must_use]
    pub fn neighbors(&self) -> &Arc<NeighborView> {
        &self.neighbors
    }

    /// Returns the networks of all ports, by their numbers.
    #[must_use]
    pub fn networks(&self) -> &[Ingress] {
        &self.networks
    }

    /// Returns the drop counts of each chain.
    #[must_use]
    pub fn chain_drops(&self) -> &Arc<DropsByChain> {
        &self.chains
    }

    /// Returns since when clients have waited for the FWPs that they were given.
    #[must_use]
    pub fn flow_misses(&self) -> &Arc<ActivationClock> {
        &self.misses
    }

    /// Returns what tenants have of the frames that may wait for an instance.
    #[must_use]
    pub fn waiting_frames(&self) -> &WaitingFrames {
        &self.waiting
    }

    /// Returns the number of flows in the flow cache. A flow that has ended counts until it was unseen for a while.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.gauges.flows.load(Ordering::Relaxed)
    }

    /// Returns the number of chain instances that are bound to clients.
    #[must_use]
    pub fn instances_bound(&self) -> usize {
        self.gauges.bound.load(Ordering::Relaxed)
    }

    /// Returns the number of chain instances that are ready and not yet bound.
    #[must_use]
    pub fn instances_ready(&self) -> usize {
        self.gauges.ready.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that wait for a chain instance, or for the first fragment of their datagram.
    #[must_use]
    pub fn frames_pending(&self) -> usize {
        self.gauges.pending.load(Ordering::Relaxed)
    }

    pub(crate) fn port(&self, port: PortIndex) -> &PortObserver {
        &self.ports[usize::from(port.0)]
    }

    pub(crate) fn set_gauges(&self, flows: usize, bound: usize, ready: usize, pending: usize) {
        self.gauges.flows.store(flows, Ordering::Relaxed);
        self.gauges.bound.store(bound, Ordering::Relaxed);
        self.gauges.ready.store(ready, Ordering::Relaxed);
        self.gauges.pending.store(pending, Ordering::Relaxed);
    }
}
