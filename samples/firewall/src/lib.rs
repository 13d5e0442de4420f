//! A firewall with state, between an inside and the rest: ordered rules say who may begin a flow, its answers come back, all else is dropped.
//!
//! ```text
//!   configuration --config.rs--> Config                                  once, when the chain is made
//!   frame --the SDK--> Headers --judge.rs--> Verdict --> send or drop    for each packet
//!                                 |  ^
//!              rules.rs, for whoever begins;  connections.rs, for what goes on;  counters.rs, for the node to show
//! ```
//!
//! Its tables are made once and never grow, so it costs the same whatever comes.

#![forbid(unsafe_code)]

pub mod config;
pub mod connections;
mod counters;
mod judge;
pub mod rules;

use config::{Config, Outputs};
pub use counters::Counters;
use counters::PacketCounters;
pub use judge::{Denial, Judge, Verdict};
use pinion_sdk::headers::Headers;
use pinion_sdk::{Batch, Function, InitError, clock, info};
use rules::Direction;

/// Time between two log lines about denied packets.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Firewall {
    judge: Judge,
    outputs: Outputs,
    counters: PacketCounters,
    reported_ns: Option<u64>,
}

impl Function for Firewall {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config: Config = pinion_sdk::config::parse(config)?;
        let outputs = config.outputs;
        Ok(Self { judge: Judge::new(config), outputs, counters: PacketCounters::new(), reported_ns: None })
    }

    fn start(&mut self) {
        self.judge.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        let mut any_denied = false;
        for packet in batch {
            let verdict = match Headers::of(packet.data()) {
                Ok(headers) => self.judge.verdict(&headers, packet.data(), now_ns),
                Err(_) => Verdict::Deny(Denial::Unreadable),
            };
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
    }
}

impl Firewall {
    /// What became of packets so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.values()
    }

    /// Says so now and then: a client that floods what is denied must not fill the log.
    #[cold]
    fn report(&mut self, now_ns: u64) {
        if self.reported_ns.is_some_and(|reported_ns| now_ns - reported_ns < REPORT_INTERVAL_NS) {
            return;
        }
        self.reported_ns = Some(now_ns);
        let Counters { allowed, denied: [by_rules, not_begun, no_room, unreadable] } = self.counters();
        info!(
            "packets so far: {allowed} allowed; denied: {by_rules} by rules, {not_begun} of flows that nobody began, \
             {no_room} for want of room, {unreadable} unreadable"
        );
    }
}

pinion_sdk::export!(Firewall);
