//! Frames that a guest sends with `TX_CHECKSUM` go on with right checksums; all others go on as they are.

mod support;

use pinion_abi::{Descriptor, PORT_DROP, PORT_NEXT, PORT_REPLY, TX_CHECKSUM};
use pinion_mma::wiring::{Edge, Wiring};
use smoltcp::wire::{Ipv4Packet, UdpPacket};
use support::{Guest, House, Left, Plan, Shape, id};

const ETHERNET: usize = 14;

/// Makes a datagram in a frame, without checksums.
fn datagram(number: u8, data: usize) -> Vec<u8> {
    let [total, len] = [28 + data as u16, 8 + data as u16].map(u16::to_be_bytes);
    let ip = [0x45, 0, total[0], total[1], 0, number, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [0x1f, 0x90, 0, 53, len[0], len[1], 0, 0];
    [&[2; 12][..], &[8, 0], &ip, &udp, &vec![number; data]].concat()
}

fn is_right(frame: &[u8]) -> bool {
    let ip = Ipv4Packet::new_checked(&frame[ETHERNET..]).unwrap();
    let udp = UdpPacket::new_checked(ip.payload()).unwrap();
    let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
    ip.verify_checksum() && udp.checksum() != 0 && udp.verify_checksum(&from, &to)
}

/// Sends a received frame with these flags.
fn send(house: &mut House, received: Descriptor, port: u16, flags: u16) {
    house.fwps[0].guest.send(Descriptor { port, flags, ..received });
    assert_eq!(house.collect_and_move(0), Ok(1));
}

#[test]
fn a_frame_is_completed_before_it_leaves_or_reaches_the_next_stage_if_the_guest_says_so() {
    let mut house = House::chain(&Plan::default(), 2, Shape::slots(4), Edge::EgressWhereItCame);
    house.gateway.lend_empties(8);
    for (port, flags) in [PORT_REPLY, PORT_NEXT].into_iter().flat_map(|port| [(port, 0), (port, TX_CHECKSUM)]) {
        let sent = datagram(1, 99);
        house.receive(&sent, 3);
        let received = house.fwps[0].publish_all()[0];
        send(&mut house, received, port, flags);
        let seen = if port == PORT_REPLY {
            let [Left { bytes, .. }] = &house.gateway.collect()[..] else { panic!("it leaves") };
            bytes.clone()
        } else {
            let next = house.fwps[1].publish_all()[0];
            let bytes = house.fwps[1].guest.frame(&next);
            house.fwps[1].guest.pass(next, PORT_DROP);
            house.collect_and_move(1).unwrap();
            bytes
        };
        assert_eq!(is_right(&seen), flags == TX_CHECKSUM);
        assert!(flags != 0 || seen == sent);
    }
}

#[test]
fn a_frame_is_completed_where_it_lies_in_its_slot_and_no_other_byte_of_the_pool_changes() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    house.receive(&datagram(1, 20), 0);
    let received = house.fwps[0].publish_all()[0];
    let frame = datagram(2, 1_000);
    for offset in [0, 1, 3, 500] {
        house.fwps[0].guest.write_frame(received.slot, offset, &frame);
        let before = house.fwps[0].guest.slots();
        let sent = Descriptor { offset, len: frame.len() as u16, ..received };
        send(&mut house, sent, PORT_REPLY, TX_CHECKSUM);
        let after = house.fwps[0].guest.slots();
        let changed: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
        let start = usize::from(received.slot) * 1600 + usize::from(offset) + ETHERNET;
        assert!(changed.iter().all(|at| [10, 11, 26, 27].contains(&(at - start))), "{changed:?} of {start}");
        assert!(is_right(&house.gateway.collect()[0].bytes));
        house.receive(&datagram(1, 20), 0);
        assert_eq!(house.fwps[0].publish_all(), [received]);
    }
}

#[test]
fn a_dropped_frame_is_not_looked_at_whatever_its_range() {
    let mut house = House::chain(&Plan::default(), 1, Shape::slots(4), Edge::EgressWhereItCame);
    house.receive(&datagram(1, 20), 0);
    let received = house.fwps[0].publish_all()[0];
    let before = house.fwps[0].guest.snapshot();
    send(&mut house, Descriptor { offset: u16::MAX, len: u16::MAX, ..received }, PORT_DROP, TX_CHECKSUM);
    assert!(house.fwps[0].guest.slots() == before[before.len() - 4 * 1600..]);
}

#[test]
fn no_more_than_256_kib_are_completed_at_once_and_the_rest_follows_in_order() {
    const LEN: usize = 16_000;
    let shape = Shape { slot_count: 64, slot_size: 16_384, ring_entries: 64 };
    let mut house = House::new(&Plan { buffers: 256, buffer_bytes: 16_384, ..Plan::default() });
    let (_, endpoint) = house.make_of(id(0), Guest::new(shape), Wiring::to(Edge::EgressWhereItCame));
    house.command(pinion_mma::mover::MmaCommand::Attach(endpoint));
    house.mma.poll();
    house.gateway.lend_empties(64);
    for number in 0..40 {
        house.gateway.inject(&datagram(number, LEN), 0, id(0));
    }
    house.mma.poll();
    for received in house.fwps[0].publish_all() {
        house.fwps[0].guest.send(Descriptor { port: PORT_REPLY, flags: TX_CHECKSUM, ..received });
    }
    let mut counts = Vec::new();
    let mut numbers = Vec::new();
    while numbers.len() < 40 {
        counts.push(house.fwps[0].collect().unwrap());
        assert_eq!(house.fwps[0].mailbox.has_left_some(), counts.iter().sum::<u32>() < 40);
        house.settle();
        for Left { bytes, .. } in house.gateway.collect() {
            assert!(is_right(&bytes));
            numbers.push(bytes[ETHERNET + 5]);
        }
    }
    assert_eq!(counts, [16, 16, 8], "256 KiB are 16 frames");
    assert_eq!(numbers, (0..40).collect::<Vec<u8>>());
}
