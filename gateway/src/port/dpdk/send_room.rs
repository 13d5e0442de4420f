//! Room to send, for devices that are sockets of the kernel's.
//!
//! Such a driver puts frames into a ring and asks the kernel to send what is there. The kernel sends as much as the socket's
//! buffer has room for, some 300 frames by default, and leaves the rest until it is asked again: with the next frame,
//! whenever that comes.

use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_send_buffer_size_force;

/// More than a driver's ring of frames takes up in the kernel; nothing is reserved.
const SEND_BYTES: usize = 256 << 20;

/// Gives each of these that is a socket room for all that its driver's ring can hold.
pub(super) fn widen(files: &[OwnedFd]) {
    for file in files {
        // Fails for taps, which are no sockets, and without the right to: then the default holds.
        let _ = set_socket_send_buffer_size_force(file, SEND_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::socket_send_buffer_size;
    use rustix::net::{AddressFamily, SocketType, socket};
    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn a_socket_has_room_for_a_ring_of_frames() {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        widen(std::slice::from_ref(&socket));
        if geteuid().is_root() {
            assert!(socket_send_buffer_size(&socket).unwrap() >= SEND_BYTES);
        }
    }
}
