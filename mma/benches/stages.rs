//! Measures each stage of a packet's way through MMA and mailbox, in nanoseconds per packet, on one core with warm
//! caches: `cargo bench -p pinion-mma`. The guest's part is done natively and is not counted. See docs/performance.md,
//! "Where the nanoseconds go".
#![allow(unsafe_code)] // The shared support owns memory that guests would.
#![allow(dead_code)] // The shared support has more than this benchmark uses.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use pinion_abi::PORT_NEXT;
use pinion_mma::wiring::Edge;
use support::{House, Plan, Shape, id};

const BURST: usize = 64;
const ROUNDS: u32 = 20_000;

/// Time spent per stage.
#[derive(Default)]
struct Spent {
    deliver: Duration,
    publish: Duration,
    collect: Duration,
    forward: Duration,
    leave: Duration,
}

fn timed<R>(sum: &mut Duration, work: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = work();
    *sum += started.elapsed();
    result
}

/// Sends bursts of frames through a chain of two FWPs and measures the stages.
fn measure(frame_bytes: usize, fwps: usize) -> Spent {
    let plan = Plan { fwps_max: 2 * fwps, buffers: 2048, buffer_bytes: 2176 };
    let mut house = House::new(&plan);
    for pair in 0..fwps as u32 {
        house.attach(
            id(2 * pair),
            Shape { slot_count: 256, slot_size: 2112, ring_entries: 256 },
            Edge::Fwp(id(2 * pair + 1)),
        );
        house.attach(
            id(2 * pair + 1),
            Shape { slot_count: 256, slot_size: 2112, ring_entries: 256 },
            Edge::EgressWhereItCame,
        );
        house.mma.poll();
    }
    let frame = vec![7; frame_bytes];
    let mut spent = Spent::default();
    for round in 0..ROUNDS {
        for place in 0..BURST {
            let target = (round as usize * BURST + place) % fwps;
            house.gateway.inject(&frame, 0, id(2 * target as u32));
        }
        timed(&mut spent.deliver, || house.mma.poll());
        for stage in 0..2 {
            while let Some(id) = house.worker_queue.pop() {
                let fwp = &mut house.fwps[id.index as usize];
                timed(&mut spent.publish, || fwp.mailbox.publish(|_| 0));
                while let Some(received) = fwp.guest.receive() {
                    fwp.guest.pass(received, PORT_NEXT);
                }
                timed(&mut spent.collect, || fwp.collect()).expect("an honest guest");
            }
            timed(if stage == 0 { &mut spent.forward } else { &mut spent.leave }, || house.mma.poll());
        }
        assert_eq!(house.gateway.discard(), BURST);
    }
    spent
}

fn main() {
    println!(
        "{:>6} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "bytes", "FWPs", "deliver", "publish", "collect", "forward", "leave"
    );
    let only: Option<usize> = std::env::args().filter_map(|word| word.parse().ok()).next();
    for (bytes, fwps) in [(64, 1), (64, 64), (64, 1000), (1024, 1)] {
        if only.is_some_and(|only| only != fwps) {
            continue;
        }
        let spent = measure(bytes, fwps);
        let packets = f64::from(ROUNDS) * BURST as f64;
        let ns = |time: Duration, times: f64| time.as_nanos() as f64 / packets / times;
        let Spent { deliver, publish, collect, forward, leave } = spent;
        println!(
            "{bytes:>6} {fwps:>6} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            ns(deliver, 1.0),
            ns(publish, 2.0),
            ns(collect, 2.0),
            ns(forward, 1.0),
            ns(leave, 1.0)
        );
    }
}
