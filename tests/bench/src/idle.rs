//! `idle`: what a node costs that has nothing to do, and how fast it wakes.

use crate::figure::Run;
use crate::outcome::Outcome;

/// What a node costs that has nothing to do, and how fast it wakes
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_options: &Options, _run: &Run) -> anyhow::Result<Outcome> {
    anyhow::bail!("it cannot be measured yet")
}
