//! Functions with a loop of their own, on a fake node.

use pinion_sdk::metrics::Counter;
use pinion_sdk::testing::{LoopHarness, Outcome, advance_clock_ns, take_log};
use pinion_sdk::{Batch, Function, InitError, Io, LogLevel, Looping, clock, info};

const MILLISECOND_NS: u64 = 1_000_000;

/// Sends received frames on, and then a frame of its own whenever none has arrived for a millisecond. The byte of its configuration ends it.
struct Beat {
    end: u8,
    beats: Counter,
}

impl Looping for Beat {
    const OWN_SLOTS: u16 = 2;

    fn init(config: &[u8]) -> Result<Self, InitError> {
        let end = *config.first().ok_or("the configuration must be a byte")?;
        Ok(Self { end, beats: Counter::new("beats", "Frames of its own.") })
    }

    fn run(&mut self, io: &mut Io<'_>) {
        let (mut next_ns, mut way) = (clock::now_ns() + MILLISECOND_NS, None);
        loop {
            if let Some(batch) = io.wait_until(next_ns) {
                for packet in batch {
                    way = Some(packet.way());
                    if packet.data()[0] == self.end {
                        info!("asked to end");
                        return packet.reply();
                    }
                    packet.send();
                }
            } else {
                self.beats.increment();
                if let Some(packet) = way.and_then(|way| io.slots().make(&[9; 60], way)) {
                    packet.send();
                }
            }
            next_ns = clock::now_ns() + MILLISECOND_NS;
        }
    }
}

fn harness() -> LoopHarness<Beat> {
    LoopHarness::new(&[7]).unwrap_or_else(|refusal| panic!("{refusal}"))
}

#[test]
fn a_configuration_can_be_refused() {
    let refusal = LoopHarness::<Beat>::new(b"").err().expect("it is refused");
    assert_eq!(refusal.to_string(), "the configuration must be a byte");
}

#[test]
fn any_number_of_packets_comes_in_batches() {
    let frames: Vec<[u8; 60]> = (0..600).map(|number: u32| [(number % 7) as u8; 60]).collect();
    let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
    let verdicts = harness().deliver(&frames);
    assert!(verdicts.iter().all(|verdict| verdict.outcome == Outcome::Sent));
    let numbers: Vec<usize> = verdicts.iter().filter_map(|verdict| verdict.frame).collect();
    assert_eq!(numbers, (0..600).collect::<Vec<_>>());
}

#[test]
fn each_deadline_is_met_once_and_own_slots_are_returned() {
    let mut harness = harness();
    harness.deliver_from(3, &[&[1; 60]]);
    let beats = harness.let_pass_ns(10 * MILLISECOND_NS);
    assert_eq!(beats.len(), 10);
    assert!(beats.iter().all(|beat| (beat.frame, beat.outcome, beat.ingress_port) == (None, Outcome::Sent, 3)));
    assert_eq!(harness.metric("beats", &[]), Some(10));
}

#[test]
fn the_clock_is_the_tests_own() {
    let mut harness = harness();
    harness.deliver(&[&[1; 60]]);
    let before_ns = clock::now_ns();
    harness.let_pass_ns(MILLISECOND_NS / 2);
    assert_eq!(clock::now_ns(), before_ns + MILLISECOND_NS / 2);
    advance_clock_ns(MILLISECOND_NS);
    assert_eq!(harness.let_pass_ns(2_000).len(), 1, "a time that has passed is due in the clock's next step");
}

#[test]
fn a_function_that_returns_ends_and_its_sent_packets_go_out() {
    let mut harness = harness();
    let verdicts = harness.deliver(&[&[1; 60], &[7; 60], &[2; 60]]);
    let outcomes: Vec<Outcome> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Sent, Outcome::Replied, Outcome::Dropped]);
    assert!(harness.finished());
    assert_eq!(take_log(), [(LogLevel::Info, "asked to end".to_owned())]);
    assert_eq!(harness.deliver(&[&[1; 60]])[0].outcome, Outcome::InstanceEnded);
}

/// A function of the usual form.
struct Picky;

impl Function for Picky {
    fn init(_config: &[u8]) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, batch: Batch<'_>) {
        for packet in batch {
            assert!(packet.data()[0] != 13, "it does not like 13");
            packet.send();
        }
    }
}

#[test]
fn a_function_of_the_usual_form_is_a_loop_as_well() {
    let verdicts = LoopHarness::<Picky>::new(b"").unwrap().deliver(&[&[1; 60], &[2; 60]]);
    assert!(verdicts.len() == 2 && verdicts.iter().all(|verdict| verdict.outcome == Outcome::Sent));
}

#[test]
#[should_panic(expected = "it does not like 13")]
fn a_function_that_panics_fails_its_test() {
    let _ = LoopHarness::<Picky>::new(b"").unwrap().deliver(&[&[13; 60]]);
}
