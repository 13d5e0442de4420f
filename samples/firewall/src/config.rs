//! The configuration, as a tenant writes it. What cannot be is refused while it is read, so that the refusal has the field's path.

use core::num::NonZeroU32;

use serde::{Deserialize, Deserializer, de};

use crate::rules::{Network, Ports, Rule};

/// Most connections that can be asked for.
const CONNECTIONS_MAX: u32 = 65_536;

/// What an instance has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Whoever has an address in one of these is inside.
    pub inside: Vec<Network>,
    /// The first one that fits whoever begins decides; nobody begins where none fits.
    #[serde(default)]
    pub rule: Vec<Rule>,
    /// How many connections go on at once.
    #[serde(default = "default_connections", deserialize_with = "connections")]
    pub connections_max: usize,
    /// After how long an idle one is forgotten.
    #[serde(default)]
    pub idle: Idle,
    /// Where packets go on.
    #[serde(default)]
    pub outputs: Outputs,
}

/// Seconds after which a connection is forgotten that nothing came for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Idle {
    /// One that nobody has answered yet.
    pub opening_s: NonZeroU32,
    /// One of TCP.
    pub tcp_s: NonZeroU32,
    /// One of any other protocol.
    pub other_s: NonZeroU32,
    /// One of TCP that was closed or reset: this long after that, whatever comes.
    pub closing_s: NonZeroU32,
}

impl Default for Idle {
    fn default() -> Self {
        let [opening_s, tcp_s, other_s, closing_s] =
            [30, 7_200, 120, 10].map(|seconds| NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN));
        Self { opening_s, tcp_s, other_s, closing_s }
    }
}

/// The stage's outputs by the direction of packets.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outputs {
    /// For what comes from inside.
    pub out: u16,
    /// For what comes from elsewhere.
    #[serde(rename = "in")]
    pub inward: u16,
}

fn default_connections() -> usize {
    4_096
}

fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let count = u32::deserialize(deserializer)?;
    if (1..=CONNECTIONS_MAX).contains(&count) {
        Ok(count as usize)
    } else {
        Err(de::Error::custom(format_args!("{count} connections; 1 to {CONNECTIONS_MAX} are possible")))
    }
}

/// A port, or two with a hyphen between.
impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Ports;

            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a port like 80, or a range like \"8000-8099\"")
            }

            fn visit_i64<E: de::Error>(self, port: i64) -> Result<Ports, E> {
                let invalid = |_| E::invalid_value(de::Unexpected::Signed(port), &self);
                u16::try_from(port).map(|port| Ports { first: port, last: port }).map_err(invalid)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ports, E> {
                Ports::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
