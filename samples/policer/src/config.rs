//! The configuration, as a tenant writes it.

use serde::{Deserialize, Deserializer, de};

/// The highest rate and burst, so that all that is computed of them fits into 128 bits, and when a bucket is full into 64.
const BYTES_MAX: u64 = 1 << 40;

/// Most flows that can be asked for.
const FLOWS_MAX: u64 = 65_536;

/// What an instance has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How many bytes pass in a second, in the long run.
    #[serde(deserialize_with = "rate")]
    pub rate_bytes_per_s: u64,
    /// How many pass at once after a pause.
    #[serde(deserialize_with = "burst")]
    pub burst_bytes: u64,
    /// Of what.
    pub per: Per,
    /// How many flows have a bucket of their own at once.
    #[serde(default = "default_flows", deserialize_with = "flows")]
    pub flows_max: usize,
}

/// What a limit is a limit of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// Each flow, in each direction.
    Flow,
    /// All packets together.
    All,
}

fn default_flows() -> usize {
    4_096
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    within(deserializer, "bytes per second", BYTES_MAX)
}

fn burst<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    within(deserializer, "bytes", BYTES_MAX)
}

fn flows<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    within(deserializer, "flows", FLOWS_MAX).map(|count| count as usize)
}

fn within<'de, D: Deserializer<'de>>(deserializer: D, of_what: &str, max: u64) -> Result<u64, D::Error> {
    let value = u64::deserialize(deserializer)?;
    if (1..=max).contains(&value) {
        Ok(value)
    } else {
        Err(de::Error::custom(format_args!("{value} {of_what}; 1 to {max} are possible")))
    }
}
