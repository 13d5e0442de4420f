//! A node of one's own: a `piniond` in a folder that goes with it. It ends when the value is dropped, and whatever ends this
//! process ends it, too.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use pinion_control::Client;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{BadInput, Function};

/// The longest that a start may take: without huge pages, memory for packets is cleared first.
const START_MAX: Duration = Duration::from_secs(30);
/// The longest that an end may take.
const STOP_MAX: Duration = Duration::from_secs(15);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Lines of its log that are shown when it ends by itself without having said why.
const LOG_LINES_SHOWN: usize = 10;
/// What `piniond` ends with for what can be mended.
const EXIT_BAD_INPUT: i32 = 2;

/// The process, and its folder.
pub(super) struct Node {
    child: Child,
    folder: TempDir,
}

/// A folder for a node, before that is started.
pub(super) fn folder() -> anyhow::Result<TempDir> {
    tempfile::Builder::new().prefix("pinion-dev-").tempdir().context("a folder for the node")
}

impl Node {
    /// Starts one with these `[[port]]`s and waits until it answers.
    pub(super) async fn start(function: &Function, folder: TempDir, ports: &str) -> anyhow::Result<Self> {
        let at = |name: &str| folder.path().join(name);
        let (state, socket, builder) = (at("state"), at("pinion.sock"), function.builder.canonicalize()?);
        let config = format!("state_dir = {state:?}\nsocket = {socket:?}\nbuilder = {builder:?}\n{ports}");
        fs::write(at("piniond.toml"), config)?;
        let mut command = Command::new(&function.piniond);
        command.arg("--config").arg(at("piniond.toml")).arg("--parent").arg(std::process::id().to_string());
        // In a group of its own, so that a terminal's Ctrl-C reaches this command first.
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

    /// It takes its socket before it has its ports, and answers after that.
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

    /// Why it runs no more, if it does not.
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

    /// Its own sentence on why it ended, or else the end of its log.
    fn last_words(&self) -> String {
        let log = fs::read(self.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        match lines.iter().rev().find_map(|line| line.strip_prefix("error: ")) {
            Some(sentence) => sentence.to_owned(),
            None => lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n"),
        }
    }

    /// Has it end, and waits until it has.
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
        // Fails only for one that has ended.
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
