//! `ping`: a ping's round trip (EdgeOS, figure 5a).

use crate::figure::Run;
use crate::outcome::Outcome;

/// A ping's round trip, beside testpmd's and the kernel's
#[derive(Debug, clap::Args)]
pub(crate) struct Options {}

pub(crate) fn run(_options: &Options, _run: &Run) -> anyhow::Result<Outcome> {
    anyhow::bail!("it cannot be measured yet")
}
