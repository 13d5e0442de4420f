//! What the fast path records: counters, histograms, log lines. Each has one writer, and others read it at any time.

pub mod activation;
pub mod latencies;
pub mod log;
pub mod metrics;
