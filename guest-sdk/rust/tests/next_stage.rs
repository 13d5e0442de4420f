//! Connections that a service opens to the chain's next stage, for its clients.
#![cfg(feature = "net")]

mod segments;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_sdk::headers::Headers;
use pinion_sdk::net::testing::{Client, Network, Towards};
use pinion_sdk::net::{ConnectError, Server, Service, Settings, Sockets, Stream, StreamId};
use pinion_sdk::testing::{Outcome, take_log};
use pinion_sdk::{Direction, InitError};
use segments::{RST, SYN, read, segment};

const FRONT_PORT: u16 = 7;
const BACK_PORT: u16 = 80;
/// How many connections the relay has at once.
const PLACES: u16 = 4;
const SECOND_NS: u64 = 1_000_000_000;

/// Passes bytes between each client and the next stage.
struct Relay {
    /// The other end of each connection.
    others: HashMap<StreamId, StreamId>,
    waiting: HashMap<StreamId, Vec<u8>>,
}

impl Service for Relay {
    type Connection = ();

    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        let settings = Settings { tcp_ports: vec![FRONT_PORT], connections_max: PLACES, ..Settings::default() };
        Ok((Self { others: HashMap::new(), waiting: HashMap::new() }, settings))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) {
        match stream.connect_next_stage(BACK_PORT) {
            Ok(inner) => {
                self.others.insert(inner, stream.id());
                self.others.insert(stream.id(), inner);
            }
            Err(error) => {
                pinion_sdk::warn!("{error:?}");
                stream.abort();
            }
        }
    }

    fn connected(&mut self, _id: StreamId, _stream: &mut Stream<'_>) -> Option<()> {
        Some(())
    }

    fn connect_failed(&mut self, id: StreamId, error: ConnectError, mut sockets: Sockets<'_>) {
        pinion_sdk::warn!("{error:?}");
        sockets.abort(self.others[&id]);
    }

    fn ready(&mut self, _connection: &mut (), stream: &mut Stream<'_>) {
        let (this, other) = (stream.id(), self.others[&stream.id()]);
        let mut part = [0; 1000];
        while let Ok(count @ 1..) = stream.read(&mut part) {
            self.waiting.entry(other).or_default().extend_from_slice(&part[..count]);
            stream.wake(other);
        }
        if let Some(waiting) = self.waiting.get_mut(&this)
            && let Ok(count) = stream.write(waiting)
        {
            waiting.drain(..count);
        }
        if stream.close_reason().is_some() {
            stream.sockets().abort(other);
        }
    }
}

type Relays = Network<Server<Relay>>;

fn relays() -> Relays {
    Network::new(b"").unwrap()
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// The relay's address in each version of IP, with this port.
fn fronts(port: u16) -> [SocketAddr; 2] {
    ["10.0.0.2:0", "[fd77::2]:0"].map(|front| (at(front).ip(), port).into())
}

/// A relay with one client, which is connected to the next stage.
fn connected() -> (Relays, Client, Client) {
    let mut network = relays();
    let [front, _] = fronts(FRONT_PORT);
    let back = network.listen_at_next_stage(fronts(BACK_PORT)[0]);
    let client = network.connect(at("10.0.0.1:0").ip(), front);
    network.settle();
    assert!(network.is_connected(back));
    (network, client, back)
}

/// Withholds all frames of one direction from now on; returns those that come.
fn withheld(network: &mut Relays, of: Towards) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keeper = Rc::clone(&kept);
    network.impair(move |towards, frames| {
        if towards != of {
            return frames;
        }
        keeper.borrow_mut().extend(frames);
        Vec::new()
    });
    kept
}

#[test]
fn the_next_stage_is_spoken_to_from_the_clients_address_over_both_versions_of_ip() {
    for (client_at, front, back) in [0, 1].map(|version| {
        let client = ["10.0.0.1", "fd77::1"][version].parse().unwrap();
        (client, fronts(FRONT_PORT)[version], fronts(BACK_PORT)[version])
    }) {
        let mut network = relays();
        let senders = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&senders);
        network.impair(move |towards, frames| {
            let headers = frames.iter().map(|frame| Headers::of(frame).unwrap());
            let inner = headers.filter(|headers| headers.ports.unwrap().destination == BACK_PORT);
            if towards == Towards::Clients {
                seen.borrow_mut().extend(inner.map(|headers| headers.addresses.source()));
            }
            frames
        });
        let server = network.listen_at_next_stage(back);
        let client = network.connect(client_at, front);
        network.send(client, b"question");
        network.settle();
        assert_eq!(network.received(server), b"question");
        network.send(server, b"answer");
        network.settle();
        assert_eq!(network.received(client), b"answer");
        assert!(!senders.borrow().is_empty() && senders.borrow().iter().all(|sender| *sender == client_at));
    }
}

#[test]
fn two_clients_are_two_connections_of_the_next_stage() {
    let mut network = relays();
    let back = fronts(BACK_PORT)[0];
    let servers = [network.listen_at_next_stage(back), network.listen(back)];
    let clients = ["10.0.0.1", "10.0.0.3"].map(|from| {
        let client = network.connect(from.parse().unwrap(), fronts(FRONT_PORT)[0]);
        network.settle();
        network.send(client, from.as_bytes());
        network.settle();
        client
    });
    assert_eq!(servers.map(|server| network.received(server)), [&b"10.0.0.1"[..], b"10.0.0.3"]);
    network.send(servers[1], b"for the second");
    network.settle();
    assert_eq!(clients.map(|client| network.received(client)), [&b""[..], b"for the second"]);
}

#[test]
fn what_a_client_sends_in_the_name_of_the_next_stage_is_not_taken_for_its_answer() {
    let (mut network, client, back) = connected();
    let answers = withheld(&mut network, Towards::Function);
    network.send(back, b"answer");
    network.settle();
    let answer = answers.borrow()[0].clone();
    let verdicts = network.harness.deliver_direction(Direction::Forward, 0, &[&answer]);
    let made: Vec<(Outcome, u8)> =
        verdicts.iter().filter(|it| it.frame.is_none()).map(|it| (it.outcome, read(&it.bytes).flags)).collect();
    assert_eq!(made, [(Outcome::Replied, RST)], "a client gets the answer to a segment of no connection");
    network.settle();
    assert_eq!(network.received(client), b"", "the node says that a client has sent it");
    network.deliver_from_next_stage(&answer);
    network.settle();
    assert_eq!(network.received(client), b"answer", "the same frame, as the next stage's reply");
}

#[test]
fn what_the_next_stage_sends_in_the_name_of_a_client_is_not_taken_for_its_question() {
    let (mut network, client, back) = connected();
    let questions = withheld(&mut network, Towards::Function);
    network.send(client, b"question");
    network.settle();
    let question = questions.borrow()[0].clone();
    network.deliver_from_next_stage(&question);
    network.settle();
    assert_eq!(network.received(back), b"");
    network.deliver(&question);
    network.settle();
    assert_eq!(network.received(back), b"question");
}

#[test]
fn the_next_stage_opens_no_connection_and_gets_no_answer_outside_of_one() {
    let mut network = relays();
    let from = at("10.0.0.9:4000");
    for to in [fronts(FRONT_PORT)[0], fronts(BACK_PORT)[0]] {
        let syn = segment(from, to, SYN, 1_000, b"");
        for direction in [Direction::Backward, Direction::Forward] {
            let verdicts = network.harness.deliver_reply(direction, 0, &[&syn]);
            let outcomes: Vec<Outcome> = verdicts.iter().map(|verdict| verdict.outcome).collect();
            assert_eq!(outcomes, [Outcome::Dropped], "a reply to a reply would leave the node");
        }
    }
}

#[test]
fn what_does_not_belong_to_the_connection_is_answered_to_the_next_stage() {
    let (mut network, _client, back) = connected();
    let answers = withheld(&mut network, Towards::Function);
    network.send(back, b"answer");
    network.settle();
    let headers = Headers::of(&answers.borrow()[0]).unwrap();
    let ports = headers.ports.unwrap();
    let ends = [(headers.addresses.source(), ports.source), (headers.addresses.destination(), ports.destination)];
    let [from, to] = ends.map(SocketAddr::from);
    let syn = segment(from, to, SYN, 1, b"");
    let verdicts = network.harness.deliver_reply(Direction::Backward, 0, &[&syn]);
    let made: Vec<Outcome> = verdicts.iter().filter(|it| it.frame.is_none()).map(|it| it.outcome).collect();
    assert_eq!(made, [Outcome::Sent], "the connection is acknowledged");
}

#[test]
fn a_next_stage_that_refuses_or_is_silent_fails_the_connection() {
    let mut network = relays();
    network.add_next_stage(fronts(BACK_PORT)[0]);
    let client = network.connect("10.0.0.1".parse().unwrap(), fronts(FRONT_PORT)[0]);
    network.settle();
    assert!(network.is_closed(client));
    assert_eq!(take_log()[0].1, "RefusedByPeer");

    let is_silent = Rc::new(Cell::new(true));
    let silence = Rc::clone(&is_silent);
    network.impair(move |towards, mut frames| {
        let is_inner = |frame: &Vec<u8>| Headers::of(frame).unwrap().ports.unwrap().destination == BACK_PORT;
        frames.retain(|frame| towards == Towards::Function || !silence.get() || !is_inner(frame));
        frames
    });
    let client = network.connect("10.0.0.1".parse().unwrap(), fronts(FRONT_PORT)[0]);
    network.let_pass_ns(9 * SECOND_NS);
    assert!(network.is_connected(client));
    network.let_pass_ns(2 * SECOND_NS);
    assert!(network.is_closed(client));
    assert_eq!(take_log()[0].1, "TimedOut");
}

#[test]
fn without_a_way_back_no_connection_is_begun() {
    let mut network = relays();
    let client = network.connect("10.0.0.1".parse().unwrap(), fronts(FRONT_PORT)[0]);
    network.settle();
    assert!(network.is_closed(client));
    assert_eq!(take_log()[0].1, "NoWayBack");
}

#[test]
fn connections_to_the_next_stage_count_with_those_of_clients() {
    let mut network = relays();
    let back = fronts(BACK_PORT)[0];
    network.add_next_stage(back);
    for _ in 0..PLACES {
        network.listen(back);
    }
    let clients: Vec<Client> = (0..3)
        .map(|_| {
            let client = network.connect("10.0.0.1".parse().unwrap(), fronts(FRONT_PORT)[0]);
            network.settle();
            client
        })
        .collect();
    let are_connected: Vec<bool> = clients.iter().map(|client| network.is_connected(*client)).collect();
    assert_eq!(are_connected, [true, true, false], "two clients take four places");
}

#[test]
fn a_client_that_resets_takes_its_connection_to_the_next_stage_along_and_the_other_way_round() {
    for is_client in [true, false] {
        let (mut network, client, back) = connected();
        let (first, other) = if is_client { (client, back) } else { (back, client) };
        network.abort(first);
        network.settle();
        assert!(network.is_closed(other), "the client was first: {is_client}");
    }
}
