//! The kernel interface behind a virtual device. DPDK's drivers for these devices report a link that is always up.
#![allow(unsafe_code)] // Requests about an interface, one socket option.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket, socket_with};

use crate::port::{LinkState, Promiscuous};

/// An interface of the network namespace in which this value was made. Its socket answers requests about devices, and can send nothing.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    index: u32,
}

/// The request by which ethtool asks (linux/sockios.h).
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// The option of a socket for its namespace's cookie (asm-generic/socket.h).
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Why an interface's link is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkDownReason {
    /// The interface is administratively down.
    Down,
    /// It is up, but has no carrier.
    NoCarrier,
}

/// Makes a socket of the calling thread's namespace by which the kernel can be asked about devices. One of any family answers that. This
/// one can neither send nor receive, so it gives nothing to code that has taken over a thread of the data path.
fn asking_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Returns what tells the network namespace of a socket apart from all others since the machine started; 0 before Linux 5.14.
pub(crate) fn namespace_cookie(of: BorrowedFd<'_>) -> u64 {
    let (mut cookie, mut size) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: writes at most `size` bytes of the number, which outlives the call.
    let code = unsafe {
        libc::getsockopt(of.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut size)
    };
    if code == 0 { cookie } else { 0 }
}

/// Returns whether the calling thread's namespace has an interface of this name.
pub(crate) fn exists(name: &str) -> bool {
    asking_socket().is_ok_and(|socket| netdevice::name_to_index(socket, name).is_ok())
}

impl Interface {
    pub(crate) fn of_index(index: u32) -> io::Result<Self> {
        Ok(Self { socket: asking_socket()?, index })
    }

    /// Returns the interface of this name.
    pub(crate) fn of_name(name: &str) -> io::Result<Self> {
        let socket = asking_socket()?;
        let index = netdevice::name_to_index(&socket, name)?;
        Ok(Self { socket, index })
    }

    /// Returns the interface of this index in the namespace of `socket`.
    pub(crate) fn by(socket: OwnedFd, index: u32) -> Self {
        Self { socket, index }
    }

    /// Continues with the interface that has this name now, in the same namespace. Returns whether there is one.
    pub(crate) fn follow(&mut self, name: &str) -> bool {
        let found = self.index_of(name);
        self.index = found.unwrap_or(self.index);
        found.is_some()
    }

    /// Returns the index of the interface of this name in the same namespace.
    pub(crate) fn index_of(&self, name: &str) -> Option<u32> {
        netdevice::name_to_index(&self.socket, name).ok()
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the socket by which the kernel is asked, which is of the interface's namespace.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
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
        let request = self.request(libc::SIOCGIFFLAGS, no_value())?;
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

    /// Returns its hardware address.
    pub(crate) fn mac(&self) -> io::Result<[u8; 6]> {
        let request = self.request(libc::SIOCGIFHWADDR, no_value())?;
        // SAFETY: the address is the member that was written.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok(std::array::from_fn(|at| address[at].cast_unsigned()))
    }

    /// Sets its hardware address.
    pub(crate) fn set_mac(&self, mac: [u8; 6]) -> io::Result<()> {
        let mut value = no_value();
        // SAFETY: all-zero bytes are a valid address.
        let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from.cast_signed();
        }
        value.ifru_hwaddr = address;
        self.request(libc::SIOCSIFHWADDR, value).map(drop)
    }

    /// Returns the longest payload of its frames.
    pub(crate) fn mtu(&self) -> io::Result<u16> {
        let request = self.request(libc::SIOCGIFMTU, no_value())?;
        // SAFETY: the MTU is the member that was written.
        Ok(u16::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(u16::MAX))
    }

    /// Sets the longest payload of its frames.
    pub(crate) fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        let mut value = no_value();
        value.ifru_mtu = mtu.into();
        self.request(libc::SIOCSIFMTU, value).map(drop)
    }

    /// Sets it up.
    pub(crate) fn set_up(&self) -> io::Result<()> {
        let mut value = no_value();
        value.ifru_flags = libc::IFF_UP as libc::c_short;
        self.request(libc::SIOCSIFFLAGS, value).map(drop)
    }

    /// Makes a request of ethtool, which is in the structure and is answered there.
    ///
    /// # Safety
    /// The request that the structure begins with must read and write no more than the structure.
    pub(crate) unsafe fn ethtool<T>(&self, request: &mut T) -> io::Result<()> {
        let mut value = no_value();
        value.ifru_data = std::ptr::from_mut(request).cast();
        self.request(SIOCETHTOOL, value).map(drop)
    }

    /// Makes a request about the interface. Returns it with the kernel's answer.
    fn request(&self, what: libc::c_ulong, value: libc::__c_anonymous_ifr_ifru) -> io::Result<libc::ifreq> {
        let name = netdevice::index_to_name(&self.socket, self.index)?;
        // SAFETY: all-zero bytes are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru = value;
        // Interface names are shorter than the array, whose last byte stays zero.
        for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        // SAFETY: these requests read and write no more than the structure, which outlives the call.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), what as _, &raw mut request) } {
            0 => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn no_value() -> libc::__c_anonymous_ifr_ifru {
    // SAFETY: all-zero bytes are a valid value of each kind.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn join(member: &OwnedFd, index: u32, kind: libc::c_int) -> io::Result<()> {
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
    use std::net::SocketAddr;

    use rustix::net::sockopt::socket_domain;
    use rustix::net::{SendFlags, sendto};

    use super::*;

    #[test]
    fn the_socket_by_which_the_kernel_is_asked_answers_all_requests_and_can_send_nothing() {
        let interface = Interface::of_name("lo").unwrap();
        assert_eq!(interface.mac().unwrap(), [0; 6]);
        interface.obstacle().unwrap();
        let mtu = interface.mtu().unwrap();
        // These take a right, which is looked at only if the request is known. They change nothing.
        let refusal = |done: io::Result<()>| done.err().filter(|error| error.kind() != io::ErrorKind::PermissionDenied);
        assert!(refusal(interface.set_mtu(mtu)).is_none());
        if interface.obstacle().unwrap().is_none() {
            assert!(refusal(interface.set_up()).is_none());
        }
        // ETHTOOL_GLINK, which any interface answers.
        let mut link = [0x0a_u32, 2];
        // SAFETY: the request is two numbers of 32 bits.
        unsafe { interface.ethtool(&mut link) }.unwrap();
        assert_ne!(link[1], 2);
        assert_eq!(socket_domain(interface.socket()).unwrap(), AddressFamily::UNIX);
        let to: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert!(sendto(interface.socket(), b"datagram", SendFlags::NOSIGNAL, &to).is_err());
    }

    #[test]
    fn sockets_of_one_namespace_have_one_cookie() {
        let [one, other] = [(); 2].map(|()| namespace_cookie(asking_socket().unwrap().as_fd()));
        assert_eq!(one, other);
    }

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
