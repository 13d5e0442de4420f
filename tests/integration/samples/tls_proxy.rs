//! `tls-proxy` with `curl`, OpenSSL and Python as its clients, over the kernel's TCP. The private key is at the node.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::process::{Child, Stdio};

use pinion_tests::machine::process::{errors, output, run};
use pinion_tests::network::bed::{Client, NODE};
use pinion_tests::product::build;
use pinion_tests::traffic::tls::{BIG_BYTES, Beside, NAME, P256, Site, Stages};
use pinion_tests::traffic::web::filled;
use pinion_tests::until::{SOON, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What `curl` ends with if a connection is refused.
const CURL_REFUSED: i32 = 7;
/// What a client says to have its instance fail, or work on other bytes.
const WORD: &str = "burn-4d5c1e";

/// A client's connection that stays open: `openssl s_client`, which asks for a page whenever it is told to.
struct Session(Child);

impl Session {
    fn new(site: &Site, client: &Client, version: &str) -> Self {
        let mut command = client.namespace.command("timeout");
        command.args(["120", "openssl", "s_client", "-quiet", "-verify_return_error", "-servername", NAME, version]);
        command.args(["-CAfile", site.roots(), "-connect", &format!("{NODE}:443")]);
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

/// Serves a site with a stage before `tls-proxy` that does this when a client says the word.
fn with_fuse(what: &str) -> Site {
    let config = format!("{what} {WORD}");
    let before = Beside { module: "fuse", path: build::hostile("fuse"), config: &config };
    Site::beside(&Stages { before: Some(before), next: None })
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
    let site = with_fuse("panic");
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
    let site = with_fuse("corrupt");
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
fn openssl_agrees_on_each_version_and_group_with_each_kind_of_key_or_gets_an_alert() {
    let kinds = [
        ("p256.example", P256),
        ("p384.example", &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"]),
        ("rsa2048.example", &["rsa:2048"]),
        ("rsa3072.example", &["rsa:3072"]),
        ("ed25519.example", &["ed25519"]),
    ];
    let site = Site::new(&kinds, "");
    let client = &site.bed.clients[0];
    for (name, _) in kinds {
        for version in ["-tls1_2", "-tls1_3"] {
            // A client of TLS 1.2 takes no certificate of a curve that it has not named (RFC 8422, section 5.1). In the last list, a client of
            // TLS 1.3 has guessed the group wrong, and is asked for another one (RFC 8446, section 4.1.4).
            let groups = [
                ("X25519:P-256:P-384", "X25519"),
                ("P-256:P-384", "ECDH, prime256v1"),
                ("P-384:P-256", "ECDH, prime256v1"),
            ];
            for (groups, agreed) in groups {
                let said = site.ask(client, name, &format!("{version} -groups {groups} -verify_hostname {name}"));
                let is_agreed = said.contains(&format!("Server Temp Key: {agreed},"));
                let is_served = said.contains("Verify return code: 0 (ok)") && said.contains("HTTP/1.1 200 OK");
                assert!(is_agreed && is_served, "{name} {version} {groups}: {said}");
            }
            let said = site.ask(client, name, &format!("{version} -groups P-384"));
            assert!(said.contains("alert handshake failure"), "{name} {version}: {said}");
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
        let said = site.ask(first, NAME, &format!("{version} -sess_out {session}"));
        assert!(said.contains("\nNew, TLSv1."), "{said}");
        // Each client has an instance of its own.
        let said = site.ask(second, NAME, &format!("{version} -sess_in {session}"));
        assert!(said.contains("\nReused, TLSv1.") && said.contains("HTTP/1.1 200 OK"), "{version}: {said}");
        let said = site.ask(second, NAME, &format!("{version} -sess_in {session} -early_data /dev/null"));
        assert!(!said.contains("Early data was accepted"), "{said}");
    }
}

/// Writes a session of OpenSSL's with another ticket: `ticket` is changed by the third argument.
const CHANGE_TICKET: &str = "
import base64, sys

def elements(der):
    while der:
        head, count = 2, der[1]
        if count & 0x80:
            head += count & 0x7f
            count = int.from_bytes(der[2:head], 'big')
        yield der[0], der[head:head + count]
        der = der[head + count:]

def element(tag, content):
    count = len(content)
    long = count.to_bytes((count.bit_length() + 7) // 8, 'big')
    return bytes([tag]) + (bytes([count]) if count < 128 else bytes([0x80 | len(long)]) + long) + content

lines = open(sys.argv[1]).read().split('\\n')
begin, end = lines.index('-----BEGIN SSL SESSION PARAMETERS-----'), lines.index('-----END SSL SESSION PARAMETERS-----')
(_, session), = elements(base64.b64decode(''.join(lines[begin + 1:end])))
changed, tickets = b'', 0
for tag, content in elements(session):
    # The ticket is an octet string with the explicit tag 10.
    if tag == 0xaa:
        (_, ticket), = elements(content)
        ticket = bytearray(ticket)
        exec(sys.argv[3])
        content, tickets = element(4, bytes(ticket)), tickets + 1
    changed += element(tag, content)
assert tickets == 1
text = base64.encodebytes(element(0x30, changed)).decode()
open(sys.argv[2], 'w').write(f'{lines[begin]}\\n{text}{lines[end]}\\n')
";

#[test]
fn openssl_has_a_full_handshake_with_a_ticket_that_was_changed() {
    let site = Site::of_p256();
    let [first, second, ..] = &site.bed.clients[..] else { panic!("a bed has three clients") };
    let [session, changed] = ["session", "changed"].map(|name| site.bed.node.path(name).display().to_string());
    for version in ["-tls1_2", "-tls1_3"] {
        site.ask(first, NAME, &format!("{version} -sess_out {session}"));
        for (change, begins) in [
            ("pass", "Reused"),
            ("ticket[0] ^= 1", "New"),
            ("ticket[len(ticket) // 2] ^= 0x80", "New"),
            ("ticket[-1] ^= 1", "New"),
            ("del ticket[-1]", "New"),
            ("del ticket[len(ticket) // 2:]", "New"),
            ("ticket += bytes(1000)", "New"),
        ] {
            run(second.namespace.command("python3").args(["-c", CHANGE_TICKET, &session, &changed, change]));
            let said = site.ask(second, NAME, &format!("{version} -sess_in {changed}"));
            let is_begun = said.contains(&format!("\n{begins}, TLSv1."));
            assert!(is_begun && said.contains("HTTP/1.1 200 OK"), "{version}, {change}: {said}");
        }
    }
}

#[test]
fn old_versions_renegotiation_and_what_is_no_tls_are_refused_and_others_are_served() {
    let site = Site::of_p256();
    let client = &site.bed.clients[0];
    let said = site.ask(client, NAME, "-tls1_1 -cipher DEFAULT@SECLEVEL=0");
    assert!(said.contains("alert handshake failure"), "it names no schemes of signatures: {said}");
    let said = site.s_client(client, "{ echo R; sleep 2; }", &format!("-tls1_2 -servername {NAME}"));
    assert!(said.contains("no renegotiation"), "{said}");
    let said = site.ask(client, NAME, "-alpn h2");
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
        site.roots()
    );
    run(site.bed.clients[0].namespace.command("python3").args(["-c", &program]));
}

#[test]
fn http_server_as_the_next_stage_serves_each_client_by_a_chain_of_its_own_and_by_tls_alone() {
    let pages = format!("page / hello\nfill /big {BIG_BYTES}\n");
    let next = Beside { module: "http-server", path: build::sample("http-server"), config: &pages };
    let site = Site::beside(&Stages { before: None, next: Some(next) });
    for client in &site.bed.clients[..2] {
        assert_eq!(site.curl(client, &[], "/"), "hello\n");
        assert!(site.curl(client, &[], "/big") == filled(BIG_BYTES));
        let mut plain = client.namespace.command("curl");
        let refused = output(plain.args(["--silent", "--max-time", "60", &format!("http://{NODE}:80/")]));
        assert_eq!(refused.status.code(), Some(CURL_REFUSED), "{}", errors(&refused));
        assert_eq!(site.curl(client, &[], "/"), "hello\n");
    }
    let serving = site.bed.node.cli().serving_fwps();
    let of_stage = |stage: u64| serving.iter().filter(|fwp| fwp["stage"].as_u64() == Some(stage)).count();
    assert_eq!([of_stage(0), of_stage(1)], [2, 2], "{serving:?}");
}
