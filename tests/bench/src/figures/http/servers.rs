//! The servers of one small file, each on the second core behind a veth pair: a node with the function http-server, and nginx.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Child;

use anyhow::Context;
use pinion_tests::network::bed::NODE;
use pinion_tests::product::build::sample;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use tempfile::TempDir;

use crate::measurement::run::Cores;
use crate::systems::lab::Lab;

pub(crate) const SERVICE_PORT: u16 = 80;
/// The path of a file without an end that the node serves.
pub(crate) const BULK: &str = "/bulk";
const BULK_BYTES: u64 = 1 << 40;
/// Requests on one connection: more than any measurement has.
const REQUESTS_MAX: u64 = 1_000_000_000;
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

/// nginx with one worker. When dropped, it ends.
pub(crate) struct Nginx {
    child: Child,
    _folder: TempDir,
}

impl Nginx {
    /// Starts it in a lab.
    pub(crate) fn start(lab: &Lab, cores: Cores) -> anyhow::Result<Self> {
        lab.answer_by_kernel();
        let folder = tempfile::Builder::new().prefix("pinion-bench-").tempdir().context("a folder for nginx")?;
        // Its worker is another user, who must be able to read the file.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        fs::write(folder.path().join("index.html"), content()).context("nginx's file")?;
        let config = folder.path().join("nginx.conf");
        fs::write(&config, configuration(folder.path())).context("nginx's configuration")?;
        let mut command = lab.server_command("taskset");
        command.args(["--cpu-list", &cores.second.to_string(), "nginx", "-c"]).arg(&config);
        let child = command.spawn().context("nginx, of Debian's nginx-light package, cannot be run")?;
        Ok(Self { child, _folder: folder })
    }

    /// Fails if it has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("nginx")? {
            Some(status) => anyhow::bail!("nginx has ended by itself: {status}"),
            None => Ok(()),
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its master ends its worker at this signal, which it could not if it were killed.
        let _ =
            rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// As Debian has it, but for logs, and with one worker and no bound on the requests of a connection.
fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log stderr error;\nevents {{ worker_connections 768; }}\n\
         http {{\n  sendfile on;\n  tcp_nopush on;\n  access_log off;\n  types {{ text/html html; }}\n  keepalive_requests {REQUESTS_MAX};\n  \
         open_file_cache max=16;\n  server {{ listen {address}:{SERVICE_PORT}; root {folder}; }}\n}}\n",
        address = NODE
    )
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

    #[test]
    fn nginx_has_one_worker_and_no_bound_on_a_connections_requests() {
        let text = configuration(Path::new("/somewhere"));
        assert!(text.contains("worker_processes 1;") && text.contains("keepalive_requests 1000000000;"), "{text}");
    }
}
