//! A generator's own port.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use pinion_gateway::port::Port;
use pinion_gateway::port::dpdk::{self, DpdkPool, PortConfig};

/// Includes the start of the other side.
const LINK_MAX: Duration = Duration::from_secs(30);
/// A net_memif device requests its link once. A peer whose socket exists but whose port has not started refuses the request.
const ASKED_FOR: Duration = Duration::from_millis(250);
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// Opens a port as soon as the other side of its device is there.
///
/// # Errors
/// It is not there after 30 s.
pub(crate) fn open(
    pool: &DpdkPool,
    name: &str,
    device: &str,
    namespace: Option<PathBuf>,
) -> anyhow::Result<Box<dyn Port>> {
    let config = PortConfig { link_timeout: ASKED_FOR, network_namespace: namespace, ..PortConfig::new(name, device) };
    let deadline = Instant::now() + LINK_MAX;
    loop {
        match dpdk::open(&config, pool) {
            Err(_) if Instant::now() < deadline => thread::sleep(ASK_INTERVAL),
            opened => return opened.with_context(|| format!("the generator's port {name}")),
        }
    }
}
