//! Cost of a worker's timers, in nanoseconds, by their number: `cargo bench -p pinion-runtime --bench timers`. Deadlines are random, within
//! the next ten seconds.
//!
//! * `look`: a poll while nothing is due, without reading the clock;
//! * `set+cancel`: setting and cancelling one FWP's timer among the others;
//! * `anew`: setting a timer again before it is due, as a function that guards against silence does with every packet;
//! * `set`: setting one after the other;
//! * `expire`: the expiry of one timer, with all its steps down the levels and its part of a poll's reading of the clock.

use std::hint::black_box;
use std::time::Instant;

use pinion_mma::id::FwpId;
use pinion_runtime::worker::timers::Timers;

const ROUNDS: usize = 1_000_000;
const WITHIN_NS: u64 = 10_000_000_000;
/// Timer steps of a worker's poll.
const STEPS: usize = 128;
/// Time between two polls.
const POLL_NS: u64 = 10_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}

fn id(index: u64) -> FwpId {
    FwpId { index: index as u32, generation: 0 }
}

/// Returns the mean time of `count` calls.
fn ns_of_each(count: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..count).for_each(&mut work);
    start.elapsed().as_nanos() as f64 / count as f64
}

fn measure(armed: u64) {
    let mut random = Random(1);
    let places = armed.max(1);
    let mut timers = Timers::new(places as usize + 1);
    (0..armed).for_each(|index| timers.set(id(index), 1 + random.below(WITHIN_NS)));
    let look = ns_of_each(ROUNDS, |_| {
        black_box(black_box(&timers).next_ns().is_some_and(|next_ns| next_ns == 0));
    });
    let others = id(places);
    let set_and_cancel = ns_of_each(ROUNDS, |_| {
        timers.set(others, random.below(WITHIN_NS));
        timers.cancel(others);
    });
    let anew = ns_of_each(ROUNDS, |_| timers.set(id(random.below(places)), random.below(WITHIN_NS)));
    (0..places).for_each(|index| timers.cancel(id(index)));
    let mut shuffled: Vec<u64> = (0..places).collect();
    for at in (1..shuffled.len()).rev() {
        shuffled.swap(at, random.below(at as u64 + 1) as usize);
    }
    let set = ns_of_each(shuffled.len(), |at| timers.set(id(shuffled[at]), 1 + random.below(WITHIN_NS)));
    // Polls that find nothing due belong to `look`.
    let (mut now_ns, mut told, mut spent_ns) = (0, 0, 0);
    while told < armed {
        now_ns += POLL_NS;
        let poll = Instant::now();
        if timers.expire(now_ns, STEPS, |_| told += 1) > 0 {
            spent_ns += poll.elapsed().as_nanos();
        }
    }
    let expire = spent_ns as f64 / places as f64;
    println!("{armed:>8} {look:>8.1} {set_and_cancel:>12.1} {anew:>8.1} {set:>8.1} {expire:>8.1}");
}

fn main() {
    println!("{:>8} {:>8} {:>12} {:>8} {:>8} {:>8}", "timers", "look", "set+cancel", "anew", "set", "expire");
    [0, 1_000, 30_000, 100_000].into_iter().for_each(measure);
}
