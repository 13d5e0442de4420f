//! Segments that belong to a connection which must have begun before: a function that has not seen it can do nothing with them.

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

use super::key::{FlowKey, TCP};
use super::payload_offset;

/// What a frame can mean to a function that has seen none of its flow before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// It may begin something, or go on with something: a datagram, an opening segment, data.
    Something,
    /// A TCP segment without data that is part of a connection, if there is one. Each segment of a client that only receives is such a one.
    Acknowledges,
    /// A TCP segment that resets a connection, or closes it without any data.
    Ends,
}

/// Returns what a frame of this flow is worth. A fragment, and a segment behind extension headers, may always be worth something.
///
/// Called only for frames of clients without an instance.
#[inline]
pub(crate) fn worth_of(flow: &FlowKey, frame: &[u8]) -> Worth {
    if flow.protocol() == TCP { worth_of_segment(frame) } else { Worth::Something }
}

#[inline(never)]
fn worth_of_segment(frame: &[u8]) -> Worth {
    let Some(segment) = tcp_of(frame).and_then(|bytes| TcpPacket::new_checked(bytes).ok()) else {
        return Worth::Something;
    };
    match segment {
        _ if segment.syn() => Worth::Something,
        _ if segment.rst() => Worth::Ends,
        _ if !segment.payload().is_empty() => Worth::Something,
        _ if segment.fin() => Worth::Ends,
        _ => Worth::Acknowledges,
    }
}

/// Returns the TCP segment of a whole packet, without padding.
fn tcp_of(frame: &[u8]) -> Option<&[u8]> {
    let bytes = frame.get(payload_offset(frame)..)?;
    match bytes.first()? >> 4 {
        4 => {
            let packet = Ipv4Packet::new_checked(bytes).ok()?;
            let is_whole = !packet.more_frags() && packet.frag_offset() == 0;
            (is_whole && packet.next_header() == IpProtocol::Tcp).then(|| packet.payload())
        }
        6 => {
            let packet = Ipv6Packet::new_checked(bytes).ok()?;
            (packet.next_header() == IpProtocol::Tcp).then(|| packet.payload())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::{Worth, worth_of_segment};
    use crate::test_frames::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    const B: Ipv6Addr = Ipv6Addr::LOCALHOST;

    fn over_ipv4(flags: u8, data: &[u8]) -> Vec<u8> {
        to_station(&ipv4(A, A, TCP, &segment(5000, 80, flags, data)))
    }

    #[test]
    fn resets_and_segments_without_data_are_worth_less_than_others() {
        for (flags, data, expected) in [
            (RST, &b""[..], Worth::Ends),
            (RST | ACK, b"data", Worth::Ends),
            (FIN | ACK, b"", Worth::Ends),
            (FIN | ACK, b"data", Worth::Something),
            (ACK, b"", Worth::Acknowledges),
            (ACK, b"data", Worth::Something),
            (SYN, b"", Worth::Something),
            (SYN | ACK, b"", Worth::Something),
        ] {
            let frame = over_ipv4(flags, data);
            let padded = [&frame[..], &[0; 40]].concat();
            let tagged = tagged(&frame, &[(0x8100, 7)]);
            let segment = segment(5000, 80, flags, data);
            let ipv6 = ethernet(STATION, [2; 6], 0x86dd, &ipv6(B, B, TCP, 64, &segment));
            for frame in [&frame, &padded, &tagged, &ipv6] {
                assert_eq!(worth_of_segment(frame), expected, "flags {flags:#x}, {data:?}: {frame:x?}");
            }
        }
    }

    #[test]
    fn all_other_frames_may_be_worth_something() {
        let datagram = to_station(&ipv4(A, A, UDP, &udp(5000, 80, b"")));
        let fragment = to_station(&ipv4_fragment(A, A, TCP, [0x20, 0], &segment(5000, 80, ACK, b"")));
        for frame in [&datagram[..], &fragment, &over_ipv4(RST, b"")[..40], &[]] {
            assert_eq!(worth_of_segment(frame), Worth::Something, "{frame:x?}");
        }
    }
}
