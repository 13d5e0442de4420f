//! Churn for a chosen time: instances end because their functions finish, or by faults, and must leave nothing behind. `make soak
//! TIME=1200`.

use std::time::{Duration, Instant};

use pinion_tests::machine::holdings::Holdings;
use pinion_tests::product::build::hostile;
use rustix::process::getpid;

use super::service;
use crate::clients::newcomers::{Answer, Pace};
use crate::measurement::run::Cores;
use crate::systems::hosted::{CACHE_MAX, HostedNode, Service};
use pinion_control::model::Class;

/// Few, so that a node soon has its working size: indices that were used once keep their pages.
const FWPS_MAX: usize = 2 * CACHE_MAX as usize;
/// More clients at once than the node has FWPs.
const FLOOD_CLIENTS: usize = 10 * FWPS_MAX;
const FLOOD_INTERVAL: Duration = Duration::from_micros(2);
/// Half of the highest rate that two cores have sustained.
const INTERVAL: Duration = Duration::from_micros(27);
const CLIENTS_PER_ROUND: usize = 100_000;
/// Rounds in which a node may still grow.
const ROUNDS_TO_GROW: usize = 2;
/// Of so many clients one may be lost, as the machine may be busy with other work for longer than the cache lasts.
const CLIENTS_PER_LOSS: u64 = 1_000;
/// Instances that are ended by a trap.
const KILLS: u64 = 1_000_000;
/// Slower than the node could, so that most instances that end are replaced in time.
const KILL_INTERVAL: Duration = Duration::from_micros(60);

/// Starts a node and uses every FWP index once.
fn node_of_working_size(service: &Service<'_>) -> HostedNode {
    let mut node = HostedNode::start(Cores::chosen(&[]).unwrap(), FWPS_MAX, service).unwrap();
    node.offer(FLOOD_CLIENTS, Pace::Every(FLOOD_INTERVAL)).unwrap();
    node.await_rest(0).unwrap();
    node
}

/// Calls `round` until it returns that it is enough, and often enough to tell; the process's resources must not grow from one call to
/// another.
fn without_growth(mut round: impl FnMut() -> bool) {
    let (mut before, mut rounds) = (None::<Holdings>, 0);
    loop {
        let is_enough = !round();
        rounds += 1;
        let now = Holdings::of(getpid());
        println!("round {rounds}: {now:?}");
        match before {
            Some(before) if rounds > ROUNDS_TO_GROW => now.assert_not_grown_from(&before, 0),
            _ => before = Some(before.map_or(now, |before| before.max(now))),
        }
        if is_enough && rounds > ROUNDS_TO_GROW {
            return;
        }
    }
}

#[test]
#[ignore = "takes as long as PINION_SOAK_SECONDS says: `make soak`"]
fn instances_that_finish_leave_nothing_behind() {
    let seconds = std::env::var("PINION_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.expect("PINION_SOAK_SECONDS is a number of seconds"));
    let mut node = node_of_working_size(&service());
    let (start, mut clients, mut lost) = (Instant::now(), 0, 0);
    without_growth(|| {
        let tally = node.offer(CLIENTS_PER_ROUND, Pace::Every(INTERVAL)).unwrap();
        assert_eq!(tally.wrong, 0, "{:?}", tally.first_wrong);
        (clients, lost) = (clients + CLIENTS_PER_ROUND as u64, lost + tally.lost);
        node.await_rest(0).unwrap();
        println!("{clients} clients, {lost} lost, p99 {:.1} us", tally.times.at_us(99.0));
        start.elapsed() < time
    });
    assert!(lost * CLIENTS_PER_LOSS <= clients, "{lost} of {clients} clients got no reply");
}

#[test]
#[ignore = "takes some minutes: `make soak`"]
fn instances_that_are_killed_leave_nothing_behind() {
    let trapper = Service {
        module: hostile("trapper"),
        config: "",
        stages: 1,
        policy: "per-client",
        class: Class::Throughput,
        cache: CACHE_MAX,
        answer: Answer::Echoed,
    };
    let mut node = node_of_working_size(&trapper);
    without_growth(|| {
        let tally = node.offer(CLIENTS_PER_ROUND, Pace::Every(KILL_INTERVAL)).unwrap();
        assert_eq!(tally.lost, CLIENTS_PER_ROUND as u64, "a function that traps sends no answer");
        node.await_rest(0).unwrap();
        let killed = node.chain().unwrap().failures;
        println!("{killed} instances were killed");
        killed < KILLS
    });
}
