//! What an SDK for another language is built on: numbers for this SDK's handles, and packets whose bytes the other language reads and changes.
//! Used by `guest-sdk/c/net`; not part of the interface.

use core::net::SocketAddr;

use pinion_abi::Descriptor;

use crate::net::{FlowId, LookupId, StreamId, UdpPeer};
use crate::{Held, NoRoom, Packet, SLOT_SIZE, Slots, Way};

/// Returns the number of a connection, which is never 0.
#[must_use]
pub fn number_of_stream(stream: StreamId) -> u64 {
    stream.0
}

/// Returns the connection of a number, which may be any.
#[must_use]
pub fn stream_of(number: u64) -> StreamId {
    StreamId(number)
}

/// Returns the number of a UDP flow, which is never 0.
#[must_use]
pub fn number_of_flow(flow: FlowId) -> u64 {
    flow.0
}

/// Returns the UDP flow of a number, which may be any.
#[must_use]
pub fn flow_of(number: u64) -> FlowId {
    FlowId(number)
}

/// Returns the number of a lookup, which is never 0.
#[must_use]
pub fn number_of_lookup(lookup: LookupId) -> u64 {
    lookup.0
}

/// Returns a way in 32 bits: the port, and in the lower half the node's number of the way.
#[must_use]
pub fn bits_of_way(way: Way) -> u32 {
    u32::from(way.port) << 16 | u32::from(way.number)
}

/// Returns the way of these bits. The node ends an instance that sends by a way which it was not given.
#[must_use]
pub fn way_of(bits: u32) -> Way {
    Way { port: (bits >> 16) as u16, number: bits as u16 }
}

/// Returns the Ethernet header of frames to a peer, 14 to 22 bytes, and the way by which they go.
#[must_use]
pub fn link_of(peer: &UdpPeer) -> (&[u8], Way) {
    peer.link()
}

/// Returns the peer with these addresses and this link. `None` if the addresses are of two versions of IP, or the header is none.
#[must_use]
pub fn peer_of(address: SocketAddr, local: SocketAddr, header: &[u8], way: Way) -> Option<UdpPeer> {
    UdpPeer::of_parts(address, local, header, way)
}

/// Returns all bytes of a packet's slot.
pub fn slot_of<'p>(packet: &'p mut Packet<'_>) -> &'p mut [u8; SLOT_SIZE] {
    packet.slot_bytes()
}

/// Returns where a held packet lies, and what is known of it.
#[must_use]
pub fn descriptor_of(held: &Held) -> Descriptor {
    held.descriptor()
}

/// Takes a held packet up, with other ends and flags than it was held with.
///
/// # Errors
///
/// The slot does not reach that far. The packet is dropped.
pub fn take_up<'a>(slots: Slots<'a>, held: Held, offset: usize, len: usize, flags: u16) -> Result<Packet<'a>, NoRoom> {
    let mut packet = slots.take(held);
    packet.set_place(offset, len, flags).map(|()| packet)
}
