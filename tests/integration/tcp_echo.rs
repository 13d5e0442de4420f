//! `tcp-echo`, which waits as a program on a host does, and the kernel's TCP.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;

use pinion_tests::bed::{Bed, Device, NODE, NODE_V6, TENANT};
use pinion_tests::build;
use pinion_tests::manifest::Manifest;
use pinion_tests::until::SOON;

const BYTES: usize = 1 << 20;

#[test]
fn each_connection_has_an_instance_that_waits_for_it_alone() {
    let bed = Bed::new(Device::Tap);
    let mut manifest =
        Manifest::of(TENANT).module("tcp-echo", &build::sample("tcp-echo")).chain("echo", "tcp-echo", "");
    for (name, destination) in [("echo", NODE), ("echo-v6", NODE_V6)] {
        manifest = manifest.with(format_args!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"per-flow\"\nchain = \"echo\"\n\
             match = {{ destination = \"{destination}\", protocol = \"tcp\", destination_ports = \"7\" }}\n"
        ));
    }
    bed.node.apply(manifest.text());
    let servers: [SocketAddr; 2] = [format!("{NODE}:7"), format!("[{NODE_V6}]:7")].map(|at| at.parse().unwrap());
    // Open all the time: one instance for all would never come to the others.
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
}
