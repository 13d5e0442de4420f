//! The SDK's interface, driven by the fake node.

#![cfg(not(target_family = "wasm"))]

use pinion_sdk::testing::{Harness, Outcome};
use pinion_sdk::{
    BATCH_PACKETS_MAX, Batch, Checksum, Function, InitError, NoRoom, Packet, PacketFunction, SLOT_SIZE, finish, random,
};
use proptest::prelude::*;

/// A function made of one closure for each call.
macro_rules! function {
    ($name:ident, |$batch:ident| $body:expr) => {
        struct $name;
        impl Function for $name {
            fn init(_config: &[u8]) -> Result<Self, InitError> {
                Ok(Self)
            }
            fn handle(&mut self, $batch: Batch<'_>) {
                $body
            }
        }
    };
}

/// Handles each frame as its first byte says.
fn obey(packet: Packet<'_>) {
    match packet.data().first() {
        Some(0) => packet.send(),
        Some(1) => packet.reply(),
        Some(2) => packet.discard(),
        _ => drop(packet),
    }
}

function!(Obey, |batch| batch.for_each(obey));

#[test]
fn each_packet_gets_its_verdict_in_order() {
    let verdicts = Harness::<Obey>::new(b"").unwrap().deliver(&[&[0, 9], &[1, 8], &[2, 7], &[3, 6], &[]]);
    let outcomes: Vec<_> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    use Outcome::{Dropped, Replied, Sent};
    assert_eq!(outcomes, [Sent, Replied, Dropped, Dropped, Dropped]);
    assert!(verdicts.iter().enumerate().all(|(number, verdict)| verdict.frame == Some(number)));
    assert_eq!(verdicts[1].bytes, [1, 8]);
}

/// Does the same, as a packet function.
struct ObeyEach {
    handled: usize,
}

impl PacketFunction for ObeyEach {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        if config.is_empty() { Ok(Self { handled: 0 }) } else { Err("no configuration is known".into()) }
    }

    fn start(&mut self) {
        self.handled = 100;
    }

    fn handle(&mut self, packet: Packet<'_>) {
        self.handled += 1;
        obey(packet);
    }
}

#[test]
fn a_packet_function_gets_each_packet_once_and_in_order() {
    let frames = [&[0, 9][..], &[1, 8], &[2, 7], &[3, 6]].repeat(40);
    let mut harness = Harness::<ObeyEach>::new(b"").unwrap();
    assert_eq!(harness.deliver(&frames), Harness::<Obey>::new(b"").unwrap().deliver(&frames));
    assert_eq!(harness.function().handled, 100 + frames.len());
    assert_eq!(Harness::<ObeyEach>::new(b"x").err(), Some(InitError::from("no configuration is known")));
}

function!(Trust, |batch| for packet in batch {
    match (packet.ip_checksum(), packet.l4_checksum()) {
        (Checksum::Good, Checksum::Good) => packet.send(),
        (Checksum::Unknown, Checksum::Unknown) => packet.reply(),
        _ => packet.discard(),
    }
});

#[test]
fn checksum_results_of_the_device_are_reported() {
    use pinion_abi::{RX_IP_CHECKSUM_GOOD, RX_L4_CHECKSUM_BAD, RX_L4_CHECKSUM_GOOD};
    let outcome = |flags| Harness::<Trust>::new(b"").unwrap().deliver_checked(flags, &[&[0; 60]])[0].outcome;
    assert_eq!(outcome(0), Outcome::Replied);
    assert_eq!(outcome(RX_IP_CHECKSUM_GOOD | RX_L4_CHECKSUM_GOOD), Outcome::Sent);
    assert_eq!(outcome(RX_IP_CHECKSUM_GOOD | RX_L4_CHECKSUM_BAD), Outcome::Dropped);
    assert_eq!(outcome(RX_L4_CHECKSUM_GOOD | RX_L4_CHECKSUM_BAD), Outcome::Replied);
}

function!(Spread, |batch| {
    for packet in batch {
        let output = u16::from(packet.data()[0]);
        packet.send_to(output);
    }
});

#[test]
fn each_packet_takes_its_output_and_send_uses_the_first() {
    let verdicts = Harness::<Spread>::new(b"").unwrap().deliver(&[&[0], &[1], &[15]]);
    let outcomes: Vec<_> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Sent, Outcome::SentTo(1), Outcome::SentTo(15)]);
}

#[test]
#[should_panic(expected = "the function sent to output 16")]
fn an_output_that_no_chain_has_fails_the_test() {
    Harness::<Spread>::new(b"").unwrap().deliver(&[&[16]]);
}

function!(SendToDrop, |batch| batch.for_each(|packet| packet.send_to(pinion_abi::PORT_DROP)));

#[test]
#[should_panic(expected = "the function sent to output 65533")]
fn a_port_number_with_another_meaning_is_not_an_output() {
    Harness::<SendToDrop>::new(b"").unwrap().deliver(&[&[0]]);
}

function!(Neglect, |batch| drop(batch));

#[test]
fn packets_that_were_not_taken_are_dropped() {
    let verdicts = Harness::<Neglect>::new(b"").unwrap().deliver(&[&[1; 60][..]; 100]);
    assert_eq!(verdicts.len(), 100);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
}

function!(Backwards, |batch| {
    let packets: Vec<_> = batch.collect();
    packets.into_iter().rev().for_each(Packet::send);
});

#[test]
fn packets_can_be_held_together_and_sent_in_another_order() {
    let verdicts = Harness::<Backwards>::new(b"").unwrap().deliver(&[&[1], &[2], &[3]]);
    let order: Vec<_> = verdicts.iter().map(|verdict| (verdict.frame, verdict.bytes[0])).collect();
    assert_eq!(order, [(Some(2), 3), (Some(1), 2), (Some(0), 1)]);
}

function!(Resize, |batch| {
    assert!(batch.len() <= BATCH_PACKETS_MAX as usize);
    for mut packet in batch {
        let len = packet.len();
        assert_eq!((packet.headroom(), packet.tailroom()), (64, SLOT_SIZE - 64 - len));
        assert_eq!(packet.ingress_port(), 7);

        packet.set_len(len + 2).unwrap();
        packet.prepend(3).unwrap();
        packet.trim_front(1).unwrap();
        assert_eq!(packet.data()[..2], [0, 0]);
        assert_eq!(packet.data()[len + 2..], [0, 0]);

        let room = SLOT_SIZE - 64 + 2;
        assert_eq!(packet.set_len(room + 1), Err(NoRoom { wanted: room + 1, available: room }));
        assert_eq!(packet.prepend(63), Err(NoRoom { wanted: 63, available: 62 }));
        assert_eq!(packet.trim_front(usize::MAX), Err(NoRoom { wanted: usize::MAX, available: len + 4 }));
        assert_eq!(packet.set_len(usize::MAX).unwrap_err().available, room);
        packet.send();
    }
});

#[test]
fn a_frame_grows_by_zeroes_up_to_the_end_of_its_slot() {
    let mut harness = Harness::<Resize>::new(b"").unwrap();
    // The second round finds the first round's bytes in the slots.
    for fill in [0xff, 0x55] {
        let verdicts = harness.deliver_from(7, &[&[fill; 100][..]; 64]);
        assert!(verdicts.iter().all(|verdict| verdict.bytes[2..102] == [fill; 100] && verdict.bytes.len() == 104));
    }
}

function!(Largest, |batch| {
    for mut packet in batch {
        packet.set_len(SLOT_SIZE - 64).unwrap();
        packet.prepend(64).unwrap();
        packet.send();
    }
});

#[test]
fn a_frame_can_fill_its_slot() {
    let verdicts = Harness::<Largest>::new(b"").unwrap().deliver(&[&[1; SLOT_SIZE - 64]]);
    assert_eq!(verdicts[0].bytes.len(), SLOT_SIZE);
}

#[test]
#[should_panic(expected = "a frame of 2049 bytes does not fit")]
fn the_harness_refuses_frames_that_no_node_would_deliver() {
    let _ = Harness::<Obey>::new(b"").unwrap().deliver(&[&[1; SLOT_SIZE - 63]]);
}

function!(Leak, |batch| batch.for_each(std::mem::forget));

#[test]
#[should_panic(expected = "the function holds all 256 slots for ever")]
fn a_function_that_forgets_packets_runs_out_of_slots() {
    let _ = Harness::<Leak>::new(b"").unwrap().deliver(&[&[1; 60][..]; 257]);
}

function!(FinishOnOne, |batch| {
    for packet in batch {
        if packet.data() == [1] {
            finish();
        }
        packet.send();
    }
});

#[test]
fn a_function_that_finishes_handles_its_batch_and_gets_no_other() {
    let mut harness = Harness::<FinishOnOne>::new(b"").unwrap();
    assert!(harness.deliver(&[&[0][..]; 3]).iter().all(|verdict| verdict.outcome == Outcome::Sent));
    assert!(!harness.finished());
    let mut frames = [&[0_u8][..]; 300];
    frames[70] = &[1];
    let verdicts = harness.deliver(&frames);
    assert!(harness.finished());
    assert!(verdicts.iter().enumerate().all(|(number, verdict)| verdict.frame == Some(number)));
    let batches = 2 * BATCH_PACKETS_MAX as usize;
    assert_eq!(verdicts.len(), 300);
    assert!(verdicts[..batches].iter().all(|verdict| verdict.outcome == Outcome::Sent));
    assert!(
        verdicts[batches..].iter().all(|verdict| verdict.outcome == Outcome::InstanceEnded && verdict.bytes == [0])
    );
    assert_eq!(harness.deliver(&[&[7]])[0].outcome, Outcome::InstanceEnded);
    // Another instance is not affected.
    assert!(!Harness::<FinishOnOne>::new(b"").unwrap().finished());
}

/// Finishes in `init`, if its configuration says so, or else in `start`.
struct FinishEarly {
    in_init: bool,
}

impl Function for FinishEarly {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let in_init = config == b"init";
        if in_init {
            finish();
        }
        Ok(Self { in_init })
    }

    fn start(&mut self) {
        if !self.in_init {
            finish();
        }
    }

    fn handle(&mut self, batch: Batch<'_>) {
        batch.for_each(Packet::send);
    }
}

#[test]
fn finish_in_start_ends_the_instance_and_in_init_has_no_effect() {
    let mut harness = Harness::<FinishEarly>::new(b"start").unwrap();
    assert!(harness.finished());
    assert_eq!(harness.deliver(&[&[0]])[0].outcome, Outcome::InstanceEnded);
    let mut harness = Harness::<FinishEarly>::new(b"init").unwrap();
    assert_eq!(harness.deliver(&[&[0]])[0].outcome, Outcome::Sent);
    assert!(!harness.finished());
}

struct Keyed {
    key: [u8; 16],
}

impl Function for Keyed {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        if config.is_empty() { Err(InitError::new("no key length given")) } else { Ok(Self { key: [0; 16] }) }
    }

    fn start(&mut self) {
        random::fill(&mut self.key);
    }

    fn handle(&mut self, _batch: Batch<'_>) {}
}

#[test]
fn start_runs_after_init_and_a_refusal_carries_its_message() {
    assert_ne!(Harness::<Keyed>::new(b"16").unwrap().function().key, [0; 16]);
    assert_eq!(Harness::<Keyed>::new(b"").err().unwrap(), InitError::from("no key length given"));
}

#[test]
fn random_bytes_of_any_length_are_filled() {
    let mut bytes = vec![0; 10_001];
    random::fill(&mut bytes);
    assert!(bytes.windows(16).all(|window| window.iter().any(|byte| *byte != 0)));
}

proptest! {
    #[test]
    fn no_verdict_loses_a_slot(rounds in proptest::collection::vec(
        proptest::collection::vec(proptest::collection::vec(0_u8..5, 0..40), 0..150), 1..6,
    )) {
        let mut harness = Harness::<Obey>::new(b"").unwrap();
        for frames in rounds {
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            let verdicts = harness.deliver(&frames);
            prop_assert_eq!(verdicts.len(), frames.len());
            for verdict in verdicts {
                prop_assert_eq!(&verdict.bytes, frames[verdict.frame.unwrap()]);
            }
        }
    }
}
