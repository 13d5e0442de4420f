//! How chains may use their cores: scheduling class and CPU time limits.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ChainProblem;

/// The smallest limit of CPU time per batch.
pub const CPU_PER_BATCH_US_MIN: u32 = 10;
/// The largest limit of CPU time per batch: a minute.
pub const CPU_PER_BATCH_US_MAX: u32 = 60_000_000;
/// The largest limit of CPU time per second; the smallest is 1.
pub const CPU_PER_SECOND_MS_MAX: u32 = 1000;

/// The scheduling class: which FWPs run first on a core. A class has the core only while no higher class needs it,
/// except for a small share that is always its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The operator's own functions.
    System,
    /// Functions whose latency matters.
    Latency,
    /// All other functions.
    Throughput,
}

impl Class {
    /// All classes, the highest first.
    pub const ALL: [Class; 3] = [Class::System, Class::Latency, Class::Throughput];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::System => "system",
            Class::Latency => "latency",
            Class::Throughput => "throughput",
        })
    }
}

/// What happens to an FWP that has used its CPU time of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverBudget {
    /// It waits until its budget is refilled.
    Throttle,
    /// Its instance is ended.
    Kill,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OverBudget::Throttle => "throttle",
            OverBudget::Kill => "kill",
        })
    }
}

/// How each FWP of a chain may use its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Scheduling {
    /// The scheduling class.
    pub class: Class,
    /// The maximum CPU time from when an FWP gets packets until it waits for more. An FWP that takes longer is ended.
    pub cpu_per_batch_us: Option<u32>,
    /// The maximum CPU time in a second.
    pub cpu_per_second_ms: Option<u32>,
    /// What happens to an FWP that takes more than that.
    pub over_budget: OverBudget,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            class: Class::Throughput,
            cpu_per_batch_us: None,
            cpu_per_second_ms: None,
            over_budget: OverBudget::Throttle,
        }
    }
}

impl Scheduling {
    /// Checks that every number is within its bounds.
    pub(super) fn check(&self) -> Result<(), ChainProblem> {
        if let Some(us) = self.cpu_per_batch_us
            && !(CPU_PER_BATCH_US_MIN..=CPU_PER_BATCH_US_MAX).contains(&us)
        {
            return Err(ChainProblem::CpuPerBatch(us));
        }
        if let Some(ms) = self.cpu_per_second_ms
            && !(1..=CPU_PER_SECOND_MS_MAX).contains(&ms)
        {
            return Err(ChainProblem::CpuPerSecond(ms));
        }
        Ok(())
    }
}
