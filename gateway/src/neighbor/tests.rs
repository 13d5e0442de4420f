//! Tests of [`super`]: compares answers byte for byte with hand-made ones.

use super::*;
use crate::test_frames::{self as frames, *};
use proptest::prelude::*;

const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const OURS_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9);
const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3456);

fn neighbors() -> Neighbors {
    let addresses = ["10.77.0.2/24", "10.77.0.77/24", "fd77::12:3456/64"].map(|net| net.parse().unwrap());
    Neighbors::new(EthernetAddress(STATION), &addresses)
}

fn answered(
    frame: &[u8],
    write_answer: fn(&Neighbors, &mut [u8], usize) -> Result<usize, DropReason>,
) -> Result<Vec<u8>, DropReason> {
    let mut space = frame.to_vec();
    space.resize(256.max(frame.len()), 0xee);
    let before = space.clone();
    match write_answer(&neighbors(), &mut space, frame.len()) {
        Ok(len) => {
            assert!(space[len.max(frame.len())..].iter().all(|&byte| byte == 0xee), "written behind the answer");
            Ok(space[..len].to_vec())
        }
        Err(reason) => {
            assert_eq!(space, before, "a question without an answer was changed");
            Err(reason)
        }
    }
}

fn arp_answer(frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    answered(frame, Neighbors::answer_arp)
}

fn nd_answer(frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    answered(frame, Neighbors::answer_solicitation)
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
