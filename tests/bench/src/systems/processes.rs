//! Linux processes, the peers of FWPs: the programs of `native/` that start them, and those that are started.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::Cores;

/// Compiled by `build.rs` and linked statically.
const PROCESS_START: &str = env!("PROCESS_START");
const STARTED_PROCESS: &str = env!("STARTED_PROCESS");
pub(crate) const IDLE_PROCESS: &str = env!("IDLE_PROCESS");
pub(crate) const PROCESS_PER_CLIENT: &str = env!("PROCESS_PER_CLIENT");
pub(crate) const RESIDENT_PROCESSES: &str = env!("RESIDENT_PROCESSES");

/// A way to start a new process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// fork and exec of a static program, until its main runs.
    ForkExec,
    /// The same with `posix_spawn`.
    Spawn,
    /// fork, until the child has written to eight pages.
    ForkFaults,
}

/// Starts processes one after the other on these cores; returns the times from right before the call until the child notes the time.
pub(crate) fn start_times(start: Start, count: usize, cores: Cores) -> anyhow::Result<Percentiles> {
    let mode = match start {
        Start::ForkExec => "fork-exec",
        Start::Spawn => "spawn",
        Start::ForkFaults => "fork-faults",
    };
    let mut command = ending_with_us(PROCESS_START);
    command.args([mode, STARTED_PROCESS]).args([count, cores.first, cores.second].map(|number| number.to_string()));
    let output = command.output().context("setpriv, of Debian's util-linux")?;
    if !output.status.success() {
        bail!("process-start {mode} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut times = Percentiles::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let took_ns = line.parse().with_context(|| format!("process-start {mode} says {line:?}"))?;
        times.record(Duration::from_nanos(took_ns));
    }
    anyhow::ensure!(times.count() == count as u64, "process-start {mode} started {} of {count}", times.count());
    Ok(times)
}

/// Returns a command for a program that does not outlive this process.
pub(crate) fn ending_with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).stdin(Stdio::null());
    command
}

/// Child processes, killed when dropped.
#[derive(Debug, Default)]
pub(crate) struct Children(pub(crate) Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
