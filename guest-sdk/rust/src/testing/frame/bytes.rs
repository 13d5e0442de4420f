//! Writes a [`Frame`]'s bytes.

use core::net::IpAddr;

use super::{Frame, Message, Network, Part, Tcp, padded};
use crate::checksum;
use crate::headers::{Pair, UDP, Vlan, VlanKind};

const IPV4_HEADER_WORDS: usize = 5;
const IPV6_FRAGMENT: u8 = 44;
const UDP_HEADER: usize = 8;

impl Frame {
    /// Returns the frame's bytes, from its destination's hardware address on, without the Ethernet checksum.
    ///
    /// # Panics
    ///
    /// If the packet is longer than IP allows.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = [self.macs.destination.0, self.macs.source.0].concat();
        for tag in &self.tags {
            frame.extend(tag_bytes(tag));
        }
        let ethertype = if self.addresses.source.is_ipv4() { 0x0800_u16 } else { 0x86dd };
        frame.extend(self.wrong.ethertype.unwrap_or(ethertype).to_be_bytes());
        frame.extend(self.packet());
        frame.resize(frame.len().max(self.padded_to), 0);
        frame
    }

    /// Returns the IP packet's bytes: the frame without Ethernet header and padding, as an ICMP error quotes it.
    ///
    /// # Panics
    ///
    /// If the packet is longer than IP allows.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        let Pair { source, destination } = self.addresses;
        let is_first = self.network.fragment.is_none_or(|part| part.offset == 0);
        let message = if is_first { self.message() } else { self.payload.clone() };
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.ipv4([source.octets(), destination.octets()].concat(), &message)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.ipv6(&[source.octets(), destination.octets()].concat(), &message)
            }
            _ => unreachable!("both addresses are of one version"),
        }
    }

    fn ipv4(&self, addresses: Vec<u8>, message: &[u8]) -> Vec<u8> {
        let Network { options, hop_limit, fragment, id, .. } = &self.network;
        let words = IPV4_HEADER_WORDS + options.len() / 4;
        let header_len = self.wrong.ip_header_len.unwrap_or(words as u8);
        let len = self.stated_ip_len(words * 4 + message.len());
        let part = fragment.map_or(0, |Part { offset, more }| (offset / 8) | (u16::from(more) << 13));
        let field = part | (u16::from(self.network.dont_fragment) << 14);
        let mut header = vec![(self.wrong.ip_version.unwrap_or(4) << 4) | (header_len & 0x0f), self.traffic_class()];
        header.extend([len, *id as u16, field].map(u16::to_be_bytes).concat());
        header.extend([*hop_limit, self.number(), 0, 0]);
        header.extend(addresses);
        header.extend(options);
        let sum = self.wrong.ip_checksum.unwrap_or_else(|| checksum::of(&header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&header[..], message].concat()
    }

    fn ipv6(&self, addresses: &[u8], message: &[u8]) -> Vec<u8> {
        let Network { extensions, hop_limit, fragment, id, .. } = &self.network;
        let fragment = fragment.map(|Part { offset, more }| {
            let field = (offset | u16::from(more)).to_be_bytes();
            (IPV6_FRAGMENT, [&field[..], &id.to_be_bytes()].concat())
        });
        let headers: Vec<_> = extensions.iter().cloned().chain(fragment).collect();
        let (mut next, mut payload) = (self.number(), message.to_vec());
        for (number, rest) in headers.iter().rev() {
            let mut header = padded(&[&[next, 0], &rest[..]].concat(), 8);
            // 0 for a fragment header, which is 8 bytes long and has a reserved byte there.
            header[1] = (header.len() / 8 - 1) as u8;
            (next, payload) = (*number, [&header[..], &payload].concat());
        }
        let [len_high, len_low] = self.stated_ip_len(payload.len()).to_be_bytes();
        let (version, class) = (self.wrong.ip_version.unwrap_or(6), self.traffic_class());
        let start = [(version << 4) | (class >> 4), class << 4, 0, 0, len_high, len_low, next, *hop_limit];
        [&start, addresses, &payload].concat()
    }

    fn stated_ip_len(&self, len: usize) -> u16 {
        let right = || u16::try_from(len).unwrap_or_else(|_| panic!("{len} bytes are too many for a packet"));
        self.wrong.ip_len.unwrap_or_else(right)
    }

    fn number(&self) -> u8 {
        self.wrong.protocol.unwrap_or_else(|| self.message.protocol(self.addresses.source.is_ipv4()))
    }

    fn traffic_class(&self) -> u8 {
        let Network { dscp, ecn, .. } = self.network;
        assert!(dscp < 64, "DSCP is 0 to 63, and {dscp} is not");
        (dscp << 2) | ecn as u8
    }

    /// Returns the bytes that IP carries: the message's header and the payload.
    #[must_use]
    pub fn message(&self) -> Vec<u8> {
        let stated = self.wrong.message_len;
        let (mut message, sum_at) = match &self.message {
            Message::Udp(ports) => {
                let len = stated.unwrap_or_else(|| self.datagram_len());
                ([ports.source, ports.destination, len, 0].map(u16::to_be_bytes).concat(), 6)
            }
            Message::Tcp(tcp) => (tcp_header(tcp, stated), 16),
            Message::Icmp(header) => (header.to_vec(), 2),
            Message::Other(_) => return self.payload.clone(),
        };
        message.extend(&self.payload);
        let sum = self.wrong.checksum.unwrap_or_else(|| self.sum(&message));
        message[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        message
    }

    fn datagram_len(&self) -> u16 {
        let len = UDP_HEADER + self.payload.len();
        u16::try_from(len).unwrap_or_else(|_| panic!("{len} bytes are too many for a datagram"))
    }

    /// Returns the checksum of a message whose field for it is zero.
    fn sum(&self, message: &[u8]) -> u16 {
        let protocol = self.message.protocol(self.addresses.source.is_ipv4());
        let end = [&(message.len() as u32).to_be_bytes()[..], &[0, 0, 0, protocol], message].concat();
        let covered = match (self.addresses.source, self.addresses.destination, &self.message) {
            (IpAddr::V4(_), _, Message::Icmp(_)) => message.to_vec(),
            (IpAddr::V4(source), IpAddr::V4(destination), _) => {
                [&source.octets()[..], &destination.octets(), &end].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination), _) => {
                [&source.octets()[..], &destination.octets(), &end].concat()
            }
            _ => unreachable!("both addresses are of one version"),
        };
        match checksum::of(&covered) {
            0 if protocol == UDP => 0xffff,
            sum => sum,
        }
    }
}

fn tcp_header(tcp: &Tcp, stated_words: Option<u16>) -> Vec<u8> {
    let words = stated_words.unwrap_or(5 + tcp.options.len() as u16 / 4) as u8;
    let mut header = [tcp.ports.source.to_be_bytes(), tcp.ports.destination.to_be_bytes()].concat();
    header.extend(tcp.sequence.to_be_bytes());
    header.extend(tcp.acknowledged.to_be_bytes());
    header.extend([words << 4, tcp.flags.0]);
    header.extend(tcp.window.to_be_bytes());
    header.extend([0; 4]);
    header.extend(&tcp.options);
    header
}

fn tag_bytes(tag: &Vlan) -> [u8; 4] {
    let kind = match tag.kind {
        VlanKind::Customer => 0x8100_u16,
        VlanKind::Service => 0x88a8,
    };
    let control = (u16::from(tag.priority) << 13) | (u16::from(tag.is_drop_eligible) << 12) | tag.id;
    let ([a, b], [c, d]) = (kind.to_be_bytes(), control.to_be_bytes());
    [a, b, c, d]
}
