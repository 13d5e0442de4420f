//! `piniond` in a folder of its own: started, watched, stopped and killed.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::machine::leftovers::prefix;
use crate::product::build;
use crate::product::cli::Cli;
use crate::product::tuning::tuning;
use crate::until::{SOON, until};

/// The longest wait for a start: without huge pages, packet memory is cleared first.
const START_MAX: Duration = Duration::from_secs(60);
/// The number of log lines that are shown when a test fails.
const LOG_LINES_SHOWN: usize = 60;

/// A node, running or not. When dropped, its folder is removed with all its state.
#[derive(Debug)]
pub struct Node {
    folder: TempDir,
    running: Option<Child>,
}

impl Node {
    /// Makes a node without starting it. `config` is its configuration except for the paths, which are in its folder.
    ///
    /// # Panics
    /// If its folder cannot be made.
    #[must_use]
    pub fn new(config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(&prefix()).tempdir().expect("a folder for the node");
        let node = Self { folder, running: None };
        let (state, socket) = (node.path("state"), node.socket());
        let tuning = tuning();
        let text = format!("state_dir = {state:?}\nsocket = {socket:?}\ntuning = {tuning:?}\n{config}");
        fs::write(node.config(), text).expect("the node's folder is writable");
        node
    }

    /// Makes and starts a node.
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

    /// Starts a node whose only port, `lan`, has no connection.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    #[must_use]
    pub fn without_devices() -> Self {
        Self::started("[[port]]\nname = \"lan\"\ndevice = \"memory0\"\n")
    }

    /// Returns the path of a file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of its configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path("piniond.toml")
    }

    /// Returns the path of its API's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("pinion.sock")
    }

    /// Returns the `pinion` command, connected to it.
    #[must_use]
    pub fn cli(&self) -> Cli {
        Cli::new(&self.socket())
    }

    /// Applies a manifest of this text.
    ///
    /// # Panics
    /// If the node does not accept it.
    #[track_caller]
    pub fn apply(&self, manifest: &str) {
        let path = self.path("manifest.toml");
        fs::write(&path, manifest).expect("the node's folder is writable");
        self.cli().apply(&path);
    }

    /// Waits until a chain has an instance: before that only the first four frames of a client are kept.
    ///
    /// # Panics
    /// If it gets none.
    #[track_caller]
    pub fn await_instance(&self, tenant: &str, chain: &str) {
        until("instance of the chain", SOON, || (instances(&self.cli().chain_status(tenant, chain)) > 0).then_some(()));
    }

    /// Waits until each chain of a tenant has so many instances, ready ones included: a client's frames are kept for a second at most.
    ///
    /// # Panics
    /// If one gets fewer.
    #[track_caller]
    pub fn await_instances(&self, tenant: &str, count: u64) {
        until("instances of the chains", SOON, || {
            let status = self.cli().status();
            let chains = status["chains"].as_array()?.iter().filter(|chain| chain["tenant"] == tenant);
            (chains.map(instances).min() >= Some(count)).then_some(())
        });
    }

    /// Starts it and waits until its API answers.
    ///
    /// # Panics
    /// If it ends, or takes too long.
    #[track_caller]
    pub fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.path("log")).expect("a file for the node's log");
        self.start_writing_to(log.into());
    }

    /// As [`Self::start`], but with another standard error than the file that [`Self::log`] reads.
    ///
    /// # Panics
    /// If it ends, or takes too long.
    #[track_caller]
    pub fn start_writing_to(&mut self, stderr: Stdio) {
        assert!(self.running.is_none(), "the node runs already");
        self.running = Some(self.spawn(stderr));
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

    fn spawn(&self, stderr: Stdio) -> Child {
        // Otherwise the node would outlive a test that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).arg(build::program("piniond")).arg("--config").arg(self.config());
        command.env("PINION_LOG", "info").stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
        command.spawn().expect("setpriv, of Debian's util-linux, can be run")
    }

    /// Returns the process of its supervisor, which also leads a group of only this process and the node's.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn supervisor(&self) -> Pid {
        Pid::from_child(self.running.as_ref().expect("the node runs"))
    }

    /// Returns the process of the node itself, in which its functions run.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn process(&self) -> Pid {
        self.own_process().expect("the supervisor has started the node")
    }

    /// The process that the supervisor has started and that is no builder.
    fn own_process(&self) -> Option<Pid> {
        let supervisor = self.supervisor().as_raw_nonzero().to_string();
        let of_node = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry.ok()?.path();
            let stat = fs::read_to_string(path.join("stat")).ok()?;
            let (start, rest) = stat.rsplit_once(") ")?;
            let is_it = start.ends_with("(piniond") && rest.split(' ').nth(1)? == supervisor;
            is_it.then(|| Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)).flatten()
        };
        fs::read_dir("/proc").expect("there is /proc").find_map(of_node)
    }

    /// Asks it to stop, and waits until it has ended.
    ///
    /// # Panics
    /// If it does not end, or fails.
    #[track_caller]
    pub fn stop(&mut self) {
        let status = self.end(Signal::TERM);
        assert!(status.success(), "told to stop, piniond ended with {status}:\n{}", self.log());
    }

    /// Kills it, as a crash would end it.
    ///
    /// # Panics
    /// If it cannot be ended.
    #[track_caller]
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Ends the node by a signal that a fault of its own would raise, and waits until its supervisor has started it again.
    ///
    /// # Panics
    /// If that does not happen.
    #[track_caller]
    pub fn crash(&self, signal: Signal) {
        let before = self.process();
        kill_process(before, signal).expect("its process can be signalled");
        let cli = self.cli();
        until("new process of the node", START_MAX, || {
            (self.own_process().is_some_and(|now| now != before) && cli.is_answered()).then_some(())
        });
    }

    #[track_caller]
    fn end(&mut self, signal: Signal) -> ExitStatus {
        let own = self.own_process();
        kill_process(self.supervisor(), signal).expect("a child can be signalled");
        let child = self.running.as_mut().expect("the node runs");
        let status = until("end of piniond", SOON, || child.try_wait().expect("a child can be waited for"));
        self.running = None;
        // Killed with its supervisor, it may take a moment to let go of memory and devices.
        let is_gone = |own: Pid| !Path::new(&format!("/proc/{own}")).exists();
        until("end of the node's own process", SOON, || own.is_none_or(is_gone).then_some(()));
        status
    }

    /// Returns all that it has logged.
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
        if std::thread::panicking() && self.running.is_some() {
            // The status says what was dropped and why. This must not panic or wait for long.
            let mut command = Command::new("timeout");
            command.arg("10").arg(build::program("pinion")).arg("--socket").arg(self.socket()).arg("status");
            if let Ok(status) = command.output() {
                eprintln!("its status:\n{}", String::from_utf8_lossy(&status.stdout));
            }
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

/// Returns how many instances a chain has by its status, those that are ready included.
fn instances(chain: &Value) -> u64 {
    ["ready", "active"].iter().filter_map(|count| chain[*count].as_u64()).sum()
}

/// Waits until the process ends. Unlike [`until`], it does not panic, so it can be used during a panic.
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

/// Runs `piniond` on a configuration that it should refuse; returns its output.
///
/// # Panics
/// If it does not end by itself.
#[track_caller]
#[must_use]
pub fn refused(config: &Path) -> std::process::Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", "20"]).arg(build::program("piniond")).arg("--config").arg(config);
    crate::machine::process::output(&mut command)
}
