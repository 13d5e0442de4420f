//! The native peer: `dpdk-testpmd` swaps MAC addresses in place, on one core, with nothing between device and function.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::{Source, WARM_UP};
use crate::measurement::run::Run;

/// DPDK's rings and caches need more buffers than are ever in flight; with fewer buffers more of them stay in the caches.
const BUFFERS: u32 = 8192;
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Returns how many millions of packets testpmd forwards per second, by its own counters and its own clock.
pub(super) fn measure(run: &Run, source: &Source) -> anyhow::Result<f64> {
    let mut testpmd = Testpmd::start(run, source)?;
    testpmd.transmitted_per_second().context("testpmd did not start to forward")?;
    thread::sleep(WARM_UP);
    testpmd.transmitted_per_second()?;
    thread::sleep(run.time);
    let per_second = testpmd.transmitted_per_second()?;
    testpmd.finish()?;
    Ok(per_second / 1e6)
}

/// A running testpmd.
struct Testpmd {
    process: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Testpmd {
    fn start(run: &Run, source: &Source) -> anyhow::Result<Self> {
        let (first, second) = (run.cores.first, run.cores.second);
        let mut command = Command::new("setpriv");
        // Otherwise testpmd would outlive this process if that is killed. With line buffering, its answers come at once.
        command.args(["--pdeathsig", "KILL", "stdbuf", "--output=L", "dpdk-testpmd"]);
        command.arg(format!("--lcores=0@{second},1@{first}")).args(super::eal_arguments("testpmd", source));
        command.args(["--", "--interactive", "--auto-start", "--forward-mode=macswap", "--nb-cores=1"]);
        command.arg(format!("--total-num-mbufs={BUFFERS}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().context("setpriv, of Debian's util-linux, cannot be run")?;
        let commands = process.stdin.take().expect("piped");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (send, lines) = channel();
        // Ends when testpmd does.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Self { process, commands, lines })
    }

    /// Returns how many packets it has transmitted per second since the last call. testpmd itself measures the time.
    fn transmitted_per_second(&mut self) -> anyhow::Result<f64> {
        self.say("show port stats 0")?;
        let line = self.line_with("Tx-pps:")?;
        let rate = line.split_whitespace().nth(1).and_then(|number| number.parse().ok());
        rate.with_context(|| format!("testpmd's {line:?} has no rate"))
    }

    /// Stops it; fails if it has lost a packet.
    fn finish(mut self) -> anyhow::Result<()> {
        self.say("stop")?;
        self.line_with("Accumulated forward statistics")?;
        let received = forward_count(&self.line_with("RX-packets:")?, "RX-packets:")?;
        let line = self.line_with("TX-packets:")?;
        let (sent, dropped) = (forward_count(&line, "TX-packets:")?, forward_count(&line, "TX-dropped:")?);
        ensure!(dropped == 0 && sent == received, "testpmd received {received}, sent {sent} and dropped {dropped}");
        self.say("quit")?;
        self.process.wait()?;
        Ok(())
    }

    fn say(&mut self, command: &str) -> anyhow::Result<()> {
        writeln!(self.commands, "{command}").context("testpmd has ended")
    }

    fn line_with(&mut self, part: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(part) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("testpmd did not say {part:?} within {ANSWER_MAX:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("testpmd ended; to see why: dpdk-testpmd --in-memory --no-pci -- --interactive")
                }
            }
        }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the number after a name, in a line of testpmd's forward statistics.
fn forward_count(line: &str, name: &str) -> anyhow::Result<u64> {
    let number = line.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("testpmd's {line:?} has no {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_testpmds_lines() {
        let line = "  TX-packets: 78211168   TX-dropped: 3             TX-total: 78211171";
        assert_eq!(forward_count(line, "TX-packets:").unwrap(), 78_211_168);
        assert_eq!(forward_count(line, "TX-dropped:").unwrap(), 3);
        assert!(forward_count(line, "RX-packets:").is_err());
    }
}
