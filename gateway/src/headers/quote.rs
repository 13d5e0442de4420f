//! The packet that an ICMP or ICMPv6 error quotes: its sender is to get the error.
//!
//! A quote ends where the error does: for IPv4 often 8 bytes after the quoted header, for IPv6 where the error would be
//! longer than 1280 bytes. So the quoted packet's lengths and checksums are not checked. Read only for errors, which no
//! short path takes; allocates nothing, and no input can cause a panic.

use super::key::FlowKey;
use super::{ipv4, ipv6, payload_offset};
use crate::drops::DropReason;

/// What comes before the quote, in either version of ICMP.
pub(super) const MESSAGE_HEADER: usize = 8;

/// Returns the flow of the packets that the sender of the quoted packet receives in answer to it. They would come in
/// where the error did. `error` is the flow of the error that the frame is.
///
/// # Errors
/// [`DropReason::BadQuote`] if the quote does not say its flow: it is too short, of a later fragment, or of an error,
/// neither of which an error may be about (RFC 1122, section 3.2.2). [`DropReason::ForgedError`] if the error is not for
/// the sender of the quoted packet.
pub fn answered_flow(frame: &[u8], error: &FlowKey) -> Result<FlowKey, DropReason> {
    let quoted = quoted_flow(frame, error).ok_or(DropReason::BadQuote)?;
    if quoted.source_bits() == error.destination_bits() { Ok(quoted.reversed()) } else { Err(DropReason::ForgedError) }
}

fn quoted_flow(frame: &[u8], error: &FlowKey) -> Option<FlowKey> {
    let (packet, ingress) = (frame.get(payload_offset(frame)..)?, error.ingress());
    if error.is_ipv6() {
        ipv6::quoted_flow(ipv6::message(packet)?.get(MESSAGE_HEADER..)?, ingress)
    } else {
        ipv4::quoted_flow(ipv4::message(packet)?.get(MESSAGE_HEADER..)?, ingress)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use pinion_mma::id::PortIndex;
    use proptest::prelude::*;
    use smoltcp::wire::EthernetAddress;

    use super::*;
    use crate::headers::{Headers, Ingress, Vlan, parse};
    use crate::test_frames::*;

    const ICMP: u8 = 1;
    const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
    const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);
    const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const PORT: PortIndex = PortIndex(3);

    /// Reads a frame, which is an error, and the flow of the answers to what it quotes.
    fn answered(frame: &[u8]) -> Result<FlowKey, DropReason> {
        match parse(frame, PORT, EthernetAddress(STATION)) {
            Ok(Headers::IcmpError(error)) => answered_flow(frame, &error),
            other => panic!("{other:?}"),
        }
    }

    fn error(quote: &[u8]) -> Vec<u8> {
        to_station(&ipv4(ROUTER, OURS, ICMP, &[&[3, 1, 0, 0, 0, 0, 0, 0], quote].concat()))
    }

    fn error_v6(quote: &[u8]) -> Vec<u8> {
        to_station(&ipv6(ROUTER_V6, OURS_V6, ICMPV6, 64, &[&[2, 0, 0, 0, 0, 0, 5, 0], quote].concat()))
    }

    fn key(from: impl Into<IpAddr>, to: impl Into<IpAddr>, protocol: u8, vlan: Vlan) -> FlowKey {
        let ingress = Ingress { port: PORT, vlan };
        match (from.into(), to.into()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => FlowKey::ipv4(from, to, protocol, ingress),
            (IpAddr::V6(from), IpAddr::V6(to)) => FlowKey::ipv6(from, to, protocol, ingress),
            mixed => panic!("{mixed:?}"),
        }
    }

    #[test]
    fn an_error_is_of_the_answers_to_the_packet_that_it_quotes() {
        let answers = key(FAR, OURS, UDP, Vlan::UNTAGGED).with_ports(53, 4000);
        let quoted = ipv4(OURS, FAR, UDP, &udp(4000, 53, &[0; 100]));
        assert_eq!(answered(&error(&quoted)), Ok(answers));
        assert_eq!(
            answered(&error(&quoted[..28])),
            Ok(answers),
            "a header and 8 bytes, as the least that routers quote"
        );
        assert_eq!(answered(&error(&[&quoted[..28], &[0; 100]].concat())), Ok(answers), "with what RFC 4884 adds");
        let vlan = Vlan { id: 100, inner_id: 20 };
        let in_vlan = tagged(&error(&quoted), &[(0x88a8, 100), (0x8100, 20)]);
        assert_eq!(answered(&in_vlan), Ok(key(FAR, OURS, UDP, vlan).with_ports(53, 4000)));

        let answers = key(FAR_V6, OURS_V6, TCP, Vlan::UNTAGGED).with_ports(80, 4000);
        let quoted = ipv6(OURS_V6, FAR_V6, TCP, 64, &segment(4000, 80, ACK, &[0; 2000]));
        assert_eq!(answered(&error_v6(&quoted[..1232])), Ok(answers), "of a packet that it has no room for");
        let first =
            ipv6(OURS_V6, FAR_V6, 44, 64, &[&[TCP, 0, 0, 1, 0, 0, 0, 9], &segment(4000, 80, ACK, b"")[..]].concat());
        assert_eq!(answered(&error_v6(&first)), Ok(answers), "of a first fragment");
        let options =
            ipv6(OURS_V6, FAR_V6, 60, 64, &[&[TCP, 0, 1, 4, 0, 0, 0, 0], &segment(4000, 80, ACK, b"")[..]].concat());
        assert_eq!(answered(&error_v6(&options)), Ok(answers), "behind extension headers");
        assert_eq!(
            answered(&error(&ipv4(OURS, FAR, 47, &[]))),
            Ok(key(FAR, OURS, 47, Vlan::UNTAGGED)),
            "without ports"
        );
    }

    #[test]
    fn the_answers_to_echo_requests_are_replies_and_those_to_replies_requests() {
        for (quoted, answer) in [(0, 8), (8, 0), (13, 13)] {
            let found = answered(&error(&ipv4(OURS, FAR, ICMP, &[quoted; 8])));
            assert_eq!(found, Ok(key(FAR, OURS, ICMP, Vlan::UNTAGGED).with_icmp_type(answer)));
        }
        for (quoted, answer) in [(128, 129), (129, 128), (200, 200)] {
            let found = answered(&error_v6(&ipv6(OURS_V6, FAR_V6, ICMPV6, 64, &[quoted; 8])));
            assert_eq!(found, Ok(key(FAR_V6, OURS_V6, ICMPV6, Vlan::UNTAGGED).with_icmp_type(answer)));
        }
    }

    #[test]
    fn an_error_that_is_not_for_the_sender_of_what_it_quotes_is_forged() {
        assert_eq!(answered(&error(&ipv4(ROUTER, FAR, UDP, &udp(1, 2, b"")))), Err(DropReason::ForgedError));
        let quoted = ipv6(FAR_V6, OURS_V6, UDP, 64, &udp(1, 2, b""));
        assert_eq!(answered(&error_v6(&quoted)), Err(DropReason::ForgedError));
    }

    #[test]
    fn a_quote_that_does_not_say_its_flow_is_bad() {
        let quoted = ipv4(OURS, FAR, TCP, &segment(4000, 80, ACK, b""));
        for len in 0..24 {
            assert_eq!(answered(&error(&quoted[..len])), Err(DropReason::BadQuote), "{len} bytes");
        }
        let quoted = ipv6(OURS_V6, FAR_V6, UDP, 64, &udp(1, 2, b""));
        for len in 0..44 {
            assert_eq!(answered(&error_v6(&quoted[..len])), Err(DropReason::BadQuote), "{len} bytes");
        }
        let later = ipv4_fragment(OURS, FAR, UDP, [0x20, 1], &[0; 16]);
        let later_v6 = ipv6(OURS_V6, FAR_V6, 44, 64, &[UDP, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!([answered(&error(&later)), answered(&error_v6(&later_v6))], [Err(DropReason::BadQuote); 2]);
        for icmp_type in [3, 4, 5, 11, 12] {
            let quoted = ipv4(OURS, FAR, ICMP, &[icmp_type; 8]);
            assert_eq!(answered(&error(&quoted)), Err(DropReason::BadQuote), "type {icmp_type}");
        }
        for icmp_type in 1..=4 {
            let quoted = ipv6(OURS_V6, FAR_V6, ICMPV6, 64, &[icmp_type; 8]);
            assert_eq!(answered(&error_v6(&quoted)), Err(DropReason::BadQuote), "type {icmp_type}");
        }
        // Of the other version of IP.
        assert_eq!(answered(&error(&ipv6(OURS_V6, FAR_V6, UDP, 64, &[0; 16]))), Err(DropReason::BadQuote));
        assert_eq!(answered(&error_v6(&ipv4(OURS, FAR, UDP, &[0; 40]))), Err(DropReason::BadQuote));
    }

    proptest! {
        #[test]
        fn no_quote_makes_the_reader_panic(mut quote in prop::collection::vec(any::<u8>(), 0..80), version in 0..4) {
            if let Some(first) = quote.first_mut() {
                *first = [0x45, 0x60, 0x4f, *first][version as usize];
            }
            let _ = answered(&error(&quote));
            let _ = answered(&error_v6(&quote));
        }
    }
}
