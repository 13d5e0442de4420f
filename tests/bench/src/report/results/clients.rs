//! The figures of clients that come and go.

use serde::Deserialize;
use serde_json::Value;

use super::{Line, Results, read};
use crate::report::plot::{Plot, Series};

#[derive(Deserialize)]
struct Launch {
    create_p50_us: f64,
    activate_p50_us: f64,
    activate_p99_us: f64,
    activate_chain10_p50_us: f64,
    activate_first100_p50_us: f64,
    activate_last100_p50_us: f64,
    fork_exec_p50_us: f64,
    fork_faults_p50_us: f64,
    speedup_vs_fork_exec: f64,
}

pub(super) fn launch(json: Value) -> anyhow::Result<Results> {
    let launch: Launch = read(&json)?;
    let line =
        |figure: &str, pinion: String, peers: String, paper| Line { figure: figure.to_owned(), pinion, peers, paper };
    let lines = vec![
        line(
            "a new client's function runs, p50 and p99",
            format!("{:.2} and {:.2} us", launch.activate_p50_us, launch.activate_p99_us),
            format!("fork and exec {:.0} us (x {:.0})", launch.fork_exec_p50_us, launch.speedup_vs_fork_exec),
            "6.2 us",
        ),
        line(
            "the same, the first and the last hundred of all",
            format!("{:.2} and {:.2} us", launch.activate_first100_p50_us, launch.activate_last100_p50_us),
            "-".to_owned(),
            "-",
        ),
        line(
            "a new client's chain of ten runs, p50",
            format!("{:.2} us", launch.activate_chain10_p50_us),
            "-".to_owned(),
            "-",
        ),
        line(
            "an instance is prepared, p50",
            format!("{:.1} us", launch.create_p50_us),
            format!("fork and 8 faults {:.0} us", launch.fork_faults_p50_us),
            "-",
        ),
    ];
    Ok(Results {
        title: "A new client's function",
        origin: "EdgeOS, figure 6",
        env: json["env"].clone(),
        plots: Vec::new(),
        lines,
    })
}

#[derive(Deserialize)]
struct Churn {
    intervals: Vec<ChurnRow>,
    max_clients_per_s: f64,
    linux_reply_p90_us: f64,
    linux_intervals: Vec<ChurnRow>,
}

#[derive(Deserialize)]
struct ChurnRow {
    interval_us: f64,
    reply_p50_us: f64,
    reply_p90_us: f64,
    reply_p99_us: f64,
    lost: u64,
}

/// The time within which EdgeOS answers nine in ten new clients.
const EDGEOS_REPLY_US: f64 = 50.0;

pub(super) fn churn(json: Value) -> anyhow::Result<Results> {
    let Churn { intervals, max_clients_per_s, linux_reply_p90_us, linux_intervals } = read(&json)?;
    let curve = |name: &str, rows: &[ChurnRow]| {
        Series::line(name, rows.iter().map(|row| (row.interval_us, row.reply_p90_us)).collect())
    };
    let paper = intervals.iter().map(|row| (row.interval_us, EDGEOS_REPLY_US)).collect();
    let plot = Plot {
        title: "Nine in ten new clients have their reply".to_owned(),
        x: "microseconds from each new client to the next",
        y: "microseconds",
        series: vec![
            curve("Pinion", &intervals),
            curve("a Linux process for each", &linux_intervals),
            Series::reference("EdgeOS", paper),
        ],
    };
    let of_interval = |row: &ChurnRow| Line {
        figure: format!("reply to a new client every {:.0} us, p50, p90, p99", row.interval_us),
        pinion: format!(
            "{:.1}, {:.1}, {:.1} us; {} lost",
            row.reply_p50_us, row.reply_p90_us, row.reply_p99_us, row.lost
        ),
        peers: linux_intervals.iter().find(|linux| (linux.interval_us - row.interval_us).abs() < 0.5).map_or_else(
            || format!("a process for each: p90 {linux_reply_p90_us:.0} us"),
            |linux| format!("a process for each: p90 {:.0} us; {} lost", linux.reply_p90_us, linux.lost),
        ),
        paper: "25 to 50 us",
    };
    let mut lines: Vec<Line> = intervals.iter().map(of_interval).collect();
    lines.push(Line {
        figure: "new clients, each with an instance of its own, none lost".to_owned(),
        pinion: format!("{max_clients_per_s:.0} per second"),
        peers: "-".to_owned(),
        paper: "-",
    });
    Ok(Results {
        title: "New clients that keep coming",
        origin: "EdgeOS, figure 7a",
        env: json["env"].clone(),
        plots: vec![plot],
        lines,
    })
}

#[derive(Deserialize)]
struct Density {
    instances: u32,
    rss_delta_mib: f64,
    kib_per_fwp: f64,
    linux_kib_per_process: f64,
}

pub(super) fn density(json: Value) -> anyhow::Result<Results> {
    let density: Density = read(&json)?;
    let line = Line {
        figure: format!("memory of {} packet filters that have served a client", density.instances),
        pinion: format!("{:.0} MiB, {:.1} KiB each", density.rss_delta_mib, density.kib_per_fwp),
        peers: format!("an idle process {:.1} KiB", density.linux_kib_per_process),
        paper: "less than 1 GB for 2,000",
    };
    Ok(Results {
        title: "Memory of an instance",
        origin: "EdgeOS, section 5.2",
        env: json["env"].clone(),
        plots: Vec::new(),
        lines: vec![line],
    })
}

#[derive(Deserialize)]
struct Invoke {
    warm_p50_us: f64,
    warm_p99_us: f64,
    warm_per_s_per_core: f64,
    cold_p50_us: f64,
    disk_p50_us: f64,
    process_warm_p50_us: f64,
    process_warm_p99_us: f64,
    process_warm_per_s_per_core: f64,
    process_cold_p50_us: f64,
}

pub(super) fn invoke(json: Value) -> anyhow::Result<Results> {
    let invoke: Invoke = read(&json)?;
    let line =
        |figure: &str, pinion: String, peers: String, paper| Line { figure: figure.to_owned(), pinion, peers, paper };
    let lines = vec![
        line(
            "a resident function that is called has answered, p50 and p99",
            format!("{:.2} and {:.2} us", invoke.warm_p50_us, invoke.warm_p99_us),
            format!("a resident process {:.1} and {:.1} us", invoke.process_warm_p50_us, invoke.process_warm_p99_us),
            "1.2 and 2.0 us",
        ),
        line(
            "calls of resident functions, one core",
            format!("{:.0} thousand/s", invoke.warm_per_s_per_core / 1e3),
            format!("resident processes {:.0} thousand/s", invoke.process_warm_per_s_per_core / 1e3),
            "more than 5 million/s on 14 cores",
        ),
        line(
            "a function without an instance has answered, p50",
            format!("{:.1} us", invoke.cold_p50_us),
            format!("fork and exec {:.0} us", invoke.process_cold_p50_us),
            "-",
        ),
        line(
            "a function of which nothing is mapped has answered, p50",
            format!("{:.0} us", invoke.disk_p50_us),
            "-".to_owned(),
            "-",
        ),
    ];
    Ok(Results {
        title: "Calling a function",
        origin: "Micro, table 1",
        env: json["env"].clone(),
        plots: Vec::new(),
        lines,
    })
}
