//! The figures of how functions share a core.

use serde::Deserialize;
use serde_json::Value;

use super::{Line, Results, read};
use crate::report::plot::{Plot, Series};

#[derive(Deserialize)]
struct Quantum {
    rows: Vec<QuantumRow>,
}

#[derive(Deserialize)]
struct QuantumRow {
    quantum_us: f64,
    throughput_ratio: f64,
    preempt_p99_us: f64,
}

pub(super) fn quantum(json: Value) -> anyhow::Result<Results> {
    let Quantum { rows } = read(&json)?;
    let ratios = rows.iter().map(|row| (row.quantum_us, row.throughput_ratio)).collect();
    let line = |row: &QuantumRow| Line {
        figure: format!("SHA-512 interrupted each {} us", row.quantum_us),
        pinion: format!(
            "x {:.2} of its throughput; off the core within {:.0} us (p99)",
            row.throughput_ratio, row.preempt_p99_us
        ),
        peers: "uninterrupted: x 1".to_owned(),
        paper: if row.quantum_us == 20.0 { "x 0.90" } else { "-" },
    };
    Ok(Results {
        title: "A function interrupted",
        origin: "Micro, figure 2",
        env: json["env"].clone(),
        plots: vec![Plot {
            title: "Throughput of a function that is interrupted".to_owned(),
            x: "quantum, us",
            y: "part of that of an uninterrupted one",
            series: vec![Series::line("Pinion", ratios)],
        }],
        lines: rows.iter().map(line).collect(),
    })
}

#[derive(Deserialize)]
struct Fair {
    rows: Vec<FairRow>,
    max_share_error: f64,
    victim_p99_us_alone: f64,
    victim_p99_us_with_hog: f64,
    victim_latency_class_p99_us: f64,
}

#[derive(Deserialize)]
struct FairRow {
    weight: u32,
    share_got: f64,
}

pub(super) fn fair(json: Value) -> anyhow::Result<Results> {
    let fair: Fair = read(&json)?;
    let shares: Vec<String> = fair.rows.iter().map(|row| format!("{:.3}", row.share_got)).collect();
    let weights: Vec<String> = fair.rows.iter().map(|row| row.weight.to_string()).collect();
    let line = |figure: String, pinion: String| Line { figure, pinion, peers: "-".to_owned(), paper: "-" };
    let lines = vec![
        line(
            format!("shares of a core by tenants of weights {}", weights.join(", ")),
            format!("{}; error at most {:.2} %", shares.join(", "), 100.0 * fair.max_share_error),
        ),
        line(
            "a function's reply, p99, alone and beside 50 tenants' loops".to_owned(),
            format!(
                "{:.0} and {:.0} us; in the latency class {:.0} us",
                fair.victim_p99_us_alone, fair.victim_p99_us_with_hog, fair.victim_latency_class_p99_us
            ),
        ),
    ];
    Ok(Results {
        title: "Tenants' shares of a core",
        origin: "FastPaaS",
        env: json["env"].clone(),
        plots: Vec::new(),
        lines,
    })
}
