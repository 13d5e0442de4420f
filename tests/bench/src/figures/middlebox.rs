//! `middlebox`: the latency that each client's own functions add (EdgeOS, figure 7b).

mod frames;
mod generator;
mod paths;

use std::thread;

use anyhow::{Context, ensure};
use pinion_gateway::port::dpdk::{DpdkPool, Eal, EalConfig, register_thread};
use serde::Serialize;

use self::generator::{Generator, Load, Passage, Pause};
use self::paths::{LINK, Serving, Way};
use crate::figures::ping::pin_here;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;

/// The frames per second of an open loop's client through one function, and through two with flow tables: so few that one core can serve
/// 2,000 such clients.
const PER_SECOND: u64 = 500;
const PER_SECOND_OF_TWO: u64 = 20;
/// The generator's buffers.
const BUFFERS: u32 = 32_767;
/// An open loop that sends less than this part of its planned frames fails the run.
const OFFERED_MIN: f64 = 0.99;
/// The chain whose rows give the slopes.
const PINION: &str = "packet-filter";
const KERNEL: &str = "kernel";

/// The latency that each client's own functions add, beside the kernel's
///
/// Clients of as many source addresses send UDP frames of 64 bytes through a middlebox, which has a firewall for each of them, with the
/// same six rules; all frames pass. Rows whose chain is "packet-filter" are of a node that forwards from its port lan to its port wan, both
/// net_memif, through an instance of the function packet-filter for each client. Rows whose chain is "firewall-monitor" are of a node where
/// each client has an instance of a chain of two, the functions firewall and monitor. Rows whose chain is "kernel" are of the kernel's
/// bridge, whose nftables look the client up in a map and have a chain of the same rules for each, between veth pairs and net_af_packet.
///
/// The generator is one thread that polls on the first core. The middlebox works on the second core: the node has gateway, MMA and worker
/// there in one thread that always polls (idle = "busy"), the kernel's receive processing is steered there. A frame's time runs from right
/// before its burst is written to the generator's one port until right after its burst was read from the other. added_p50_us and
/// added_p99_us are the difference of that time to the time of a single client's frames that are only forwarded between the same two ports
/// on the same core, in the same mode and run: by dpdk-testpmd, and by the bridge without any rules. In the open loop that client sends 500
/// frames a second.
///
/// In the mode "open" each client sends 500 frames a second, through the chain of two 20 (per_second), evenly, whether or not they arrive.
/// In the mode "closed" each client always has one frame in flight. ns_per_client and closed_ns_per_client are the slopes of the node's
/// median, from the first number of clients to the last. Each frame is compared with what was sent, byte by byte, and its order among its
/// client's frames is checked. A frame of the node's that is lost, altered or out of order fails the run, and so does an open loop whose
/// load was not offered in full.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of clients, ascending
    #[arg(long, value_delimiter = ',', default_value = "1,500,1000,2000", value_parser = clap::value_parser!(u16).range(1..=3500))]
    clients: Vec<u16>,
    /// Puts the node's gateway and MMA on the generator's core, and only its worker on the second
    #[arg(long)]
    split: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    ns_per_client: f64,
    closed_ns_per_client: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    clients: usize,
    chain: &'static str,
    mode: &'static str,
    /// What each client sends, in the open loop.
    per_second: Option<u64>,
    added_p50_us: f64,
    added_p99_us: f64,
    lost: u64,
    mpps: f64,
}

/// Latencies of a path without a function.
#[derive(Clone, Copy, Debug)]
struct Floor {
    p50_us: f64,
    p99_us: f64,
}

/// Both modes of sending, by their names.
const MODES: [&str; 2] = ["open", "closed"];

/// Both modes, with so many frames a second of each client in the open loop.
fn loads(per_second: u64) -> [Load; 2] {
    [Load::Open { per_second }, Load::Closed]
}

/// What is measured on each path.
struct Plan<'a> {
    run: &'a Run,
    eal: &'a Eal,
    pool: DpdkPool,
    clients: Vec<usize>,
    pause: Pause,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    let clients: Vec<usize> = options.clients.iter().copied().map(usize::from).collect();
    ensure!(clients.is_sorted_by(|a, b| a < b), "--clients {clients:?}: the numbers are to ascend");
    let most = *clients.last().context("--clients names no number")?;
    run.progress.expect(MODES.len() * (3 * clients.len() + 2));

    let devices = ["net_memif0", "net_memif1", "net_af_packet0", "net_af_packet1"].map(str::to_owned).into();
    let config = EalConfig { devices, buffers: BUFFERS, core: Some(run.cores.first), huge_pages: Default::default() };
    let eal = Eal::start(&config)?;
    let pool = DpdkPool::new(&eal, BUFFERS)?;
    let pause = if options.split { Pause::Yield } else { Pause::Never };
    let mut plan = Plan { run, eal: &eal, pool, clients, pause };

    let forwarder = plan.floor(paths::forwarder(&plan.pool, run.cores)?, "testpmd")?;
    let cores = if options.split { run.cores } else { run.cores.together() };
    let mut checks = Checks::default();
    let mut rows = Vec::new();
    for (serving, per_second) in [(Serving::PacketFilter, PER_SECOND), (Serving::FirewallAndMonitor, PER_SECOND_OF_TWO)]
    {
        let way = paths::node(&plan.pool, cores, serving)?;
        rows.extend(plan.rows(way, (serving.name(), per_second), forwarder, &mut checks)?);
    }
    let bridge = plan.floor(paths::kernel(&plan.pool, run.cores, None)?, "a bridge")?;
    let kernel = paths::kernel(&plan.pool, run.cores, Some(most))?;
    rows.extend(plan.rows(kernel, (KERNEL, PER_SECOND), bridge, &mut Checks::default())?);

    let figures = Figures {
        ns_per_client: rounded(slope_ns(&rows, PINION, MODES[0])),
        closed_ns_per_client: rounded(slope_ns(&rows, PINION, MODES[1])),
        rows,
    };
    let mut outcome = checks.into_outcome(&figures);
    outcome.node_was_on(cores);
    outcome.describe("generator", "polls on the first core");
    outcome.describe("idle", "busy");
    Ok(outcome)
}

impl Plan<'_> {
    /// Runs `work` on the generator's thread.
    fn on_generator<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let (eal, core) = (self.eal, self.run.cores.first);
        let thread = || {
            pin_here(core)?;
            let _registered = register_thread(eal)?;
            work()
        };
        thread::scope(|scope| scope.spawn(thread).join().expect("the generator does not panic"))
    }

    fn floor(&mut self, mut way: Way, name: &str) -> anyhow::Result<[Floor; 2]> {
        let (mut pool, pause, run) = (self.pool.clone(), self.pause, self.run);
        self.on_generator(|| {
            let mut generator = Generator::new(&mut *way.out, &mut *way.back, &mut pool, (1, LINK, pause));
            generator.introduce(0..1)?;
            let mut floor = |mode: &str, load: Load| -> anyhow::Result<Floor> {
                run.progress.step(&format!("{name}, {mode} loop"));
                let passage = generator.load(1, load, run.time)?;
                ensure!(faults(&passage).is_none(), "{name}: {}", faults(&passage).unwrap_or_default());
                Ok(Floor { p50_us: passage.times.at_us(50.0), p99_us: passage.times.at_us(99.0) })
            };
            let [open, closed] = loads(PER_SECOND);
            Ok([floor(MODES[0], open)?, floor(MODES[1], closed)?])
        })
    }

    /// Measures a row for each number of clients and mode; further clients join the existing ones.
    fn rows(
        &mut self,
        mut way: Way,
        (chain, per_second): (&'static str, u64),
        floor: [Floor; 2],
        checks: &mut Checks,
    ) -> anyhow::Result<Vec<Row>> {
        let (mut pool, pause, run, clients) = (self.pool.clone(), self.pause, self.run, self.clients.clone());
        let most = clients.last().copied().unwrap_or_default();
        self.on_generator(|| {
            let Way { out, back, keeps } = &mut way;
            let mut generator = Generator::new(&mut **out, &mut **back, &mut pool, (most, LINK, pause));
            let (mut rows, mut known) = (Vec::new(), 0);
            for count in clients {
                generator.introduce(known..count).with_context(|| chain.to_owned())?;
                known = count;
                keeps.await_rest()?;
                for ((mode, load), floor) in MODES.into_iter().zip(loads(per_second)).zip(floor) {
                    run.progress.step(&format!("{chain}, {count} clients, {mode} loop"));
                    let passage = generator.load(count, load, run.time)?;
                    checks.look_at(&passage, count, load);
                    rows.push(Row {
                        clients: count,
                        chain,
                        mode,
                        per_second: (load != Load::Closed).then_some(per_second),
                        added_p50_us: rounded(passage.times.at_us(50.0) - floor.p50_us),
                        added_p99_us: rounded(passage.times.at_us(99.0) - floor.p99_us),
                        lost: passage.lost,
                        mpps: rounded(passage.rate / 1e6),
                    });
                }
            }
            Ok(rows)
        })
    }
}

/// The checks of a node that failed.
#[derive(Debug, Default)]
struct Checks {
    failed: Vec<String>,
}

impl Checks {
    fn look_at(&mut self, passage: &Passage, clients: usize, load: Load) {
        if let Some(sentence) = faults(passage) {
            self.failed.push(format!("{clients} clients, {load:?}: {sentence}"));
        }
        if let Load::Open { per_second } = load {
            let offered = (per_second * clients as u64) as f64;
            if passage.rate < offered * OFFERED_MIN {
                let rate = passage.rate;
                self.failed.push(format!(
                    "{clients} clients, open loop: of {offered} frames a second only {rate:.0} were sent"
                ));
            }
        }
    }

    fn into_outcome(self, figures: &Figures) -> Outcome {
        let row = |row: &Row| {
            let Row { clients, chain, mode, added_p50_us, added_p99_us, lost, mpps, .. } = row;
            let us = |us: &f64| format!("{us:.2}");
            let [p50, p99, mpps] = [added_p50_us, added_p99_us, mpps].map(us);
            [clients.to_string(), (*chain).to_owned(), (*mode).to_owned(), p50, p99, lost.to_string(), mpps]
        };
        let headings = ["clients", "chain", "mode", "added p50 us", "added p99 us", "lost", "Mpps"];
        let mut outcome = Outcome::new(figures, table(headings, figures.rows.iter().map(row)));
        self.failed.into_iter().for_each(|sentence| outcome.fail(sentence));
        outcome
    }
}

fn faults(passage: &Passage) -> Option<String> {
    let Passage { sent, lost, altered, out_of_order, .. } = passage;
    (lost + altered + out_of_order > 0).then(|| {
        format!("of {sent} frames {lost} were lost; {altered} came altered, {out_of_order} twice or out of order")
    })
}

/// Returns what a further client adds to the median.
fn slope_ns(rows: &[Row], chain: &str, mode: &str) -> f64 {
    let mut of_kind = rows.iter().filter(|row| row.chain == chain && row.mode == mode);
    let (Some(first), Some(last)) = (of_kind.next(), of_kind.next_back()) else { return 0.0 };
    (last.added_p50_us - first.added_p50_us) * 1000.0 / (last.clients - first.clients) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(clients: usize, chain: &'static str, mode: &'static str, added_p50_us: f64) -> Row {
        Row { clients, chain, mode, per_second: None, added_p50_us, added_p99_us: 0.0, lost: 0, mpps: 0.0 }
    }

    #[test]
    fn the_slope_goes_from_the_first_row_of_a_kind_to_its_last() {
        let rows = [
            row(1, PINION, "open", 2.0),
            row(1, PINION, "closed", 1.0),
            row(500, PINION, "open", 900.0),
            row(1001, PINION, "open", 52.0),
            row(1001, PINION, "closed", 501.0),
            row(1001, KERNEL, "open", 9999.0),
        ];
        assert_eq!(slope_ns(&rows, PINION, "open"), 50.0);
        assert_eq!(slope_ns(&rows, PINION, "closed"), 500.0);
        assert_eq!(slope_ns(&rows, KERNEL, "open"), 0.0);
    }
}
