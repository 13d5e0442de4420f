//! What the headers behind IP's tell of a flow: ports, ICMP types, and how TCP connections begin and end.

use super::key::{FlowKey, TCP, UDP};
use super::{Part, be16};
use crate::drops::DropReason;

const TCP_HEADER_MIN: usize = 20;
const UDP_HEADER: usize = 8;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// A segment without any of these flags is no [`Milestone`].
pub(super) const MILESTONE_FLAGS: u8 = FIN | SYN | RST;

/// What a TCP segment says of its connection's life. Whether the connection believes it, its sequence number decides, which
/// nobody here looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The sender asks for a new connection.
    Opens,
    /// The sender has nothing more to say.
    Closes,
    /// The sender knows of no such connection, or any longer.
    Resets,
}

impl Milestone {
    /// What a header's flags say. The answer to an opening is none: the connection is the other side's.
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

/// What a transport header tells.
#[derive(Clone, Copy)]
pub(super) enum Told {
    Nothing,
    Ports(u16, u16),
    Segment { ports: (u16, u16), milestone: Option<Milestone> },
    IcmpType(u8),
}

impl Told {
    #[inline(always)]
    pub(super) fn add_to(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::Nothing => flow,
            Self::Ports(source, destination) | Self::Segment { ports: (source, destination), .. } => {
                flow.with_ports(source, destination)
            }
            Self::IcmpType(icmp_type) => flow.with_icmp_type(icmp_type),
        }
    }

    #[inline(always)]
    pub(super) fn milestone(self) -> Option<Milestone> {
        match self {
            Self::Segment { milestone, .. } => milestone,
            Self::Nothing | Self::Ports(..) | Self::IcmpType(_) => None,
        }
    }
}

/// Reads the header of this protocol at the start of this part of a packet; `icmp` is the protocol that is ICMP in its
/// version of IP.
#[inline(always)]
pub(super) fn read(protocol: u8, icmp: u8, payload: &[u8], part: Part) -> Result<Told, DropReason> {
    if part == Part::Later {
        return Ok(Told::Nothing);
    }
    match protocol {
        UDP => {
            let header = payload.first_chunk::<UDP_HEADER>().ok_or(DropReason::Truncated)?;
            let len = usize::from(be16(header[4], header[5]));
            // The length of a datagram in fragments is over that of the first one.
            if part == Part::Whole && (len < UDP_HEADER || len > payload.len()) {
                return Err(DropReason::BadLength);
            }
            Ok(Told::Ports(be16(header[0], header[1]), be16(header[2], header[3])))
        }
        TCP => {
            let header = payload.first_chunk::<TCP_HEADER_MIN>().ok_or(DropReason::Truncated)?;
            let len = usize::from(header[12] >> 4) * 4;
            if len < TCP_HEADER_MIN || len > payload.len() {
                return Err(DropReason::BadLength);
            }
            let ports = (be16(header[0], header[1]), be16(header[2], header[3]));
            Ok(Told::Segment { ports, milestone: Milestone::of(header[13]) })
        }
        _ if protocol == icmp => {
            payload.first().map(|icmp_type| Told::IcmpType(*icmp_type)).ok_or(DropReason::Truncated)
        }
        _ => Ok(Told::Nothing),
    }
}
