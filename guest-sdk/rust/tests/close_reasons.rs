//! How owners of connections learn why these have ended.
#![cfg(feature = "net")]

mod callers;
mod segments;

use std::io::{Read, Write};
use std::net::SocketAddr;

use callers::{SECOND_NS, SERVER, at};
use pinion_sdk::InitError;
use pinion_sdk::net::testing::{Client, Network, Towards};
use pinion_sdk::net::{ConnectError, Datagram, Server, Service, Settings, Sockets, Stream, StreamId};
use pinion_sdk::outbound::End;
use pinion_sdk::testing::Frame;

const IDLE_NS: u64 = 60 * SECOND_NS;
const SEND_NS: u64 = 20 * SECOND_NS;
const SERVICE: &str = "10.0.0.2:7";

/// Writes down why its connections end, with the kinds of the errors of a read and a write. Fills what a peer that has sent something takes.
#[derive(Default)]
struct Mourner {
    ends: Vec<String>,
    known: Vec<StreamId>,
}

impl Service for Mourner {
    type Connection = bool;

    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        let (idle_timeout_ns, send_timeout_ns) = (IDLE_NS, Some(SEND_NS));
        let settings = Settings {
            tcp_ports: vec![7],
            udp_ports: vec![9],
            idle_timeout_ns,
            send_timeout_ns,
            ..Settings::default()
        };
        Ok((Self::default(), settings))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> bool {
        self.known.push(stream.id());
        assert_eq!(stream.close_reason(), None);
        false
    }

    fn connected(&mut self, _id: StreamId, stream: &mut Stream<'_>) -> Option<bool> {
        Some(self.accept(stream))
    }

    fn connect_failed(&mut self, _id: StreamId, error: ConnectError, _sockets: Sockets<'_>) {
        panic!("{error}");
    }

    fn ready(&mut self, fills: &mut bool, stream: &mut Stream<'_>) {
        *fills |= matches!(stream.read(&mut [0; 100]), Ok(1..));
        if *fills {
            while matches!(stream.write(&[7; 4096]), Ok(1..)) {}
        }
        let Some(reason) = stream.close_reason() else { return };
        let kind = |result: std::io::Result<usize>| match result {
            Ok(count) => count.to_string(),
            Err(error) => format!("{:?}", error.kind()),
        };
        let (read, write) = (kind(stream.read(&mut [0; 100])), kind(stream.write(b"x")));
        self.ends.push(format!("{reason:?} {read} {write}"));
        stream.close();
    }

    fn datagram(&mut self, datagram: Datagram<'_>, mut sockets: Sockets<'_>) {
        match datagram.payload() {
            b"abort" => self.known.iter().for_each(|id| sockets.abort(*id)),
            _ => _ = sockets.connect(at(SERVER)).unwrap(),
        }
    }
}

type Mourners = Network<Server<Mourner>>;

fn connected() -> (Mourners, Client) {
    let mut network = Mourners::new(b"").unwrap();
    let client = network.connect_with_window("10.0.0.1".parse().unwrap(), at(SERVICE), 5_000);
    network.settle();
    assert!(network.is_connected(client));
    (network, client)
}

fn tell(network: &mut Mourners, what: &[u8]) {
    network.ask("10.0.0.1:5000".parse().unwrap(), at("10.0.0.2:9"), what);
    network.settle();
}

fn ends(network: &mut Mourners) -> Vec<String> {
    std::mem::take(&mut network.harness.function().service().ends)
}

#[test]
fn a_peer_that_closes_is_told_from_one_that_resets() {
    let (mut network, client) = connected();
    network.close(client);
    network.settle();
    assert_eq!(ends(&mut network), ["ByPeer 0 1"]);

    let (mut network, client) = connected();
    network.abort(client);
    network.settle();
    assert_eq!(ends(&mut network), ["Reset ConnectionReset ConnectionReset"]);
}

#[test]
fn a_silent_peer_is_told_from_one_that_takes_nothing() {
    let (mut network, _) = connected();
    network.let_pass_ns(IDLE_NS + SECOND_NS);
    assert_eq!(ends(&mut network), ["Idle TimedOut TimedOut"]);

    let (mut network, client) = connected();
    network.send(client, b"more, please");
    network.let_pass_ns(SEND_NS + 2 * SECOND_NS);
    assert_eq!(ends(&mut network), ["SendTimeout TimedOut TimedOut"]);
}

#[test]
fn a_peer_that_cannot_be_reached_is_told_from_a_silent_one() {
    let (mut network, client) = connected();
    let last = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let kept = std::rc::Rc::clone(&last);
    network.send(client, b"more, please");
    // The client's request arrives, and nothing after it.
    let mut has_asked = false;
    network.impair(move |towards, frames| {
        if towards == Towards::Function {
            return if std::mem::replace(&mut has_asked, true) { Vec::new() } else { frames };
        }
        let with_data = frames.into_iter().find(|frame| frame.len() > 1000);
        with_data.into_iter().for_each(|frame| *kept.borrow_mut() = frame);
        Vec::new()
    });
    network.let_pass_ns(2 * SECOND_NS);
    let about = segments::read(&last.borrow());
    assert!(!about.payload.is_empty());
    let (service, client): (SocketAddr, SocketAddr) = (at(SERVICE), "10.0.0.1:49152".parse().unwrap());
    let lost = Frame::tcp(service, client).sequence(about.seq).payload(&about.payload);
    let report = Frame::unreachable("10.0.9.9".parse::<std::net::IpAddr>().unwrap(), &lost);
    network.deliver(&report.bytes());
    assert!(ends(&mut network).is_empty(), "routes come and go");
    network.let_pass_ns(SEND_NS);
    assert_eq!(ends(&mut network), ["Unreachable HostUnreachable HostUnreachable"]);
}

#[test]
fn what_the_function_aborts_and_what_the_node_ends_are_told_apart() {
    let (mut network, client) = connected();
    tell(&mut network, b"abort");
    assert_eq!(ends(&mut network), ["Aborted ConnectionAborted ConnectionAborted"]);
    assert!(network.is_closed(client), "the peer gets a reset");

    let mut network = Mourners::new(b"").unwrap();
    network.listen(at(SERVER));
    tell(&mut network, b"connect");
    let number = network.node.open()[0].number;
    network.end_flow(number, End::NotGranted);
    assert_eq!(ends(&mut network), ["FlowEnded(NotGranted) ConnectionAborted ConnectionAborted"]);
}
