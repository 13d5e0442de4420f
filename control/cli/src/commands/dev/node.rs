//! A local node: a `piniond` with a temporary folder. It ends when the value is dropped, and also when this process
//! ends for any reason.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use ipnet::IpNet;
use pinion_control::Client;
use pinion_control::manifest::Bundle;
use pinion_control::model::{Class, PortName, TenantName};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;

use super::{BadInput, Function};

/// The maximum duration of a start. Without huge pages, memory for packets is cleared first.
const START_MAX: Duration = Duration::from_secs(30);
/// The maximum duration of a shutdown.
const STOP_MAX: Duration = Duration::from_secs(15);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The number of log lines that are shown when it ends unexpectedly without a reason.
const LOG_LINES_SHOWN: usize = 10;
/// The exit status of `piniond` for an error that the user can fix.
const EXIT_BAD_INPUT: i32 = 2;

/// The configuration of `piniond`.
#[derive(Serialize)]
struct Config<'a> {
    state_dir: &'a str,
    socket: &'a str,
    builder: &'a str,
    port: &'a [PortConfig],
    tenant: Vec<TenantConfig>,
}

/// A tenant whose chains may have a scheduling class, and send packets from any address and station: those of a capture
/// are not the node's.
#[derive(Serialize)]
struct TenantConfig {
    name: String,
    class_max: String,
    transparent_forwarding: bool,
}

/// A port of the node.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct PortConfig {
    pub(super) name: PortName,
    pub(super) device: String,
    /// Receives frames for every station.
    pub(super) promiscuous: bool,
    pub(super) addresses: Vec<IpNet>,
}

/// Returns the path as text for TOML.
pub(super) fn text(path: &Path) -> Result<&str, BadInput> {
    path.to_str().ok_or_else(|| BadInput::NotText(path.to_owned()))
}

/// The process and its folder.
pub(super) struct Node {
    child: Child,
    folder: TempDir,
}

/// Creates a folder for a node that is not started yet.
pub(super) fn folder() -> anyhow::Result<TempDir> {
    tempfile::Builder::new().prefix("pinion-dev-").tempdir().context("a folder for the node")
}

/// Returns a configuration in which the manifest's chains may have the scheduling classes that they ask for. The node
/// has no other tenants.
fn tenants(bundle: &Bundle) -> Vec<TenantConfig> {
    let names: BTreeSet<&TenantName> = bundle.chains().map(|chain| &chain.tenant).collect();
    let class_max = Class::System.to_string();
    let config = |name: &TenantName| TenantConfig {
        name: name.to_string(),
        class_max: class_max.clone(),
        transparent_forwarding: true,
    };
    names.into_iter().map(config).collect()
}

impl Node {
    /// Starts a node with these ports, and waits until it answers.
    pub(super) async fn start(function: &Function, folder: TempDir, ports: &[PortConfig]) -> anyhow::Result<Self> {
        let at = |name: &str| folder.path().join(name);
        let (state, socket, builder) = (at("state"), at("pinion.sock"), function.builder.canonicalize()?);
        let (state_dir, socket, builder) = (text(&state)?, text(&socket)?, text(&builder)?);
        let tenant = tenants(&function.bundle()?);
        fs::write(at("piniond.toml"), toml::to_string(&Config { state_dir, socket, builder, port: ports, tenant })?)?;
        let mut command = Command::new(&function.piniond);
        command.arg("--config").arg(at("piniond.toml")).arg("--parent").arg(std::process::id().to_string());
        // Its own process group, so that Ctrl-C on a terminal reaches this command first.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(at("log"))?).process_group(0);
        let child = command.spawn().with_context(|| function.piniond.display().to_string())?;
        let mut node = Self { child, folder };
        let started = Instant::now();
        while !node.is_answering().await {
            node.check()?;
            anyhow::ensure!(started.elapsed() < START_MAX, "the node does not come up: {}", node.last_words());
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(node)
    }

    /// The node binds its socket before it opens its ports, and answers after that.
    async fn is_answering(&self) -> bool {
        match Client::connect(&self.socket()).await {
            Ok(mut client) => client.status().await.is_ok(),
            Err(_) => false,
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path().join("pinion.sock")
    }

    /// Returns an error with the reason if the node has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        let words = self.last_words();
        match status.code() {
            Some(EXIT_BAD_INPUT) => BadInput::Machine(words).into(),
            _ => anyhow::anyhow!("the node has ended by itself ({status}): {words}"),
        }
    }

    /// Returns its own message about why it ended, or else the end of its log.
    fn last_words(&self) -> String {
        let log = fs::read(self.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        match lines.iter().rev().find_map(|line| line.strip_prefix("error: ")) {
            Some(sentence) => sentence.to_owned(),
            None => lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n"),
        }
    }

    /// Stops the node, and waits until it has ended.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.tell(Signal::TERM);
        let stopping = Instant::now();
        while stopping.elapsed() < STOP_MAX {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.ended(status)),
                None => tokio::time::sleep(LOOK_INTERVAL).await,
            }
        }
        anyhow::bail!("the node does not end: {}", self.last_words())
    }

    fn tell(&self, signal: Signal) {
        // Fails only for a process that has ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let has_ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if has_ended(&mut self.child) {
            return;
        }
        self.tell(Signal::TERM);
        let stopping = Instant::now();
        while !has_ended(&mut self.child) {
            if stopping.elapsed() > STOP_MAX {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}
