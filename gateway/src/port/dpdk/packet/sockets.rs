//! Making a port's packet sockets. This needs rights: to have such a socket, and to change the interface's MTU.
#![allow(unsafe_code)] // Options of sockets.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::settings::Settings;
use crate::port::Promiscuous;
use crate::port::dpdk::kernel::interface::{Interface, join};
use crate::port::dpdk::kernel::send_room;

/// The sockets of a port, one for each queue, bound to this interface.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) interface: Interface,
    pub(crate) queues: Vec<OwnedFd>,
}

/// A step that failed, and the kernel's reason; ENODEV if there is no such interface.
pub(crate) type StepError = (&'static str, io::Error);

/// Makes the sockets of a port, in the calling thread's network namespace.
pub(crate) fn open(settings: &Settings) -> Result<Sockets, StepError> {
    let at = |step| move |error: io::Error| (step, error);
    let interface = Interface::of_name(&settings.interface).map_err(at("looking up its interface"))?;
    if interface.mtu().ok() != Some(settings.mtu) {
        interface.set_mtu(settings.mtu).map_err(at("setting the interface's MTU"))?;
    }
    let mut queues = Vec::with_capacity(settings.queues.into());
    for _ in 0..settings.queues {
        queues.push(unbound(settings)?);
    }
    send_room::widen(&queues);
    // As long as the first one is open, the interface receives what neighbour discovery uses, and what is for others if wanted.
    join(&queues[0], interface.index(), libc::PACKET_MR_ALLMULTI).map_err(at("receiving multicast frames"))?;
    if settings.promiscuous == Promiscuous::Yes {
        join(&queues[0], interface.index(), libc::PACKET_MR_PROMISC).map_err(at("setting promiscuous mode"))?;
    }
    for queue in &queues {
        bind(queue, interface.index()).map_err(at("binding a socket to its interface"))?;
    }
    spread(&queues).map_err(at("spreading flows over its queues"))?;
    Ok(Sockets { interface, queues })
}

/// Makes a socket that receives nothing yet, with its rings.
fn unbound(settings: &Settings) -> Result<OwnedFd, StepError> {
    let at = |step| move |error: io::Error| (step, error);
    let queue = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(|error| at("making a packet socket")(error.into()))?;
    let ring = settings.ring;
    let ring = libc::tpacket_req {
        tp_block_size: ring.block_bytes,
        tp_block_nr: ring.blocks,
        tp_frame_size: ring.frame_bytes,
        tp_frame_nr: ring.frames(),
    };
    set(&queue, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as c_int))
        .map_err(at("setting up a ring"))?;
    // A frame that the kernel refuses must not hold up those behind it.
    set(&queue, libc::PACKET_LOSS, &1).map_err(at("setting up a ring"))?;
    set(&queue, libc::PACKET_RX_RING, &ring).map_err(at("setting up a receive ring"))?;
    set(&queue, libc::PACKET_TX_RING, &ring).map_err(at("setting up a transmit ring"))?;
    if settings.bypasses_queueing {
        set(&queue, libc::PACKET_QDISC_BYPASS, &1).map_err(at("leaving out the queueing discipline"))?;
    }
    // A port receives what comes to the interface, not what the machine itself sends by it. Since Linux 4.20.
    let _ = set(&queue, libc::PACKET_IGNORE_OUTGOING, &1);
    Ok(queue)
}

fn bind(queue: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: reads the structure, which outlives the call, and no more than its size.
    match unsafe { libc::bind(queue.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel spread flows over several sockets. A single one gets all frames as it is.
fn spread(queues: &[OwnedFd]) -> io::Result<()> {
    let [first, others @ ..] = queues else { return Ok(()) };
    if others.is_empty() {
        return Ok(());
    }
    let flags = libc::PACKET_FANOUT_FLAG_ROLLOVER | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let kind = (libc::PACKET_FANOUT_HASH | flags) << 16;
    set(first, libc::PACKET_FANOUT, &(kind | libc::PACKET_FANOUT_FLAG_UNIQUEID << 16))?;
    let (mut group, mut size) = (0_u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: writes at most `size` bytes of the number, which outlives the call.
    let code = unsafe {
        let value = (&raw mut group).cast();
        libc::getsockopt(first.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, value, &raw mut size)
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    others.iter().try_for_each(|queue| set(queue, libc::PACKET_FANOUT, &(kind | (group & 0xffff))))
}

/// Sets an option of a packet socket.
fn set<T>(queue: &OwnedFd, option: c_int, value: &T) -> io::Result<()> {
    let (value, size) = (std::ptr::from_ref(value), size_of::<T>() as libc::socklen_t);
    // SAFETY: reads the value, which outlives the call, and no more than its size.
    match unsafe { libc::setsockopt(queue.as_raw_fd(), libc::SOL_PACKET, option, value.cast(), size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
