//! Echo requests with shorter pauses between them than `ping` supports.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrV4, SocketType, connect, ipproto, recv, send, socket,
};

use crate::machine::load::CoreWaits;
use crate::network::namespace::Namespace;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The length of the header that the kernel puts before a message.
const IPV4_HEADER: usize = 20;
const IDENTIFIER: u16 = 0x7e57;

/// A client that sends echo requests to one address.
#[derive(Debug)]
pub struct Asker {
    socket: OwnedFd,
    sequence: u16,
}

impl Asker {
    /// Makes a client in this namespace for this address.
    ///
    /// # Panics
    /// If no socket can be opened.
    #[track_caller]
    #[must_use]
    pub fn new(namespace: &Namespace, to: &str) -> Self {
        let to: Ipv4Addr = to.parse().expect("an address");
        let socket = namespace.inside(|| {
            let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).expect("root may have it");
            set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).expect("a socket has a timeout");
            connect(&socket, &SocketAddrV4::new(to, 0)).expect("the address is in the client's network");
            socket
        });
        Self { socket, sequence: 0 }
    }

    /// Sends an echo request; returns how long its answer took, if one came within a minute.
    ///
    /// # Panics
    /// If the request cannot be sent.
    #[track_caller]
    pub fn ask(&mut self) -> Option<Duration> {
        let request = request(self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        let start = Instant::now();
        send(&self.socket, &request, SendFlags::empty()).expect("the interface takes a request");
        let mut answer = [0; 256];
        loop {
            let (len, _) = recv(&self.socket, &mut answer, RecvFlags::empty()).ok()?;
            let reply = &answer[IPV4_HEADER..len];
            if reply[0] == 0 && reply[4..8] == request[4..8] {
                return Some(start.elapsed());
            }
        }
    }
}

/// Waits for so long. For a pause of microseconds the thread stays awake, as a sleeping one would be woken too late.
pub fn rest(pause: Duration) {
    let start = Instant::now();
    if pause > Duration::from_millis(1) {
        std::thread::sleep(pause);
    }
    while start.elapsed() < pause {
        std::thread::yield_now();
    }
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// How long the answer took.
    pub took: Duration,
    /// For how much of that threads waited for a core.
    waited: Duration,
}

impl Echo {
    /// Returns how long the answer took while all threads that wanted a core had one.
    #[must_use]
    pub fn took_without_waits(&self) -> Duration {
        self.took.saturating_sub(self.waited)
    }
}

/// Sends an echo request after each of the pauses, each after the last answer; returns how long the answers took. `waits` tells how long
/// threads have waited for a core meanwhile.
///
/// # Panics
/// If a request is not answered, or no socket can be opened.
#[track_caller]
#[must_use]
pub fn echoes(namespace: &Namespace, to: &str, waits: &CoreWaits, pauses: impl Iterator<Item = Duration>) -> Vec<Echo> {
    let mut asker = Asker::new(namespace, to);
    let echo = |(number, pause): (usize, Duration)| {
        rest(pause);
        let before = waits.total();
        let took =
            asker.ask().unwrap_or_else(|| panic!("request {number}, after a pause of {pause:?}, was not answered"));
        Echo { took, waited: waits.total().saturating_sub(before) }
    };
    pauses.enumerate().map(echo).collect()
}

/// Returns an echo request. It has no payload, as the sequence number identifies it.
fn request(sequence: u16) -> [u8; 8] {
    let sum = u32::from(8_u16 << 8) + u32::from(IDENTIFIER) + u32::from(sequence);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    let [[a, b], [c, d], [e, f]] = [checksum, IDENTIFIER, sequence].map(u16::to_be_bytes);
    [8, 0, a, b, c, d, e, f]
}
