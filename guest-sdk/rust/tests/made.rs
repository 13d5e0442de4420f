//! Packets that a function makes itself, in slots of its own.

use pinion_sdk::testing::{Harness, Outcome};
use pinion_sdk::{Batch, Function, Held, InitError, PACKET_BYTES_MAX, Packet, Slots};

/// The handler of a batch.
type Handle = fn(&mut Maker, Batch<'_>);

/// A function with four slots of its own.
struct Maker {
    handle: Handle,
    held: Vec<Held>,
    /// The number of packets that it could make, of those that it wanted.
    made: usize,
}

impl Function for Maker {
    const OWN_SLOTS: u16 = 4;

    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { handle: |_, batch| batch.for_each(Packet::send), held: Vec::new(), made: 0 })
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

fn maker(handle: Handle) -> Harness<Maker> {
    let mut harness = Harness::<Maker>::new(b"").unwrap();
    harness.function().handle = handle;
    harness
}

#[test]
fn made_packets_are_sent_and_distinguished_from_received_ones() {
    let mut harness = maker(|_, batch| {
        batch.make(b"made").unwrap().reply();
        batch.for_each(Packet::send);
    });
    let verdicts = harness.deliver_from(3, &[b"came"]);
    let seen: Vec<_> = verdicts.iter().map(|it| (it.frame, it.outcome, &it.bytes[..])).collect();
    assert_eq!(seen, [(None, Outcome::Replied, &b"made"[..]), (Some(0), Outcome::Sent, b"came")]);
}

#[test]
fn a_copy_has_the_packets_bytes_and_offset_and_is_independent() {
    let mut harness = maker(|_, batch| {
        for mut packet in batch {
            packet.trim_front(2).unwrap();
            let mut copy = packet.try_clone().unwrap();
            assert_eq!((copy.headroom(), copy.ingress_port()), (packet.headroom(), packet.ingress_port()));
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
        let made = std::iter::from_fn(|| batch.make(&[7; 60])).take(10);
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
        for _ in 0..100 {
            drop(batch.make(&[7; 60]).unwrap());
        }
    });
    let verdicts = harness.deliver(&[&[1; 60]]);
    assert_eq!(verdicts.iter().map(|it| it.frame).collect::<Vec<_>>(), [Some(0)]);
}

#[test]
fn a_made_packet_can_be_held_and_occupies_its_slot_until_sent() {
    let mut harness = maker(|maker, batch| {
        let made: Vec<_> = std::iter::from_fn(|| batch.make(b"later")).collect();
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
        assert!(batch.make(&[7; PACKET_BYTES_MAX + 1]).is_none());
        batch.make(&[7; PACKET_BYTES_MAX]).unwrap().send();
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
            assert!(batch.make(b"x").is_none());
            batch.for_each(|packet| assert!(packet.try_clone().is_none()));
        }
    }
    assert_eq!(Harness::<Without>::new(b"").unwrap().deliver(&[&[1; 60]]).len(), 1);
}
