//! Lookups of names by services and programs, with resolvers that answer, fail, lie or are silent.
#![cfg(feature = "net")]

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use pinion_sdk::InitError;
use pinion_sdk::net::testing::{Network, play};
use pinion_sdk::net::{
    Datagram, IpVersion, LookupId, Net, Program, ResolveError, Server, Service, Settings, Sockets, Stream,
};
use pinion_sdk::outbound::Refusal;

const FIRST: &str = "192.0.2.53:53";
const SECOND: &str = "192.0.2.54:53";
const SECOND_NS: u64 = 1_000_000_000;
const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;

/// Looks up each name that a datagram names, `6` before it for IPv6, and writes down the answers.
#[derive(Default)]
struct Asker {
    ids: Vec<LookupId>,
    answers: Vec<Result<Vec<IpAddr>, ResolveError>>,
}

impl Service for Asker {
    type Connection = ();

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let resolvers = str::from_utf8(config).unwrap().split_whitespace().map(|it| it.parse().unwrap()).collect();
        Ok((Self::default(), Settings { udp_ports: vec![9], resolvers, ..Settings::default() }))
    }

    fn accept(&mut self, _stream: &mut Stream<'_>) {}

    fn ready(&mut self, (): &mut (), _stream: &mut Stream<'_>) {}

    fn datagram(&mut self, datagram: Datagram<'_>, mut sockets: Sockets<'_>) {
        assert_eq!(datagram.flow(), None, "answers of resolvers are not the service's");
        let text = String::from_utf8_lossy(datagram.payload()).into_owned();
        let (version, name) = match text.strip_prefix('6') {
            Some(name) => (IpVersion::V6, name),
            None => (IpVersion::V4, &text[..]),
        };
        match sockets.resolve(name, version) {
            Ok(id) => self.ids.push(id),
            Err(error) => self.answers.push(Err(error)),
        }
    }

    fn resolved(&mut self, id: LookupId, answer: Result<&[IpAddr], ResolveError>, _sockets: Sockets<'_>) {
        assert!(self.ids.contains(&id));
        self.answers.push(answer.map(<[IpAddr]>::to_vec));
    }
}

type Askers = Network<Server<Asker>>;

fn askers(resolvers: &str) -> Askers {
    Network::new(resolvers.as_bytes()).unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ask(network: &mut Askers, name: &str) {
    network.ask(at("10.0.0.1:5000"), at("10.0.0.2:9"), name.as_bytes());
    network.settle();
}

fn answers(network: &mut Askers) -> Vec<Result<Vec<IpAddr>, ResolveError>> {
    std::mem::take(&mut network.harness.function().service().answers)
}

fn found(addresses: &[&str]) -> Result<Vec<IpAddr>, ResolveError> {
    Ok(addresses.iter().map(|address| address.parse().unwrap()).collect())
}

/// A record whose name is the one in question.
fn record(kind: u16, ttl_s: u32, data: &[u8]) -> Vec<u8> {
    named(&[0xc0, 12], kind, ttl_s, data)
}

fn named(name: &[u8], kind: u16, ttl_s: u32, data: &[u8]) -> Vec<u8> {
    [name, &kind.to_be_bytes(), &[0, 1], &ttl_s.to_be_bytes(), &(data.len() as u16).to_be_bytes(), data].concat()
}

/// The answer to a query, with this code and these records.
fn reply(query: &[u8], code: u8, records: &[Vec<u8>]) -> Vec<u8> {
    let question_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
    let header = [&query[..2], &[0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]].concat();
    [&header[..], &query[12..question_end], &records.concat()].concat()
}

fn kind_of(query: &[u8]) -> u16 {
    let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap();
    u16::from_be_bytes([query[end + 1], query[end + 2]])
}

/// Makes a resolver that answers by `answer`, and counts its queries.
fn resolver(
    network: &mut Askers,
    at_address: &str,
    mut answer: impl FnMut(&[u8]) -> Vec<Vec<u8>> + 'static,
) -> Rc<Cell<u32>> {
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    network.serve_udp(at(at_address), move |_, query| {
        counted.set(counted.get() + 1);
        answer(query)
    });
    count
}

#[test]
fn names_have_addresses_of_both_versions_also_behind_aliases() {
    let mut network = askers(FIRST);
    resolver(&mut network, FIRST, |query| {
        let alias = b"\x05alias\x03org\x00";
        let records = match kind_of(query) {
            A => vec![
                named(alias, A, 60, &[192, 0, 2, 1]),
                record(CNAME, 60, alias),
                named(alias, A, 60, &[192, 0, 2, 2]),
            ],
            AAAA => vec![record(AAAA, 60, &[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7])],
            other => panic!("{other}"),
        };
        vec![reply(query, 0, &records)]
    });
    ask(&mut network, "www.example.org");
    ask(&mut network, "6www.example.org");
    assert_eq!(answers(&mut network), [found(&["192.0.2.1", "192.0.2.2"]), found(&["fd00::7"])]);
    assert!(network.node.open().is_empty(), "a lookup's flow is closed with it");
}

#[test]
fn an_answer_is_kept_for_as_long_as_it_says() {
    let mut network = askers(FIRST);
    let count = resolver(&mut network, FIRST, |query| vec![reply(query, 0, &[record(A, 10, &[192, 0, 2, 1])])]);
    for name in ["example.org", "EXAMPLE.org."] {
        ask(&mut network, name);
        assert_eq!(answers(&mut network), [found(&["192.0.2.1"])]);
    }
    assert_eq!(count.get(), 1);
    network.let_pass_ns(10 * SECOND_NS);
    ask(&mut network, "example.org");
    assert_eq!((answers(&mut network).len(), count.get()), (1, 2));
}

#[test]
fn a_lookup_is_tried_again_until_a_resolver_answers() {
    let mut network = askers(FIRST);
    let tries = Cell::new(0);
    let count = resolver(&mut network, FIRST, move |query| {
        tries.set(tries.get() + 1);
        if tries.get() < 4 { Vec::new() } else { vec![reply(query, 0, &[record(A, 10, &[192, 0, 2, 1])])] }
    });
    ask(&mut network, "example.org");
    network.let_pass_ns(3 * SECOND_NS);
    assert!(answers(&mut network).is_empty());
    network.let_pass_ns(SECOND_NS);
    assert_eq!((answers(&mut network), count.get()), (vec![found(&["192.0.2.1"])], 4));
}

#[test]
fn silent_resolvers_fail_a_lookup_after_eight_seconds_each_asked_in_turn() {
    let mut network = askers(&format!("{FIRST} {SECOND}"));
    let counts = [FIRST, SECOND].map(|server| resolver(&mut network, server, |_| Vec::new()));
    ask(&mut network, "example.org");
    network.let_pass_ns(7 * SECOND_NS);
    assert!(answers(&mut network).is_empty());
    network.let_pass_ns(SECOND_NS);
    assert_eq!(answers(&mut network), [Err(ResolveError::TimedOut)]);
    assert_eq!(counts.map(|count| count.get()), [2, 2]);
    assert!(network.node.open().is_empty());
}

#[test]
fn a_resolver_that_fails_is_followed_by_the_next_one_at_once() {
    for code in [2, 5] {
        let mut network = askers(&format!("{FIRST} {SECOND}"));
        resolver(&mut network, FIRST, move |query| vec![reply(query, code, &[])]);
        resolver(&mut network, SECOND, |query| vec![reply(query, 0, &[record(A, 10, &[192, 0, 2, 1])])]);
        ask(&mut network, "example.org");
        assert_eq!(answers(&mut network), [found(&["192.0.2.1"])]);
    }
    let mut network = askers(FIRST);
    let count = resolver(&mut network, FIRST, |query| vec![reply(query, 2, &[])]);
    ask(&mut network, "example.org");
    assert_eq!((answers(&mut network), count.get()), (vec![Err(ResolveError::ServerFailed)], 1));
}

#[test]
fn a_server_that_does_not_understand_an_extended_query_gets_a_plain_one() {
    let mut network = askers(FIRST);
    let count = resolver(&mut network, FIRST, |query| {
        let is_plain = query[11] == 0;
        vec![if is_plain { reply(query, 0, &[record(A, 10, &[192, 0, 2, 1])]) } else { reply(query, 1, &[]) }]
    });
    ask(&mut network, "example.org");
    assert_eq!((answers(&mut network), count.get()), (vec![found(&["192.0.2.1"])], 2));
}

#[test]
fn forged_answers_are_ignored_and_the_right_one_counts() {
    let mut network = askers(FIRST);
    resolver(&mut network, FIRST, |query| {
        let right = reply(query, 0, &[record(A, 10, &[192, 0, 2, 1])]);
        let forged = |at: usize| {
            let mut forged = reply(query, 0, &[record(A, 10, &[192, 0, 2, 66])]);
            forged[at] ^= 1;
            forged
        };
        // Another identification, a query, another name, and another type.
        let mut answers: Vec<_> = [0, 1, 14, 12 + 13 + 1].map(forged).into();
        answers.push([&forged(0)[..2], &right[2..]].concat());
        answers.push(right);
        answers
    });
    ask(&mut network, "example.org");
    assert_eq!(answers(&mut network), [found(&["192.0.2.1"])]);
}

#[test]
fn queries_differ_in_port_and_identification() {
    let mut network = askers(FIRST);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&seen);
    network.serve_udp(at(FIRST), move |from, query| {
        noted.borrow_mut().push((from.port(), [query[0], query[1]]));
        vec![reply(query, 0, &[])]
    });
    for host in 0..20 {
        ask(&mut network, &format!("host{host}"));
    }
    let mut seen = seen.take();
    assert_eq!(seen.len(), 20);
    seen.sort_by_key(|(_, id)| *id);
    seen.dedup_by_key(|(_, id)| *id);
    assert!(seen.len() > 18, "{seen:?}");
    seen.sort_unstable();
    seen.dedup_by_key(|(port, _)| *port);
    assert!(seen.len() > 18, "{seen:?}");
}

#[test]
fn what_cannot_be_looked_up_is_told() {
    let mut network = askers("");
    ask(&mut network, "example.org");
    assert_eq!(answers(&mut network), [Err(ResolveError::NoResolver)]);

    let mut network = askers(FIRST);
    network.node.refuse(|_, _| Some(Refusal::NotGranted));
    ask(&mut network, "no name");
    ask(&mut network, "example.org");
    let refused = ResolveError::NoFlow(pinion_sdk::net::ConnectError::ByNode(Refusal::NotGranted));
    assert_eq!(answers(&mut network), [Err(ResolveError::InvalidName), Err(refused)]);

    let mut network = askers(FIRST);
    for (name, flags) in [("none", 3), ("empty", 0)] {
        resolver(&mut network, FIRST, move |query| {
            let code = if query[12..].starts_with(b"\x04none") { 3 } else { 0 };
            vec![reply(query, code, &[])]
        });
        ask(&mut network, name);
        let error = if flags == 3 { ResolveError::NoSuchName } else { ResolveError::NoAddress };
        assert_eq!(answers(&mut network), [Err(error)]);
    }
    resolver(&mut network, SECOND, |_| Vec::new());
}

#[test]
fn no_more_lookups_are_under_way_than_are_bounded() {
    let mut network = askers(FIRST);
    resolver(&mut network, FIRST, |_| Vec::new());
    for host in 0..17 {
        ask(&mut network, &format!("host{host}"));
    }
    assert_eq!(answers(&mut network), [Err(ResolveError::NoRoom)]);
    network.let_pass_ns(8 * SECOND_NS);
    assert_eq!(answers(&mut network), vec![Err(ResolveError::TimedOut); 16]);
}

/// Looks up two names, in blocking style, and connects to the first one's address.
struct Blocking;

impl Program for Blocking {
    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self, Settings { tcp_ports: vec![1], resolvers: vec![at(FIRST)], ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> std::io::Result<()> {
        let addresses = net.resolve("server.example.org", IpVersion::V4)?;
        let stream = net.connect(SocketAddr::new(addresses[0], 80))?;
        assert_eq!(stream.peer_addr(), at("192.0.2.7:80"));
        let error = net.resolve("other.example.org", IpVersion::V6).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        Ok(())
    }
}

#[test]
fn a_program_looks_a_name_up_and_connects_to_it() {
    let mut has_begun = false;
    let ended = play::<Blocking>(b"", |network| {
        if !has_begun {
            has_begun = true;
            network.listen(at("192.0.2.7:80"));
            network.serve_udp(at(FIRST), |_, query| {
                let is_server = query[12..].starts_with(b"\x06server");
                let records = if is_server { vec![record(A, 1, &[192, 0, 2, 7])] } else { Vec::new() };
                vec![reply(query, 0, &records)]
            });
            network.ask(at("10.0.0.1:5000"), at("10.0.0.2:9"), b"");
        }
        false
    });
    ended.unwrap().unwrap();
}
