//! What a function opens itself: where it leads ([`Target`]), by which way ([`Via`]), and why it may fail ([`ConnectError`]).

use core::fmt;
use core::net::SocketAddr;
use std::io::{self, ErrorKind};

use super::UdpPeer;
use crate::headers::{Headers, vlans};
use crate::outbound::{End, Refusal};
use crate::{Packet, Way};

/// The way by which a flow leaves the node: out of the port by which a packet came, in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Via {
    /// The [way](Packet::way) of a packet that came by that port. A message's way leads to no network.
    pub way: Way,
    /// The VLAN; 0 for the untagged network.
    pub vlan: u16,
}

impl Via {
    /// Returns the way by which a packet came, and the VLAN of its outer tag.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self::answering(packet.data(), packet.way())
    }

    /// Returns the same for a packet with these headers.
    #[inline]
    pub(super) fn of_known(packet: &Packet<'_>, headers: &Headers) -> Self {
        if headers.vlan_tags == 0 { Self { way: packet.way(), vlan: 0 } } else { Self::of(packet) }
    }

    /// Returns the way back of a frame with this header.
    pub(super) fn answering(header: &[u8], way: Way) -> Self {
        Self { way, vlan: vlans(header).first().map_or(0, |tag| tag.id) }
    }
}

/// Where a connection or a flow of the function's own leads.
///
/// An address alone is a target by the default way: that of the packet that the call is about, or of the connection. If there is neither, it
/// is that of the first IP packet that the function got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The address, which the chain must be granted (`outbound` in the manifest).
    pub to: SocketAddr,
    /// By which way; `None` for the default.
    pub via: Option<Via>,
}

impl From<SocketAddr> for Target {
    fn from(to: SocketAddr) -> Self {
        Self { to, via: None }
    }
}

impl From<(SocketAddr, Via)> for Target {
    fn from((to, via): (SocketAddr, Via)) -> Self {
        Self { to, via: Some(via) }
    }
}

/// The number of a connection, which no other connection of the instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

/// The number of a UDP flow that the function has opened, which no other flow of the instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(crate) u64);

/// What happens to a [UDP flow](super::Sockets::open_udp). Datagrams that answer it come to
/// [`Service::datagram`](super::Service::datagram).
#[derive(Clone, Copy, Debug)]
pub enum FlowEvent {
    /// It is open, and datagrams may be sent to this peer.
    Opened(UdpPeer),
    /// A datagram of the flow has not arrived, as an ICMP error says: [`ConnectError::Unreachable`] or [`ConnectError::RefusedByPeer`]. The
    /// flow stays open.
    Lost(ConnectError),
    /// It was not opened, or has ended.
    Ended(ConnectError),
}

/// Why a connection or a UDP flow was not opened, or a flow has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The node has refused the flow.
    ByNode(Refusal),
    /// The node has ended the flow.
    FlowEnded(End),
    /// The peer has no socket at the port: it has answered with a reset, or an ICMP error.
    RefusedByPeer,
    /// A router says that the peer cannot be reached.
    Unreachable,
    /// The node or the peer has not answered within 10 s.
    TimedOut,
    /// As many connections as [`Settings::connections_max`](super::Settings::connections_max), or as many UDP flows as
    /// [`Settings::udp_flows_max`](super::Settings::udp_flows_max), are in use.
    NoRoom,
    /// No packet has come yet by whose way the flow could leave.
    NoWay,
    /// Answers of the chain's next stage would not come back: the chain has no way back (`reverse` in the manifest), or the packets of the
    /// connection's peer do not pass it forwards.
    NoWayBack,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByNode(refusal) => write!(f, "the node has refused the flow: {refusal:?}"),
            Self::FlowEnded(end) => write!(f, "the node has ended the flow: {end:?}"),
            Self::RefusedByPeer => f.write_str("the peer has no socket at this port"),
            Self::Unreachable => f.write_str("the peer cannot be reached"),
            Self::TimedOut => f.write_str("there was no answer in time"),
            Self::NoRoom => {
                f.write_str("all connections or flows are in use: raise `connections_max` or `udp_flows_max`")
            }
            Self::NoWay => f.write_str("no packet has come yet by whose way the flow could leave"),
            Self::NoWayBack => f.write_str(
                "the next stage could not answer, as the chain has no `reverse` or the client's packets pass it backwards: add \
                 `reverse = { from = [] }` to the chain",
            ),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        let kind = match error {
            ConnectError::ByNode(Refusal::NotGranted) => ErrorKind::PermissionDenied,
            ConnectError::ByNode(Refusal::NoRoute) | ConnectError::Unreachable => ErrorKind::HostUnreachable,
            ConnectError::ByNode(Refusal::Invalid) => ErrorKind::InvalidInput,
            ConnectError::ByNode(_) | ConnectError::NoRoom => ErrorKind::QuotaExceeded,
            ConnectError::FlowEnded(_) => ErrorKind::ConnectionAborted,
            ConnectError::RefusedByPeer => ErrorKind::ConnectionRefused,
            ConnectError::TimedOut => ErrorKind::TimedOut,
            ConnectError::NoWay | ConnectError::NoWayBack => ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}
