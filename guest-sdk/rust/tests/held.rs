//! Packets that a function keeps for later, and its deadlines, driven by the fake node.

#![cfg(not(target_family = "wasm"))]

use pinion_sdk::testing::{Harness, Outcome, advance_clock_ns};
use pinion_sdk::{Batch, Function, Held, InitError, SLOT_COUNT_DEFAULT, Slots, clock, finish};

/// Holds all packets, and at its deadline handles them as the first byte of its configuration says.
struct Holder {
    deed: u8,
    held: Vec<Held>,
    due_ns: Option<u64>,
    /// The times at which `expire` was called.
    told_ns: Vec<u64>,
}

impl Function for Holder {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        Ok(Self { deed: config[0], held: Vec::new(), due_ns: Some(5_500), told_ns: Vec::new() })
    }

    fn handle(&mut self, batch: Batch<'_>) {
        self.held.extend(batch.map(|mut packet| {
            let _ = packet.trim_front(1);
            packet.hold()
        }));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.due_ns
    }

    fn expire(&mut self, slots: Slots<'_>) {
        self.told_ns.push(clock::now_ns());
        match self.deed {
            b's' => self.held.drain(..).for_each(|held| slots.take(held).send()),
            b'd' => self.held.clear(),
            b'f' => finish(),
            _ => return,
        }
        self.due_ns = None;
    }
}

#[test]
fn held_packets_keep_their_changes_and_are_sent_at_the_deadline() {
    let mut harness = Harness::<Holder>::new(b"s").unwrap();
    assert_eq!(harness.deliver_from(3, &[&[1, 2, 3], &[4, 5]]), []);
    assert_eq!(harness.let_pass_ns(5_000), []);
    let verdicts = harness.let_pass_ns(5_000);
    let seen: Vec<_> = verdicts.iter().map(|it| (it.frame, it.outcome, &it.bytes[..])).collect();
    assert_eq!(seen, [(Some(0), Outcome::Sent, &[2, 3][..]), (Some(1), Outcome::Sent, &[5][..])]);
    assert_eq!(harness.function().told_ns, [6_000], "the clock's step after its deadline");
}

#[test]
fn a_held_packet_that_is_dropped_frees_its_slot() {
    let mut harness = Harness::<Holder>::new(b"d").unwrap();
    for _ in 0..3 {
        harness.function().due_ns = Some(clock::now_ns() + 1);
        let frames = vec![&[7_u8; 60][..]; SLOT_COUNT_DEFAULT];
        assert_eq!(harness.deliver(&frames), []);
        let verdicts = harness.let_pass_ns(1_000);
        assert_eq!(verdicts.len(), SLOT_COUNT_DEFAULT);
        assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Dropped));
    }
}

#[test]
fn packets_that_keep_arriving_do_not_delay_a_deadline() {
    let mut harness = Harness::<Holder>::new(b"s").unwrap();
    assert_eq!(harness.deliver(&[&[1; 60]]), []);
    advance_clock_ns(10_000);
    assert_eq!(harness.deliver(&[&[2; 60]]).len(), 2);
}

#[test]
fn a_deadline_in_the_past_passes_at_each_clock_step() {
    let mut harness = Harness::<Holder>::new(b"-").unwrap();
    harness.let_pass_ns(10_000);
    assert_eq!(harness.function().told_ns, [6_000, 7_000, 8_000, 9_000, 10_000]);
}

#[test]
fn a_function_that_finishes_at_its_deadline_gets_no_more_packets() {
    let mut harness = Harness::<Holder>::new(b"f").unwrap();
    harness.let_pass_ns(10_000);
    assert!(harness.finished());
    assert_eq!(harness.deliver(&[&[1; 60]])[0].outcome, Outcome::InstanceEnded);
}

#[test]
#[should_panic(expected = "takes up only what it has held itself")]
fn a_function_cannot_take_up_packets_of_another() {
    let [mut one, mut other] = [b"s", b"s"].map(|config| Harness::<Holder>::new(config).unwrap());
    one.deliver(&[&[1; 60]]);
    other.deliver(&[&[2; 60]]);
    std::mem::swap(&mut one.function().held, &mut other.function().held);
    one.let_pass_ns(10_000);
}
