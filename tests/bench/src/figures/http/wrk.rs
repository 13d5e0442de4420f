//! `wrk`, which asks for one file over and over, on each connection as soon as the reply to the last request is there.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use pinion_tests::machine::process::{errors, output};
use pinion_tests::network::namespace::Namespace;
use serde::Deserialize;

/// What it says at its end, in Lua.
const SAYS: &str = r#"
done = function(summary, latency, requests)
    local errors = summary.errors
    print(string.format('{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"failed":%d}',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#;

/// Its results.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Asked {
    pub(crate) requests: u64,
    pub(crate) duration_us: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    failed: u64,
}

impl Asked {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 * 1e6 / self.duration_us.max(1) as f64
    }
}

/// Asks for a URL on so many connections, from a core, after a warm-up that does not count.
///
/// # Errors
/// A request fails.
pub(crate) fn ask(from: &Namespace, core: usize, url: &str, connections: u16, time: Duration) -> anyhow::Result<Asked> {
    run(from, core, url, connections, Duration::from_secs(1))?;
    run(from, core, url, connections, time)
}

fn run(from: &Namespace, core: usize, url: &str, connections: u16, time: Duration) -> anyhow::Result<Asked> {
    let script = tempfile::NamedTempFile::new().context("a file for wrk's script")?;
    std::fs::write(script.path(), SAYS).context("wrk's script")?;
    let mut command: Command = from.command("taskset");
    command.args(["--cpu-list", &core.to_string(), "wrk", "--threads", "1"]);
    command.args(["--connections", &connections.to_string(), "--duration", &format!("{}s", time.as_secs().max(1))]);
    let output = output(command.arg("--script").arg(script.path()).arg(url));
    ensure!(output.status.success(), "wrk, of Debian's wrk package, fails: {}", errors(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find(|line| line.starts_with('{'));
    let asked: Asked = serde_json::from_str(said.with_context(|| format!("wrk says {text:?}"))?)?;
    ensure!(asked.failed == 0, "{} of {} requests failed", asked.failed, asked.requests);
    Ok(asked)
}
