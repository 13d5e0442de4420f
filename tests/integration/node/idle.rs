//! A node without work leaves the machine's cores idle, and answers at once when a packet comes.
#![forbid(unsafe_code)]

use std::time::Duration;

use pinion_tests::machine::load::{CoreWaits, look};
use pinion_tests::network::bed::{Bed, Device, NODE};
use pinion_tests::random::Random;
use pinion_tests::traffic::echo::{Echo, echoes};
use pinion_tests::traffic::ping::pings;
use pinion_tests::until::until;

/// The length of one measurement.
const WINDOW: Duration = Duration::from_millis(1500);
/// How long to wait for a quiet window: the clients' kernels may send packets of their own.
const QUIET: Duration = Duration::from_secs(30);
/// The most that all threads of an idle node together may use of one core.
const CORE_PERCENT_MAX: f64 = 5.0;
/// The most wake-ups per second of one thread.
const WAKES_PER_SECOND_MAX: f64 = 30.0;
/// Shorter than every timed sleep that could hide a lost wake-up. Without the time that threads have waited for a core.
const ANSWER_MAX: Duration = Duration::from_millis(60);
/// So many answers, of few and of many, may take longer: a shared machine stands still at times.
const SLOW_OF_FEW_MAX: usize = 1;
const SLOW_OF_MANY_MAX: usize = 2;

fn an_idle_node_sleeps_and_answers_at_once(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    let client = &bed.clients[0].namespace;
    pings(client, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    until("time in which the node is idle", QUIET, || {
        let load = look(&bed.node, WINDOW);
        println!("{device:?}: {load:?}");
        (load.core_percent <= CORE_PERCENT_MAX && load.wakes_per_second <= WAKES_PER_SECOND_MAX).then_some(())
    });
    let pauses = [300; 10].map(Duration::from_millis);
    let answers = echoes(client, NODE, &CoreWaits::of(&bed.node), pauses.into_iter());
    println!("{device:?}: after 300 ms, answers took {answers:?}");
    assert_nearly_all_are_quick(answers, SLOW_OF_FEW_MAX);
}

/// Thread by thread, the node falls asleep some 250 us after its last work. Around that time it is most likely to miss an event.
fn nothing_is_lost_while_the_node_falls_asleep(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    let client = &bed.clients[0].namespace;
    pings(client, 3, &format!("-i 0.2 {NODE}")).assert_all(3);
    // Pauses of 0 to 400 us, and at times one of 2 ms; the sequence is the same in each run.
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let pauses = std::iter::repeat_with(|| {
        Duration::from_nanos(if random.below(50) == 0 { 2_000_000 } else { random.below(400_000) })
    });
    let answers = echoes(client, NODE, &CoreWaits::of(&bed.node), pauses.take(10_000));
    let mut times: Vec<_> = answers.iter().map(|answer| answer.took).collect();
    times.sort_unstable();
    let [median, slowest] = [times.len() / 2, times.len() - 1].map(|at| times[at]);
    println!("{device:?}: of {} answers, the median took {median:?}, the slowest {slowest:?}", answers.len());
    assert_nearly_all_are_quick(answers, SLOW_OF_MANY_MAX);
}

#[track_caller]
fn assert_nearly_all_are_quick(answers: Vec<Echo>, slow_max: usize) {
    let slow: Vec<_> = answers.into_iter().filter(|answer| answer.took_without_waits() >= ANSWER_MAX).collect();
    assert!(slow.len() <= slow_max, "answers took {slow:?}");
}

macro_rules! on_each_device {
    ($($device:ident $module:ident),*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn an_idle_node_sleeps_and_answers_at_once() {
                super::an_idle_node_sleeps_and_answers_at_once(Device::$device);
            }

            #[test]
            fn nothing_is_lost_while_the_node_falls_asleep() {
                super::nothing_is_lost_while_the_node_falls_asleep(Device::$device);
            }
        }
    )*};
}

on_each_device!(Tap tap, AfPacket af_packet, AfXdp af_xdp);
