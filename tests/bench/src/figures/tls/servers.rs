//! The servers of a file without content by TLS, each on the second core behind a veth pair: a node with the function tls-proxy, and nginx.

use std::fs;
use std::net::SocketAddrV4;

use anyhow::Context;
use pinion_tests::network::bed::NODE;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;

use crate::figures::tls::client::Site;
use crate::measurement::run::Cores;
use crate::systems::lab::Lab;
use crate::systems::nginx::{Nginx, REQUESTS_MAX};
use crate::systems::server::{Running, Server};

const SERVICE_PORT: u16 = 443;
const TENANT: &str = "site";
const CHAIN: &str = "tls-proxy";
/// FWPs beyond those of the clients: ready ones, and those that end.
const MORE_FWPS: usize = 256;

/// Starts a node that gives each of so many clients an instance of its own.
pub(crate) fn node_per_client(cores: Cores, site: &Site, clients: usize) -> anyhow::Result<Server> {
    node(cores, site, "per-client", clients, 4)
}

/// Starts a node that gives each connection an instance of its own, which ends with it. As many are kept ready as connections may come at once.
pub(crate) fn node_per_connection(cores: Cores, site: &Site, at_once: u16) -> anyhow::Result<Server> {
    node(cores, site, "per-flow", at_once.into(), at_once)
}

fn node(cores: Cores, site: &Site, policy: &str, clients: usize, ready: u16) -> anyhow::Result<Server> {
    let lab = Lab::new();
    let node = lab.start_node_on_one_core(cores, &format!("[limits]\nfwps_max = {}\n", clients + MORE_FWPS))?;
    let (key, bundle) = (node.path("site.key.pem"), node.path("bundle"));
    fs::create_dir(&bundle).context("the site's bundle")?;
    fs::write(&key, &site.key).context("the site's key")?;
    fs::write(bundle.join("site.pem"), &site.certificate).context("the site's certificate")?;
    let config = format!(
        "idle_timeout_s = 3600\n[[certificate]]\nchain = \"/site.pem\"\nkey = \"site\"\n\
         [site]\nrequests_max = {REQUESTS_MAX}\n[[site.page]]\npath = \"/\"\ntext = \"\"\n"
    );
    let manifest = Manifest::of(TENANT).module(CHAIN, &sample(CHAIN)).with(format_args!(
        "[key.site]\nfile = {key:?}\n\
         [[chain]]\nname = {CHAIN:?}\ncache_min = {ready}\nidle_timeout_ms = 3600000\n\
         stage = [{{ module = {CHAIN:?}, files = {bundle:?}, keys = [\"site\"], config = {config:?} }}]\n\
         [[rule]]\nname = \"clients\"\npolicy = {policy:?}\nchain = {CHAIN:?}\n\
         match = {{ destination = \"{NODE}\", protocol = \"tcp\", destination_ports = \"{SERVICE_PORT}\" }}\n"
    ));
    node.apply(manifest.text());
    node.await_instance(TENANT, CHAIN);
    Ok(Server::new(Running::Node { _node: node }, lab))
}

/// Starts nginx.
pub(crate) fn nginx(cores: Cores, site: &Site) -> anyhow::Result<Server> {
    let lab = Lab::new();
    let files = [("index.html", ""), ("site.pem", &*site.certificate), ("site.key.pem", &site.key)];
    let nginx = Nginx::start(&lab, cores, &files, |folder| {
        let folder = folder.display();
        format!(
            "listen {NODE}:{SERVICE_PORT} ssl; ssl_certificate {folder}/site.pem; ssl_certificate_key {folder}/site.key.pem; \
             ssl_protocols TLSv1.3; ssl_ecdh_curve X25519; ssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256;"
        )
    })?;
    Ok(Server::new(Running::Nginx(nginx), lab))
}

/// Returns the server's address.
pub(crate) fn address() -> anyhow::Result<SocketAddrV4> {
    Ok(SocketAddrV4::new(NODE.parse().context("the node's address")?, SERVICE_PORT))
}
