//! The gateway: one thread's loop over its ports, between the devices, the launcher and MMA.
//!
//! ```text
//!             +--------------------------- Gateway::poll ---------------------------+
//!   launcher ===commands==> [obey]                                                  |
//!             |                |  ready instances, rules                            |
//!   port ---receive---> [net_in: headers, Assigner] --To--> [Handover] ===inbound==> MMA
//!             |           |        |        \--Wait--> [Pending] --Ready--^         |
//!             |           |         \--Drop--> [Bin] --> pool  <------------spent== MMA
//!             |        answer (ARP, ND)                                             |
//!   port <--transmit--- [leaving] <---- [net_out] <------------------------outbound== MMA
//!             +---------------------------------------------------------------------+
//! ```
//!
//! The rules of the fast path, which all of `poll` is: after [`Gateway::new`] nothing is allocated or freed, no lock is
//! taken and the kernel is not called, except by a port's device, by the launcher's channels (per command and event,
//! not per packet) and to wake a sleeping MMA; `tests/no_allocation.rs` holds the first of these. Every call is
//! bounded: a burst in, or a new client of it (`behind.rs`), and a burst out per port, a few commands, a slice of the tables.

mod behind;
mod bin;
mod config;
mod invocations;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crossbeam_channel::Receiver;
use pinion_mma::buffer::Frame;
use pinion_mma::id::{FwpId, PortIndex};
use pinion_mma::next_up::NextUp;
use pinion_mma::stopwatch::Stopwatch;
use smoltcp::wire::EthernetAddress;

use self::behind::Behind;
use self::bin::{Bin, TAKEN_AT_ONCE};
use self::config::check;
pub use self::config::{GatewayConfig, GatewayError, PortSetup};
use crate::assign::{Assigner, Assignment, Read, SweepShare};
use crate::drops::DropReason;
use crate::flows::pending::Pending;
use crate::handover::Handover;
use crate::headers::{self, Milestone};
use crate::id::ChainIndex;
use crate::invoke::{INVOKE_PORT, InvokePort};
use crate::messages::Command;
use crate::misses::FlowMisses;
use crate::neighbor::Neighbors;
use crate::observer::Observer;
use crate::outbox::Outbox;
use crate::port::{Alarm, BufferPool, Port, Promiscuous};

/// How long a frame may wait for a chain instance. In nanoseconds.
pub const PENDING_TIMEOUT_NS: u64 = 1_000_000_000;

const COMMANDS_PER_POLL: usize = 16;
const IDLE_PER_POLL: usize = 32;
const EXPIRED_PER_POLL: usize = 32;
/// Asking a device may call the kernel: rarely enough not to matter.
const FACTS_INTERVAL_NS: u64 = 1_000_000_000;
const SWEEP_INTERVAL_NS: u64 = 1_000_000;
const SWEEP_INTERVAL_MAX_NS: u64 = 4_000_000;
const SWEEP_PERIOD_NS: u64 = 256_000_000;
const SWEEP_PLACES_MAX: usize = 1024;
/// Not polled for longer, the gateway has slept; and for how long the first frame then has it to itself. What is swept has left
/// the caches meanwhile, and there is much of it.
const PAUSE_NS: u64 = 1_000_000;
const UNDIVIDED_NS: u64 = 200_000;

/// A gateway. Made anywhere, then polled by one thread.
pub struct Gateway {
    ports: Box<[PortState]>,
    invoke: Option<InvokePort>,
    assigner: Assigner,
    pending: Pending,
    handover: Handover,
    bin: Bin,
    commands: Receiver<Command>,
    received: Vec<Frame>,
    /// What the frames received are; means nothing between bursts.
    reads: Box<[Read]>,
    burst: usize,
    /// Whether a new client's first frame ends a burst.
    ends_bursts: bool,
    /// The port that is polled first, so that none is always last.
    first_port: usize,
    polled_ns: u64,
    /// Until when sweeping and asking the ports wait.
    undivided_ns: u64,
    swept_ns: u64,
    /// When the ports' facts were last asked for.
    facts_ns: u64,
    stopwatch: Stopwatch,
}

struct PortState {
    port: Box<dyn Port>,
    index: PortIndex,
    neighbors: Neighbors,
    promiscuous: Promiscuous,
    behind: Behind,
    /// Frames to transmit; at most a burst.
    leaving: Vec<Frame>,
}

impl PortState {
    /// The station that a frame has to be for to be taken in: the port's own, or whichever it is for.
    fn receiver_of(&self, frame: &[u8]) -> EthernetAddress {
        match (self.promiscuous, frame.first_chunk()) {
            (Promiscuous::Yes, Some(receiver)) => EthernetAddress(*receiver),
            _ => self.neighbors.station(),
        }
    }

    fn transmit(&mut self, pool: &mut dyn BufferPool) {
        if !self.leaving.is_empty() {
            self.port.transmit(&mut self.leaving, pool);
        }
    }

    fn leave(&mut self, frame: Frame, pool: &mut dyn BufferPool) {
        if self.leaving.len() == self.leaving.capacity() {
            self.transmit(pool);
        }
        self.leaving.push(frame);
    }
}

impl Gateway {
    /// Makes a gateway and all memory that it will ever need.
    ///
    /// # Errors
    /// If a size is out of range or the pool is too small for the others.
    pub fn new(config: GatewayConfig) -> Result<Self, GatewayError> {
        let GatewayConfig { ports, mut invoke, pool, flows_max, instances_max, pending_max, burst, .. } = config;
        let port_count = ports.len();
        if !(1..usize::from(u16::MAX)).contains(&port_count) {
            return Err(GatewayError::PortCount { count: port_count });
        }
        check("flows_max", flows_max, 1 << 28)?;
        check("instances_max", instances_max, 1 << 24)?;
        check("pending_max", pending_max, 1 << 24)?;
        check("burst", burst, 4096)?;
        check("empties_max", config.empties_max, 1 << 24)?;
        let handover = Handover::new(config.links, config.empties_max);
        let of_messages = if invoke.is_some() { TAKEN_AT_ONCE } else { 0 };
        let need = handover.lent_max() + pending_max + 2 * burst * port_count + of_messages;
        let have = pool.capacity();
        if have < need {
            return Err(GatewayError::PoolTooSmall { have, need });
        }
        let ports: Box<[_]> =
            (0..).zip(ports).map(|(index, setup)| port_state(PortIndex(index), setup, burst)).collect();
        // A frame with which a flow begins anew gives an instance up and takes another.
        let events_per_poll_max = 2 * burst * port_count + 2 * COMMANDS_PER_POLL + IDLE_PER_POLL;
        // And a call may take or want an instance, or ask again for one when there are new rules.
        let of_calls = invoke.as_ref().map_or(0, |port| burst + port.calls_max());
        let outbox = Outbox::new(config.events, events_per_poll_max + of_calls);
        let misses = match &invoke {
            Some(port) => FlowMisses::by(port.stopwatch().clone(), instances_max),
            None => FlowMisses::new(instances_max),
        };
        let assigner = Assigner::timed_by(misses, flows_max, instances_max, outbox);
        let invoke_name = invoke.as_mut().map(|port| {
            port.set_index(PortIndex(port_count as u16));
            INVOKE_PORT
        });
        let (misses, stopwatch) = (Arc::clone(assigner.misses()), assigner.misses().stopwatch());
        let names = ports.iter().map(|state| state.port.name()).chain(invoke_name);
        let observer = Arc::new(Observer::new(names, misses));
        Ok(Self {
            ports,
            invoke,
            assigner,
            pending: Pending::new(pending_max),
            handover,
            bin: Bin::new(pool, observer, 2 * burst),
            commands: config.commands,
            received: Vec::with_capacity(burst),
            reads: vec![Read::NOTHING; burst].into(),
            burst,
            ends_bursts: false,
            first_port: 0,
            polled_ns: 0,
            undivided_ns: 0,
            swept_ns: 0,
            facts_ns: 0,
            stopwatch,
        })
    }

    /// Has whoever looks there know which instances clients will be given next.
    pub fn announce_to(&mut self, next_up: Arc<NextUp>) {
        self.handover.announce_to(Arc::clone(&next_up));
        self.assigner.announce_to(next_up);
    }

    /// Functions run on its thread, too: each new client's is to have run before the next client is looked at.
    pub fn shares_thread_with_functions(&mut self) {
        self.ends_bursts = true;
    }

    /// The gateway's state, for anybody to read.
    #[must_use]
    pub fn observer(&self) -> Arc<Observer> {
        Arc::clone(&self.bin.observer)
    }

    /// Does what there is to do; returns how much that was, 0 if nothing.
    pub fn poll(&mut self) -> usize {
        let now_ns = self.stopwatch.elapsed_ns();
        self.poll_at(now_ns)
    }

    /// [`Gateway::poll`] with a clock of the caller's, which starts at 0 and never goes back.
    pub fn poll_at(&mut self, now_ns: u64) -> usize {
        let batch = self.burst * self.ports.len();
        let has_paused = now_ns.saturating_sub(self.polled_ns) > PAUSE_NS;
        self.polled_ns = now_ns;
        // The launcher may have to be woken for them, which takes longer than several clients do.
        let keeps_events = self.has_clients_behind() && self.assigner.can_keep_events();
        let mut done = if keeps_events { 0 } else { self.assigner.begin_poll() };
        if has_paused {
            self.assigner.forget_notes();
        }
        done += self.handover.take_spent(2 * batch, |buffer| self.bin.take(buffer));
        done += self.give_up_waiting(now_ns);
        done += self.net_out(batch);
        self.handover.lend_empties(&mut *self.bin.pool);
        // Last, so that as little as possible lies between a frame's arrival and the MMA, which may be this thread's next role.
        let given = self.assigner.given();
        for turn in 0..self.ports.len() {
            done += self.net_in((self.first_port + turn) % self.ports.len(), now_ns);
        }
        self.first_port = (self.first_port + 1) % self.ports.len();
        // Who has just been given an instance does not wait for what the launcher says: once there are none to give, that is heard.
        if self.assigner.given() == given && !self.has_clients_behind() {
            done += self.obey(now_ns);
        }
        done += self.take_calls(now_ns);
        self.handover.hand_over();
        self.handover.ring();
        if done > 0 && has_paused {
            self.undivided_ns = now_ns + UNDIVIDED_NS;
        }
        // Who has just come waits for none of this, as long as it can wait itself.
        let is_overdue = now_ns.saturating_sub(self.swept_ns) >= SWEEP_INTERVAL_MAX_NS;
        if now_ns >= self.undivided_ns && (done == 0 || is_overdue) {
            done += self.sweep(now_ns);
            self.ask_ports(now_ns);
        }
        done += self.end_overdue_calls(now_ns);
        if let Some(port) = &mut self.invoke {
            port.hand_over();
        }
        // The gateway's own answers.
        for state in &mut self.ports {
            state.transmit(&mut *self.bin.pool);
        }
        self.bin.empty();
        self.report();
        if done == 0 {
            self.assigner.announce_later();
        }
        done
    }

    /// Whether MMA or the launcher has something for the gateway. Ports can't be asked: see [`Gateway::arm`].
    pub fn has_work(&mut self) -> bool {
        self.handover.has_work()
            || !self.commands.is_empty()
            || self.has_clients_behind()
            || self.assigner.has_events()
            || self.invoke.as_mut().is_some_and(InvokePort::has_work)
    }

    /// Whether something is left of a burst.
    fn has_clients_behind(&self) -> bool {
        self.ports.iter().any(|state| !state.behind.is_empty())
    }

    /// Has the ports report frames to the calling thread, which is about to sleep; says on what it can rely. To be undone
    /// by [`Gateway::disarm`] before the next poll.
    pub fn arm(&mut self) -> Alarm {
        self.ports.iter_mut().map(|state| state.port.arm()).min().unwrap_or(Alarm::Set)
    }

    /// What `poll(2)` finds readable when a frame has come, all ports together.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().flat_map(|state| state.port.descriptors()).map(AsFd::as_fd)
    }

    /// Undoes [`Gateway::arm`].
    pub fn disarm(&mut self) {
        self.ports.iter_mut().for_each(|state| state.port.disarm());
    }

    fn obey(&mut self, now_ns: u64) -> usize {
        // To try in vain is a fence, which waits for all writes that are under way to other cores.
        if self.commands.is_empty() || !self.assigner.is_open() {
            return 0;
        }
        let mut done = 0;
        while done < COMMANDS_PER_POLL {
            let Ok(command) = self.commands.try_recv() else { break };
            done += 1;
            match command {
                Command::SetRules(rules) => {
                    self.assigner.set_rules(rules);
                    self.ask_again_for_calls(now_ns);
                }
                Command::Ready { chain, instance, entrance } => {
                    if self.assigner.add_ready(chain, instance, entrance) {
                        self.serve_waiting(chain, now_ns);
                        self.serve_calls(chain, now_ns);
                    }
                }
                Command::Reclaim { instance } => self.assigner.reclaim(instance),
                Command::Unbind { instance } => {
                    // What waited may just have been staged for it; after the answer nothing may name it any more.
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

    /// Gives the instance that has just become ready to whoever has waited longest for it.
    fn serve_waiting(&mut self, chain: ChainIndex, now_ns: u64) {
        let Some(key) = self.pending.next_key(chain) else { return };
        let Some(since_ns) = self.pending.next_since_ns(chain) else { return };
        let Some(entrance) = self.assigner.bind_waiting(&key, since_ns, now_ns) else { return };
        let Self { pending, handover, bin, .. } = self;
        let mut end = None;
        pending.release_next(chain, |frame| {
            let port = frame.port();
            match headers::milestone(frame.bytes()) {
                Some(Milestone::Opens) => end = None,
                Some(milestone) => end = Some((milestone, port)),
                None => {}
            }
            match handover.stage(frame, entrance.of(port)) {
                Ok(()) => bin.observer.port(port).delivered.add(1),
                Err(frame) => bin.drop_of_chain(frame, Some(chain), DropReason::MmaBusy),
            }
        });
        if let Some((milestone, port)) = end {
            self.assigner.note_waited(&key, milestone, port);
        }
        if let Some(next) = self.pending.next_key(chain) {
            self.assigner.want_more(&next);
        }
    }

    fn give_up_waiting(&mut self, now_ns: u64) -> usize {
        let Some(until_ns) = now_ns.checked_sub(PENDING_TIMEOUT_NS) else { return 0 };
        let Self { pending, bin, .. } = self;
        let expire = |_: &usize| {
            let chain = pending.oldest_chain();
            pending.expire(until_ns, |frame| bin.drop_of_chain(frame, chain, DropReason::NoInstance))
        };
        (0..EXPIRED_PER_POLL).take_while(expire).count()
    }

    fn net_in(&mut self, port: usize, now_ns: u64) -> usize {
        let (count, delivered) = if self.ports[port].behind.is_empty() {
            self.take_in_burst(port, now_ns)
        } else {
            self.take_in_behind(port, now_ns)
        };
        if delivered > 0 {
            self.bin.observer.port(self.ports[port].index).delivered.add(delivered);
        }
        count
    }

    /// Takes in what the device has, up to the first frame of a new client if that ends a burst; returns how many frames were received,
    /// and how many went to instances.
    fn take_in_burst(&mut self, port: usize, now_ns: u64) -> (usize, u64) {
        let mut received = std::mem::take(&mut self.received);
        let count = self.ports[port].port.receive(&mut received, self.burst);
        // Whoever came while the thread was in the poll, but not on its core, waits from now on.
        let received_ns = if self.ends_bursts && count > 1 { self.assigner.misses().now_ns() } else { now_ns };
        let mut reads = std::mem::take(&mut self.reads);
        self.read_burst(port, &mut received, &mut reads[..count], now_ns);
        let (mut delivered, given) = (0, self.assigner.given());
        let mut left = received.drain(..).zip(&reads);
        while let Some((frame, read)) = left.next() {
            delivered += self.take_in(port, frame, read, now_ns);
            if self.ends_bursts && self.assigner.given() != given {
                let Self { ports, assigner, .. } = self;
                let rest = left.by_ref().map(|(frame, read)| (frame, assigner.long_way(read)));
                ports[port].behind.keep(rest, received_ns, now_ns);
            }
        }
        drop(left);
        (self.received, self.reads) = (received, reads);
        (count, delivered)
    }

    /// The same for what is left of a burst.
    #[inline(never)]
    fn take_in_behind(&mut self, port: usize, now_ns: u64) -> (usize, u64) {
        let can_wait = self.ports[port].behind.can_wait(now_ns);
        // The clients have waited since then, whoever had the thread.
        self.assigner.count_from(Some(self.ports[port].behind.received_ns()));
        let (mut count, mut delivered, given) = (0, 0, self.assigner.given());
        while let Some((frame, read)) = self.ports[port].behind.take() {
            delivered += self.take_in(port, frame, &read, now_ns);
            count += 1;
            if can_wait && self.assigner.given() != given {
                break;
            }
        }
        self.assigner.count_from(None);
        (count, delivered)
    }

    fn read_burst(&mut self, port: usize, frames: &mut [Frame], reads: &mut [Read], now_ns: u64) {
        let state = &self.ports[port];
        for (frame, read) in frames.iter_mut().zip(&mut *reads) {
            frame.set_port(state.index);
            let bytes = frame.bytes();
            self.assigner.read(bytes, state.index, state.receiver_of(bytes), now_ns, read);
        }
        reads.iter_mut().for_each(|read| self.assigner.fetch(read));
    }

    /// Finds a frame its instance, or another end; returns how many went to an instance: 1, or 0.
    #[inline(always)]
    fn take_in(&mut self, port: usize, frame: Frame, read: &Read, now_ns: u64) -> u64 {
        let entry = match self.assigner.assign(read, now_ns) {
            Some(Assignment::To(entry)) => entry,
            Some(other) => {
                self.take_in_unassigned(frame, read, &other, now_ns);
                return 0;
            }
            None => {
                self.take_in_other(port, frame, read, now_ns);
                return 0;
            }
        };
        match self.handover.stage(frame, entry) {
            Ok(()) => 1,
            Err(frame) => {
                self.drop_of_chain(frame, read, DropReason::MmaBusy, now_ns);
                0
            }
        }
    }

    #[inline(never)]
    fn take_in_unassigned(&mut self, frame: Frame, read: &Read, why: &Assignment, now_ns: u64) {
        match why {
            Assignment::Wait(key) => {
                if let Err(frame) = self.pending.hold(key, frame, now_ns) {
                    self.bin.drop_of_chain(frame, Some(key.chain), DropReason::PendingFull);
                }
            }
            Assignment::Drop(reason @ (DropReason::NoRule | DropReason::ChainNotInForce)) => {
                self.bin.drop_frame(frame, *reason);
            }
            Assignment::Drop(reason) => self.drop_of_chain(frame, read, *reason, now_ns),
            Assignment::To(_) => debug_assert!(false, "what is assigned is staged"),
        }
    }

    #[inline(never)]
    fn take_in_other(&mut self, port: usize, frame: Frame, read: &Read, now_ns: u64) {
        match read {
            Read::Milestone { flow, lead, milestone } => {
                // After the launcher is told of an instance that is given up, nothing may name it any more.
                if *milestone == Milestone::Opens {
                    self.handover.hand_over();
                }
                match self.assigner.assign_milestone(*lead, flow, *milestone, now_ns) {
                    Assignment::To(entry) => self.take_in_milestone(port, frame, read, entry, now_ns),
                    other => self.take_in_unassigned(frame, read, &other, now_ns),
                }
            }
            Read::Arp => self.answer(port, frame, Neighbors::answer_arp),
            Read::NeighborDiscovery => self.answer(port, frame, Neighbors::answer_solicitation),
            Read::Drop(reason) => self.bin.drop_frame(frame, *reason),
            Read::Known { .. } | Read::Flow { .. } => debug_assert!(false, "flows are assigned"),
        }
    }

    fn take_in_milestone(&mut self, port: usize, frame: Frame, read: &Read, entry: FwpId, now_ns: u64) {
        match self.handover.stage(frame, entry) {
            Ok(()) => self.bin.observer.port(self.ports[port].index).delivered.add(1),
            Err(frame) => self.drop_of_chain(frame, read, DropReason::MmaBusy, now_ns),
        }
    }

    #[cold]
    fn drop_of_chain(&mut self, frame: Frame, read: &Read, reason: DropReason, now_ns: u64) {
        let chain = self.assigner.chain_of(read, now_ns);
        self.bin.drop_of_chain(frame, chain, reason);
    }

    fn answer(
        &mut self,
        port: usize,
        mut frame: Frame,
        write_answer: fn(&Neighbors, &mut [u8], usize) -> Result<usize, DropReason>,
    ) {
        let state = &mut self.ports[port];
        let len = frame.len() as usize;
        match write_answer(&state.neighbors, frame.space_mut(), len) {
            Ok(len) => {
                frame.set_len(len as u32);
                self.bin.observer.port(state.index).neighbors_answered.add(1);
                state.leave(frame, &mut *self.bin.pool);
            }
            Err(reason) => self.bin.drop_frame(frame, reason),
        }
    }

    fn net_out(&mut self, max: usize) -> usize {
        let Self { ports, invoke, handover, bin, .. } = self;
        let count = handover.take_outbound(max, |frame| {
            let port = usize::from(frame.port().0);
            match (ports.get_mut(port), &mut *invoke) {
                (Some(state), _) => state.leave(frame, &mut *bin.pool),
                (None, Some(invoke)) if invoke.index() == frame.port() => {
                    invoke.answer(frame.bytes());
                    bin.take(frame.into_buffer());
                }
                (None, _) => {
                    debug_assert!(false, "MMA names port {port} of {}", ports.len());
                    bin.take(frame.into_buffer());
                }
            }
        });
        for state in ports {
            state.transmit(&mut *bin.pool);
        }
        count
    }

    fn sweep(&mut self, now_ns: u64) -> usize {
        let elapsed_ns = now_ns.saturating_sub(self.swept_ns);
        if elapsed_ns < SWEEP_INTERVAL_NS {
            return 0;
        }
        self.swept_ns = now_ns;
        let share = SweepShare { elapsed_ns, period_ns: SWEEP_PERIOD_NS, places_max: SWEEP_PLACES_MAX };
        self.assigner.sweep(now_ns, share, IDLE_PER_POLL)
    }

    fn report(&self) {
        let Self { assigner, pending, bin, .. } = self;
        bin.observer.set_gauges(assigner.flows(), assigner.bound(), assigner.ready(), pending.frames());
    }

    fn ask_ports(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.facts_ns) >= FACTS_INTERVAL_NS {
            self.facts_ns = now_ns;
            for state in &self.ports {
                self.bin.observer.port(state.index).set_facts(&state.port.facts());
            }
        }
    }
}

impl Drop for Gateway {
    // Frames that wait go back to the pool. Those at MMA are MMA's, which may use them still.
    fn drop(&mut self) {
        let Self { pending, bin, .. } = self;
        while pending.expire(u64::MAX, |frame| bin.take(frame.into_buffer())) {}
        for PortState { behind, leaving, .. } in &mut self.ports {
            let behind = std::iter::from_fn(|| behind.take()).map(|(frame, _)| frame);
            leaving.drain(..).chain(behind).for_each(|frame| bin.take(frame.into_buffer()));
        }
        bin.close();
    }
}

fn port_state(index: PortIndex, setup: PortSetup, burst: usize) -> PortState {
    let PortSetup { port, addresses } = setup;
    let neighbors = Neighbors::new(EthernetAddress(port.facts().mac), &addresses);
    let promiscuous = port.promiscuous();
    let behind = Behind::new(burst);
    PortState { port, index, neighbors, promiscuous, behind, leaving: Vec::with_capacity(burst) }
}

#[cfg(test)]
mod tests;
