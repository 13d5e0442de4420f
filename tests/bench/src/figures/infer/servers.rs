//! The servers that classify images, each on the second core behind a veth pair: a node with the function classifier, and a server that forks.

use std::net::SocketAddrV4;

use anyhow::Context;
use pinion_tests::network::bed::NODE;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;

use crate::figures::infer::images::model_file;
use crate::measurement::run::Cores;
use crate::systems::lab::Lab;
use crate::systems::processes::Children;
use crate::systems::server::{Running, Server};

const SERVICE_PORT: u16 = 80;
const TENANT: &str = "images";
const CHAIN: &str = "classifier";
/// FWPs beyond those of the clients: ready ones, and those that end.
const MORE_FWPS: usize = 64;

/// Starts a node that gives each of so many clients an instance of its own.
pub(crate) fn node(cores: Cores, clients: usize) -> anyhow::Result<Server> {
    let lab = Lab::new();
    let settings = format!("[limits]\nfwps_max = {}\n", clients + MORE_FWPS);
    let node = lab.start_node_on_one_core(cores, &settings)?;
    let manifest = Manifest::of(TENANT).module(CHAIN, &sample(CHAIN)).with(format_args!(
        "[model.cifar]\nfile = {model:?}\n\
         [[chain]]\nname = {CHAIN:?}\ncache_min = 4\nidle_timeout_ms = 3600000\nstage = [{{ module = {CHAIN:?}, models = [\"cifar\"] }}]\n\
         [[rule]]\nname = \"clients\"\npolicy = \"per-client\"\nchain = {CHAIN:?}\n\
         match = {{ destination = \"{NODE}\", protocol = \"tcp\", destination_ports = \"{SERVICE_PORT}\" }}\n",
        model = model_file()
    ));
    node.apply(manifest.text());
    node.await_instance(TENANT, CHAIN);
    Ok(Server::new(Running::Node { _node: node }, lab))
}

/// Starts the server that forks.
pub(crate) fn linux(cores: Cores) -> anyhow::Result<Server> {
    let lab = Lab::new();
    lab.answer_by_kernel();
    let program = std::env::current_exe().context("this program's path")?;
    let mut command = lab.server_command("taskset");
    command.args(["--cpu-list", &cores.second.to_string()]).arg(program);
    command.args(["serve-images", "--address", &address()?.to_string(), "--model"]).arg(model_file());
    let server = command.spawn().context("taskset, of Debian's util-linux, cannot be run")?;
    Ok(Server::new(Running::Processes(Children(vec![server])), lab))
}

/// Returns the server's address.
pub(crate) fn address() -> anyhow::Result<SocketAddrV4> {
    Ok(SocketAddrV4::new(NODE.parse().context("the node's address")?, SERVICE_PORT))
}
