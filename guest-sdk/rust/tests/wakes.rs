//! Connections that are woken by other connections, or by themselves.
#![cfg(feature = "net")]

use std::io::Read;

use pinion_sdk::InitError;
use pinion_sdk::net::testing::Network;
use pinion_sdk::net::{Server, Service, Settings, Stream, StreamId};

/// How often the service wakes connections.
const WAKES: u32 = 50;

/// Once it was told to begin, each connection that is called wakes the next one, which is itself if there is one only.
#[derive(Default)]
struct Wakers {
    all: Vec<StreamId>,
    has_begun: bool,
    wakes: u32,
}

impl Service for Wakers {
    type Connection = usize;

    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        Ok((Self::default(), Settings { tcp_ports: vec![7], ..Settings::default() }))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> usize {
        self.all.push(stream.id());
        self.all.len() - 1
    }

    fn ready(&mut self, number: &mut usize, stream: &mut Stream<'_>) {
        self.has_begun |= matches!(stream.read(&mut [0; 8]), Ok(1..));
        if self.has_begun && self.wakes < WAKES {
            self.wakes += 1;
            stream.wake(self.all[(*number + 1) % self.all.len()]);
        }
    }
}

#[test]
fn no_wake_is_lost_however_often_connections_wake_each_other_or_themselves() {
    for connections in 1..=3 {
        let mut network = Network::<Server<Wakers>>::new(b"").unwrap();
        let connect = |_| network.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:7".parse().unwrap());
        let clients: Vec<_> = (0..connections).map(connect).collect();
        network.settle();
        network.send(clients[0], b"go");
        network.let_pass_ns(1_000_000_000);
        assert_eq!(network.harness.function().service().wakes, WAKES, "{connections} connections");
    }
}
