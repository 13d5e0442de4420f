//! This server and Debian's memcached get the same requests, and must give the same answers.

mod common;
#[path = "differential/reference.rs"]
mod reference;

use common::dialogues::{DIALOGUES, expand};
use common::requests::{Size, any_request, pipelined_request};
use common::{Client, Server, masked};
use proptest::collection::vec;
use proptest::prelude::*;
use reference::Memcached;

#[test]
fn every_known_request_has_its_known_answer() {
    for (description, exchanges) in DIALOGUES {
        let server = Memcached::start();
        let mut connection = server.connect();
        for (request, answer) in *exchanges {
            let request = expand(request).replace('#', &"x".repeat(1_100_000));
            let answered = connection.ask(request.as_bytes());
            let shown = &request[..request.len().min(80)];
            assert_eq!(masked(&answered), expand(answer), "{description}: {shown:?}");
        }
    }
}

#[test]
fn the_largest_item_is_the_same() {
    let reference = Memcached::start();
    let mut connection = reference.connect();
    let mut server = Server::new("");
    let mut client = Client::default();
    for (key, flags) in [("a", 0), ("a", 1), ("abc", 0)] {
        for len in 1_048_505..=1_048_520 {
            let request = format!("set {key} {flags} 0 {len}\r\n{}\r\nme {key}\r\n", "x".repeat(len));
            let answers = [connection.ask(request.as_bytes()), server.ask(&mut client, request.as_bytes())];
            let [theirs, ours] = answers.map(|answer| masked(&answer));
            assert_eq!(ours, theirs, "{key}, flags {flags}, {len} bytes");
        }
    }
}

#[test]
fn connections_end_with_the_same_words() {
    for request in ["version\r\nquit\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let mut server = Server::new("");
        let ours = server.ask(&mut Client::default(), request.as_bytes());
        assert_eq!(ours, Memcached::start().connect().ask_last(request.as_bytes()), "{request:?}");
    }
}

/// Of connections.
const LARGE: Size = Size { value_bytes: 20_000, keys: 30 };
/// Of datagrams: all that one is answered with has room in a socket's buffer.
const SMALL: Size = Size { value_bytes: 1500, keys: 6 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn requests_one_by_one_have_the_same_answers(
        requests in vec(any_request(LARGE), 1..80),
        sent in vec(prop_oneof![1..10_usize, 1..6000_usize], 1..6),
        taken in vec(prop_oneof![1..10_usize, 1..6000_usize], 1..6),
    ) {
        let reference = Memcached::start();
        let mut connection = reference.connect();
        let mut server = Server::new("");
        let mut client = Client::default();
        for (number, request) in requests.iter().enumerate() {
            let theirs = connection.ask(request);
            let ours = server.ask_in_parts(&mut client, request, &sent, &taken);
            prop_assert_eq!(masked(&ours), masked(&theirs), "request {}: {:?}", number, String::from_utf8_lossy(request));
        }
    }

    #[test]
    fn a_stream_of_requests_has_the_same_answers_wherever_it_is_cut(
        requests in vec(pipelined_request(LARGE), 1..200),
        sent in vec(1..6000_usize, 1..6),
        taken in vec(1..6000_usize, 1..6),
        theirs_sent in vec(1..6000_usize, 1..6),
    ) {
        let reference = Memcached::start();
        let stream = requests.concat();
        let theirs = reference.connect().ask_in_parts(&stream, &theirs_sent);
        let mut server = Server::new("");
        let ours = server.ask_in_parts(&mut Client::default(), &stream, &sent, &taken);
        prop_assert_eq!(masked(&ours), masked(&theirs), "{:?}", String::from_utf8_lossy(&stream));
    }

    #[test]
    fn datagrams_have_the_same_answers(requests in vec((any::<u16>(), any_request(SMALL), 0..40_u8), 1..60)) {
        let reference = Memcached::start();
        let socket = reference.datagrams();
        let mut server = Server::new("");
        for (number, (id, request, damage)) in requests.iter().enumerate() {
            let mut datagram = [&(id & 0x7fff).to_be_bytes()[..], &[0, 0, 0, 1, 0, 0], request].concat();
            match damage {
                // Of a request in two datagrams.
                0 => datagram[5] = 2,
                1 => datagram.truncate(8),
                2 => datagram.truncate(5),
                _ => {}
            }
            let theirs = socket.ask(&datagram);
            let ours = server.ask_datagram(&datagram);
            let is_one_answer = theirs.iter().filter(|datagram| datagram[2..4] == [0, 0]).count() <= 1;
            if is_one_answer {
                let headers = |datagrams: &[Vec<u8>]| datagrams.iter().map(|datagram| datagram[..8].to_vec()).collect::<Vec<_>>();
                prop_assert_eq!(headers(&ours), headers(&theirs), "request {}", number);
            }
            // It answers each key of a request in datagrams that are numbered from 0, which protocol.txt does not have.
            let [ours, theirs] = [ours, theirs].map(|datagrams| {
                let data: Vec<u8> = datagrams.iter().flat_map(|datagram| &datagram[8..]).copied().collect();
                masked(&data)
            });
            prop_assert_eq!(ours, theirs, "request {}: {:?}", number, String::from_utf8_lossy(request));
        }
    }
}
