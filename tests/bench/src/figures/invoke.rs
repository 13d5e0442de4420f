//! `invoke`: the delay until a called function has answered, and the rate of calls, beside resident processes (Micro, table 1).

mod dispatch;
mod node;
mod processes;

use std::time::Duration;

use comfy_table::Table;
use pinion_gateway::invoke::FunctionRef;
use pinion_runtime::instruments::latencies::LatencySnapshot;
use serde::Serialize;

use self::dispatch::{Plan, Tally};
use self::node::Functions;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::Run;
use crate::systems::hosted;
use crate::systems::processes::{Start, start_times};

/// The number of calls of resident functions and processes, one after the other. As many again come before and are not counted.
const WARM_CALLS: usize = 100_000;
const PROCESS_CALLS: usize = 20_000;
/// The pause between an answer and the next call of a function without an instance, so that calls do not overlap.
const COLD_PAUSE: Duration = Duration::from_micros(500);
/// Functions of which nothing is mapped.
const ON_DISK: usize = 40;
const DISK_PAUSE: Duration = Duration::from_millis(5);
/// Processes that are started one after the other.
const PROCESSES_STARTED: usize = 1000;

/// The delay until a function that is called by name has answered, and the rate of calls, beside resident processes
///
/// A node in this process, with gateway and MMA on the first core and the worker on the second, has so many functions: chains of the
/// function macswap, made of so many templates, each with an instance and a memory of its own. The dispatcher calls them at random by the
/// node's own interface, from the gateway's thread. A time runs from right before the call until the answer is back at the dispatcher, by the
/// dispatcher's clock. Before 2026-11-26 it ended when the function had run its first instructions with the message, which is sooner. Each
/// call counts, and each answer is compared with what was sent.
///
/// warm_* are of functions that all have instances, each call after the previous one's answer. warm_per_s_per_core is the rate of answers
/// with many calls in flight, on one worker core. cold_* are of functions whose template is mapped, and that have no instance: each is
/// called once, and its instance is created at an index that another has left. cold_new_place_p50_us is the same at an index that was never
/// used, as in a node that has just started. disk_p50_us is of functions of which nothing is mapped and, as far as the kernel follows the
/// advice, nothing is in memory.
///
/// process_warm_* are of as many processes on the second core, each waiting in recv on a UDP socket of its own. A dispatcher on the first
/// core calls them by datagrams over the loopback interface. A process answers in memory that it shares with the dispatcher, which is faster
/// than a datagram. The time runs from before sendto until the dispatcher has read that answer; before 2026-11-26 it ended when recv had
/// returned in the process. process_cold_p50_us is a static program's fork and exec until its main runs, on the same two cores. That time
/// includes no answer, so speedup_cold is too low rather than too high.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many functions there are
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(64..=8000))]
    functions: u32,
    /// How many templates they are made of
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=64))]
    templates: u32,
    /// How many calls are in flight when the rate of calls is measured; for processes, a quarter of it
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(4..=1024))]
    under_way: u32,
}

#[derive(Debug, Serialize)]
struct Figures {
    warm_p50_us: f64,
    warm_p99_us: f64,
    warm_per_s_per_core: f64,
    cold_p50_us: f64,
    cold_p99_us: f64,
    cold_new_place_p50_us: f64,
    disk_p50_us: f64,
    process_warm_p50_us: f64,
    process_warm_p99_us: f64,
    process_warm_per_s_per_core: f64,
    process_cold_p50_us: f64,
    speedup_warm_latency: f64,
    speedup_warm_throughput: f64,
    speedup_cold: f64,
}

/// The node's results.
struct Measured {
    new_places: Percentiles,
    prepared: LatencySnapshot,
    cold: Percentiles,
    warm: Percentiles,
    per_second: f64,
    disk: Percentiles,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(6);
    run.progress.step("functions without instances");
    let Measured { new_places, prepared, cold, warm, per_second, disk } = measure(options, run)?;
    run.progress.step("resident processes");
    let (functions, under_way) = (options.functions as usize, options.under_way as usize);
    let resident = processes::measure(run, functions, PROCESS_CALLS, under_way / 4)?;
    run.progress.step("Linux: fork and exec");
    let fork_exec = start_times(Start::ForkExec, PROCESSES_STARTED, run.cores)?;
    let figures = Figures {
        warm_p50_us: rounded(warm.at_us(50.0)),
        warm_p99_us: rounded(warm.at_us(99.0)),
        warm_per_s_per_core: per_second.round(),
        cold_p50_us: rounded(cold.at_us(50.0)),
        cold_p99_us: rounded(cold.at_us(99.0)),
        cold_new_place_p50_us: rounded(new_places.at_us(50.0)),
        disk_p50_us: rounded(disk.at_us(50.0)),
        process_warm_p50_us: rounded(resident.times.at_us(50.0)),
        process_warm_p99_us: rounded(resident.times.at_us(99.0)),
        process_warm_per_s_per_core: resident.per_second.round(),
        process_cold_p50_us: rounded(fork_exec.at_us(50.0)),
        speedup_warm_latency: rounded(resident.times.at_us(50.0) / warm.at_us(50.0)),
        speedup_warm_throughput: rounded(per_second / resident.per_second),
        speedup_cold: rounded(fork_exec.at_us(50.0) / cold.at_us(50.0)),
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.describe("idle", hosted::IDLE);
    outcome.describe("function", "macswap");
    outcome.describe("functions", options.functions);
    outcome.describe("templates", options.templates);
    outcome.describe("under_way", options.under_way);
    outcome.describe("process_under_way", options.under_way / 4);
    outcome.describe("times_end", "with the answer at the caller");
    outcome.describe(
        "process_times_end",
        "with the answer at the caller, in shared memory; of process_cold_p50_us, in main",
    );
    outcome.describe("cold_prepare_p50_us", rounded(prepared.at_ns(50.0) as f64 / 1000.0));
    outcome.describe("warm_calls", warm.count());
    outcome.describe("cold_calls", cold.count());
    outcome.describe("disk_calls", disk.count());
    Ok(outcome)
}

fn measure(options: &Options, run: &Run) -> anyhow::Result<Measured> {
    let functions = Functions::start(run.cores, options.functions as usize, options.templates as usize, ON_DISK)?;
    let all = || functions.measured.clone();
    let mut calls = 0;
    let mut call = |plan| -> anyhow::Result<Tally> {
        let tally = functions.call(plan)?;
        calls += tally.answered;
        Ok(tally)
    };
    let new_places = functions.call(Plan::Each { functions: shuffled(all()), pause: COLD_PAUSE })?;
    functions.end_measured()?;
    let prepared = functions.preparations();
    let cold = call(Plan::Each { functions: shuffled(all()), pause: COLD_PAUSE })?;
    let prepared = functions.preparations().since(&prepared);
    run.progress.step("resident functions, one after the other");
    let picked = || picked(&functions.measured, WARM_CALLS);
    call(Plan::Each { functions: picked(), pause: Duration::ZERO })?;
    let warm = call(Plan::Each { functions: picked(), pause: Duration::ZERO })?;
    run.progress.step("resident functions, many at once");
    let under_way = options.under_way as usize;
    call(Plan::Flood { functions: all(), under_way, time: Duration::from_millis(500) })?;
    let flood = call(Plan::Flood { functions: all(), under_way, time: run.time })?;
    functions.check_residents(calls)?;
    run.progress.step("functions of which nothing is mapped");
    functions.unmap()?;
    let disk = functions.call(Plan::Each { functions: functions.on_disk.clone(), pause: DISK_PAUSE })?;
    let per_second = flood.answered as f64 / flood.took.as_secs_f64();
    let [new_places, cold, warm, disk] = [new_places, cold, warm, disk].map(|tally| tally.times);
    let count = options.functions as usize;
    let timed =
        [("new", &new_places, count), ("cold", &cold, count), ("warm", &warm, WARM_CALLS), ("disk", &disk, ON_DISK)];
    for (what, times, count) in timed {
        let timed = times.count();
        anyhow::ensure!(timed == count as u64, "{timed} of {count} {what} calls were timed");
    }
    Ok(Measured { new_places, prepared, cold, warm, per_second, disk })
}

/// Shuffles the functions, so that their order is independent of their location in memory.
fn shuffled(mut functions: Vec<FunctionRef>) -> Vec<FunctionRef> {
    let mut random = Random::default();
    for at in (1..functions.len()).rev() {
        functions.swap(at, random.below(at + 1));
    }
    functions
}

fn picked(functions: &[FunctionRef], count: usize) -> Vec<FunctionRef> {
    let mut random = Random::default();
    (0..count).map(|_| functions[random.below(functions.len())]).collect()
}

/// A generator with the same sequence in each run.
struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }
}

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn summary(figures: &Figures) -> Table {
    let us = |time: f64| format!("{time:.2}");
    table(
        ["until answered", "warm p50 us", "p99 us", "warm/s/core", "cold p50 us", "disk p50 us"],
        [
            [
                "Pinion".to_owned(),
                us(figures.warm_p50_us),
                us(figures.warm_p99_us),
                format!("{:.0}", figures.warm_per_s_per_core),
                us(figures.cold_p50_us),
                us(figures.disk_p50_us),
            ],
            [
                "processes".to_owned(),
                us(figures.process_warm_p50_us),
                us(figures.process_warm_p99_us),
                format!("{:.0}", figures.process_warm_per_s_per_core),
                format!("{} (until main)", us(figures.process_cold_p50_us)),
                "-".to_owned(),
            ],
        ],
    )
}
