//! Making a port's device usable again after it was deleted.
//!
//! This takes rights that a node gives up before it serves clients. Then a process that still has them, the node's
//! supervisor, does it at the port's request:
//!
//! ```text
//!   port --[DeviceMaker]--> process with rights: packet_sockets(..)  -- new sockets --> port
//!                                                attach_tap(..)      on the port's own files
//! ```
//!
//! A port asks now and then while its device is gone, and never waits for an answer. It works without a maker as long as
//! the calling thread has the rights itself.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::device::device_string::Device;
use super::error::DpdkError;
use super::kernel::interface::{Interface, namespace_cookie};
use super::kernel::namespace::Namespace;
use super::packet::settings::Settings;
use super::packet::{self, sockets};
use super::port_config::PortConfig;
use super::tap;
pub use super::tap::TapWish;

/// Makes one port's device again, for a process that has no right to do so.
pub trait DeviceMaker: fmt::Debug + Send + Sync {
    /// Returns the sockets that were made since the last call, or asks for some. Does not wait.
    fn sockets(&self) -> Option<MadeSockets>;

    /// Asks that these files of a tap be attached to it, and that it be made if nobody has. `control` is a socket of the
    /// tap's namespace. Does not wait.
    fn tap(&self, wish: &TapWish, control: BorrowedFd<'_>, files: &[OwnedFd]);
}

/// The sockets of a port on packet sockets.
#[derive(Debug)]
pub struct MadeSockets {
    /// The index of the interface that they are bound to.
    pub interface: u32,
    /// A socket of the interface's namespace, by which the kernel can be asked about it.
    pub control: OwnedFd,
    /// One socket for each queue.
    pub queues: Vec<OwnedFd>,
}

/// What tells an interface apart from all others since the machine started: the cookie of its namespace, and its index there.
pub type InterfaceId = (u64, u32);

impl MadeSockets {
    /// Returns which interface they are bound to.
    #[must_use]
    pub fn interface_id(&self) -> InterfaceId {
        (namespace_cookie(self.control.as_fd()), self.interface)
    }
}

/// Returns whether a port with this device continues with new packet sockets.
#[must_use]
pub fn uses_packet_sockets(device: &str) -> bool {
    device.starts_with(packet::DRIVER) || xdp_interface(device).is_some()
}

/// Returns the interface of a device on AF_XDP.
fn xdp_interface(device: &str) -> Option<String> {
    let device = Device::parse(device).ok()?;
    device.underlying_interface().filter(|_| device.attaches_program()).map(str::to_owned)
}

/// Returns the settings of the port on packet sockets that stands in for a port on AF_XDP; those of any other port as they are.
pub(crate) fn on_packet_sockets(config: &PortConfig) -> PortConfig {
    let stand_in = |interface| format!("{}0,iface={interface}", packet::DRIVER);
    let device = xdp_interface(&config.device).map_or_else(|| config.device.clone(), stand_in);
    PortConfig { device, ..config.clone() }
}

/// Makes the sockets of a port on packet sockets, in its network namespace, with the rights of the calling process.
///
/// # Errors
/// If there is no such namespace or interface now, or the rights do not suffice.
pub fn packet_sockets(config: &PortConfig) -> Result<MadeSockets, DpdkError> {
    let config = &on_packet_sockets(config);
    let settings = Settings::of(config)?;
    let namespace = Namespace::open(config.network_namespace.as_deref())?;
    let made = namespace.run(|| sockets::open(&settings))?;
    let sockets::Sockets { interface, queues } =
        made.map_err(|error| Settings::error(config, &settings.interface, error))?;
    Ok(MadeSockets { interface: interface.index(), control: interface.into_socket(), queues })
}

/// Attaches the files of a port's tap to it again, with the rights of the calling process. If there is no interface of
/// its name, it is made.
///
/// # Errors
/// If the device is no tap with a name, a file is not a tap's, or the kernel refuses.
pub fn attach_tap(config: &PortConfig, wish: &TapWish, control: OwnedFd, files: &[OwnedFd]) -> io::Result<()> {
    let device = Device::parse(&config.device).map_err(io::Error::other)?;
    let name = tap::name(&device).ok_or_else(|| io::Error::other("the device is no tap with a name"))?;
    let mut interface = Interface::by(control, 0);
    tap::attach(name, wish, &mut interface, files)?;
    interface.set_mtu(config.mtu)?;
    interface.set_up()
}
