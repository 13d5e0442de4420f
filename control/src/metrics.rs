//! Counters and gauges that functions have, as the node shows them.

use serde::Serialize;

use crate::model::{ChainName, ModuleName, TenantName};

/// Which functions' metrics are meant. Absent filters let everything through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantName>,
    /// Only this chain's.
    pub chain: Option<ChainName>,
}

impl MetricFilter {
    /// Whether this chain of this tenant is meant.
    #[must_use]
    pub fn passes(&self, tenant: &TenantName, chain: &ChainName) -> bool {
        self.tenant.as_ref().is_none_or(|meant| meant == tenant)
            && self.chain.as_ref().is_none_or(|meant| meant == chain)
    }
}

/// Whether a metric only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    /// It does: those of all instances that the chain has had are added up.
    Counter,
    /// It goes up and down: those of its instances that there are, are added up.
    Gauge,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricValue {
    /// Of a counter.
    Counter(u64),
    /// Of a gauge.
    Gauge(i64),
}

impl MetricValue {
    /// Which of the two it is.
    #[must_use]
    pub fn kind(self) -> MetricKind {
        match self {
            Self::Counter(_) => MetricKind::Counter,
            Self::Gauge(_) => MetricKind::Gauge,
        }
    }

    /// Adds another instance's word of memory. What it adds up to is the tenant's own affair, so it goes round and does not fail.
    pub fn add(&mut self, word: u64) {
        match self {
            Self::Counter(sum) => *sum = sum.wrapping_add(word),
            Self::Gauge(sum) => *sum = sum.wrapping_add(word as i64),
        }
    }
}

/// A series: a metric of a stage of a chain, with its labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MetricStatus {
    /// Whose it is.
    pub tenant: TenantName,
    /// Which chain's.
    pub chain: ChainName,
    /// The stage's place in the chain, from 0.
    pub stage: u32,
    /// The stage's module.
    pub module: ModuleName,
    /// Its name, as the function says: of a counter without `_total`.
    pub name: String,
    /// What it counts, as the function says.
    pub help: String,
    /// Its labels and their values, in the function's order.
    pub labels: Vec<(String, String)>,
    /// What it is.
    pub value: MetricValue,
}
