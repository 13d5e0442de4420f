//! The figures of TLS and of neural networks, with an instance for each client.

use serde::Deserialize;
use serde_json::Value;

use super::{Line, Results, read};
use crate::report::plot::{Plot, Series};

#[derive(Deserialize)]
struct Tls {
    rows: Vec<TlsRow>,
    pinion_handshakes_per_s: f64,
    nginx_handshakes_per_s: f64,
    pinion_resumed_per_s: f64,
    nginx_resumed_per_s: f64,
    handshakes: Vec<Handshakes>,
}

#[derive(Deserialize)]
struct TlsRow {
    clients: u32,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    nginx_rps: f64,
    nginx_p50_us: f64,
    nginx_p99_us: f64,
    offered_rps: f64,
}

#[derive(Deserialize)]
struct Handshakes {
    kind: String,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    nginx_p50_us: f64,
    nginx_p99_us: f64,
}

pub(super) fn tls(json: Value) -> anyhow::Result<Results> {
    let tls: Tls = read(&json)?;
    let curve = |value: fn(&TlsRow) -> f64| -> Vec<(f64, f64)> {
        tls.rows.iter().map(|row| (f64::from(row.clients), value(row))).collect()
    };
    let plots = both_plots(
        "nginx",
        "thousand a second",
        [curve(|row| row.pinion_rps / 1e3), curve(|row| row.nginx_rps / 1e3)],
        [curve(|row| row.pinion_p99_us), curve(|row| row.nginx_p99_us)],
    );
    let mut lines = Vec::new();
    for row in &tls.rows {
        lines.push(rates(
            format!("requests over TLS, {} clients", row.clients),
            "nginx",
            [row.pinion_rps, row.nginx_rps],
        ));
        lines.push(times(
            format!("the same at {:.1} thousand/s", row.offered_rps / 1e3),
            "nginx",
            [row.pinion_p50_us, row.pinion_p99_us],
            [row.nginx_p50_us, row.nginx_p99_us],
        ));
    }
    let both = [
        [tls.pinion_handshakes_per_s, tls.nginx_handshakes_per_s],
        [tls.pinion_resumed_per_s, tls.nginx_resumed_per_s],
    ];
    for (handshakes, per_s) in tls.handshakes.iter().zip(both) {
        lines.push(rates(format!("{} handshakes, an instance for each", handshakes.kind), "nginx", per_s));
        lines.push(times(
            "the same".to_owned(),
            "nginx",
            [handshakes.pinion_p50_us, handshakes.pinion_p99_us],
            [handshakes.nginx_p50_us, handshakes.nginx_p99_us],
        ));
    }
    let env = json["env"].clone();
    Ok(Results { title: "A TLS server for each client", origin: "EdgeOS, section 5.4", env, plots, lines })
}

#[derive(Deserialize)]
struct Infer {
    rows: Vec<InferRow>,
}

#[derive(Deserialize)]
struct InferRow {
    clients: u32,
    pinion_rps: f64,
    pinion_p50_us: f64,
    pinion_p99_us: f64,
    linux_rps: f64,
    linux_p50_us: f64,
    linux_p99_us: f64,
    offered_rps: f64,
}

pub(super) fn infer(json: Value) -> anyhow::Result<Results> {
    let Infer { rows } = read(&json)?;
    let curve = |value: fn(&InferRow) -> f64| -> Vec<(f64, f64)> {
        rows.iter().map(|row| (f64::from(row.clients), value(row))).collect()
    };
    let plots = both_plots(
        "a process for each client",
        "thousand a second",
        [curve(|row| row.pinion_rps / 1e3), curve(|row| row.linux_rps / 1e3)],
        [curve(|row| row.pinion_p99_us), curve(|row| row.linux_p99_us)],
    );
    let mut lines = Vec::new();
    for row in &rows {
        let figure = format!("images classified, {} clients", row.clients);
        lines.push(rates(figure, "a process for each", [row.pinion_rps, row.linux_rps]));
        lines.push(times(
            format!("the same at {:.2} thousand/s", row.offered_rps / 1e3),
            "a process for each",
            [row.pinion_p50_us, row.pinion_p99_us],
            [row.linux_p50_us, row.linux_p99_us],
        ));
    }
    let env = json["env"].clone();
    Ok(Results { title: "A neural network for each client", origin: "EdgeOS, section 5.5", env, plots, lines })
}

/// Plots rates and tails, of Pinion and of its peer each, by the number of clients.
fn both_plots(peer: &str, y: &'static str, rates: [Vec<(f64, f64)>; 2], tails: [Vec<(f64, f64)>; 2]) -> Vec<Plot> {
    let plot = |title: &str, y, [pinion, other]: [Vec<(f64, f64)>; 2]| Plot {
        title: title.to_owned(),
        x: "clients",
        y,
        series: vec![Series::line("Pinion", pinion), Series::line(peer, other)],
    };
    vec![
        plot("As many as are answered", y, rates),
        plot("99th percentile at 0.7 of the smaller rate", "microseconds", tails),
    ]
}

fn rates(figure: String, peer: &str, [pinion, other]: [f64; 2]) -> Line {
    Line {
        figure,
        pinion: format!("{:.2} thousand/s", pinion / 1e3),
        peers: format!("{peer} {:.2} thousand/s (x {:.2})", other / 1e3, pinion / other),
        paper: "-",
    }
}

fn times(figure: String, peer: &str, pinion: [f64; 2], other: [f64; 2]) -> Line {
    let text = |[p50_us, p99_us]: [f64; 2]| format!("p50 and p99 {p50_us:.0} and {p99_us:.0} us");
    Line { figure, pinion: text(pinion), peers: format!("{peer} {}", text(other)), paper: "-" }
}
