//! How chain instances end without a fault: when the connection that they serve ends, or when their function finishes.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use pinion_tests::network::bed::{Bed, Device, NODE, TENANT};
use pinion_tests::network::inline::Inline;
use pinion_tests::product::build;
use pinion_tests::product::manifest::Manifest;
use pinion_tests::until::{SOON, until};
use rustix::net::sockopt::{set_socket_linger, set_socket_reuseaddr};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde_json::Value;

const CLIENT: &str = "10.78.0.1";
/// A chain's instances end within this time after their connections; the chain's idle timeout is 300 s.
const A_FEW_SECONDS: Duration = Duration::from_secs(4);
const OF_CONNECTION: &str = "its TCP connection ended";

/// Configures the node so that every TCP flow passes an instance of its own, which leaves frames unchanged.
fn pass_each_flow(inline: &Inline) {
    let mut manifest = Manifest::of(TENANT).module("macswap", &build::sample("macswap"));
    for (from, to) in [("lan", "wan"), ("wan", "lan")] {
        manifest = manifest.with(format_args!(
            "[[chain]]\nname = \"to-{to}\"\nstage = [{{ module = \"macswap\" }}, {{ module = \"macswap\" }}]\n\
             egress = \"{to}\"\ncache_min = 16\n\
             [[rule]]\nname = \"from-{from}\"\npolicy = \"per-flow\"\nchain = \"to-{to}\"\n\
             match = {{ port = \"{from}\", protocol = \"tcp\" }}\n"
        ));
    }
    inline.node.apply(manifest.text());
}

/// Both ends of a connection.
struct Connection {
    near: TcpStream,
    far: TcpStream,
}

impl Connection {
    fn new(inline: &Inline, listener: &TcpListener) -> Self {
        Self::from_port(inline, listener, 0)
    }

    /// Connects from this port of the client; with 0, from any.
    fn from_port(inline: &Inline, listener: &TcpListener, port: u16) -> Self {
        let client: IpAddr = CLIENT.parse().unwrap();
        let server = listener.local_addr().unwrap();
        let near = inline.left.namespace.inside(|| {
            // The port is not free until the last segment of an earlier connection from it was answered.
            until("connection through the node", SOON, || {
                let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
                set_socket_reuseaddr(&socket, true).unwrap();
                bind(&socket, &SocketAddr::from((client, port))).unwrap();
                connect(&socket, &server).is_ok().then(|| TcpStream::from(socket))
            })
        });
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(SOON)).unwrap();
        }
        let mut connection = Self { near, far };
        connection.assert_works();
        connection
    }

    fn assert_works(&mut self) {
        for (from, to) in [(&self.near, &self.far), (&self.far, &self.near)] {
            let (mut from, mut to, mut heard) = (from, to, [0; 5]);
            from.write_all(b"hello").unwrap();
            to.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"hello");
        }
    }

    /// Returns the node's name for the flow from the client.
    fn flow(&self) -> String {
        format!("tcp {} -> {}", self.near.local_addr().unwrap(), self.near.peer_addr().unwrap())
    }

    /// Makes the client's kernel send RST instead of FIN.
    fn reset(self) {
        set_socket_linger(&self.near, Some(Duration::ZERO)).unwrap();
        drop(self.near);
        let mut far = &self.far;
        assert!(far.read(&mut [0]).is_err(), "it was not reset");
    }

    /// Closes the server's end first, so that the client's port is free at once.
    fn close_far_end_first(self) {
        let Self { mut near, far } = self;
        drop(far);
        assert_eq!(near.read(&mut [0]).unwrap(), 0);
    }
}

fn instances_of(node: &pinion_tests::product::node::Node, client: &str) -> Vec<Value> {
    node.cli().get("instances").into_iter().filter(|instance| instance["client"] == client).collect()
}

/// Returns all instances that the client of a flow has had, once the latest of them is listed with that client.
fn known_instances_of(node: &pinion_tests::product::node::Node, client: &str, number: usize) -> Vec<Value> {
    until("instance of the connection", SOON, || {
        let instances = instances_of(node, client);
        (instances.len() >= number).then_some(instances)
    })
}

fn listener(inline: &Inline) -> TcpListener {
    let address: IpAddr = inline.right.address.parse().unwrap();
    inline.right.namespace.inside(|| TcpListener::bind((address, 0))).unwrap()
}

/// Waits until the only instance of each of these flows has ended with its connection.
fn assert_end_with_their_connections(inline: &Inline, flows: &[String]) {
    let is_over = |instance: &Value| instance["ended_because"] == OF_CONNECTION;
    until("end of all instances of connections that ended", A_FEW_SECONDS, || {
        let instances = inline.node.cli().get("instances");
        let of = |flow: &String| instances.iter().filter(|instance| instance["client"] == flow.as_str()).collect();
        let has_ended = |instances: Vec<&Value>| !instances.is_empty() && instances.into_iter().all(is_over);
        flows.iter().map(of).all(has_ended).then_some(())
    });
    for flow in flows {
        let instances = instances_of(&inline.node, flow);
        assert_eq!(instances.len(), 1, "instances of {flow}: {instances:?}");
    }
}

#[test]
fn instances_of_closed_and_reset_connections_go_within_seconds_and_those_of_open_ones_stay() {
    let inline = Inline::new(Device::AfPacket);
    pass_each_flow(&inline);
    let listener = listener(&inline);
    let mut open = Connection::new(&inline, &listener);
    let of_open = known_instances_of(&inline.node, &open.flow(), 1);
    let closed: Vec<_> = (0..8).map(|_| Connection::new(&inline, &listener)).collect();
    let reset: Vec<_> = (0..8).map(|_| Connection::new(&inline, &listener)).collect();
    let flows: Vec<_> = closed.iter().chain(&reset).map(Connection::flow).collect();
    let way_back = |flow: &String| {
        let (from, to) = flow.strip_prefix("tcp ").and_then(|flow| flow.split_once(" -> ")).expect("a flow");
        format!("tcp {to} -> {from}")
    };
    let ways_back: Vec<_> = flows[..closed.len()].iter().map(way_back).collect();
    drop(closed);
    reset.into_iter().for_each(Connection::reset);
    // The host that is reset sends nothing more, so of these connections only the client's direction ends.
    assert_end_with_their_connections(&inline, &[flows, ways_back].concat());

    open.assert_works();
    let still = instances_of(&inline.node, &open.flow());
    assert_eq!((still.len(), &still[0]["id"], &still[0]["ended_because"]), (1, &of_open[0]["id"], &Value::Null));
    for chain in ["to-wan", "to-lan"] {
        assert_eq!(inline.node.cli().chain_status(TENANT, chain)["failures"], 0);
    }
}

#[test]
fn a_port_that_is_used_again_at_once_meets_a_new_instance() {
    const PORT: u16 = 45_000;
    let inline = Inline::new(Device::AfPacket);
    pass_each_flow(&inline);
    let listener = listener(&inline);
    for number in 1..=5 {
        let connection = Connection::from_port(&inline, &listener, PORT);
        let instances = known_instances_of(&inline.node, &connection.flow(), number);
        let serving: Vec<_> = instances.iter().filter(|instance| instance["ended_because"].is_null()).collect();
        assert_eq!((instances.len(), serving.len()), (number, 1), "{instances:?}");
        connection.close_far_end_first();
    }
}

#[test]
fn a_function_that_finishes_has_answered_and_its_client_gets_another_instance() {
    const ROUNDS: usize = 20;
    let bed = Bed::new(Device::AfPacket);
    let manifest = Manifest::of(TENANT).module("udp-echo", &build::sample("udp-echo"));
    let manifest = manifest.configured_chain("echo", "udp-echo", "once").with(format_args!(
        "[[rule]]\nname = \"echo\"\npolicy = \"per-client\"\nchain = \"echo\"\n\
         match = {{ destination = \"{NODE}\", protocol = \"udp\" }}\n"
    ));
    bed.node.apply(manifest.text());
    let client = &bed.clients[0];
    client.namespace.finish_frames("eth0");
    let socket = client.namespace.inside(|| UdpSocket::bind((client.address.as_str(), 0))).unwrap();
    socket.connect((NODE, 7)).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let finished = |instance: &Value| instance["ended_because"] == "its run function returned";
    for round in 1..=ROUNDS {
        let asked = format!("round {round}");
        socket.send(asked.as_bytes()).unwrap();
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer).expect("what a function has sent before it is done goes out");
        assert_eq!(&answer[..len], asked.as_bytes());
        until("instance that finished", SOON, || {
            let instances = instances_of(&bed.node, &client.address);
            (instances.len() == round && instances.iter().all(finished)).then_some(())
        });
    }
    let status = bed.node.cli().chain_status(TENANT, "echo");
    assert_eq!((&status["failures"], &status["drops"]), (&0.into(), &Value::Array(Vec::new())), "{status}");
}
