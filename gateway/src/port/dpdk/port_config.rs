//! The settings of a port.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::remake::DeviceMaker;
use crate::port::Promiscuous;

/// The settings with which a port is opened.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The port's name.
    pub name: String,
    /// The device, in DPDK's notation.
    pub device: String,
    /// The longest payload of a frame, in bytes. Set on the device, and on the kernel interface of a virtual device.
    pub mtu: u16,
    /// The number of receive queues, over which the device spreads flows, and also the number of transmit queues.
    pub queues: u16,
    /// Whether frames for other stations are received too.
    pub promiscuous: Promiscuous,
    /// How long the link may take to come up.
    pub link_timeout: Duration,
    /// The network namespace in which to open the device, if not the process's own: a file such as `/run/netns/NAME`. A
    /// tap device appears there, and `iface=` names an interface there.
    pub network_namespace: Option<PathBuf>,
    /// Makes the device again if it is deleted, for a process that gives up the rights to do so.
    pub maker: Option<Arc<dyn DeviceMaker>>,
}

impl PortConfig {
    /// Returns the settings of a port with an MTU of 1500 and one queue, whose link may take five seconds to come up.
    #[must_use]
    pub fn new(name: &str, device: &str) -> Self {
        Self {
            name: name.to_owned(),
            device: device.to_owned(),
            mtu: 1500,
            queues: 1,
            promiscuous: Promiscuous::No,
            link_timeout: Duration::from_secs(5),
            network_namespace: None,
            maker: None,
        }
    }
}
