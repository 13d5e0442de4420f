//! What every figure runs with: its duration, its cores, and its progress bar.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};
use pinion_tests::machine::cores::two_cores;
use pinion_tests::product::tuning;

use crate::machine::core_distance;
use crate::machine::others::Others;

// The options of all figures.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// How long each measurement lasts, in seconds; warm-ups come before and are not counted
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// The cores that are measured on: gateway and MMA on the first, the worker on the second; by default the first two
    /// that this process may use
    #[arg(long, value_delimiter = ',', value_name = "CORE,CORE")]
    cores: Vec<usize>,
    /// Writes the figures to standard output as JSON; implied when that is no terminal
    #[arg(long)]
    json: bool,
    /// How much the node does for caches (the key `tuning` of its configuration). With both, all is measured twice, and a table has both
    /// columns
    #[arg(long, value_enum, default_value = "full")]
    tuning: Tunings,
}

/// The values of `tuning` to measure with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tunings {
    Full,
    Off,
    Both,
}

impl Tunings {
    /// Returns them as they are written in a node's configuration.
    pub(crate) fn values(self) -> &'static [&'static str] {
        match self {
            Self::Full => &["full"],
            Self::Off => &["off"],
            Self::Both => &["full", "off"],
        }
    }
}

impl Common {
    pub(crate) fn tunings(&self) -> &'static [&'static str] {
        self.tuning.values()
    }

    pub(crate) fn wants_json(&self) -> bool {
        self.json || !std::io::stdout().is_terminal()
    }
}

/// The cores of a measurement. On a machine with one core, both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// The core of gateway and MMA, or of a peer's forwarder or manager.
    pub(crate) first: usize,
    /// The core of the worker, or of a peer's functions.
    pub(crate) second: usize,
}

impl Cores {
    pub(crate) fn chosen(wish: &[usize]) -> anyhow::Result<Self> {
        let (first, second) = match *wish {
            [] => two_cores(),
            [only] => (only, only),
            [first, second] => (first, second),
            _ => anyhow::bail!("--cores names {} cores: one or two are used", wish.len()),
        };
        let allowed = rustix::thread::sched_getaffinity(None)?;
        for core in [first, second] {
            let usable = core < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(core);
            ensure!(usable, "--cores names core {core}, which this process may not use");
        }
        Ok(Self { first, second })
    }

    /// Returns these cores with all of a node's roles on the second, which leaves the first to its launcher, or to a client.
    pub(crate) fn together(self) -> Self {
        Self { first: self.second, ..self }
    }

    /// Returns the lines of a node's configuration that put its roles there.
    pub(crate) fn node_config(self) -> String {
        let Self { first, second } = self;
        format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n")
    }
}

/// A figure that is being measured.
#[derive(Debug)]
pub(crate) struct Run {
    /// The subcommand.
    pub(crate) name: &'static str,
    /// The node's `tuning`.
    pub(crate) tuning: &'static str,
    /// How long each measurement lasts.
    pub(crate) time: Duration,
    /// The cores.
    pub(crate) cores: Cores,
    /// The progress bar.
    pub(crate) progress: Progress,
    /// The other programs' use of the machine during the measurement.
    pub(crate) others: Others,
    /// The distance of the cores before the measurement: [`core_distance::round_trip_ns`].
    pub(crate) core_round_trip_ns: Option<f64>,
}

impl Run {
    /// Begins to measure. Nodes started from now on have this `tuning`.
    pub(crate) fn new(name: &'static str, common: &Common, tuning: &'static str) -> anyhow::Result<Self> {
        tuning::choose(tuning);
        let time = Duration::from_secs(common.seconds);
        let cores = Cores::chosen(&common.cores)?;
        let core_round_trip_ns = core_distance::round_trip_ns(cores)?;
        Ok(Self { name, tuning, time, cores, progress: Progress::new(), others: Others::watch()?, core_round_trip_ns })
    }
}

/// A progress bar on standard error; plain lines where that is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new() -> Self {
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}");
        let bar = ProgressBar::no_length().with_style(style.expect("the template is right"));
        Self { bar }
    }

    /// Sets the number of steps.
    pub(crate) fn expect(&self, steps: usize) {
        self.bar.set_length(steps as u64);
    }

    /// Shows the step that begins. The bar is drawn now and not again before the next step, so that it uses no time during the measurement.
    pub(crate) fn step(&self, what: &str) {
        if self.bar.is_hidden() {
            eprintln!("{what}");
        }
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_core_does_everything() {
        let (first, _) = two_cores();
        assert_eq!(Cores::chosen(&[first]).unwrap(), Cores { first, second: first });
    }

    #[test]
    fn a_missing_core_is_named() {
        let error = Cores::chosen(&[100_000]).unwrap_err().to_string();
        assert_eq!(error, "--cores names core 100000, which this process may not use");
    }
}
