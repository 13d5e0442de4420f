//! `http-server` at a bed's node, with `curl` and `slowhttptest` as its clients.

use crate::machine::process::{output, run};
use crate::network::bed::{Bed, Client, NODE, NODE_V6, TENANT};
use crate::product::build;
use crate::product::manifest::Manifest;
use crate::until::{SOON, until};

/// Serves HTTP at the node's addresses. `stage` and `more` are further keys of the stage and of the chain.
///
/// # Panics
/// If the node does not accept that.
#[track_caller]
pub fn serve(bed: &Bed, policy: &str, stage: &str, more: &str) {
    let mut manifest = Manifest::of(TENANT)
        .module("http-server", &build::sample("http-server"))
        .with(format_args!("[[chain]]\nname = \"web\"\nstage = [{{ module = \"http-server\", {stage} }}]\n{more}\n"));
    for (name, destination) in [("web", NODE), ("web-v6", NODE_V6)] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"{policy}\"\nchain = \"web\"\n\
             match = {{ destination = \"{destination}\", protocol = \"tcp\" }}\n"
        ));
    }
    bed.node.apply(manifest.text());
}

/// Runs `curl` with these arguments; returns its output.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn curl(client: &Client, words: &[&str]) -> String {
    let mut command = client.namespace.command("curl");
    run(command.args(["--silent", "--show-error", "--globoff", "--max-time", "60"]).args(words))
}

/// Returns the content that the server generates for `fill`.
#[must_use]
pub fn filled(len: usize) -> String {
    let mut text: String = (0..len.div_ceil(64)).map(|number| format!("{number:016x}{}\n", ".".repeat(47))).collect();
    text.truncate(len);
    text
}

/// Waits until a client's kernel has no open connection left.
///
/// # Panics
/// If one stays.
#[track_caller]
pub fn assert_no_connection_is_left(client: &Client) {
    until("end of all connections", SOON, || {
        let waits = run(client.namespace.command("ss").args(["--tcp", "--no-header", "state", "established"]));
        waits.trim().is_empty().then_some(())
    });
}

/// Opens so many connections at once by `slowhttptest`, in the mode that `words` select, with requests for `/some`. Waits until the server
/// has closed all of them.
///
/// # Panics
/// If connections are left after 150 s, or if `slowhttptest` could not have a request of its own answered in the meantime.
#[track_caller]
pub fn assert_slow_clients_are_closed(client: &Client, connections: u32, words: &[&str]) {
    let (connections, url) = (connections.to_string(), format!("http://{NODE}/some"));
    let mut command = client.namespace.command("slowhttptest");
    command.args(["-c", &connections, "-r", &connections, "-i", "2", "-p", "60", "-l", "150", "-u", &url]).args(words);
    let said = String::from_utf8_lossy(&output(&mut command).stdout).into_owned();
    let line = |name: &str| said.lines().rev().find(|line| line.contains(name)).unwrap_or_default();
    assert!(line("Exit status:").contains("No open connections left"), "{words:?}: {said}");
    let availability: Vec<&str> = said.lines().filter(|line| line.contains("service available:")).collect();
    let is_available = !availability.is_empty() && availability.iter().all(|line| line.contains("YES"));
    assert!(is_available && line("error:").ends_with(" 0"), "{words:?}: {said}");
}
