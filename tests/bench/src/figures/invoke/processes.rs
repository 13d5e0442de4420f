//! The peer: resident processes, each waiting for a datagram, `native/resident_processes.c`.

use std::time::Duration;

use anyhow::{Context, bail};

use crate::measurement::percentiles::Percentiles;
use crate::measurement::run::Run;
use crate::systems::processes::{RESIDENT_PROCESSES, ending_with_us};

/// The results of their calls.
pub(super) struct Resident {
    pub(super) times: Percentiles,
    pub(super) per_second: f64,
}

/// Calls so many processes so often, one call after the other, and then with so many calls in flight for the time of a measurement. The times
/// run until the dispatcher has the answer, as those of functions do.
pub(super) fn measure(run: &Run, processes: usize, calls: usize, under_way: usize) -> anyhow::Result<Resident> {
    let words = [processes, calls, run.time.as_secs() as usize, under_way, run.cores.first, run.cores.second];
    let mut command = ending_with_us(RESIDENT_PROCESSES);
    let output =
        command.args(words.map(|word| word.to_string())).output().context("setpriv, of Debian's util-linux")?;
    if !output.status.success() {
        bail!("resident-processes failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let (times_said, last) = said.trim_end().rsplit_once('\n').context("resident-processes says too little")?;
    let mut times = Percentiles::new();
    for line in times_said.lines() {
        let took_ns = line.parse().with_context(|| format!("resident-processes says {line:?}"))?;
        times.record(Duration::from_nanos(took_ns));
    }
    anyhow::ensure!(times.count() == calls as u64, "{} of {calls} processes were timed", times.count());
    let (took_ns, served) = last.split_once(' ').with_context(|| format!("resident-processes says {last:?}"))?;
    let seconds = Duration::from_nanos(took_ns.parse()?).as_secs_f64();
    Ok(Resident { times, per_second: served.parse::<f64>()? / seconds })
}
