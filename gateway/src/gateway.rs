//! The gateway: one thread's loop over its ports, between the devices, the launcher and MMA.
//!
//! ```text
//!             +--------------------------- Gateway::poll ---------------------------+
//!   launcher ===commands==> [apply_commands]                                                  |
//!             |                |  ready instances, rules                            |
//!   port ---receive---> [net_in: headers, Assigner] --To--> [Handover] ===inbound==> MMA
//!             |           |        |        \--Wait--> [Pending] --Ready--^         |
//!             |           |         \--Drop--> [Bin] --> pool  <------------spent== MMA
//!             |        answer (ARP, ND)                                             |
//!   port <--transmit--- [tx_batch] <---- [net_out] <------------------------outbound== MMA
//!             +---------------------------------------------------------------------+
//! ```
//!
//! All of `poll` is the fast path. After [`Gateway::new`] it allocates and frees nothing (tested by
//! `tests/no_allocation.rs`), takes no lock and does not call the kernel. Three things are exempt: a port's device, the
//! launcher's channels (per command and event, not per packet), and the wake-up of a sleeping MMA.
//!
//! Every call is bounded. For each port it receives a burst, or continues with one new client of the last burst
//! (`deferred_burst.rs`), and transmits a burst. It reads a few commands and sweeps a slice of the tables.

mod announcements;
mod buffer_return;
mod config;
mod deferred_burst;
mod fragments;
mod handover;
mod invocations;
mod net_in;
mod net_out;
mod observer;
mod outbound;
mod poll;
mod port_state;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crossbeam_channel::Receiver;
use pinion_mma::buffer::Frame;
use pinion_mma::id::PortIndex;
use pinion_mma::stopwatch::Stopwatch;
use pinion_mma::tuning;
use pinion_mma::tuning::upcoming::UpcomingInstances;

use self::buffer_return::{BufferReturn, TAKEN_AT_ONCE};
use self::config::check;
pub use self::config::{GatewayConfig, GatewayError, PORTS_MAX, PortSetup};
use self::handover::Handover;
use self::net_out::NetOut;
pub use self::observer::{Observer, PortObserver};
use self::port_state::{Followed, PortState, port_states, reverse_paths};
use crate::assign::addresses::OwnAddresses;
use crate::assign::{Assigner, Read, SweepShare};
use crate::drops::DropReason;
use crate::flows::fragments::Fragments;
use crate::flows::pending::Pending;
use crate::fwp_times::{ActivationClock, KeepAlives};
use crate::headers::{self, Ingress, TcpEvent};
use crate::id::ChainIndex;
use crate::invoke::{INVOKE_PORT, InvokePort};
use crate::messages::outbox::Outbox;
use crate::messages::{Command, UNPROVEN_AT_ONCE};
use crate::port::Alarm;

/// How long a frame may wait for a chain instance. In nanoseconds.
pub const PENDING_TIMEOUT_NS: u64 = 1_000_000_000;

/// Most frames that wait until neighbours have answered; half as many as may wait for instances, if that is less.
const WAITING_MAX: usize = 256;
const COMMANDS_PER_POLL: usize = 16;
const IDLE_PER_POLL: usize = 32;
const EXPIRED_PER_POLL: usize = 32;
/// Time between two queries of the ports' facts, because a query may call the kernel. In nanoseconds.
const FACTS_INTERVAL_NS: u64 = 1_000_000_000;
const SWEEP_INTERVAL_NS: u64 = 1_000_000;
const SWEEP_INTERVAL_MAX_NS: u64 = 4_000_000;
const SWEEP_PERIOD_NS: u64 = 256_000_000;
const SWEEP_PLACES_MAX: usize = 1024;
/// If the gateway was not polled for longer than this, it has slept. In nanoseconds.
const PAUSE_NS: u64 = 1_000_000;
/// For this long after a pause, neither sweeps nor queries of the ports delay the first frame. A sweep then costs most:
/// its tables have left the CPU's caches, and much is due. In nanoseconds.
const UNDIVIDED_NS: u64 = 200_000;

/// A gateway. It can be made on any thread; one thread polls it.
pub struct Gateway {
    ports: Box<[PortState]>,
    invoke: Option<InvokePort>,
    assigner: Assigner,
    pending: Pending,
    fragments: Fragments,
    handover: Handover,
    bin: BufferReturn,
    out: NetOut,
    commands: Receiver<Command>,
    received: Vec<Frame>,
    /// What the received frames are. Valid only within a burst.
    reads: Box<[Read]>,
    burst: usize,
    /// Whether a burst is interrupted after the first frame of a new client.
    ends_bursts: bool,
    /// The launcher's commands were followed in this poll, before a burst.
    has_followed: bool,
    /// The port that is polled first. It changes with each poll, so that no port is always last.
    first_port: usize,
    polled_ns: u64,
    /// Sweeps and port queries wait until this time.
    quiet_until_ns: u64,
    swept_ns: u64,
    /// When the ports' facts were last queried.
    facts_ns: u64,
    stopwatch: Stopwatch,
}

impl Gateway {
    /// Makes a gateway and allocates all memory that it will ever need.
    ///
    /// # Errors
    /// If a size is out of range or the pool is too small for the others.
    pub fn new(config: GatewayConfig) -> Result<Self, GatewayError> {
        let GatewayConfig { ports, mut invoke, pool, flows_max, instances_max, pending_max, burst, .. } = config;
        let port_count = ports.len();
        if !(1..=PORTS_MAX).contains(&port_count) {
            return Err(GatewayError::PortCount { count: port_count });
        }
        check("flows_max", flows_max, 1 << 28)?;
        check("instances_max", instances_max, 1 << 24)?;
        check("pending_max", pending_max, 1 << 24)?;
        check("burst", burst, 4096)?;
        check("empties_max", config.empties_max, 1 << 24)?;
        let handover = Handover::new(config.links, config.empties_max);
        let of_messages = if invoke.is_some() { TAKEN_AT_ONCE } else { 0 };
        let fragments_max = fragments::waiting_max(pending_max);
        let waiting_max = (pending_max / 2).clamp(1, WAITING_MAX) as u16;
        let waiting = pending_max + fragments_max + usize::from(waiting_max);
        let need = handover.lent_max() + waiting + 2 * burst * port_count + of_messages;
        let have = pool.capacity();
        if have < need {
            return Err(GatewayError::PoolTooSmall { have, need });
        }
        // What one poll takes of each MMA.
        let leaving_max = 2 * burst * port_count * handover.mmas();
        let own_addresses = OwnAddresses::new(ports.iter().map(|setup| setup.networks.as_slice()));
        let reverse_paths = reverse_paths(&ports);
        let ports = port_states(ports, burst);
        // A frame that opens a flow anew may release one instance and bind another.
        let events_per_poll_max = 2 * burst * port_count + COMMANDS_PER_POLL * UNPROVEN_AT_ONCE + IDLE_PER_POLL;
        // A call may bind or request an instance, and request one again when the rules change.
        let of_calls = invoke.as_ref().map_or(0, |port| burst + port.calls_max());
        let outbox = Outbox::new(config.events, events_per_poll_max + of_calls);
        let misses = match &invoke {
            Some(port) => ActivationClock::by(port.stopwatch().clone(), instances_max),
            None => ActivationClock::new(instances_max),
        };
        let mut assigner = Assigner::timed_by(misses, flows_max, instances_max, pending_max, outbox);
        assigner.set_own_addresses(own_addresses);
        assigner.ask_for_reverse_paths(reverse_paths);
        ports.iter().for_each(|state| assigner.set_station(state.index, state.station));
        let invoke_name = invoke.as_mut().map(|port| {
            port.set_index(PortIndex(port_count as u16));
            INVOKE_PORT
        });
        let (misses, stopwatch) = (Arc::clone(assigner.misses()), assigner.misses().stopwatch());
        let names = ports.iter().map(|state| state.port.name()).chain(invoke_name);
        let pending = Pending::new(pending_max);
        let networks = ports
            .iter()
            .flat_map(|state| state.networks.iter().map(|network| Ingress { port: state.index, vlan: network.vlan() }));
        let waiting = Arc::clone(pending.observed());
        let observer = Arc::new(Observer::new(names, misses, waiting, networks.collect()));
        Ok(Self {
            ports,
            invoke,
            assigner,
            pending,
            fragments: Fragments::new(port_count, flows_max, fragments_max),
            handover,
            bin: BufferReturn::new(pool, observer, 2 * burst),
            out: NetOut::new(waiting_max, leaving_max),
            commands: config.commands,
            received: Vec::with_capacity(burst),
            reads: vec![Read::NOTHING; burst].into(),
            burst,
            ends_bursts: false,
            has_followed: false,
            first_port: 0,
            polled_ns: 0,
            quiet_until_ns: 0,
            swept_ns: 0,
            facts_ns: 0,
            stopwatch,
        })
    }

    /// Publishes which instances the next clients will get to `upcoming`, so that other threads can prefetch them.
    pub fn publish_upcoming_to(&mut self, upcoming: Arc<UpcomingInstances>) {
        self.handover.publish_upcoming_to(Arc::clone(&upcoming));
        self.assigner.publish_upcoming_to(upcoming);
    }

    /// Makes the end of idle instances depend on `keep_alives`: an idle instance lives as long as it has asked for,
    /// within the bounds set there.
    pub fn keep_alive_by(&mut self, keep_alives: Arc<KeepAlives>) {
        self.assigner.keep_alive_by(keep_alives);
    }

    /// Tells the gateway that functions run on its thread. It then stops a burst after each new client, so that the
    /// client's function runs before the gateway looks up the next client, unless tuning is off.
    pub fn shares_thread_with_functions(&mut self) {
        self.ends_bursts = tuning::is_full();
    }

    /// Returns the gateway's state, which any thread may read.
    #[must_use]
    pub fn observer(&self) -> Arc<Observer> {
        Arc::clone(&self.bin.observer)
    }

    /// Returns whether MMA or the launcher has work for the gateway. Ports cannot be queried this way: see
    /// [`Gateway::arm`].
    pub fn has_work(&mut self) -> bool {
        self.handover.has_work()
            || !self.commands.is_empty()
            || self.has_deferred_clients()
            || self.assigner.has_events()
            || self.invoke.as_mut().is_some_and(InvokePort::has_work)
    }

    /// Returns whether part of a burst is still deferred.
    fn has_deferred_clients(&self) -> bool {
        self.ports.iter().any(|state| !state.deferred.is_empty())
    }

    /// Arms the ports to report frames to the calling thread, which is about to sleep. Returns what wake-up the thread
    /// can rely on. [`Gateway::disarm`] must undo this before the next poll.
    pub fn arm(&mut self) -> Alarm {
        self.ports.iter_mut().map(|state| state.port.arm()).min().unwrap_or(Alarm::Set)
    }

    /// Returns the descriptors of all ports that `poll(2)` finds readable when a frame has arrived.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().flat_map(|state| state.port.descriptors()).map(AsFd::as_fd)
    }

    /// Undoes [`Gateway::arm`].
    pub fn disarm(&mut self) {
        self.ports.iter_mut().for_each(|state| state.port.disarm());
    }

    fn apply_commands(&mut self, now_ns: u64) -> usize {
        // A failed attempt to receive costs a fence, which waits for all pending writes to other cores.
        if self.commands.is_empty() || !self.assigner.is_open() {
            return 0;
        }
        let mut done = 0;
        while done < COMMANDS_PER_POLL {
            let Ok(command) = self.commands.try_recv() else { break };
            done += 1;
            match command {
                Command::SetRules(rules) => {
                    self.pending.divide(rules.weights());
                    self.assigner.set_rules(rules);
                    self.out.forget_judged();
                    self.ask_again_for_calls(now_ns);
                }
                Command::Ready { chain, instance, entrance, limit } => {
                    self.assigner.limit_sources(limit);
                    if self.assigner.add_ready(chain, instance, entrance) {
                        self.serve_waiting(chain, now_ns);
                        self.serve_calls(chain, now_ns);
                    }
                }
                Command::Reclaim { instance } => self.assigner.reclaim(instance),
                Command::EndUnproven { tenant, count } => {
                    // Frames may be staged for them, as with `Unbind`.
                    self.handover.hand_over();
                    self.assigner.end_unproven(tenant, count, now_ns);
                }
                Command::Unbind { instance } => {
                    // Frames that waited may just have been staged for this instance. After the answer, the gateway
                    // must not name it to MMA.
                    self.handover.hand_over();
                    let everybodys = self.assigner.unbind(instance);
                    if let (Some(chain), Some(port)) = (everybodys, &mut self.invoke) {
                        port.abandon(chain, now_ns);
                    }
                }
            }
        }
        done
    }

    /// Gives an instance that has just become ready to the client that has waited longest for it.
    fn serve_waiting(&mut self, chain: ChainIndex, now_ns: u64) {
        let Some(key) = self.pending.next_key(chain) else { return };
        let Some(since_ns) = self.pending.next_since_ns(chain) else { return };
        let Some(entrance) = self.assigner.bind_waiting(&key, since_ns, now_ns) else { return };
        let Self { pending, handover, bin, .. } = self;
        let (mut end, mut first, mut more) = (None, None, false);
        let share = pending.release_next(chain, |frame| {
            let port = frame.port();
            // What the other side sends is no proof.
            more |= first.is_some_and(|first| entrance.of(first) == entrance.of(port));
            first.get_or_insert(port);
            match headers::milestone(frame.bytes()) {
                Some(TcpEvent::Opens) => end = None,
                Some(milestone) => end = Some((milestone, port)),
                None => {}
            }
            match handover.stage(frame, entrance.of(port)) {
                Ok(()) => bin.observer.port(port).delivered.add(1),
                Err(frame) => bin.drop_of_chain(frame, Some(chain), DropReason::MmaBusy),
            }
        });
        self.assigner.charge_waited(&key, share);
        if let Some(first) = first {
            self.assigner.note_client(&key, first, more);
        }
        if let Some((milestone, port)) = end {
            self.assigner.note_waited(&key, milestone, port, now_ns);
        }
        if let Some(next) = self.pending.next_key(chain) {
            self.assigner.want_more(&next);
        }
    }

    fn expire_pending(&mut self, now_ns: u64) -> usize {
        let Some(until_ns) = now_ns.checked_sub(PENDING_TIMEOUT_NS) else { return 0 };
        let Self { pending, assigner, bin, .. } = self;
        let expire = |_: &usize| {
            let chain = pending.oldest_chain();
            let share = pending.expire(until_ns, |frame| bin.drop_of_chain(frame, chain, DropReason::NoInstance));
            share.map(|share| assigner.give_share_back(share)).is_some()
        };
        (0..EXPIRED_PER_POLL).take_while(expire).count()
    }

    fn sweep(&mut self, now_ns: u64) -> usize {
        let elapsed_ns = now_ns.saturating_sub(self.swept_ns);
        if elapsed_ns < SWEEP_INTERVAL_NS {
            return 0;
        }
        self.swept_ns = now_ns;
        self.sweep_fragments(now_ns);
        let share = SweepShare { elapsed_ns, period_ns: SWEEP_PERIOD_NS, places_max: SWEEP_PLACES_MAX };
        self.keep_neighbors(now_ns);
        self.keep_flows(now_ns);
        self.assigner.sweep(now_ns, share, IDLE_PER_POLL)
    }

    fn report(&self) {
        let Self { assigner, pending, fragments, bin, .. } = self;
        let waiting = pending.frames() + fragments.waiting();
        bin.observer.set_gauges(assigner.flows(), assigner.bound(), assigner.ready(), waiting);
    }

    fn poll_link_state(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.facts_ns) >= FACTS_INTERVAL_NS {
            self.facts_ns = now_ns;
            let Self { ports, assigner, out, bin, .. } = self;
            for state in ports {
                state.port.tend();
                let facts = state.port.facts();
                let followed = state.follow(&facts);
                assigner.set_station(state.index, state.station);
                match followed {
                    Followed::IsAsBefore => {}
                    Followed::IsNew => out.forget_stations(state.network_indices()),
                    Followed::WentDown => out.link_went_down(state, bin),
                }
                bin.observer.port(state.index).set_facts(&facts);
            }
        }
    }
}

impl Drop for Gateway {
    // Held frames go back to the pool. MMA keeps the frames that it has, and may still use them.
    fn drop(&mut self) {
        let Self { pending, fragments, bin, out, .. } = self;
        while let Some(frame) = fragments.pop_waiting() {
            bin.take(frame.into_buffer());
        }
        while pending.expire(u64::MAX, |frame| bin.take(frame.into_buffer())).is_some() {}
        while let Some(frame) = out.pop_waiting() {
            bin.take(frame.into_buffer());
        }
        for PortState { deferred, tx_batch, .. } in &mut self.ports {
            let deferred = std::iter::from_fn(|| deferred.take()).map(|(frame, _)| frame);
            tx_batch.drain(..).chain(deferred).for_each(|frame| bin.take(frame.into_buffer()));
        }
        bin.close();
    }
}

#[cfg(test)]
mod tests;
