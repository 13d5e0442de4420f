//! A stateful firewall between an inside network and the rest: ordered rules decide which packets may begin a flow,
//! answers pass, everything else is dropped.
//!
//! ```text
//!   configuration --config.rs--> Config                                  once, when the chain is made
//!   frame --the SDK--> Headers --judge.rs--> send or drop                for each packet, and each first fragment
//!                                 |  ^
//!                 rules.rs: what may begin;  connections.rs: what exists;  counters.rs: metrics
//! ```
//!
//! The SDK's table of fragments has the later fragments follow the first one.
//!
//! Its tables are allocated once and never grow, so its costs per packet are bounded.

#![forbid(unsafe_code)]

pub mod config;
pub mod connections;
mod counters;
mod judge;
pub mod rules;

use config::{Config, Outputs};
pub use counters::Counters;
use counters::PacketCounters;
pub use judge::{Denial, From, Judge};
use pinion_sdk::fragments::{Arrival, Fragments, Limits};
use pinion_sdk::headers::Headers;
use pinion_sdk::{Batch, Function, InitError, KeepAlive, Packet, Slots, clock, info, warn};
use rules::Direction;

/// Time between two log lines about denied packets.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Firewall {
    judge: Judge,
    /// Datagrams in fragments whose first fragment was allowed.
    fragments: Fragments<()>,
    inside_ports: Vec<u16>,
    outputs: Outputs,
    counters: PacketCounters,
    /// Packets that had been dropped after the last batch.
    dropped_before: u64,
    reported_ns: Option<u64>,
    keep_alive: KeepAlive,
    believed: Believed,
}

/// The node's ports on which packets came that only their source address tells to be from inside.
#[derive(Clone, Copy, Debug, Default)]
struct Believed {
    port: Option<u16>,
    warned: bool,
}

impl Believed {
    /// Warns once if there are several ports: one of them may lead outside, and `inside` addresses from there are
    /// forged.
    #[inline]
    fn note(&mut self, port: u16) {
        let first = *self.port.get_or_insert(port);
        if first != port && !self.warned {
            self.warned = true;
            warn!(
                "packets with `inside` source addresses come by the node's ports {first} and {port}, so forged ones cannot be detected: \
                 set `inside_ports`, or use a chain with `reverse`"
            );
        }
    }
}

impl Function for Firewall {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config: Config = pinion_sdk::config::parse(config)?;
        let (outputs, inside_ports) = (config.outputs, config.inside_ports.clone());
        Ok(Self {
            judge: Judge::new(config),
            fragments: Fragments::new("firewall", Limits::default()),
            inside_ports,
            outputs,
            counters: PacketCounters::new(),
            dropped_before: 0,
            reported_ns: None,
            keep_alive: KeepAlive::default(),
            believed: Believed::default(),
        })
    }

    fn start(&mut self) {
        self.judge.start();
        self.fragments.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.judge.expire(now_ns);
        self.fragments.expire(now_ns);
        for packet in batch {
            self.pass(packet, slots, now_ns);
        }
        let dropped = self.dropped();
        if dropped != self.dropped_before {
            self.dropped_before = dropped;
            self.report(now_ns);
        }
        // The chain's idle time is meant for instances that remember nothing.
        self.keep_alive.until(self.judge.connections().needed_until_ns());
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.fragments.deadline_ns()
    }

    fn expire(&mut self, _slots: Slots<'_>) {
        self.fragments.expire(clock::now_ns());
    }
}

impl Firewall {
    /// Returns the results for packets so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.values()
    }

    /// Returns the number of remembered flows.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.judge.connections().len()
    }

    /// Judges a packet, and sends it on or drops it. A first fragment takes the later ones with it that came before.
    fn pass(&mut self, packet: Packet<'_>, slots: Slots<'_>, now_ns: u64) {
        let from = self.origin(&packet);
        // The table of fragments, which knows the other fragments, refuses those that overlap.
        let Ok(headers) = Headers::of_part(packet.data()) else { return self.deny(packet, Denial::Unreadable) };
        let direction = match self.judge.direction(&headers, from) {
            Ok(direction) => direction,
            Err(denial) => return self.deny(packet, denial),
        };
        match self.fragments.arrive(packet, &headers, direction as u16, now_ns) {
            Arrival::Whole(packet) => match self.judge.judge(&headers, packet.data(), direction, now_ns) {
                Ok(()) => self.allow(packet, direction),
                Err(denial) => self.deny(packet, denial),
            },
            Arrival::First(packet, first) => {
                let judged = self.judge.judge(&headers, packet.data(), direction, now_ns);
                let passes = self.fragments.decide(first, judged.ok(), now_ns);
                match judged {
                    Ok(()) if passes => self.allow(packet, direction),
                    Ok(()) => packet.discard(),
                    Err(denial) => self.deny(packet, denial),
                }
                while let Some(later) = self.fragments.next_held(first, slots, now_ns) {
                    self.allow(later, direction);
                }
            }
            Arrival::Later(packet, ()) => self.allow(packet, direction),
            Arrival::Taken => {}
        }
    }

    #[inline]
    fn allow(&mut self, packet: Packet<'_>, direction: Direction) {
        if direction == Direction::Out && packet.side(&self.inside_ports).is_none() {
            self.believed.note(packet.ingress_port());
        }
        self.counters.allowed.increment();
        packet.send_to(match direction {
            Direction::Out => self.outputs.out,
            Direction::In => self.outputs.inward,
        });
    }

    fn deny(&self, packet: Packet<'_>, denial: Denial) {
        self.counters.denied[denial as usize].increment();
        packet.discard();
    }

    /// Returns the number of packets that were dropped, for all reasons.
    fn dropped(&self) -> u64 {
        self.counters.denied.iter().map(pinion_sdk::metrics::Counter::value).sum::<u64>() + self.fragments.dropped()
    }

    fn origin(&self, packet: &Packet<'_>) -> Option<From> {
        let side = packet.side(&self.inside_ports)?;
        Some(From { side, is_reply: packet.is_reply() })
    }

    /// Logs the counters, at most every ten seconds: a flood of denied packets must not fill the log.
    #[cold]
    fn report(&mut self, now_ns: u64) {
        if self.reported_ns.is_some_and(|reported_ns| now_ns - reported_ns < REPORT_INTERVAL_NS) {
            return;
        }
        self.reported_ns = Some(now_ns);
        let Counters { allowed, denied: [by_rules, not_begun, no_room, spoofed, unreadable, errors] } = self.counters();
        let some = |count: u64, what: &str| if count == 0 { String::new() } else { format!(", {count} {what}") };
        let spoofed = some(spoofed, "with a source of the other side");
        let errors = some(errors, "ICMP errors about no known flow");
        let fragments = some(self.fragments.dropped(), "fragments");
        info!(
            "packets so far: {allowed} allowed; denied: {by_rules} by rules, {not_begun} of no known flow, \
             {no_room} without room in the table, {unreadable} unreadable{spoofed}{errors}{fragments}"
        );
    }
}

pinion_sdk::export!(Firewall);
