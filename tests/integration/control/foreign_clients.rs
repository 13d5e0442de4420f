//! A client of the API that is not part of this project: gRPC for Python, on a node's socket and over TLS.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use pinion_tests::machine::process::run;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;
use pinion_tests::until::{SOON, until};

/// Debian's Python, for which the package `python3-grpcio` is installed.
const PYTHON: &str = "/usr/bin/python3";

/// Requests the node's health, its status, and a stream of its chains, with the given authority or the library's default; prints the
/// results.
const CLIENT: &str = r#"
import sys
import grpc

socket, authority = sys.argv[1], sys.argv[2:]
options = [("grpc.default_authority", authority[0])] if authority else []
def plain(message):
    return message
with grpc.insecure_channel("unix:" + socket, options=options) as channel:
    for name in ["/grpc.health.v1.Health/Check", "/pinion.v1.Control/GetStatus"]:
        call = channel.unary_unary(name, request_serializer=plain, response_deserializer=plain)
        for _ in range(3):
            answer = call(b"", timeout=20)
        print(name, answer.hex() if len(answer) < 9 else len(answer) > 100)
    chains = channel.unary_stream("/pinion.v1.Control/ListChains", request_serializer=plain, response_deserializer=plain)
    print(sum(b"echo" in chain for chain in chains(b"", timeout=20)), "chains")
    try:
        channel.unary_unary("/pinion.v1.Control/NoSuchCall", request_serializer=plain, response_deserializer=plain)(b"", timeout=20)
    except grpc.RpcError as error:
        print(error.code().name)
"#;

const ANSWERS: &str = "/grpc.health.v1.Health/Check 0801\n/pinion.v1.Control/GetStatus True\n1 chains\nUNIMPLEMENTED\n";

#[test]
fn a_client_in_python_is_answered_whatever_authority_it_names() {
    let node = Node::without_devices();
    node.apply(
        Manifest::of("default").module("icmp-echo", &build::sample("icmp-echo")).chain("echo", "icmp-echo", "").text(),
    );
    let socket = node.socket();
    let path = socket.to_str().expect("the path is text");
    let encoded = path.replace('/', "%2F");
    // The library's default is one of these, depending on its version.
    for authority in [None, Some("localhost"), Some(&*encoded), Some(path), Some("unix:anything")] {
        let mut client = Command::new(PYTHON);
        client.args(["-c", CLIENT, path]).args(authority);
        assert_eq!(run(&mut client), ANSWERS, "{authority:?}");
    }
}

/// Returns the Python that can generate clients, as `tests/setup/python-tools.sh` names it.
fn generating_python() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    cache.expect("there is a home directory").join("pinion/python-2/bin/python3")
}

#[test]
fn a_client_in_python_generated_from_the_definition_uses_each_call() {
    let node = Node::without_devices();
    let folder = tempfile::tempdir().expect("a folder");
    let (key, files) = (folder.path().join("key.pem"), folder.path().join("files.tar"));
    run(Command::new("openssl").args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(&key));
    fs::write(folder.path().join("page"), "a page").expect("the file is written");
    run(Command::new("tar")
        .arg("--create")
        .arg("--file")
        .arg(&files)
        .arg("--directory")
        .arg(folder.path())
        .arg("page"));
    let here = build::workspace();
    let mut client = Command::new(generating_python());
    client.arg(here.join("tests/integration/control/whole_api.py")).arg(node.socket()).arg(here.join("control/proto"));
    client.arg(build::sample("word-count")).arg(here.join("samples/classifier/model/cifar.onnx")).args([key, files]);
    assert_eq!(run(&mut client), "not used: []\n");
}

/// Lists chains without a filter, then those of tenant `blue`, and applies nothing as an admin may; prints what comes of each.
const TLS_CLIENT: &str = r#"
import sys
import grpc

address, authority, *identity = sys.argv[1:]
def read(path):
    with open(path, "rb") as file:
        return file.read()
def plain(message):
    return message
certificate, key = [read(path) for path in identity] if identity else (None, None)
with grpc.secure_channel(address, grpc.ssl_channel_credentials(read(authority), key, certificate)) as channel:
    chains = channel.unary_stream("/pinion.v1.Control/ListChains", request_serializer=plain, response_deserializer=plain)
    apply = channel.unary_unary("/pinion.v1.Control/Apply", request_serializer=plain, response_deserializer=plain)
    for name, ask in [
        ("all", lambda: sorted(tenant for chain in chains(b"", timeout=20) for tenant in ["red", "blue"] if tenant.encode() in chain)),
        ("blue", lambda: len(list(chains(b"\n\x04blue", timeout=20)))),
        ("apply", lambda: len(apply(b"", timeout=20)) >= 0),
    ]:
        try:
            print(name, ask())
        except grpc.RpcError as error:
            print(name, error.code().name)
"#;

/// A folder with a CA and what it has issued.
struct Ca {
    folder: tempfile::TempDir,
}

impl Ca {
    fn new() -> Self {
        let ca = Self { folder: tempfile::tempdir().expect("a folder") };
        ca.cert(&["ca"]);
        ca
    }

    /// Runs `pinion cert`.
    fn cert(&self, words: &[&str]) {
        let mut command = Command::new(build::program("pinion"));
        run(command.arg("cert").args(words).env("PINION_CONFIG", self.folder.path().join("config.toml")));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("ca").join(name)
    }

    /// Makes the identity of a tenant's person; returns its certificate and key.
    fn person(&self, tenant: &str, name: &str, more: &[&str]) -> [PathBuf; 2] {
        self.cert(&[&["tenant", tenant, name], more].concat());
        ["pem", "key"].map(|kind| self.path(&format!("tenants/{tenant}/{name}.{kind}")))
    }
}

/// Returns what the client prints.
fn asked(address: &str, authority: &Path, identity: &[PathBuf]) -> String {
    run(Command::new(PYTHON).args(["-c", TLS_CLIENT, address]).arg(authority).args(identity))
}

#[test]
fn over_tls_a_client_in_python_gets_what_its_certificate_says_and_without_a_valid_one_nothing() {
    let (ca, other) = (Ca::new(), Ca::new());
    ca.cert(&["node", "--name", "127.0.0.1"]);
    // Free when the node starts, but for a process that takes it in between.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let address = free.to_string();
    let file = |name: &str| format!("{:?}", ca.path(name));
    let node = Node::started(&format!(
        "[api]\nlisten = {address:?}\ncertificate = {}\nkey = {}\nclient_ca = {}\nrevoked = {}\n\
         [[port]]\nname = \"lan\"\ndevice = \"memory0\"\n[[tenant]]\nname = \"red\"\n",
        file("nodes/127.0.0.1.pem"),
        file("nodes/127.0.0.1.key"),
        file("ca.pem"),
        file("revoked.pem"),
    ));
    for tenant in ["red", "blue"] {
        let echo = Manifest::of(tenant).module("echo", &build::sample("icmp-echo")).chain("echo", "echo", "");
        node.apply(echo.text());
    }
    let ca_file = ca.path("ca.pem");
    let ask = |identity: &[PathBuf]| asked(&address, &ca_file, identity);

    let nothing = "all UNAVAILABLE\nblue UNAVAILABLE\napply UNAVAILABLE\n";
    assert_eq!(ask(&[]), nothing, "no certificate");
    let admin = ca.person("red", "admin", &["--role", "admin"]);
    assert_eq!(ask(&admin), "all ['red']\nblue PERMISSION_DENIED\napply True\n");
    let viewer = ca.person("red", "viewer", &["--role", "viewer"]);
    assert_eq!(ask(&viewer), "all ['red']\nblue PERMISSION_DENIED\napply PERMISSION_DENIED\n");
    ca.cert(&["operator", "olga"]);
    let operator = ["operators/olga.pem", "operators/olga.key"].map(|name| ca.path(name));
    assert_eq!(ask(&operator), "all ['blue', 'red']\nblue 1\napply True\n");

    let expired = ca.person("red", "former", &["--role", "admin", "--not-after", "2020-01-01T00:00:00Z"]);
    assert_eq!(ask(&expired), nothing, "expired");
    let foreign = other.person("red", "stranger", &["--role", "admin"]);
    assert_eq!(ask(&foreign), nothing, "of another authority");
    ca.cert(&["revoke", admin[0].to_str().expect("a path in UTF-8")]);
    until("effect of the list of revoked certificates", SOON, || (ask(&admin) == nothing).then_some(()));
    assert_eq!(ask(&viewer), "all ['red']\nblue PERMISSION_DENIED\napply PERMISSION_DENIED\n");
    for reason in ["expired", "UnknownIssuer", "revoked"] {
        let log = node.log().to_lowercase();
        assert!(log.contains(&reason.to_lowercase()), "no {reason} in {log}");
    }
}
