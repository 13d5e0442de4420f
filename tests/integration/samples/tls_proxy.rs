//! `tls-proxy` with `curl`, OpenSSL and Python as its clients, over the kernel's TCP. The private key is at the node.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pinion_tests::machine::process::{errors, output, run};
use pinion_tests::network::bed::{Bed, Client, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::web::filled;

const NAME: &str = "site.example";
const BIG_BYTES: usize = 1 << 20;
/// In words of `openssl req`.
const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
/// What `curl` ends with if a connection is refused.
const CURL_REFUSED: i32 = 7;

/// A node that serves a site over TLS, and the certificate to trust.
struct Site {
    bed: Bed,
    certificate: PathBuf,
}

/// Makes a key of this kind, in words of `openssl req`, and a certificate of its own; returns their paths.
fn make_certificate(folder: &Path, kind: &[&str]) -> (PathBuf, PathBuf) {
    let (key, files) = (folder.join("site.key.pem"), folder.join("files"));
    fs::create_dir_all(&files).expect("the node's folder is writable");
    let certificate = files.join("site.pem");
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=site.example", "-newkey"]).args(kind);
    command.args(["-addext", &format!("subjectAltName=DNS:{NAME}"), "-keyout"]).arg(&key).arg("-out").arg(&certificate);
    run(&mut command);
    (key, certificate)
}

impl Site {
    fn new(kind: &[&str]) -> Self {
        let pages = format!(
            "[site]\n[[site.page]]\npath = \"/\"\ntext = \"hello\"\n[[site.page]]\npath = \"/big\"\nfill_bytes = {BIG_BYTES}\n"
        );
        Self::with(kind, &pages, None)
    }

    /// Makes a site that `http-server`, the next stage of the chain, serves in plain text.
    fn of_next_stage() -> Self {
        let pages = format!("page / hello\nfill /big {BIG_BYTES}\n");
        Self::with(P256, "[upstream]\nnext_stage_port = 80\n", Some(&pages))
    }

    /// Makes a site by a certificate of this kind, and a configuration of what is behind TLS; with the configuration of `http-server` if that
    /// is the chain's next stage.
    fn with(kind: &[&str], behind: &str, next_stage: Option<&str>) -> Self {
        let bed = Bed::new(Device::Tap);
        let (key, certificate) = make_certificate(&bed.node.path("tls"), kind);
        let files = certificate.parent().expect("a file is in a folder");
        let config = format!("[[certificate]]\nchain = \"/site.pem\"\nkey = \"site\"\n{behind}");
        let mut manifest = Manifest::of(TENANT).module("tls-proxy", &build::sample("tls-proxy"));
        let (mut more, mut reverse) = (String::new(), "");
        if let Some(config) = next_stage {
            manifest = manifest.module("http-server", &build::sample("http-server"));
            more = format!(", {{ module = \"http-server\", config = {config:?} }}");
            reverse = "reverse = { from = [] }\n";
        }
        let manifest = manifest.with(format_args!(
            "[key.site]\nfile = {key:?}\n\
             [[chain]]\nname = \"secure\"\n{reverse}\
             stage = [{{ module = \"tls-proxy\", files = {files:?}, keys = [\"site\"], config = {config:?} }}{more}]\n\
             [[rule]]\nname = \"secure\"\npolicy = \"per-client\"\nchain = \"secure\"\n\
             match = {{ destination = \"{NODE}\", protocol = \"tcp\" }}\n"
        ));
        bed.node.apply(manifest.text());
        Self { bed, certificate }
    }

    fn of_p256() -> Self {
        Self::new(P256)
    }

    fn certificate(&self) -> &str {
        self.certificate.to_str().expect("the folder's path is UTF-8")
    }

    /// Runs `curl` for a path with further words; returns its output.
    #[track_caller]
    fn curl(&self, client: &Client, words: &[&str], path: &str) -> String {
        let mut command = client.namespace.command("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--cacert", self.certificate()]);
        command.args(["--resolve", &format!("{NAME}:443:{NODE}")]).args(words).arg(format!("https://{NAME}{path}"));
        run(&mut command)
    }

    /// Runs `openssl s_client` with these words, and gives it what `input`, a command of the shell, writes. Returns all that it says.
    fn s_client(&self, client: &Client, input: &str, words: &str) -> String {
        let mut command = client.namespace.command("timeout");
        let certificate = self.certificate();
        let script = format!(
            "{input} | openssl s_client -connect {NODE}:443 -servername {NAME} -CAfile {certificate} -verify_return_error {words} 2>&1"
        );
        let said = output(command.args(["60", "sh", "-c", &script]));
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    /// Asks by `openssl s_client` for a page on a connection of its own.
    fn ask(&self, client: &Client, words: &str) -> String {
        let request = r"printf 'GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'";
        self.s_client(client, request, &format!("-ign_eof {words}"))
    }
}

#[test]
fn curl_gets_pages_and_whole_files_by_both_versions_and_keeps_its_connection() {
    let site = Site::of_p256();
    let client = &site.bed.clients[0];
    for version in ["1.2", "1.3"] {
        let words = ["--tlsv1.2", "--tls-max", version];
        assert_eq!(site.curl(client, &words, "/"), "hello", "TLS {version}");
        assert!(site.curl(client, &words, "/big") == filled(BIG_BYTES), "TLS {version}");
    }
    let second = format!("https://{NAME}/");
    let report = site.curl(client, &["--write-out", "\n%{http_code} %{num_connects}\n", &second], "/");
    let codes: Vec<&str> = report.lines().filter(|line| line.starts_with("200 ")).collect();
    assert_eq!(codes, ["200 1", "200 0"], "one connection for both: {report}");
}

#[test]
fn openssl_verifies_keys_of_each_kind_in_both_versions() {
    for kind in [P256, &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"], &["rsa:2048"]] {
        let site = Site::new(kind);
        for version in ["-tls1_2", "-tls1_3"] {
            let said = site.ask(&site.bed.clients[0], version);
            assert!(
                said.contains("Verify return code: 0 (ok)") && said.contains("HTTP/1.1 200 OK"),
                "{kind:?} {version}: {said}"
            );
        }
    }
}

#[test]
fn a_session_is_resumed_by_an_instance_that_has_never_seen_it() {
    let site = Site::of_p256();
    let [first, second, ..] = &site.bed.clients[..] else { panic!("a bed has three clients") };
    for version in ["-tls1_2", "-tls1_3"] {
        let session = site.bed.node.path("session");
        let session = session.to_str().expect("the folder's path is UTF-8");
        let said = site.ask(first, &format!("{version} -sess_out {session}"));
        assert!(said.contains("\nNew, TLSv1."), "{said}");
        // Each client has an instance of its own.
        let said = site.ask(second, &format!("{version} -sess_in {session}"));
        assert!(said.contains("\nReused, TLSv1.") && said.contains("HTTP/1.1 200 OK"), "{version}: {said}");
        let said = site.ask(second, &format!("{version} -sess_in {session} -early_data /dev/null"));
        assert!(!said.contains("Early data was accepted"), "{said}");
    }
}

#[test]
fn old_versions_renegotiation_and_what_is_no_tls_are_refused_and_others_are_served() {
    let site = Site::of_p256();
    let client = &site.bed.clients[0];
    let said = site.ask(client, "-tls1_1 -cipher DEFAULT@SECLEVEL=0");
    assert!(said.contains("alert handshake failure"), "it names no schemes of signatures: {said}");
    let said = site.s_client(client, "{ echo R; sleep 2; }", "-tls1_2");
    assert!(said.contains("no renegotiation"), "{said}");
    let said = site.ask(client, "-alpn h2");
    assert!(said.contains("alert no application protocol"), "{said}");
    let mut command = client.namespace.command("curl");
    let refused =
        output(command.args(["--silent", "--show-error", "--max-time", "60", &format!("http://{NODE}:443/")]));
    assert!(!refused.status.success(), "{}", errors(&refused));
    assert_eq!(site.curl(client, &[], "/"), "hello");
}

#[test]
fn pythons_ssl_gets_pages_and_refuses_another_name() {
    let site = Site::of_p256();
    let program = format!(
        "import socket, ssl\n\
         context = ssl.create_default_context(cafile={:?})\n\
         def ask(name):\n\
         \x20   with socket.create_connection(('{NODE}', 443), 60) as tcp:\n\
         \x20       with context.wrap_socket(tcp, server_hostname=name) as tls:\n\
         \x20           tls.sendall(b'GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n\
         \x20           return tls.version(), b''.join(iter(lambda: tls.recv(4096), b'')).split(b'\\r\\n\\r\\n')[1]\n\
         assert ask('{NAME}') == ('TLSv1.3', b'hello'), ask('{NAME}')\n\
         try:\n\
         \x20   ask('other.example')\n\
         except ssl.SSLCertVerificationError as error:\n\
         \x20   assert 'mismatch' in str(error), error\n\
         else:\n\
         \x20   raise AssertionError('the certificate is not for that name')\n",
        site.certificate()
    );
    run(site.bed.clients[0].namespace.command("python3").args(["-c", &program]));
}

#[test]
fn http_server_as_the_next_stage_serves_each_client_by_a_chain_of_its_own_and_by_tls_alone() {
    let site = Site::of_next_stage();
    for client in &site.bed.clients[..2] {
        assert_eq!(site.curl(client, &[], "/"), "hello");
        assert!(site.curl(client, &[], "/big") == filled(BIG_BYTES));
        let mut plain = client.namespace.command("curl");
        let refused = output(plain.args(["--silent", "--max-time", "60", &format!("http://{NODE}:80/")]));
        assert_eq!(refused.status.code(), Some(CURL_REFUSED), "{}", errors(&refused));
        assert_eq!(site.curl(client, &[], "/"), "hello");
    }
    let serving = site.bed.node.cli().serving_fwps();
    let of_stage = |stage: u64| serving.iter().filter(|fwp| fwp["stage"].as_u64() == Some(stage)).count();
    assert_eq!([of_stage(0), of_stage(1)], [2, 2], "{serving:?}");
}
