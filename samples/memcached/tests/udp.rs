//! The function over UDP, as clients see it.

use std::net::SocketAddr;

use memcached::Memcached;
use memcached::datagram::DATAGRAM_BYTES_MAX;
use pinion_sdk::net::Server;
use pinion_sdk::net::testing::Network;

const PIECE_BYTES: usize = DATAGRAM_BYTES_MAX - 8;

fn network() -> Network<Server<Memcached>> {
    Network::new(b"udp = true").unwrap()
}

fn service() -> SocketAddr {
    "10.0.0.2:11211".parse().unwrap()
}

fn client(host: u8) -> SocketAddr {
    ([10, 0, 0, host], 5_000).into()
}

/// A request in a datagram with this number.
fn request(number: u16, text: &[u8]) -> Vec<u8> {
    [&number.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0], text].concat()
}

/// Returns the text of the datagrams that answer a request, which must be numbered and complete.
fn text(number: u16, answers: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (sequence, answer) in answers.iter().enumerate() {
        let header = [number, sequence as u16, answers.len() as u16, 0].map(u16::to_be_bytes).concat();
        assert_eq!(answer[..8], header);
        assert!(answer.len() <= DATAGRAM_BYTES_MAX);
        text.extend_from_slice(&answer[8..]);
    }
    text
}

fn ask(network: &mut Network<Server<Memcached>>, from: SocketAddr, number: u16, text: &[u8]) -> Vec<Vec<u8>> {
    network.ask(from, service(), &request(number, text))
}

#[test]
fn a_value_is_set_and_got_and_both_transports_have_the_same_items() {
    let mut network = network();
    assert_eq!(text(7, &ask(&mut network, client(1), 7, b"set color 5 0 4\r\nblue\r\n")), b"STORED\r\n");
    let got = b"VALUE color 5 4\r\nblue\r\nEND\r\n";
    assert_eq!(text(8, &ask(&mut network, client(2), 8, b"get color\r\n")), got);
    let tcp = network.connect(client(3).ip(), service());
    network.send(tcp, b"get color\r\n");
    network.settle();
    assert_eq!(network.received(tcp), got);
}

#[test]
fn a_request_without_an_answer_gets_no_datagram() {
    let mut network = network();
    for silent in [&b"set color 0 0 4 noreply\r\nblue\r\n"[..], b"", b"get color"] {
        assert_eq!(ask(&mut network, client(1), 1, silent), Vec::<Vec<u8>>::new());
    }
    assert_eq!(network.ask(client(1), service(), b"short"), Vec::<Vec<u8>>::new());
    assert_eq!(text(2, &ask(&mut network, client(1), 2, b"get color\r\n")), b"VALUE color 0 4\r\nblue\r\nEND\r\n");
}

#[test]
fn a_long_value_comes_in_datagrams_as_slots_come_back() {
    const BYTES: usize = 600_000;
    let mut network = network();
    let tcp = network.connect(client(1).ip(), service());
    let value: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    network.send(tcp, &[format!("set long 0 0 {BYTES}\r\n").as_bytes(), &value, b"\r\n"].concat());
    network.until(|network| network.received(tcp) == b"STORED\r\n");
    let expected = [format!("VALUE long 0 {BYTES}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();

    let mut answers = ask(&mut network, client(2), 9, b"get long\r\n");
    let count = expected.len().div_ceil(PIECE_BYTES);
    assert!(answers.len() < count, "there are fewer slots than datagrams");
    // Another client's short request waits for none of it.
    assert_eq!(text(3, &ask(&mut network, client(3), 3, b"get none\r\n")), b"END\r\n");
    for _ in 0..1_000 {
        let verdicts = network.harness.let_pass_ns(50_000);
        answers.extend(verdicts.iter().filter(|it| it.bytes.len() > 42).map(|it| it.bytes[42..].to_vec()));
    }
    assert!(text(9, &answers) == expected, "{} datagrams of {count}", answers.len());
}

#[test]
fn a_client_that_asks_for_much_gets_no_more_than_a_few_answers_at_once() {
    const BYTES: usize = 500_000;
    let mut network = network();
    let tcp = network.connect(client(1).ip(), service());
    network.send(tcp, &[format!("set long 0 0 {BYTES}\r\n").as_bytes(), &[b'v'; BYTES], b"\r\n"].concat());
    network.until(|network| network.received(tcp) == b"STORED\r\n");
    let mut datagrams = 0;
    for number in 0..40 {
        datagrams += ask(&mut network, client(2), number, b"get long\r\n").len();
    }
    for _ in 0..10_000 {
        let verdicts = network.harness.let_pass_ns(50_000);
        datagrams += verdicts.iter().filter(|it| it.bytes.len() > 42).count();
    }
    let of_one = (BYTES + 30).div_ceil(PIECE_BYTES);
    assert!((4 * of_one..6 * of_one).contains(&datagrams), "{datagrams} datagrams, {of_one} an answer");
}

#[test]
fn a_request_that_asks_for_very_much_gets_two_mebibytes_and_what_is_left_out_is_a_miss() {
    const BYTES: usize = 1_000_000;
    for request in [["get", &["long"; 200].join(" "), "\r\n"].join(" "), "get long\r\n".repeat(100)] {
        let mut network = network();
        let tcp = network.connect(client(1).ip(), service());
        network.send(tcp, &[format!("set long 0 0 {BYTES}\r\n").as_bytes(), &[b'v'; BYTES], b"\r\n"].concat());
        network.until(|network| network.received(tcp) == b"STORED\r\n");
        let mut answers = ask(&mut network, client(2), 9, request.as_bytes());
        for _ in 0..2_000 {
            let verdicts = network.harness.let_pass_ns(50_000);
            answers.extend(verdicts.iter().filter(|it| it.bytes.len() > 42).map(|it| it.bytes[42..].to_vec()));
        }
        let bytes: usize = answers.iter().map(|answer| answer.len() - 8).sum();
        assert!((3 * BYTES..3 * BYTES + 200).contains(&bytes), "{bytes} bytes");
        assert!(answers.last().unwrap().ends_with(b"END\r\n"));
    }
}
