//! The `pinion` command, as people and scripts use it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;

use crate::machine::process::{errors, output, run};
use crate::product::build;

/// The `pinion` command, connected to one node.
#[derive(Clone, Debug)]
pub struct Cli {
    socket: PathBuf,
}

impl Cli {
    /// Makes a command for the node whose API is at this socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(build::program("pinion"));
        command.arg("--socket").arg(&self.socket).args(words).env_remove("PINION_SOCKET").env_remove("PINION_TENANT");
        command
    }

    /// Returns whether the node answers.
    ///
    /// # Panics
    /// If the command cannot be run.
    #[track_caller]
    #[must_use]
    pub fn is_answered(&self) -> bool {
        output(&mut self.command(&["status"])).status.success()
    }

    /// Runs the command with these words to its end, whether or not it succeeds.
    ///
    /// # Panics
    /// If it cannot be run.
    #[track_caller]
    #[must_use]
    pub fn output(&self, words: &[&str]) -> Output {
        output(&mut self.command(words))
    }

    /// Runs the command with these words; returns its output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        run(&mut self.command(words))
    }

    /// Starts `pinion invoke`, which then waits for its payload.
    ///
    /// # Panics
    /// If the command cannot be run.
    #[track_caller]
    #[must_use]
    pub fn caller(&self, function: &str) -> Caller {
        self.caller_with(function, &[])
    }

    /// As [`Cli::caller`], with further words of the command.
    ///
    /// # Panics
    /// If the command cannot be run.
    #[track_caller]
    #[must_use]
    pub fn caller_with(&self, function: &str, more: &[&str]) -> Caller {
        let mut command = self.command(&[&["invoke", function], more].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Caller(command.spawn().expect("pinion can be run"))
    }

    /// Applies a manifest.
    ///
    /// # Panics
    /// If the node does not accept it.
    #[track_caller]
    pub fn apply(&self, manifest: &Path) {
        let output = self.try_apply(manifest);
        assert!(output.status.success(), "{} was not applied: {}", manifest.display(), errors(&output));
    }

    /// Applies a manifest that may be refused.
    ///
    /// # Panics
    /// If the command cannot be run.
    #[track_caller]
    #[must_use]
    pub fn try_apply(&self, manifest: &Path) -> Output {
        let mut command = self.command(&["apply", "-f"]);
        output(command.arg(manifest))
    }

    /// Returns all tenants' objects of one kind: `modules`, `chains`, `rules`, `instances`, `fwps`.
    ///
    /// # Panics
    /// If they cannot be read, or are no list.
    #[track_caller]
    #[must_use]
    pub fn get(&self, kind: &str) -> Vec<Value> {
        match json(&self.run(&["get", kind, "-A", "-o", "json"])) {
            Value::Array(all) => all,
            other => panic!("`pinion get {kind} -A -o json` wrote no list, but {other}"),
        }
    }

    /// Returns the FWPs that serve a client, or all matching packets.
    ///
    /// # Panics
    /// If they cannot be read.
    #[track_caller]
    #[must_use]
    pub fn serving_fwps(&self) -> Vec<Value> {
        let serves = |fwp: &Value| matches!(fwp["state"].as_str(), Some("active" | "blocked"));
        self.get("fwps").into_iter().filter(serves).collect()
    }

    /// Returns what a tenant has of a resource, as `pinion describe tenant` shows it.
    ///
    /// # Panics
    /// If the tenant has nothing, or there is no such resource.
    #[track_caller]
    #[must_use]
    pub fn resource(&self, tenant: &str, name: &str) -> Value {
        let account = json(&self.run(&["describe", "tenant", tenant, "-o", "json"]));
        let resources = account["resources"].as_array().expect("an account has resources");
        resources
            .iter()
            .find(|resource| resource["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {account}"))
            .clone()
    }

    /// Returns the node's status.
    ///
    /// # Panics
    /// If it cannot be read.
    #[track_caller]
    #[must_use]
    pub fn status(&self) -> Value {
        json(&self.run(&["status", "-o", "json"]))
    }

    /// Returns the status of a chain.
    ///
    /// # Panics
    /// If the node does not know it.
    #[track_caller]
    #[must_use]
    pub fn chain_status(&self, tenant: &str, chain: &str) -> Value {
        let status = self.status();
        let found = status["chains"]
            .as_array()
            .and_then(|all| all.iter().find(|entry| entry["tenant"] == tenant && entry["chain"] == chain).cloned());
        found.unwrap_or_else(|| panic!("the status has no chain {tenant}/{chain}: {status}"))
    }

    /// Returns how many frames were dropped at the node's first port for this reason.
    ///
    /// # Panics
    /// If the status cannot be read.
    #[track_caller]
    #[must_use]
    pub fn drops(&self, reason: &str) -> u64 {
        let status = self.status();
        let drops = status["ports"][0]["drops"].as_array().into_iter().flatten();
        drops.filter(|drop| drop["reason"] == reason).filter_map(|drop| drop["count"].as_u64()).sum()
    }
}

/// `pinion invoke`, started, waiting for its payload. The start of a process is thus not part of a timed call.
#[derive(Debug)]
pub struct Caller(Child);

impl Caller {
    /// Calls with this payload; returns the answer, or as much of it as there is.
    ///
    /// # Panics
    /// If the command has ended.
    #[track_caller]
    #[must_use]
    pub fn call(&mut self, payload: &[u8]) -> Vec<u8> {
        self.send(payload);
        let mut answer = Vec::new();
        let output = self.0.stdout.as_mut().expect("it is a pipe");
        output.read_to_end(&mut answer).expect("its answer can be read");
        answer
    }

    /// Calls with this payload, and does not wait for the answer.
    ///
    /// # Panics
    /// If the command has ended.
    #[track_caller]
    pub fn send(&mut self, payload: &[u8]) {
        let mut input = self.0.stdin.take().expect("it calls once");
        input.write_all(payload).expect("it waits for its payload");
    }

    /// Returns the command's status if it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // Fails only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("pinion wrote no JSON ({error}): {text}"))
}
