//! Sockets of a function, over IPv4 and IPv6; with the feature `net`: TCP connections that end in it, whose protocol is smoltcp's, and UDP
//! datagrams. Peers connect to its ports, and it connects to the addresses that its chain is granted (`outbound` in the manifest), and to the
//! chain's next stage.
//!
//! There are two forms. A [`Service`] is called on events of many connections, for datagrams and for what else comes, and never waits:
//! [`Server`] makes a [`Function`](crate::Function) of it, and [`Sockets`] opens connections. A [`Program`] reads and writes in blocking style,
//! by [`Net`]; it suits an instance that serves one client.
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use pinion_sdk::InitError;
//! use pinion_sdk::net::{Server, Service, Settings, Stream, testing::Network};
//!
//! /// Echoes all input.
//! struct Echo;
//!
//! impl Service for Echo {
//!     /// Bytes that could not be sent back yet.
//!     type Connection = Vec<u8>;
//!
//!     fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
//!         Ok((Self, Settings { tcp_ports: vec![7], ..Settings::default() }))
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
//! # Modules
//!
//! ```text
//!   frame --> protocols.rs    what is it for? --------------------------> sockets.rs    what a service sends, opens and refuses
//!               |       \---> datagram.rs    UDP, with checksums and answers
//!               |       \---> udp_flows.rs   UDP flows of the function's own ---- dns.rs, dns/   lookups of names
//!             link.rs    the segment's flow, its checksums, the link header of answers
//!               |
//!             stack.rs ----- sequence.rs   judges a segment by RFC 9293 before smoltcp gets it
//!               |     \----- reply.rs      resets and acknowledgements outside of connections
//!               |     \----- stack/connect.rs, stack/next_stage.rs   connections of the function's own
//!             own_flow.rs    what the node is asked for: flows, and their ends     outbound.rs   targets, events, errors
//!             cookie.rs  initial sequence numbers that prove a handshake
//!             path.rs    ICMP errors about what was sent, and the MTU of a path
//!             place.rs   one connection's socket, numbers and timers        device.rs   slots as a smoltcp device
//!               |
//!             stream.rs  one connection, for reads and writes              close.rs    why it has ended
//!               |
//!     server.rs | program.rs, program/      by callbacks | in blocking style      testing.rs  clients and servers for native tests
//! ```
//!
//! # Guarantees
//!
//! * A SYN is answered from the address that it was sent to; the chain's rules decide which addresses reach the function. Segments of no
//!   connection are answered with RST (RFC 9293, sections 3.10.7.1 and 3.10.7.2). So are SYNs to other ports, unless the service wants these
//!   packets itself ([`Service::packet`]).
//! * A reset counts only if its sequence number is exactly the next one. A SYN on a connection, a reset elsewhere in the window, and an
//!   acknowledgement of data never sent are answered with an acknowledgement of the connection's state (RFC 5961), ten times in 5 s for
//!   each connection. A peer that was restarted answers that with a reset, and its next SYN opens a connection. Keepalive and window probes
//!   are acknowledged.
//! * No hardware address is resolved: answers go to the station and VLAN of the peer's last segment, by the way by which that came. So a
//!   peer that moves to another port of the node is followed, and no other peer's segments matter.
//! * Segments and datagrams with a wrong checksum are dropped, and so are datagrams without one over IPv6; if the device has checked it, its
//!   result is used. Segments with extension headers of IPv6 are dropped. Fragments are no business of a socket's.
//! * A connection that the function [opens](Sockets::connect) leaves from the address and port that the node has chosen. Its SYN is repeated
//!   after 1, 3 and 7 s; it fails after 10 s, or when the peer answers with a reset, or a router or host with an ICMP error that quotes
//!   the SYN. What a peer sends to it counts as for other connections. Its flow is closed with it, and if the node ends the flow, the
//!   connection is aborted. A SYN to it is dropped: there is no simultaneous open.
//! * A connection to the [next stage](Stream::connect_next_stage) has the same limits of time. What belongs to it is told apart by the node's
//!   record of each packet, before addresses are looked at: a backward reply of another stage is of such a connection or of none.
//! * A name is looked up by flows of its own, each with a random identification and a port of the node's choice. Only an answer of the
//!   resolver with this identification and question counts. There are four tries, of 1, 1, 2 and 4 s, with each resolver in turn. Aliases
//!   are followed, eight at most, as far as the answer has them. TCP is not tried.
//! * There are at most [`Settings::connections_max`] connections, those that the function opens included. If there are that many, a new one replaces one that is closed but for its
//!   last wait, or the oldest handshake. If there is neither, the SYN is not answered, and the client tries again. An open connection is
//!   never replaced, nor one that the function is opening.
//! * A handshake may take 10 s. A connection is aborted if the peer sends nothing for [`Settings::idle_timeout_ns`], or accepts none of the
//!   data sent to it for [`Settings::send_timeout_ns`], whatever it sends. Probes count as signs of life: a service that waits for requests
//!   must set its own limit ([`Stream::wake_at`], [`TcpStream::set_read_timeout`]).
//! * Initial sequence numbers cannot be guessed, and prove a handshake (SYN cookies): one that has lost its place to a flood of SYNs is
//!   finished all the same when its client acknowledges. Congestion control is CUBIC, starting at two segments. IP packets have at
//!   most 1500 bytes, and fewer once a router says that one was too big (RFC 1191, RFC 8201): it must quote a segment that was not
//!   acknowledged yet. If a packet is sent for the third time and no error has come, 1280 bytes are tried, and over IPv4 552 bytes next (RFC
//!   4821). 552 bytes over IPv4, and 1280 over IPv6, are always sent.

mod close;
mod cookie;
mod datagram;
mod device;
mod dns;
mod link;
mod outbound;
mod own_flow;
mod path;
mod place;
mod program;
mod protocols;
mod reply;
mod sequence;
mod server;
mod sockets;
mod stack;
mod stream;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
mod udp_flows;

pub use close::CloseReason;
pub use datagram::{Datagram, NoSlot, UdpPeer};
pub use dns::{IpVersion, LookupId, ResolveError};
pub use outbound::{ConnectError, FlowEvent, FlowId, StreamId, Target, Via};
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub use program::run_program;
pub use program::{Hosted, Net, Program, TcpStream, UdpFlow, UdpSocket};
pub use server::{Server, Service};
pub use sockets::Sockets;
pub use stream::Stream;

use core::net::SocketAddr;

use crate::InitError;

/// Bytes of an IP packet, header included.
const MTU_BYTES: usize = 1500;

/// Slots for the segments that a [`Server`] or a [`Program`] sends.
const OWN_SLOTS: u16 = 128;

/// Bounds of [`Settings::receive_bytes`] and [`Settings::send_bytes`].
const BUFFER_BYTES_MIN: usize = 2 * MTU_BYTES;
/// See [`BUFFER_BYTES_MIN`].
const BUFFER_BYTES_MAX: usize = 1 << 24;
/// Upper bound of [`Settings::connections_max`].
const CONNECTIONS_MAX: u16 = 4096;

/// Upper bound of [`Settings::udp_flows_max`].
const UDP_FLOWS_MAX: u16 = 4096;

/// Most resolvers.
const RESOLVERS_MAX: usize = 4;

/// Most ports of each protocol.
const PORTS_MAX: usize = 16;

/// Ports, limits and buffer sizes of a function with sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The TCP ports to listen on: at most 16, and none of them 0. [`Stream::local`] tells to which a peer has connected.
    pub tcp_ports: Vec<u16>,
    /// The UDP ports of which the function gets the datagrams: as many.
    pub udp_ports: Vec<u16>,
    /// Most connections at once, 1 to 4096, including those that the function opens, and those that are being opened or closed.
    pub connections_max: u16,
    /// Most UDP flows that the function [opens](Sockets::open_udp) at once, 0 to 4096.
    pub udp_flows_max: u16,
    /// The DNS resolvers by which names are looked up, at most 4; the chain must be granted UDP to them (`outbound` in the manifest).
    pub resolvers: Vec<SocketAddr>,
    /// Size of the receive buffer in bytes, 3000 to 16 MiB: the window that is offered to a peer.
    pub receive_bytes: usize,
    /// Size of the send buffer in bytes, 3000 to 16 MiB: data that the peer has not acknowledged. With a round-trip time of `t`, at most so
    /// many bytes are sent in each `t`.
    pub send_bytes: usize,
    /// How long a peer may be silent; acknowledgements and probes count as signs of life.
    pub idle_timeout_ns: u64,
    /// How long a peer may accept none of the data sent to it, or less than 512 bytes if there is more; an acknowledgement that its window
    /// is closed is not progress. `None` is as long as `idle_timeout_ns`.
    pub send_timeout_ns: Option<u64>,
}

impl Default for Settings {
    /// No ports, 8 connections with 16 KiB to receive and 64 KiB to send, 8 UDP flows, an idle timeout of 60 s. The buffers, `connections_max *
    /// (receive_bytes + send_bytes)` bytes, are allocated when the function is prepared; pages that were never used take no memory.
    fn default() -> Self {
        Self {
            tcp_ports: Vec::new(),
            udp_ports: Vec::new(),
            connections_max: 8,
            udp_flows_max: 8,
            resolvers: Vec::new(),
            receive_bytes: 16 << 10,
            send_bytes: 64 << 10,
            idle_timeout_ns: 60_000_000_000,
            send_timeout_ns: None,
        }
    }
}

impl Settings {
    fn send_limit_ns(&self) -> u64 {
        self.send_timeout_ns.unwrap_or(self.idle_timeout_ns)
    }

    fn check(&self) -> Result<(), InitError> {
        let bound = |what: &str, value: usize, least: usize, most: usize| match value {
            value if (least..=most).contains(&value) => Ok(()),
            _ => Err(InitError::new(format!("{what} is {value}, and must be {least} to {most}"))),
        };
        for (protocol, ports) in [("TCP", &self.tcp_ports), ("UDP", &self.udp_ports)] {
            bound(&format!("the number of {protocol} ports"), ports.len(), 0, PORTS_MAX)?;
            if ports.contains(&0) {
                return Err(InitError::new(format!("a {protocol} port is 0, and must be 1 to 65535")));
            }
        }
        bound("the number of connections", self.connections_max.into(), 1, CONNECTIONS_MAX.into())?;
        bound("the number of UDP flows", self.udp_flows_max.into(), 0, UDP_FLOWS_MAX.into())?;
        bound("the number of resolvers", self.resolvers.len(), 0, RESOLVERS_MAX)?;
        bound("the receive buffer in bytes", self.receive_bytes, BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)?;
        bound("the send buffer in bytes", self.send_bytes, BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
    }
}
