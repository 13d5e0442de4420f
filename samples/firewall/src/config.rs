//! The configuration, as a tenant writes it. Invalid values are refused during parsing, so that the refusal has the
//! field's path.

use core::num::NonZeroU32;

use serde::{Deserialize, Deserializer, de};

use crate::rules::{Network, Ports, Rule};

/// Most connections that can be configured.
const CONNECTIONS_MAX: u32 = 65_536;
/// Outputs that a stage of a chain can have.
const OUTPUTS_MAX: u16 = 16;

/// The least idle time of established TCP, in seconds: two hours and four minutes (RFC 5382, REQ-5). With it a
/// keepalive every two hours keeps its connection.
pub const TCP_S_MIN: u32 = 7_440;
/// Entries that each host has at least, by default.
const PER_HOST_MIN: u32 = 64;

/// The configuration of an instance.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The networks whose addresses are inside.
    pub inside: Vec<Network>,
    /// The first rule that matches a flow's first packet decides; if none matches, the flow may not begin.
    #[serde(default)]
    pub rule: Vec<Rule>,
    /// The node's ports to the inside network, by their index in its configuration.
    #[serde(default)]
    pub inside_ports: Vec<u16>,
    /// Most connections at once.
    #[serde(default = "default_connections", deserialize_with = "connections")]
    pub connections_max: usize,
    /// Most of these that one host may have begun.
    pub connections_per_host_max: Option<NonZeroU32>,
    /// Most of these that may be opening: not answered, or the answer not acknowledged.
    pub opening_per_host_max: Option<NonZeroU32>,
    /// Idle times after which connections are forgotten.
    #[serde(default)]
    pub idle: Idle,
    /// The outputs for packets of each direction.
    #[serde(default)]
    pub outputs: Outputs,
}

/// Seconds without packets after which a connection is forgotten.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Idle {
    /// A connection without an answer, or of TCP with an incomplete handshake.
    pub opening_s: NonZeroU32,
    /// An established TCP connection; at least [`TCP_S_MIN`].
    #[serde(deserialize_with = "tcp_seconds")]
    pub tcp_s: u32,
    /// A connection of any other protocol.
    pub other_s: NonZeroU32,
    /// A TCP connection that was closed or reset: this long after that, even if packets come.
    pub closing_s: NonZeroU32,
}

impl Default for Idle {
    fn default() -> Self {
        // Closing lasts as long as segments may be sent again: twice the maximum segment lifetime (RFC 9293).
        let [opening_s, other_s, closing_s] =
            [30, 120, 240].map(|seconds| NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN));
        Self { opening_s, tcp_s: TCP_S_MIN, other_s, closing_s }
    }
}

/// The stage's outputs by the direction of packets.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outputs {
    /// For packets from inside.
    #[serde(deserialize_with = "output")]
    pub out: u16,
    /// For packets from elsewhere.
    #[serde(rename = "in", deserialize_with = "output")]
    pub inward: u16,
}

impl Config {
    /// Returns how many flows one host may have begun: by default a quarter of all.
    #[must_use]
    pub fn connections_per_host_max(&self) -> u32 {
        let quarter = || (self.connections_max as u32 / 4).max(PER_HOST_MIN);
        self.connections_per_host_max.map_or_else(quarter, NonZeroU32::get)
    }

    /// Returns how many of a host's flows may be opening: by default a quarter of them.
    #[must_use]
    pub fn opening_per_host_max(&self) -> u32 {
        let quarter = || (self.connections_per_host_max() / 4).max(PER_HOST_MIN);
        self.opening_per_host_max.map_or_else(quarter, NonZeroU32::get)
    }
}

fn tcp_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let seconds = NonZeroU32::deserialize(deserializer)?.get();
    if seconds >= TCP_S_MIN {
        Ok(seconds)
    } else {
        Err(de::Error::custom(format_args!(
            "{seconds} seconds; at least {TCP_S_MIN} are needed, so that connections with a keepalive every two hours last (RFC 5382)"
        )))
    }
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

fn output<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let output = u16::deserialize(deserializer)?;
    if output < OUTPUTS_MAX {
        Ok(output)
    } else {
        Err(de::Error::custom(format_args!("output {output}; 0 to {} are possible", OUTPUTS_MAX - 1)))
    }
}

/// Parses a port, or two ports with a hyphen between.
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
