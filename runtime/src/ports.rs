//! Opening the gateway's ports as the configuration says.

use pinion_gateway::port::heap::HeapPool;
use pinion_gateway::port::memory::{MemoryPort, MemoryPortConfig};
use pinion_gateway::port::{BufferPool, Port};

use crate::config::{NodeConfig, PortConfig};
use crate::plan::CoreId;

/// A device that is no device: what the node sends there is gone, and nothing comes. For machines without DPDK.
const MEMORY_DEVICE: &str = "memory";

/// Ports, the pool they share, and what must be done on the gateway's thread first.
pub struct Opened {
    /// In the order of the configuration.
    pub ports: Vec<Box<dyn Port>>,
    /// Their pool.
    pub pool: Box<dyn BufferPool>,
    /// The thread that polls the ports.
    pub thread: GatewayThread,
}

#[cfg(feature = "dpdk")]
pub use with_dpdk::GatewayThread;
#[cfg(not(feature = "dpdk"))]
pub use without_dpdk::GatewayThread;

/// Opens every port.
///
/// # Errors
/// A sentence naming the device and what to do.
pub fn open(config: &NodeConfig, core: CoreId) -> Result<Opened, String> {
    let is_memory = |port: &PortConfig| is_memory_device(&port.device);
    if config.ports.iter().all(is_memory) {
        let pool = HeapPool::new(config.limits.buffers as usize, HEAP_BUFFER_BYTES);
        let ports = config.ports.iter().map(|port| memory_port(port, &pool)).collect::<Result<_, _>>()?;
        return Ok(Opened { ports, pool: Box::new(pool), thread: GatewayThread::default() });
    }
    if let Some(port) = config.ports.iter().find(|port| is_memory(port)) {
        return Err(format!("port {}: a memory port cannot be mixed with devices", port.name));
    }
    open_devices(config, core)
}

const HEAP_BUFFER_BYTES: u16 = 2048;

fn is_memory_device(device: &str) -> bool {
    device
        .strip_prefix(MEMORY_DEVICE)
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn memory_port(port: &PortConfig, pool: &HeapPool) -> Result<Box<dyn Port>, String> {
    if port.queues != 1 {
        return Err(format!("port {}: queues = {}: a memory port has 1", port.name, port.queues));
    }
    if let Some(namespace) = &port.namespace {
        return Err(format!("port {}: namespace = {namespace}: a memory port is in no network namespace", port.name));
    }
    let config = MemoryPortConfig { mtu: port.mtu_bytes, ..MemoryPortConfig::named(&port.name) };
    Ok(Box::new(MemoryPort::pair(config, pool.clone()).0))
}

#[cfg(feature = "dpdk")]
use with_dpdk::open_devices;
#[cfg(not(feature = "dpdk"))]
use without_dpdk::open_devices;

#[cfg(feature = "dpdk")]
mod with_dpdk {
    use std::path::Path;

    use pinion_gateway::port::dpdk::{self, DpdkPool, DpdkPort, Eal, EalConfig, RegisteredThread};
    use pinion_gateway::port::{Port, Promiscuous};

    use super::Opened;
    use crate::config::NodeConfig;
    use crate::plan::CoreId;

    /// Where `ip netns` keeps network namespaces.
    const NAMESPACES: &str = "/run/netns";

    /// What the gateway's thread does before and after its loop.
    #[derive(Default)]
    pub struct GatewayThread {
        eal: Option<Eal>,
    }

    impl GatewayThread {
        /// Makes the calling thread known to DPDK, where there is one, for as long as the value lives.
        ///
        /// # Errors
        /// A sentence, if DPDK has no place for it.
        pub fn register(&self) -> Result<Option<RegisteredThread>, String> {
            self.eal.as_ref().map(dpdk::register_thread).transpose().map_err(|error| error.to_string())
        }
    }

    pub(super) fn open_devices(config: &NodeConfig, core: CoreId) -> Result<Opened, String> {
        let eal_config = EalConfig {
            devices: config.ports.iter().map(|port| port.device.clone()).collect(),
            buffers: config.limits.buffers,
            core: Some(usize::from(core.0)),
            huge_pages: pinion_gateway::eal::HugePages::IfFree,
        };
        let eal = Eal::start(&eal_config).map_err(|error| error.to_string())?;
        let pool = DpdkPool::new(&eal, config.limits.buffers).map_err(|error| error.to_string())?;
        let open = |port: &crate::config::PortConfig| -> Result<Box<dyn Port>, String> {
            let wanted = dpdk::PortConfig {
                mtu: port.mtu_bytes,
                queues: port.queues,
                promiscuous: if port.promiscuous { Promiscuous::Yes } else { Promiscuous::No },
                network_namespace: port.namespace.as_ref().map(|name| Path::new(NAMESPACES).join(name)),
                ..dpdk::PortConfig::new(&port.name, &port.device)
            };
            let port = DpdkPort::open(&wanted, &pool).map_err(|error| format!("port {}: {error}", port.name))?;
            Ok(Box::new(port))
        };
        let ports = config.ports.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Opened { ports, pool: Box::new(pool), thread: GatewayThread { eal: Some(eal) } })
    }
}

#[cfg(not(feature = "dpdk"))]
mod without_dpdk {
    use super::Opened;
    use crate::config::NodeConfig;
    use crate::plan::CoreId;

    /// What the gateway's thread does before and after its loop: nothing, without DPDK.
    #[derive(Default)]
    pub struct GatewayThread(());

    impl GatewayThread {
        /// Does nothing.
        ///
        /// # Errors
        /// None.
        pub fn register(&self) -> Result<(), String> {
            Ok(())
        }
    }

    pub(super) fn open_devices(config: &NodeConfig, _core: CoreId) -> Result<Opened, String> {
        let device = config.ports.iter().find(|port| !super::is_memory_device(&port.device));
        let device = device.map(|port| port.device.as_str()).unwrap_or_default();
        Err(format!("device {device}: this piniond was built without DPDK and has memory ports only"))
    }
}
