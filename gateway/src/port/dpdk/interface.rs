//! The kernel interface behind a virtual device: DPDK's drivers for these report a link that is always up.
#![allow(unsafe_code)] // One ioctl, one socket option.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::port::{LinkState, Promiscuous};

/// An interface of the network namespace in which this was made.
#[derive(Debug)]
pub(super) struct Interface {
    socket: OwnedFd,
    index: u32,
}

/// Why an interface is not up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It was not set up.
    Down,
    /// It is, but has no carrier.
    NoCarrier,
}

/// Whether the calling thread's namespace has an interface of this name.
pub(super) fn exists(name: &str) -> bool {
    socket(AddressFamily::INET, SocketType::DGRAM, None)
        .is_ok_and(|socket| netdevice::name_to_index(socket, name).is_ok())
}

impl Interface {
    pub(super) fn of_index(index: u32) -> io::Result<Self> {
        Ok(Self { socket: socket(AddressFamily::INET, SocketType::DGRAM, None)?, index })
    }

    /// Its present name, unless it has left the namespace.
    pub(super) fn name(&self) -> Option<String> {
        netdevice::index_to_name(&self.socket, self.index).ok()
    }

    /// Has it receive what is sent to groups of stations, as neighbour discovery is, and with [`Promiscuous::Yes`] what is
    /// sent to any other; for as long as the returned socket is open. Its flags, which outlive us, stay as they are.
    pub(super) fn widen(&self, promiscuous: Promiscuous) -> io::Result<OwnedFd> {
        // Of no protocol: nothing is ever received by it.
        let member = socket(AddressFamily::PACKET, SocketType::RAW, None)?;
        join(&member, self.index, libc::PACKET_MR_ALLMULTI)?;
        if promiscuous == Promiscuous::Yes {
            join(&member, self.index, libc::PACKET_MR_PROMISC)?;
        }
        Ok(member)
    }

    /// Whether frames can pass it.
    pub(super) fn link(&self) -> LinkState {
        match self.obstacle() {
            Ok(None) => LinkState::Up,
            Ok(Some(_)) => LinkState::Down,
            Err(_) => LinkState::Unknown,
        }
    }

    /// What keeps frames from passing, if anything.
    pub(super) fn obstacle(&self) -> io::Result<Option<Obstacle>> {
        let name = netdevice::index_to_name(&self.socket, self.index)?;
        // SAFETY: all-zero bytes are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The kernel's names end before the last of the array's bytes, which stays zero.
        for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        // SAFETY: this request reads the name and writes the flags of the structure, which outlives the call.
        if unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the flags are what was written.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(if flags & libc::IFF_UP == 0 {
            Some(Obstacle::Down)
        } else if flags & libc::IFF_RUNNING == 0 {
            Some(Obstacle::NoCarrier)
        } else {
            None
        })
    }
}

fn join(member: &OwnedFd, index: u32, kind: libc::c_int) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: kind as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: reads the structure, which outlives the call, and no more than its size.
    let code = unsafe {
        libc::setsockopt(
            member.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const membership).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_exists_and_no_other_is_taken_for_it() {
        assert!(exists("lo"));
        assert!(!exists("no-such-iface"));
        assert_eq!(Interface::of_index(1).unwrap().name().as_deref(), Some("lo"));
    }

    #[test]
    fn the_link_of_an_interface_that_is_gone_is_unknown() {
        assert_eq!(Interface::of_index(u32::MAX >> 1).unwrap().link(), LinkState::Unknown);
    }
}
