//! `tls-proxy` with `curl`, OpenSSL and Python as its clients, over the kernel's TCP. The private key is at the node.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pinion_tests::machine::process::{errors, output, run};
use pinion_tests::network::bed::{Bed, Client, Device, NODE, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::web::filled;
use pinion_tests::until::{SOON, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const NAME: &str = "site.example";
const BIG_BYTES: usize = 1 << 20;
/// In words of `openssl req`.
const P256: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
/// What `curl` ends with if a connection is refused.
const CURL_REFUSED: i32 = 7;
/// What a client says to have its instance fail, or work on other bytes.
const WORD: &str = "burn-4d5c1e";

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

/// Returns the configuration of pages that `tls-proxy` serves itself.
fn site() -> String {
    format!(
        "[site]\n[[site.page]]\npath = \"/\"\ntext = \"hello\"\n[[site.page]]\npath = \"/big\"\nfill_bytes = {BIG_BYTES}\n"
    )
}

impl Site {
    fn new(kind: &[&str]) -> Self {
        Self::with(kind, "", &site(), None)
    }

    /// Makes a site with this stage before `tls-proxy`, and a comma.
    fn behind(stage: &str) -> Self {
        Self::with(P256, stage, &site(), None)
    }

    /// Makes a site that `http-server`, the next stage of the chain, serves in plain text.
    fn of_next_stage() -> Self {
        let pages = format!("page / hello\nfill /big {BIG_BYTES}\n");
        Self::with(P256, "", "[upstream]\nnext_stage_port = 80\n", Some(&pages))
    }

    /// Makes a site by a certificate of this kind, with a stage before `tls-proxy`, if any, and a configuration of what is behind TLS; with the
    /// configuration of `http-server` if that is the chain's next stage.
    fn with(kind: &[&str], before: &str, behind: &str, next_stage: Option<&str>) -> Self {
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
        if !before.is_empty() {
            manifest = manifest.module("fuse", &build::hostile("fuse"));
        }
        let manifest = manifest.with(format_args!(
            "[key.site]\nfile = {key:?}\n\
             [[chain]]\nname = \"secure\"\n{reverse}\
             stage = [{before} {{ module = \"tls-proxy\", files = {files:?}, keys = [\"site\"], config = {config:?} }}{more}]\n\
             [[rule]]\nname = \"secure\"\npolicy = \"per-client\"\nchain = \"secure\"\n\
             match = {{ destination = \"{NODE}\", protocol = \"tcp\" }}\n"
        ));
        let words = format!(
            "[[rule]]\nname = \"words\"\npolicy = \"per-client\"\nchain = \"secure\"\n\
             match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
        );
        let manifest = if before.is_empty() { manifest } else { manifest.with(words) };
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

/// A client's connection that stays open: `openssl s_client`, which asks for a page whenever it is told to.
struct Session(Child);

impl Session {
    fn new(site: &Site, client: &Client, version: &str) -> Self {
        let mut command = client.namespace.command("timeout");
        command.args(["120", "openssl", "s_client", "-quiet", "-verify_return_error", "-servername", NAME, version]);
        command.args(["-CAfile", site.certificate(), "-connect", &format!("{NODE}:443")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().expect("openssl can be run"))
    }

    /// Asks for a page. Returns whether it comes; it does not if the connection ends before, or after two minutes.
    fn ask(&mut self) -> bool {
        let (input, output) = (self.0.stdin.as_mut(), self.0.stdout.as_mut());
        let (input, output) = (input.expect("it is a pipe"), output.expect("it is a pipe"));
        match input.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return false,
            written => written.expect("a pipe takes a request"),
        }
        let (mut heard, mut byte) = (Vec::new(), [0]);
        while !heard.ends_with(b"\r\n\r\nhello") {
            if output.read(&mut byte).expect("a pipe can be read") == 0 {
                return false;
            }
            heard.push(byte[0]);
        }
        true
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Passed on to openssl.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Sends the word in a datagram, which is lost with the instance: a segment would be sent again, and end the next one, too.
fn say_the_word(client: &Client) {
    let socket = client.namespace.inside(|| UdpSocket::bind((client.address.as_str(), 0)));
    let socket = socket.expect("the client has the address");
    socket.send_to(WORD.as_bytes(), (NODE, 443)).expect("the interface takes a datagram");
}

/// Returns the instances of a client that have ended, and those that have not.
fn instances(site: &Site, client: &Client) -> (Vec<Value>, Vec<Value>) {
    let instances = site.bed.node.cli().get("instances").into_iter();
    let of_client = instances.filter(|instance| instance["client"] == client.address.as_str());
    of_client.partition(|instance| instance["state"] == "terminated")
}

/// Returns the number of the only instance that a client has.
#[track_caller]
fn only_instance(site: &Site, client: &Client) -> Value {
    let (ended, serving) = instances(site, client);
    assert_eq!((ended.len(), serving.len()), (0, 1), "{ended:?}, {serving:?}");
    serving[0]["id"].clone()
}

#[test]
fn sessions_of_others_go_on_when_a_clients_instance_fails_and_that_client_gets_a_fresh_one() {
    let site = Site::behind(&format!("{{ module = \"fuse\", config = \"panic {WORD}\" }},"));
    let [unlucky, others @ ..] = &site.bed.clients[..] else { panic!("a bed has clients") };
    let sessions =
        ["-tls1_3", "-tls1_2"].into_iter().flat_map(|version| others.iter().map(move |other| (other, version)));
    let mut sessions: Vec<Session> = sessions.map(|(other, version)| Session::new(&site, other, version)).collect();
    let mut lost = Session::new(&site, unlucky, "-tls1_3");
    assert!(lost.ask() && sessions.iter_mut().all(Session::ask), "all are served");
    let before: Vec<Value> = others.iter().map(|other| only_instance(&site, other)).collect();
    say_the_word(unlucky);
    let ended = until("end of its instance", SOON, || instances(&site, unlucky).0.pop());
    assert!(ended["ended_because"].as_str().is_some_and(|reason| reason.contains("its client said so")), "{ended}");
    for _ in 0..3 {
        assert!(sessions.iter_mut().all(Session::ask), "the sessions of others go on");
    }
    let after: Vec<Value> = others.iter().map(|other| only_instance(&site, other)).collect();
    assert_eq!(after, before);
    assert_eq!(site.curl(unlucky, &[], "/"), "hello", "a fresh instance serves the client");
    assert_eq!(instances(&site, unlucky).0.len(), 1);
}

#[test]
fn sessions_of_others_go_on_when_a_clients_instance_works_on_corrupted_bytes() {
    let site = Site::behind(&format!("{{ module = \"fuse\", config = \"corrupt {WORD}\" }},"));
    let [unlucky, others @ ..] = &site.bed.clients[..] else { panic!("a bed has clients") };
    let mut sessions: Vec<Session> = others.iter().map(|other| Session::new(&site, other, "-tls1_3")).collect();
    let mut corrupted = Session::new(&site, unlucky, "-tls1_3");
    assert!(corrupted.ask() && sessions.iter_mut().all(Session::ask), "all are served");
    say_the_word(unlucky);
    assert!(!corrupted.ask(), "a record that was changed is refused");
    for _ in 0..3 {
        assert!(sessions.iter_mut().all(Session::ask), "the sessions of others go on");
    }
    others.iter().for_each(|other| drop(only_instance(&site, other)));
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
