//! Tests of the timing wheel, also against a sorted list.

use std::collections::BTreeMap;

use super::*;

const TICK_NS: u64 = 1 << TICK_BITS;
const HOUR_NS: u64 = 3_600_000_000_000;

fn id(index: u32) -> FwpId {
    FwpId { index, generation: 7 }
}

/// Advances the time, however many steps that takes.
fn expired(timers: &mut Timers, now_ns: u64) -> Vec<FwpId> {
    let mut told = Vec::new();
    timers.expire(now_ns, usize::MAX, |id| told.push(id));
    told
}

#[test]
fn a_timer_is_due_in_the_tick_after_its_deadline_and_not_before_its_deadline() {
    for deadline_ns in [1, TICK_NS - 1, TICK_NS, TICK_NS + 1, 1_000_000, 77_777_777, 3 * HOUR_NS, 20_000 * HOUR_NS] {
        let mut timers = Timers::new(4);
        timers.set(id(2), deadline_ns);
        assert!(timers.next_ns().is_some_and(|next_ns| next_ns < deadline_ns + TICK_NS));
        assert_eq!(expired(&mut timers, deadline_ns - 1), []);
        assert_eq!(expired(&mut timers, deadline_ns + TICK_NS), [id(2)], "{deadline_ns}");
        assert_eq!(timers.next_ns(), None);
    }
}

#[test]
fn a_deadline_that_has_passed_is_due_in_the_next_tick() {
    let mut timers = Timers::new(1);
    expired(&mut timers, HOUR_NS);
    timers.set(id(0), 5);
    assert_eq!(expired(&mut timers, HOUR_NS), []);
    assert_eq!(expired(&mut timers, HOUR_NS + TICK_NS), [id(0)]);
}

#[test]
fn the_largest_deadline_has_a_slot_too() {
    let mut timers = Timers::new(1);
    timers.set(id(0), u64::MAX);
    assert_eq!(expired(&mut timers, u64::MAX), []);
    timers.cancel(id(0));
    assert_eq!(timers.next_ns(), None);
}

#[test]
fn a_timer_that_is_set_again_is_due_only_at_its_new_deadline() {
    let mut timers = Timers::new(2);
    timers.set(id(0), 10 * TICK_NS);
    timers.set(id(0), 1000 * TICK_NS);
    assert_eq!(expired(&mut timers, 999 * TICK_NS), []);
    timers.set(id(0), 1001 * TICK_NS);
    assert_eq!(expired(&mut timers, 1000 * TICK_NS), []);
    assert_eq!(expired(&mut timers, 2000 * TICK_NS), [id(0)]);
    assert_eq!(expired(&mut timers, HOUR_NS), []);
}

#[test]
fn a_cancelled_timer_is_never_due_and_an_old_id_cancels_no_other_timer() {
    let mut timers = Timers::new(2);
    let successor = FwpId { index: 0, generation: 8 };
    timers.set(id(0), TICK_NS);
    timers.cancel(id(0));
    timers.cancel(id(1));
    assert_eq!(timers.next_ns(), None);
    timers.set(id(0), TICK_NS);
    timers.set(successor, TICK_NS);
    timers.cancel(id(0));
    assert_eq!(expired(&mut timers, TICK_NS), [successor]);
}

#[test]
fn advancing_by_a_long_time_takes_no_more_steps_than_timers_and_levels() {
    let mut timers = Timers::new(1);
    timers.set(id(0), 1000 * HOUR_NS);
    let steps = timers.expire(2000 * HOUR_NS, usize::MAX, |_| ());
    assert!(steps <= 2 * LEVELS + 1, "{steps} steps");
    assert_eq!(timers.expire(u64::MAX, usize::MAX, |_| ()), 0);
}

#[test]
fn a_hundred_thousand_timers_take_no_step_while_none_is_due_and_one_per_level_each_in_total() {
    const COUNT: u32 = 100_000;
    let mut timers = Timers::new(COUNT as usize);
    // Spread over an hour that begins in an hour.
    (0..COUNT).for_each(|index| timers.set(id(index), HOUR_NS + u64::from(index) * HOUR_NS / u64::from(COUNT)));
    let mut steps = |now_ns: u64, told: &mut usize| timers.expire(now_ns, usize::MAX, |_| *told += 1);
    let mut told = 0;
    let before: usize = (1..=10_000).map(|tick| steps(tick * TICK_NS, &mut told)).sum();
    assert_eq!((before, told), (0, 0));
    let after: usize = (1..=10_000).map(|part| steps(HOUR_NS + part * HOUR_NS / 9_999, &mut told)).sum();
    assert_eq!(told, COUNT as usize);
    assert!(after <= COUNT as usize * LEVELS, "{after} steps for {COUNT} timers");
}

#[test]
fn no_more_steps_are_taken_per_call_than_allowed_and_no_timer_is_lost() {
    const COUNT: u32 = 1000;
    let mut timers = Timers::new(COUNT as usize);
    (0..COUNT).for_each(|index| timers.set(id(index), 5_000 * TICK_NS + u64::from(index % 3) * TICK_NS));
    let (mut told, mut calls) = (Vec::new(), 0);
    while told.len() < COUNT as usize {
        let next_ns = timers.next_ns().expect("timers remain");
        assert!(next_ns <= 5_002 * TICK_NS);
        assert!(timers.expire(6_000 * TICK_NS, 64, |id| told.push(id.index)) <= 64);
        calls += 1;
        assert!(calls < COUNT, "it does not come to an end");
    }
    let expected: Vec<_> = (0..3).flat_map(|tick| (0..COUNT).filter(move |index| index % 3 == tick)).collect();
    assert_eq!(told, expected);
}

#[test]
fn a_sleeper_wakes_for_the_first_deadline_itself_unless_many_share_its_slot() {
    let mut timers = Timers::new(100);
    for index in 0..WALK_MAX as u32 {
        timers.set(id(index), (69_500 - u64::from(index)) * TICK_NS);
        assert_eq!(timers.wake_ns(), Some((69_500 - u64::from(index)) * TICK_NS));
    }
    timers.set(id(99), 69_000 * TICK_NS);
    assert_eq!(timers.wake_ns(), timers.next_ns());
    assert_eq!(expired(&mut timers, 69_000 * TICK_NS), [id(99)]);
    timers.set(id(98), 1);
    assert_eq!(timers.wake_ns(), Some(69_001 * TICK_NS));
}

#[test]
fn timers_may_be_set_and_cancelled_while_due_ones_are_not_reported_yet() {
    let mut timers = Timers::new(8);
    (0..6).for_each(|index| timers.set(id(index), 100 * TICK_NS));
    let mut told = Vec::new();
    // Out of level 1, then out of level 0, then one of the timers.
    while told.is_empty() {
        timers.expire(100 * TICK_NS, 1, |id| told.push(id.index));
    }
    timers.cancel(id(1));
    timers.set(id(2), 101 * TICK_NS);
    timers.set(id(6), 3);
    timers.expire(100 * TICK_NS, usize::MAX, |id| told.push(id.index));
    assert_eq!(told, [0, 3, 4, 5]);
    assert_eq!(expired(&mut timers, 101 * TICK_NS), [id(2), id(6)]);
}

/// SplitMix64: the same sequence in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a time of any magnitude from zero to some days.
    fn time_ns(&mut self) -> u64 {
        let magnitude = self.below(50);
        self.next() & ((1 << magnitude) - 1)
    }
}

/// The reference: a list that is searched.
#[derive(Default)]
struct Model {
    now: u64,
    timers: BTreeMap<u32, (u64, FwpId)>,
}

impl Model {
    fn set(&mut self, id: FwpId, deadline_ns: u64) {
        let tick = deadline_ns.div_ceil(TICK_NS).max(self.now + 1);
        self.timers.insert(id.index, (tick, id));
    }

    fn cancel(&mut self, id: FwpId) {
        if self.timers.get(&id.index).is_some_and(|(_, set)| *set == id) {
            self.timers.remove(&id.index);
        }
    }

    /// Returns the ticks at which timers are due, and the FWPs; in no order within a tick.
    fn expire(&mut self, now_ns: u64) -> Vec<(u64, FwpId)> {
        self.now = now_ns / TICK_NS;
        let mut due: Vec<_> = self.timers.values().copied().filter(|(tick, _)| *tick <= self.now).collect();
        due.iter().for_each(|(_, id)| _ = self.timers.remove(&id.index));
        due.sort();
        due
    }
}

#[test]
fn timers_behave_like_a_sorted_list() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let places = 1 + random.below(200);
        let (mut timers, mut model, mut now_ns) = (Timers::new(places as usize), Model::default(), 0);
        for step in 0..600 {
            let id = FwpId { index: random.below(places) as u32, generation: random.below(3) as u32 };
            match random.below(8) {
                0..4 => {
                    let deadline_ns = (now_ns + random.time_ns()).saturating_sub(random.below(2) * random.time_ns());
                    timers.set(id, deadline_ns);
                    model.set(id, deadline_ns);
                }
                4..6 => {
                    timers.cancel(id);
                    model.cancel(id);
                }
                _ => {
                    now_ns += random.time_ns();
                    let expected = model.expire(now_ns);
                    let steps_max = 1 + random.below(100) as usize;
                    let mut told = Vec::new();
                    while timers.expire(now_ns, steps_max, |id| told.push(id)) == steps_max {}
                    let tick_of = |id: &FwpId| expected.iter().find(|(_, due)| due == id).map(|(tick, _)| *tick);
                    let ticks: Vec<_> = told.iter().map(tick_of).collect();
                    assert!(
                        ticks.is_sorted(),
                        "seed {seed}, step {step}: {told:?} are not in the order of {expected:?}"
                    );
                    let mut told: Vec<_> = told.into_iter().map(|id| (tick_of(&id).unwrap_or(0), id)).collect();
                    told.sort();
                    assert_eq!(told, expected, "seed {seed}, step {step}");
                }
            }
            let first = model.timers.values().map(|(tick, _)| *tick).min();
            let next = timers.next_ns().map(|next_ns| next_ns / TICK_NS);
            let wake = timers.wake_ns().map(|wake_ns| wake_ns / TICK_NS);
            assert!(next <= wake && wake <= first, "seed {seed}, step {step}: {next:?}, {wake:?}, {first:?}");
            assert_eq!(next.is_none(), first.is_none(), "seed {seed}, step {step}");
            assert!(next <= first && next >= first.map(|_| model.now), "seed {seed}, step {step}: {next:?}, {first:?}");
        }
    }
}
