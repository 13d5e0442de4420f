//! Frames that no kernel would send, sent from inside a namespace, and those that come back.

use std::fs::File;

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use smoltcp::phy::{Device, Medium, RawSocket, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::namespace::Namespace;
use crate::until::SOON;

/// Frames, each from its first MAC address on.
pub type Frames = Vec<Vec<u8>>;

/// Sends frames out of the first of a namespace's interfaces, and listens on all of these until `enough` is content with
/// what came in, by interface, or time is up; what came in.
///
/// # Panics
/// If one can't be sent, or nothing be listened to.
#[track_caller]
pub fn exchange<const N: usize>(
    at: &Namespace,
    interfaces: [&str; N],
    frames: &[Vec<u8>],
    enough: impl Fn(&[Frames; N]) -> bool + Send,
) -> [Frames; N] {
    let outcome = inside(at, || {
        let mut sockets = Vec::new();
        for interface in interfaces {
            sockets.push(RawSocket::new(interface, Medium::Ethernet)?);
        }
        frames.iter().for_each(|frame| send_one(&mut sockets[0], frame));
        let (mut received, start) = ([const { Frames::new() }; N], std::time::Instant::now());
        while !enough(&received) && start.elapsed() < SOON {
            for (socket, received) in sockets.iter_mut().zip(&mut received) {
                while let Some((token, _)) = socket.receive(Instant::now()) {
                    received.push(token.consume(<[u8]>::to_vec));
                }
            }
            std::thread::yield_now();
        }
        Ok(received)
    });
    outcome.unwrap_or_else(|error| panic!("no frames can be exchanged at {}: {error}", at.name()))
}

/// Runs something on a thread that is in the namespace, and ends there, since no other may change its namespace.
fn inside<T: Send>(at: &Namespace, run: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
    let namespace = File::open(at.path()).expect("the namespace is there while its value is");
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            run()
        });
        inside.join().expect("sending and listening do not panic")
    })
}

/// Sends frames, from their first MAC address on, out of an interface of a namespace.
///
/// # Panics
/// If one can't be sent.
#[track_caller]
pub fn send(from: &Namespace, interface: &str, frames: &[Vec<u8>]) {
    let sender = inside(from, || {
        let mut socket = RawSocket::new(interface, Medium::Ethernet)?;
        frames.iter().for_each(|frame| send_one(&mut socket, frame));
        Ok(())
    });
    if let Err(error) = sender {
        panic!("no frames can be sent by {interface} of {}: {error}", from.name());
    }
}

fn send_one(socket: &mut RawSocket, frame: &[u8]) {
    let token = socket.transmit(Instant::now()).expect("a raw socket always has a token");
    token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
}
