//! The function as clients of another TCP stack see it.

use memcached::Memcached;
use pinion_sdk::net::Server;
use pinion_sdk::net::testing::{Client, Network};

struct Cache(Network<Server<Memcached>>);

impl Cache {
    fn new(config: &str) -> Self {
        Self(Network::new(config.as_bytes()).unwrap())
    }

    fn connect(&mut self) -> Client {
        let client = self.0.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:11211".parse().unwrap());
        self.0.settle();
        client
    }

    fn ask(&mut self, client: Client, request: &[u8]) -> Vec<u8> {
        self.0.send(client, request);
        let mut received = Vec::new();
        loop {
            self.0.settle();
            match self.0.received(client) {
                more if more.is_empty() => return received,
                more => received.extend(more),
            }
        }
    }
}

#[test]
fn clients_share_the_items() {
    let mut cache = Cache::new("");
    let [first, second] = [cache.connect(), cache.connect()];
    assert_eq!(cache.ask(first, b"set a 5 0 3\r\nabc\r\n"), b"STORED\r\n");
    assert_eq!(cache.ask(second, b"get a\r\n"), b"VALUE a 5 3\r\nabc\r\nEND\r\n");
    let stats = String::from_utf8(cache.ask(second, b"stats\r\n")).unwrap();
    for line in ["curr_connections 2", "total_connections 2", "curr_items 1", "get_hits 1", "max_connections 32"] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "no {line} in {stats}");
    }
    cache.0.close(first);
    cache.0.settle();
    let stats = String::from_utf8(cache.ask(second, b"stats\r\n")).unwrap();
    assert!(stats.contains("STAT curr_connections 1\r\n"), "{stats}");
}

#[test]
fn large_values_are_received_and_sent_whole() {
    let mut cache = Cache::new("");
    let client = cache.connect();
    let value: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
    let request = [&b"set large 0 0 1000000\r\n"[..], &value[..], b"\r\n"].concat();
    assert_eq!(cache.ask(client, &request), b"STORED\r\n");
    assert_eq!(
        cache.ask(client, b"get large\r\n"),
        [&b"VALUE large 0 1000000\r\n"[..], &value[..], b"\r\nEND\r\n"].concat()
    );
}

#[test]
fn quit_closes_a_connection_after_its_answers() {
    let mut cache = Cache::new("");
    let client = cache.connect();
    assert_eq!(cache.ask(client, b"version\r\nquit\r\n"), b"VERSION 1.6.18\r\n");
    assert!(cache.0.is_ended(client));
}

#[test]
fn idle_connections_are_closed_at_their_time_and_busy_ones_are_kept() {
    let mut cache = Cache::new("idle_timeout_s = 20");
    let [idle, busy] = [cache.connect(), cache.connect()];
    for _ in 0..4 {
        cache.0.let_pass_ns(10_000_000_000);
        assert_eq!(cache.ask(busy, b"version\r\n"), b"VERSION 1.6.18\r\n");
    }
    assert!(cache.0.is_ended(idle));
    let stats = String::from_utf8(cache.ask(busy, b"stats\r\n")).unwrap();
    assert!(stats.contains("STAT idle_kicks 1\r\n"), "{stats}");
}

#[test]
fn items_expire_by_the_clock_of_the_node() {
    let mut cache = Cache::new("idle_timeout_s = 0");
    let client = cache.connect();
    assert_eq!(cache.ask(client, b"set a 0 100 1\r\n1\r\n"), b"STORED\r\n");
    cache.0.let_pass_ns(90_000_000_000);
    assert_eq!(cache.ask(client, b"get a\r\n"), b"VALUE a 0 1\r\n1\r\nEND\r\n");
    cache.0.let_pass_ns(11_000_000_000);
    assert_eq!(cache.ask(client, b"get a\r\n"), b"END\r\n");
}
