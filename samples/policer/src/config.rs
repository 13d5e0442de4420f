//! The configuration, as a tenant writes it.

use serde::{Deserialize, Deserializer, de};

/// The highest rate and burst. With it, computations fit into 128 bits, and the time until a bucket is full into 64.
const BYTES_MAX: u64 = 1 << 40;

/// A full frame of a port with the usual MTU: 1,500 bytes, the Ethernet header, and a VLAN tag. With a lower burst it
/// would never pass.
pub const FULL_FRAME_BYTES: u64 = 1_500 + 14 + 4;

/// Most flows that can be configured.
const FLOWS_MAX: u64 = 65_536;

/// The configuration of an instance.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Bytes per second that pass in the long run.
    #[serde(deserialize_with = "rate")]
    pub rate_bytes_per_s: u64,
    /// Bytes that pass at once after a pause: at least a full frame.
    #[serde(deserialize_with = "burst")]
    pub burst_bytes: u64,
    /// What the limit applies to.
    pub per: Per,
    /// Most flows that have their own bucket at once.
    #[serde(default = "default_flows", deserialize_with = "flows")]
    pub flows_max: usize,
}

/// What a limit applies to.
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
    let bytes = u64::deserialize(deserializer)?;
    if (FULL_FRAME_BYTES..=BYTES_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(de::Error::custom(format_args!(
            "{bytes} bytes; at least {FULL_FRAME_BYTES} are needed for a full frame to pass, and {BYTES_MAX} are the most"
        )))
    }
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
