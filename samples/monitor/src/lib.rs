//! A flow monitor: counts the traffic of each flow, logs the top flows periodically, and forwards everything unchanged.

#![forbid(unsafe_code)]

pub mod config;
pub mod flows;

use core::fmt;

use config::Config;
use flows::{Amount, Flows, Usage};
use pinion_sdk::headers::{FlowKey, ICMP, ICMPV6, TCP, UDP};
use pinion_sdk::metrics::{Counter, Gauge, NamedGauge};
use pinion_sdk::{Batch, Function, InitError, Slots, clock, info};

const SECOND_NS: u64 = 1_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Monitor {
    config: Config,
    flows: Flows,
    /// When the interval began, if a frame has come in it.
    since_ns: Option<u64>,
    /// When the top flows were last shown, if they are.
    shown_ns: Option<u64>,
    totals: Totals,
    /// Gauges of the top flows, the greatest first.
    top: Vec<NamedGauge>,
}

/// The metrics of all flows together.
#[derive(Debug)]
struct Totals {
    packets: Counter,
    bytes: Counter,
    forgotten: Counter,
    flows: Gauge,
}

impl Totals {
    fn new() -> Self {
        Self {
            packets: Counter::new("monitor_packets", "Frames that have passed."),
            bytes: Counter::new("monitor_bytes", "Bytes of the frames that have passed."),
            forgotten: Counter::new("monitor_flows_forgotten", "Flows that were forgotten because the table was full."),
            flows: Gauge::new("monitor_flows", "Flows that are remembered."),
        }
    }
}

/// Makes a gauge for each rank of the top flows.
fn places(count: usize) -> Vec<NamedGauge> {
    let help = "Rate of a top flow in the last interval.";
    let place =
        |rank: usize| NamedGauge::new("monitor_top_bits_per_second", help, &[("rank", &rank.to_string())], "flow");
    (1..=count).map(place).collect()
}

impl Function for Monitor {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config = Config::parse(config)?;
        let (flows, totals, top) = (Flows::with_capacity(config.flows), Totals::new(), places(config.top));
        Ok(Self { config, flows, since_ns: None, shown_ns: None, totals, top })
    }

    fn start(&mut self) {
        self.flows.rekey();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        let forgotten = self.flows.forgotten;
        for packet in batch {
            self.flows.see(packet.data(), now_ns);
            self.totals.packets.increment();
            self.totals.bytes.add(packet.len() as u64);
            packet.send();
        }
        self.totals.forgotten.add(self.flows.forgotten - forgotten);
        self.totals.flows.set(self.flows.len() as i64);
        // Without packets no report is due, so that the instance sleeps.
        self.since_ns.get_or_insert(now_ns);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.since_ns.or(self.shown_ns).map(|since_ns| since_ns + self.config.every_s * SECOND_NS)
    }

    fn expire(&mut self, _slots: Slots<'_>) {
        let now_ns = clock::now_ns();
        self.top.iter().for_each(NamedGauge::clear);
        let Some(since_ns) = self.since_ns.take() else {
            // An interval without packets.
            self.shown_ns = None;
            return;
        };
        self.shown_ns = Some(now_ns);
        // Never zero: a deadline that has passed is at least one second later.
        let span_ns = now_ns.saturating_sub(since_ns).max(1);
        let Amount { packets, bytes } = self.flows.recent;
        let (known, forgotten) = (self.flows.len(), self.flows.forgotten);
        info!(
            "{packets} packets, {bytes} bytes, {} bit/s in {} s; {known} flows known, {forgotten} forgotten so far",
            bits_per_second(bytes, span_ns),
            span_ns / SECOND_NS
        );
        for (place, (flow, usage)) in self.top.iter().zip(self.flows.top(self.config.top)) {
            let Usage { total, recent, first_ns, last_ns, .. } = usage;
            let rate = bits_per_second(recent.bytes, span_ns);
            place.set(&Shown(&flow).to_string(), i64::try_from(rate).unwrap_or(i64::MAX));
            info!(
                "{}: {} packets, {} bytes, {rate} bit/s; in all {} packets, {} bytes, first seen {} s ago, last {} s ago",
                Shown(&flow),
                recent.packets,
                recent.bytes,
                total.packets,
                total.bytes,
                now_ns.saturating_sub(first_ns) / SECOND_NS,
                now_ns.saturating_sub(last_ns) / SECOND_NS
            );
        }
    }
}

impl Monitor {
    /// Returns the flow table.
    #[must_use]
    pub fn flows(&self) -> &Flows {
        &self.flows
    }
}

fn bits_per_second(bytes: u64, span_ns: u64) -> u64 {
    (bytes as f64 * 8.0 * SECOND_NS as f64 / span_ns as f64) as u64
}

/// Formats a flow for people.
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
