//! Segments outside of a connection's socket: resets and bare acknowledgements ([`Reply`]), and repeated SYN,ACKs.

use core::net::SocketAddr;

use smoltcp::wire::{IpProtocol, IpRepr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber};

use super::cookie::Offer;
use super::device::checksums;
use super::link::{Flow, Link};
use super::sequence::Arrived;
use crate::Slots;

const HOP_LIMIT: u8 = 64;

/// A segment without a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    is_reset: bool,
    seq: u32,
    ack: Option<u32>,
    window: u16,
}

impl Reply {
    /// Returns the answer to a segment of no connection (RFC 9293, section 3.10.7.1), unless the segment is a reset.
    pub(super) fn refusing(segment: &Arrived) -> Option<Self> {
        let (seq, ack) = match segment.flags {
            flags if flags.rst() => return None,
            flags if flags.ack() => (segment.ack, None),
            _ => (0, Some(segment.seq.wrapping_add(segment.seq_len()))),
        };
        Some(Self { is_reset: true, seq, ack, window: 0 })
    }

    /// Returns an acknowledgement with a connection's current numbers.
    pub(super) fn acknowledging(seq: u32, ack: u32, window: u16) -> Self {
        Self { is_reset: false, seq, ack: Some(ack), window }
    }

    /// Returns a reset with this number.
    pub(super) fn resetting(seq: u32) -> Self {
        Self { is_reset: true, seq, ack: None, window: 0 }
    }

    /// Sends the reply to a flow's peer, if there is a slot.
    pub(super) fn send(&self, flow: &Flow, link: &Link, slots: Slots<'_>) {
        let (ip, tcp) = self.between(flow.local(), flow.peer());
        let start = link.bytes().len();
        let Some(mut packet) = slots.make(link.bytes(), link.way()) else { return };
        packet.set_len(start + ip.buffer_len()).expect("a slot is longer than a segment without a payload");
        emit(&ip, &tcp, &mut packet.data_mut()[start..]);
        link.send(packet);
    }

    /// Writes an IP packet with the SYN of a flow's peer that had this number and this offer.
    pub(super) fn write_syn(flow: &Flow, seq: u32, window: u16, offer: Offer, packet: &mut Vec<u8>) {
        let syn = Self { is_reset: false, seq, ack: None, window };
        let (_, bare) = syn.between(flow.peer(), flow.local());
        let tcp = TcpRepr {
            control: TcpControl::Syn,
            window_scale: offer.scale,
            max_seg_size: Some(offer.segment_bytes),
            sack_permitted: offer.selective,
            ..bare
        };
        let (source, destination) = (flow.peer().ip().into(), flow.local().ip().into());
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT);
        packet.clear();
        packet.resize(ip.buffer_len(), 0);
        emit(&ip, &tcp, packet);
    }

    /// Writes an IP packet with the reply, as if the flow's peer had sent it.
    pub(super) fn write_as_from_peer(&self, flow: &Flow, packet: &mut Vec<u8>) {
        let (ip, tcp) = self.between(flow.peer(), flow.local());
        packet.clear();
        packet.resize(ip.buffer_len(), 0);
        emit(&ip, &tcp, packet);
    }

    fn between(&self, source: SocketAddr, destination: SocketAddr) -> (IpRepr, TcpRepr<'static>) {
        let tcp = TcpRepr {
            src_port: source.port(),
            dst_port: destination.port(),
            control: if self.is_reset { TcpControl::Rst } else { TcpControl::None },
            seq_number: TcpSeqNumber(self.seq as i32),
            ack_number: self.ack.map(|ack| TcpSeqNumber(ack as i32)),
            window_len: self.window,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let (source, destination) = (source.ip().into(), destination.ip().into());
        (IpRepr::new(source, destination, IpProtocol::Tcp, tcp.buffer_len(), HOP_LIMIT), tcp)
    }
}

fn emit(ip: &IpRepr, tcp: &TcpRepr<'_>, packet: &mut [u8]) {
    let checksums = checksums();
    ip.emit(&mut *packet, &checksums);
    let mut segment = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
    tcp.emit(&mut segment, &ip.src_addr(), &ip.dst_addr(), &checksums);
}

/// Sends an IP packet again, if there is a slot.
pub(super) fn repeat(ip: &[u8], link: &Link, slots: Slots<'_>) {
    let Some(mut packet) = slots.make(link.bytes(), link.way()) else { return };
    let start = link.bytes().len();
    packet.set_len(start + ip.len()).expect("a slot is longer than a SYN,ACK");
    packet.data_mut()[start..].copy_from_slice(ip);
    link.send(packet);
}
