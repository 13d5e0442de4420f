//! A token-bucket policer: packets above a rate and a burst are dropped, others are forwarded unchanged.
//!
//! [`bucket::Bucket`] counts; this file has one bucket for all packets, or one for each flow. A full bucket carries no
//! information, so a flow's bucket is forgotten when it is full.

#![forbid(unsafe_code)]

pub mod bucket;
pub mod config;

use bucket::{Bucket, Limit};
use config::{Config, Per};
use pinion_sdk::headers::{FlowKey, Headers};
use pinion_sdk::table::Table;
use pinion_sdk::{Batch, Function, InitError, clock, info};

/// Time between two log lines about dropped packets.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Policer {
    limit: Limit,
    /// The buckets of flows that have their own.
    flows: Option<Table<FlowKey, Bucket>>,
    /// The bucket of all other packets.
    shared: Bucket,
    counters: Counters,
    reported_ns: Option<u64>,
}

/// Counts of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Forwarded.
    pub passed: u64,
    /// Dropped, as they were above the limit.
    pub dropped: u64,
    /// Of flows that found no free bucket, passed or not.
    pub without_bucket: u64,
}

impl Function for Policer {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config: Config = pinion_sdk::config::parse(config)?;
        let limit = Limit::new(config.rate_bytes_per_s, config.burst_bytes);
        let flows = match config.per {
            Per::Flow => Some(Table::new(config.flows_max, &[limit.time_to_fill_ns()])),
            Per::All => None,
        };
        Ok(Self { limit, flows, shared: Bucket::full(&limit, 0), counters: Counters::default(), reported_ns: None })
    }

    fn start(&mut self) {
        // The template was made by another clock.
        self.shared = Bucket::full(&self.limit, clock::now_ns());
        if let Some(flows) = &mut self.flows {
            flows.start();
        }
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        let dropped_before = self.counters.dropped;
        for packet in batch {
            if self.admits(packet.data(), now_ns) {
                self.counters.passed += 1;
                packet.send();
            } else {
                self.counters.dropped += 1;
                packet.discard();
            }
        }
        if self.counters.dropped > dropped_before {
            self.report(now_ns);
        }
    }
}

impl Policer {
    /// Returns the counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn admits(&mut self, frame: &[u8], now_ns: u64) -> bool {
        let Some(flows) = &mut self.flows else {
            return self.shared.take(&self.limit, frame.len(), now_ns);
        };
        // Packets without a flow share a bucket.
        let Some(flow) = Headers::of(frame).ok().and_then(|headers| headers.flow()) else {
            return self.shared.take(&self.limit, frame.len(), now_ns);
        };
        if let Some(bucket) = flows.touch(&flow, 0, now_ns) {
            return bucket.take(&self.limit, frame.len(), now_ns);
        }
        let mut bucket = Bucket::full(&self.limit, now_ns);
        let admitted = bucket.take(&self.limit, frame.len(), now_ns);
        if flows.insert(flow, bucket, 0, now_ns).is_ok() {
            return admitted;
        }
        // Otherwise a client would gain bursts by beginning more flows than there is room for.
        self.counters.without_bucket += 1;
        self.shared.take(&self.limit, frame.len(), now_ns)
    }

    /// Logs the counts, at most every ten seconds: a flood must not fill the log.
    #[cold]
    fn report(&mut self, now_ns: u64) {
        if self.reported_ns.is_none_or(|reported_ns| now_ns - reported_ns >= REPORT_INTERVAL_NS) {
            self.reported_ns = Some(now_ns);
            let Counters { passed, dropped, without_bucket } = self.counters;
            info!("packets so far: {passed} passed, {dropped} dropped; {without_bucket} of flows without a bucket");
        }
    }
}

pinion_sdk::export!(Policer);
