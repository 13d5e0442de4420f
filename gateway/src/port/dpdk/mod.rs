//! Ports on any device that DPDK 22.11 can drive.
//!
//! ```text
//!   Eal      one per process; DPDK's own state, on a thread of its own
//!    └─ DpdkPool   one per gateway: the mbufs; every received frame lies in one
//!        └─ DpdkPort   one per device, with one or several queues each way
//! ```
//!
//! Each keeps the one above it alive, so a program may drop them in any order. Devices have DPDK's names: a PCI address
//! (`0000:00:04.0`), or a virtual device with its arguments (`net_tap0,iface=pinion0`, `net_af_packet0,iface=eth1`,
//! `net_af_xdp0,iface=eth1`, `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`, `net_ring0`).
//!
//! Properties of some devices:
//! * `net_tap`: the kernel's side has the device's address. The port's station has the same address with the last bit
//!   flipped. Every poll is a system call.
//! * `net_af_packet` has a driver of the gateway's own (`packet`).
//! * `net_af_packet` and `net_af_xdp` on a veth pair: the kernel leaves TCP and UDP checksums to hardware that does not
//!   exist. The port computes them.
//! * `net_af_xdp`: a VLAN tag that travels beside a frame is lost. The port turns off `rxvlan` on its interface; on a veth
//!   pair, `ethtool -K FAR_END txvlan off` keeps tags in frames.
//! * `net_af_xdp`, if its interface is deleted: when there is one of that name again, the port continues on packet sockets
//!   (`xdp`), until the node starts again.
//! * `net_tap`: frames for which the tap's queue has no room count as `TX dropped` of the kernel's interface, and nowhere
//!   else.
//! * `net_af_xdp` keeps 2,048 buffers of the pool in its fill ring. When it is closed, it returns neither these nor the
//!   buffers that it was still sending. Its received frames lie in buffers of about 1,790 bytes. After it was closed,
//!   the kernel blocks the interface for other ports for some milliseconds. With `busy_budget=0`, receiving may block
//!   for up to a second: leave that argument out. Beside PCI devices it needs huge pages (`buffers/mempool.rs`).

mod buffers;
mod device;
mod eal;
mod error;
mod kernel;
mod log;
mod packet;
mod port;
mod port_config;
pub mod remake;
mod tap;
mod xdp;

pub use self::buffers::pool::DpdkPool;
pub use self::buffers::sizes::BUFFER_LEN;
pub use self::eal::{Eal, EalConfig, HugePages, RegisteredThread, register_thread};
pub use self::error::DpdkError;
pub use self::port_config::PortConfig;

use self::packet::PacketPort;
use self::port::DpdkPort;
use self::xdp::XdpPort;
use super::Port;

/// Opens a port whose frames lie in buffers of `pool`, and waits for its link.
///
/// # Errors
/// An error whose message names the device and what to do.
pub fn open(config: &PortConfig, pool: &DpdkPool) -> Result<Box<dyn Port>, DpdkError> {
    if !config.device.starts_with(packet::DRIVER) {
        let port = DpdkPort::open(config, pool)?;
        return match remake::uses_packet_sockets(&config.device) {
            true => Ok(Box::new(XdpPort::new(port, config, pool))),
            false => Ok(Box::new(port)),
        };
    }
    let port = PacketPort::open(config, pool.clone())?;
    port::await_link(&config.device, config.link_timeout, || (port.facts().link, Some(port.interface())))?;
    Ok(Box::new(port))
}
