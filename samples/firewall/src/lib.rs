//! A stateful firewall between an inside network and the rest: ordered rules decide which packets may begin a flow,
//! answers pass, everything else is dropped.
//!
//! ```text
//!   configuration --config.rs--> Config                                  once, when the chain is made
//!   frame --the SDK--> Headers --judge.rs--> Verdict --> send or drop    for each packet
//!                                 |  ^
//!              rules.rs: what may begin;  connections.rs and datagrams.rs: what exists;  counters.rs: metrics
//! ```
//!
//! Its tables are allocated once and never grow, so its costs per packet are bounded.

#![forbid(unsafe_code)]

pub mod config;
pub mod connections;
mod counters;
pub mod datagrams;
mod judge;
pub mod rules;

use config::{Config, Outputs};
pub use counters::Counters;
use counters::PacketCounters;
pub use judge::{Denial, From, Judge, Verdict};
use pinion_sdk::headers::Headers;
use pinion_sdk::{Batch, Function, InitError, KeepAlive, Packet, clock, info, warn};
use rules::Direction;

/// Time between two log lines about denied packets.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Firewall {
    judge: Judge,
    inside_ports: Vec<u16>,
    outputs: Outputs,
    counters: PacketCounters,
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
            inside_ports,
            outputs,
            counters: PacketCounters::new(),
            reported_ns: None,
            keep_alive: KeepAlive::default(),
            believed: Believed::default(),
        })
    }

    fn start(&mut self) {
        self.judge.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        let mut any_denied = false;
        self.judge.expire(now_ns);
        for packet in batch {
            let from = self.origin(&packet);
            // The fragment table, which knows the other fragments, refuses those that overlap.
            let verdict = match Headers::of_part(packet.data()) {
                Ok(headers) => self.judge.verdict(&headers, packet.data(), from, now_ns),
                Err(_) => Verdict::Deny(Denial::Unreadable),
            };
            if from.is_none() && verdict == Verdict::Allow(Direction::Out) {
                self.believed.note(packet.ingress_port());
            }
            match verdict {
                Verdict::Allow(direction) => {
                    self.counters.allowed.increment();
                    packet.send_to(match direction {
                        Direction::Out => self.outputs.out,
                        Direction::In => self.outputs.inward,
                    });
                }
                Verdict::Deny(denial) => {
                    self.counters.denied[denial as usize].increment();
                    any_denied = true;
                    packet.discard();
                }
            }
        }
        if any_denied {
            self.report(now_ns);
        }
        // The chain's idle time is meant for instances that remember nothing.
        self.keep_alive.until(self.judge.connections().needed_until_ns());
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
        let Counters { allowed, denied: [by_rules, not_begun, no_room, spoofed, unreadable] } = self.counters();
        let spoofed = match spoofed {
            0 => String::new(),
            _ => format!(", {spoofed} with a source of the other side"),
        };
        info!(
            "packets so far: {allowed} allowed; denied: {by_rules} by rules, {not_begun} of no known flow, \
             {no_room} without room in the table, {unreadable} unreadable{spoofed}"
        );
    }
}

pinion_sdk::export!(Firewall);
