//! Frames from the wire. Where this parser and an independent one both accept a frame, they must agree, and an answer must fit the request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use etherparse::{IpNumber, Ipv6ExtensionSlice, NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use pinion_gateway::drops::DropReason;
use pinion_gateway::headers::{FlowKey, Fragment, Headers, Ingress, Part, TcpEvent, Vlan, answered_flow, parse};
use pinion_gateway::neighbors::messages::{Heard, MESSAGE_BYTES_MAX, read_arp, read_discovery};
use pinion_gateway::neighbors::network::{Network, NetworkSetup};
use pinion_gateway::rules::{BranchConditions, Match};
use pinion_mma::id::PortIndex;
use pinion_mma::wiring::branch::Conditions;
use smoltcp::wire::EthernetAddress;

/// The port's own addresses, as in the seeds.
const STATION: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const OURS_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const PORT: PortIndex = PortIndex(3);

/// A branch reads so many bytes of a frame.
const BRANCH_BYTES: usize = 256;
const ETHERNET_HEADER: usize = 14;
const IPV6_HEADER: usize = 40;
/// The length of Ethernet, IPv6, and a neighbour advertisement with its one option.
const ADVERTISEMENT: usize = ETHERNET_HEADER + IPV6_HEADER + 32;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const ICMPV6: u8 = 58;

/// Parses a frame as it is, then with its checksums corrected, as wrong checksums would stop most of a fuzzer's changes. Returns the result
/// for the frame as it is.
///
/// # Errors
/// Why the frame is dropped.
///
/// # Panics
/// If the gateway parses or answers it wrongly.
pub fn check(frame: &[u8]) -> Result<Headers, DropReason> {
    let read = judge(frame);
    let mut mended = frame.to_vec();
    if mend(&mut mended).is_some() && mended != frame {
        let mended = judge(&mended);
        assert!(mended != Err(DropReason::BadChecksum), "the checksums are right");
    }
    read
}

fn judge(frame: &[u8]) -> Result<Headers, DropReason> {
    let read = parse(frame, PORT, EthernetAddress(STATION));
    assert_branches_agree(frame, read);
    match read {
        Ok(Headers::Flow(flow, milestone)) => {
            assert_other_parser_agrees(frame, &flow, None, milestone);
            assert!(milestone.is_none() || flow.protocol() == IpNumber::TCP.0);
        }
        Ok(Headers::IcmpError(flow)) => {
            assert_other_parser_agrees(frame, &flow, None, None);
            assert_answers_come_to_the_same_host(frame, &flow);
        }
        Ok(Headers::Fragment(fragment)) => assert_other_parser_agrees(frame, &fragment.flow, Some(&fragment), None),
        Ok(Headers::Arp(vlan)) => check_answer(frame, vlan, read_arp, assert_answers_arp),
        Ok(Headers::NeighborDiscovery(vlan)) => check_answer(frame, vlan, read_discovery, assert_advertises),
        Err(_) => {}
    }
    if read.is_ok() {
        assert_padding_changes_nothing(frame, read);
    }
    read
}

/// Checks that a branch meets the frame by what was read of it, and only if it is a packet. Headers that end behind what a branch reads of a
/// frame meet nothing.
fn assert_branches_agree(frame: &[u8], read: Result<Headers, DropReason>) {
    static BY_PROTOCOL: LazyLock<BranchConditions> = LazyLock::new(|| {
        let untagged = |protocol| Match { protocol: Some(protocol), ..Match::default() };
        BranchConditions::new(&[6, 17].map(untagged))
    });
    let met = BY_PROTOCOL.first_met(frame, PORT);
    let Ok(Headers::Flow(flow, _) | Headers::Fragment(Fragment { flow, .. })) = read else { return };
    let is_plain = flow.ingress().vlan == Vlan::UNTAGGED && !is_of_group(flow.destination());
    if is_plain {
        let expected = [6, 17].iter().position(|protocol| *protocol == flow.protocol());
        // Only extension headers of IPv6 take so many bytes.
        let may_end_later = frame.len() > BRANCH_BYTES && flow.destination().is_ipv6();
        assert!(met == expected || (may_end_later && met.is_none()), "a branch meets {met:?}, and not {expected:?}");
    }
}

/// Returns whether packets to this address match only what names it.
fn is_of_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// Checks that the answers to what an error quotes would go where the error goes, by the same port and VLAN.
fn assert_answers_come_to_the_same_host(frame: &[u8], error: &FlowKey) {
    match answered_flow(frame, error) {
        Ok(answered) => {
            assert_eq!((answered.destination(), answered.ingress()), (error.destination(), error.ingress()));
        }
        Err(reason) => assert!(matches!(reason, DropReason::BadQuote | DropReason::ForgedError), "{reason}"),
    }
}

fn assert_padding_changes_nothing(frame: &[u8], read: Result<Headers, DropReason>) {
    let padded = [frame, &[0xa5; 46]].concat();
    assert_eq!(parse(&padded, PORT, EthernetAddress(STATION)), read, "read differently with padding");
}

/// Checks that both parsers find the same VLAN, addresses, protocol, ports and fragment. The other parser is stricter in places: a frame
/// that it refuses is not compared.
fn assert_other_parser_agrees(frame: &[u8], flow: &FlowKey, fragment: Option<&Fragment>, milestone: Option<TcpEvent>) {
    assert_eq!((flow.source().is_ipv4(), flow.destination().is_ipv4()), (is_ipv4(frame), is_ipv4(frame)));
    let Ok(packet) = SlicedPacket::from_ethernet(frame) else { return };
    let ids = packet.vlan_ids();
    let id = |place: usize| ids.get(place).map_or(0, |id| id.value());
    let vlan = Vlan { id: id(0), inner_id: id(1) };
    assert_eq!(flow.ingress(), Ingress { port: PORT, vlan });
    let (addresses, in_fragments, protocol): ((IpAddr, IpAddr), _, _) = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            assert_eq!(checksum(&[header.slice()]), [0, 0], "a wrong checksum");
            if let Some(fragment) = fragment {
                assert_eq!(fragment.identification, u32::from(header.identification()));
                assert_eq!(fragment.part == Part::First, header.fragments_offset().value() == 0);
            }
            // The other parser counts the authentication header as an extension, the gateway as the protocol.
            let protocol = ip.extensions().auth.is_none().then(|| header.protocol());
            ((header.source_addr().into(), header.destination_addr().into()), ip.is_payload_fragmented(), protocol)
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let known = |extension: Ipv6ExtensionSlice<'_>| !matches!(extension, Ipv6ExtensionSlice::Authentication(_));
            // The other parser looks for extensions even within a later fragment.
            let comparable = !ip.is_payload_fragmented() && ip.extensions().clone().into_iter().all(known);
            let protocol = comparable.then(|| ip.payload().ip_number);
            ((header.source_addr().into(), header.destination_addr().into()), ip.is_payload_fragmented(), protocol)
        }
        other => panic!("a flow was read where there is {other:?}"),
    };
    assert_eq!((flow.source(), flow.destination()), addresses);
    assert!(in_fragments || fragment.is_none(), "read as a fragment");
    let Some(protocol) = protocol.filter(|&it| it != IpNumber::MOBILITY_HEADER && it != IpNumber::HIP) else { return };
    assert_eq!((flow.protocol(), fragment.is_some()), (protocol.0, in_fragments));
    let ports = (flow.source_port(), flow.destination_port());
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            assert_eq!(ports, (tcp.source_port(), tcp.destination_port()));
            assert_eq!(milestone, milestone_of(tcp));
        }
        Some(TransportSlice::Udp(udp)) => assert_eq!(ports, (udp.source_port(), udp.destination_port())),
        Some(TransportSlice::Icmpv4(icmp)) if is_ipv4(frame) => assert_eq!(flow.icmp_type(), Some(icmp.type_u8())),
        Some(TransportSlice::Icmpv6(icmp)) if !is_ipv4(frame) => assert_eq!(flow.icmp_type(), Some(icmp.type_u8())),
        // The other parser reads no transport header in fragments.
        _ => {}
    }
}

/// Returns whether a connection begins or ends, according to the other parser.
fn milestone_of(tcp: &TcpSlice<'_>) -> Option<TcpEvent> {
    match (tcp.rst(), tcp.syn() && !tcp.ack(), tcp.fin()) {
        (true, _, _) => Some(TcpEvent::Resets),
        (_, true, _) => Some(TcpEvent::Opens),
        (_, _, true) => Some(TcpEvent::Closes),
        _ => None,
    }
}

/// Returns the offset of the payload behind the tags.
fn payload_offset(frame: &[u8]) -> usize {
    let is_tag = |at: &usize| frame.get(at - 2..*at).is_some_and(|it| TAGS.iter().any(|tag| it == tag));
    let mut offset = ETHERNET_HEADER;
    while is_tag(&offset) {
        offset += 4;
    }
    offset
}

fn is_ipv4(frame: &[u8]) -> bool {
    let offset = payload_offset(frame);
    frame[offset - 2..offset] == IPV4
}

type Reader = fn(&Network, EthernetAddress, &mut [u8], usize) -> Result<Heard, DropReason>;

/// Answers a request with much room for the answer, and with no room beyond the request.
fn check_answer(question: &[u8], vlan: Vlan, read: Reader, assert_sound: fn(&[u8], &[u8])) {
    let addresses = [format!("{OURS_V4}/24"), format!("{OURS_V6}/64")].map(|it| it.parse().expect("an address"));
    let station = EthernetAddress(STATION);
    let setup = NetworkSetup { vlan, addresses: addresses.to_vec(), routes: Vec::new() };
    let network = Network::new(&setup, station);
    let spaces = [question.len() + 128, question.len()];
    let results = spaces.map(|capacity| {
        let mut space = vec![0xa5; capacity];
        space[..question.len()].copy_from_slice(question);
        let before = space.clone();
        let result = read(&network, station, &mut space, question.len());
        match result {
            Ok(Heard { answer_len: Some(len), .. }) => {
                assert!(space[len..] == before[len..], "written beyond the answer");
                assert_sound(question, &without_tags(&space[..len], question, vlan));
            }
            Ok(Heard { answer_len: None, .. }) => {
                assert!(space == before, "nothing is answered, but the frame was changed")
            }
            Err(reason) => assert!(space == before, "dropped as {reason}, but the frame was changed"),
        }
        result
    });
    // The room must only decide whether an answer fits.
    let in_no_more_room = match results[0] {
        Ok(Heard { answer_len: Some(_), .. }) if question.len() < MESSAGE_BYTES_MAX => Err(DropReason::Truncated),
        other => other,
    };
    assert_eq!(results[1], in_no_more_room);
}

/// Returns an answer without the tags of its VLAN, which it must have, of the question's types.
fn without_tags(answer: &[u8], question: &[u8], vlan: Vlan) -> Vec<u8> {
    let tags: &[u16] = match vlan {
        Vlan { id: 0, .. } => &[],
        Vlan { id, inner_id: 0 } => &[id],
        Vlan { id, inner_id } => &[id, inner_id],
    };
    for (place, id) in tags.iter().enumerate() {
        let at = 12 + 4 * place;
        assert_eq!(answer[at..at + 2], question[at..at + 2], "the answer's tag is of another type");
        assert_eq!(answer[at + 2..at + 4], id.to_be_bytes(), "the answer is in another VLAN");
    }
    [&answer[..12], &answer[12 + 4 * tags.len()..]].concat()
}

fn assert_answers_arp(question: &[u8], answer: &[u8]) {
    let message = &question[payload_offset(question)..];
    let (asker_station, asker) = (&message[8..14], &message[14..18]);
    let ours = OURS_V4.octets();
    assert_eq!(message[24..28], ours, "answers for an address that is not ours");
    let fixed = [&ARP[..], &[0, 1, 8, 0, 6, 4, 0, 2]].concat();
    let expected = [asker_station, &STATION, &fixed, &STATION, &ours, asker_station, asker].concat();
    assert_eq!(answer, expected);
    assert_eq!(answer[0] & 1, 0, "answers a group");
}

fn assert_advertises(question: &[u8], answer: &[u8]) {
    let ours = OURS_V6.octets();
    assert_eq!(answer.len(), ADVERTISEMENT);
    let asked = &question[payload_offset(question)..];
    assert_eq!(asked[48..64], ours, "answers for an address that is not ours");
    assert_eq!((&answer[6..12], &answer[12..14]), (&STATION[..], &IPV6[..]));
    let (ip, message) = answer[ETHERNET_HEADER..].split_at(IPV6_HEADER);
    assert_eq!(ip[..8], [0x60, 0, 0, 0, 0, 32, ICMPV6, 255]);
    assert_eq!(ip[8..24], ours);
    let asker = &asked[8..24];
    if asker == [0; 16] {
        assert_eq!(ip[24..], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    } else {
        assert_eq!(&ip[24..], asker);
        assert_eq!(answer[0] & 1, 0, "answers a group");
    }
    assert_eq!(message[..2], [136, 0]);
    assert_eq!(message[8..24], ours);
    assert_eq!(message[24..], [&[2, 1], &STATION[..]].concat());
    assert_eq!(checksum(&[&ip[8..40], &[0, 0, 0, 32, 0, 0, 0, ICMPV6], message]), [0, 0], "a wrong checksum");
}

/// Corrects the checksum of an IPv4 header, or of an ICMPv6 message right behind an IPv6 header; `None` if there is neither.
fn mend(frame: &mut [u8]) -> Option<()> {
    let offset = payload_offset(frame);
    let (ethertype, packet) = frame.get_mut(offset - 2..)?.split_first_chunk_mut::<2>()?;
    match *ethertype {
        IPV4 => {
            let len = usize::from(packet.first()? & 0xf) * 4;
            let header = packet.get_mut(..len).filter(|header| header.len() >= 20)?;
            header[10..12].fill(0);
            let sum = checksum(&[header]);
            header[10..12].copy_from_slice(&sum);
        }
        IPV6 => {
            let (ip, message) = packet.split_first_chunk_mut::<IPV6_HEADER>()?;
            let len = u16::from_be_bytes([ip[4], ip[5]]);
            let message = message.get_mut(..usize::from(len)).filter(|it| it.len() >= 4 && ip[6] == ICMPV6)?;
            message[2..4].fill(0);
            let sum = checksum(&[&ip[8..40], &u32::from(len).to_be_bytes(), &[0, 0, 0, ICMPV6], message]);
            message[2..4].copy_from_slice(&sum);
        }
        _ => return None,
    }
    Some(())
}

/// Returns the checksum of RFC 1071; all parts but the last are of even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let pairs = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}
