//! The configuration, as a tenant writes it. Invalid values are refused during parsing, so that the refusal has the field's path.

use core::fmt;

use pinion_sdk::{InitError, config};
use serde::{Deserialize, Deserializer, de};

use crate::protocol::Settings;

/// Least and most memory for items.
const MEMORY_BYTES: core::ops::RangeInclusive<u64> = 64 << 10..=60 << 20;
/// Least and most bytes of the largest item.
const ITEM_BYTES: core::ops::RangeInclusive<u64> = 1 << 10..=32 << 20;
const CONNECTIONS: core::ops::RangeInclusive<u64> = 1..=4096;
const IDLE_S: core::ops::RangeInclusive<u64> = 0..=30 * 24 * 3600;

/// The configuration of an instance.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Memory for items, in bytes.
    #[serde(deserialize_with = "memory")]
    pub memory: usize,
    /// Bytes of the largest item, with its key and its head.
    #[serde(deserialize_with = "item_size")]
    pub item_size_max: usize,
    /// The port of TCP.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// Whether there is UDP.
    pub udp: bool,
    /// The port of UDP; that of TCP unless it is set.
    #[serde(deserialize_with = "some_port")]
    pub udp_port: Option<u16>,
    /// Most connections at once.
    #[serde(deserialize_with = "connections")]
    pub connections_max: u16,
    /// How long a connection may be idle, in seconds; 0 is for ever.
    #[serde(deserialize_with = "idle")]
    pub idle_timeout_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory: 8 << 20,
            item_size_max: 1 << 20,
            port: 11_211,
            udp: false,
            udp_port: None,
            connections_max: 32,
            idle_timeout_s: 600,
        }
    }
}

impl Config {
    /// Parses a configuration.
    ///
    /// # Errors
    ///
    /// What is wrong, with its line and the path of the field.
    pub fn parse(text: &[u8]) -> Result<Self, InitError> {
        let parsed: Self = config::parse(text)?;
        if parsed.item_size_max > parsed.memory / 2 {
            return Err(InitError::new(format_args!(
                "item_size_max is {} bytes, and memory {}: an item may have at most half of the memory; set item_size_max to {} or less, \
                 or more memory",
                parsed.item_size_max,
                parsed.memory,
                parsed.memory / 2
            )));
        }
        if parsed.udp_port.is_some() && !parsed.udp {
            return Err("udp_port is set, but there is no UDP: add `udp = true`, or remove it".into());
        }
        Ok(parsed)
    }

    /// Returns the port of UDP, if there is UDP.
    #[must_use]
    pub fn udp_port(&self) -> Option<u16> {
        self.udp.then(|| self.udp_port.unwrap_or(self.port))
    }

    /// Returns what `stats settings` says.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            tcp_port: self.port,
            udp_port: self.udp_port().unwrap_or(0),
            connections_max: self.connections_max,
            idle_timeout_s: self.idle_timeout_s,
        }
    }
}

/// Reads a number of bytes: a number, or a text with a unit.
struct Bytes(core::ops::RangeInclusive<u64>);

impl Bytes {
    fn check<E: de::Error>(&self, said: impl fmt::Display, count: Option<u64>) -> Result<usize, E> {
        let allowed = &self.0;
        count.filter(|count| allowed.contains(count)).map(|count| count as usize).ok_or_else(|| {
            E::custom(format_args!(
                "{said} is not allowed: {} to {} bytes are possible, as a number or like \"512k\" or \"8m\"",
                allowed.start(),
                allowed.end()
            ))
        })
    }
}

impl de::Visitor<'_> for Bytes {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, or a text like \"8m\"")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<usize, E> {
        self.check(number, u64::try_from(number).ok())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<usize, E> {
        self.check(number, Some(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<usize, E> {
        self.check(format_args!("{text:?}"), in_bytes(text))
    }
}

fn in_bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 10),
        b'm' | b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    deserializer.deserialize_any(Bytes(MEMORY_BYTES))
}

fn item_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    deserializer.deserialize_any(Bytes(ITEM_BYTES))
}

fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    allowed: core::ops::RangeInclusive<u64>,
    what: &str,
) -> Result<u64, D::Error> {
    let number = i64::deserialize(deserializer)?;
    u64::try_from(number).ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        de::Error::custom(format_args!("{number} {what}; {} to {} are possible", allowed.start(), allowed.end()))
    })
}

fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    number(deserializer, 1..=u16::MAX.into(), "is no port").map(|port| port as u16)
}

fn some_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    port(deserializer).map(Some)
}

fn connections<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    number(deserializer, CONNECTIONS, "connections").map(|count| count as u16)
}

fn idle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    number(deserializer, IDLE_S, "seconds").map(|seconds| seconds as u32)
}
