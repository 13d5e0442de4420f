//! A service that connects to where it is told, and writes down what comes of it.
#![allow(dead_code, reason = "each file of tests uses a part")]

use std::io::{Read, Write};
use std::net::SocketAddr;

use pinion_sdk::InitError;
use pinion_sdk::net::testing::Network;
use pinion_sdk::net::{
    ConnectError, Datagram, FlowEvent, FlowId, Server, Service, Settings, Sockets, Stream, StreamId,
};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// How many connections the service has at most.
pub(crate) const PLACES: u16 = 4;
/// How many UDP flows the service has at most.
pub(crate) const FLOWS: u16 = 3;

pub(crate) const CLIENT: &str = "10.0.0.1:5000";
/// The port at which the service is told what to do.
pub(crate) const TOLD_AT: &str = "10.0.0.2:9";
pub(crate) const SERVER: &str = "192.0.2.5:80";
pub(crate) const SERVER_V6: &str = "[2001:db8::5]:80";

/// Obeys datagrams: `tcp ADDRESS` connects and sends `hello`, `udp ADDRESS TEXT` opens a flow and sends the text by it, `hang up` closes all
/// connections, `abort` aborts those that it opened, `close` closes all flows.
#[derive(Default)]
pub(crate) struct Caller {
    pub(crate) events: Vec<String>,
    opened: Vec<StreamId>,
    flows: Vec<(FlowId, Vec<u8>)>,
    hangs_up: bool,
}

impl Service for Caller {
    type Connection = ();

    fn init(_config: &[u8]) -> Result<(Self, Settings), InitError> {
        let settings = Settings {
            tcp_ports: vec![7],
            udp_ports: vec![9],
            connections_max: PLACES,
            udp_flows_max: FLOWS,
            ..Settings::default()
        };
        Ok((Self::default(), settings))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) {
        self.events.push(format!("accepted {}", stream.peer()));
    }

    fn connected(&mut self, id: StreamId, stream: &mut Stream<'_>) -> Option<()> {
        assert_eq!(id, stream.id());
        self.events.push(format!("connected to {}", stream.peer()));
        stream.write_all(b"hello").unwrap();
        Some(())
    }

    fn connect_failed(&mut self, id: StreamId, error: ConnectError, _sockets: Sockets<'_>) {
        assert!(self.opened.contains(&id));
        self.events.push(format!("failed: {error:?}"));
    }

    fn ready(&mut self, (): &mut (), stream: &mut Stream<'_>) {
        let mut bytes = [0; 2000];
        match stream.read(&mut bytes) {
            Ok(0) => {
                self.events.push("closed by the peer".into());
                stream.close();
            }
            Ok(count) => self.events.push(format!("read {}", String::from_utf8_lossy(&bytes[..count]))),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.events.push("over".into()),
        }
        if self.hangs_up {
            stream.close();
        }
    }

    fn datagram(&mut self, datagram: Datagram<'_>, mut sockets: Sockets<'_>) {
        let text = String::from_utf8_lossy(datagram.payload()).into_owned();
        if let Some(id) = datagram.flow() {
            assert!(self.flows.iter().any(|(known, _)| *known == id));
            return self.events.push(format!("answer {text}"));
        }
        let mut words = text.splitn(3, ' ');
        let told = match (words.next(), words.next(), words.next()) {
            (Some("tcp"), Some(to), _) => self.connect(&mut sockets, to.parse().unwrap()),
            (Some("udp"), Some(to), Some(text)) => self.open_udp(&mut sockets, to.parse().unwrap(), text.as_bytes()),
            (Some("hang"), _, _) => {
                self.hangs_up = true;
                self.opened.iter().for_each(|id| sockets.wake(*id));
                Ok(())
            }
            (Some("abort"), _, _) => {
                self.opened.iter().for_each(|id| sockets.abort(*id));
                Ok(())
            }
            _ => {
                self.flows.iter().for_each(|(id, _)| sockets.close_udp(*id));
                Ok(())
            }
        };
        if let Err(error) = told {
            self.events.push(format!("at once: {error:?}"));
        }
    }

    fn flow(&mut self, id: FlowId, event: FlowEvent, sockets: Sockets<'_>) {
        match event {
            FlowEvent::Opened(peer) => {
                assert_eq!(sockets.udp_peer(id).map(|peer| peer.local()), Some(peer.local()));
                self.events.push(format!("open to {}", peer.address()));
                let (_, text) = self.flows.iter().find(|(known, _)| *known == id).unwrap();
                peer.send_with(sockets.slots(), |bytes| {
                    bytes[..text.len()].copy_from_slice(text);
                    Some(text.len())
                })
                .unwrap();
            }
            FlowEvent::Lost(error) => self.events.push(format!("lost: {error:?}")),
            FlowEvent::Ended(error) => self.events.push(format!("ended: {error:?}")),
        }
    }
}

impl Caller {
    fn connect(&mut self, sockets: &mut Sockets<'_>, to: SocketAddr) -> Result<(), ConnectError> {
        self.opened.push(sockets.connect(to)?);
        Ok(())
    }

    fn open_udp(&mut self, sockets: &mut Sockets<'_>, to: SocketAddr, text: &[u8]) -> Result<(), ConnectError> {
        self.flows.push((sockets.open_udp(to)?, text.to_vec()));
        Ok(())
    }
}

pub(crate) type Callers = Network<Server<Caller>>;

pub(crate) fn callers() -> Callers {
    Network::new(b"").unwrap()
}

/// Tells the service something, and lets what follows at once happen.
pub(crate) fn tell(network: &mut Callers, what: &str) {
    network.ask(CLIENT.parse().unwrap(), TOLD_AT.parse().unwrap(), what.as_bytes());
    network.settle();
}

/// Returns what the service has written down since the last call.
pub(crate) fn events(network: &mut Callers) -> Vec<String> {
    std::mem::take(&mut network.harness.function().service().events)
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
