//! nginx with one worker, on the second core behind the server's end of a lab's cable.

use std::fs;
use std::path::Path;
use std::process::Child;

use anyhow::Context;
use tempfile::TempDir;

use crate::measurement::run::Cores;
use crate::systems::lab::Lab;

/// Requests on one connection: more than any measurement has.
pub(crate) const REQUESTS_MAX: u64 = 1_000_000_000;

/// A server. When dropped, it ends.
pub(crate) struct Nginx {
    child: Child,
    _folder: TempDir,
}

impl Nginx {
    /// Starts it in a lab. Its folder has these files, by name and content; `server` returns the lines of its only block `server`, given the folder.
    pub(crate) fn start(
        lab: &Lab,
        cores: Cores,
        files: &[(&str, &str)],
        server: impl FnOnce(&Path) -> String,
    ) -> anyhow::Result<Self> {
        lab.answer_by_kernel();
        let folder = tempfile::Builder::new().prefix("pinion-bench-").tempdir().context("a folder for nginx")?;
        // Its worker is another user, who must be able to read the files.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        for (name, content) in files {
            fs::write(folder.path().join(name), content).with_context(|| format!("nginx's file {name}"))?;
        }
        let config = folder.path().join("nginx.conf");
        let text = configuration(folder.path(), &server(folder.path()));
        fs::write(&config, text).context("nginx's configuration")?;
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
fn configuration(folder: &Path, server: &str) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log stderr error;\nevents {{ worker_connections 768; }}\n\
         http {{\n  sendfile on;\n  tcp_nopush on;\n  access_log off;\n  types {{ text/html html; }}\n  keepalive_requests {REQUESTS_MAX};\n  \
         open_file_cache max=16;\n  server {{ root {folder}; {server} }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_has_one_worker_and_no_bound_on_a_connections_requests() {
        let text = configuration(Path::new("/somewhere"), "listen 80;");
        assert!(text.contains("worker_processes 1;") && text.contains("keepalive_requests 1000000000;"), "{text}");
        assert!(text.contains("server { root /somewhere; listen 80; }"), "{text}");
    }
}
