//! `quantum`: the cost of interrupting a function regularly (Micro, figure 2).

use anyhow::Context;
use comfy_table::Table;
use pinion_control::model::Class;
use pinion_runtime::instruments::latencies::LatencySnapshot;
use pinion_tests::product::build::hostile;
use serde::Serialize;

use crate::clients::newcomers::{Answer, Pace};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;
use crate::systems::hosted::{self, Beside, HostedNode, Service};

/// The work takes about a hundredth of a second per packet: with the longest quantum it is not interrupted.
const BLOCKS: &str = "20000";
const UNPREEMPTED_US: u32 = 100_000;
const WARM_UP: usize = 5;
const FWPS_MAX: usize = 16;
/// The number of stretches into which a quantum's time is divided.
const STRETCHES: u32 = 5;
const US_PER_S: f64 = 1e6;

/// Throughput of a SHA-512 loop that is interrupted at regular intervals, beside the same loop uninterrupted
///
/// A node in this process, with gateway and MMA on the first core and the worker on the second, runs a function that hashes 20,000 blocks
/// of 128 bytes for each packet and sends it back. Each packet comes after the reply to the previous one. throughput_ratio is the node's
/// throughput with a quantum of quantum_us, by the median time for a packet, divided by that of a node with a quantum of 100 ms, which is
/// longer than the work for a packet. The two nodes take turns, as a machine's speed changes within seconds: each stretch is compared with
/// the mean of the ones before and after, and the median of these ratios counts. The function is alone, so that it continues at once after
/// an interruption. preempt_p99_us is the time from the end of its quantum until the function was off the core, of each interruption, by
/// the node's own count. Every reply is compared with the expected bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Quanta, in microseconds
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 100, 50, 20, 10, 5], value_parser = clap::value_parser!(u32).range(5..=100_000))]
    us: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    quantum_us: u32,
    throughput_ratio: f64,
    preempt_p50_us: f64,
    preempt_p99_us: f64,
    preemptions: u64,
}

/// The results of a node with some quantum in a stretch.
struct Stretch {
    packets_per_s: f64,
    lateness: LatencySnapshot,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(2 * STRETCHES as usize * options.us.len() + 1);
    let mut unpreempted = stretch(run, UNPREEMPTED_US)?.packets_per_s;
    let mut rows = Vec::new();
    for &quantum_us in &options.us {
        rows.push(row(run, quantum_us, &mut unpreempted)?);
    }
    let figures = Figures { rows };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.describe("idle", hosted::IDLE);
    outcome.describe("function", format!("hasher, {BLOCKS} blocks"));
    if let Some(row) = figures.rows.iter().find(|row| row.preemptions == 0 && row.quantum_us < 1_000) {
        outcome.fail(format!("with a quantum of {} us the function was never interrupted", row.quantum_us));
    }
    Ok(outcome)
}

/// Measures a quantum. `unpreempted` is the throughput without interruptions just before, and on return that just after.
fn row(run: &Run, quantum_us: u32, unpreempted: &mut f64) -> anyhow::Result<Row> {
    let (mut ratios, mut lateness) = (Vec::new(), None::<LatencySnapshot>);
    for _ in 0..STRETCHES {
        let Stretch { packets_per_s, lateness: late } = stretch(run, quantum_us)?;
        let after = stretch(run, UNPREEMPTED_US)?.packets_per_s;
        ratios.push(2.0 * packets_per_s / (std::mem::replace(unpreempted, after) + after));
        lateness = Some(lateness.map_or_else(|| late.clone(), |sum| sum.and(&late)));
    }
    ratios.sort_by(f64::total_cmp);
    let lateness = lateness.context("there are stretches")?;
    Ok(Row {
        quantum_us,
        throughput_ratio: rounded(ratios[ratios.len() / 2]),
        preempt_p50_us: rounded(lateness.at_ns(50.0) as f64 / 1e3),
        preempt_p99_us: rounded(lateness.at_ns(99.0) as f64 / 1e3),
        preemptions: lateness.count(),
    })
}

/// Runs a node with some quantum for one stretch.
fn stretch(run: &Run, quantum_us: u32) -> anyhow::Result<Stretch> {
    run.progress.step(&format!("a quantum of {quantum_us} us"));
    let service = Service {
        module: hostile("hasher"),
        config: BLOCKS,
        stages: 1,
        policy: "shared",
        class: Class::Throughput,
        cache: 1,
        answer: Answer::Swapped { times: 1 },
    };
    let beside = Beside { quantum_us: Some(quantum_us), ..Beside::default() };
    let mut node = HostedNode::start_beside(run.cores, FWPS_MAX, &service, beside)?;
    let one_s = node.ask(WARM_UP, Pace::AfterReply)?.serving.as_secs_f64() / WARM_UP as f64;
    let packets = (run.time.as_secs_f64() / f64::from(STRETCHES) / one_s).ceil().max(1.0);
    let before = node.latencies().preemption_lateness;
    let tally = node.ask(packets as usize, Pace::AfterReply)?;
    let lateness = node.latencies().preemption_lateness.since(&before);
    Ok(Stretch { packets_per_s: US_PER_S / tally.times.at_us(50.0), lateness })
}

fn summary(figures: &Figures) -> Table {
    let row = |row: &Row| {
        let Row { quantum_us, throughput_ratio, preempt_p50_us, preempt_p99_us, preemptions } = *row;
        [
            quantum_us.to_string(),
            format!("{throughput_ratio:.3}"),
            format!("{preempt_p50_us:.1}"),
            format!("{preempt_p99_us:.1}"),
            preemptions.to_string(),
        ]
    };
    table(["quantum us", "throughput", "late p50 us", "p99 us", "interruptions"], figures.rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_have_the_keys_agreed_upon() {
        let row =
            Row { quantum_us: 20, throughput_ratio: 1.0, preempt_p50_us: 1.0, preempt_p99_us: 2.0, preemptions: 3 };
        let json = serde_json::to_value(Figures { rows: vec![row] }).unwrap();
        let agreed = ["quantum_us", "throughput_ratio", "preempt_p99_us"];
        assert!(agreed.iter().all(|key| json["rows"][0][key].is_number()), "{json}");
    }
}
