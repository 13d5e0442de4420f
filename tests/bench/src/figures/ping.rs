//! `ping`: a ping's round trip (EdgeOS, figure 5a).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::clients::prober::{Answer, Prober, Waiting};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::Run;
use crate::systems::lab::{Lab, PORT, node_address};
use crate::systems::testpmd::Testpmd;

/// The longest wait for the first answer.
const START_MAX: Duration = Duration::from_secs(20);

/// A ping's round trip, beside testpmd's and the kernel's
///
/// A client in a network namespace of its own sends ICMP echo requests of 56 bytes by a raw socket over a veth pair, each as soon as the
/// previous one is answered. The time runs from right before the request is handed to the client's kernel until right after the reply came
/// out of it; every reply is compared with the expected bytes. Three systems answer at the other end of the cable, one after the other: a
/// node on net_af_xdp with an instance of the function icmp-echo for this client; dpdk-testpmd in the mode icmpecho on net_af_xdp; the
/// kernel itself. The client polls its socket on the first core. The answering system works on the second: the node has gateway, MMA and
/// worker there in one thread, testpmd its one forwarding thread.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

#[derive(Debug, Serialize)]
struct Figures {
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    testpmd_p50_us: f64,
    testpmd_p99_us: f64,
    kernel_p50_us: f64,
    kernel_p99_us: f64,
}

/// Round trips to one of the systems.
struct Measured {
    who: &'static str,
    times: Percentiles,
    lost: u64,
}

pub(crate) fn run(_options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(3);
    let all = [measure_pinion(run)?, measure_testpmd(run)?, measure_kernel(run)?];
    let [pinion, testpmd, kernel] = all.each_ref().map(|measured| &measured.times);
    let figures = Figures {
        pinion_p50_us: rounded(pinion.at_us(50.0)),
        pinion_p99_us: rounded(pinion.at_us(99.0)),
        testpmd_p50_us: rounded(testpmd.at_us(50.0)),
        testpmd_p99_us: rounded(testpmd.at_us(99.0)),
        kernel_p50_us: rounded(kernel.at_us(50.0)),
        kernel_p99_us: rounded(kernel.at_us(99.0)),
    };
    let row = |measured: &Measured| {
        let us = |percent| format!("{:.2}", measured.times.at_us(percent));
        [measured.who.to_owned(), us(50.0), us(99.0), measured.times.count().to_string(), measured.lost.to_string()]
    };
    let mut outcome = Outcome::new(&figures, table(["", "p50 us", "p99 us", "pings", "lost"], all.iter().map(row)));
    outcome.node_was_on(run.cores.together());
    outcome.describe("client", "polls its socket on the first core");
    outcome.describe("whoever answers", "on the second core, the node with gateway, MMA and worker in one thread");
    for measured in all.iter().filter(|measured| measured.lost > 0) {
        outcome.fail(format!("{} of the pings to {} were lost", measured.lost, measured.who));
    }
    Ok(outcome)
}

fn measure_pinion(run: &Run) -> anyhow::Result<Measured> {
    run.progress.step("pings to the node");
    let lab = Lab::new();
    let cores = run.cores.together();
    let _node = lab.answer_by_node(&cores.node_config());
    measure("pinion", &lab, run)
}

fn measure_testpmd(run: &Run) -> anyhow::Result<Measured> {
    run.progress.step("pings to testpmd");
    let lab = Lab::new();
    let device = format!("net_af_xdp0,iface={PORT}");
    let mut testpmd = Testpmd::start(lab.server_command("dpdk-testpmd"), run.cores, &[device], "icmpecho")?;
    let measured = measure("testpmd", &lab, run);
    testpmd.check()?;
    measured
}

fn measure_kernel(run: &Run) -> anyhow::Result<Measured> {
    run.progress.step("pings to the kernel");
    let lab = Lab::new();
    lab.answer_by_kernel();
    measure("kernel", &lab, run)
}

fn measure(who: &'static str, lab: &Lab, run: &Run) -> anyhow::Result<Measured> {
    let address = node_address()?;
    let client = || -> anyhow::Result<Measured> {
        pin_here(run.cores.first)?;
        let mut prober = Prober::open_here(&lab.client, address, Waiting::Polling)?;
        await_first_answer(&mut prober)?;
        let mut measured = Measured { who, times: Percentiles::new(), lost: 0 };
        // The first tenth of the time does not count.
        let start = Instant::now() + run.time / 10;
        loop {
            let now = Instant::now();
            if now >= start + run.time {
                return Ok(measured);
            }
            match prober.ping()? {
                Answer::After(time) if now >= start => measured.times.record(time),
                Answer::After(_) => {}
                Answer::Lost => measured.lost += 1,
            }
        }
    };
    thread::scope(|scope| scope.spawn(client).join().expect("the client does not panic")).context(who)
}

/// Waits for a system that may have been started just now.
fn await_first_answer(prober: &mut Prober) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_MAX;
    while prober.ping()? == Answer::Lost {
        ensure!(Instant::now() < deadline, "no ping was answered within {START_MAX:?}");
    }
    Ok(())
}

/// Pins the calling thread to a core.
pub(crate) fn pin_here(core: usize) -> anyhow::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("core {core}"))
}
