//! `piniond` in a folder of its own: started, watched, stopped and killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::build;
use crate::cli::Cli;
use crate::leftovers::prefix;
use crate::until::{SOON, until};

/// The longest that a start may take: without huge pages, memory for packets is cleared first.
const START_MAX: Duration = Duration::from_secs(30);
/// The last lines of a log that are shown when a test fails.
const LOG_LINES_SHOWN: usize = 60;

/// A node, running or not; its folder, with all its state, goes when it is dropped.
#[derive(Debug)]
pub struct Node {
    folder: TempDir,
    running: Option<Child>,
}

impl Node {
    /// A node that does not run yet. `config` is its configuration but for the paths, which are in its folder.
    ///
    /// # Panics
    /// If its folder can't be made.
    #[must_use]
    pub fn new(config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(&prefix()).tempdir().expect("a folder for the node");
        let node = Self { folder, running: None };
        let (state, socket) = (node.path("state"), node.socket());
        let text = format!("state_dir = {state:?}\nsocket = {socket:?}\n{config}");
        fs::write(node.config(), text).expect("the node's folder is writable");
        node
    }

    /// The same, started.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    #[must_use]
    pub fn started(config: &str) -> Self {
        let mut node = Self::new(config);
        node.start();
        node
    }

    /// A node whose only port, `lan`, leads nowhere.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    #[must_use]
    pub fn without_devices() -> Self {
        Self::started("[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n")
    }

    /// A file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path("piniond.toml")
    }

    /// Where its API is.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("pinion.sock")
    }

    /// The `pinion` command, talking to it.
    #[must_use]
    pub fn cli(&self) -> Cli {
        Cli::new(&self.socket())
    }

    /// Applies a manifest of this text.
    ///
    /// # Panics
    /// If the node does not take it.
    #[track_caller]
    pub fn apply(&self, manifest: &str) {
        let path = self.path("manifest.toml");
        fs::write(&path, manifest).expect("the node's folder is writable");
        self.cli().apply(&path);
    }

    /// Starts it and waits until its API answers.
    ///
    /// # Panics
    /// If it ends, or takes too long.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "the node runs already");
        self.running = Some(self.spawn());
        let cli = self.cli();
        until("answer of the node's API", START_MAX, || {
            let child = self.running.as_mut().expect("started above");
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                self.running = None;
                panic!("piniond ended with {status}:\n{}", self.log());
            }
            cli.is_answered().then_some(())
        });
    }

    fn spawn(&self) -> Child {
        let log = File::options().create(true).append(true).open(self.path("log")).expect("a file for the node's log");
        // Were the test killed, the node would stay.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(build::program("piniond")).arg("--config").arg(self.config());
        command.env("PINION_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        command.spawn().expect("setpriv, of Debian's util-linux, can be run")
    }

    /// The process, and of it the group that nothing else is in but what it starts.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn process(&self) -> Pid {
        Pid::from_child(self.running.as_ref().expect("the node runs"))
    }

    /// Asks it to stop, and waits until it has.
    ///
    /// # Panics
    /// If it does not, or not cleanly.
    #[track_caller]
    pub fn stop(&mut self) {
        let status = self.end(Signal::TERM);
        assert!(status.success(), "told to stop, piniond ended with {status}:\n{}", self.log());
    }

    /// Ends it without a word, as a crash would.
    ///
    /// # Panics
    /// If it can't be ended.
    #[track_caller]
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    #[track_caller]
    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill_process(self.process(), signal).expect("a child can be signalled");
        let child = self.running.as_mut().expect("the node runs");
        let status = until("end of piniond", SOON, || child.try_wait().expect("a child can be waited for"));
        self.running = None;
        status
    }

    /// All it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.path("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let log = self.log();
        if std::thread::panicking() && !log.is_empty() {
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!("the end of piniond's log:\n{}", shown.join("\n"));
        }
        if let Some(mut child) = self.running.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            if !ends_soon(&mut child) {
                eprintln!("piniond did not stop when told to; killing it");
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Unlike [`until`], does not panic: for use while a panic is under way.
fn ends_soon(child: &mut Child) -> bool {
    let start = std::time::Instant::now();
    while start.elapsed() < SOON {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            ended => return ended.is_ok(),
        }
    }
    false
}

/// Runs `piniond` on a configuration that it ought to refuse; what it ends with.
///
/// # Panics
/// If it does not end by itself.
#[track_caller]
#[must_use]
pub fn refused(config: &Path) -> std::process::Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "20"]).arg(build::program("piniond")).arg("--config").arg(config);
    crate::process::output(&mut command)
}
