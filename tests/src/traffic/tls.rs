//! `tls-proxy` at a bed's node, with certificates of its own, and `curl` and `openssl` as its clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::process::{output, run};
use crate::network::bed::{Bed, Client, Device, NODE, TENANT};
use crate::product::build;
use crate::product::manifest::Manifest;

/// The name of a site with one certificate.
pub const NAME: &str = "site.example";
/// The length of the file `/big`.
pub const BIG_BYTES: usize = 1 << 20;
/// A key of P-256, in words of `openssl req -newkey`.
pub const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// A node that serves a site over TLS to each client by an instance of its own, and the certificates to trust.
#[derive(Debug)]
pub struct Site {
    /// The node and its clients.
    pub bed: Bed,
    roots: PathBuf,
}

/// Stages beside `tls-proxy` in the chain.
#[derive(Debug, Default)]
pub struct Stages<'a> {
    /// One that frames pass before.
    pub before: Option<Beside<'a>>,
    /// One that serves the plain text on port 80, instead of the pages of the site.
    pub next: Option<Beside<'a>>,
}

/// A stage.
#[derive(Debug)]
pub struct Beside<'a> {
    /// Its module's name.
    pub module: &'a str,
    /// Its module.
    pub path: PathBuf,
    /// Its configuration.
    pub config: &'a str,
}

impl Beside<'_> {
    fn in_manifest(&self) -> String {
        format!("{{ module = {:?}, config = {:?} }}", self.module, self.config)
    }
}

impl Site {
    /// Serves a site with a certificate for [`NAME`] and a key of [`P256`].
    ///
    /// # Panics
    /// If the node does not accept that.
    #[track_caller]
    #[must_use]
    pub fn of_p256() -> Self {
        Self::new(&[(NAME, P256)], "")
    }

    /// The same, with stages beside `tls-proxy` in the chain.
    ///
    /// # Panics
    /// If the node does not accept that.
    #[track_caller]
    #[must_use]
    pub fn beside(stages: &Stages<'_>) -> Self {
        Self::with(&[(NAME, P256)], "", stages)
    }

    /// Serves a site with a certificate for each of these names, whose key is of the kind in words of `openssl req -newkey`. `config` are
    /// lines for the beginning of the configuration.
    ///
    /// # Panics
    /// If the node does not accept that.
    #[track_caller]
    #[must_use]
    pub fn new(certificates: &[(&str, &[&str])], config: &str) -> Self {
        Self::with(certificates, config, &Stages::default())
    }

    #[track_caller]
    fn with(certificates: &[(&str, &[&str])], config: &str, Stages { before, next }: &Stages<'_>) -> Self {
        let bed = Bed::new(Device::Tap);
        let folder = bed.node.path("tls");
        let files = folder.join("files");
        fs::create_dir_all(&files).expect("the node's folder is writable");
        let mut config = config.to_owned();
        let (mut manifest, mut keys, mut roots) = (Manifest::of(TENANT), Vec::new(), String::new());
        for (number, (name, kind)) in certificates.iter().enumerate() {
            let certificate = files.join(format!("{number}.pem"));
            let key = folder.join(format!("{number}.key.pem"));
            make_certificate(name, kind, &key, &certificate);
            roots += &fs::read_to_string(&certificate).expect("it was written");
            config += &format!("[[certificate]]\nchain = \"/{number}.pem\"\nkey = \"key{number}\"\n");
            manifest = manifest.with(format_args!("[key.key{number}]\nfile = {key:?}\n"));
            keys.push(format!("key{number}"));
        }
        config += &match next {
            None => format!(
                "[site]\n[[site.page]]\npath = \"/\"\ntext = \"hello\"\n[[site.page]]\npath = \"/big\"\nfill_bytes = {BIG_BYTES}\n"
            ),
            Some(_) => "[upstream]\nnext_stage_port = 80\n".to_owned(),
        };
        manifest = manifest.module("tls-proxy", &build::sample("tls-proxy"));
        let mut stages =
            vec![format!("{{ module = \"tls-proxy\", files = {files:?}, keys = {keys:?}, config = {config:?} }}")];
        if let Some(before) = before {
            manifest = manifest.module(before.module, &before.path);
            stages.insert(0, before.in_manifest());
        }
        if let Some(next) = next {
            manifest = manifest.module(next.module, &next.path);
            stages.push(next.in_manifest());
        }
        let reverse = if next.is_some() { "reverse = { from = [] }\n" } else { "" };
        let stages = stages.join(", ");
        let manifest = manifest.with(format_args!(
            "[[chain]]\nname = \"secure\"\nstage = [{stages}]\n{reverse}memory_limit_kib = 32768\n\
             [[rule]]\nname = \"secure\"\npolicy = \"per-client\"\nchain = \"secure\"\n\
             match = {{ destination = \"{NODE}\", protocol = \"tcp\" }}\n\
             [[rule]]\nname = \"datagrams\"\npolicy = \"per-client\"\nchain = \"secure\"\n\
             match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
        ));
        bed.node.apply(manifest.text());
        let path = folder.join("roots.pem");
        fs::write(&path, roots).expect("the node's folder is writable");
        Self { bed, roots: path }
    }

    /// Returns the path of a file with all certificates, in PEM.
    ///
    /// # Panics
    /// If the path is no UTF-8.
    #[must_use]
    pub fn roots(&self) -> &str {
        self.roots.to_str().expect("the folder's path is UTF-8")
    }

    /// Runs `curl` for a path of the site [`NAME`], with further words; returns its output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn curl(&self, client: &Client, words: &[&str], path: &str) -> String {
        let mut command = client.namespace.command("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--cacert", self.roots()]);
        command.args(["--resolve", &format!("{NAME}:443:{NODE}")]).args(words).arg(format!("https://{NAME}{path}"));
        run(&mut command)
    }

    /// Runs `openssl s_client` with these words, and gives it what `input`, a command of the shell, writes. Returns all that it says.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn s_client(&self, client: &Client, input: &str, words: &str) -> String {
        let mut command = client.namespace.command("timeout");
        let roots = self.roots();
        let script =
            format!("{input} | openssl s_client -connect {NODE}:443 -CAfile {roots} -verify_return_error {words} 2>&1");
        let said = output(command.args(["60", "sh", "-c", &script]));
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// Asks by `openssl s_client` for the page of the site of this name, on a connection of its own. Returns all that it says.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn ask(&self, client: &Client, name: &str, words: &str) -> String {
        let request = r"printf 'GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'";
        self.s_client(client, request, &format!("-ign_eof -servername {name} {words}"))
    }
}

/// Makes a key of this kind, and a certificate that it has signed itself.
#[track_caller]
fn make_certificate(name: &str, kind: &[&str], key: &Path, certificate: &Path) {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "60", "-subj", &format!("/CN={name}"), "-newkey"]).args(kind);
    command.args(["-addext", &format!("subjectAltName=DNS:{name}"), "-keyout"]).arg(key).arg("-out").arg(certificate);
    run(&mut command);
}
