//! Ports on packet sockets of the kernel, for the devices that the configuration calls `net_af_packet`.
//!
//! ```text
//!   interface --kernel--> ring in shared memory --copy--> buffer --> Frame       no system call
//!   interface <--kernel-- ring in shared memory <--copy-- Frame                  one system call a burst
//! ```
//!
//! Names and arguments are those of DPDK's driver, which is not used because
//! * it puts its sockets into a fan-out group, and such a socket can never be bound to another interface: a port whose
//!   interface is deleted would be dead until the node starts again;
//! * it drops what the kernel notes of a frame: the type of a tag that was taken out, and that a checksum is missing;
//! * it counts frames as sent that the kernel has refused.
//!
//! A port has a socket for each queue. Sockets are made by [`sockets::open`], which needs rights; the rest needs none.
//! When the interface has gone, whoever has the rights makes new sockets as soon as there is one of that name again
//! ([`crate::port::dpdk::remake`]), and the port continues with those.

mod port;
mod ring;
pub(super) mod settings;
pub(super) mod sockets;

pub(super) use self::port::PacketPort;

/// How devices of this kind are named.
pub(super) const DRIVER: &str = "net_af_packet";
