//! How fast one connection moves bytes: out of the function, and between two kernels over the same kind of cable (`iperf3`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pinion_tests::machine::process::{errors, output};
use pinion_tests::network::bed::NODE;
use serde_json::Value;

use crate::measurement::run::Cores;
use crate::systems::lab::Lab;
use crate::systems::processes::Children;

/// The most bytes read at a time, as many as `iperf3` reads.
const READ_BYTES: usize = 128 << 10;
/// Includes the server's start.
const START_MAX: Duration = Duration::from_secs(30);

/// Downloads a file from this thread's namespace for `time`, after a warm-up of a tenth of it; returns the gigabits a second.
pub(crate) fn download_gbps(from: SocketAddr, path: &str, time: Duration) -> anyhow::Result<f64> {
    let mut stream = TcpStream::connect(from).context("a connection for the download")?;
    stream.set_read_timeout(Some(START_MAX))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {from}\r\n\r\n").context("the request")?;
    let mut buffer = vec![0; READ_BYTES];
    let (start, mut counted) = (Instant::now() + time / 10, 0_u64);
    loop {
        let count = stream.read(&mut buffer).context("the download")?;
        ensure!(count > 0, "the download has ended");
        let now = Instant::now();
        if now >= start + time {
            return Ok(counted as f64 * 8.0 / (now - start).as_secs_f64() / 1e9);
        }
        if now >= start {
            counted += count as u64;
        }
    }
}

/// Moves bytes from the server's kernel to the client's; returns the gigabits a second.
pub(crate) fn kernels_gbps(cores: Cores, time: Duration) -> anyhow::Result<f64> {
    let lab = Lab::new();
    lab.answer_by_kernel();
    let mut server = lab.server_command("iperf3");
    server.args(["--server", "--bind", NODE, "--affinity", &cores.second.to_string()]);
    let server = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Children(vec![server.context("iperf3, of Debian's iperf3 package, cannot be run")?]);
    let deadline = Instant::now() + START_MAX;
    loop {
        let mut client = lab.client.command("iperf3");
        client.args(["--client", NODE, "--reverse", "--json", "--omit", "1"]);
        client.args(["--affinity", &cores.first.to_string(), "--time", &time.as_secs().max(1).to_string()]);
        let output = output(&mut client);
        if output.status.success() {
            let said: Value = serde_json::from_slice(&output.stdout).context("what iperf3 says")?;
            let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
            return Ok(rate.context("iperf3 names no rate")? / 1e9);
        }
        ensure!(Instant::now() < deadline, "iperf3 fails: {}", errors(&output));
        std::thread::sleep(Duration::from_millis(50));
    }
}
