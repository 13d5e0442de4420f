//! `chain`: throughput of a chain of functions, beside native forwarding and a zero-copy pipeline (EdgeOS, figures 5b and 5c).

use crate::figure::Run;
use crate::outcome::Outcome;

/// Throughput of a chain of MAC-swapping functions, beside testpmd and a zero-copy pipeline
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_options: &Options, _run: &Run) -> anyhow::Result<Outcome> {
    anyhow::bail!("it cannot be measured yet")
}
