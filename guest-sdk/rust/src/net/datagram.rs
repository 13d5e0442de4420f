//! UDP datagrams to the function's sockets: [`Datagram`] is one that came, and [`UdpPeer`] sends some back.
//!
//! Headers of answers are written anew, so that no option, extension header or traffic class of the peer's comes back. The node computes
//! their checksums.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;

use smoltcp::wire::UdpPacket;

use super::MTU_BYTES;
use super::link::{Flow, Link, ip_is_right};
use super::outbound::FlowId;
use crate::headers::Headers;
use crate::packets::udp;
use crate::{Checksum, Packet, Slots, Way};

/// A UDP datagram to one of the function's [ports](super::Settings::udp_ports), or that answers one of its flows, whole and with a right
/// checksum.
pub struct Datagram<'a> {
    packet: Packet<'a>,
    peer: UdpPeer,
    own: Option<FlowId>,
    payload: Range<usize>,
}

/// A peer that has sent a datagram: where datagrams to it go. It can be kept.
#[derive(Clone, Copy, Debug)]
pub struct UdpPeer {
    flow: Flow,
    link: Link,
}

/// None of the function's [own](crate::Function::OWN_SLOTS) slots is free: each comes back once what is in it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSlot;

impl fmt::Display for NoSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all slots for packets of the function's own are in use: send later")
    }
}

impl std::error::Error for NoSlot {}

impl<'a> Datagram<'a> {
    /// Returns a packet as a datagram. `None`, if it is damaged, or cannot be answered.
    pub(super) fn of(packet: Packet<'a>, headers: &Headers, own: Option<FlowId>) -> Option<Self> {
        let (flow, payload) = read(&packet, headers)?;
        let link = Link::answering(&packet.data()[..headers.at.network], packet.way())?;
        Some(Self { peer: UdpPeer { flow, link }, own, payload, packet })
    }

    /// Returns the payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.packet.data()[self.payload.clone()]
    }

    /// Returns its sender, for datagrams that are sent later.
    #[must_use]
    pub fn peer(&self) -> UdpPeer {
        self.peer
    }

    /// Returns the flow of the function's own that it answers. `None` if it is for one of the function's [ports](super::Settings::udp_ports).
    #[must_use]
    pub fn flow(&self) -> Option<FlowId> {
        self.own
    }

    /// Returns the way by which it came, and what else is known of the packet.
    #[must_use]
    pub fn packet(&self) -> &Packet<'a> {
        &self.packet
    }

    /// Sends a datagram back, in the slot in which this one lies: an answer in one datagram always finds room. `write` gets as many bytes as
    /// [`UdpPeer::payload_bytes_max`], and returns how many of them it has written; `None` if nothing is to be sent. Returns whether a datagram
    /// is sent.
    pub fn answer_with(self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        self.peer.fill_and_send(self.packet, write)
    }

    /// Sends a datagram with this payload back. Returns false, and sends none, if it is longer than [`UdpPeer::payload_bytes_max`].
    pub fn answer(self, payload: &[u8]) -> bool {
        self.answer_with(|bytes| {
            bytes.get_mut(..payload.len())?.copy_from_slice(payload);
            Some(payload.len())
        })
    }
}

impl fmt::Debug for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("peer", &self.peer.address())
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl UdpPeer {
    /// Returns the far end of a flow of the function's own.
    pub(super) fn of_flow(flow: Flow, link: Link) -> Self {
        Self { flow, link }
    }

    /// Returns the peer with these addresses, to which frames go with this Ethernet header and by this way. `None` if there is no such peer.
    pub(crate) fn of_parts(address: SocketAddr, local: SocketAddr, header: &[u8], way: Way) -> Option<Self> {
        Some(Self { flow: Flow::between(address, local)?, link: Link::with_header(header, way)? })
    }

    /// Returns the Ethernet header of frames to the peer, and the way by which they go.
    pub(crate) fn link(&self) -> (&[u8], Way) {
        (self.link.bytes(), self.link.way())
    }

    /// Returns the peer's address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.flow.peer()
    }

    /// Returns the local address and port, to which the peer has sent.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.flow.local()
    }

    /// Returns how many bytes of payload fit into an IP packet of 1500 bytes: 1472 over IPv4, 1452 over IPv6.
    #[must_use]
    pub fn payload_bytes_max(&self) -> usize {
        MTU_BYTES - udp::headers_bytes(self.address())
    }

    /// Sends a datagram to the peer, in one of the function's own slots. `write` is called as that of [`Datagram::answer_with`], if there is a
    /// slot. Returns whether a datagram is sent.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn send_with(&self, slots: Slots<'_>, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Result<bool, NoSlot> {
        let packet = slots.make(&[], self.link.way()).ok_or(NoSlot)?;
        Ok(self.fill_and_send(packet, write))
    }

    /// Writes a datagram into a packet, whatever was in it, and sends it. Returns whether it does.
    fn fill_and_send(&self, mut packet: Packet<'_>, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let (link, headers) = (self.link.bytes(), udp::headers_bytes(self.address()));
        let room = (packet.len() + packet.tailroom()).min(link.len() + MTU_BYTES);
        if packet.set_len(room).is_err() || room < link.len() + headers {
            // A stage before this one has moved the frame to the end of its slot.
            return false;
        }
        let (start, ip) = packet.data_mut().split_at_mut(link.len());
        start.copy_from_slice(link);
        let payload_max = ip.len() - headers;
        let Some(bytes) = write(&mut ip[headers..]).map(|bytes| bytes.min(payload_max)) else { return false };
        let written = udp::write_headers(&mut ip[..headers + bytes], self.local(), self.address());
        debug_assert!(written.is_some(), "both ends are of one version, and the packet is no longer than the MTU");
        packet.set_len(link.len() + headers + bytes).expect("it becomes shorter");
        packet.complete_checksums();
        packet.reply();
        true
    }
}

/// Returns the payload of a packet with these headers. `None` if the datagram is damaged.
pub(super) fn payload_of<'p>(packet: &'p Packet<'_>, headers: &Headers) -> Option<&'p [u8]> {
    read(packet, headers).map(|(_, payload)| &packet.data()[payload])
}

/// Returns a datagram's flow, and where its payload lies. `None` if it is damaged.
fn read(packet: &Packet<'_>, headers: &Headers) -> Option<(Flow, Range<usize>)> {
    let frame = packet.data();
    let flow = Flow::of(headers)?;
    let ip = &frame[headers.at.network..headers.at.end];
    let udp = UdpPacket::new_checked(&frame[headers.at.transport..headers.at.end]).ok()?;
    let payload = headers.at.payload..headers.at.transport + usize::from(udp.len());
    let is_right = flow.is_between_hosts()
        && ip_is_right(ip, packet.ip_checksum())
        && udp_is_right(&udp, &flow, packet.l4_checksum());
    is_right.then_some((flow, payload))
}

/// Over IPv6 there must be a checksum (RFC 8200, section 8.1); smoltcp accepts a datagram without one.
fn udp_is_right(udp: &UdpPacket<&[u8]>, flow: &Flow, found: Checksum) -> bool {
    let (source, destination): (IpAddr, IpAddr) = (flow.peer().ip(), flow.local().ip());
    match found {
        _ if udp.checksum() == 0 => source.is_ipv4(),
        Checksum::Good => true,
        Checksum::Bad => false,
        Checksum::Unknown => udp.verify_checksum(&source.into(), &destination.into()),
    }
}
