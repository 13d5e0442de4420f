//! `tcp-echo`, which blocks as a program on a host does, with the kernel's TCP.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use pinion_tests::machine::process::run;
use pinion_tests::network::bed::{Bed, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};
use serde_json::Value;

const BYTES: usize = 1 << 20;

/// A chain that echoes at the node's addresses.
fn serving(policy: &str) -> Manifest {
    let mut manifest =
        Manifest::of(TENANT).module("tcp-echo", &build::sample("tcp-echo")).chain("echo", "tcp-echo", "");
    for (name, destination) in [("echo", NODE), ("echo-v6", NODE_V6)] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"{policy}\"\nchain = \"echo\"\n\
             match = {{ destination = \"{destination}\", protocol = \"tcp\", destination_ports = \"7\" }}\n"
        ));
    }
    manifest
}

/// A client that echoes over a connection from a fixed port, drops the connection without FIN or RST, as a restart would, and does it
/// again.
const FORGETFUL: &str = "
import socket, sys
TCP_REPAIR = 19
for word in (b'one', b'two', b'three'):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(('', 40000))
    client.settimeout(60)
    client.connect((sys.argv[1], 7))
    client.sendall(word)
    print(client.recv(100).decode())
    client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    client.close()
";

#[test]
fn a_client_that_forgot_its_connection_is_served_on_the_same_port() {
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-client").text());
    let client = &bed.clients[0];
    let answers = run(client.namespace.command("python3").args(["-c", FORGETFUL, NODE]));
    assert_eq!(answers, "one\ntwo\nthree\n");
}

#[test]
fn each_connection_has_an_instance_that_waits_for_it_alone() {
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-flow").text());
    let servers: [SocketAddr; 2] = [format!("{NODE}:7"), format!("[{NODE_V6}]:7")].map(|at| at.parse().unwrap());
    // All connections stay open, so a single instance for all would never reach the second one.
    let streams: Vec<TcpStream> = bed.clients[0]
        .namespace
        .inside(|| servers.iter().cycle().take(6).map(|at| TcpStream::connect(at).unwrap()).collect());
    for (number, stream) in streams.iter().enumerate() {
        stream.set_read_timeout(Some(SOON)).unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|at| (at ^ (at >> 9) ^ number) as u8).collect();
        let mut received = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                (&*stream).write_all(&sent).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            });
            (&*stream).read_to_end(&mut received).unwrap();
        });
        assert!(received == sent, "connection {number}: {} bytes came back", received.len());
    }
    // The counters of such a program appear like those of any other function.
    let counter = |name: &str| -> Option<u64> {
        let all: Vec<Value> = serde_json::from_str(&bed.node.cli().run(&["metrics", "-o", "json"])).unwrap();
        all.iter().find(|metric| metric["name"] == name)?["value"]["counter"].as_u64()
    };
    until("count of all connections and bytes", SOON, || {
        let counted = [counter("tcp_echo_connections"), counter("tcp_echo_bytes")];
        (counted == [Some(6), Some(6 * BYTES as u64)]).then_some(())
    });
}
