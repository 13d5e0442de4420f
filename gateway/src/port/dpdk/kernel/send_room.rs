//! Send buffer room, for devices that are sockets of the kernel.
//!
//! The driver of such a device puts frames into a ring and asks the kernel to send them. The kernel sends as many as
//! fit into the socket's send buffer, some 300 frames by default. It leaves the rest until it is asked again, which
//! only happens with the next frame.

use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_send_buffer_size_force;

/// More than a driver's ring of frames takes up in the kernel. Nothing is reserved. In bytes.
const SEND_BYTES: usize = 256 << 20;

/// Enlarges the send buffer of each file that is a socket, so that it has room for the driver's whole ring.
pub(crate) fn widen(files: &[OwnedFd]) {
    for file in files {
        // Fails for taps, which are no sockets, and without privileges: then the default stays.
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
