//! The fields of a frame that a router uses, checked once. It does not allocate, and does not panic on any bytes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pinion_sdk::checksum;

/// Most VLAN tags that are skipped: one, or a provider's and a customer's. They stay unchanged.
const VLAN_TAGS_MAX: usize = 2;
const ETHERTYPE_AT: usize = 12;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

const IPV4_HEADER_MIN: usize = 20;
const IPV4_TTL_AT: usize = 8;
const IPV4_CHECKSUM_AT: usize = 10;
/// Length of the IPv6 header, in bytes.
pub const IPV6_HEADER: usize = 40;
const IPV6_HOP_LIMIT_AT: usize = 7;

/// Why a frame is dropped without an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// Neither IPv4 nor IPv6, shorter than its headers say, or with a wrong checksum.
    Malformed,
    /// Its destination is a group or broadcast address, or an address is valid on a link or a host only.
    OutOfScope,
}

/// A datagram that may be forwarded. Invariant: `at + len` is at most the frame's length, and `header_len` at most `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Its start in the frame.
    pub at: usize,
    /// Its length in bytes, without the frame's padding.
    pub len: usize,
    /// Length of its IP header, in bytes.
    pub header_len: usize,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Hop limit, or TTL.
    pub hop_limit: u8,
}

impl Datagram {
    /// Parses a frame. Verifies the checksum of an IPv4 header unless the device has.
    ///
    /// # Errors
    ///
    /// A router does not forward the frame.
    pub fn of(frame: &[u8], is_summed: bool) -> Result<Self, Unroutable> {
        let mut at = ETHERTYPE_AT;
        for _ in 0..=VLAN_TAGS_MAX {
            let ethertype = word(frame, at).ok_or(Unroutable::Malformed)?;
            at += 2;
            let datagram = match ethertype {
                ETHERTYPE_IPV4 => of_ipv4(frame, at, is_summed)?,
                ETHERTYPE_IPV6 => of_ipv6(frame, at)?,
                ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => {
                    at += 2;
                    continue;
                }
                _ => return Err(Unroutable::Malformed),
            };
            let to_group = frame[0] & 1 != 0;
            let in_scope = match (datagram.source, datagram.destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => is_host_v4(source) && is_host_v4(destination),
                (IpAddr::V6(source), IpAddr::V6(destination)) => is_host_v6(source) && is_host_v6(destination),
                _ => false,
            };
            return if to_group || !in_scope { Err(Unroutable::OutOfScope) } else { Ok(datagram) };
        }
        Err(Unroutable::Malformed)
    }

    /// Decrements the hop limit in the frame that this was parsed from.
    pub fn age(&self, frame: &mut [u8]) {
        match self.source {
            IpAddr::V4(_) => {
                let header = &mut frame[self.at..self.at + IPV4_HEADER_MIN];
                let old = u16::from_be_bytes([header[IPV4_TTL_AT], header[IPV4_TTL_AT + 1]]);
                let sum = u16::from_be_bytes([header[IPV4_CHECKSUM_AT], header[IPV4_CHECKSUM_AT + 1]]);
                header[IPV4_TTL_AT] -= 1;
                let sum = checksum::update(sum, old, old - 0x100);
                header[IPV4_CHECKSUM_AT..IPV4_CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
            }
            IpAddr::V6(_) => frame[self.at + IPV6_HOP_LIMIT_AT] -= 1,
        }
    }
}

fn of_ipv4(frame: &[u8], at: usize, is_summed: bool) -> Result<Datagram, Unroutable> {
    let bytes = frame.get(at..).ok_or(Unroutable::Malformed)?;
    let first = *bytes.first().ok_or(Unroutable::Malformed)?;
    let header_len = usize::from(first & 0xf) * 4;
    let header = bytes.get(..header_len).ok_or(Unroutable::Malformed)?;
    if first >> 4 != 4 || header_len < IPV4_HEADER_MIN {
        return Err(Unroutable::Malformed);
    }
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if len < header_len || len > bytes.len() || (!is_summed && checksum::of(header) != 0) {
        return Err(Unroutable::Malformed);
    }
    let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]).into();
    Ok(Datagram { at, len, header_len, source: address(12), destination: address(16), hop_limit: header[IPV4_TTL_AT] })
}

fn of_ipv6(frame: &[u8], at: usize) -> Result<Datagram, Unroutable> {
    let bytes = frame.get(at..).ok_or(Unroutable::Malformed)?;
    let header = bytes.first_chunk::<IPV6_HEADER>().ok_or(Unroutable::Malformed)?;
    let len = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || len > bytes.len() {
        return Err(Unroutable::Malformed);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets).into()
    };
    let hop_limit = header[IPV6_HOP_LIMIT_AT];
    Ok(Datagram { at, len, header_len: IPV6_HEADER, source: address(8), destination: address(24), hop_limit })
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]))
}

/// Returns whether it is a host's address: none of RFC 1812, 5.3.7 (this network, loopback, multicast, reserved,
/// broadcast), and not link-local (RFC 3927).
fn is_host_v4(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224 && !address.is_link_local()
}

fn is_host_v6(address: Ipv6Addr) -> bool {
    let of_link = address.segments()[0] & 0xffc0 == 0xfe80;
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || of_link)
}
