//! The configuration of a stage.

use core::net::Ipv4Addr;

use ipnet::Ipv4Net;
use pinion_sdk::{InitError, headers};
use serde::Deserialize;

/// Outputs that a stage of a chain can have.
const OUTPUTS_MAX: u16 = 16;
/// Most outside addresses. Each takes 1.1 MiB with its full port range.
const OUTSIDE_MAX: usize = 16;
const INSIDE_MAX: usize = 64;
const MAPPINGS_MAX: usize = 1 << 18;
const CONNECTIONS_MAX: usize = 1 << 19;
/// What each host may have at least, by default.
const PER_HOST_MIN: u32 = 64;
const TIMEOUT_S_MAX: u64 = 7 * 24 * 3600;
/// Two hours and four minutes (RFC 5382, REQ-5), so that a keepalive every two hours keeps its connection.
const TCP_ESTABLISHED_S_MIN: u64 = 7_440;

/// The configuration, as deserialized from TOML.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The networks whose addresses are translated.
    pub inside: Vec<Ipv4Net>,
    /// The addresses to which they are translated.
    pub outside: Vec<Ipv4Addr>,
    /// The first port of the range to use.
    #[serde(default = "port_min")]
    pub port_min: u16,
    /// The last port of the range to use.
    #[serde(default = "port_max")]
    pub port_max: u16,
    /// Most mappings at once.
    #[serde(default = "mappings_max")]
    pub mappings_max: usize,
    /// Most mappings of a host at once; by default a quarter of all.
    pub mappings_per_host_max: Option<u32>,
    /// Most TCP connections at once; by default twice as many as mappings.
    pub connections_max: Option<usize>,
    /// Most TCP connections of a host at once; by default a quarter of all.
    pub connections_per_host_max: Option<u32>,
    /// The node's ports to the inside network, by their index in its configuration.
    #[serde(default)]
    pub inside_ports: Vec<u16>,
    /// How long mappings last without packets from inside.
    #[serde(default)]
    pub timeouts_s: Timeouts,
    /// Where packets to the outside go.
    #[serde(default = "to_outside")]
    pub to_outside: Link,
    /// Where packets to the inside go.
    #[serde(default = "to_inside")]
    pub to_inside: Link,
}

fn port_min() -> u16 {
    1024
}

/// The ports above are those from which the node opens flows for functions, should it have an outside address, too.
fn port_max() -> u16 {
    49_151
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

/// Timeouts in seconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Of an established TCP connection (RFC 5382: at least 2 h 4 min).
    pub tcp_established: u64,
    /// Of a TCP connection before it is established and after its end (RFC 5382: at least 4 min).
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
    /// The next station's hardware address; by default the frame's is kept.
    pub mac: Option<Mac>,
    /// The translator's own hardware address there; by default the frame's is kept.
    pub source_mac: Option<Mac>,
}

/// A hardware address of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse::<headers::Mac>() {
            Ok(mac) if !mac.is_group() => Ok(Self(mac.0)),
            _ => Err(format!("{text:?} is no hardware address of a station: one looks like 02:00:00:00:00:01")),
        }
    }
}

impl Config {
    /// Returns how many mappings a host can have at once.
    #[must_use]
    pub fn mappings_per_host_max(&self) -> u32 {
        self.mappings_per_host_max.unwrap_or_else(|| (self.mappings_max as u32 / 4).max(PER_HOST_MIN))
    }

    /// Returns how many TCP connections there can be at once.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        self.connections_max.unwrap_or(2 * self.mappings_max)
    }

    /// Returns how many TCP connections a host can have at once.
    #[must_use]
    pub fn connections_per_host_max(&self) -> u32 {
        self.connections_per_host_max.unwrap_or_else(|| (self.connections_max() as u32 / 4).max(PER_HOST_MIN))
    }

    /// Refuses contradictions and values out of range.
    ///
    /// # Errors
    ///
    /// The contradiction, or the value and its range.
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
        bounded("mappings_per_host_max", self.mappings_per_host_max() as usize, u32::MAX as usize)?;
        bounded("connections_max", self.connections_max(), CONNECTIONS_MAX)?;
        bounded("connections_per_host_max", self.connections_per_host_max() as usize, u32::MAX as usize)?;
        if self.port_min == 0 || self.port_min > self.port_max {
            return refuse(format!("ports {} to {} are an empty range", self.port_min, self.port_max));
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
                return refuse(format!("timeouts_s: {seconds} seconds; 1 to {TIMEOUT_S_MAX} are possible"));
            }
        }
        if tcp_established < TCP_ESTABLISHED_S_MIN {
            return refuse(format!(
                "timeouts_s: tcp_established is {tcp_established}; at least {TCP_ESTABLISHED_S_MIN} is needed, so that connections \
                 with a keepalive every two hours last (RFC 5382)"
            ));
        }
        match [self.to_outside.output, self.to_inside.output].into_iter().find(|output| *output >= OUTPUTS_MAX) {
            Some(output) => refuse(format!("output {output}; 0 to {} are possible", OUTPUTS_MAX - 1)),
            None => Ok(()),
        }
    }
}
