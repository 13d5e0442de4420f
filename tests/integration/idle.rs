//! A node with nothing to do leaves the machine's cores alone, and is there at once when something comes.
#![forbid(unsafe_code)]

use std::time::Duration;

use pinion_tests::bed::{Bed, Device, NODE};
use pinion_tests::echo::echoes;
use pinion_tests::load::look;
use pinion_tests::ping::ping;
use pinion_tests::random::Random;
use pinion_tests::until::until;

/// What is measured at once.
const WINDOW: Duration = Duration::from_millis(1500);
/// How long clients may have things to say of themselves before there is such a quiet time.
const QUIET: Duration = Duration::from_secs(30);
/// What all threads of an idle node together may have of one core.
const CORE_PERCENT_MAX: f64 = 5.0;
/// How often one thread may wake up.
const WAKES_PER_SECOND_MAX: f64 = 30.0;
/// Every timed sleep that would hide a lost wake-up is longer.
const ANSWER_MAX: Duration = Duration::from_millis(60);
/// So many answers may take longer, of few and of many: now and then a machine that is shared stands still.
const SLOW_OF_FEW_MAX: usize = 1;
const SLOW_OF_MANY_MAX: usize = 2;

fn an_idle_node_sleeps_and_answers_at_once(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    let client = &bed.clients[0].namespace;
    ping(client, &format!("-c 3 -i 0.2 {NODE}")).assert_all(3);
    until("time in which the node is idle", QUIET, || {
        let load = look(&bed.node, WINDOW);
        println!("{device:?}: {load:?}");
        (load.core_percent <= CORE_PERCENT_MAX && load.wakes_per_second <= WAKES_PER_SECOND_MAX).then_some(())
    });
    let pauses = [300; 10].map(Duration::from_millis);
    let answers = echoes(client, NODE, pauses.into_iter());
    println!("{device:?}: after 300 ms, answers took {answers:?}");
    assert_nearly_all_are_quick(answers, SLOW_OF_FEW_MAX);
}

/// Thread by thread, the node falls asleep some 250 us after the last thing it did: around then it is most likely to
/// miss something.
fn nothing_is_lost_while_the_node_falls_asleep(device: Device) {
    let bed = Bed::new(device);
    bed.apply_echo("per-client");
    let client = &bed.clients[0].namespace;
    ping(client, &format!("-c 3 -i 0.2 {NODE}")).assert_all(3);
    // Pauses of 0 to 400 us that are the same in each run, and now and then one of 2 ms.
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let pauses = std::iter::repeat_with(|| {
        Duration::from_nanos(if random.below(50) == 0 { 2_000_000 } else { random.below(400_000) })
    });
    let mut answers = echoes(client, NODE, pauses.take(10_000));
    answers.sort_unstable();
    let [median, slowest] = [answers.len() / 2, answers.len() - 1].map(|at| answers[at]);
    println!("{device:?}: of {} answers, the median took {median:?}, the slowest {slowest:?}", answers.len());
    assert_nearly_all_are_quick(answers, SLOW_OF_MANY_MAX);
}

#[track_caller]
fn assert_nearly_all_are_quick(answers: Vec<Duration>, slow_max: usize) {
    let slow: Vec<_> = answers.into_iter().filter(|answer| *answer >= ANSWER_MAX).collect();
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
