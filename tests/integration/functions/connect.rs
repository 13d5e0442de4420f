//! Functions with sockets that connect themselves: to servers of the kernel's, by address and by name.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use pinion_tests::machine::cores::two_cores;
use pinion_tests::network::bed::{Bed, Client, Device, NODE, NODE_V6, TENANT};
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;

/// Where the client tells the function what to do, and where it is relayed.
const TOLD: u16 = 7000;
const RELAYED: u16 = 7001;
const SERVER: u16 = 8000;
/// A port of the granted ones at which there is no server.
const NO_SERVER: u16 = 8001;
const DNS: u16 = 53;
/// An address on the link behind a router that does not find it.
const LOST: &str = "10.77.0.99";

const PATIENCE: Duration = Duration::from_secs(30);

/// A node whose functions may connect to the second client's ports 8000 and 8001 and to its resolver.
fn bed() -> Bed {
    let (first, second) = two_cores();
    let cores = format!("[cores]\ngateway = {first}\nmmas = [{first}]\nworkers = [{second}]\n");
    let tenant = format!("[[tenant]]\nname = \"{TENANT}\"\noutbound_flows = true\n");
    let bed = Bed::with_settings(Device::AfPacket, &[], &(cores + &tenant));
    // A cable's ends leave it to each other to cut long segments, and the node takes none.
    bed.clients.iter().for_each(|client| client.namespace.finish_frames("eth0"));
    let server = &bed.clients[1];
    let mut grants = vec![format!("{{ protocol = \"udp\", to = \"{}\", ports = {DNS} }}", server.address)];
    for to in [&server.address, &server.address_v6, LOST] {
        for protocol in ["tcp", "udp"] {
            grants.push(format!("{{ protocol = \"{protocol}\", to = \"{to}\", ports = \"{SERVER}-{NO_SERVER}\" }}"));
        }
    }
    let outbound = format!("outbound = [{}]\nidle_timeout_ms = 60000\n", grants.join(", "));
    let rule = |name: &str, chain: &str, to: &str, protocol: &str, port: u16| {
        format!(
            "[[rule]]\nname = \"{name}\"\npolicy = \"per-client\"\nchain = \"{chain}\"\n\
             match = {{ destination = \"{to}\", protocol = \"{protocol}\", destination_ports = {port} }}\n"
        )
    };
    let rules = rule("call", "caller", NODE, "udp", TOLD)
        + &rule("call6", "caller", NODE_V6, "udp", TOLD)
        + &rule("relay", "relay", NODE, "tcp", RELAYED);
    let manifest = Manifest::of(TENANT)
        .module("caller", &build::hostile("caller"))
        .module("relay", &build::hostile("relay"))
        .configured_chain("caller", "caller", &format!("{}:{DNS}", server.address))
        .with(&outbound)
        .configured_chain("relay", "relay", &format!("{}:{SERVER}", server.address))
        .with(&outbound)
        .with(rules);
    bed.node.apply(manifest.text());
    bed.node.await_instance(TENANT, "caller");
    bed.node.await_instance(TENANT, "relay");
    bed
}

/// Tells the function something from an address; returns its answer.
fn tell(client: &Client, from: &str, to: &str, what: &str) -> String {
    let socket = client.namespace.inside(|| UdpSocket::bind((from, 0)).expect("a socket"));
    socket.connect((to, TOLD)).expect("an address");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.send(what.as_bytes()).expect("a datagram leaves");
    let mut space = [0; 2048];
    let len = socket.recv(&mut space).unwrap_or_else(|error| panic!("{what:?} has no answer: {error}"));
    String::from_utf8_lossy(&space[..len]).into_owned()
}

/// Serves one TCP connection: answers all that comes until the client closes with the same in capitals. Returns the client's address.
fn serve_tcp(server: &Client, address: &str) -> thread::JoinHandle<SocketAddr> {
    let listener = server.namespace.inside(|| TcpListener::bind((address, SERVER)).expect("a listener"));
    thread::spawn(move || {
        let (mut stream, from) = listener.accept().expect("a connection");
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("the client's text");
        stream.write_all(&text.to_ascii_uppercase()).expect("an answer leaves");
        from
    })
}

fn host(address: &str) -> String {
    if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
}

#[test]
fn a_function_connects_by_tcp_and_asks_by_udp_over_both_versions_of_ip() {
    let bed = bed();
    let [client, far, ..] = &bed.clients[..] else { panic!("a bed has clients") };
    for (from, node, to) in [(&client.address, NODE, &far.address), (&client.address_v6, NODE_V6, &far.address_v6)] {
        let serving = serve_tcp(far, to);
        assert_eq!(tell(client, from, node, &format!("tcp {}:{SERVER} hello", host(to))), "HELLO");
        let peer = serving.join().expect("the server has answered");
        assert_eq!(peer.ip(), node.parse::<IpAddr>().expect("an address"), "the node's own address connects");
        assert!(peer.port() >= 49_152, "{peer}");

        let server = far.namespace.inside(|| UdpSocket::bind((&to[..], SERVER)).expect("a socket"));
        let serving = thread::spawn(move || {
            let mut space = [0; 2048];
            let (len, from) = server.recv_from(&mut space).expect("a question");
            server.send_to(&space[..len].to_ascii_uppercase(), from).expect("an answer leaves");
        });
        assert_eq!(tell(client, from, node, &format!("udp {}:{SERVER} hello", host(to))), "HELLO");
        serving.join().expect("the server has answered");
    }
}

#[test]
fn a_function_learns_why_it_cannot_connect() {
    let bed = bed();
    let [client, far, other] = &bed.clients[..] else { panic!("a bed has clients") };
    // The second client answers for an address behind it, and does not find that.
    far.namespace.inside(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("it becomes a router"));
    for words in [
        "link add void type veth peer name void-far".into(),
        "link set void up".into(),
        "link set void-far up".into(),
        format!("route add {LOST}/32 dev void"),
        format!("neighbor add proxy {LOST} dev eth0"),
    ] {
        far.namespace.ip(&words);
    }
    let told = |what: String| tell(client, &client.address, NODE, &what);
    assert_eq!(told(format!("tcp {}:{NO_SERVER} hello", far.address)), "ConnectionRefused");
    assert_eq!(told(format!("udp {}:{NO_SERVER} hello", far.address)), "ConnectionRefused");
    assert_eq!(told(format!("tcp {}:{SERVER} hello", other.address)), "PermissionDenied", "it is not granted");
    assert_eq!(told(format!("tcp {LOST}:{SERVER} hello")), "HostUnreachable");
    assert_eq!(told(format!("udp {LOST}:{SERVER} hello")), "HostUnreachable");
}

/// Answers so many queries about `www.pinion.test`: with an alias, and its addresses of both versions.
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
    const NAME: &[u8] = b"\x03www\x06pinion\x04test\x00";
    const ALIAS: &[u8] = b"\x06server\x06pinion\x04test\x00";
    let question = &query[12..][..NAME.len() + 4];
    assert_eq!(&question[..NAME.len()], NAME);
    // A or AAAA.
    let kind = question[NAME.len() + 1];
    let is_v4 = kind == 1;
    let data: &[u8] = if is_v4 { &[10, 77, 0, 12] } else { &[0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12] };
    let record =
        |name: &[u8], kind: u8, data: &[u8]| [name, &[0, kind, 0, 1, 0, 0, 0, 60, 0, data.len() as u8], data].concat();
    let records = [record(&[0xc0, 12], 5, ALIAS), record(ALIAS, kind, data)];
    [&query[..2], &[0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0], question, &records.concat()].concat()
}

#[test]
fn a_function_looks_up_a_name_by_a_real_resolver() {
    let bed = bed();
    let [client, far, ..] = &bed.clients[..] else { panic!("a bed has clients") };
    let serving = serve_dns(far, 2);
    for _ in 0..2 {
        let answer = tell(client, &client.address, NODE, "name www.pinion.test");
        assert_eq!(answer, "[10.77.0.12] [fd77::12]", "the second time from what was kept");
    }
    serving.join().expect("the resolver was asked twice");
}

#[test]
fn a_relay_passes_connections_on_both_ways_and_their_ends() {
    let bed = bed();
    let [client, far, ..] = &bed.clients[..] else { panic!("a bed has clients") };
    let connect = || client.namespace.inside(|| TcpStream::connect((NODE, RELAYED)).expect("a connection"));

    let serving = serve_tcp(far, &far.address);
    let mut stream = connect();
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let text: Vec<u8> = (0..1_000_000).map(|at: u32| b'a' + (at ^ at >> 8) as u8 % 26).collect();
    let mut sending = stream.try_clone().expect("the same connection");
    let sent = text.clone();
    let writing = thread::spawn(move || {
        sending.write_all(&sent).expect("the text leaves");
        sending.shutdown(Shutdown::Write).expect("its end leaves");
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server's answer");
    assert!(answer == text.to_ascii_uppercase(), "{} bytes", answer.len());
    writing.join().expect("the text has left");
    serving.join().expect("the server has answered");

    // Without a server the client's connection is reset.
    let mut stream = connect();
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let error = stream.read(&mut [0]).expect_err("the connection is reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}
