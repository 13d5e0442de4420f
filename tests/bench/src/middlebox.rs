//! `middlebox`: the latency that a packet filter per client adds (EdgeOS, figure 7b).

use crate::figure::Run;
use crate::outcome::Outcome;

/// The latency that a packet filter per client adds, beside the kernel's
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_options: &Options, _run: &Run) -> anyhow::Result<Outcome> {
    anyhow::bail!("it cannot be measured yet")
}
