//! The servers of one small file, each on the second core behind a veth pair: a node with the function http-server, and nginx.

use std::net::Ipv4Addr;

use anyhow::Context;
use pinion_tests::network::bed::NODE;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;

use crate::measurement::run::Cores;
use crate::systems::lab::Lab;
use crate::systems::nginx::{Nginx, REQUESTS_MAX};

pub(crate) const SERVICE_PORT: u16 = 80;
/// The path of a file without an end that the node serves.
pub(crate) const BULK: &str = "/bulk";
const BULK_BYTES: u64 = 1 << 40;
const TENANT: &str = "web";
const CHAIN: &str = "http-server";

/// Returns the content of the small file, a line: as long as the page that nginx comes with.
pub(crate) fn content() -> String {
    "<p>What is asked for most is short.</p>".repeat(15) + "<p>That is all.</p>\n"
}

/// Starts a node in a lab, with one instance for all connections.
pub(crate) fn node(lab: &Lab, cores: Cores) -> Node {
    let node = lab.start_node(&cores.together().node_config());
    let config = format!(
        "connections 128\\nrequests {REQUESTS_MAX}\\nfill {BULK} {BULK_BYTES}\\npage / {}",
        content().trim_end()
    );
    node.apply(
        Manifest::of(TENANT)
            .module(CHAIN, &sample(CHAIN))
            .with(format_args!(
                "[[chain]]\nname = {CHAIN:?}\nstage = [{{ module = {CHAIN:?}, config = \"{config}\" }}]\ncache_min = 1\n\
                 memory_limit_kib = 32768\n[[rule]]\nname = \"clients\"\npolicy = \"shared\"\nchain = {CHAIN:?}\n\
                 match = {{ destination = \"{NODE}\", protocol = \"tcp\", destination_ports = \"{SERVICE_PORT}\" }}\n"
            ))
            .text(),
    );
    node.await_instance(TENANT, CHAIN);
    node
}

/// Starts nginx in a lab.
pub(crate) fn nginx(lab: &Lab, cores: Cores) -> anyhow::Result<Nginx> {
    Nginx::start(lab, cores, &[("index.html", &content())], |_| format!("listen {NODE}:{SERVICE_PORT};"))
}

/// Returns the server's address.
pub(crate) fn address() -> anyhow::Result<Ipv4Addr> {
    NODE.parse().context("the node's address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_file_is_as_long_as_the_help_says() {
        assert_eq!(content().len(), 605);
    }
}
