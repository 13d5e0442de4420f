//! The command line of what waits for a change.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};

use super::{Kind, Word, time};

/// How long to wait by default.
const WAIT: Duration = Duration::from_secs(120);

/// Whether to wait until a change is in force.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct Waiting {
    /// Wait until the change is completely in force: an instance of each chain that it concerns is ready. Chains with
    /// cache_min = 0 have none ready
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait for that: 500ms, 10s, 2m. By default 2m
    #[arg(id = "wait_timeout", long = "timeout", requires = "wait", value_name = "TIME", value_parser = time)]
    timeout: Option<Duration>,
}

impl Waiting {
    pub(crate) fn timeout(self) -> Duration {
        self.timeout.unwrap_or(WAIT)
    }
}

/// What to wait for, and of which objects.
#[derive(Debug, ClapArgs)]
pub(crate) struct Wait {
    /// The objects: chain echo, or chain/echo rule/ping
    #[arg(value_name = "KIND/NAME", required = true, value_parser = Word(&Kind::OF_MANIFESTS))]
    pub(crate) objects: Vec<String>,
    /// What to wait for
    #[arg(long = "for", value_enum, value_name = "CONDITION", default_value_t = Condition::InForce)]
    pub(crate) condition: Condition,
    /// How long to wait for that: 500ms, 10s, 2m
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Duration,
}

/// What `pinion wait` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Condition {
    /// The latest change of the object's tenant is in force, and an instance is ready of the chain, or of each chain that has the
    /// module, key or model, but for those with cache_min = 0
    InForce,
    /// The object is not there any more, and no new client gets it
    #[value(alias = "delete")]
    Deleted,
}
