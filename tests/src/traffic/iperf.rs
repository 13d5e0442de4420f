//! Runs `iperf3`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::machine::process::run;
use crate::network::namespace::Namespace;

/// The results of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that arrived.
    pub received_bytes: u64,
    /// Datagrams that were sent; none over TCP.
    pub datagrams: u64,
    /// Those of the datagrams that did not arrive, or arrived out of order.
    pub lost: u64,
}

/// The bytes to move over TCP, so that some have to come through.
pub const TCP_BYTES: u64 = 48 << 20;
/// Of these the most that the kernel's buffers on both sides hold when `iperf3` ends, which it does as soon as it has sent all: they arrive
/// too late to be counted.
const IN_BUFFERS: u64 = 40 << 20;

/// Sends [`TCP_BYTES`] over TCP, and checks that they came as far as is counted. `more` are further words.
///
/// # Panics
/// If too few have come.
#[track_caller]
pub fn assert_tcp_flows(from: &Namespace, to: &Namespace, address: &str, more: &str) {
    let moved = iperf(from, to, address, &format!("--bytes {TCP_BYTES}{more}"));
    assert!(moved.received_bytes + IN_BUFFERS >= TCP_BYTES, "to {address}{more}: {moved:?}");
}

/// A server for one run.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    #[track_caller]
    fn new(at: &Namespace, address: &str) -> Self {
        // Otherwise the server would outlive a test that is killed.
        let mut command = at.command("setpriv");
        command.args(["--pdeathsig", "KILL", "iperf3", "--server", "--one-off", "--forceflush", "--bind", address]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Self(command.spawn().expect("iperf3 can be run: `make install-test` installs it"));
        let mut lines = BufReader::new(server.0.stdout.as_mut().expect("it is piped")).lines();
        let listens = lines.any(|line| line.is_ok_and(|line| line.contains("listening")));
        assert!(listens, "iperf3 does not listen at {address}");
        server
    }
}

/// Runs `iperf3` from one namespace to an address in another, with these words.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn iperf(from: &Namespace, to: &Namespace, address: &str, words: &str) -> Moved {
    let _server = Server::new(to, address);
    let mut command: Command = from.command("timeout");
    command.args(["300", "iperf3", "--json", "--connect-timeout", "5000", "--client", address]);
    let report = run(command.args(words.split_whitespace()));
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|error| panic!("no JSON ({error}): {report}"));
    let end = &report["end"];
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("iperf3 has left something out: {end}"));
    let sum = &end["sum"];
    if sum["lost_packets"].is_null() {
        return Moved { received_bytes: count(&end["sum_received"]["bytes"]), datagrams: 0, lost: 0 };
    }
    let (datagrams, lost) = (count(&sum["packets"]), count(&sum["lost_packets"]));
    Moved { received_bytes: count(&sum["bytes"]), datagrams, lost }
}
