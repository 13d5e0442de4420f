//! A meter: it counts what each flow takes, logs those that take most now and then, and passes everything on untouched.

#![forbid(unsafe_code)]

pub mod config;
pub mod flows;

use core::fmt;

use config::Config;
use flows::{Amount, Flows, Usage};
use pinion_sdk::headers::{FlowKey, ICMP, ICMPV6, TCP, UDP};
use pinion_sdk::{Batch, Function, InitError, Shelf, clock, info};

const SECOND_NS: u64 = 1_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Monitor {
    config: Config,
    flows: Flows,
    /// When the interval began, if anything has come in it.
    since_ns: Option<u64>,
}

impl Function for Monitor {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config = Config::parse(config)?;
        Ok(Self { config, flows: Flows::with_capacity(config.flows), since_ns: None })
    }

    fn start(&mut self) {
        self.flows.rekey();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        for packet in batch {
            self.flows.see(packet.data(), now_ns);
            packet.send();
        }
        // Where nothing comes nothing is reported, and the instance sleeps.
        self.since_ns.get_or_insert(now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.since_ns.map(|since_ns| since_ns + self.config.every_s * SECOND_NS)
    }

    fn expire(&mut self, _shelf: Shelf<'_>) {
        let Some(since_ns) = self.since_ns.take() else { return };
        let now_ns = clock::now_ns();
        // Never zero: a deadline that has passed is one second later at least.
        let span_ns = now_ns.saturating_sub(since_ns).max(1);
        let Amount { packets, bytes } = self.flows.recent;
        let (known, forgotten) = (self.flows.len(), self.flows.forgotten);
        info!(
            "{packets} packets, {bytes} bytes, {} bit/s in {} s; {known} flows known, {forgotten} forgotten so far",
            bits_per_second(bytes, span_ns),
            span_ns / SECOND_NS
        );
        for (flow, usage) in self.flows.top(self.config.top) {
            let Usage { total, recent, first_ns, last_ns, .. } = usage;
            info!(
                "{}: {} packets, {} bytes, {} bit/s; in all {} packets, {} bytes, first seen {} s ago, last {} s ago",
                Shown(&flow),
                recent.packets,
                recent.bytes,
                bits_per_second(recent.bytes, span_ns),
                total.packets,
                total.bytes,
                now_ns.saturating_sub(first_ns) / SECOND_NS,
                now_ns.saturating_sub(last_ns) / SECOND_NS
            );
        }
    }
}

impl Monitor {
    /// What was counted.
    #[must_use]
    pub fn flows(&self) -> &Flows {
        &self.flows
    }
}

fn bits_per_second(bytes: u64, span_ns: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 8 * u128::from(SECOND_NS) / u128::from(span_ns)).unwrap_or(u64::MAX)
}

/// A flow as a person reads it.
struct Shown<'a>(&'a FlowKey);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowKey { addresses, ports, protocol } = self.0;
        let (source, destination) = (addresses.source(), addresses.destination());
        match *protocol {
            TCP => write!(f, "tcp {source} port {} to {destination} port {}", ports.source, ports.destination),
            UDP => write!(f, "udp {source} port {} to {destination} port {}", ports.source, ports.destination),
            ICMP | ICMPV6 => write!(f, "icmp {source} to {destination}"),
            other => write!(f, "protocol {other} {source} to {destination}"),
        }
    }
}

pinion_sdk::export!(Monitor);
