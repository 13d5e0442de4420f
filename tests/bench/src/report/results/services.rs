//! The figures of services that clients know.

use serde::Deserialize;
use serde_json::Value;

use super::{Line, Results, read};
use crate::report::plot::{Plot, Series};

#[derive(Deserialize)]
struct Memcached {
    rows: Vec<Datagrams>,
    connections: Vec<Connections>,
    generator_rps: f64,
}

#[derive(Deserialize)]
struct Datagrams {
    instances: u32,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    pinion_loss: f64,
    linux_rps: f64,
    linux_p50_us: f64,
    linux_p99_us: f64,
    linux_loss: f64,
    offered_rps: f64,
    loss_rps: f64,
}

#[derive(Deserialize)]
struct Connections {
    connections: u32,
    pinion_p90_us: f64,
    pinion_p99_us: f64,
    pinion_goodput_mbs: f64,
    linux_p90_us: f64,
    linux_p99_us: f64,
    linux_goodput_mbs: f64,
}

pub(super) fn memcached(json: Value) -> anyhow::Result<Results> {
    let Memcached { rows, connections, generator_rps } = read(&json)?;
    let curve = |value: fn(&Datagrams) -> f64| -> Vec<(f64, f64)> {
        rows.iter().map(|row| (f64::from(row.instances), value(row))).collect()
    };
    let rates = vec![
        Series::line("Pinion", curve(|row| row.pinion_rps / 1e3)),
        Series::line("Linux", curve(|row| row.linux_rps / 1e3)),
        Series::reference(
            "generator and cable",
            curve(|_| 0.0).iter().map(|(x, _)| (*x, generator_rps / 1e3)).collect(),
        ),
    ];
    let tails = vec![
        Series::line("Pinion", curve(|row| row.pinion_p99_us)),
        Series::line("Linux", curve(|row| row.linux_p99_us)),
    ];
    let plot = |title: &str, y, series| Plot { title: title.to_owned(), x: "instances", y, series };
    let mut lines = Vec::new();
    for row in &rows {
        lines.push(Line {
            figure: format!("memcached over UDP, {} instances, at most 0.1 % lost", row.instances),
            pinion: format!("{:.0} thousand/s", row.pinion_rps / 1e3),
            peers: format!("Linux {:.0} thousand/s (x {:.1})", row.linux_rps / 1e3, row.pinion_rps / row.linux_rps),
            paper: if row.instances == 1 { "x 5" } else { "-" },
        });
        lines.push(Line {
            figure: format!("the same at {:.0} thousand/s, p50 and p99", row.offered_rps / 1e3),
            pinion: format!("{:.0} and {:.0} us", row.pinion_p50_us, row.pinion_p99_us),
            peers: format!("Linux {:.0} and {:.0} us", row.linux_p50_us, row.linux_p99_us),
            paper: if row.instances >= 400 { "less than 1 ms, Linux nearly 1 s" } else { "-" },
        });
        lines.push(Line {
            figure: format!("the same at {:.0} thousand/s, lost", row.loss_rps / 1e3),
            pinion: format!("{:.1} %", row.pinion_loss * 100.0),
            peers: format!("Linux {:.1} %", row.linux_loss * 100.0),
            paper: if row.instances == 800 { "13 %, Linux 66 %" } else { "-" },
        });
    }
    lines.extend(connections.iter().map(|row| Line {
        figure: format!("memcached over TCP, {} connections, p90 and p99, goodput", row.connections),
        pinion: format!("{:.0} and {:.0} us, {:.1} MB/s", row.pinion_p90_us, row.pinion_p99_us, row.pinion_goodput_mbs),
        peers: format!(
            "Linux {:.0} and {:.0} us, {:.1} MB/s",
            row.linux_p90_us, row.linux_p99_us, row.linux_goodput_mbs
        ),
        paper: "-",
    }));
    Ok(Results {
        title: "A cache for each client",
        origin: "EdgeOS, figures 8 and 9; Enberg",
        env: json["env"].clone(),
        plots: vec![
            plot("Requests over UDP, at most 0.1 % lost", "thousand a second", rates),
            plot("99th percentile at half of the smaller rate", "microseconds", tails),
        ],
        lines,
    })
}

#[derive(Deserialize)]
struct Http {
    rows: Vec<HttpRow>,
    bulk_pinion_gbps: f64,
    bulk_kernel_gbps: f64,
}

#[derive(Deserialize)]
struct HttpRow {
    clients: u32,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    nginx_rps: f64,
    nginx_p50_us: f64,
    nginx_p99_us: f64,
}

pub(super) fn http(json: Value) -> anyhow::Result<Results> {
    let Http { rows, bulk_pinion_gbps, bulk_kernel_gbps } = read(&json)?;
    let text = |rps: f64, p50_us: f64, p99_us: f64| {
        format!("{:.1} thousand/s, p50 and p99 {p50_us:.0} and {p99_us:.0} us", rps / 1e3)
    };
    let line = |row: &HttpRow| Line {
        figure: format!("a small file over HTTP, {} connections", row.clients),
        pinion: text(row.pinion_rps, row.pinion_p50_us, row.pinion_p99_us),
        peers: format!("nginx {}", text(row.nginx_rps, row.nginx_p50_us, row.nginx_p99_us)),
        paper: "-",
    };
    let bulk = Line {
        figure: "one TCP connection out of a function".to_owned(),
        pinion: format!("{bulk_pinion_gbps:.2} Gb/s"),
        peers: format!("iperf3 between two kernels {bulk_kernel_gbps:.2} Gb/s"),
        paper: "-",
    };
    let lines = rows.iter().map(line).chain([bulk]).collect();
    let env = json["env"].clone();
    Ok(Results { title: "Files over HTTP", origin: "what users would pick instead", env, plots: Vec::new(), lines })
}
