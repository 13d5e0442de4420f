//! What the headers behind IP's tell of a flow: ports and ICMP types.

use super::key::{FlowKey, ICMP, ICMPV6, TCP, UDP};
use super::{Part, be16};
use crate::drops::DropReason;

const TCP_HEADER_MIN: usize = 20;
const UDP_HEADER: usize = 8;

/// Adds to the key what this part of its packet tells.
#[inline]
pub(super) fn complete(flow: FlowKey, payload: &[u8], part: Part) -> Result<FlowKey, DropReason> {
    if part == Part::Later {
        return Ok(flow);
    }
    match flow.protocol() {
        UDP => {
            let header = payload.first_chunk::<UDP_HEADER>().ok_or(DropReason::Truncated)?;
            let len = usize::from(be16(header[4], header[5]));
            // The length of a datagram in fragments is over that of the first one.
            if part == Part::Whole && !(UDP_HEADER..=payload.len()).contains(&len) {
                return Err(DropReason::BadLength);
            }
            Ok(flow.with_ports(be16(header[0], header[1]), be16(header[2], header[3])))
        }
        TCP => {
            let header = payload.first_chunk::<TCP_HEADER_MIN>().ok_or(DropReason::Truncated)?;
            let len = usize::from(header[12] >> 4) * 4;
            if !(TCP_HEADER_MIN..=payload.len()).contains(&len) {
                return Err(DropReason::BadLength);
            }
            Ok(flow.with_ports(be16(header[0], header[1]), be16(header[2], header[3])))
        }
        ICMP if !flow.is_ipv6() => with_type(flow, payload),
        ICMPV6 if flow.is_ipv6() => with_type(flow, payload),
        _ => Ok(flow),
    }
}

#[inline]
fn with_type(flow: FlowKey, message: &[u8]) -> Result<FlowKey, DropReason> {
    Ok(flow.with_icmp_type(*message.first().ok_or(DropReason::Truncated)?))
}
