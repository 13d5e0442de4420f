//! Tests of [`super`]: compares answers byte for byte with hand-made ones.

use super::super::network::NetworkSetup;
use super::*;
use crate::headers::Vlan;
use crate::test_frames::{self as frames, *};
use proptest::prelude::*;

const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const OURS_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3456);

fn network(vlan: Vlan) -> Network {
    let addresses = ["10.77.0.2/24", "10.77.0.77/24", "fd77::12:3456/64"].map(|net| net.parse().unwrap());
    let setup = NetworkSetup { vlan, addresses: addresses.to_vec(), routes: Vec::new() };
    Network::new(&setup, EthernetAddress(STATION))
}

/// Returns what a message says, and the answer to it.
fn heard(frame: &[u8], vlan: Vlan, read: Reader) -> Result<(Option<Told>, Option<Vec<u8>>), DropReason> {
    let mut space = frame.to_vec();
    space.resize(256.max(frame.len()), 0xee);
    let before = space.clone();
    match read(&network(vlan), EthernetAddress(STATION), &mut space, frame.len()) {
        Ok(Heard { told, answer_len: Some(len) }) => {
            assert!(space[len.max(frame.len())..].iter().all(|&byte| byte == 0xee), "written behind the answer");
            Ok((told, Some(space[..len].to_vec())))
        }
        Ok(Heard { told, answer_len: None }) => {
            assert_eq!(space, before, "a message without an answer was changed");
            Ok((told, None))
        }
        Err(reason) => {
            assert_eq!(space, before, "a question without an answer was changed");
            Err(reason)
        }
    }
}

type Reader = fn(&Network, EthernetAddress, &mut [u8], usize) -> Result<Heard, DropReason>;

/// Returns the answer to a message, or why there is none.
fn answered(frame: &[u8], read: Reader) -> Result<Vec<u8>, DropReason> {
    heard(frame, Vlan::UNTAGGED, read).and_then(|(_, answer)| answer.ok_or(DropReason::NotForUs))
}

fn arp_answer(frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    answered(frame, read_arp)
}

fn nd_answer(frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    answered(frame, read_discovery)
}

fn advertisement(to: Ipv6Addr, to_station: [u8; 6], flags: u8) -> Vec<u8> {
    let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &OURS_V6.octets(), &[2, 1], &STATION].concat();
    ethernet(to_station, STATION, IPV6, &ipv6(OURS_V6, to, ICMPV6, 255, &icmpv6(OURS_V6, to, &message)))
}

/// A solicitation with this message and a correct checksum, in a packet that `change` may alter.
fn custom(from: Ipv6Addr, message: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let (station, group) = frames::solicited_node(OURS_V6);
    let mut packet = ipv6(from, group, ICMPV6, 255, &icmpv6(from, group, message));
    change(&mut packet);
    ethernet(station, CLIENT, IPV6, &packet)
}

fn question(options: &[u8]) -> Vec<u8> {
    [&[135, 0, 0, 0, 0, 0, 0, 0][..], &OURS_V6.octets(), options].concat()
}

#[test]
fn an_arp_request_for_an_address_of_the_port_is_answered_with_its_station() {
    let expected = ethernet(CLIENT, STATION, ARP, &arp(2, (STATION, OURS_V4), (CLIENT, CLIENT_V4)));
    assert_eq!(arp_answer(&arp_request((CLIENT, CLIENT_V4), OURS_V4)), Ok(expected));
}

#[test]
fn a_request_with_a_priority_tag_is_answered_without_the_tag() {
    let expected = ethernet(CLIENT, STATION, ARP, &arp(2, (STATION, OURS_V4), (CLIENT, CLIENT_V4)));
    let question = arp_request((CLIENT, CLIENT_V4), OURS_V4);
    assert_eq!(arp_answer(&tagged(&question, &[(0x8100, 0xe000)])), Ok(expected));
    let question = frames::solicitation(CLIENT_V6, OURS_V6);
    let expected = advertisement(CLIENT_V6, CLIENT, 0x60);
    assert_eq!(nd_answer(&tagged(&question, &[(0x8100, 0xe000), (0x8100, 0)])), Ok(expected));
}

#[test]
fn an_arp_probe_is_answered_so_that_no_other_station_takes_the_address() {
    let unspecified = Ipv4Addr::UNSPECIFIED;
    let expected = ethernet(CLIENT, STATION, ARP, &arp(2, (STATION, OURS_V4), (CLIENT, unspecified)));
    assert_eq!(arp_answer(&arp_request((CLIENT, unspecified), OURS_V4)), Ok(expected));
}

#[test]
fn arp_that_asks_nothing_of_us_is_not_answered() {
    let other = Ipv4Addr::new(10, 77, 0, 3);
    assert_eq!(arp_answer(&arp_request((CLIENT, CLIENT_V4), other)), Err(DropReason::NotForUs));
    let reply = ethernet(STATION, CLIENT, ARP, &arp(2, (CLIENT, CLIENT_V4), (STATION, OURS_V4)));
    assert_eq!(arp_answer(&reply), Err(DropReason::NotForUs));
    let announcement = arp_request((CLIENT, OURS_V4), OURS_V4);
    assert_eq!(arp_answer(&announcement), Err(DropReason::AddressConflict));
    let from_group = arp_request(([0xff; 6], CLIENT_V4), OURS_V4);
    assert_eq!(arp_answer(&from_group), Err(DropReason::BadSource));
    let mut token_ring = arp_request((CLIENT, CLIENT_V4), OURS_V4);
    token_ring[15] = 4;
    assert_eq!(arp_answer(&token_ring), Err(DropReason::BadNeighborMessage));
    let whole = arp_request((CLIENT, CLIENT_V4), OURS_V4);
    for len in 0..whole.len() {
        assert_eq!(arp_answer(&whole[..len]), Err(DropReason::Truncated), "{len} bytes");
    }
}

#[test]
fn a_solicitation_for_an_address_of_the_port_is_answered_with_its_station() {
    let expected = advertisement(CLIENT_V6, CLIENT, 0x60);
    assert_eq!(nd_answer(&frames::solicitation(CLIENT_V6, OURS_V6)), Ok(expected.clone()));
    let without_option = custom(CLIENT_V6, &question(&[]), |_| ());
    assert_eq!(nd_answer(&without_option), Ok(expected));
}

#[test]
fn the_answer_goes_to_the_stated_link_layer_address_rather_than_the_frames_source() {
    let stated = [0x02, 0, 0, 0, 0xab, 0xcd];
    let frame = custom(CLIENT_V6, &question(&[&[14, 1, 1, 2, 3, 4, 5, 6, 1, 1], &stated[..]].concat()), |_| ());
    assert_eq!(nd_answer(&frame), Ok(advertisement(CLIENT_V6, stated, 0x60)));
}

#[test]
fn a_probe_for_duplicates_is_answered_to_all_nodes_and_not_as_solicited() {
    let expected = advertisement("ff02::1".parse().unwrap(), [0x33, 0x33, 0, 0, 0, 1], 0x20);
    assert_eq!(nd_answer(&frames::solicitation(Ipv6Addr::UNSPECIFIED, OURS_V6)), Ok(expected));
}

#[test]
fn solicitations_that_violate_the_standards_are_dropped() {
    let option = [&[1, 1][..], &CLIENT].concat();
    let valid = question(&option);
    let malformed = Err(DropReason::BadNeighborMessage);
    assert_eq!(nd_answer(&custom(CLIENT_V6, &valid, |ip| ip[7] = 254)), malformed, "routed");
    assert_eq!(nd_answer(&custom(CLIENT_V6, &valid, |ip| ip[46] ^= 1)), Err(DropReason::BadChecksum));
    let mut coded = valid.clone();
    coded[1] = 1;
    assert_eq!(nd_answer(&custom(CLIENT_V6, &coded, |_| ())), malformed, "a code");
    assert_eq!(nd_answer(&custom(CLIENT_V6, &question(&[1, 0, 0, 0, 0, 0, 0, 0]), |_| ())), malformed, "empty option");
    assert_eq!(nd_answer(&custom(CLIENT_V6, &question(&[1, 2, 0, 0, 0, 0, 0, 0]), |_| ())), malformed, "cut option");
    assert_eq!(nd_answer(&custom(Ipv6Addr::UNSPECIFIED, &valid, |_| ())), malformed, "a probe with an option");
    assert_eq!(nd_answer(&custom(OURS_V6, &valid, |_| ())), Err(DropReason::AddressConflict));
    let group = question(&[1, 1, 0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(nd_answer(&custom(CLIENT_V6, &group, |_| ())), Err(DropReason::BadSource));
    let of_group = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &Ipv6Addr::from(0xff02 << 112 | 1).octets(), &option].concat();
    assert_eq!(nd_answer(&custom(CLIENT_V6, &of_group, |_| ())), malformed, "for a group");
    let whole = custom(CLIENT_V6, &valid, |_| ());
    for len in 0..whole.len() {
        assert_eq!(nd_answer(&whole[..len]), Err(DropReason::Truncated), "{len} bytes");
    }
}

#[test]
fn discovery_that_asks_nothing_of_us_is_not_answered() {
    let other = frames::solicitation(CLIENT_V6, Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3457));
    assert_eq!(nd_answer(&other), Err(DropReason::NotForUs));
    let router_solicitation = custom(CLIENT_V6, &[133, 0, 0, 0, 0, 0, 0, 0], |_| ());
    assert_eq!(nd_answer(&router_solicitation), Err(DropReason::NotForUs));
}

#[test]
fn a_probe_behind_an_extension_header_is_dropped() {
    let (station, group) = frames::solicited_node(OURS_V6);
    let message = [&[ICMPV6, 0, 0, 0, 0, 0, 0, 0][..], &icmpv6(CLIENT_V6, group, &question(&[]))].concat();
    let frame = ethernet(station, CLIENT, IPV6, &ipv6(CLIENT_V6, group, 0, 255, &message));
    assert_eq!(nd_answer(&frame), Err(DropReason::BadNeighborMessage));
}

#[test]
fn a_request_in_a_vlan_is_answered_with_the_tags_of_that_vlan() {
    let question = arp_request((CLIENT, CLIENT_V4), OURS_V4);
    let answer = ethernet(CLIENT, STATION, ARP, &arp(2, (STATION, OURS_V4), (CLIENT, CLIENT_V4)));
    let answered = |tags: &[(u16, u16)], vlan| heard(&tagged(&question, tags), vlan, read_arp).unwrap().1.unwrap();
    let one = Vlan { id: 100, inner_id: 0 };
    assert_eq!(answered(&[(0x8100, 0xe064)], one), tagged(&answer, &[(0x8100, 100)]));
    let both = Vlan { id: 100, inner_id: 7 };
    assert_eq!(answered(&[(0x88a8, 100), (0x8100, 7)], both), tagged(&answer, &[(0x88a8, 100), (0x8100, 7)]));
    for types in [(0x8100, 0x8100), (0x88a8, 0x88a8)] {
        let tags = [(types.0, 100), (types.1, 7)];
        assert_eq!(answered(&tags, both), tagged(&answer, &tags), "as the asker's");
    }
    assert_eq!(answered(&[(0x88a8, 100)], one), tagged(&answer, &[(0x88a8, 100)]));
    let question = tagged(&frames::solicitation(CLIENT_V6, OURS_V6), &[(0x8100, 100)]);
    let answer = heard(&question, one, read_discovery).unwrap().1.unwrap();
    assert_eq!(answer, tagged(&advertisement(CLIENT_V6, CLIENT, 0x60), &[(0x8100, 100)]));
    let tags = [(0x8100, 100), (0x8100, 7)];
    let answer = heard(&tagged(&frames::solicitation(CLIENT_V6, OURS_V6), &tags), both, read_discovery).unwrap().1;
    assert_eq!(answer, Some(tagged(&advertisement(CLIENT_V6, CLIENT, 0x60), &tags)));
}

fn told(address: impl Into<IpAddr>, station: [u8; 6], how: How) -> Option<Told> {
    Some(Told { address: address.into(), station: EthernetAddress(station), how })
}

#[test]
fn arp_tells_of_its_sender_and_an_answer_to_the_node_tells_that_it_is_there() {
    let says = |frame: &[u8]| heard(frame, Vlan::UNTAGGED, read_arp).unwrap().0;
    let reply = |to| ethernet(to, CLIENT, ARP, &arp(2, (CLIENT, CLIENT_V4), (STATION, OURS_V4)));
    assert_eq!(says(&reply(STATION)), told(CLIENT_V4, CLIENT, How::Answer));
    assert_eq!(says(&reply([0xff; 6])), told(CLIENT_V4, CLIENT, How::Unasked));
    assert_eq!(says(&arp_request((CLIENT, CLIENT_V4), OURS_V4)), told(CLIENT_V4, CLIENT, How::Unasked));
    assert_eq!(says(&arp_request((CLIENT, CLIENT_V4), CLIENT_V4)), told(CLIENT_V4, CLIENT, How::Unasked));
    assert_eq!(says(&arp_request((CLIENT, Ipv4Addr::UNSPECIFIED), OURS_V4)), None, "a probe");
}

/// An advertisement of the client's, to `to`, with these flags.
fn advertised(to: Ipv6Addr, flags: u8, options: &[u8]) -> Vec<u8> {
    let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &CLIENT_V6.octets(), options].concat();
    ethernet(STATION, CLIENT, IPV6, &ipv6(CLIENT_V6, to, ICMPV6, 255, &icmpv6(CLIENT_V6, to, &message)))
}

#[test]
fn an_advertisement_tells_of_its_target_by_its_flags() {
    let says = |frame: &[u8]| heard(frame, Vlan::UNTAGGED, read_discovery).map(|(told, _)| told);
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let stated = [&[2, 1][..], &[2, 0, 0, 0, 0xab, 0xcd]].concat();
    let other = [2, 0, 0, 0, 0xab, 0xcd];
    assert_eq!(says(&advertised(OURS_V6, 0x60, &stated)), Ok(told(CLIENT_V6, other, How::Answer)));
    assert_eq!(says(&advertised(OURS_V6, 0x60, &[])), Ok(told(CLIENT_V6, CLIENT, How::Answer)));
    assert_eq!(says(&advertised(OURS_V6, 0x40, &stated)), Ok(told(CLIENT_V6, other, How::AnswerUnlessKnown)));
    assert_eq!(says(&advertised(all, 0, &stated)), Ok(told(CLIENT_V6, other, How::UnaskedUnlessKnown)));
    assert_eq!(says(&advertised(all, 0x20, &stated)), Ok(told(CLIENT_V6, other, How::Unasked)));
    assert_eq!(says(&advertised(all, 0x60, &stated)), Err(DropReason::BadNeighborMessage), "solicited by all");
    let group = [&[2, 1][..], &[0x33, 0x33, 0, 0, 0, 1]].concat();
    assert_eq!(says(&advertised(OURS_V6, 0x60, &group)), Err(DropReason::BadSource));
}

#[test]
fn one_that_advertises_an_address_of_the_node_is_told_apart() {
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &OURS_V6.octets(), &[2, 1], &CLIENT].concat();
    let frame = ethernet(STATION, CLIENT, IPV6, &ipv6(CLIENT_V6, all, ICMPV6, 255, &icmpv6(CLIENT_V6, all, &message)));
    assert_eq!(nd_answer(&frame), Err(DropReason::AddressConflict));
}

#[test]
fn the_address_that_another_station_claims_is_told() {
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &OURS_V6.octets(), &[2, 1], &CLIENT].concat();
    let packet = ipv6(CLIENT_V6, all, ICMPV6, 255, &icmpv6(CLIENT_V6, all, &message));
    let of_v4 = arp_request((CLIENT, OURS_V4), CLIENT_V4);
    let of_v6 = [ethernet(STATION, CLIENT, IPV6, &packet), frames::solicitation(OURS_V6, CLIENT_V6)];
    for tags in [&[][..], &[(0x8100, 100)]] {
        assert_eq!(claimed(&tagged(&of_v4, tags)), Some(OURS_V4.into()));
        of_v6.iter().for_each(|frame| assert_eq!(claimed(&tagged(frame, tags)), Some(OURS_V6.into())));
    }
    (0..of_v4.len()).for_each(|len| assert_eq!(claimed(&of_v4[..len]).filter(|_| len < 32), None));
}

#[test]
fn what_the_node_has_sent_is_no_other_stations_claim() {
    let announced = |address: IpAddr| {
        written(|network, space| write_announcement(network, EthernetAddress(STATION), space, address))
    };
    assert_eq!(arp_answer(&announced(OURS_V4.into())), Err(DropReason::NotForUs));
    assert_eq!(nd_answer(&announced(OURS_V6.into())), Err(DropReason::NotForUs));
    let asked = requested("fd77::9:8".parse::<Ipv6Addr>().unwrap(), None);
    assert_eq!(nd_answer(&asked), Err(DropReason::NotForUs));
}

fn written(write: impl FnOnce(&Network, &mut [u8]) -> usize) -> Vec<u8> {
    let mut space = [0xee; MESSAGE_BYTES_MAX];
    let len = write(&network(Vlan::UNTAGGED), &mut space);
    space[..len].to_vec()
}

fn requested(target: impl Into<IpAddr>, had: Option<[u8; 6]>) -> Vec<u8> {
    let (target, had) = (target.into(), had.map(EthernetAddress));
    written(|network, space| write_request(network, EthernetAddress(STATION), space, target, had).unwrap())
}

#[test]
fn a_request_goes_to_all_or_to_the_station_that_had_the_address() {
    let expected = arp_request((STATION, OURS_V4), CLIENT_V4);
    assert_eq!(requested(CLIENT_V4, None), expected);
    assert_eq!(requested(CLIENT_V4, Some(CLIENT)), [&CLIENT[..], &expected[6..]].concat());
    let target: Ipv6Addr = "fd77::9:8".parse().unwrap();
    let question = |to: Ipv6Addr| {
        let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1], &STATION].concat();
        ipv6(OURS_V6, to, ICMPV6, 255, &icmpv6(OURS_V6, to, &message))
    };
    let (station, group) = frames::solicited_node(target);
    assert_eq!(requested(target, None), ethernet(station, STATION, IPV6, &question(group)));
    assert_eq!(requested(target, Some(CLIENT)), ethernet(CLIENT, STATION, IPV6, &question(target)));
}

#[test]
fn the_node_announces_its_addresses_to_all() {
    let announced = |address: IpAddr| {
        written(|network, space| write_announcement(network, EthernetAddress(STATION), space, address))
    };
    assert_eq!(announced(OURS_V4.into()), arp_request((STATION, OURS_V4), OURS_V4));
    let advertised = advertisement("ff02::1".parse().unwrap(), [0x33, 0x33, 0, 0, 0, 1], 0x20);
    assert_eq!(announced(OURS_V6.into()), advertised);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn no_request_makes_the_answering_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
        len in 0_usize..120,
        options in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let sealed = custom(CLIENT_V6, &question(&options), |_| ());
        let _ = nd_answer(&sealed);
        for (mut frame, answer) in [
            (arp_request((CLIENT, CLIENT_V4), OURS_V4), arp_answer as fn(&[u8]) -> _),
            (sealed, nd_answer),
        ] {
            for (place, value) in &changes {
                let place = place.index(frame.len());
                frame[place] = *value;
            }
            let _ = answer(&frame);
            let _ = answer(&frame[..len.min(frame.len())]);
        }
    }
}
