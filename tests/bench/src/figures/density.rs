//! `density`: the memory of an instance that has served its client, beside an idle Linux process (EdgeOS, section 5.2).

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use comfy_table::Table;
use pinion_control::node::FwpState;
use pinion_tests::network::namespace::Namespace;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::traffic::frames;
use serde::Serialize;

use crate::clients::newcomers::{NODE_ADDRESS, Requests, SERVICE_PORT};
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;
use crate::systems::lab::silence;
use crate::systems::node_api::NodeApi;
use crate::systems::processes::{Children, IDLE_PROCESS};

/// Instances that are ready, before and after.
const CACHE: usize = 16;
/// Clients before the measurement, so that one-time costs are not counted.
const WARM_UP: u32 = 32;
/// Clients that come at a time, all at once.
const PORTION: usize = 64;
const FWPS_SPARE: usize = 64;
/// The longest time for a portion's frames, and for a full cache.
const PORTION_MAX: Duration = Duration::from_secs(5);
const READY_MAX: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long after the last preparation of an instance its after-effects may take.
const SETTLING: Duration = Duration::from_millis(200);
const INSTANCES_MAX: i64 = 29_000;
const PROCESSES_MAX: usize = 4000;

/// The memory of an instance that has served its client, beside an idle Linux process
///
/// A node is sent a frame by each of so many clients, and gives each a packet filter of its own, which lets the frame pass; every frame is
/// compared with what was sent. rss_delta_mib is the growth of the resident memory of the node's process (Rss of /proc/PID/smaps_rollup),
/// with the same number of instances ready before and after; kib_per_fwp is that growth for each client. A page that many instances share
/// counts for each of them. linux_kib_per_process is the average of the same number of processes, up to 4000: a static program each, with a
/// socket, asleep in recv; Pss of smaps_rollup, in which a shared page counts for each process in part. Kernel memory, such as page tables,
/// is not counted for either.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many clients have an instance
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=INSTANCES_MAX))]
    instances: u32,
}

#[derive(Debug, Serialize)]
struct Figures {
    instances: u32,
    rss_delta_mib: f64,
    kib_per_fwp: f64,
    linux_kib_per_process: f64,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(2);
    run.progress.step("packet filters");
    let grown = node_memory(run, options.instances)?;
    run.progress.step("Linux: processes");
    let processes = PROCESSES_MAX.min(options.instances as usize);
    let linux_kib_per_process = process_memory(processes)?;
    let rss_kib = grown.rss_kib as f64;
    let figures = Figures {
        instances: options.instances,
        rss_delta_mib: rounded(rss_kib / 1024.0),
        kib_per_fwp: rounded(rss_kib / f64::from(options.instances)),
        linux_kib_per_process: rounded(linux_kib_per_process),
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.describe("function", "packet-filter");
    outcome.describe("pss_delta_mib", rounded(grown.pss_kib as f64 / 1024.0));
    outcome.describe("linux_processes", processes);
    Ok(outcome)
}

/// A process's memory, by `smaps_rollup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    rss_kib: u64,
    pss_kib: u64,
}

impl Memory {
    fn of(process: i32) -> anyhow::Result<Self> {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        Self::read(&text).with_context(|| format!("{path} reads {text:?}"))
    }

    fn read(text: &str) -> Option<Self> {
        let kib =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
        Some(Self { rss_kib: kib("Rss:")?, pss_kib: kib("Pss:")? })
    }
}

/// Returns the growth of the node's memory.
fn node_memory(run: &Run, instances: u32) -> anyhow::Result<Memory> {
    let yard = Yard::new();
    let fwps_max = instances as usize + WARM_UP as usize + CACHE + FWPS_SPARE;
    let mut node = yard.node(run, fwps_max);
    node.apply(manifest().text());
    let mut api = NodeApi::connect(&node.socket())?;
    let mut clients = yard.clients(&mut api)?;
    clients.serve(0..WARM_UP)?;
    let before = clients.rest(&node)?;
    clients.serve(WARM_UP..WARM_UP + instances)?;
    let after = clients.rest(&node)?;
    let served = api.fwps()?.iter().filter(|fwp| fwp.client.is_some() && fwp.counters.received > 0).count();
    let expected = (WARM_UP + instances) as usize;
    ensure!(served == expected, "{served} instances have served a client, and there were {expected}");
    node.stop();
    let grown = |before: u64, after: u64| after.saturating_sub(before);
    Ok(Memory { rss_kib: grown(before.rss_kib, after.rss_kib), pss_kib: grown(before.pss_kib, after.pss_kib) })
}

/// Three namespaces: the clients', the node's, and that of the server that the clients send to.
struct Yard {
    clients: Namespace,
    node: Namespace,
    server: Namespace,
}

const INTERFACE: &str = "eth0";
/// The node's interfaces, by its ports' names.
const PORTS: [&str; 2] = ["lan", "wan"];

impl Yard {
    fn new() -> Self {
        let yard =
            Self { clients: Namespace::new("clients"), node: Namespace::new("node"), server: Namespace::new("server") };
        [&yard.clients, &yard.node, &yard.server].into_iter().for_each(silence);
        yard.clients.connect(INTERFACE, &yard.node, PORTS[0]);
        yard.server.connect(INTERFACE, &yard.node, PORTS[1]);
        yard
    }

    fn node(&self, run: &Run, fwps_max: usize) -> Node {
        let namespace = self.node.name();
        let port = |number: usize, name: &str| {
            let device = format!("net_af_packet{number},iface={name}");
            format!(
                "[[port]]\nname = \"{name}\"\ndevice = \"{device}\"\nnamespace = \"{namespace}\"\npromiscuous = true\n"
            )
        };
        let ports = PORTS.iter().enumerate().map(|(number, name)| port(number, name)).collect::<String>();
        Node::started(&format!("{}[limits]\nfwps_max = {fwps_max}\n{ports}", run.cores.node_config()))
    }

    fn clients<'a>(&'a self, api: &'a mut NodeApi) -> anyhow::Result<Clients<'a>> {
        Ok(Clients { yard: self, api, requests: Requests::new() })
    }
}

/// Makes a manifest of a filter for each client, which lets the client's frames pass.
fn manifest() -> Manifest {
    let policy = format!(
        "deny from 10.66.0.0/16\nallow icmp\nallow tcp 80,443\nallow udp 53\nallow udp {SERVICE_PORT} to {NODE_ADDRESS}/32\ndefault deny"
    );
    Manifest::of("bench")
        .module("packet-filter", &sample("packet-filter"))
        .with(format_args!(
            "[[chain]]\nname = \"firewall\"\nstage = [{{ module = \"packet-filter\", config = {policy:?} }}]\negress = \"wan\"\ncache_min = {CACHE}\n"
        ))
        .with("[[rule]]\nname = \"clients\"\npolicy = \"per-client\"\nchain = \"firewall\"\nmatch = { port = \"lan\", protocol = \"udp\" }\n")
}

/// The clients that come.
struct Clients<'a> {
    yard: &'a Yard,
    api: &'a mut NodeApi,
    requests: Requests,
}

impl Clients<'_> {
    /// Sends a frame of each, which must arrive behind the node as it was sent.
    fn serve(&mut self, clients: std::ops::Range<u32>) -> anyhow::Result<()> {
        self.await_ready()?;
        let all: Vec<Vec<u8>> = clients.map(|client| self.requests.of(client).to_vec()).collect();
        let yard = self.yard;
        frames::watch(&yard.server, INTERFACE, |arrivals| {
            for portion in all.chunks(PORTION) {
                frames::send(&yard.clients, INTERFACE, portion);
                let arrived = arrivals.take(portion.len(), PORTION_MAX, |frame| frame.len() == portion[0].len());
                let (sent, arrived): (BTreeSet<&Vec<u8>>, BTreeSet<&Vec<u8>>) =
                    (portion.iter().collect(), arrived.iter().collect());
                ensure!(
                    sent == arrived,
                    "of {} clients' frames {} arrived as they were sent",
                    sent.len(),
                    sent.intersection(&arrived).count()
                );
            }
            Ok(())
        })
    }

    /// Waits until no instance is being prepared; returns the node's memory then.
    fn rest(&mut self, node: &Node) -> anyhow::Result<Memory> {
        self.await_ready()?;
        thread::sleep(SETTLING);
        Memory::of(node.process().as_raw_nonzero().get())
    }

    fn await_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            let fwps = self.api.fwps()?;
            let ready = fwps.iter().filter(|fwp| fwp.state == FwpState::Cached).count();
            if ready >= CACHE {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{ready} of {CACHE} instances are ready after {READY_MAX:?}");
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// Returns the average memory, in KiB, of a process that waits for its client.
fn process_memory(count: usize) -> anyhow::Result<f64> {
    let (mut said, saying) = std::io::pipe().context("a pipe")?;
    let mut children = Children::default();
    for _ in 0..count {
        let mut command = Command::new(IDLE_PROCESS);
        let child = command.stdin(Stdio::null()).stdout(saying.try_clone()?).spawn().context("an idle process")?;
        children.0.push(child);
    }
    drop(saying);
    let mut all = vec![0; count];
    said.read_exact(&mut all).context("some idle processes do not come to their wait")?;
    thread::sleep(SETTLING);
    let memory = children.0.iter().map(|child| Ok(Memory::of(child.id() as i32)?.pss_kib));
    let kib = memory.sum::<anyhow::Result<u64>>()?;
    Ok(kib as f64 / count as f64)
}

fn summary(figures: &Figures) -> Table {
    let Figures { instances, rss_delta_mib, kib_per_fwp, linux_kib_per_process } = figures;
    let row = [
        instances.to_string(),
        format!("{rss_delta_mib:.1}"),
        format!("{kib_per_fwp:.1}"),
        format!("{linux_kib_per_process:.1}"),
    ];
    table(["INSTANCES", "ADDED MIB", "KIB EACH", "KIB A PROCESS"], [row])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_by_its_keys() {
        let text =
            "00400000-7ffd ---p 00000000 00:00 0   [rollup]\nRss:     1332 kB\nPss:      412 kB\nPss_Dirty:  80 kB\n";
        assert_eq!(Memory::read(text), Some(Memory { rss_kib: 1332, pss_kib: 412 }));
        assert_eq!(Memory::read("Rss: 1 kB\n"), None);
    }
}
