//! `memcached`: a cache for each client, beside Debian's memcached (EdgeOS, figures 8 and 9; Enberg's slides).

mod capacity;
mod connections;
mod datagrams;
mod generator;
mod items;
mod servers;

use std::thread;

use anyhow::{Context, ensure};
use pinion_gateway::port::dpdk::{DpdkPool, Eal, EalConfig, register_thread};
use pinion_tests::network::bed::NODE;
use serde::Serialize;

use self::connections::{Asked, Connections};
use self::datagrams::Clients;
use self::generator::{Generator, Offered};
use self::servers::{Over, SERVICE_PORT, Server};
use crate::figures::ping::pin_here;
use crate::measurement::outcome::{Outcome, rounded, table};
use crate::measurement::run::Run;

/// The generator's buffers.
const BUFFERS: u32 = 32_767;
/// The items of all clients together, and the least of each.
const ITEMS: usize = 10_000;
const ITEMS_MIN: usize = 100;
/// A search has this many trials in the time of a measurement.
const TRIALS: u32 = 3;

/// A cache for each client, beside Debian's memcached
///
/// Over UDP: as many clients as instances, of an address each, ask for items of their own: keys of 30 bytes, values of 135, 95 % gets and 5 %
/// sets of random items that are all there. The node gives each client an instance of the function memcached; beside it there is a process of
/// Debian's memcached for each, with one serving thread, as Debian configures it. Both are on the second core, behind one end of a veth pair:
/// the node, with gateway, MMA and worker in one thread, by net_af_xdp, the processes by the kernel. The generator is the same for both: one thread
/// that polls the other end by net_af_packet on the first core, where the kernel also takes what it sends as far as the process's socket; the
/// node takes that itself (idle = "busy"). Between bursts it yields to the kernel's threads there. It sends evenly, one client after the other, whether or not replies come. A time runs from when a request was to be sent until
/// its reply was read. A request without a reply within half a second after the last one is lost, as is one that could not be sent in time. Every reply is
/// compared with what was stored; a wrong one fails the run.
///
/// pinion_rps and linux_rps are the most requests a second of which at most 0.1 % are lost, found within 3 %. The times are those of both at
/// offered_rps, half of the smaller of these two, and the losses those at loss_rps, the larger of the two. generator_rps is the same for a
/// dpdk-testpmd that sends each request back as it is: the most that generator and cable can do. generator_ns_per_request is the generator's own work
/// then.
///
/// Over TCP: so many connections, with one get under way each, of 10,000 items of 30 and 200 bytes, from a client that polls on the first
/// core. A time runs from right before a request is handed to the client's kernel until its reply was read; the goodput counts the bytes of values.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Numbers of instances
    #[arg(long, value_delimiter = ',', default_value = "1,100,400,800", value_parser = clap::value_parser!(u16).range(1..=4000))]
    instances: Vec<u16>,
    /// Numbers of connections over TCP
    #[arg(long, value_delimiter = ',', default_value = "10,50,100", value_parser = clap::value_parser!(u16).range(1..=120))]
    connections: Vec<u16>,
}

#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    connections: Vec<ConnectionsRow>,
    generator_rps: u64,
    generator_p50_us: f64,
    generator_p99_us: f64,
    generator_ns_per_request: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    instances: usize,
    pinion_rps: u64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    pinion_loss: f64,
    linux_rps: u64,
    linux_p50_us: f64,
    linux_p99_us: f64,
    linux_loss: f64,
    /// The load of the times.
    offered_rps: u64,
    /// The load of the losses.
    loss_rps: u64,
}

#[derive(Debug, Serialize)]
struct ConnectionsRow {
    connections: usize,
    pinion_p90_us: f64,
    pinion_p95_us: f64,
    pinion_p99_us: f64,
    pinion_goodput_mbs: f64,
    linux_p90_us: f64,
    linux_p95_us: f64,
    linux_p99_us: f64,
    linux_goodput_mbs: f64,
}

pub(crate) fn run(options: &Options, run: &Run) -> anyhow::Result<Outcome> {
    run.progress.expect(1 + 4 * options.instances.len() + 2 * options.connections.len());
    let config = EalConfig {
        devices: vec!["net_af_packet0".to_owned()],
        buffers: BUFFERS,
        core: Some(run.cores.first),
        huge_pages: Default::default(),
    };
    let eal = Eal::start(&config)?;
    let pool = DpdkPool::new(&eal, BUFFERS)?;
    let bench = Bench { run, eal: &eal, pool };

    let reflected = bench.reflected()?;
    let rows = options.instances.iter().map(|instances| bench.row(usize::from(*instances)));
    let rows = rows.collect::<anyhow::Result<Vec<_>>>()?;
    let connections = options.connections.iter().map(|count| bench.connections_row(usize::from(*count)));
    let connections = connections.collect::<anyhow::Result<Vec<_>>>()?;
    let (generator_rps, offered) = reflected;
    let figures = Figures {
        rows,
        connections,
        generator_rps,
        generator_p50_us: rounded(offered.times.at_us(50.0)),
        generator_p99_us: rounded(offered.times.at_us(99.0)),
        generator_ns_per_request: rounded(offered.generator_ns()),
    };
    let mut outcome = Outcome::new(&figures, summary(&figures));
    outcome.node_was_on(run.cores.together());
    outcome.describe("generator", "polls on the first core");
    outcome.describe("idle", "busy");
    Ok(outcome)
}

/// What measures.
struct Bench<'a> {
    run: &'a Run,
    eal: &'a Eal,
    pool: DpdkPool,
}

impl Bench<'_> {
    /// Runs `work` with a generator whose clients have stored their items, on the generator's thread.
    fn with_generator<T: Send>(
        &self,
        server: &mut Server,
        work: impl FnOnce(&mut Generator<'_>) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let (link, instances, replies) = (server.link()?, server.instances(), server.replies());
        let items = (ITEMS / instances).max(ITEMS_MIN) as u32;
        let done = {
            let mut port = server.open(&self.pool)?;
            let (eal, core, mut pool) = (self.eal, self.run.cores.first, self.pool.clone());
            let thread = || {
                pin_here(core)?;
                let _registered = register_thread(eal)?;
                let mut generator =
                    Generator::new(&mut *port, &mut pool, Clients::new(instances, items, link, replies));
                generator.store_all()?;
                work(&mut generator)
            };
            thread::scope(|scope| scope.spawn(thread).join().expect("the generator does not panic"))
        };
        server.check()?;
        done
    }

    /// Measures the most that generator and interface can do, and the times of half of that.
    fn reflected(&self) -> anyhow::Result<(u64, Offered)> {
        self.run.progress.step("requests sent back as they are");
        let mut server = Server::reflector(self.run.cores)?;
        self.with_generator(&mut server, |generator| {
            let highest = capacity::search(generator, self.run.time / TRIALS)?;
            Ok((highest, generator.offer((highest / 2).max(1), self.run.time)?))
        })
        .context("testpmd")
    }

    /// Finds a server's capacity.
    fn capacity(&self, who: &str, server: &mut Server) -> anyhow::Result<u64> {
        self.run.progress.step(&format!("the most requests a second of {who}, {} instances", server.instances()));
        let trial = self.run.time / TRIALS;
        let found =
            self.with_generator(server, |generator| capacity::search(generator, trial)).context(who.to_owned())?;
        ensure!(found > 0, "{who} answers nothing");
        Ok(found)
    }

    /// Offers a server both loads: for the times, and for the losses.
    fn offer(&self, who: &str, server: &mut Server, loads: [u64; 2]) -> anyhow::Result<[Offered; 2]> {
        self.run.progress.step(&format!("times and losses of {who}, {} instances", server.instances()));
        self.with_generator(server, |generator| {
            let mut offer = |per_second: u64| -> anyhow::Result<Offered> {
                let offered = generator.offer(per_second, self.run.time)?;
                capacity::check(&offered)?;
                Ok(offered)
            };
            Ok([offer(loads[0])?, offer(loads[1])?])
        })
        .context(who.to_owned())
    }

    fn row(&self, instances: usize) -> anyhow::Result<Row> {
        let cores = self.run.cores;
        let mut node = Server::node(cores, instances, Over::Udp);
        let pinion_rps = self.capacity("Pinion", &mut node)?;
        drop(node);
        let mut debian = Server::debian(cores, instances, Over::Udp)?;
        let linux_rps = self.capacity("Linux", &mut debian)?;
        let loads = [pinion_rps.min(linux_rps) / 2, pinion_rps.max(linux_rps)];
        let [linux, linux_beyond] = self.offer("Linux", &mut debian, loads)?;
        drop(debian);
        let mut node = Server::node(cores, instances, Over::Udp);
        let [pinion, pinion_beyond] = self.offer("Pinion", &mut node, loads)?;
        Ok(Row {
            instances,
            pinion_rps,
            pinion_p50_us: rounded(pinion.times.at_us(50.0)),
            pinion_p99_us: rounded(pinion.times.at_us(99.0)),
            pinion_loss: rounded(pinion_beyond.loss()),
            linux_rps,
            linux_p50_us: rounded(linux.times.at_us(50.0)),
            linux_p99_us: rounded(linux.times.at_us(99.0)),
            linux_loss: rounded(linux_beyond.loss()),
            offered_rps: loads[0],
            loss_rps: loads[1],
        })
    }

    fn connections_row(&self, connections: usize) -> anyhow::Result<ConnectionsRow> {
        let cores = self.run.cores;
        let pinion = self.asked("Pinion", &Server::node(cores, 1, Over::Tcp), connections)?;
        let linux = self.asked("Linux", &Server::debian(cores, 1, Over::Tcp)?, connections)?;
        Ok(ConnectionsRow {
            connections,
            pinion_p90_us: rounded(pinion.times.at_us(90.0)),
            pinion_p95_us: rounded(pinion.times.at_us(95.0)),
            pinion_p99_us: rounded(pinion.times.at_us(99.0)),
            pinion_goodput_mbs: rounded(pinion.goodput_mbs),
            linux_p90_us: rounded(linux.times.at_us(90.0)),
            linux_p95_us: rounded(linux.times.at_us(95.0)),
            linux_p99_us: rounded(linux.times.at_us(99.0)),
            linux_goodput_mbs: rounded(linux.goodput_mbs),
        })
    }

    fn asked(&self, who: &str, server: &Server, connections: usize) -> anyhow::Result<Asked> {
        self.run.progress.step(&format!("{connections} connections to {who}"));
        let to = (NODE.parse::<std::net::IpAddr>().context("the node's address")?, SERVICE_PORT).into();
        let client = || {
            pin_here(self.run.cores.first)?;
            Connections::open(connections, to)?.ask(self.run.time)
        };
        server.lab.client.inside(client).with_context(|| format!("{connections} connections to {who}"))
    }
}

fn summary(figures: &Figures) -> comfy_table::Table {
    let row = |over: String, who: &str, rps: Option<u64>, times: [f64; 2], last: String| {
        let [p50, p99] = times.map(|us| format!("{us:.1}"));
        [over, who.to_owned(), rps.map(|rps| rps.to_string()).unwrap_or_default(), p50, p99, last]
    };
    let datagrams = figures.rows.iter().flat_map(|it| {
        let name = format!("{} over UDP", it.instances);
        let lost = |loss: f64| format!("{:.1} % lost at {}/s", loss * 100.0, it.loss_rps);
        [
            row(name, "Pinion", Some(it.pinion_rps), [it.pinion_p50_us, it.pinion_p99_us], lost(it.pinion_loss)),
            row(String::new(), "Linux", Some(it.linux_rps), [it.linux_p50_us, it.linux_p99_us], lost(it.linux_loss)),
        ]
    });
    let connections = figures.connections.iter().flat_map(|it| {
        let name = format!("{} connections", it.connections);
        let goodput = |mbs: f64| format!("{mbs:.1} MB/s");
        let (pinion, linux) = (goodput(it.pinion_goodput_mbs), goodput(it.linux_goodput_mbs));
        [
            row(name, "Pinion", None, [it.pinion_p90_us, it.pinion_p99_us], pinion),
            row(String::new(), "Linux", None, [it.linux_p90_us, it.linux_p99_us], linux),
        ]
    });
    let generator = [figures.generator_p50_us, figures.generator_p99_us];
    let own = format!("{:.0} ns of the generator's own", figures.generator_ns_per_request);
    let generator = row("sent back".to_owned(), "testpmd", Some(figures.generator_rps), generator, own);
    table(
        ["", "", "requests/s", "p50 us (TCP: p90)", "p99 us", ""],
        datagrams.chain(connections).chain(std::iter::once(generator)),
    )
}

/// Mixes the bits of a number (the end of SplitMix64), so that neighbours have nothing in common.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
