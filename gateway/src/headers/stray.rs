//! Segments that belong to a connection which must have begun before: they tell a function nothing that it could begin with.

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};

use super::key::{FlowKey, TCP};
use super::payload_offset;

/// Returns whether a frame of this flow is a TCP segment that closes or resets a connection, or acknowledges without any data. Such a segment may come
/// of a connection whose instance has ended, or be made up; none of them is worth an instance. A fragment, and a segment behind extension
/// headers, is none.
///
/// Called only for frames of clients without an instance.
#[inline]
pub(crate) fn is_stray(flow: &FlowKey, frame: &[u8]) -> bool {
    flow.protocol() == TCP && begins_nothing(frame)
}

#[inline(never)]
fn begins_nothing(frame: &[u8]) -> bool {
    tcp_of(frame).is_some_and(|bytes| {
        let Ok(segment) = TcpPacket::new_checked(bytes) else { return false };
        !segment.syn() && (segment.rst() || segment.fin() || segment.payload().is_empty())
    })
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

    use super::begins_nothing;
    use crate::test_frames::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    const B: Ipv6Addr = Ipv6Addr::LOCALHOST;

    fn over_ipv4(flags: u8, data: &[u8]) -> Vec<u8> {
        to_station(&ipv4(A, A, TCP, &segment(5000, 80, flags, data)))
    }

    #[test]
    fn what_ends_a_connection_and_a_bare_acknowledgement_is_stray() {
        for (flags, data, expected) in [
            (RST, &b""[..], true),
            (RST | ACK, b"data", true),
            (FIN | ACK, b"data", true),
            (ACK, b"", true),
            (ACK, b"data", false),
            (SYN, b"", false),
            (SYN | ACK, b"", false),
        ] {
            let frame = over_ipv4(flags, data);
            let padded = [&frame[..], &[0; 40]].concat();
            let tagged = tagged(&frame, &[(0x8100, 7)]);
            let segment = segment(5000, 80, flags, data);
            let ipv6 = ethernet(STATION, [2; 6], 0x86dd, &ipv6(B, B, TCP, 64, &segment));
            for frame in [&frame, &padded, &tagged, &ipv6] {
                assert_eq!(begins_nothing(frame), expected, "flags {flags:#x}, {data:?}: {frame:x?}");
            }
        }
    }

    #[test]
    fn no_other_frame_is_stray() {
        let datagram = to_station(&ipv4(A, A, UDP, &udp(5000, 80, b"")));
        let fragment = to_station(&ipv4_fragment(A, A, TCP, [0x20, 0], &segment(5000, 80, ACK, b"")));
        for frame in [&datagram[..], &fragment, &over_ipv4(RST, b"")[..40], &[]] {
            assert!(!begins_nothing(frame), "{frame:x?}");
        }
    }
}
