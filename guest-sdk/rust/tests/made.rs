//! Packets that a function makes itself, in slots of its own.

use pinion_sdk::testing::{Harness, Outcome};
use pinion_sdk::{Batch, Direction, Function, Held, InitError, PACKET_BYTES_MAX, Packet, Slots, Way};

/// The handler of a batch.
type Handle = fn(&mut Maker, Batch<'_>);

/// A function with four slots of its own.
struct Maker {
    handle: Handle,
    held: Vec<Held>,
    /// The number of packets that it could make, of those that it wanted.
    made: usize,
    /// Those of the packets that it got, as they came.
    ways: Vec<Way>,
}

impl Function for Maker {
    const OWN_SLOTS: u16 = 4;

    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { handle: |_, batch| batch.for_each(Packet::send), held: Vec::new(), made: 0, ways: Vec::new() })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        (self.handle)(self, batch);
    }

    fn deadline_ns(&self) -> Option<u64> {
        (!self.held.is_empty()).then_some(0)
    }

    fn expire(&mut self, slots: Slots<'_>) {
        self.held.drain(..).for_each(|held| slots.take(held).send());
    }
}

/// Drops a batch; returns access to the slots, and the way of its first packet.
fn first_way(mut batch: Batch<'_>) -> (Slots<'_>, Way) {
    (batch.slots(), batch.next().expect("a batch has a packet").way())
}

fn maker(handle: Handle) -> Harness<Maker> {
    let mut harness = Harness::<Maker>::new(b"").unwrap();
    harness.function().handle = handle;
    harness
}

#[test]
fn made_packets_are_sent_and_distinguished_from_received_ones() {
    let mut harness = maker(|_, batch| {
        let slots = batch.slots();
        for packet in batch {
            slots.make(b"made", packet.way()).unwrap().reply();
            packet.send();
        }
    });
    let verdicts = harness.deliver_from(3, &[b"came"]);
    let seen: Vec<_> = verdicts.iter().map(|it| (it.frame, it.outcome, &it.bytes[..])).collect();
    assert_eq!(seen, [(None, Outcome::Replied, &b"made"[..]), (Some(0), Outcome::Sent, b"came")]);
}

#[test]
fn made_packets_go_by_the_way_that_they_were_given_whatever_came_last() {
    let mut harness = maker(|maker, batch| {
        let slots = batch.slots();
        for packet in batch {
            if !maker.ways.contains(&packet.way()) {
                maker.ways.push(packet.way());
            }
        }
        for way in &maker.ways {
            let made = slots.make(b"made", *way).unwrap();
            assert_eq!((made.way(), made.ingress_port(), made.arrived_us()), (*way, way.ingress_port(), 0));
            made.reply();
        }
    });
    let deliveries =
        [(0, Direction::Forward), (5, Direction::Forward), (5, Direction::Backward), (0, Direction::Forward)];
    let mut last = Vec::new();
    for (port, direction) in deliveries {
        last = harness.deliver_direction(direction, port, &[b"came"]);
    }
    let made = last.iter().filter(|it| it.frame.is_none()).map(|it| (it.ingress_port, it.direction.unwrap()));
    assert_eq!(made.collect::<Vec<_>>(), deliveries[..3]);
    assert_eq!(harness.function().ways.len(), 3, "both directions of a port are ways of their own");
}

#[test]
#[should_panic(expected = "the function got no packet by the way of")]
fn a_way_that_another_instance_has_learned_is_detected() {
    let mut other = maker(|maker, batch| maker.ways.extend(batch.map(|packet| packet.way())));
    other.deliver_from(3, &[b"came"]);
    let mut harness = maker(|maker, batch| {
        for way in &maker.ways {
            batch.make(b"made", *way).unwrap().reply();
        }
    });
    harness.function().ways = std::mem::take(&mut other.function().ways);
    harness.deliver_from(4, &[b"came"]);
}

#[test]
fn a_copy_has_the_packets_bytes_and_offset_and_is_independent() {
    let mut harness = maker(|_, batch| {
        for mut packet in batch {
            packet.trim_front(2).unwrap();
            let mut copy = packet.try_clone().unwrap();
            assert_eq!((copy.headroom(), copy.way()), (packet.headroom(), packet.way()));
            copy.data_mut().reverse();
            copy.send_to(1);
            packet.send();
        }
    });
    let verdicts = harness.deliver_from(3, &[b"abcd"]);
    let seen: Vec<_> = verdicts.iter().map(|it| (it.frame, it.outcome, &it.bytes[..])).collect();
    assert_eq!(seen, [(None, Outcome::SentTo(1), &b"dc"[..]), (Some(0), Outcome::Sent, b"cd")]);
}

#[test]
fn own_slots_can_be_used_again_once_they_are_returned() {
    let mut harness = maker(|maker, batch| {
        let (slots, way) = first_way(batch);
        let made = std::iter::from_fn(|| slots.make(&[7; 60], way)).take(10);
        maker.made = made.map(Packet::send).count();
    });
    for _ in 0..5 {
        harness.deliver(&[&[1; 60]]);
        assert_eq!(harness.function().made, 4);
    }
}

#[test]
fn a_made_packet_that_is_not_sent_frees_its_slot_at_once() {
    let mut harness = maker(|_, batch| {
        let (slots, way) = first_way(batch);
        for _ in 0..100 {
            drop(slots.make(&[7; 60], way).unwrap());
        }
    });
    let verdicts = harness.deliver(&[&[1; 60]]);
    assert_eq!(verdicts.iter().map(|it| it.frame).collect::<Vec<_>>(), [Some(0)]);
}

#[test]
fn a_made_packet_can_be_held_and_occupies_its_slot_until_sent() {
    let mut harness = maker(|maker, batch| {
        let (slots, way) = first_way(batch);
        let made: Vec<_> = std::iter::from_fn(|| slots.make(b"later", way)).collect();
        maker.made = made.len();
        maker.held.extend(made.into_iter().map(Packet::hold));
    });
    // Its deadline has passed when the packets were handled.
    let verdicts = harness.deliver(&[&[1; 60]]);
    assert_eq!(verdicts.iter().filter(|it| it.frame.is_none() && it.bytes == b"later").count(), 4);
    harness.deliver(&[&[1; 60]]);
    assert_eq!(harness.function().made, 4);
}

#[test]
fn made_packets_are_at_most_as_long_as_received_ones() {
    let mut harness = maker(|_, batch| {
        let (slots, way) = first_way(batch);
        assert!(slots.make(&[7; PACKET_BYTES_MAX + 1], way).is_none());
        slots.make(&[7; PACKET_BYTES_MAX], way).unwrap().send();
    });
    assert!(harness.deliver(&[&[1; 60]]).iter().any(|it| it.bytes.len() == PACKET_BYTES_MAX));
}

#[test]
fn a_function_without_slots_of_its_own_makes_nothing() {
    struct Without;

    impl Function for Without {
        fn init(_config: &[u8]) -> Result<Self, InitError> {
            Ok(Self)
        }

        fn handle(&mut self, batch: Batch<'_>) {
            let slots = batch.slots();
            for packet in batch {
                assert!(slots.make(b"x", packet.way()).is_none());
                assert!(packet.try_clone().is_none());
            }
        }
    }
    assert_eq!(Harness::<Without>::new(b"").unwrap().deliver(&[&[1; 60]]).len(), 1);
}
