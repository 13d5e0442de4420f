//! The gateway's state as other threads can read it, at any time and without waiting for the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

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
    /// Frames that the gateway made itself to be sent: questions to neighbours, announcements and reports.
    pub made: Counter,
    /// ARP requests and neighbour solicitations answered.
    pub neighbors_answered: Counter,
    /// Messages of neighbours that the node sends to.
    pub neighbors_heard: Counter,
    /// The state's place in [`LinkState::ALL`].
    link: AtomicU8,
    missed: AtomicU64,
    /// The address of the port's station, and its MTU in the two highest bytes; 0 until they were queried.
    mac_and_mtu: AtomicU64,
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
        !self.link().is_down()
    }

    /// Returns the link's state when the port was last queried, at most a second ago.
    #[must_use]
    pub fn link(&self) -> LinkState {
        LinkState::ALL[usize::from(self.link.load(Ordering::Relaxed))]
    }

    /// Returns the address of the port's station and its MTU when the port was last queried; none before that.
    #[must_use]
    pub fn mac_and_mtu(&self) -> Option<([u8; 6], u16)> {
        let [high, low, mac @ ..] = self.mac_and_mtu.load(Ordering::Relaxed).to_be_bytes();
        let mtu = u16::from_be_bytes([high, low]);
        (mtu != 0).then_some((mac, mtu))
    }

    /// Returns how many frames were lost before the gateway saw them, as far as the device counts them, or the
    /// kernel for it. At most a second old.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Publishes facts, and logs a link that has changed. As ports are queried once a second, that is a line a second at
    /// most.
    pub(crate) fn set_facts(&self, facts: &PortFacts) {
        let before = self.link();
        if facts.link != before {
            let place = LinkState::ALL.iter().position(|state| *state == facts.link);
            self.link.store(place.unwrap_or_default() as u8, Ordering::Relaxed);
            self.log_link(before, facts.link);
        }
        self.missed.store(facts.missed, Ordering::Relaxed);
        let [high, low] = facts.mtu.to_be_bytes();
        let [a, b, c, d, e, f] = facts.mac;
        self.mac_and_mtu.store(u64::from_be_bytes([high, low, a, b, c, d, e, f]), Ordering::Relaxed);
    }

    #[cold]
    fn log_link(&self, before: LinkState, now: LinkState) {
        let port = self.name();
        match now {
            LinkState::Down => tracing::warn!(port, "the port's link is down"),
            LinkState::Gone => tracing::warn!(port, "the port's device has gone: the port works again when it is back"),
            LinkState::Lost => tracing::warn!(port, "the port's device has gone: the port works again after a restart"),
            LinkState::Up | LinkState::Unknown if before.is_down() => {
                tracing::info!(port, "the port's link is up again")
            }
            LinkState::Up | LinkState::Unknown => {}
        }
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
            made: Counter::default(),
            neighbors_answered: Counter::default(),
            neighbors_heard: Counter::default(),
            link: AtomicU8::new(0),
            missed: AtomicU64::new(0),
            mac_and_mtu: AtomicU64::new(0),
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
