//! Frames that the kernel dropped because the ring of a packet socket was full, from the opening of the socket on. The
//! driver `net_af_packet` does not count them. `net_pcap` does, from the same count of the kernel; as each reading
//! begins it anew, each frame is in the driver's count or in this one.
#![allow(unsafe_code)] // One socket option.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};

/// The frames of one device that found the ring full; see the module.
#[derive(Debug, Default)]
pub(crate) struct RingOverflows(Cell<u64>);

impl RingOverflows {
    /// Returns how many there were so far. `files` are those from which the device receives, always the same ones; the
    /// kernel counts nothing for those that are no packet sockets. One system call per file.
    pub(crate) fn count(&self, files: &[OwnedFd]) -> u64 {
        let new: u64 = files.iter().map(since_last_read).sum();
        self.0.set(self.0.get().saturating_add(new));
        self.0.get()
    }
}

/// Returns the kernel's count of one socket, which begins anew with each reading (packet(7), `PACKET_STATISTICS`).
fn since_last_read(socket: &OwnedFd) -> u64 {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: writes at most `size` bytes of the structure, which outlives the call.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &raw mut size,
        )
    };
    if code == 0 { stats.tp_drops.into() } else { 0 }
}
