//! A node's configuration file.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use pinion_control::model::{CPU_PER_SECOND_MS_MAX, Class, TenantName};
use pinion_gateway::invoke::INVOKE_PORT;
use serde::Deserialize;

use crate::accounts::TenantLimits;
use crate::engine::{FWPS_MAX, Reset};
use crate::plan::CoreWishes;
use crate::roles::Idle;
use crate::state::StateLimits;
use crate::terms::{CpuGrant, CpuGrants};

/// What an operator writes; see `runtime/piniond.example.toml`, which has every key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Where desired state and compiled modules are kept.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// The Unix socket of the control API.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The builder; by default the `pinion-builder` beside `piniond`.
    pub builder: Option<PathBuf>,
    /// What data-plane threads do when there is nothing to do.
    #[serde(default)]
    pub idle: Idle,
    /// How long a guest runs before another has its turn, in microseconds.
    #[serde(default = "default_quantum_us")]
    pub quantum_us: u32,
    /// How the memory of FWPs that have ended is made fresh for the next.
    #[serde(default)]
    pub memory_reset: Reset,
    /// The cgroup (v2) whose memory limit and pressure count; the node's own, if none is given.
    pub memory_cgroup: Option<PathBuf>,
    /// Roles to cores.
    #[serde(default)]
    pub cores: CoreWishes,
    /// Sizes that are fixed at start.
    #[serde(default)]
    pub limits: Limits,
    /// The gateway's ports.
    #[serde(default, rename = "port")]
    pub ports: Vec<PortConfig>,
    /// What the operator grants tenants by name.
    #[serde(default, rename = "tenant")]
    pub tenants: Vec<TenantConfig>,
}

/// What the operator grants one tenant.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Who it is.
    pub name: TenantName,
    /// Linear memory of all its FWPs together, in MiB; if nothing is said, [`Limits::tenant_memory_mib`].
    pub memory_mib: Option<u32>,
    /// Memory of all its fields of state together, in MiB; if nothing is said, [`Limits::tenant_state_mib`].
    pub state_mib: Option<u32>,
    /// Its share of a core beside other tenants' of the same class.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// The highest class that its chains may have.
    #[serde(default = "default_class_max")]
    pub class_max: Class,
    /// The most time of each second, and of each worker's core, that all of its FWPs together may have, in milliseconds.
    pub cpu_per_second_ms: Option<u32>,
}

/// Sizes that are fixed at start: nothing on the data path allocates later.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// FWPs at a time.
    pub fwps_max: u32,
    /// Flows in the flow table.
    pub flows_max: u32,
    /// Packet buffers of the gateway.
    pub buffers: u32,
    /// Linear memory of all FWPs of each tenant that has no limit of its own, in MiB; none for no limit.
    pub tenant_memory_mib: Option<u32>,
    /// Memory of all fields of state of each tenant that has no limit of its own, in MiB.
    pub tenant_state_mib: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fwps_max: 4096, flows_max: 65_536, buffers: 8192, tenant_memory_mib: None, tenant_state_mib: 16 }
    }
}

/// One port of the gateway.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name in rules and chains.
    pub name: String,
    /// The device: a PCI address, or a DPDK virtual device with its arguments.
    pub device: String,
    /// The network namespace the device is opened in, by its name for `ip netns`; the node's own, if none is given.
    pub namespace: Option<String>,
    /// Addresses the node answers ARP and neighbour discovery for, with their networks' prefix lengths.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// The largest packet, without the Ethernet header, in bytes.
    #[serde(default = "default_mtu_bytes")]
    pub mtu_bytes: u16,
    /// Receive queues over which the device spreads flows, and as many to transmit by.
    #[serde(default = "default_queues")]
    pub queues: u16,
    /// Whether frames for other stations are taken in too.
    #[serde(default)]
    pub promiscuous: bool,
}

/// The largest packet a port may carry: what fits into a slot of the SDK's behind its headroom, beside an Ethernet header
/// and a VLAN tag. Some devices carry less.
const MTU_BYTES_MAX: u32 = 2048 - pinion_abi::RX_HEADROOM - pinion_gateway::port::FRAME_OVERHEAD;

/// What a tenant may be granted: up to 1 TiB.
const TENANT_MEMORY_MIB: std::ops::RangeInclusive<u32> = 1..=1 << 20;

/// What a tenant may have of memory for state: nothing, or up to 64 GiB.
const TENANT_STATE_MIB: std::ops::RangeInclusive<u32> = 0..=1 << 16;

/// What a tenant may weigh.
const TENANT_WEIGHT: std::ops::RangeInclusive<u32> = 1..=1000;

/// The longest path of a Unix socket: `sun_path`, and the zero byte at its end.
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

fn default_weight() -> u32 {
    CpuGrant::default().weight
}

fn default_class_max() -> Class {
    CpuGrant::default().class_max
}

fn default_mtu_bytes() -> u16 {
    1500
}

fn default_queues() -> u16 {
    1
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is no TOML, or a key or value is wrong.
    #[error("{}, line {line}: {message}", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong, naming the key or value.
        message: String,
    },
    /// A value that cannot be.
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
    /// What is wrong with it and where.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
        let config: Self = toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            // A sentence, whatever the parser's own layout.
            let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            ConfigError::Malformed { path: path.to_owned(), line, message }
        })?;
        config.check().map_err(|message| ConfigError::Unusable { path: path.to_owned(), message })?;
        Ok(config)
    }

    /// What tenants may have.
    #[must_use]
    pub fn tenant_limits(&self) -> TenantLimits {
        let bytes = |mib: u32| u64::from(mib) << 20;
        let of_tenant = |tenant: &TenantConfig| Some((tenant.name.clone(), bytes(tenant.memory_mib?)));
        TenantLimits {
            default_bytes: self.limits.tenant_memory_mib.map(bytes),
            by_name: self.tenants.iter().filter_map(of_tenant).collect(),
        }
    }

    /// What tenants may have for state.
    #[must_use]
    pub fn state_limits(&self) -> StateLimits {
        let bytes = |mib: u32| u64::from(mib) << 20;
        let of_tenant = |tenant: &TenantConfig| Some((tenant.name.clone(), bytes(tenant.state_mib?)));
        StateLimits {
            default_bytes: bytes(self.limits.tenant_state_mib),
            by_name: self.tenants.iter().filter_map(of_tenant).collect(),
        }
    }

    /// What tenants may have of the cores.
    #[must_use]
    pub fn cpu_grants(&self) -> CpuGrants {
        let grant = |tenant: &TenantConfig| CpuGrant {
            weight: tenant.weight,
            class_max: tenant.class_max,
            cpu_per_second_ms: tenant.cpu_per_second_ms,
        };
        CpuGrants(self.tenants.iter().map(|tenant| (tenant.name.clone(), grant(tenant))).collect())
    }

    fn check(&self) -> Result<(), String> {
        let within = |key: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
            if range.contains(&value) {
                return Ok(());
            }
            Err(format!("{key} = {value}: from {} to {} is possible", range.start(), range.end()))
        };
        within("quantum_us", self.quantum_us, 5..=100_000)?;
        within("limits.fwps_max", self.limits.fwps_max, 1..=FWPS_MAX as u32)?;
        within("limits.flows_max", self.limits.flows_max, 16..=16_777_216)?;
        within("limits.buffers", self.limits.buffers, 1024..=1_048_576)?;
        if let Some(memory_mib) = self.limits.tenant_memory_mib {
            within("limits.tenant_memory_mib", memory_mib, TENANT_MEMORY_MIB)?;
        }
        within("limits.tenant_state_mib", self.limits.tenant_state_mib, TENANT_STATE_MIB)?;
        for (i, TenantConfig { name, memory_mib, state_mib, weight, cpu_per_second_ms, .. }) in
            self.tenants.iter().enumerate()
        {
            if let Some(memory_mib) = memory_mib {
                within(&format!("tenant {name}: memory_mib"), *memory_mib, TENANT_MEMORY_MIB)?;
            }
            if let Some(state_mib) = state_mib {
                within(&format!("tenant {name}: state_mib"), *state_mib, TENANT_STATE_MIB)?;
            }
            within(&format!("tenant {name}: weight"), *weight, TENANT_WEIGHT)?;
            if let Some(cpu_per_second_ms) = cpu_per_second_ms {
                within(&format!("tenant {name}: cpu_per_second_ms"), *cpu_per_second_ms, 1..=CPU_PER_SECOND_MS_MAX)?;
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
                "socket = {}: a path of {socket_bytes} bytes, of which the kernel takes {SOCKET_BYTES_MAX}",
                self.socket.display()
            ));
        }
        if self.ports.is_empty() {
            return Err("there is no [[port]]: a node needs at least one".to_owned());
        }
        for (i, port) in self.ports.iter().enumerate() {
            let name = &port.name;
            pinion_control::model::PortName::new(name.clone()).map_err(|error| format!("port.name: {error}"))?;
            within(&format!("port {name}: mtu_bytes"), u32::from(port.mtu_bytes), 576..=MTU_BYTES_MAX)?;
            within(&format!("port {name}: queues"), u32::from(port.queues), 1..=64)?;
            port.check()?;
            if name == INVOKE_PORT {
                return Err(format!("port.name: {name} is the port of those who invoke chains: choose another name"));
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

impl PortConfig {
    fn check(&self) -> Result<(), String> {
        let Self { name, namespace, addresses, .. } = self;
        if let Some(namespace) = namespace
            && (namespace.is_empty() || namespace.contains('/') || [".", ".."].contains(&namespace.as_str()))
        {
            return Err(format!(
                "port {name}: namespace = {namespace:?}: the name of one is needed, as `ip netns` lists it"
            ));
        }
        let is_known = |i: usize, address: IpAddr| addresses[..i].iter().any(|other| other.addr() == address);
        if let Some((_, network)) = addresses.iter().enumerate().find(|(i, network)| is_known(*i, network.addr())) {
            return Err(format!("port {name}: addresses: {} is given twice", network.addr()));
        }
        let unfit = |network: &&IpNet| {
            let address = network.addr();
            // In networks of two addresses or one, all are stations' (RFC 3021, RFC 6164).
            let has_ends = network.prefix_len() + 1 < network.max_prefix_len();
            let is_end = match network {
                IpNet::V4(network) => [network.network(), network.broadcast()].contains(&network.addr()),
                IpNet::V6(network) => network.network() == network.addr(),
            };
            address.is_unspecified()
                || address.is_multicast()
                || address.is_loopback()
                || address == IpAddr::V4(Ipv4Addr::BROADCAST)
                || (has_ends && is_end)
        };
        match addresses.iter().find(unfit) {
            Some(network) => Err(format!(
                "port {name}: addresses: {network} is no station's address, but a network's, a group's or the host's own"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let error = NodeConfig::read(file.path()).unwrap_err().to_string();
        error.replace(file.path().to_str().unwrap(), "FILE")
    }

    const PORT: &str = "[[port]]\nname = \"lan\"\ndevice = \"net_tap0\"\n";

    #[test]
    fn the_example_configuration_is_valid_and_says_the_defaults() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("piniond.example.toml");
        let example = NodeConfig::read(&example).unwrap();
        let minimal: NodeConfig = toml::from_str(PORT).unwrap();
        assert_eq!(example.state_dir, minimal.state_dir);
        assert_eq!(example.socket, minimal.socket);
        assert_eq!(example.quantum_us, minimal.quantum_us);
        assert_eq!(example.limits.fwps_max, minimal.limits.fwps_max);
        assert_eq!(example.limits.flows_max, minimal.limits.flows_max);
        assert_eq!(example.limits.buffers, minimal.limits.buffers);
        assert_eq!(example.memory_reset, minimal.memory_reset);
        assert_eq!(example.limits.tenant_memory_mib, minimal.limits.tenant_memory_mib);
        assert_eq!(example.memory_cgroup, minimal.memory_cgroup);
        assert!(example.tenants.is_empty());
        assert_eq!(example.ports[0].mtu_bytes, minimal.ports[0].mtu_bytes);
        assert_eq!(example.ports[0].queues, minimal.ports[0].queues);
        assert_eq!(example.ports[0].promiscuous, minimal.ports[0].promiscuous);
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line() {
        let error = error_of(&format!("{PORT}adresses = []\n"));
        assert!(error.starts_with("FILE, line 4: unknown field `adresses`"), "{error}");
    }

    #[test]
    fn impossible_values_are_named() {
        let cases = [
            (
                format!("memory_cgroup = \"/nowhere\"\n{PORT}"),
                "FILE: memory_cgroup = /nowhere: there is no memory.current: the directory of a cgroup (v2) with the memory \
                 controller is needed",
            ),
            (format!("quantum_us = 1\n{PORT}"), "FILE: quantum_us = 1: from 5 to 100000 is possible"),
            (String::new(), "FILE: there is no [[port]]: a node needs at least one"),
            (format!("{PORT}{PORT}"), "FILE: two ports are named lan"),
            (
                PORT.replace("lan", "invoke"),
                "FILE: port.name: invoke is the port of those who invoke chains: choose another name",
            ),
            (format!("{PORT}{}", PORT.replace("lan", "wan")), "FILE: ports lan and wan share the device net_tap0"),
            (format!("{PORT}mtu_bytes = 9000\n"), "FILE: port lan: mtu_bytes = 9000: from 576 to 1966 is possible"),
            (
                format!("{PORT}[limits]\ntenant_memory_mib = 0\n"),
                "FILE: limits.tenant_memory_mib = 0: from 1 to 1048576 is possible",
            ),
            (
                format!("{PORT}[[tenant]]\nname = \"lab\"\nmemory_mib = 2000000\n"),
                "FILE: tenant lab: memory_mib = 2000000: from 1 to 1048576 is possible",
            ),
            (
                format!("{PORT}{0}{0}", "[[tenant]]\nname = \"lab\"\nmemory_mib = 2\n"),
                "FILE: there are two [[tenant]] named lab",
            ),
            (format!("{PORT}queues = 0\n"), "FILE: port lan: queues = 0: from 1 to 64 is possible"),
            (
                format!("{PORT}namespace = \"../pinion\"\n"),
                "FILE: port lan: namespace = \"../pinion\": the name of one is needed, as `ip netns` lists it",
            ),
            (
                format!("{PORT}addresses = [\"10.77.0.2/24\", \"10.77.0.2/16\"]\n"),
                "FILE: port lan: addresses: 10.77.0.2 is given twice",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(error_of(&text), expected);
        }
        for address in
            ["0.0.0.0/0", "10.77.0.0/24", "10.77.0.255/24", "224.0.0.1/24", "127.0.0.1/8", "::/64", "ff02::1/64"]
        {
            let error = error_of(&format!("{PORT}addresses = [{address:?}]\n"));
            assert!(error.starts_with(&format!("FILE: port lan: addresses: {address} is no station's")), "{error}");
        }
        let error = error_of(&format!("{PORT}[[tenant]]\nname = \"Lab\"\nmemory_mib = 2\n"));
        assert!(error.starts_with("FILE, line 5: \"Lab\" is not a tenant name"), "{error}");
        let socket = "s".repeat(SOCKET_BYTES_MAX + 1);
        let error = error_of(&format!("socket = \"/{socket}\"\n{PORT}"));
        assert!(error.ends_with("a path of 109 bytes, of which the kernel takes 107"), "{error}");
        let error = error_of(&format!("{PORT}addresses = [\"10.77.0.300/24\"]\n"));
        assert!(error.starts_with("FILE, line 4: invalid IP address syntax"), "{error}");
    }
}
