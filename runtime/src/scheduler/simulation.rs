//! Checks the scheduler's laws over random schedules. Random are: which FWPs have work and for how long, how far turns exceed their
//! quantum, and which FWPs arrive and leave. Time is simulated, so that a seed always gives the same schedule; the seed is printed when a
//! law is broken.

use std::collections::HashMap;

use fastrand::Rng;
use pinion_control::model::OverBudget;

use super::*;

/// Schedules that are tried, and turns in each.
const SCHEDULES: u64 = 100_000;
const TURNS: usize = 250;

const FWPS_MAX: usize = 12;
const TENANTS_MAX: usize = 5;
const QUANTUM_NS: u64 = 20_000;
/// How far a turn may exceed its quantum.
const OVERSHOOT_NS: u64 = QUANTUM_NS / 2;
const TURN_NS_MAX: u64 = QUANTUM_NS + OVERSHOOT_NS;
/// A slice ends with the turn in which its quantum is used up.
const SLICE_NS_MAX: u64 = QUANTUM_NS + TURN_NS_MAX;

/// How an FWP behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Always has work.
    Loops,
    /// Gets work for a random time up to the first limit, then none for up to the second.
    Comes { work_ns_max: u64, pause_ns_max: u64 },
}

#[derive(Debug, Clone, Copy)]
struct Guest {
    id: FwpId,
    share: CpuShare,
    habit: Habit,
    /// Work that remains; zero while it waits.
    work_ns: u64,
    wakes_at_ns: u64,
    runnable_since_ns: u64,
    turns: u64,
    had_ns: u64,
    /// CPU time since it was given its current work.
    batch_ns: u64,
    is_over: bool,
}

impl Guest {
    fn is_limited(&self) -> bool {
        self.share.budget != Budget::default() || self.share.tenant_rate.is_some()
    }
}

struct Simulation {
    rng: Rng,
    scheduler: Scheduler,
    guests: Vec<Guest>,
    now_ns: u64,
    /// CPU time used, by tenant.
    had_ns: HashMap<u16, u64>,
    had_by_class_ns: [u64; CLASSES],
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let weights: Vec<u32> = (0..TENANTS_MAX).map(|_| rng.u32(1..=16)).collect();
        let classes = rng.usize(1..=CLASSES);
        let loops_in_ten = rng.u32(0..=10);
        let limited_in_ten = rng.u32(0..=5);
        let tenant_rates: Vec<Option<Rate>> = (0..TENANTS_MAX)
            .map(|_| (rng.u32(0..10) < limited_in_ten).then(|| rate(&mut rng, OverBudget::Throttle)))
            .collect();
        let mut scheduler = Scheduler::new(FWPS_MAX, TENANTS_MAX, QUANTUM_NS);
        let mut guest = |index: u32| {
            let tenant = rng.u16(0..TENANTS_MAX as u16);
            let class = Class::ALL[rng.usize(0..classes)];
            let loops = rng.u32(0..10) < loops_in_ten;
            let comes =
                Habit::Comes { work_ns_max: rng.u64(1..=3 * QUANTUM_NS), pause_ns_max: rng.u64(1..=10 * QUANTUM_NS) };
            let budget = if rng.u32(0..10) < limited_in_ten { budget(&mut rng) } else { Budget::default() };
            let (weight, tenant_rate) = (weights[tenant as usize], tenant_rates[tenant as usize]);
            Guest {
                id: FwpId { index, generation: rng.u32(..) },
                share: CpuShare {
                    tenant: TenantIndex(tenant),
                    generation: TenantGeneration(0),
                    weight,
                    class,
                    budget,
                    tenant_rate,
                },
                habit: if loops { Habit::Loops } else { comes },
                work_ns: 0,
                wakes_at_ns: if loops { 0 } else { rng.u64(0..QUANTUM_NS) },
                runnable_since_ns: 0,
                turns: 0,
                had_ns: 0,
                batch_ns: 0,
                is_over: false,
            }
        };
        let guests: Vec<Guest> = (0..FWPS_MAX as u32).map(&mut guest).collect();
        guests.iter().for_each(|guest| scheduler.adopt(guest.id, guest.share, 0));
        Self { rng, scheduler, guests, now_ns: 0, had_ns: HashMap::new(), had_by_class_ns: [0; CLASSES] }
    }

    /// Wakes FWPs that have work by now. Some that are awake already are woken again.
    fn wake(&mut self) {
        for guest in &mut self.guests {
            if guest.is_over {
                self.scheduler.wake(guest.id, self.now_ns);
            } else if guest.work_ns == 0 && guest.wakes_at_ns <= self.now_ns {
                guest.work_ns = match guest.habit {
                    Habit::Loops => u64::MAX,
                    Habit::Comes { work_ns_max, .. } => self.rng.u64(1..=work_ns_max),
                };
                guest.runnable_since_ns = self.now_ns;
                self.scheduler.wake(guest.id, self.now_ns);
            } else if guest.work_ns != 0 && self.rng.u32(0..4) == 0 {
                self.scheduler.wake(guest.id, self.now_ns);
            }
        }
    }

    /// Simulates one turn, or a pause until an FWP has work or budget again.
    fn step(&mut self) -> Result<(), String> {
        self.scheduler.release(self.now_ns);
        let Some(chosen) = self.scheduler.choose() else { return self.pause() };
        let guest = &mut self.guests[chosen.id.index as usize];
        if guest.id != chosen.id || guest.is_over || guest.work_ns == 0 || guest.runnable_since_ns != chosen.woken_ns {
            return Err(format!("{chosen:?} was chosen, and is {guest:?}"));
        }
        let cpu_ns = guest.work_ns.min(QUANTUM_NS + self.rng.u64(0..=OVERSHOOT_NS));
        self.now_ns += cpu_ns;
        guest.turns += 1;
        guest.had_ns += cpu_ns;
        guest.batch_ns += cpu_ns;
        guest.work_ns = if guest.habit == Habit::Loops { u64::MAX } else { guest.work_ns - cpu_ns };
        guest.runnable_since_ns = self.now_ns;
        *self.had_ns.entry(guest.share.tenant.0).or_default() += cpu_ns;
        self.had_by_class_ns[guest.share.class as usize] += cpu_ns;
        let after = match (guest.work_ns, guest.habit) {
            (0, Habit::Comes { pause_ns_max, .. }) => {
                guest.wakes_at_ns = self.now_ns + self.rng.u64(1..=pause_ns_max);
                After::Waits
            }
            _ => After::Preempted,
        };
        let overrun = self.scheduler.charge(chosen.id, cpu_ns, self.now_ns, after);
        check_overrun(guest, overrun)?;
        guest.is_over = overrun.is_some();
        if after == After::Waits {
            guest.batch_ns = 0;
        }
        self.check_rates(chosen.id.index as usize)
    }

    fn pause(&mut self) -> Result<(), String> {
        let held_until_ns = self.scheduler.held_until_ns();
        let waits = |guest: &&Guest| !guest.is_over && guest.work_ns != 0;
        if let Some(guest) = self.guests.iter().find(waits).filter(|_| held_until_ns.is_none()) {
            return Err(format!("a wake-up was lost: {guest:?} has work and no FWP is chosen"));
        }
        let wakes_at_ns = self.guests.iter().map(|guest| guest.wakes_at_ns).filter(|at_ns| *at_ns > self.now_ns);
        self.now_ns = wakes_at_ns.chain(held_until_ns).min().unwrap_or(self.now_ns + 1).max(self.now_ns);
        Ok(())
    }

    /// Checks that no FWP or tenant has had more than its rate, its burst, and one turn.
    fn check_rates(&self, index: usize) -> Result<(), String> {
        let most_ns = |rate: Rate| {
            let burst_ns = match rate.over_budget {
                OverBudget::Throttle => rate.per_second_ns / 10,
                OverBudget::Kill => rate.per_second_ns,
            };
            burst_ns
                + (u128::from(self.now_ns) * u128::from(rate.per_second_ns) / 1_000_000_000) as u64
                + TURN_NS_MAX
                + 1
        };
        let guest = &self.guests[index];
        let tenant_had_ns = self.had_ns[&guest.share.tenant.0];
        let limits = [(guest.share.budget.rate, guest.had_ns), (guest.share.tenant_rate, tenant_had_ns)];
        match limits.into_iter().find(|(rate, had_ns)| rate.is_some_and(|rate| *had_ns > most_ns(rate))) {
            Some((rate, had_ns)) => Err(format!("{had_ns} ns of {} were had within {rate:?}: {guest:?}", self.now_ns)),
            None => Ok(()),
        }
    }

    /// Checks that all FWPs finish their work when no new work arrives.
    fn check_drained(&mut self) -> Result<(), String> {
        for guest in &mut self.guests {
            guest.habit = Habit::Comes { work_ns_max: 1, pause_ns_max: 1 };
            guest.work_ns = guest.work_ns.min(QUANTUM_NS);
        }
        for _ in 0..100 * TURNS {
            if self.guests.iter().all(|guest| guest.is_over || guest.work_ns == 0) {
                return Ok(());
            }
            self.step()?;
        }
        Err(format!("an FWP never has its turn: {:?}", self.guests))
    }

    fn loops(&self) -> impl Iterator<Item = &Guest> {
        self.guests.iter().filter(|guest| guest.habit == Habit::Loops)
    }

    /// Checks that tenants that always want the core have had equal time per weight, within what slices may add up to. Called where all
    /// FWPs are of one class.
    fn check_fairness(&self) -> Result<(), String> {
        let mut shares: Vec<CpuShare> = self.loops().map(|guest| guest.share).collect();
        shares.sort_unstable_by_key(|share| share.tenant.0);
        shares.dedup_by_key(|share| share.tenant);
        for one in &shares {
            for other in &self.guests {
                let had = |share: &CpuShare| {
                    self.had_ns.get(&share.tenant.0).copied().unwrap_or(0) as f64 / f64::from(share.weight)
                };
                let slack = |share: &CpuShare| SLICE_NS_MAX as f64 / f64::from(share.weight);
                // A tenant that always wants the core is behind no other by more than one slice of each tenant, and the credit of one that
                // returns.
                let behind = had(&other.share) - had(one);
                if behind > slack(one) + slack(&other.share) + QUANTUM_NS as f64 {
                    return Err(format!("{one:?} is {behind} ns behind {other:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that FWPs of one tenant and class that always want the core have had equally many turns.
    fn check_round_robin(&self) -> Result<(), String> {
        for one in self.loops() {
            let is_ahead = |other: &&Guest| other.share == one.share && other.turns > one.turns + 1;
            if let Some(other) = self.loops().find(is_ahead).filter(|_| one.share.budget == Budget::default()) {
                return Err(format!("{one:?} has had fewer turns than {other:?}"));
            }
        }
        Ok(())
    }

    /// Checks that each class that always wants the core has had its part of the time of higher classes.
    fn check_guarantee(&self) -> Result<(), String> {
        for guest in self.loops() {
            let class = guest.share.class as usize;
            let above_ns: u64 = self.had_by_class_ns[..class].iter().sum();
            // A class may be owed up to a quantum, plus its part of the turns given since then. These are one turn of a higher class, one
            // of another class that was owed a quantum, and one more until that is accounted. Fractions of a nanosecond are lost.
            let slack_ns = QUANTUM_NS + 3 * TURN_NS_MAX / GUARANTEED_PART + TURNS as u64;
            let due_ns = (above_ns / GUARANTEED_PART).saturating_sub(slack_ns);
            if self.had_by_class_ns[class] < due_ns {
                return Err(format!(
                    "{:?} has had {} ns and was due {due_ns}",
                    guest.share.class, self.had_by_class_ns[class]
                ));
            }
            // No lower class has had more than its part of what this class and those above had.
            for below in class + 1..CLASSES {
                let above_ns: u64 = self.had_by_class_ns[..below].iter().sum();
                let most_ns = above_ns / GUARANTEED_PART + TURN_NS_MAX;
                if self.had_by_class_ns[below] > most_ns {
                    return Err(format!("class {below} has had {} ns beside {guest:?}", self.had_by_class_ns[below]));
                }
            }
        }
        Ok(())
    }

    fn has_limits(&self) -> bool {
        self.guests.iter().any(Guest::is_limited)
    }

    fn is_of_one_class(&self) -> bool {
        self.guests.windows(2).all(|pair| pair[0].share.class == pair[1].share.class)
    }
}

fn rate(rng: &mut Rng, over_budget: OverBudget) -> Rate {
    Rate { per_second_ns: rng.u64(100_000..=1_000_000_000), over_budget }
}

fn budget(rng: &mut Rng) -> Budget {
    let over_budget = if rng.bool() { OverBudget::Throttle } else { OverBudget::Kill };
    let per_batch_ns = rng.bool().then(|| rng.u64(10_000..20 * QUANTUM_NS));
    let rate = rng.bool().then(|| rate(rng, over_budget));
    Budget { per_batch_ns, rate }
}

/// Checks that an FWP is ended after the turn in which it exceeds its limit, and not earlier.
fn check_overrun(guest: &Guest, overrun: Option<Overrun>) -> Result<(), String> {
    let Budget { per_batch_ns, rate } = guest.share.budget;
    let is_over_batch = per_batch_ns.is_some_and(|limit_ns| guest.batch_ns > limit_ns);
    let might_be_ended =
        rate.is_some_and(|rate| rate.over_budget == OverBudget::Kill && guest.had_ns > rate.per_second_ns);
    match overrun {
        Some(Overrun::Batch { .. }) if is_over_batch => Ok(()),
        Some(Overrun::Second { .. }) if might_be_ended => Ok(()),
        None if !is_over_batch => Ok(()),
        other => Err(format!("{other:?} for {guest:?}")),
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut simulation = Simulation::new(seed);
    for _ in 0..TURNS {
        simulation.wake();
        simulation.step()?;
    }
    simulation.check_round_robin()?;
    if !simulation.has_limits() {
        simulation.check_guarantee()?;
        if simulation.is_of_one_class() {
            simulation.check_fairness()?;
        }
    }
    simulation.check_drained()
}

#[test]
fn no_random_schedule_breaks_a_law() {
    for seed in 0..SCHEDULES {
        if let Err(broken) = run(seed) {
            panic!("schedule {seed}: {broken}");
        }
    }
}
