//! What the headers behind IP's tell of a flow: ports and ICMP types.

use super::key::{FlowKey, TCP, UDP};
use super::{Part, be16};
use crate::drops::DropReason;

const TCP_HEADER_MIN: usize = 20;
const UDP_HEADER: usize = 8;

/// What a transport header tells.
#[derive(Clone, Copy)]
pub(super) enum Told {
    Nothing,
    Ports(u16, u16),
    IcmpType(u8),
}

impl Told {
    #[inline(always)]
    pub(super) fn add_to(self, flow: FlowKey) -> FlowKey {
        match self {
            Self::Nothing => flow,
            Self::Ports(source, destination) => flow.with_ports(source, destination),
            Self::IcmpType(icmp_type) => flow.with_icmp_type(icmp_type),
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
            Ok(Told::Ports(be16(header[0], header[1]), be16(header[2], header[3])))
        }
        _ if protocol == icmp => {
            payload.first().map(|icmp_type| Told::IcmpType(*icmp_type)).ok_or(DropReason::Truncated)
        }
        _ => Ok(Told::Nothing),
    }
}
