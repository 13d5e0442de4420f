//! Functions in C with sockets, as services of callbacks and as programs that wait, with the kernel's clients and servers at the other end.
#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::machine::process::{errors, run};
use pinion_tests::network::bed::{Bed, Client, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build::{self, workspace};
use pinion_tests::product::manifest::Manifest;
use pinion_tests::traffic::ping::ping;
use pinion_tests::until::{SOON, until};

/// Where a client tells the function what to do.
const TOLD: u16 = 7000;
const SERVER: u16 = 8000;
/// A port of the granted ones at which there is no server.
const NO_SERVER: u16 = 8001;
const DNS: u16 = 53;

const PATIENCE: Duration = Duration::from_secs(30);

/// A node with one shared instance of a C guest, which gets all that comes to the node's addresses and may connect to the second client.
fn bed(guest: &str, config: &str) -> Bed {
    let (first, second) = two_cores();
    let cores = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n");
    let tenant = format!("[[tenant]]\nname = \"{TENANT}\"\noutbound_flows = true\n");
    let bed = Bed::with_settings(Device::AfPacket, &[], &(cores + &tenant));
    // A cable's ends leave it to each other to cut long segments, and the node takes none.
    bed.clients.iter().for_each(|client| client.namespace.finish_frames("eth0"));
    let far = &bed.clients[1].address;
    let grant =
        |protocol: &str, ports: &str| format!("{{ protocol = \"{protocol}\", to = \"{far}\", ports = {ports} }}");
    let ports = format!("\"{SERVER}-{NO_SERVER}\"");
    let grants = [grant("udp", &DNS.to_string()), grant("tcp", &ports), grant("udp", &ports)].join(", ");
    let rule = |name: &str, to: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"shared\"\nchain = \"guest\"\nmatch = {{ destination = \"{to}\" }}\n"
        )
    };
    let manifest = Manifest::of(TENANT)
        .module("guest", &build::hostile(guest))
        .configured_chain("guest", "guest", config)
        .with(format_args!("outbound = [{grants}]\nidle_timeout_ms = 60000\n"))
        .with(rule("v4", NODE) + &rule("v6", NODE_V6));
    bed.node.apply(manifest.text());
    bed.node.await_instance(TENANT, "guest");
    bed
}

fn service() -> Bed {
    bed("c_net_service", &format!("10.77.0.12:{DNS}"))
}

fn program(config: &str) -> Bed {
    bed("c_net_program", config)
}

fn connect(client: &Client, to: &str, port: u16) -> TcpStream {
    let stream = client.namespace.inside(|| TcpStream::connect((to, port)).expect("a connection"));
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Returns the first datagram that answers this one.
fn ask(client: &Client, from: &str, to: &str, port: u16, what: &[u8]) -> Vec<u8> {
    let socket = client.namespace.inside(|| UdpSocket::bind((from, 0)).expect("a socket"));
    socket.connect((to, port)).expect("an address");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send(what).expect("a datagram leaves");
    let mut space = [0; 2048];
    let len = socket.recv(&mut space).unwrap_or_else(|error| panic!("{what:?} has no answer: {error}"));
    space[..len].to_vec()
}

/// Tells the function what to do; returns its answer.
fn tell(bed: &Bed, what: &str) -> String {
    let client = &bed.clients[0];
    String::from_utf8(ask(client, &client.address, NODE, TOLD, what.as_bytes())).expect("it is text")
}

fn call(bed: &Bed, payload: &str) -> String {
    bed.node.cli().run(&["invoke", &format!("{TENANT}/guest"), "--data", payload])
}

/// Serves one TCP connection, and one datagram: answers with the same in capitals.
fn serve(server: &Client) -> [thread::JoinHandle<()>; 2] {
    let listener = server.namespace.inside(|| TcpListener::bind((&server.address[..], SERVER)).expect("a listener"));
    let socket = server.namespace.inside(|| UdpSocket::bind((&server.address[..], SERVER)).expect("a socket"));
    let by_tcp = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("the client's text");
        stream.write_all(&text.to_ascii_uppercase()).expect("an answer leaves");
    });
    let by_udp = thread::spawn(move || {
        let mut space = [0; 2048];
        let (len, from) = socket.recv_from(&mut space).expect("a question");
        socket.send_to(&space[..len].to_ascii_uppercase(), from).expect("an answer leaves");
    });
    [by_tcp, by_udp]
}

/// Answers so many queries, whatever name they ask for, with one address of their version.
fn serve_dns(server: &Client, queries: usize) -> thread::JoinHandle<()> {
    let socket = server.namespace.inside(|| UdpSocket::bind((&server.address[..], DNS)).expect("a socket"));
    thread::spawn(move || {
        for _ in 0..queries {
            let mut query = [0; 512];
            let (_, from) = socket.recv_from(&mut query).expect("a query");
            socket.send_to(&dns_answer(&query), from).expect("an answer leaves");
        }
    })
}

fn dns_answer(query: &[u8]) -> Vec<u8> {
    let name = query[12..].iter().position(|byte| *byte == 0).expect("a name ends") + 1;
    let question = &query[12..12 + name + 4];
    // A or AAAA.
    let kind = question[name + 1];
    let data: &[u8] =
        if kind == 1 { &[10, 77, 0, 99] } else { &[0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x99] };
    let record = [&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8], data].concat();
    [&query[..2], &[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0], question, &record].concat()
}

/// Sends so much at once that it does not fit into any buffer, and checks that all of it comes back.
fn assert_echoes(mut stream: TcpStream) {
    let text: Vec<u8> = (0..1_000_000).map(|at: u32| (at ^ at >> 8) as u8).collect();
    let mut sending = stream.try_clone().expect("the same connection");
    let sent = text.clone();
    let writing = thread::spawn(move || {
        sending.write_all(&sent).expect("the text leaves");
        sending.shutdown(Shutdown::Write).expect("its end leaves");
    });
    let mut echoed = Vec::new();
    stream.read_to_end(&mut echoed).expect("the echo");
    writing.join().expect("the text has left");
    assert!(echoed == text, "{} bytes", echoed.len());
}

/// Ends a connection by a reset.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("a socket option");
}

#[test]
fn a_service_echoes_by_tcp_and_udp_over_both_versions_of_ip() {
    let bed = service();
    let client = &bed.clients[0];
    for (from, to) in [(&client.address, NODE), (&client.address_v6, NODE_V6)] {
        assert_echoes(connect(client, to, 7));
        assert_eq!(ask(client, from, to, 7, b"hello"), b"hello");
        assert_eq!(ask(client, from, to, 7, &[7; 1400]), [7; 1400]);
    }
}

#[test]
fn a_service_has_many_connections_at_once() {
    let bed = service();
    let mut streams: Vec<_> =
        bed.clients.iter().flat_map(|client| [connect(client, NODE, 7), connect(client, NODE, 7)]).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&[number as u8]).expect("it is sent");
    }
    for (number, stream) in streams.iter_mut().enumerate().rev() {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an echo");
        assert_eq!(usize::from(byte[0]), number);
    }
    drop(streams);
    // The state of each connection is freed, once.
    until("the ends of all connections", SOON, || (call(&bed, "ended") == "6").then_some(()));
}

#[test]
fn a_services_timers_are_the_connections_and_its_own() {
    let bed = service();
    let client = &bed.clients[0];
    let mut greeting = String::new();
    connect(client, NODE, 9).read_to_string(&mut greeting).expect("a greeting");
    assert_eq!(greeting, "in time");
    assert_eq!(ask(client, &client.address, NODE, 9, b"later"), b"later");
}

#[test]
fn a_service_learns_why_a_connection_has_ended() {
    let bed = service();
    let client = &bed.clients[0];
    let echoed = |mut stream: TcpStream| {
        stream.write_all(b"x").expect("it is sent");
        stream.read_exact(&mut [0]).expect("an echo");
        stream
    };
    let reason = |expected: &str| until(expected, SOON, || (call(&bed, "reason") == expected).then_some(()));
    assert_eq!(call(&bed, "reason"), "none");
    reset(echoed(connect(client, NODE, 7)));
    reason("reset");
    drop(echoed(connect(client, NODE, 7)));
    reason("by peer");
    let silent = echoed(connect(client, NODE, 7));
    reason("idle");
    let error = { &silent }.read(&mut [0]).expect_err("the connection is reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_service_connects_and_asks_and_looks_names_up() {
    let bed = service();
    let far = &bed.clients[1];
    let serving = serve(far);
    assert_eq!(tell(&bed, &format!("tcp {}:{SERVER} hello", far.address)), "HELLO");
    assert_eq!(tell(&bed, &format!("udp {}:{SERVER} hello", far.address)), "HELLO");
    serving.into_iter().for_each(|thread| thread.join().expect("the server has answered"));
    let answering = serve_dns(far, 1);
    assert_eq!(tell(&bed, "name www.pinion.test"), "10.77.0.99");
    answering.join().expect("the resolver was asked");
    assert_eq!(tell(&bed, &format!("tcp {}:{NO_SERVER} hello", far.address)), "the peer has no socket at this port");
    assert_eq!(tell(&bed, &format!("udp {}:{NO_SERVER} hello", far.address)), "the peer has no socket at this port");
    let other = &bed.clients[2].address;
    assert_eq!(
        tell(&bed, &format!("tcp {other}:{SERVER} hello")),
        "the chain is not granted flows to this destination"
    );
    assert_eq!(tell(&bed, "tcp nowhere hello").split(',').next(), Some("an argument is no valid address"));
}

#[test]
fn what_is_for_no_socket_comes_to_a_service_as_a_packet_or_a_message() {
    let bed = service();
    let client = &bed.clients[0];
    assert_eq!(ping(&client.namespace, &format!("-c 5 -i 0.1 {NODE}")).received, 5, "it answers pings itself");
    assert_eq!(call(&bed, "something"), "there is no case something");
    let refused =
        client.namespace.inside(|| TcpStream::connect((NODE, 8))).expect_err("no socket listens at this port");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "it has refused the packet");
}

#[test]
fn a_service_makes_packets_and_holds_them_and_one_that_is_used_twice_ends_its_instance() {
    let bed = service();
    assert_eq!(call(&bed, "slots"), "ok");
    assert_eq!(call(&bed, "later"), "late");
    assert_eq!(call(&bed, "slots"), "ok");
    let _ = bed.node.cli().output(&["invoke", &format!("{TENANT}/guest"), "--data", "twice"]);
    let log = || bed.node.cli().run(&["logs", "--tenant", TENANT, "--chain", "guest"]);
    until("the end of the instance", SOON, || log().contains("was used after it was sent or dropped").then_some(()));
    assert_eq!(call(&bed, "slots"), "ok", "by the next instance");
}

#[test]
fn misuse_of_sockets_in_a_service_is_a_result_and_nothing_else() {
    let bed = service();
    let client = &bed.clients[0];
    // Before the first packet there is no way by which to ask a resolver.
    assert_eq!(ask(client, &client.address, NODE, 7, b"hello"), b"hello");
    assert_eq!(call(&bed, "misuse"), "ok");
    let mut all = Vec::new();
    connect(client, NODE, 19).read_to_end(&mut all).expect("it closes");
    assert_eq!(call(&bed, "misuse of a connection"), "ok");
    assert_echoes(connect(client, NODE, 7));
}

#[test]
fn a_program_echoes_for_one_client_after_the_other_and_learns_why_each_has_ended() {
    let bed = program("echo");
    let client = &bed.clients[0];
    assert_echoes(connect(client, NODE, 7));
    assert_echoes(connect(client, NODE_V6, 1007));
    let says = |what: &str| {
        until(what, SOON, || {
            let log = bed.node.cli().run(&["logs", "--tenant", TENANT, "--chain", "guest"]);
            log.contains(what).then_some(())
        });
    };
    says("ended: by peer");
    // It returns after each, and the next client gets another instance. One that came just before it ends would be reset.
    until("the end of both instances", SOON, || bed.node.cli().serving_fwps().is_empty().then_some(()));
    let mut stream = connect(client, NODE, 7);
    stream.write_all(b"x").expect("it is sent");
    stream.read_exact(&mut [0]).expect("an echo");
    reset(stream);
    says("ended: reset");
}

#[test]
fn a_program_connects_and_asks_and_looks_names_up_and_sleeps() {
    let bed = program(&format!("ask 10.77.0.12:{DNS}"));
    let far = &bed.clients[1];
    let serving = serve(far);
    assert_eq!(tell(&bed, &format!("tcp {}:{SERVER} hello", far.address)), "HELLO");
    assert_eq!(tell(&bed, &format!("udp {}:{SERVER} hello", far.address)), "HELLO");
    serving.into_iter().for_each(|thread| thread.join().expect("the server has answered"));
    let answering = serve_dns(far, 2);
    assert_eq!(tell(&bed, "name www.pinion.test"), "10.77.0.99 fd77::99 ");
    answering.join().expect("the resolver was asked");
    assert_eq!(tell(&bed, &format!("tcp {}:{NO_SERVER} hello", far.address)), "the peer has no socket at this port");
    assert_eq!(tell(&bed, &format!("udp {}:{NO_SERVER} hello", far.address)), "the peer has no socket at this port");
    assert_eq!(tell(&bed, "sleep"), "slept");
}

#[test]
fn a_program_answers_calls_while_it_waits_and_misuse_of_its_sockets_is_a_result() {
    let bed = program(&format!("ask 10.77.0.12:{DNS}"));
    assert_eq!(call(&bed, "caller"), "hello, caller");
    assert_eq!(tell(&bed, "misuse"), "ok");
    assert_eq!(call(&bed, "caller"), "hello, caller");
}

#[test]
fn a_configuration_or_settings_that_are_not_valid_are_refused_with_the_reason() {
    for (config, reason) in [("nonsense", "neither `echo` nor `ask ADDRESS:PORT`"), ("ask 10.0.0.1", "neither `echo`")]
    {
        let output = Command::new(build::program("pinion"))
            .arg("check")
            .arg(build::hostile("c_net_program"))
            .args(["--config", config])
            .output()
            .expect("pinion can be run");
        assert_eq!(output.status.code(), Some(2));
        let said = errors(&output);
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn a_new_service_in_c_is_built_and_answers_lines() {
    let (first, second) = two_cores();
    let cores = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n");
    let bed = Bed::with_settings(Device::AfPacket, &[], &cores);
    bed.clients.iter().for_each(|client| client.namespace.finish_frames("eth0"));
    let folder = tempfile::tempdir().expect("a folder");
    let pinion = |within: &Path, words: &[&str]| {
        let mut command = Command::new(build::program("pinion"));
        // The library as it was built for the guests.
        command.env("NET_LIBRARY", build::net_library());
        command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").current_dir(within).args(words);
        run(&mut command)
    };
    pinion(folder.path(), &["new", "shout", "--template", "c-service", "--sdk", workspace().to_str().expect("a text")]);
    let made = folder.path().join("shout");
    pinion(&made, &["build"]);
    bed.node.cli().apply(&made.join("pinion.toml"));
    bed.node.await_instance(TENANT, "shout");
    let mut stream = connect(&bed.clients[0], NODE, 7777);
    stream.write_all(b"hello\nwor").expect("it is sent");
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HELLO\n");
    let long = "x".repeat(100_000);
    stream.write_all(format!("ld\n{}\n", "many lines\n".repeat(10_000)).as_bytes()).expect("they are sent");
    let mut heard = vec![0; 6 + 110_000];
    stream.read_exact(&mut heard).expect("all answers");
    assert!(heard.starts_with(b"WORLD\nMANY LINES\n") && heard.ends_with(b"MANY LINES\n"));
    let _ = stream.write_all(long.as_bytes());
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(String::from_utf8_lossy(&rest), "\nerror: a line has at most 1000 bytes\n");
}
