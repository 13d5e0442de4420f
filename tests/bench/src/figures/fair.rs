//! `fair`: tenants' shares of a core, and what other tenants' endless loops cost a function that has a client (FastPaaS).

mod load;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use comfy_table::Table;
use pinion_control::model::Class;
use pinion_tests::product::build::{hostile, sample};
use pinion_tests::product::manifest::Manifest;
use serde::Serialize;

use self::load::{Flow, Load, Tap};
use crate::clients::newcomers::{Answer, Pace};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;
use crate::systems::hosted::{self, Beside, HostedNode, PortOf, Service, TENANT};

/// The number of functions that loop for ever beside the victim, each of its own tenant.
const HOGS: u16 = 50;
/// How often the victim gets a packet.
const PACE: Pace = Pace::Every(Duration::from_millis(1));
const WARM_UP: usize = 200;
const FWPS_MAX: usize = 512;
const FIRST_PORT: u16 = 7_000;
/// Work that does not end during the measurement.
const ENDLESS: u64 = u64::MAX / 2;

/// Weighted shares of a core's time, and replies of a function beside fifty that loop for ever
///
/// A node in this process, with gateway and MMA on the first core and the worker on the second. Four tenants of weights 1, 2, 4 and 8 are
/// offered more packets than the core can process: of different sizes, with different amounts of SHA-512 for each, and with fewer FWPs for
/// a higher weight. share_got is the tenant's part of the time that all four were charged for during the measurement, by the node's own
/// count: their turns on the core, and the copying of what they sent. share_wanted is the part by its weight. max_share_error is the
/// largest difference between the two, as a part of share_wanted.
///
/// The victim answers a packet each millisecond. Its reply's time runs from the arrival of the packet in Net-In's burst until the reply is
/// handed to the transmit burst. victim_p99_us_alone is that of a node without other work. victim_p99_us_with_hog is that of the same node
/// when fifty functions of fifty other tenants, of the same class and weight, loop for ever on the same core. victim_latency_class_p99_us
/// is the same with the victim in the latency class. Every reply is compared with the expected bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    max_share_error: f64,
    victim_p99_us_alone: f64,
    victim_p99_us_with_hog: f64,
    victim_latency_class_p99_us_alone: f64,
    victim_latency_class_p99_us: f64,
    runnable_tenants: u16,
}

#[derive(Debug, Serialize)]
struct Row {
    tenant: String,
    weight: u32,
    share_wanted: f64,
    share_got: f64,
}

impl Row {
    fn error(&self) -> f64 {
        (self.share_got - self.share_wanted).abs() / self.share_wanted
    }
}

/// One of the tenants that share the core.
struct Sharer {
    name: &'static str,
    weight: u32,
    /// Blocks to hash for each packet.
    blocks: u32,
    frame_bytes: usize,
    /// Each client has an FWP. The packets in the pools last longer than the gateway may be kept from its core: a tenant without queued
    /// packets would lose its share meanwhile.
    clients: u16,
}

const SHARERS: [Sharer; 4] = [
    Sharer { name: "one", weight: 1, blocks: 1, frame_bytes: 1_000, clients: 16 },
    Sharer { name: "two", weight: 2, blocks: 40, frame_bytes: 60, clients: 8 },
    Sharer { name: "four", weight: 4, blocks: 4, frame_bytes: 1_500, clients: 4 },
    Sharer { name: "eight", weight: 8, blocks: 100, frame_bytes: 200, clients: 1 },
];

pub(crate) fn run(_options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(3);
    run.progress.step("four tenants' shares");
    let rows = shares(run)?;
    run.progress.step("a victim and fifty loops");
    let (alone_us, with_hog_us) = victim(run, Class::Throughput)?;
    run.progress.step("a victim in the latency class and fifty loops");
    let (above_alone_us, above_us) = victim(run, Class::Latency)?;
    let figures = Figures {
        max_share_error: rounded(rows.iter().map(Row::error).fold(0.0, f64::max)),
        rows,
        victim_p99_us_alone: rounded(alone_us),
        victim_p99_us_with_hog: rounded(with_hog_us),
        victim_latency_class_p99_us_alone: rounded(above_alone_us),
        victim_latency_class_p99_us: rounded(above_us),
        runnable_tenants: HOGS + 1,
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.describe("idle", hosted::IDLE);
    outcome.describe("functions", "hasher (SHA-512), macswap (the victim), looper (the hogs)");
    Ok(outcome)
}

fn port(flows: Vec<Flow>, tap: &Tap) -> Option<(&'static str, PortOf)> {
    let tap = tap.clone();
    Some((load::PORT, Box::new(move |pool| Box::new(Load::new(&flows, tap, pool)))))
}

fn rule(chain: &str, policy: &str, destination_port: u16) -> String {
    format!(
        "[[rule]]\nname = \"load\"\npolicy = \"{policy}\"\nchain = \"{chain}\"\n\
         match = {{ port = \"{}\", protocol = \"udp\", destination_ports = \"{destination_port}\" }}\n",
        load::PORT
    )
}

/// The service of the node's clients.
fn service(class: Class) -> Service<'static> {
    let answer = Answer::Swapped { times: 1 };
    Service { module: sample("macswap"), config: "", stages: 1, policy: "shared", class, cache: 1, answer }
}

fn shares(run: &Run) -> anyhow::Result<Vec<Row>> {
    let (tap, mut flows, mut beside) = (Tap::default(), Vec::new(), Beside::default());
    for (sharer, destination_port) in SHARERS.iter().zip(FIRST_PORT..) {
        let Sharer { name, weight, blocks, frame_bytes, clients } = *sharer;
        let flow = |source| Flow { source, destination_port, frame_bytes };
        flows.extend((0..clients).map(|client| flow(destination_port % 256 * 256 + client)));
        beside.tenants += &format!("[[tenant]]\nname = \"{name}\"\nweight = {weight}\n");
        let manifest = Manifest::of(name).module("hasher", &hostile("hasher"));
        let manifest = manifest.configured_chain("hash", "hasher", &blocks.to_string());
        let manifest = manifest.with(format_args!("cache_min = {clients}\n"));
        beside.manifests.push(manifest.with(rule("hash", "per-client", destination_port)));
    }
    beside.port = port(flows, &tap);
    let node = HostedNode::start_beside(run.cores, FWPS_MAX, &service(Class::Throughput), beside)?;
    tap.open(ENDLESS);
    // Waits until each chain has its instances and every initial allowance has been used up.
    std::thread::sleep(run.time / 2);
    let before = cpu_us(&node);
    std::thread::sleep(run.time);
    let after = cpu_us(&node);
    tap.open(0);
    let had = |name: &str| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
    let all_us: u64 = SHARERS.iter().map(|sharer| had(sharer.name)).sum();
    ensure!(all_us > 0, "no tenant has used the core");
    let weights: u32 = SHARERS.iter().map(|sharer| sharer.weight).sum();
    let row = |sharer: &Sharer| Row {
        tenant: sharer.name.to_owned(),
        weight: sharer.weight,
        share_wanted: f64::from(sharer.weight) / f64::from(weights),
        share_got: had(sharer.name) as f64 / all_us as f64,
    };
    Ok(SHARERS.iter().map(row).collect())
}

/// Returns how much processor time each tenant's FWPs have had so far.
fn cpu_us(node: &HostedNode) -> BTreeMap<String, u64> {
    node.tenants().into_iter().map(|tenant| (tenant.tenant.to_string(), tenant.meter.cpu_us)).collect()
}

/// Returns the victim's 99th percentiles, alone and beside the loops.
fn victim(run: &Run, class: Class) -> anyhow::Result<(f64, f64)> {
    let (tap, mut beside) = (Tap::default(), Beside::default());
    beside.tenants = format!("[[tenant]]\nname = \"{TENANT}\"\nclass_max = \"{class}\"\n");
    let ports = FIRST_PORT..FIRST_PORT + HOGS;
    for destination_port in ports.clone() {
        let manifest = Manifest::of(&format!("hog-{destination_port}")).module("looper", &hostile("looper"));
        let manifest = manifest.chain("loop", "looper", "cache_min = 1");
        beside.manifests.push(manifest.with(rule("loop", "shared", destination_port)));
    }
    let flow = |destination_port| Flow { source: destination_port, destination_port, frame_bytes: 60 };
    beside.port = port(ports.map(flow).collect(), &tap);
    let mut node = HostedNode::start_beside(run.cores, FWPS_MAX, &service(class), beside)?;
    let asked = run.time.as_millis() as usize;
    node.ask(WARM_UP, PACE)?;
    let alone = node.ask(asked, PACE)?.times.at_us(99.0);
    tap.open(HOGS.into());
    hogs_at_work(&node)?;
    node.ask(WARM_UP, PACE)?;
    let beside_loops = node.ask(asked, PACE)?.times.at_us(99.0);
    Ok((alone, beside_loops))
}

/// Waits until all of them have had the core.
fn hogs_at_work(node: &HostedNode) -> anyhow::Result<()> {
    let at_work = || cpu_us(node).iter().filter(|(tenant, us)| *tenant != TENANT && **us > 1_000).count();
    let wait = || std::thread::sleep(Duration::from_millis(10));
    let begun = (0..1_000).any(|_| {
        at_work() == usize::from(HOGS) || {
            wait();
            false
        }
    });
    ensure!(begun, "{} of {HOGS} functions loop", at_work());
    Ok(())
}

fn summary(figures: &Figures) -> Table {
    let share = |row: &Row| {
        let Row { tenant, weight, share_wanted, share_got } = row;
        [format!("share of {tenant}, of weight {weight}"), format!("{share_got:.4}, wanted {share_wanted:.4}")]
    };
    let us = |what: &str, us: f64| [what.to_owned(), format!("{us:.1} us")];
    let rows = figures.rows.iter().map(share).chain([
        ["largest error of a share".to_owned(), format!("{:.2} %", 100.0 * figures.max_share_error)],
        us("a victim's reply, p99, alone", figures.victim_p99_us_alone),
        us("the same beside 50 loops", figures.victim_p99_us_with_hog),
        us("in the latency class, alone", figures.victim_latency_class_p99_us_alone),
        us("in the latency class, beside 50 loops", figures.victim_latency_class_p99_us),
    ]);
    table(["", ""], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_have_the_keys_agreed_upon() {
        let row = Row { tenant: "t".to_owned(), weight: 1, share_wanted: 0.5, share_got: 0.4 };
        assert!((row.error() - 0.2).abs() < 1e-9);
        let row = serde_json::to_value(row).unwrap();
        assert!(
            ["weight", "share_wanted", "share_got"].iter().all(|key| row[key].is_number()) && row["tenant"].is_string()
        );
        let figures = Figures {
            rows: Vec::new(),
            max_share_error: 0.0,
            victim_p99_us_alone: 0.0,
            victim_p99_us_with_hog: 0.0,
            victim_latency_class_p99_us_alone: 0.0,
            victim_latency_class_p99_us: 0.0,
            runnable_tenants: 51,
        };
        let json = serde_json::to_value(figures).unwrap();
        let agreed = ["max_share_error", "victim_p99_us_alone", "victim_p99_us_with_hog"];
        assert!(agreed.iter().all(|key| json[key].is_number()) && json["rows"].is_array(), "{json}");
    }
}
