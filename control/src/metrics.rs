//! Counters and gauges of functions, as the node reports them.

use serde::Serialize;

use crate::model::{ChainName, ModuleName, TenantName};

/// Selects functions' metrics. Absent filters match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantName>,
    /// Only this chain's.
    pub chain: Option<ChainName>,
}

impl MetricFilter {
    /// Returns whether the filter matches this chain of this tenant.
    #[must_use]
    pub fn passes(&self, tenant: &TenantName, chain: &ChainName) -> bool {
        self.tenant.as_ref().is_none_or(|meant| meant == tenant)
            && self.chain.as_ref().is_none_or(|meant| meant == chain)
    }
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    /// It only grows. The values of all instances that the chain has had are added up.
    Counter,
    /// It goes up and down. The values of all current instances are added up.
    Gauge,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricValue {
    /// A counter's value.
    Counter(u64),
    /// A gauge's value.
    Gauge(i64),
}

impl MetricValue {
    /// Returns the kind of the metric.
    #[must_use]
    pub fn kind(self) -> MetricKind {
        match self {
            Self::Counter(_) => MetricKind::Counter,
            Self::Gauge(_) => MetricKind::Gauge,
        }
    }

    /// Adds another instance's word of memory. Wraps around on overflow instead of failing, since the function alone
    /// decides on the values.
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
    /// The tenant that owns the chain.
    pub tenant: TenantName,
    /// The chain.
    pub chain: ChainName,
    /// The index of the stage in the chain, from 0.
    pub stage: u32,
    /// The stage's module.
    pub module: ModuleName,
    /// Its name, as the function declares it. A counter's name has no `_total`.
    pub name: String,
    /// Its help text, as the function declares it.
    pub help: String,
    /// Its labels and their values, in the function's order.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: MetricValue,
}
