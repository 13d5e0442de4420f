//! What chains may have of their cores.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ChainProblem;

/// The least time that a batch may be given.
pub const CPU_PER_BATCH_US_MIN: u32 = 10;
/// The most: a minute.
pub const CPU_PER_BATCH_US_MAX: u32 = 60_000_000;
/// The most time of a second; the least is 1.
pub const CPU_PER_SECOND_MS_MAX: u32 = 1000;

/// Who comes first on a core, the highest class first: a class has the core only while none above it wants it, but for a small part
/// that is always its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The operator's own functions.
    System,
    /// Functions that somebody waits for.
    Latency,
    /// All others.
    Throughput,
}

impl Class {
    /// All of them, the highest first.
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

/// What becomes of an FWP that has had its time of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverBudget {
    /// It waits until it has some again.
    Throttle,
    /// Its instance ends.
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
    /// Before whom it has the core.
    pub class: Class,
    /// The most time from when it is given packets until it waits for more. Whoever takes longer is ended.
    pub cpu_per_batch_us: Option<u32>,
    /// The most time in a second.
    pub cpu_per_second_ms: Option<u32>,
    /// What becomes of one that takes more than that.
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
    /// Whether every number is within its bounds.
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
