//! Interfaces of the kernel on which a node that has ended has left a program.
//!
//! The driver `net_af_xdp` attaches a program to the interface, which takes a right to detach that the node has given up by then, and which
//! a node that crashed would not have done either.

use std::process::{Command, Stdio};

use super::log::say;

const DRIVER: &str = "net_af_xdp";

/// An interface with a program of the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpInterface {
    name: String,
    /// By its name for `ip netns`; none for the node's own.
    namespace: Option<String>,
}

impl XdpInterface {
    /// Returns the interface of a port with this device and namespace, if the device attaches a program to one.
    #[must_use]
    pub fn of(device: &str, namespace: Option<&str>) -> Option<Self> {
        let name = device.strip_prefix(DRIVER)?.split(',').find_map(|argument| argument.strip_prefix("iface="))?;
        Some(Self { name: name.to_owned(), namespace: namespace.map(str::to_owned) })
    }

    /// Detaches the program. It does no harm if there is none, or no such interface any more.
    pub(super) fn detach(&self) {
        let mut command = Command::new("ip");
        command.args(self.namespace.iter().flat_map(|namespace| ["-n", namespace]));
        command.args(["link", "set", "dev", &self.name, "xdp", "off"]);
        if let Err(error) = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
            say(&format!("the node's program is still attached to {}, as `ip` cannot be run: {error}", self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_of_the_driver_have_an_interface_with_a_program() {
        let port = XdpInterface::of("net_af_xdp0,iface=eth1,force_copy=1", Some("lab"));
        assert_eq!(port, Some(XdpInterface { name: "eth1".to_owned(), namespace: Some("lab".to_owned()) }));
        for device in ["net_af_packet0,iface=eth1", "0000:03:00.0", "net_af_xdp0", "memory0"] {
            assert_eq!(XdpInterface::of(device, None), None, "{device}");
        }
    }
}
