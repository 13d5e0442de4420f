//! Writes the headers of UDP datagrams: for [outbound flows](super::outbound) and for sockets.

use core::net::{IpAddr, SocketAddr};

use super::headers::UDP;

pub(crate) const UDP_HEADER: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Returns the length of the IP and UDP headers before a payload that goes to this address.
pub(crate) fn headers_bytes(to: SocketAddr) -> usize {
    UDP_HEADER + if to.is_ipv4() { 20 } else { 40 }
}

/// Writes the headers of a datagram between two ends of the same IP version. `ip` is the whole IP packet, with its payload; its checksums
/// stay 0. `None` if it is shorter or longer than such a packet can be.
pub(crate) fn write_headers(ip: &mut [u8], source: SocketAddr, destination: SocketAddr) -> Option<()> {
    let total_bytes = u16::try_from(ip.len()).ok()?;
    let ip_header = headers_bytes(destination) - UDP_HEADER;
    let datagram_bytes = total_bytes.checked_sub(ip_header as u16)?.to_be_bytes();
    let (header, datagram) = ip.split_at_mut_checked(ip_header)?;
    header.fill(0);
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total_bytes = total_bytes.to_be_bytes();
            // Not to be fragmented, so that it needs no identification (RFC 6864).
            header[..8].copy_from_slice(&[0x45, 0, total_bytes[0], total_bytes[1], 0, 0, 0x40, 0]);
            header[8..10].copy_from_slice(&[HOP_LIMIT, UDP]);
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&datagram_bytes);
            header[6..8].copy_from_slice(&[UDP, HOP_LIMIT]);
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&destination.octets());
        }
        _ => return None,
    }
    let header = datagram.first_chunk_mut::<UDP_HEADER>()?;
    header[..2].copy_from_slice(&source.port().to_be_bytes());
    header[2..4].copy_from_slice(&destination.port().to_be_bytes());
    header[4..6].copy_from_slice(&datagram_bytes);
    header[6..].fill(0);
    Some(())
}
