//! What a stage is configured with.

use core::net::Ipv4Addr;

use ipnet::Ipv4Net;
use pinion_sdk::InitError;
use serde::Deserialize;

/// Outputs that a stage of a chain can have.
const OUTPUTS_MAX: u16 = 16;
/// Outside addresses, of which each takes 1.1 MiB with all of its ports.
const OUTSIDE_MAX: usize = 16;
const INSIDE_MAX: usize = 64;
const MAPPINGS_MAX: usize = 1 << 18;
const TIMEOUT_S_MAX: u64 = 7 * 24 * 3600;

/// The configuration, as its TOML has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Whose addresses are translated.
    pub inside: Vec<Ipv4Net>,
    /// What they are translated to.
    pub outside: Vec<Ipv4Addr>,
    /// The first port that may be given.
    #[serde(default = "port_min")]
    pub port_min: u16,
    /// The last one.
    #[serde(default = "port_max")]
    pub port_max: u16,
    /// Mappings that there can be at once.
    #[serde(default = "mappings_max")]
    pub mappings_max: usize,
    /// Mappings that a host can have at once.
    pub mappings_per_host_max: Option<u32>,
    /// After which time without packets from inside a mapping ends.
    #[serde(default)]
    pub timeouts_s: Timeouts,
    /// How packets go outside.
    #[serde(default = "to_outside")]
    pub to_outside: Link,
    /// How packets go inside.
    #[serde(default = "to_inside")]
    pub to_inside: Link,
}

fn port_min() -> u16 {
    1024
}

fn port_max() -> u16 {
    u16::MAX
}

fn mappings_max() -> usize {
    16_384
}

fn to_outside() -> Link {
    Link { output: 0, mac: None, source_mac: None }
}

fn to_inside() -> Link {
    Link { output: 1, mac: None, source_mac: None }
}

/// Times in seconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Of TCP once a connection is there (RFC 5382: at least 2 h 4 min).
    pub tcp_established: u64,
    /// Of TCP before that, and after its end (RFC 5382: at least 4 min).
    pub tcp_transitory: u64,
    /// Of UDP (RFC 4787: at least 2 min, 5 recommended).
    pub udp: u64,
    /// Of ICMP echoes (RFC 5508: at least 60 s).
    pub icmp: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { tcp_established: 7440, tcp_transitory: 240, udp: 300, icmp: 60 }
    }
}

/// Where packets of one direction go.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The stage's output.
    pub output: u16,
    /// The next station's hardware address; as the frame has it, if not said.
    pub mac: Option<Mac>,
    /// The translator's own there; likewise.
    pub source_mac: Option<Mac>,
}

/// A hardware address of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes: Option<Vec<u8>> = text
            .split(':')
            .map(|byte| (byte.len() == 2).then(|| u8::from_str_radix(byte, 16).ok()).flatten())
            .collect();
        match bytes.map(<[u8; 6]>::try_from) {
            Some(Ok(mac)) if mac[0] & 1 == 0 => Ok(Self(mac)),
            _ => Err(format!("{text:?} is no hardware address of a station: one looks like 02:00:00:00:00:01")),
        }
    }
}

impl Config {
    /// Refuses what contradicts itself or is too large.
    ///
    /// # Errors
    ///
    /// What it is.
    pub fn check(&self) -> Result<(), InitError> {
        let refuse = |problem: String| Err(InitError::new(problem));
        let bounded = |what: &str, count: usize, max: usize| match count {
            0 => refuse(format!("{what} is to be 1 to {max}, and is 0")),
            count if count > max => refuse(format!("{what} is to be 1 to {max}, and is {count}")),
            _ => Ok(()),
        };
        bounded("the number of `inside` prefixes", self.inside.len(), INSIDE_MAX)?;
        bounded("the number of `outside` addresses", self.outside.len(), OUTSIDE_MAX)?;
        bounded("mappings_max", self.mappings_max, MAPPINGS_MAX)?;
        if self.port_min == 0 || self.port_min > self.port_max {
            return refuse(format!("ports {} to {} are none", self.port_min, self.port_max));
        }
        for (number, address) in self.outside.iter().enumerate() {
            if self.outside[..number].contains(address) {
                return refuse(format!("outside: {address} is there twice"));
            }
            if self.inside.iter().any(|net| net.contains(address)) {
                return refuse(format!("outside: {address} is inside as well"));
            }
        }
        let Timeouts { tcp_established, tcp_transitory, udp, icmp } = self.timeouts_s;
        for seconds in [tcp_established, tcp_transitory, udp, icmp] {
            if seconds == 0 || seconds > TIMEOUT_S_MAX {
                return refuse(format!("timeouts_s: {seconds} is none, they are 1 to {TIMEOUT_S_MAX}"));
            }
        }
        match [self.to_outside.output, self.to_inside.output].into_iter().find(|output| *output >= OUTPUTS_MAX) {
            Some(output) => refuse(format!("output {output} is none, they are 0 to {}", OUTPUTS_MAX - 1)),
            None => Ok(()),
        }
    }
}
