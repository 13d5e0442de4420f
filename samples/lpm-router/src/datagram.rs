//! The datagrams that a router forwards.

use core::net::{Ipv4Addr, Ipv6Addr};

use pinion_sdk::Checksum;
use pinion_sdk::headers::{Addresses, Ip, macs};

/// Why a frame is dropped without an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// Neither IPv4 nor IPv6, shorter than its headers say, or with a wrong checksum.
    Malformed,
    /// Its destination is a group or broadcast address, or an address is valid on a link or a host only.
    OutOfScope,
}

/// Reads the IP header of a datagram that may be forwarded. Verifies the checksum of an IPv4 header unless the device
/// has. VLAN tags, at most two, are skipped and stay unchanged.
///
/// # Errors
///
/// A router does not forward the frame.
pub fn read(frame: &[u8], is_summed: bool) -> Result<Ip, Unroutable> {
    let datagram = Ip::of(frame).map_err(|_| Unroutable::Malformed)?;
    if !is_summed && datagram.checksum(frame) == Checksum::Bad {
        return Err(Unroutable::Malformed);
    }
    let to_group = macs(frame).is_none_or(|macs| macs.destination.is_group());
    let in_scope = match datagram.addresses {
        Addresses::V4(pair) => is_host_v4(pair.source.into()) && is_host_v4(pair.destination.into()),
        Addresses::V6(pair) => is_host_v6(pair.source.into()) && is_host_v6(pair.destination.into()),
    };
    if to_group || !in_scope { Err(Unroutable::OutOfScope) } else { Ok(datagram) }
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
