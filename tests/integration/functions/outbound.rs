//! Functions that open flows themselves, to hosts that they ask for their clients.
#![forbid(unsafe_code)]

use std::net::UdpSocket;
use std::time::Duration;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::network::bed::{Bed, Client, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};

/// Where the clients ask the node.
const ASKED: u16 = 7000;
const SERVER: u16 = 5353;
/// A port of the granted ones at which no server listens.
const NO_SERVER: u16 = 5354;

/// A node whose tenant may open flows, to the second client's UDP ports 5353 and 5354.
fn bed(idle_timeout_ms: u32) -> Bed {
    let (first, second) = two_cores();
    let cores = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n");
    let tenant = format!("[[tenant]]\nname = \"{TENANT}\"\noutbound_flows = true\n");
    let bed = Bed::with_settings(Device::AfPacket, &[], &(cores + &tenant));
    let server = &bed.clients[1];
    let ports = format!("ports = \"{SERVER}-{NO_SERVER}\"");
    let outbound = [&server.address, &server.address_v6]
        .map(|address| format!("{{ protocol = \"udp\", to = \"{address}\", {ports} }}"))
        .join(", ");
    let rule = |name: &str, to: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"per-client\"\nchain = \"asker\"\n\
             match = {{ destination = \"{to}\", protocol = \"udp\", destination_ports = {ASKED} }}\n"
        )
    };
    let manifest = Manifest::of(TENANT)
        .module("asker", &build::hostile("asker"))
        .chain("asker", "asker", &format!("outbound = [{outbound}]\nidle_timeout_ms = {idle_timeout_ms}"))
        .with(rule("ipv4", NODE) + &rule("ipv6", NODE_V6));
    bed.node.apply(manifest.text());
    bed.node.await_instance(TENANT, "asker");
    bed
}

/// Asks the node from an address; returns what it answers.
fn ask(client: &Client, from: &str, to: &str, text: &str) -> String {
    let socket = client.namespace.inside(|| UdpSocket::bind((from, 0)).expect("a socket"));
    socket.connect((to, ASKED)).expect("an address");
    say(&socket, text)
}

fn say(socket: &UdpSocket, text: &str) -> String {
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    socket.send(text.as_bytes()).expect("a datagram leaves");
    let mut space = [0; 2048];
    let len = socket.recv(&mut space).unwrap_or_else(|error| panic!("{text:?} has no answer: {error}"));
    String::from_utf8_lossy(&space[..len]).into_owned()
}

/// Takes one datagram and answers it, with what was asked in front. Returns the address that asked.
fn serve_one(server: &UdpSocket) -> std::net::SocketAddr {
    let mut space = [0; 2048];
    let (len, from) = server.recv_from(&mut space).expect("a question");
    let answer = [b"answer to ", &space[..len]].concat();
    server.send_to(&answer, from).expect("an answer leaves");
    from
}

fn server(client: &Client, address: &str) -> UdpSocket {
    let server = client.namespace.inside(|| UdpSocket::bind((address, SERVER)).expect("a socket"));
    server.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    server
}

#[test]
fn a_function_asks_a_server_and_passes_its_answer_on_by_ipv4_and_ipv6() {
    let bed = bed(30_000);
    let [client, far, ..] = &bed.clients[..] else { panic!("a bed has clients") };
    for (from, node, to) in [(&client.address, NODE, &far.address), (&client.address_v6, NODE_V6, &far.address_v6)] {
        let server = server(far, to);
        let serving = std::thread::spawn(move || serve_one(&server));
        let host = if to.contains(':') { format!("[{to}]") } else { to.clone() };
        assert_eq!(ask(client, from, node, &format!("{host}:{SERVER} who?")), "answer to who?");
        let asker = serving.join().expect("the server has answered");
        assert_eq!(asker.ip().to_string(), node, "the node's own address asks");
        assert!(asker.port() >= 49_152, "{asker}");
    }
}

#[test]
fn what_is_not_granted_is_refused_and_quotas_end_what_is() {
    let bed = bed(30_000);
    let [client, far, other] = &bed.clients[..] else { panic!("a bed has clients") };
    for to in [format!("{}:{SERVER}", other.address), format!("{}:80", far.address), "192.0.2.1:5353".into()] {
        assert_eq!(ask(client, &client.address, NODE, &format!("{to} who?")), "refused: NotGranted", "{to}");
    }
    let many = format!("many {}:{SERVER}", far.address);
    assert_eq!(ask(client, &client.address, NODE, &many), "refused after 1024: Quota");
    let server = server(far, &far.address);
    let serving = std::thread::spawn(move || serve_one(&server));
    let answer = ask(other, &other.address, NODE, &format!("{}:{SERVER} who?", far.address));
    assert_eq!(answer, "answer to who?", "another instance has flows of its own");
    serving.join().expect("the server has answered");
}

#[test]
fn an_icmp_error_about_what_it_has_sent_reaches_the_function() {
    let bed = bed(30_000);
    let [client, far, ..] = &bed.clients[..] else { panic!("a bed has clients") };
    for (from, node, to) in [
        (&client.address, NODE, format!("{}:{NO_SERVER}", far.address)),
        (&client.address_v6, NODE_V6, format!("[{}]:{NO_SERVER}", far.address_v6)),
    ] {
        assert_eq!(ask(client, from, node, &format!("{to} who?")), "error", "{to}");
    }
}

#[test]
fn an_answer_after_the_end_of_the_flow_or_its_instance_is_dropped_and_counted() {
    let bed = bed(500);
    let [client, far, ..] = &bed.clients[..] else { panic!("a bed has clients") };
    let server = server(far, &far.address);
    let socket = client.namespace.inside(|| UdpSocket::bind((&client.address[..], 0)).expect("a socket"));
    socket.connect((NODE, ASKED)).expect("an address");
    let question = format!("{}:{SERVER} who?", far.address);
    let mut space = [0; 64];

    socket.send(question.as_bytes()).expect("a datagram leaves");
    let (_, from) = server.recv_from(&mut space).expect("a question");
    assert_eq!(say(&socket, "close"), "closed: ByGuest");
    server.send_to(b"late", from).expect("a datagram leaves");
    until("drop of what is late", SOON, || (bed.node.cli().drops("flow-closed") == 1).then_some(()));

    socket.send(question.as_bytes()).expect("a datagram leaves");
    let (_, from) = server.recv_from(&mut space).expect("a question");
    until("end of the instance", SOON, || bed.node.cli().serving_fwps().is_empty().then_some(()));
    server.send_to(b"later", from).expect("a datagram leaves");
    until("drop of what is late", SOON, || (bed.node.cli().drops("flow-closed") == 2).then_some(()));
    assert!(bed.node.cli().serving_fwps().is_empty(), "it is no reason for another instance");
}
