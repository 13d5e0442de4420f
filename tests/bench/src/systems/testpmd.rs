//! `dpdk-testpmd`, DPDK's own forwarder: the native peer.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use rustix::fs::{SeekFrom, seek};
use rustix::process::{Pid, Signal, kill_process};

use crate::machine::huge_pages;
use crate::measurement::run::Cores;

/// Its packet memory.
const MEMORY_MIB: u64 = 192;

/// A running forwarder, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Testpmd {
    child: Child,
    said: File,
}

impl Testpmd {
    /// Starts a forwarder by `command`, which runs the program in its namespace, with one forwarding thread on the second of the cores; its
    /// command line sleeps on the first. It forwards a moment later and gives no sign of that without a terminal, so a caller must probe it
    /// with packets.
    pub(crate) fn start(mut command: Command, cores: Cores, devices: &[String], mode: &str) -> anyhow::Result<Self> {
        let Cores { first, second } = cores;
        command.args(["--no-pci", "--no-telemetry", "--iova-mode=va", "-m", &MEMORY_MIB.to_string()]);
        command.arg(format!("--file-prefix=pinion-bench-{}", std::process::id()));
        command.arg(format!("--lcores=0@{first},1@{second}"));
        match huge_pages::free_mib() >= MEMORY_MIB {
            true => command.arg("--in-memory"),
            false => command.args(["--no-huge", "--no-shconf"]),
        };
        command.args(devices.iter().map(|device| format!("--vdev={device}")));
        command.args(["--", "--auto-start", &format!("--forward-mode={mode}"), "--total-num-mbufs=16384"]);
        let said = tempfile::tempfile().context("a file for what dpdk-testpmd says")?;
        let (output, errors) = (said.try_clone()?, said.try_clone()?);
        let child = command.stdin(Stdio::piped()).stdout(output).stderr(errors).spawn();
        Ok(Self { child: child.context("dpdk-testpmd, of Debian's dpdk package, cannot be run")?, said })
    }

    /// Fails with its output if it has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait().context("dpdk-testpmd")?;
        let mut text = String::new();
        if ended.is_some() {
            seek(self.said.as_fd(), SeekFrom::Start(0))?;
            self.said.read_to_string(&mut text)?;
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(ended.is_none(), "dpdk-testpmd has ended by itself: {words}");
        Ok(())
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if let Err(error) = kill_process(Pid::from_child(&self.child), Signal::TERM) {
            eprintln!("dpdk-testpmd cannot be stopped: {error}");
        }
        // It also stops at the end of its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
