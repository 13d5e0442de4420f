//! The short way through the headers of most packets: whole UDP and TCP over untagged IPv4 without options, in frames
//! for one station, and for TCP only segments within a connection.
//!
//! All fields have fixed positions, so a dozen loads and compares suffice, and a flow's key fits into two words.
//! [`read`] accepts only packets for which [`super::parse`] finds the same flow; it leaves all others to that function.

use std::net::Ipv4Addr;

use pinion_mma::id::PortIndex;
use smoltcp::wire::EthernetAddress;

use super::key::{FlowKey, Ingress, TCP, UDP, Vlan};
use super::transport::MILESTONE_FLAGS;

/// Length of the headers up to the end of UDP's.
const HEADERS: usize = 14 + IP_HEADER + UDP_HEADER;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const TCP_HEADER: usize = 20;
/// The EtherType of IPv4, and the following byte: version and header length.
const START: [u8; 3] = [0x08, 0x00, 0x45];

/// The flow of such a packet. Equal flows have equal words, and vice versa.
///
/// ```text
///   word 0   source address, destination address    as they lie in the packet
///   word 1   ports, likewise | protocol | the port it came in by
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainFlow {
    words: [u64; 2],
}

impl PlainFlow {
    /// The flow of no packet: its protocol is 0.
    pub(crate) const NONE: Self = Self { words: [0; 2] };

    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; 2] {
        self.words
    }

    /// Returns the plain form of a flow, if it has one.
    pub(crate) fn of(flow: &FlowKey) -> Option<Self> {
        let ([_, source, _, destination, ..], Ingress { port, vlan }) = (flow.words(), flow.ingress());
        if flow.is_ipv6() || vlan != Vlan::UNTAGGED || !matches!(flow.protocol(), TCP | UDP) {
            return None;
        }
        let as_it_lies = |number: u64| u64::from((number as u32).swap_bytes());
        let ports = [flow.source_port(), flow.destination_port()].map(|port| u64::from(port.swap_bytes()));
        let rest = ports[0] | ports[1] << 16 | u64::from(flow.protocol()) << 32 | u64::from(port.0) << 48;
        Some(Self { words: [as_it_lies(*source) | as_it_lies(*destination) << 32, rest] })
    }

    /// Returns the general form of the flow.
    #[inline(always)]
    pub(crate) fn key(&self) -> FlowKey {
        let [addresses, rest] = self.words;
        let [a, b, c, d, e, f, g, h] = addresses.to_le_bytes();
        let [i, j, k, l, ..] = rest.to_le_bytes();
        let (protocol, port) = ((rest >> 32) as u8, PortIndex((rest >> 48) as u16));
        let ingress = Ingress { port, vlan: Vlan::UNTAGGED };
        FlowKey::ipv4(Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h), protocol, ingress)
            .with_ports(u16::from_be_bytes([i, j]), u16::from_be_bytes([k, l]))
    }
}

/// Returns the flow of a valid frame of this kind, which came in by `port`, whose hardware address is `station`.
#[inline(always)]
pub(crate) fn read(frame: &[u8], port: PortIndex, station: EthernetAddress) -> Option<PlainFlow> {
    let head = frame.first_chunk::<HEADERS>()?;
    let (ethernet, packet) = head.split_first_chunk::<14>()?;
    let word = |at: usize| u32::from_le_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]);
    let be16 = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));

    // Neither the receiver's address nor the sender's is that of a group.
    let is_between_stations = ethernet[..6] == station.0 && (ethernet[0] | ethernet[6]) & 1 == 0;
    let usual = is_between_stations && head[12..15] == START;
    let (total_len, is_fragment) = (be16(2), be16(6) & 0x3fff != 0);
    if !usual || is_fragment || total_len > frame.len() - 14 {
        return None;
    }
    let sum: u64 = [0, 4, 8, 12, 16].into_iter().map(|at| u64::from(word(at))).sum();
    if !is_zero_in_ones_complement(sum) {
        return None;
    }
    // One comparison also covers lengths too small for the headers, because they wrap around.
    let payload_len = total_len.wrapping_sub(IP_HEADER);
    let protocol = packet[9];
    let fits = match protocol {
        UDP => payload_len < frame.len() && (UDP_HEADER..=payload_len).contains(&be16(IP_HEADER + 4)),
        TCP => {
            let [offset, flags] = *frame.get(14 + IP_HEADER + 12..)?.first_chunk()?;
            let header_len = usize::from(offset >> 4) * 4;
            let whole = payload_len < frame.len() && (TCP_HEADER..=payload_len).contains(&header_len);
            whole && flags & MILESTONE_FLAGS == 0
        }
        _ => false,
    };
    let addresses = u64::from_le_bytes(*packet[12..].first_chunk()?);
    let rest = u64::from(word(IP_HEADER)) | u64::from(protocol) << 32 | u64::from(port.0) << 48;
    fits.then_some(PlainFlow { words: [addresses, rest] })
}

/// Returns whether the one's complement sum of 16-bit words (RFC 1071) is zero. `sum` is their plain sum, taken two
/// words at a time and in any byte order.
#[inline(always)]
fn is_zero_in_ones_complement(sum: u64) -> bool {
    // A one's complement zero is a multiple of 0xffff. The sum of a header is not 0, because the header starts with
    // 0x45.
    sum.is_multiple_of(0xffff)
}
