//! The kernel interface behind a virtual device. DPDK's drivers for these devices report a link that is always up.
#![allow(unsafe_code)] // One ioctl, one socket option.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::port::{LinkState, Promiscuous};

/// An interface of the network namespace in which this value was made.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    index: u32,
}

/// Why an interface's link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDownReason {
    /// The interface is administratively down.
    Down,
    /// It is up, but has no carrier.
    NoCarrier,
}

/// Returns whether the calling thread's namespace has an interface of this name.
pub(crate) fn exists(name: &str) -> bool {
    socket(AddressFamily::INET, SocketType::DGRAM, None)
        .is_ok_and(|socket| netdevice::name_to_index(socket, name).is_ok())
}

impl Interface {
    pub(crate) fn of_index(index: u32) -> io::Result<Self> {
        Ok(Self { socket: socket(AddressFamily::INET, SocketType::DGRAM, None)?, index })
    }

    /// Returns its present name, unless it has left the namespace.
    pub(crate) fn name(&self) -> Option<String> {
        netdevice::index_to_name(&self.socket, self.index).ok()
    }

    /// Makes the interface receive frames to multicast addresses, as neighbour discovery uses, and with
    /// [`Promiscuous::Yes`] frames to any station. This lasts as long as the returned socket is open. The interface's
    /// flags, which would outlive the process, stay unchanged.
    pub(crate) fn widen(&self, promiscuous: Promiscuous) -> io::Result<OwnedFd> {
        // Without a protocol, the socket never receives a frame.
        let member = socket(AddressFamily::PACKET, SocketType::RAW, None)?;
        join(&member, self.index, libc::PACKET_MR_ALLMULTI)?;
        if promiscuous == Promiscuous::Yes {
            join(&member, self.index, libc::PACKET_MR_PROMISC)?;
        }
        Ok(member)
    }

    /// Returns whether frames can pass through it.
    pub(crate) fn link(&self) -> LinkState {
        match self.obstacle() {
            Ok(None) => LinkState::Up,
            Ok(Some(_)) => LinkState::Down,
            Err(_) => LinkState::Unknown,
        }
    }

    /// Returns what keeps frames from passing, if anything.
    pub(crate) fn obstacle(&self) -> io::Result<Option<LinkDownReason>> {
        let name = netdevice::index_to_name(&self.socket, self.index)?;
        // SAFETY: all-zero bytes are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // Interface names are shorter than the array, whose last byte stays zero.
        for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        // SAFETY: this request reads the name and writes the flags of the structure, which outlives the call.
        if unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the flags are the member that was written.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(if flags & libc::IFF_UP == 0 {
            Some(LinkDownReason::Down)
        } else if flags & libc::IFF_RUNNING == 0 {
            Some(LinkDownReason::NoCarrier)
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
