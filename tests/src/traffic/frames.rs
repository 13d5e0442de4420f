//! Sends frames that no kernel would send, from inside a namespace, and captures the frames that arrive in another.

use std::time::{Duration, Instant};

use smoltcp::phy::{Device, Medium, RawSocket, RxToken, TxToken};
use smoltcp::time::Instant as Timestamp;

use crate::machine::cores::{stay_on, two_cores};
use crate::network::namespace::Namespace;

const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Sends frames, beginning with their MAC addresses, out of an interface of a namespace, from one core: a virtual cable has a queue for each,
/// so a sender that changes its core overtakes itself.
///
/// # Panics
/// If one cannot be sent.
#[track_caller]
pub fn send(from: &Namespace, interface: &str, frames: &[Vec<u8>]) {
    from.inside(|| {
        stay_on(two_cores().0);
        let mut socket = open(from, interface);
        frames.iter().for_each(|frame| send_one(&mut socket, frame));
    });
}

/// Runs `work` with a capture of the frames that arrive at an interface of a namespace.
///
/// # Panics
/// If `work` panics, or the interface cannot be captured.
#[track_caller]
pub fn watch<T: Send>(at: &Namespace, interface: &str, work: impl FnOnce(&mut Arrivals) -> T + Send) -> T {
    at.inside(|| work(&mut Arrivals { socket: open(at, interface) }))
}

/// Runs `work` with captures of the frames that arrive at several interfaces of a namespace.
///
/// # Panics
/// As [`watch`].
#[track_caller]
pub fn watch_each<const N: usize, T: Send>(
    at: &Namespace,
    interfaces: [&str; N],
    work: impl FnOnce([Arrivals; N]) -> T + Send,
) -> T {
    at.inside(|| work(interfaces.map(|interface| Arrivals { socket: open(at, interface) })))
}

/// The frames that arrive at an interface.
pub struct Arrivals {
    socket: RawSocket,
}

impl Arrivals {
    /// Returns the next `count` frames that `wanted` accepts, in the order of their arrival; fewer if no more come within `limit`.
    pub fn take(&mut self, count: usize, limit: Duration, wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let (start, mut frames) = (Instant::now(), Vec::new());
        while frames.len() < count && start.elapsed() < limit {
            let frame = self.socket.receive(Timestamp::now()).map(|(frame, _)| frame.consume(<[u8]>::to_vec));
            match frame {
                Some(frame) if wanted(&frame) => frames.push(frame),
                Some(_) => {}
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        }
        frames
    }
}

/// Must be called inside the namespace.
#[track_caller]
fn open(namespace: &Namespace, interface: &str) -> RawSocket {
    RawSocket::new(interface, Medium::Ethernet)
        .unwrap_or_else(|error| panic!("frames cannot be had at {interface} of {}: {error}", namespace.name()))
}

fn send_one(socket: &mut RawSocket, frame: &[u8]) {
    let token = socket.transmit(Timestamp::now()).expect("a raw socket always has a token");
    token.consume(frame.len(), |buffer| buffer.copy_from_slice(frame));
}
