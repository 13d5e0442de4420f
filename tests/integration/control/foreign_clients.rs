//! A client of the API that is not part of this project: gRPC for Python, on a node's socket.
#![forbid(unsafe_code)]

use std::process::Command;

use pinion_tests::machine::process::run;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::product::node::Node;

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
