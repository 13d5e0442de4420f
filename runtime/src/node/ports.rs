//! Opening the gateway's ports as the configuration says.

use pinion_gateway::port::heap::HeapPool;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use pinion_gateway::port::memory::{MemoryPort, MemoryPortConfig};
use pinion_gateway::port::socket::SocketPort;
use pinion_gateway::port::{BufferPool, Port, Promiscuous};

use crate::cores::plan::CoreId;
use crate::node::config::{NodeConfig, PortConfig};

/// A null device: it discards what the node sends and receives nothing. For machines without DPDK.
const MEMORY_DEVICE: &str = "memory";
/// A device that exchanges its frames with another program, which listens on the Unix socket at `path`.
const SOCKET_DEVICE: &str = "unix";
const SOCKET_PATH: &str = "path=";

/// Open ports, the buffer pool they share, and what the gateway's thread must do first.
pub struct Opened {
    /// The ports, in the order of the configuration.
    pub ports: Vec<Box<dyn Port>>,
    /// The ports' buffer pool.
    pub pool: Box<dyn BufferPool>,
    /// Registers the thread that polls the ports.
    pub thread: GatewayThread,
}

#[cfg(feature = "dpdk")]
pub use with_dpdk::GatewayThread;
#[cfg(not(feature = "dpdk"))]
pub use without_dpdk::GatewayThread;

/// Opens all ports. `core` is the gateway's. The supervisor, if there is one, makes their devices again that are deleted.
///
/// # Errors
/// Returns a sentence that names the device and what to do.
pub fn open(config: &NodeConfig, core: CoreId, supervisor: Option<&Arc<OwnedFd>>) -> Result<Opened, String> {
    let is_ours = |port: &PortConfig| Inner::of(&port.device).is_some();
    if config.ports.iter().all(is_ours) {
        let pool = HeapPool::new(config.limits.buffers as usize, HEAP_BUFFER_BYTES);
        let ports = config.ports.iter().map(|port| inner_port(port, &pool)).collect::<Result<_, _>>()?;
        return Ok(Opened { ports, pool: Box::new(pool), thread: GatewayThread::default() });
    }
    if let Some(port) = config.ports.iter().find(|port| is_ours(port)) {
        return Err(format!("port {}: {} cannot be mixed with DPDK's devices", port.name, port.device));
    }
    open_devices(config, core, supervisor)
}

const HEAP_BUFFER_BYTES: u16 = 2048;

/// A device that does not need DPDK.
enum Inner<'a> {
    Memory,
    /// A socket, with its arguments.
    Socket(&'a str),
}

impl<'a> Inner<'a> {
    fn of(device: &'a str) -> Option<Self> {
        let (name, arguments) = device.split_once(',').unwrap_or((device, ""));
        let is_a = |kind: &str| {
            let number = name.strip_prefix(kind);
            number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        };
        match () {
            () if is_a(SOCKET_DEVICE) => Some(Self::Socket(arguments)),
            () if is_a(MEMORY_DEVICE) && name == device => Some(Self::Memory),
            () => None,
        }
    }
}

fn inner_port(port: &PortConfig, pool: &HeapPool) -> Result<Box<dyn Port>, String> {
    let PortConfig { name, device, .. } = port;
    if port.queues != 1 {
        return Err(format!("port {name}: queues = {}: {device} has one queue: set queues = 1", port.queues));
    }
    if let Some(namespace) = &port.namespace {
        return Err(format!(
            "port {name}: namespace = {namespace}: {device} is in no network namespace: leave namespace out"
        ));
    }
    let promiscuous = if port.promiscuous { Promiscuous::Yes } else { Promiscuous::No };
    let config = MemoryPortConfig { mtu: port.mtu_bytes, promiscuous, ..MemoryPortConfig::named(name) };
    let Some(Inner::Socket(arguments)) = Inner::of(device) else {
        return Ok(Box::new(MemoryPort::pair(config, pool.clone()).0));
    };
    let path = arguments.strip_prefix(SOCKET_PATH).filter(|path| !path.is_empty());
    let path =
        path.ok_or_else(|| format!("port {name}: {device}: it needs a path, such as unix0,path=/run/lan.sock"))?;
    let opened = SocketPort::connect(config, device, Path::new(path), pool.clone());
    Ok(Box::new(opened.map_err(|error| format!("port {name}: {error}"))?))
}

#[cfg(feature = "dpdk")]
pub use with_dpdk::device_configs;
#[cfg(feature = "dpdk")]
use with_dpdk::open_devices;
#[cfg(not(feature = "dpdk"))]
use without_dpdk::open_devices;

#[cfg(feature = "dpdk")]
mod with_dpdk {
    use std::path::Path;

    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use pinion_gateway::port::dpdk::remake::DeviceMaker;
    use pinion_gateway::port::dpdk::{self, DpdkPool, Eal, EalConfig, RegisteredThread};
    use pinion_gateway::port::{Port, Promiscuous};

    use super::Opened;
    use crate::cores::plan::CoreId;
    use crate::node::config::{NodeConfig, PortConfig};
    use crate::node::device_maker::SupervisedMaker;

    /// The directory in which `ip netns` keeps network namespaces.
    const NAMESPACES: &str = "/run/netns";

    /// What the gateway's thread does before and after its loop.
    #[derive(Default)]
    pub struct GatewayThread {
        eal: Option<Eal>,
    }

    impl GatewayThread {
        /// Registers the calling thread with DPDK, if that is in use, for as long as the returned value lives.
        ///
        /// # Errors
        /// Returns a sentence if DPDK cannot register another thread.
        pub fn register(&self) -> Result<Option<RegisteredThread>, String> {
            self.eal.as_ref().map(dpdk::register_thread).transpose().map_err(|error| error.to_string())
        }
    }

    /// Returns the settings of all ports, in the order of the configuration.
    #[must_use]
    pub fn device_configs(config: &NodeConfig) -> Vec<dpdk::PortConfig> {
        let of_port = |port: &PortConfig| dpdk::PortConfig {
            mtu: port.mtu_bytes,
            queues: port.queues,
            promiscuous: if port.promiscuous { Promiscuous::Yes } else { Promiscuous::No },
            network_namespace: port.namespace.as_ref().map(|name| Path::new(NAMESPACES).join(name)),
            ..dpdk::PortConfig::new(&port.name, &port.device)
        };
        config.ports.iter().map(of_port).collect()
    }

    pub(super) fn open_devices(
        config: &NodeConfig,
        core: CoreId,
        supervisor: Option<&Arc<OwnedFd>>,
    ) -> Result<Opened, String> {
        let eal_config = EalConfig {
            devices: config.ports.iter().map(|port| port.device.clone()).collect(),
            buffers: config.limits.buffers,
            core: Some(usize::from(core.0)),
            huge_pages: pinion_gateway::port::dpdk::HugePages::IfFree,
        };
        let eal = Eal::start(&eal_config).map_err(|error| error.to_string())?;
        let pool = DpdkPool::new(&eal, config.limits.buffers).map_err(|error| error.to_string())?;
        let open = |(place, mut port): (u16, dpdk::PortConfig)| -> Result<Box<dyn Port>, String> {
            let maker = supervisor.map(|supervisor| SupervisedMaker::new(supervisor, place)).transpose();
            let maker = maker.map_err(|error| format!("port {}: its way to the supervisor: {error}", port.name))?;
            port.maker = maker.map(|maker| Arc::new(maker) as Arc<dyn DeviceMaker>);
            dpdk::open(&port, &pool).map_err(|error| format!("port {}: {error}", port.name))
        };
        let ports = (0..).zip(device_configs(config)).map(open).collect::<Result<_, _>>()?;
        Ok(Opened { ports, pool: Box::new(pool), thread: GatewayThread { eal: Some(eal) } })
    }
}

#[cfg(not(feature = "dpdk"))]
mod without_dpdk {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::Opened;
    use crate::cores::plan::CoreId;
    use crate::node::config::NodeConfig;

    /// What the gateway's thread does before and after its loop: nothing, without DPDK.
    #[derive(Default)]
    pub struct GatewayThread(());

    impl GatewayThread {
        /// Does nothing.
        ///
        /// # Errors
        /// Never fails.
        pub fn register(&self) -> Result<(), String> {
            Ok(())
        }
    }

    pub(super) fn open_devices(
        config: &NodeConfig,
        _core: CoreId,
        _supervisor: Option<&Arc<OwnedFd>>,
    ) -> Result<Opened, String> {
        let device = config.ports.iter().find(|port| super::Inner::of(&port.device).is_none());
        let device = device.map(|port| port.device.as_str()).unwrap_or_default();
        Err(format!("device {device}: this piniond was built without DPDK: use memory0 or unix0,path=PATH"))
    }
}
