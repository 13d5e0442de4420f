//! `http-server` at a bed's node, and `curl` as its client.

use crate::machine::process::run;
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
