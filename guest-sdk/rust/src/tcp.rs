//! TCP connections that end in the function, over IPv4 and IPv6; with the feature `tcp`. The protocol is smoltcp's.
//!
//! There are two forms. A [`Service`] is told what happens to each of many connections and never waits: [`Server`] makes a
//! [`Function`](crate::Function) of it. A [`Program`] reads and writes as if it were alone, and waits in between: one connection after the other, fit
//! for an instance that serves one client.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use pinion_sdk::InitError;
//! use pinion_sdk::tcp::{Server, Service, Settings, Stream, testing::Network};
//!
//! /// Sends back what it gets.
//! struct Echo;
//!
//! impl Service for Echo {
//!     /// What could not be sent back yet.
//!     type Connection = Vec<u8>;
//!
//!     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
//!         Ok((Self, Settings { port: 7, ..Settings::default() }))
//!     }
//!
//!     fn accept(&mut self, _stream: &mut Stream<'_>) -> Vec<u8> {
//!         Vec::new()
//!     }
//!
//!     fn ready(&mut self, left: &mut Vec<u8>, stream: &mut Stream<'_>) {
//!         loop {
//!             if let Ok(count) = stream.write(left) {
//!                 left.drain(..count);
//!             }
//!             let mut bytes = [0; 1024];
//!             match stream.read(&mut bytes) {
//!                 _ if !left.is_empty() => return,
//!                 Ok(0) => return stream.close(),
//!                 Ok(count) => left.extend_from_slice(&bytes[..count]),
//!                 Err(_) => return,
//!             }
//!         }
//!     }
//! }
//!
//! pinion_sdk::export!(Server<Echo>);
//!
//! // The same code runs natively in tests, with clients of another stack:
//! let mut network = Network::<Server<Echo>>::new(b"").unwrap();
//! let client = network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
//! network.send(client, b"hello");
//! network.settle();
//! assert_eq!(network.received(client), b"hello");
//! ```
//!
//! # What is where
//!
//! ```text
//!   frame --> link.rs    whose it is, are its checksums right, where answers go
//!               |
//!             stack.rs   the connections: places for them, their timers     device.rs   slots, as smoltcp sees them
//!               |
//!             stream.rs  one connection, to read from and write to
//!               |
//!     server.rs | program.rs      who is told, or who waits                 testing.rs  clients for native tests
//! ```
//!
//! # What is promised
//!
//! * Whatever address a SYN was sent to, its answer comes from: the chain's rules say which those are. SYNs to other ports, and what belongs to
//!   no connection, are answered with RST.
//! * No hardware address is asked for: answers go to the station, and in the VLAN, that the peer's last segment came from, by the
//!   port that the last packet of all came in by.
//! * Segments with a wrong checksum are dropped; where the device has looked at it, it is believed. Fragments, and IPv6 packets with extension headers, are
//!   dropped, and so is what is no TCP.
//! * There are [`Settings::connections_max`] places. If all are taken, a newcomer gets that of a connection that is over but for its last
//!   wait, or of the handshake that has taken longest; if there is none, it is not answered, and tries again. Open connections give way to nobody.
//! * A handshake has 10 s, and who says nothing for [`Settings::idle_timeout_ns`] is broken off.
//! * Sequence numbers begin anywhere, for each connection anew. Congestion control is CUBIC, from two segments on; segments have 1500 bytes with their IP
//!   header at most, and what the path does not carry is not found out.

mod device;
mod link;
mod program;
mod server;
mod stack;
mod stream;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub use program::run_program;
pub use program::{Hosted, Program, TcpListener, TcpStream};
pub use server::{Server, Service};
pub use stream::Stream;

use crate::InitError;

/// Bytes of an IP packet, header included.
const MTU_BYTES: usize = 1500;

/// Slots for segments to be sent, of a [`Server`]'s or a [`Program`]'s.
const OWN_SLOTS: u16 = 128;

/// Bounds of [`Settings::receive_bytes`] and [`Settings::send_bytes`].
const BUFFER_BYTES_MIN: usize = 2 * MTU_BYTES;
/// See [`BUFFER_BYTES_MIN`].
const BUFFER_BYTES_MAX: usize = 1 << 24;
/// The most of [`Settings::connections_max`].
const CONNECTIONS_MAX: u16 = 4096;

/// What is listened to, and how much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The port that is listened at, not 0.
    pub port: u16,
    /// Connections at once, 1 to 4096, those included that are being opened or closed.
    pub connections_max: u16,
    /// Bytes that a peer may send before they are read: its window, 3000 to 16 MiB.
    pub receive_bytes: usize,
    /// Bytes that may be written before the peer has acknowledged them: with a round trip of `t`, at most so many are sent in each `t`; 3000 to 16 MiB.
    pub send_bytes: usize,
    /// How long a peer may say nothing, acknowledgements included.
    pub idle_timeout_ns: u64,
}

impl Default for Settings {
    /// Port 80, 8 connections with 16 KiB to receive and 64 KiB to send, 60 s of silence. Memory is taken when the function is prepared, `connections_max * (receive_bytes +
    /// send_bytes)` of it, and pages that nobody has come to take no room.
    fn default() -> Self {
        Self {
            port: 80,
            connections_max: 8,
            receive_bytes: 16 << 10,
            send_bytes: 64 << 10,
            idle_timeout_ns: 60_000_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), InitError> {
        let bound = |what: &str, value: usize, least: usize, most: usize| match value {
            value if (least..=most).contains(&value) => Ok(()),
            _ => Err(InitError::new(format!("{what} is {value}, and must be {least} to {most}"))),
        };
        bound("the port", self.port.into(), 1, u16::MAX.into())?;
        bound("the number of connections", self.connections_max.into(), 1, CONNECTIONS_MAX.into())?;
        bound("the room for bytes received", self.receive_bytes, BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)?;
        bound("the room for bytes to send", self.send_bytes, BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
    }
}
