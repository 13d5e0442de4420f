//! The meaning of each figure's JSON, in words and curves: only this module knows the figures' keys, and the papers' values.

mod clients;
mod sandboxed;
mod services;
mod sharing;

use anyhow::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::plot::{Plot, Series};

/// A figure that exists.
pub(super) struct Figure {
    /// The subcommand.
    pub(super) name: &'static str,
    pub(super) read: fn(Value) -> anyhow::Result<Results>,
}

pub(super) const FIGURES: [Figure; 14] = [
    Figure { name: "launch", read: clients::launch },
    Figure { name: "churn", read: clients::churn },
    Figure { name: "density", read: clients::density },
    Figure { name: "quantum", read: sharing::quantum },
    Figure { name: "fair", read: sharing::fair },
    Figure { name: "invoke", read: clients::invoke },
    Figure { name: "chain", read: chain },
    Figure { name: "middlebox", read: middlebox },
    Figure { name: "ping", read: ping },
    Figure { name: "memcached", read: services::memcached },
    Figure { name: "http", read: services::http },
    Figure { name: "tls", read: sandboxed::tls },
    Figure { name: "infer", read: sandboxed::infer },
    Figure { name: "idle", read: idle },
];

/// The results of one figure.
pub(super) struct Results {
    pub(super) title: &'static str,
    /// The paper's figure that it reproduces.
    pub(super) origin: &'static str,
    pub(super) env: Value,
    pub(super) plots: Vec<Plot>,
    pub(super) lines: Vec<Line>,
}

/// A line of the table of results.
pub(super) struct Line {
    pub(super) figure: String,
    pub(super) pinion: String,
    pub(super) peers: String,
    pub(super) paper: &'static str,
}

fn read<T: DeserializeOwned>(json: &Value) -> anyhow::Result<T> {
    T::deserialize(json).context("it has not the keys of this version; measure again")
}

#[derive(Deserialize)]
struct Chain {
    rows: Vec<ChainRow>,
}

#[derive(Deserialize)]
struct ChainRow {
    size: u16,
    length: u32,
    mpps: f64,
    gbps: f64,
    mma_gbps: f64,
    native_mpps: f64,
    zero_copy_mpps: f64,
    ratio_native: f64,
    ratio_zero_copy: f64,
}

/// What EdgeOS's MMA copies per second.
const EDGEOS_MMA_GBPS: f64 = 54.0;

fn chain(json: Value) -> anyhow::Result<Results> {
    let Chain { rows } = read(&json)?;
    let mut sizes: Vec<u16> = rows.iter().map(|row| row.size).collect();
    sizes.dedup();
    let curve = |size: u16, value: fn(&ChainRow) -> f64| -> Vec<(f64, f64)> {
        let rows = rows.iter().filter(|row| row.size == size);
        rows.map(|row| (f64::from(row.length), value(row))).collect()
    };
    let throughput = |&size: &u16| Plot {
        title: format!("Throughput, {size} bytes"),
        x: "functions in the chain",
        y: "million packets per second",
        series: vec![
            Series::line("Pinion", curve(size, |row| row.mpps)),
            Series::line("zero-copy pipeline of threads", curve(size, |row| row.zero_copy_mpps)),
            Series::line("testpmd, one function", curve(size, |row| row.native_mpps)),
        ],
    };
    let mut plots: Vec<Plot> = sizes.iter().map(throughput).collect();
    let mut copied: Vec<Series> =
        sizes.iter().map(|&size| Series::line(&format!("{size} bytes"), curve(size, |row| row.mma_gbps))).collect();
    let all_lengths = rows.iter().map(|row| (f64::from(row.length), EDGEOS_MMA_GBPS));
    copied.push(Series::reference("EdgeOS", all_lengths.collect()));
    plots.push(Plot { title: "Copied by the MMA".to_owned(), x: "functions in the chain", y: "Gb/s", series: copied });
    let line = |row: &ChainRow| Line {
        figure: format!("chain of {}, {} bytes", row.length, row.size),
        pinion: format!("{:.2} Mpps, {:.1} Gb/s; copied: {:.0} Gb/s", row.mpps, row.gbps, row.mma_gbps),
        peers: format!(
            "testpmd {:.2} Mpps (x {:.2}), zero-copy {:.2} Mpps (x {:.2})",
            row.native_mpps, row.ratio_native, row.zero_copy_mpps, row.ratio_zero_copy
        ),
        paper: if row.size >= 1024 { "line rate of 10 Gb/s, copied: 54 Gb/s" } else { "-" },
    };
    let lines = rows.iter().map(line).collect();
    Ok(Results {
        title: "Chains of functions",
        origin: "EdgeOS, figures 5b and 5c",
        env: json["env"].clone(),
        plots,
        lines,
    })
}

#[derive(Deserialize)]
struct Middlebox {
    rows: Vec<MiddleboxRow>,
    ns_per_client: f64,
    closed_ns_per_client: f64,
}

#[derive(Deserialize)]
struct MiddleboxRow {
    clients: u32,
    chain: Value,
    mode: String,
    added_p50_us: f64,
    added_p99_us: f64,
    lost: u64,
}

/// What each further client adds in EdgeOS.
const EDGEOS_US_PER_CLIENT: f64 = 0.3;

fn middlebox(json: Value) -> anyhow::Result<Results> {
    let Middlebox { rows, ns_per_client, closed_ns_per_client } = read(&json)?;
    let label = |row: &MiddleboxRow| format!("{}, {}", row.chain.to_string().trim_matches('"'), row.mode);
    let mut names: Vec<String> = Vec::new();
    for name in rows.iter().map(label) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let points = |name: &String, value: fn(&MiddleboxRow) -> f64| -> Vec<(f64, f64)> {
        let rows = rows.iter().filter(|row| label(row) == *name);
        rows.map(|row| (f64::from(row.clients), value(row))).collect()
    };
    let mut medians: Vec<Series> =
        names.iter().map(|name| Series::line(name, points(name, |row| row.added_p50_us))).collect();
    let clients = rows.iter().map(|row| (f64::from(row.clients), EDGEOS_US_PER_CLIENT * f64::from(row.clients)));
    medians.push(Series::reference("EdgeOS's slope", clients.collect()));
    let tails = names.iter().map(|name| Series::line(name, points(name, |row| row.added_p99_us))).collect();
    let lost = |chain: &str| rows.iter().filter(|row| row.chain == chain).map(|row| row.lost).sum::<u64>();
    let line = |mode: &str, ns: f64| Line {
        figure: format!("median latency that a further client adds, {mode} loop"),
        pinion: format!("{ns:.1} ns; {} packets lost in all", lost("packet-filter")),
        peers: "the kernel's bridge and nftables: in the report".to_owned(),
        paper: "300 ns",
    };
    let of_two = |row: &MiddleboxRow| Line {
        figure: format!("a firewall and a monitor of its own for each of {} clients, {} loop", row.clients, row.mode),
        pinion: format!("p50 and p99 {:.0} and {:.0} us; {} lost", row.added_p50_us, row.added_p99_us, row.lost),
        peers: "-".to_owned(),
        paper: "-",
    };
    let most = rows.iter().map(|row| row.clients).max();
    let lines_of_two =
        rows.iter().filter(|row| row.chain == "firewall-monitor" && Some(row.clients) == most).map(of_two);
    let plot = |title: &str, series| Plot { title: title.to_owned(), x: "clients", y: "microseconds added", series };
    Ok(Results {
        title: "Functions of each client's own",
        origin: "EdgeOS, figure 7b",
        env: json["env"].clone(),
        plots: vec![plot("Median", medians), plot("99th percentile", tails)],
        lines: [line("open", ns_per_client), line("closed", closed_ns_per_client)]
            .into_iter()
            .chain(lines_of_two)
            .collect(),
    })
}

#[derive(Deserialize)]
struct Ping {
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    testpmd_p50_us: f64,
    testpmd_p99_us: f64,
    kernel_p50_us: f64,
    kernel_p99_us: f64,
}

fn ping(json: Value) -> anyhow::Result<Results> {
    let ping: Ping = read(&json)?;
    let both = |p50, p99| vec![(50.0, p50), (99.0, p99)];
    let series = vec![
        Series::line("Pinion", both(ping.pinion_p50_us, ping.pinion_p99_us)),
        Series::line("testpmd", both(ping.testpmd_p50_us, ping.testpmd_p99_us)),
        Series::line("the kernel", both(ping.kernel_p50_us, ping.kernel_p99_us)),
    ];
    let line = Line {
        figure: "ping, p50 and p99".to_owned(),
        pinion: format!("{:.1} and {:.1} us", ping.pinion_p50_us, ping.pinion_p99_us),
        peers: format!(
            "testpmd {:.1} and {:.1} us, the kernel {:.1} and {:.1} us",
            ping.testpmd_p50_us, ping.testpmd_p99_us, ping.kernel_p50_us, ping.kernel_p99_us
        ),
        paper: "slightly slower than DPDK alone",
    };
    let plot = Plot { title: "Round trip".to_owned(), x: "percentile", y: "microseconds", series };
    Ok(Results {
        title: "A ping's round trip",
        origin: "EdgeOS, figure 5a",
        env: json["env"].clone(),
        plots: vec![plot],
        lines: vec![line],
    })
}

#[derive(Deserialize)]
struct Idle {
    idle_cpu_percent: f64,
    first_packet_p99_us: f64,
    busy_cpu_percent: f64,
}

fn idle(json: Value) -> anyhow::Result<Results> {
    let idle: Idle = read(&json)?;
    let line = Line {
        figure: "a node with nothing to do".to_owned(),
        pinion: format!(
            "{:.1} % of a core; first packet p99 {:.0} us",
            idle.idle_cpu_percent, idle.first_packet_p99_us
        ),
        peers: format!("busy polling {:.0} %", idle.busy_cpu_percent),
        paper: "-",
    };
    Ok(Results {
        title: "A node with nothing to do",
        origin: "what polling costs",
        env: json["env"].clone(),
        plots: Vec::new(),
        lines: vec![line],
    })
}
