//! The clients' addresses, and TCP connections from these.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use crate::systems::lab::{CLIENT, Lab};

/// The network of all clients.
const NETWORK: &str = "10.100.0.0/16";
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 100, 0, 1);
/// After so many addresses the first one is used again.
const COUNT: u32 = 65_000;
/// The longest wait for a server that starts.
const START_MAX: Duration = Duration::from_secs(30);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Hands out the clients' addresses, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    handed_out: u32,
}

impl Addresses {
    /// Makes all of them addresses of the lab's client, which the lab's server reaches by the client's own.
    pub(crate) fn of(lab: &Lab) -> Self {
        lab.client.ip(&format!("route add local {NETWORK} dev lo"));
        Self::default()
    }

    /// Returns the next client's address.
    pub(crate) fn next(&mut self) -> Ipv4Addr {
        let address = Ipv4Addr::from_bits(FIRST.to_bits() + self.handed_out % COUNT);
        self.handed_out += 1;
        address
    }
}

/// Shows a kernel that serves in a lab the way to the clients. A node replies to where a frame came from.
pub(crate) fn lead_to_clients(lab: &Lab) {
    lab.server.ip(&format!("route add {NETWORK} via {CLIENT}"));
}

/// Begins a connection from a client's address; the stream does not block.
///
/// # Errors
/// The kernel's.
pub(crate) fn begin(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a connection from a client's address, as soon as the server takes it; the stream does not block.
///
/// # Errors
/// The server takes none.
pub(crate) fn open(from: Ipv4Addr, to: SocketAddrV4) -> anyhow::Result<TcpStream> {
    let deadline = Instant::now() + START_MAX;
    loop {
        let opened = begin(from, to).and_then(|stream| {
            await_readiness(&stream, PollFlags::OUT, START_MAX)?;
            match sockopt::socket_error(&stream)? {
                Ok(()) => Ok(stream),
                Err(error) => Err(error.into()),
            }
        });
        match opened {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
            Err(error) => return Err(error).with_context(|| format!("a connection from {from} to {to}")),
        }
    }
}

/// Sleeps until a stream is ready for this.
///
/// # Errors
/// It is not in this time.
pub(crate) fn await_readiness(stream: &TcpStream, what: PollFlags, time: Duration) -> io::Result<()> {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(&mut [PollFd::new(stream, what)], Some(&time))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_an_address_of_its_own_within_the_network() {
        let mut addresses = Addresses::default();
        let all: std::collections::HashSet<Ipv4Addr> = (0..COUNT).map(|_| addresses.next()).collect();
        assert_eq!(all.len(), COUNT as usize);
        assert!(all.iter().all(|address| address.octets()[..2] == [10, 100]));
        assert_eq!(addresses.next(), FIRST);
    }
}
