//! What clients and items cost at most.

mod common;

use common::requests::{Size, any_request};
use common::{Client, Server, Wire};
use memcached::session::Status;
use memcached::store::arena::CHUNK_BYTES;
use memcached::store::{KEY_BYTES_MAX, Mode, Store};
use proptest::collection::vec;
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    [format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn the_least_recently_used_items_make_room() {
    let mut server = Server::new("memory = \"256k\"\nitem_size_max = \"64k\"");
    let mut client = Client::default();
    for number in 0..10_000 {
        assert_eq!(server.ask(&mut client, &set(&format!("key{number}"), b"value")), b"STORED\r\n");
        // So it is never the oldest.
        assert!(server.ask(&mut client, b"get key0\r\n").starts_with(b"VALUE key0"), "after {number}");
    }
    let chunks = 256 * 1024 / CHUNK_BYTES;
    assert_eq!(server.store.len().0, chunks as u64);
    assert_eq!(server.store.counters.evictions, 10_000 - chunks as u64);
    assert!(server.ask(&mut client, b"get key9999\r\n").starts_with(b"VALUE"));
    assert_eq!(server.ask(&mut client, b"get key1\r\n"), b"END\r\n");
}

#[test]
fn large_and_small_items_share_all_of_the_memory_in_turn() {
    let mut server = Server::new("memory = \"4m\"");
    let mut client = Client::default();
    let large = vec![b'x'; 1_000_000];
    for round in 0..20 {
        for number in 0..4 {
            assert_eq!(
                server.ask(&mut client, &set(&format!("large{number}"), &large)),
                b"STORED\r\n",
                "round {round}"
            );
        }
        let segments = server.store.arena().segments();
        for number in 0..30_000 {
            assert_eq!(
                server.ask(&mut client, &set(&format!("small{number}"), b"value")),
                b"STORED\r\n",
                "round {round}"
            );
        }
        assert_eq!(server.store.len().0, 30_000, "large items are gone, all small ones are there");
        assert!(server.store.arena().segments() >= segments && server.store.arena().segments() <= 64);
    }
    // A large one takes the place of small ones, and is whole.
    server.ask(&mut client, &set("large", &large));
    let answer = server.ask(&mut client, b"get large\r\n");
    assert_eq!(answer, [&b"VALUE large 0 1000000\r\n"[..], &large[..], b"\r\nEND\r\n"].concat());
}

#[test]
fn a_client_that_reads_nothing_costs_one_answer() {
    let mut server = Server::new("memory = \"4m\"");
    let mut writer = Client::default();
    let value: Vec<u8> = (0..MIB - 100).map(|at| (at % 251) as u8).collect();
    server.ask(&mut writer, &set("large", &value));
    let mut reader = Client::default();
    reader.wire.room = 0;
    reader.wire.input.extend(b"get large large\r\n".repeat(10_000));
    server.run(&mut reader);
    let held = reader.wire.input.len();
    for _ in 0..10 {
        server.run(&mut reader);
    }
    assert_eq!((reader.wire.input.len(), reader.wire.output.len()), (held, 0));
    assert!(held >= 160_000, "{held} bytes are left of the input");
    assert!(reader.session.held_bytes() < 20_000, "{} bytes are held", reader.session.held_bytes());
    // What it is being sent is replaced, deleted and forgotten, and it still gets the value that was there.
    assert_eq!(server.ask(&mut writer, &set("large", b"new")), b"STORED\r\n");
    assert_eq!(server.ask(&mut writer, b"flush_all\r\n"), b"OK\r\n");
    for number in 0..40_000 {
        assert_eq!(server.ask(&mut writer, &set(&format!("small{number}"), b"value")), b"STORED\r\n");
    }
    reader.wire.room = 100 + value.len();
    server.run(&mut reader);
    let expected = [format!("VALUE large 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\nEND\r\n"].concat();
    assert!(reader.wire.output.starts_with(&expected), "the value was overwritten");
}

#[test]
fn clients_that_vanish_give_back_what_they_held() {
    let mut server = Server::new("memory = \"2m\"\nitem_size_max = \"1m\"");
    let mut writer = Client::default();
    for round in 0..20 {
        assert_eq!(server.ask(&mut writer, &set("large", &vec![b'x'; 900_000])), b"STORED\r\n", "round {round}");
        let mut reader = Client::default();
        reader.wire.room = 1000;
        server.ask(&mut reader, b"get large\r\n");
        let mut sender = Client::default();
        server.ask(&mut sender, &set("other", &[b'y'; 900_000])[..500_000]);
        drop((reader, sender));
    }
    assert_eq!(server.ask(&mut writer, b"flush_all\r\n"), b"OK\r\n");
    server.ask_anew("get large\r\n");
    server.ask_anew("get large\r\n");
    assert_eq!(server.store.arena().used(), 0);
}

#[test]
fn values_that_find_no_memory_are_refused_and_swallowed() {
    let mut server = Server::new("memory = \"1m\"\nitem_size_max = \"512k\"");
    let value = vec![b'x'; 400_000];
    // Values under way are in use, so nothing can be evicted.
    let mut senders: Vec<Client> = (0..3).map(|_| Client::default()).collect();
    for (number, sender) in senders.iter_mut().enumerate() {
        let request = set(&format!("key{number}"), &value);
        let answer = server.ask(sender, &request[..request.len() - 2]);
        let expected: &[u8] = if number < 2 { b"" } else { b"SERVER_ERROR Out of memory during read\r\n" };
        assert_eq!(answer, expected, "of sender {number}");
    }
    let mut small = vec![];
    let refusal = loop {
        let mut client = Client::default();
        let answer = server.ask(&mut client, b"set small 0 0 1\r\n");
        small.push(client);
        assert!(small.len() <= MIB / CHUNK_BYTES, "all of the memory is in use twice");
        if !answer.is_empty() {
            break answer;
        }
    };
    assert_eq!(refusal, b"SERVER_ERROR out of memory storing object\r\n");
    for (number, sender) in senders.iter_mut().enumerate() {
        let answer = server.ask(sender, b"\r\nversion\r\n");
        let expected = if number < 2 { "STORED\r\nVERSION 1.6.18\r\n" } else { "VERSION 1.6.18\r\n" };
        assert_eq!(String::from_utf8(answer).unwrap(), expected, "of sender {number}");
    }
}

#[test]
fn lines_without_an_end_end_the_connection_except_those_of_keys() {
    let ask = |text: &[u8]| {
        let mut server = Server::new("");
        let mut client = Client::default();
        let answer = server.ask(&mut client, text);
        (answer, client.status, client.session.held_bytes())
    };
    assert_eq!(ask(&[b'x'; 2048]).1, Status::Open);
    assert_eq!(ask(&[b'x'; 2049]).1, Status::Closed);
    assert_eq!(ask(&[&[b' '; 101][..], b"get ", &[b'x'; 2000]].concat()).1, Status::Closed);
    let keys = [&b"get "[..], &b"key ".repeat(16_000)].concat();
    let (_, status, held) = ask(&keys);
    assert_eq!(status, Status::Open);
    assert!(held < 140_000, "{held} bytes are held");
    assert_eq!(ask(&[&keys[..], b"\r\n"].concat()).0, b"END\r\n");
    assert_eq!(ask(&[&keys[..], &keys].concat()).1, Status::Closed);
}

#[test]
fn input_and_output_may_be_cut_anywhere() {
    let mut server = Server::new("");
    let value: Vec<u8> = (0..5000).map(|at| (at % 256) as u8).collect();
    let request = [&set("a", &value)[..], b"get a a\r\nmg a v k\r\nstats settings\r\nincr a 1\r\n"].concat();
    let mut whole = Client::default();
    let expected = server.ask(&mut whole, &request);
    assert!(expected.len() > 15_000);
    for (sent, taken) in [(1, 1), (1, 7000), (3, 2), (7000, 1), (123, 124), (124, 128), (4096, 4096)] {
        let mut client = Client::default();
        assert_eq!(server.ask_in_parts(&mut client, &request, &[sent], &[taken]), expected, "by {sent} and {taken}");
    }
}

#[test]
fn an_item_is_as_it_was_stored_whatever_its_lengths() {
    let mut store = Store::new(MIB, MIB / 2);
    store.start(common::START_NS, &[1; 16]);
    for key_len in [1, 67, 68, 69, 70, 123, 124, 125, 192, 193, KEY_BYTES_MAX] {
        for value_len in (0..400).chain([1000, 100_000]) {
            let key: Vec<u8> = (0..key_len).map(|at| b'a' + (at % 26) as u8).collect();
            let value: Vec<u8> = (0..value_len).map(|at| (at % 255) as u8).collect();
            let made = store.make(&key, 7, 0).unwrap();
            for part in value.chunks(97) {
                store.push(made.id(), part).unwrap();
            }
            store.store(&made, Mode::Set, 0, false);
            let id = store.find(&key).unwrap();
            let mut cursor = store.value(id);
            let mut found = vec![0; value_len + 1];
            assert_eq!(store.copy(&cursor, &mut found), value_len);
            assert_eq!(found[..value_len], value);
            store.skip(&mut cursor, value_len);
            assert_eq!(cursor.left(), 0);
            let mut buffer = [0; KEY_BYTES_MAX];
            let len = store.key(id, &mut buffer);
            assert_eq!(buffer[..len], key);
        }
    }
}

#[test]
fn a_wire_that_is_cut_ends_its_session() {
    let mut server = Server::new("");
    let mut client = Client {
        wire: Wire { read_max: usize::MAX, room: usize::MAX, is_ended: true, ..Wire::default() },
        ..Client::default()
    };
    assert_eq!(server.ask(&mut client, b"set a 0 0 10\r\nabc"), b"");
    assert_eq!(client.status, Status::Closed);
    assert_eq!(server.ask_anew("get a\r\n"), "END\r\n");
}

/// A client's step: it sends a part of its next request, or as much as it can, takes so much of what is answered, or vanishes.
#[derive(Clone, Debug)]
enum Step {
    Send { client: usize, request: Vec<u8>, percent: usize, room: usize },
    Vanish(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size = Size { value_bytes: 30_000, keys: 10 };
    prop_oneof![
        20 => (0..5_usize, any_request(size), 50..=150_usize, prop_oneof![0..200_usize, 0..100_000_usize])
            .prop_map(|(client, request, percent, room)| Step::Send { client, request, percent, room }),
        2 => (0..5_usize).prop_map(Step::Vanish),
        1 => (0..1000_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// With little memory, so that items are evicted while they are sent, and values under way find no room.
    #[test]
    fn whatever_clients_do_all_of_the_memory_comes_back(steps in vec(step(), 1..300)) {
        let mut server = Server::new("memory = \"128k\"\nitem_size_max = \"32k\"");
        let mut clients: [Client; 5] = Default::default();
        for step in steps {
            match step {
                Step::Send { client, request, percent, room } => {
                    let client = &mut clients[client];
                    client.wire.room = room;
                    let len = (request.len() * percent / 100).min(request.len());
                    server.ask(client, &request[..len]);
                    if client.status == Status::Closed {
                        *client = Client::default();
                    }
                }
                Step::Vanish(client) => clients[client] = Client::default(),
                Step::Pass(seconds) => server.pass(seconds),
            }
            prop_assert!(server.store.arena().used() <= 128 * 1024 / CHUNK_BYTES);
        }
        drop(clients);
        server.ask_anew("flush_all\r\n");
        // Each item that is added frees two that are of no use.
        for number in 0..1024 {
            server.ask_anew(format!("set last{number} 0 0 1\r\n1\r\n"));
        }
        for number in 0..1024 {
            server.ask_anew(format!("delete last{number}\r\n"));
        }
        server.ask_anew("version\r\n");
        prop_assert_eq!((server.store.arena().used(), server.store.len()), (0, (0, 0)));
    }
}
