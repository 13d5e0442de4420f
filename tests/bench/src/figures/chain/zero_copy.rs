//! The zero-copy peer: `native/zero_copy_chain.c`, a program of its own.

use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{Source, WARM_UP};
use crate::measurement::run::Run;

/// Compiled by `build.rs`.
const PROGRAM: &str = env!("ZERO_COPY_CHAIN");

/// The program's output.
#[derive(Debug, Deserialize)]
struct Report {
    received: u64,
    sent: u64,
    wrong: u64,
    miscounted: u64,
    measured: u64,
    seconds: f64,
}

/// Returns how many millions of packets per second pass a chain of native functions, by the pipeline's own counters.
pub(super) fn measure(run: &Run, source: &Source, length: usize) -> anyhow::Result<f64> {
    let (first, second) = (run.cores.first, run.cores.second);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", PROGRAM]);
    command.arg(format!("--lcores=0@{first}")).args(super::eal_arguments("zero-copy", source)).arg("--");
    let times = [WARM_UP, run.time].map(|time| time.as_millis().to_string());
    command.args([length, first, second].map(|number| number.to_string())).args(times);
    let output = command.output().context("setpriv, of Debian's util-linux")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let report = said.lines().rev().find_map(|line| serde_json::from_str::<Report>(line).ok());
    let errors = String::from_utf8_lossy(&output.stderr);
    let report = report.with_context(|| format!("the zero-copy chain did not run: {}", errors.trim()))?;
    let Report { received, sent, wrong, miscounted, .. } = report;
    ensure!(
        received == sent && wrong == 0 && miscounted == 0 && output.status.success(),
        "the zero-copy chain received {received} packets and sent {sent}; {wrong} were wrong, {miscounted} functions \
         miscounted"
    );
    Ok(super::mpps(report.measured, report.seconds))
}
