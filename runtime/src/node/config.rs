//! A node's configuration file.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use pinion_control::document::{self, Fault, line_of, whole_number};
use pinion_control::model::{HistoryLimits, PortName, Tenant};
use pinion_gateway::gateway::PORTS_MAX;
use pinion_gateway::invoke::INVOKE_PORT;
use serde::Deserialize;

use crate::cores::plan::CoreWishes;
use crate::lockdown::Confinement;
use crate::offload::{self, Kind};
use crate::roles::Idle;
use crate::state::StateLimits;
use crate::templates::engine::{FWPS_MAX, Reset};
use crate::tenants::accounts::TenantLimits;
use crate::tenants::scheduling_params::{CLOCK_STEP_US, CpuGrant, CpuGrants};
use crate::tuning::Tuning;

mod api;
mod port;

pub use api::ApiConfig;
pub use port::{PortConfig, ReversePath, RouteConfig, VlanConfig};

/// The contents of the configuration file; `runtime/piniond.example.toml` has every key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The directory of the desired state, the templates and the files of stages.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// The Unix socket of the control API.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The control API on TCP, and what its callers may take.
    #[serde(default)]
    pub api: ApiConfig,
    /// The file with the secret that seals tenants' keys in the store; by default `keys.secret` in `state_dir`, made with the first key.
    pub secret: Option<PathBuf>,
    /// The builder; by default the `pinion-builder` beside `piniond`.
    pub builder: Option<PathBuf>,
    /// What data-plane threads do when they have no work.
    #[serde(default)]
    pub idle: Idle,
    /// How much is done for the processors' caches. One switch for the process.
    #[serde(default)]
    pub tuning: Tuning,
    /// How long a guest runs before it is preempted in favour of another, in microseconds.
    #[serde(default = "default_quantum_us")]
    pub quantum_us: u32,
    /// How the memory of FWPs that have ended is reset for reuse.
    #[serde(default)]
    pub memory_reset: Reset,
    /// The cgroup (v2) that is observed for its memory limit and pressure; by default the node's own.
    pub memory_cgroup: Option<PathBuf>,
    /// The assignment of roles to cores.
    #[serde(default)]
    pub cores: CoreWishes,
    /// Sizes that are fixed at start.
    #[serde(default)]
    pub limits: Limits,
    /// What the node gives up before it serves a client.
    #[serde(default)]
    pub confinement: Confinement,
    /// The gateway's ports.
    #[serde(default, rename = "port")]
    pub ports: Vec<PortConfig>,
    /// What the operator grants tenants by name, as long as the store has no terms of theirs.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<Tenant>,
}

/// Sizes that are fixed at start: nothing on the data path allocates later.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most FWPs at a time.
    pub fwps_max: u32,
    /// Flows in the flow table.
    pub flows_max: u32,
    /// Packet buffers of the gateway.
    pub buffers: u32,
    /// Most memory of all FWPs of each tenant without a limit of its own, in MiB: linear memory, changed files, what the node keeps for each
    /// FWP beside that, and the code and files of templates. No limit by default.
    pub tenant_memory_mib: Option<u32>,
    /// Most memory of all fields of state of each tenant without a limit of its own, in MiB.
    pub tenant_state_mib: u32,
    /// Most memory of all fields of state of all tenants together, in MiB.
    pub state_mib: u32,
    /// The longest time that an idle instance stays because its function asks for it, in seconds.
    pub keep_alive_max_s: u32,
    /// The steps of the clock of functions of each tenant without a step of its own, in microseconds.
    pub clock_step_us: u32,
    /// Most signatures of handshakes of each tenant in a second.
    pub signatures_per_second: u32,
    /// Most jobs of each tenant, of each kind of offload threads, that wait or are under way.
    pub jobs_max: u32,
    /// Most revisions of the desired state that the store keeps, each counted once for each tenant that it touched.
    pub history_revisions: u32,
    /// Most bytes of these, with the objects and uploads that they replaced, in MiB.
    pub history_mib: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fwps_max: 4096,
            flows_max: 65_536,
            buffers: 8192,
            tenant_memory_mib: None,
            tenant_state_mib: 16,
            state_mib: 1024,
            keep_alive_max_s: 86_400,
            clock_step_us: CLOCK_STEP_US,
            signatures_per_second: 10_000,
            jobs_max: 1024,
            history_revisions: 1000,
            history_mib: 512,
        }
    }
}

/// The largest packet that a port may carry: it must fit, with an Ethernet header and a VLAN tag, behind the headroom of a slot of the SDK.
/// Some devices carry less.
const MTU_BYTES_MAX: u32 = 2048 - pinion_abi::RX_HEADROOM - pinion_gateway::port::FRAME_OVERHEAD;

/// Returns the bounds of a numeric key, which is given by its full path.
fn bounds(key: &str) -> Option<RangeInclusive<u64>> {
    Some(match key {
        "quantum_us" => 5..=100_000,
        "limits.fwps_max" => 1..=FWPS_MAX as u64,
        "api.connections_max" => 1..=16_384,
        "api.connections_per_address_max" | "api.connections_per_tenant_max" | "api.requests_at_once" => 1..=4096,
        "api.requests_per_second" => 1..=1_000_000,
        "limits.flows_max" => 16..=16_777_216,
        "limits.buffers" => 1024..=1_048_576,
        // Up to 1 TiB.
        "limits.tenant_memory_mib" => 1..=1 << 20,
        // None, or up to 64 GiB.
        "limits.tenant_state_mib" => 0..=1 << 16,
        // None, or up to 1 TiB.
        "limits.state_mib" => 0..=1 << 20,
        // Zero turns it off; the most is a week, as for a chain's idle timeout.
        "limits.keep_alive_max_s" => 0..=604_800,
        "limits.clock_step_us" => 1..=10_000,
        "limits.signatures_per_second" => 1..=1_000_000,
        "limits.jobs_max" => 1..=FWPS_MAX as u64,
        "limits.history_revisions" => 16..=100_000,
        // Up to 64 GiB.
        "limits.history_mib" => 1..=1 << 16,
        // As the kernel counts users; root is refused with a sentence of its own.
        "confinement.builder_user" => 0..=u64::from(u32::MAX) - 1,
        "port.mtu_bytes" => 576..=u64::from(MTU_BYTES_MAX),
        "port.queues" => 1..=64,
        "port.vlan.id" | "port.vlan.inner_id" => 1..=4094,
        _ => return None,
    })
}

/// Returns what the value of a key may be, for the error about a value of another type.
fn allowed(key: &str) -> Option<String> {
    Some(match key {
        "port" | "tenant" => format!("tables, each with the header [[{key}]]"),
        "api" | "cores" | "limits" | "confinement" => format!("a table with the header [{key}]"),
        "api.listen" => "an address with a port, such as \"0.0.0.0:7443\"".to_owned(),
        "cores.gateway" => "the number of a core, such as 0".to_owned(),
        "cores.mmas" | "cores.workers" | "cores.signers" | "cores.inference" => {
            "a list of numbers of cores, such as [0, 1]".to_owned()
        }
        "port.addresses" | "port.vlan.addresses" => "a list of ADDRESS/LENGTH, such as [\"10.77.0.2/24\"]".to_owned(),
        "port.gateway" | "port.vlan.gateway" => "a list of addresses, such as [\"10.77.0.1\"]".to_owned(),
        "port.routes" | "port.vlan.routes" => {
            "a list of routes, such as [{ to = \"10.20.0.0/16\", via = \"10.77.0.9\" }]".to_owned()
        }
        "port.vlan" => "tables, each with the header [[port.vlan]]".to_owned(),
        "port.reverse_path" => "\"off\", \"loose\" or \"strict\"".to_owned(),
        _ => whole_number(&bounds(key)?),
    })
}

/// Checks that a number is within its key's bounds. `name` is the port of the key, if it has one.
fn within(name: &str, key: &str, value: Option<u32>) -> Result<(), String> {
    let (Some(value), Some(bounds)) = (value, bounds(key)) else { return Ok(()) };
    if bounds.contains(&value.into()) {
        return Ok(());
    }
    let key = match key.split_once('.') {
        Some(("port", key)) => format!("port {name}: {key}"),
        _ => key.to_owned(),
    };
    Err(format!("{key} = {value}: from {} to {} is possible", bounds.start(), bounds.end()))
}

/// The longest path of a Unix socket: `sun_path` without its terminating zero byte.
const SOCKET_BYTES_MAX: usize = 107;

fn default_state_dir() -> PathBuf {
    "/var/lib/pinion".into()
}

fn default_socket() -> PathBuf {
    "/run/pinion/pinion.sock".into()
}

fn default_quantum_us() -> u32 {
    20
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not TOML, or a key or a value is wrong.
    #[error("{}, line {line}: {message}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, naming the key or value.
        message: String,
    },
    /// A value is out of bounds or contradicts another.
    #[error("{}: {message}", path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong, naming key and value.
        message: String,
    },
}

impl NodeConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// Returns what is wrong with the file, and where.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
        let config: Self = document::read(&text, allowed).map_err(|Fault { span, problem }| {
            ConfigError::Malformed { path: path.to_owned(), line: line_of(&text, span.start), message: problem }
        })?;
        config.check().map_err(|message| ConfigError::Unusable { path: path.to_owned(), message })?;
        Ok(config)
    }

    /// Returns the limits of tenants' linear memory, in bytes: of those without terms of their own.
    #[must_use]
    pub fn tenant_limits(&self) -> TenantLimits {
        let bytes = |mib: u32| u64::from(mib) << 20;
        TenantLimits { default_bytes: self.limits.tenant_memory_mib.map(bytes), by_name: HashMap::new() }
    }

    /// Returns the limits of tenants' state, in bytes: of those without terms of their own.
    #[must_use]
    pub fn state_limits(&self) -> StateLimits {
        let bytes = |mib: u32| u64::from(mib) << 20;
        StateLimits {
            default_bytes: bytes(self.limits.tenant_state_mib),
            by_name: HashMap::new(),
            total_bytes: bytes(self.limits.state_mib),
        }
    }

    /// Returns what the operator grants tenants of the cores: those without terms of their own.
    #[must_use]
    pub fn cpu_grants(&self) -> CpuGrants {
        let default = CpuGrant { clock_step_us: self.limits.clock_step_us, ..CpuGrant::default() };
        CpuGrants { default, by_name: BTreeMap::new() }
    }

    /// Returns how many revisions the store keeps.
    #[must_use]
    pub fn history_limits(&self) -> HistoryLimits {
        let Limits { history_revisions, history_mib, .. } = self.limits;
        HistoryLimits { revisions: history_revisions.into(), bytes: u64::from(history_mib) << 20 }
    }

    /// Returns how much each tenant may ask of the offload threads, by their kinds.
    #[must_use]
    pub fn offload_limits(&self) -> [offload::Limits; Kind::ALL.len()] {
        let Limits { signatures_per_second, jobs_max, .. } = self.limits;
        Kind::ALL.map(|kind| offload::Limits {
            jobs_max,
            per_second: (kind == Kind::Signer).then_some(signatures_per_second),
        })
    }

    fn check(&self) -> Result<(), String> {
        let Limits {
            fwps_max,
            flows_max,
            buffers,
            tenant_memory_mib,
            tenant_state_mib,
            state_mib,
            keep_alive_max_s,
            clock_step_us,
            signatures_per_second,
            jobs_max,
            history_revisions,
            history_mib,
        } = self.limits;
        within("", "quantum_us", Some(self.quantum_us))?;
        self.api.check()?;
        within("", "limits.fwps_max", Some(fwps_max))?;
        within("", "limits.flows_max", Some(flows_max))?;
        within("", "limits.buffers", Some(buffers))?;
        within("", "limits.tenant_memory_mib", tenant_memory_mib)?;
        within("", "limits.tenant_state_mib", Some(tenant_state_mib))?;
        within("", "limits.state_mib", Some(state_mib))?;
        within("", "limits.keep_alive_max_s", Some(keep_alive_max_s))?;
        within("", "limits.clock_step_us", Some(clock_step_us))?;
        within("", "limits.signatures_per_second", Some(signatures_per_second))?;
        within("", "limits.jobs_max", Some(jobs_max))?;
        within("", "limits.history_revisions", Some(history_revisions))?;
        within("", "limits.history_mib", Some(history_mib))?;
        self.confinement.check()?;
        for (i, tenant) in self.tenants.iter().enumerate() {
            let name = &tenant.name;
            tenant.check().map_err(|problem| format!("tenant {name}: {problem}"))?;
            let is_known = |port: &&PortName| self.ports.iter().any(|known| known.name == port.as_str());
            if let Some(port) = tenant.ports.iter().find(|port| !is_known(port)) {
                return Err(format!(
                    "tenant {name}: ports: there is no [[port]] named {port}: add one, or leave it out"
                ));
            }
            let most = state_mib * 3 / 4;
            if let Some(granted) = tenant.state_mib.filter(|granted| *granted > most) {
                return Err(format!(
                    "tenant {name}: state_mib is {granted}, and three quarters of limits.state_mib, for all tenants, are {most}: raise \
                     limits.state_mib, or grant less"
                ));
            }
            if self.tenants[..i].iter().any(|other| other.name == *name) {
                return Err(format!("there are two [[tenant]] named {name}"));
            }
        }
        if let Some(cgroup) = self.memory_cgroup.as_ref().filter(|cgroup| !cgroup.join("memory.current").is_file()) {
            return Err(format!(
                "memory_cgroup = {}: there is no memory.current: the directory of a cgroup (v2) with the memory controller is \
                 needed",
                cgroup.display()
            ));
        }
        let socket_bytes = self.socket.as_os_str().len();
        if socket_bytes > SOCKET_BYTES_MAX {
            return Err(format!(
                "socket = {}: the path has {socket_bytes} bytes, and the kernel allows {SOCKET_BYTES_MAX}: use a shorter one",
                self.socket.display()
            ));
        }
        if self.ports.is_empty() {
            return Err("there is no [[port]]: a node needs at least one".to_owned());
        }
        if self.ports.len() > PORTS_MAX {
            return Err(format!(
                "there are {} tables [[port]]: a node has at most {PORTS_MAX} ports",
                self.ports.len()
            ));
        }
        for (i, port) in self.ports.iter().enumerate() {
            let name = &port.name;
            PortName::new(name.clone()).map_err(|error| format!("port.name: {error}"))?;
            within(name, "port.mtu_bytes", Some(port.mtu_bytes.into()))?;
            within(name, "port.queues", Some(port.queues.into()))?;
            port.check()?;
            if name == INVOKE_PORT {
                return Err(format!("port.name: {name} is reserved for calls of functions: choose another name"));
            }
            if self.ports[..i].iter().any(|other| other.name == *name) {
                return Err(format!("two ports are named {name}"));
            }
            if let Some(other) = self.ports[..i].iter().find(|other| other.device == port.device) {
                return Err(format!("ports {} and {name} share the device {}", other.name, port.device));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
