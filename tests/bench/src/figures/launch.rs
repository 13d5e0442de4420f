//! `launch`: how long a new client waits for a chain instance of its own, beside the start of a Linux process (EdgeOS, figure 6).

use std::time::Duration;

use comfy_table::Table;
use pinion_control::model::Class;
use pinion_runtime::instruments::latencies::LatencySnapshot;
use pinion_tests::product::build::sample;
use serde::Serialize;

use crate::clients::newcomers::{Answer, Pace};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::{Cores, Run};
use crate::systems::hosted::{self, CACHE_MAX, HostedNode, Service};
use crate::systems::processes::{Start, start_times};

/// Clients that are not counted; like all others they stay.
const WARM_UP: usize = 64;
/// The number of the first and of the last clients that are also evaluated separately.
const ENDS: usize = 100;
/// Stages of the long chain, and the number of its clients.
const STAGES: usize = 10;
const LONG_CLIENTS: usize = 200;
/// The number of processes started in each way.
const PROCESSES: usize = 1000;
const FWPS_SPARE: usize = 64;
/// The most FWPs that a node may have.
const INSTANCES_MAX: i64 = 20_000;

/// How long a new client waits for a function of its own, beside Linux's processes
///
/// A node in this process, with gateway, MMA and worker on the second core and the launcher on the first, gives each client an instance of
/// the function macswap. So many clients come, one after the other's reply, and all of their instances stay alive. activate_* runs from the
/// moment at which the gateway finds that a client's frame has no instance, until the client's function has run its first instructions with
/// the frame; the instance was prepared before, and run to its first wait. If clients came at once, as the machine had taken the core, each
/// is handled when the previous one is served, and its time counts from the moment when their burst was received, as for reply_p50_us and
/// reply_p99_us. activate_chain10_p50_us is the same for a chain of ten stages, until the last of them has run. activate_first100_p50_us
/// and activate_last100_p50_us are of the first and last hundred clients. create_p50_us is the time that the launcher takes to prepare an
/// instance, from its instantiation until it waits and the node knows it, while clients come. The node measures all of these itself;
/// `pinion status` shows them to operators. Every reply is compared with the expected bytes.
///
/// fork_exec_p50_us runs from before fork until the main of a static program runs that the child executes; fork_faults_p50_us until a
/// forked child has written to 8 pages that it shared with its parent. A small program measures both on the same two cores, one process
/// after the other. spawn_p50_us is the former by posix_spawn, which copies no page tables. speedup_vs_fork_exec is fork_exec_p50_us /
/// activate_p50_us.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many clients come, and stay
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(200..=INSTANCES_MAX))]
    instances: u32,
    /// Puts the node's gateway and MMA on the first core, and its worker, with the launcher, on the second
    #[arg(long)]
    split: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    create_p50_us: f64,
    activate_p50_us: f64,
    activate_p99_us: f64,
    activate_chain10_p50_us: f64,
    activate_first100_p50_us: f64,
    activate_last100_p50_us: f64,
    fork_exec_p50_us: f64,
    fork_faults_p50_us: f64,
    speedup_vs_fork_exec: f64,
    spawn_p50_us: f64,
}

/// The time from one client to the next, so that clients do not overlap.
const PACE: Pace = Pace::Every(Duration::from_micros(PACE_US));
const PACE_US: u64 = 1000;

/// The results of a service's clients.
struct Measured {
    preparation: LatencySnapshot,
    activation: LatencySnapshot,
    first: LatencySnapshot,
    last: LatencySnapshot,
    replies: Vec<Percentiles>,
    /// How late clients came. Where that is milliseconds, the machine had taken the core, and many came at once.
    late: Percentiles,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(5);
    run.progress.step("clients of a single function");
    let cores = if options.split { run.cores } else { run.cores.together() };
    let short = measure(cores, options.instances as usize, 1)?;
    run.progress.step("clients of a chain of ten");
    let long = measure(cores, LONG_CLIENTS, STAGES)?;
    let peer = |start, what: &str| {
        run.progress.step(what);
        start_times(start, PROCESSES, run.cores)
    };
    let fork_exec = peer(Start::ForkExec, "Linux: fork and exec")?;
    let spawn = peer(Start::Spawn, "Linux: posix_spawn")?;
    let fork_faults = peer(Start::ForkFaults, "Linux: fork and 8 faults")?;
    let activate_p50_us = us(&short.activation, 50.0);
    let figures = Figures {
        create_p50_us: rounded(us(&short.preparation, 50.0)),
        activate_p50_us: rounded(activate_p50_us),
        activate_p99_us: rounded(us(&short.activation, 99.0)),
        activate_chain10_p50_us: rounded(us(&long.activation, 50.0)),
        activate_first100_p50_us: rounded(us(&short.first, 50.0)),
        activate_last100_p50_us: rounded(us(&short.last, 50.0)),
        fork_exec_p50_us: rounded(fork_exec.at_us(50.0)),
        fork_faults_p50_us: rounded(fork_faults.at_us(50.0)),
        speedup_vs_fork_exec: rounded(fork_exec.at_us(50.0) / activate_p50_us),
        spawn_p50_us: rounded(spawn.at_us(50.0)),
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.node_was_on(cores);
    outcome.describe("idle", hosted::IDLE);
    outcome.describe("function", "macswap");
    outcome.describe("client_every_us", PACE_US);
    outcome.describe("instances", options.instances);
    outcome.describe("cache_min", cache(options.instances as usize, 1));
    outcome.describe("reply_p50_us", rounded(of_all(&short.replies, 50.0)));
    outcome.describe("reply_p99_us", rounded(of_all(&short.replies, 99.0)));
    outcome.describe("late_p99_us", rounded(short.late.at_us(99.0)));
    outcome.describe("late_max_us", rounded(short.late.at_us(100.0)));
    outcome.describe("chain10_reply_p50_us", rounded(of_all(&long.replies, 50.0)));
    Ok(outcome)
}

/// All instances that are needed at once, up to the maximum of a chain.
fn cache(clients: usize, stages: usize) -> u32 {
    (clients / stages).clamp(ENDS, CACHE_MAX as usize) as u32
}

/// Sends clients in portions that the cache holds: it is full before each.
fn measure(cores: Cores, clients: usize, stages: usize) -> anyhow::Result<Measured> {
    let cache = cache(clients, stages);
    let fwps_max = (clients + WARM_UP + cache as usize + FWPS_SPARE) * stages;
    let answer = Answer::Swapped { times: stages };
    let service = Service {
        module: sample("macswap"),
        config: "",
        stages,
        policy: "per-client",
        class: Class::Throughput,
        cache,
        answer,
    };
    let mut node = HostedNode::start(cores, fwps_max, &service)?;
    node.serve(WARM_UP.min(cache as usize), Pace::AfterReply)?;
    node.await_rest(u32::MAX)?;
    let start = node.latencies();
    let (mut replies, mut late, mut first, mut last) = (Vec::new(), Percentiles::new(), None, None);
    for portion in portions(clients, cache as usize) {
        let before = node.latencies().chain_activation;
        let tally = node.serve(portion, PACE)?;
        late.add(&tally.late);
        replies.push(tally.times);
        let of_portion = node.latencies().chain_activation.since(&before);
        first.get_or_insert_with(|| of_portion.clone());
        last = Some(of_portion);
        node.await_rest(u32::MAX)?;
    }
    let end = node.latencies();
    let activation = end.chain_activation.since(&start.chain_activation);
    anyhow::ensure!(activation.count() == clients as u64, "{} of {clients} clients were counted", activation.count());
    let (Some(first), Some(last)) = (first, last) else { anyhow::bail!("there were no clients") };
    Ok(Measured { preparation: end.preparation.since(&start.preparation), activation, first, last, replies, late })
}

/// Returns the first and the last hundred as portions of their own; each other portion is at most what the cache holds.
fn portions(clients: usize, cache: usize) -> Vec<usize> {
    let middle = clients.saturating_sub(2 * ENDS);
    let (whole, rest) = (middle / cache, middle % cache);
    let mut portions = vec![ENDS];
    portions.extend(vec![cache; whole]);
    portions.extend(Some(rest).filter(|rest| *rest > 0));
    portions.push(ENDS);
    portions
}

fn us(times: &LatencySnapshot, percent: f64) -> f64 {
    times.at_ns(percent) as f64 / 1e3
}

fn of_all(parts: &[Percentiles], percent: f64) -> f64 {
    let mut sum = Percentiles::new();
    parts.iter().for_each(|times| sum.add(times));
    sum.at_us(percent)
}

fn summary(figures: &Figures) -> Table {
    let row = |what: &str, us: f64| [what.to_owned(), format!("{us:.2}")];
    let rows = [
        row("activate p50", figures.activate_p50_us),
        row("activate p99", figures.activate_p99_us),
        row("activate p50, first 100", figures.activate_first100_p50_us),
        row("activate p50, last 100", figures.activate_last100_p50_us),
        row("activate p50, chain of 10", figures.activate_chain10_p50_us),
        row("create p50", figures.create_p50_us),
        row("Linux: fork, exec p50", figures.fork_exec_p50_us),
        row("Linux: posix_spawn p50", figures.spawn_p50_us),
        row("Linux: fork, 8 faults p50", figures.fork_faults_p50_us),
        row("fork, exec / activate", figures.speedup_vs_fork_exec),
    ];
    table(["", "us"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_all_clients_and_none_is_more_than_the_cache_holds() {
        for (clients, cache) in [(200, 100), (201, 100), (2000, 1024), (20_000, 1024)] {
            let portions = portions(clients, cache);
            assert_eq!(portions.iter().sum::<usize>(), clients);
            assert!(portions.iter().all(|&portion| portion <= cache && portion > 0), "{portions:?}");
            assert_eq!((portions.first(), portions.last()), (Some(&ENDS), Some(&ENDS)));
        }
    }

    #[test]
    fn the_figures_have_the_keys_agreed_upon() {
        let figures = Figures {
            create_p50_us: 0.0,
            activate_p50_us: 0.0,
            activate_p99_us: 0.0,
            activate_chain10_p50_us: 0.0,
            activate_first100_p50_us: 0.0,
            activate_last100_p50_us: 0.0,
            fork_exec_p50_us: 0.0,
            fork_faults_p50_us: 0.0,
            speedup_vs_fork_exec: 0.0,
            spawn_p50_us: 0.0,
        };
        let json = serde_json::to_value(figures).unwrap();
        let agreed = "create_p50_us activate_p50_us activate_p99_us activate_chain10_p50_us activate_first100_p50_us \
                      activate_last100_p50_us fork_exec_p50_us fork_faults_p50_us speedup_vs_fork_exec";
        assert!(agreed.split(' ').all(|key| json[key].is_number()), "{json}");
    }
}
