//! Ports on any device that DPDK 22.11 can drive.
//!
//! ```text
//!   Eal      one per process; DPDK's own state, on a thread of its own
//!    └─ DpdkPool   one per gateway: the mbufs; every received frame lies in one
//!        └─ DpdkPort   one per device, with one or several queues each way
//! ```
//!
//! Each keeps what it stands on alive, so the order in which a program lets go of them does not matter. Devices are
//! named as DPDK names them: a PCI address (`0000:00:04.0`), or a virtual device with its arguments
//! (`net_tap0,iface=pinion0`, `net_af_packet0,iface=eth1`, `net_af_xdp0,iface=eth1`,
//! `net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`, `net_ring0`).
//!
//! What is worth knowing about them:
//! * `net_tap`: the kernel's side has the device's address; the port's station is given the neighbouring one, with the
//!   last bit flipped. Every poll is a system call.
//! * `net_af_packet` and `net_af_xdp` on a veth pair: the kernel leaves TCP and UDP checksums to be finished by
//!   hardware that is not there; `ethtool -K FAR_END tx off` makes it finish them.
//! * `net_af_xdp` keeps 2,048 buffers of the pool in its fill ring and does not give them back when it is closed, nor
//!   those it was still sending. Its received frames lie in buffers of about 1,790 bytes.
//!   Some milliseconds go by after it was closed before the kernel lets another port have the interface.
//!   With `busy_budget=0`, receiving may wait for up to a second: leave that argument out.

mod alarms;
pub(crate) mod device;
pub(crate) mod error;
mod ethernet;
mod interface;
pub(crate) mod log;
mod namespace;
pub(crate) mod pool;
mod port;
mod send_room;
mod signals;

pub use crate::eal::{Eal, EalConfig, HugePages, RegisteredThread, register_thread};
pub use error::DpdkError;
pub use pool::{BUFFER_LEN, DpdkPool};
pub use port::{DpdkPort, PortConfig};
