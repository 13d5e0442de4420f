//! `tcp-echo`, which blocks as a program on a host does, with the kernel's TCP.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use pinion_tests::machine::process::run;
use pinion_tests::network::bed::{Bed, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};
use rustix::net::{SendFlags, send, sockopt};
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
        let sent: Vec<u8> = pattern(BYTES).into_iter().map(|byte| byte ^ number as u8).collect();
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
        let all: Vec<Value> = serde_json::from_str(&bed.node.cli().run(&["metrics", "-A", "-o", "json"])).unwrap();
        all.iter().find(|metric| metric["name"] == name)?["value"]["counter"].as_u64()
    };
    until("count of all connections and bytes", SOON, || {
        let counted = [counter("tcp_echo_connections"), counter("tcp_echo_bytes")];
        (counted == [Some(6), Some(6 * BYTES as u64)]).then_some(())
    });
}

/// Connects a client of a bed to the function.
fn connect(bed: &Bed) -> TcpStream {
    let server: SocketAddr = format!("{NODE}:7").parse().unwrap();
    let stream = bed.clients[0].namespace.inside(|| TcpStream::connect(server)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Returns a counter of the client's kernel, by its name in `nstat`.
fn counter(bed: &Bed, name: &str) -> u64 {
    bed.clients[0].namespace.counters().get(name).copied().unwrap_or(0)
}

/// Waits until such a counter has reached this value.
#[track_caller]
fn await_counter(bed: &Bed, name: &str, least: u64) {
    until(name, SOON, || (counter(bed, name) >= least).then_some(()));
}

/// Makes the client's kernel send RST instead of FIN.
fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Returns bytes in which a lost or a doubled part shows.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 9)) as u8).collect()
}

#[track_caller]
fn assert_echoes(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut echoed = vec![0; bytes.len()];
    stream.read_exact(&mut echoed).unwrap();
    assert!(echoed == bytes);
}

#[test]
fn a_byte_that_a_kernel_sends_as_urgent_is_echoed_like_the_others() {
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-client").text());
    let mut stream = connect(&bed);
    for _ in 0..3 {
        stream.write_all(b"ab").unwrap();
        send(&stream, b"c", SendFlags::OOB).unwrap();
        stream.write_all(b"de").unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(&echoed, b"abcde");
    }
}

/// A client's window is closed while nothing reads, and then the function's, which waits until it can write.
#[test]
fn a_client_that_closes_its_window_gets_everything_once_it_opens_it() {
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-client").text());
    let mut stream = connect(&bed);
    let sent = pattern(BYTES);
    let mut received = Vec::new();
    thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        await_counter(&bed, "TcpExtTCPToZeroWindowAdv", 1);
        // The function's probes have a byte that the kernel does not take. One of these counts them, by the kernel's version.
        until("probes of the function", SOON, || {
            let probes = ["TcpExtTCPZeroWindowDrop", "TcpExtBeyondWindow"].map(|name| counter(&bed, name));
            (probes.iter().sum::<u64>() >= 2).then_some(())
        });
        await_counter(&bed, "TcpExtTCPWinProbe", 2);
        stream.read_to_end(&mut received).unwrap();
    });
    assert!(received == sent, "{} bytes came back", received.len());
}

#[test]
fn a_kernels_reset_ends_the_connections_instance_and_is_no_failure() {
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-flow").text());
    let mut stream = connect(&bed);
    assert_echoes(&mut stream, b"hello");
    let client = format!("tcp {} -> {NODE}:7", stream.local_addr().unwrap());
    reset(stream);
    let ended = until("end of the instance", SOON, || {
        let instance = bed.node.cli().get("instances").into_iter().find(|instance| instance["client"] == client)?;
        instance["ended_because"].as_str().map(str::to_owned)
    });
    assert_eq!(ended, "its TCP connection ended");
    assert_eq!(bed.node.cli().chain_status(TENANT, "echo")["failures"], 0);
}

#[test]
fn a_function_whose_writes_wait_for_a_client_learns_of_its_reset_and_serves_the_next_connection() {
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-client").text());
    let mut stream = connect(&bed);
    assert_echoes(&mut stream, b"hello");
    stream.set_nonblocking(true).unwrap();
    until("closed window", SOON, || {
        while stream.write(&[b'x'; 4096]).is_ok() {}
        (counter(&bed, "TcpExtTCPToZeroWindowAdv") > 0).then_some(())
    });
    reset(stream);
    // The function accepts no other connection while it has this one.
    assert_echoes(&mut connect(&bed), b"hello");
}

#[test]
fn keepalive_probes_of_a_kernel_are_answered_and_change_nothing() {
    /// So many without an answer end a connection.
    const UNANSWERED_MAX: u32 = 3;
    let bed = Bed::new(Device::Tap);
    bed.node.apply(serving("per-client").text());
    let mut stream = connect(&bed);
    assert_echoes(&mut stream, b"before");
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1)).unwrap();
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1)).unwrap();
    sockopt::set_tcp_keepcnt(&stream, UNANSWERED_MAX).unwrap();
    sockopt::set_socket_keepalive(&stream, true).unwrap();
    await_counter(&bed, "TcpExtTCPKeepAlive", u64::from(UNANSWERED_MAX) + 1);
    assert_echoes(&mut stream, b"after");
}
