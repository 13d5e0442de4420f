//! What the headers after IP's say about a flow: ports, ICMP types, and the begin and end of TCP connections.

use super::key::{FlowKey, ICMP, TCP, UDP, is_icmp_error};
use super::{Part, be16};
use crate::drops::DropReason;

const TCP_HEADER_MIN: usize = 20;
const UDP_HEADER: usize = 8;
/// The type of redirects of ICMP. Those of ICMPv6 are messages of neighbour discovery.
const REDIRECT: u8 = 5;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// A segment without any of these flags carries no [`TcpEvent`].
pub(super) const MILESTONE_FLAGS: u8 = FIN | SYN | RST;

/// A TCP segment's event in the life of its connection. The sequence number decides whether the endpoint accepts it;
/// the gateway checks that only for flows that functions open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpEvent {
    /// The sender asks for a new connection.
    Opens,
    /// The sender has nothing more to send.
    Closes,
    /// The sender does not know the connection, or no longer.
    Resets,
}

impl TcpEvent {
    /// Returns the event of a header's flags. The answer to an opening segment is none, because the connection is the
    /// other side's.
    #[inline]
    fn of(flags: u8) -> Option<Self> {
        match flags & (MILESTONE_FLAGS | ACK) {
            flags if flags & RST != 0 => Some(Self::Resets),
            flags if flags & (SYN | ACK) == SYN => Some(Self::Opens),
            flags if flags & FIN != 0 => Some(Self::Closes),
            _ => None,
        }
    }
}

/// The numbers of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Of its first byte, or of its SYN or FIN.
    pub(crate) sequence: u32,
    /// The next that is expected of the other side.
    pub(crate) acknowledged: Option<u32>,
}

impl Segment {
    /// Reads the numbers in this TCP header.
    pub(super) fn of(header: &[u8]) -> Option<Self> {
        let header = header.first_chunk::<TCP_HEADER_MIN>()?;
        let be32 = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let acknowledges = header[13] & ACK != 0;
        Some(Self { sequence: be32(4), acknowledged: acknowledges.then(|| be32(8)) })
    }
}

/// The fields read from a transport header.
#[derive(Clone, Copy)]
pub(super) enum TransportInfo {
    Nothing,
    Ports(u16, u16),
    Segment {
        ports: (u16, u16),
        milestone: Option<TcpEvent>,
    },
    IcmpType(u8),
    /// The type of an error about a packet.
    IcmpError(u8),
}

impl TransportInfo {
    #[inline(always)]
    pub(super) fn add_to(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::Nothing => flow,
            Self::Ports(source, destination) | Self::Segment { ports: (source, destination), .. } => {
                flow.with_ports(source, destination)
            }
            Self::IcmpType(icmp_type) | Self::IcmpError(icmp_type) => flow.with_icmp_type(icmp_type),
        }
    }

    #[inline(always)]
    pub(super) fn milestone(self) -> Option<TcpEvent> {
        match self {
            Self::Segment { milestone, .. } => milestone,
            Self::Nothing | Self::Ports(..) | Self::IcmpType(_) | Self::IcmpError(_) => None,
        }
    }
}

/// Reads the header of this protocol at the start of this part of a packet. `icmp` is the number of ICMP in the
/// packet's version of IP.
#[inline(always)]
pub(super) fn read(protocol: u8, icmp: u8, payload: &[u8], part: Part) -> Result<TransportInfo, DropReason> {
    if part == Part::Later {
        return Ok(TransportInfo::Nothing);
    }
    match protocol {
        UDP => {
            let header = payload.first_chunk::<UDP_HEADER>().ok_or(DropReason::Truncated)?;
            let len = usize::from(be16(header[4], header[5]));
            // In a first fragment, this length is that of the whole datagram, and so exceeds the payload.
            if part == Part::Whole && (len < UDP_HEADER || len > payload.len()) {
                return Err(DropReason::BadLength);
            }
            Ok(TransportInfo::Ports(be16(header[0], header[1]), be16(header[2], header[3])))
        }
        TCP => {
            let header = payload.first_chunk::<TCP_HEADER_MIN>().ok_or(DropReason::Truncated)?;
            let len = usize::from(header[12] >> 4) * 4;
            if len < TCP_HEADER_MIN || len > payload.len() {
                return Err(DropReason::BadLength);
            }
            let ports = (be16(header[0], header[1]), be16(header[2], header[3]));
            Ok(TransportInfo::Segment { ports, milestone: TcpEvent::of(header[13]) })
        }
        _ if protocol == icmp => read_message(icmp, payload, part),
        _ => Ok(TransportInfo::Nothing),
    }
}

/// Reads the type of a message of ICMP or ICMPv6.
fn read_message(icmp: u8, payload: &[u8], part: Part) -> Result<TransportInfo, DropReason> {
    let icmp_type = *payload.first().ok_or(DropReason::Truncated)?;
    if icmp == ICMP && icmp_type == REDIRECT {
        return Err(DropReason::Redirect);
    }
    match (is_icmp_error(icmp, icmp_type), part) {
        (false, _) => Ok(TransportInfo::IcmpType(icmp_type)),
        (true, Part::Whole) => Ok(TransportInfo::IcmpError(icmp_type)),
        // An error fits into the shortest packet that must not be fragmented (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
        (true, Part::First | Part::Later) => Err(DropReason::BadQuote),
    }
}

/// Returns how many bytes [`read`] reads of the header of this protocol. `icmp` is the number of ICMP in the packet's version of
/// IP.
pub(super) fn fields_read(protocol: u8, icmp: u8) -> usize {
    match protocol {
        TCP => TCP_HEADER_MIN,
        UDP => UDP_HEADER,
        protocol => usize::from(protocol == icmp),
    }
}

/// Returns how many bytes [`add_quoted`] reads.
pub(super) fn fields_quoted(protocol: u8, icmp: u8) -> usize {
    match protocol {
        TCP | UDP => 4,
        protocol => usize::from(protocol == icmp),
    }
}

/// Adds to a flow what the start of a quoted packet of this protocol says, whatever its length. Returns `None` if the
/// quote ends before that, or is of a message that no error may be about (RFC 1122, section 3.2.2).
pub(super) fn add_quoted(flow: FlowKey, icmp: u8, quote: &[u8]) -> Option<FlowKey> {
    match flow.protocol() {
        TCP | UDP => {
            let ports = quote.first_chunk::<4>()?;
            Some(flow.with_ports(be16(ports[0], ports[1]), be16(ports[2], ports[3])))
        }
        protocol if protocol == icmp => {
            let icmp_type = *quote.first()?;
            let is_about_none = is_icmp_error(icmp, icmp_type) || icmp == ICMP && icmp_type == REDIRECT;
            (!is_about_none).then(|| flow.with_icmp_type(icmp_type))
        }
        _ => Some(flow),
    }
}
