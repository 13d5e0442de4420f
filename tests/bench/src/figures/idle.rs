//! `idle`: what an idle node costs, and how fast it wakes up.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use comfy_table::Table;
use pinion_tests::product::node::Node;
use serde::Serialize;

use crate::clients::prober::{Answer, Prober, Waiting};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::Run;
use crate::systems::lab::{Lab, node_address};

/// How long a node has had no work when it counts as idle.
const SETTLING: Duration = Duration::from_secs(1);
/// The pauses before first packets, from the shortest to the longest, so that they do not keep step with any timer of the node.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_STEP: Duration = Duration::from_micros(347);
const PAUSE_STEPS: u32 = 150;

/// What an idle node costs, and how fast it wakes up
///
/// A node on net_af_xdp over a veth pair, with the function icmp-echo and a client that it has served, is left alone. idle_cpu_percent is
/// the time that its process's threads ran meanwhile, in percent of one core. Then the client, which sleeps for its replies as most do,
/// pings it after pauses of 50 to 102 ms. first_packet_p99_us is the time from right before a request is handed to the client's kernel
/// until right after the reply came out of it. Every reply is compared with the expected bytes. Gateway and MMA are on the first core, the
/// worker is on the second, the client where the kernel puts it. busy_cpu_percent is that of the same node with idle = "busy";
/// kernel_first_packet_p99_us is that of the same client and cable when the kernel answers: the part of the client and the cable.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many packets after a pause are measured
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    wakes: u32,
}

#[derive(Debug, Serialize)]
struct Figures {
    idle_cpu_percent: f64,
    first_packet_p99_us: f64,
    busy_cpu_percent: f64,
    first_packet_p50_us: f64,
    kernel_first_packet_p50_us: f64,
    kernel_first_packet_p99_us: f64,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(4);
    run.progress.step("a node with nothing to do");
    let lab = Lab::new();
    let node = lab.answer_by_node(&format!("idle = \"adaptive\"\n{}", run.cores.node_config()));
    in_client(|| wake(&lab, 1, Duration::ZERO))?;
    let idle_cpu_percent = cpu_percent(&node, run.time)?;
    run.progress.step("packets after a pause");
    let (times, lost) = in_client(|| wake(&lab, options.wakes, PAUSE_MIN))?;
    drop((node, lab));

    run.progress.step("a busy-polling node");
    let lab = Lab::new();
    let node = lab.answer_by_node(&format!("idle = \"busy\"\n{}", run.cores.node_config()));
    in_client(|| wake(&lab, 1, Duration::ZERO))?;
    let busy_cpu_percent = cpu_percent(&node, run.time)?;

    drop((node, lab));

    run.progress.step("packets after a pause, to the kernel");
    let lab = Lab::new();
    lab.answer_by_kernel();
    in_client(|| wake(&lab, 1, Duration::ZERO))?;
    let (kernel, _) = in_client(|| wake(&lab, options.wakes, PAUSE_MIN))?;

    let figures = Figures {
        idle_cpu_percent: rounded(idle_cpu_percent),
        first_packet_p99_us: rounded(times.at_us(99.0)),
        busy_cpu_percent: rounded(busy_cpu_percent),
        first_packet_p50_us: rounded(times.at_us(50.0)),
        kernel_first_packet_p50_us: rounded(kernel.at_us(50.0)),
        kernel_first_packet_p99_us: rounded(kernel.at_us(99.0)),
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    if lost > 0 {
        outcome.fail(format!("{lost} of {} first packets were lost", options.wakes));
    }
    Ok(outcome)
}

fn summary(figures: &Figures) -> Table {
    let row = |who: &str, cpu_percent: Option<f64>, times_us: Option<[f64; 2]>| {
        let shown = |figure: Option<f64>| figure.map(|figure| format!("{figure:.2}")).unwrap_or_default();
        let [p50_us, p99_us] = times_us.map_or([None; 2], |times_us| times_us.map(Some));
        [who.to_owned(), shown(cpu_percent), shown(p50_us), shown(p99_us)]
    };
    let node = [figures.first_packet_p50_us, figures.first_packet_p99_us];
    let kernel = [figures.kernel_first_packet_p50_us, figures.kernel_first_packet_p99_us];
    let rows = [
        row("adaptive", Some(figures.idle_cpu_percent), Some(node)),
        row("busy", Some(figures.busy_cpu_percent), None),
        row("kernel", None, Some(kernel)),
    ];
    table(["", "% of a core", "first packet p50 us", "p99 us"], rows)
}

fn in_client<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    thread::scope(|scope| scope.spawn(work).join().expect("the client does not panic"))
}

/// Pings `count` times, each after a pause of its own; returns the round trips, and how many pings were lost.
fn wake(lab: &Lab, count: u32, pause: Duration) -> anyhow::Result<(Percentiles, u64)> {
    let mut prober = Prober::open_here(&lab.client, node_address()?, Waiting::Sleeping)?;
    let (mut times, mut lost) = (Percentiles::new(), 0);
    for number in 0..count {
        thread::sleep(pause + PAUSE_STEP * (number * 7 % PAUSE_STEPS));
        match prober.ping()? {
            Answer::After(time) => times.record(time),
            Answer::Lost => lost += 1,
        }
    }
    ensure!(times.count() > 0, "the node answers no pings");
    Ok((times, lost))
}

/// Returns how long the node's threads ran while it was idle, in percent of one core.
fn cpu_percent(node: &Node, time: Duration) -> anyhow::Result<f64> {
    thread::sleep(SETTLING);
    let (start, ran_before) = (Instant::now(), ran(node)?);
    thread::sleep(time);
    let (ran_after, elapsed) = (ran(node)?, start.elapsed());
    Ok(ran_after.saturating_sub(ran_before).as_secs_f64() / elapsed.as_secs_f64() * 100.0)
}

/// Returns how long the threads of the node's process have run.
fn ran(node: &Node) -> anyhow::Result<Duration> {
    let tasks = format!("/proc/{}/task", node.process().as_raw_nonzero());
    let mut ran_ns = 0;
    for task in fs::read_dir(&tasks).context(tasks)? {
        let path = task?.path().join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
        ran_ns += ran_ns_of(&text).with_context(|| format!("{} reads {text:?}", path.display()))?;
    }
    Ok(Duration::from_nanos(ran_ns))
}

/// Returns the first number of a `schedstat`.
fn ran_ns_of(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_time_is_the_first_of_three_numbers() {
        assert_eq!(ran_ns_of("88012 1903 12\n"), Some(88012));
        assert_eq!(ran_ns_of(""), None);
    }

    #[test]
    fn pauses_differ_from_one_packet_to_the_next() {
        let pauses: std::collections::BTreeSet<u32> = (0..PAUSE_STEPS).map(|number| number * 7 % PAUSE_STEPS).collect();
        assert_eq!(pauses.len(), PAUSE_STEPS as usize);
    }
}
