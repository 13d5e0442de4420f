//! Frames that no kernel would send, sent from inside a namespace.

use std::fs::File;

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use smoltcp::phy::{Device, Medium, RawSocket, TxToken};
use smoltcp::time::Instant;

use crate::namespace::Namespace;

/// Sends frames, from their first MAC address on, out of an interface of a namespace.
///
/// # Panics
/// If one can't be sent.
#[track_caller]
pub fn send(from: &Namespace, interface: &str, frames: &[Vec<u8>]) {
    let namespace = File::open(from.path()).expect("the namespace is there while its value is");
    // A thread that ends inside, since no other may change its namespace.
    let sender = std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            let mut socket = RawSocket::new(interface, Medium::Ethernet)?;
            frames.iter().for_each(|frame| send_one(&mut socket, frame));
            Ok::<(), std::io::Error>(())
        });
        inside.join().expect("sending does not panic")
    });
    if let Err(error) = sender {
        panic!("no frames can be sent by {interface} of {}: {error}", from.name());
    }
}

fn send_one(socket: &mut RawSocket, frame: &[u8]) {
    let token = socket.transmit(Instant::now()).expect("a raw socket always has a token");
    token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
}
