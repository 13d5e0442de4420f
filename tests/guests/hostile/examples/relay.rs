//! Passes TCP connections on to a server, which the configuration names: what either side sends goes to the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_sdk::InitError;
use pinion_sdk::net::{ConnectError, Server, Service, Settings, Sockets, Stream, StreamId};

const PORT: u16 = 7001;
/// Most bytes that wait in one direction.
const WAITING_MAX: usize = 32 << 10;

/// What one side has sent and the other has not got.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    is_ended: bool,
}

type SharedPipe = Rc<RefCell<Pipe>>;

/// One side of a relayed connection.
struct Side {
    other: StreamId,
    from_here: SharedPipe,
    to_here: SharedPipe,
    has_shut_down: bool,
}

struct Relay {
    server: SocketAddr,
    /// The server's sides of connections that are being opened.
    opening: BTreeMap<StreamId, Side>,
}

impl Service for Relay {
    type Connection = Option<Side>;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let server = str::from_utf8(config).ok().and_then(|text| text.trim().parse().ok());
        let server = server.ok_or("the configuration is the server's address and port")?;
        let settings = Settings { tcp_ports: vec![PORT], connections_max: 16, ..Settings::default() };
        Ok((Self { server, opening: BTreeMap::new() }, settings))
    }

    fn accept(&mut self, stream: &mut Stream<'_>) -> Option<Side> {
        let other = stream.connect(self.server).ok()?;
        let (up, down) = (SharedPipe::default(), SharedPipe::default());
        let server_side =
            Side { other: stream.id(), from_here: Rc::clone(&down), to_here: Rc::clone(&up), has_shut_down: false };
        self.opening.insert(other, server_side);
        Some(Side { other, from_here: up, to_here: down, has_shut_down: false })
    }

    fn connected(&mut self, id: StreamId, _stream: &mut Stream<'_>) -> Option<Option<Side>> {
        self.opening.remove(&id).map(Some)
    }

    fn connect_failed(&mut self, id: StreamId, _error: ConnectError, mut sockets: Sockets<'_>) {
        if let Some(side) = self.opening.remove(&id) {
            sockets.abort(side.other);
        }
    }

    fn ready(&mut self, side: &mut Option<Side>, stream: &mut Stream<'_>) {
        let Some(side) = side else { return stream.abort() };
        if pass_on(side, stream) {
            stream.wake(side.other);
        }
        let is_over = side.has_shut_down && side.from_here.borrow().is_ended;
        if is_over {
            stream.close();
        }
    }
}

/// Moves bytes between a stream and its pipes. Returns whether the other side has something to do now.
fn pass_on(side: &mut Side, stream: &mut Stream<'_>) -> bool {
    let mut has_moved = false;
    let mut space = [0; 4096];
    let mut up = side.from_here.borrow_mut();
    while !up.is_ended && up.bytes.len() < WAITING_MAX {
        match stream.read(&mut space) {
            Ok(0) => up.is_ended = true,
            Ok(count) => up.bytes.extend_from_slice(&space[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => up.is_ended = true,
        }
        has_moved = true;
    }
    let mut down = side.to_here.borrow_mut();
    while let Ok(count @ 1..) = stream.write(&down.bytes) {
        down.bytes.drain(..count);
        has_moved = true;
    }
    if down.is_ended && down.bytes.is_empty() && !side.has_shut_down {
        stream.shutdown();
        side.has_shut_down = true;
    }
    has_moved
}

pinion_sdk::export!(Server<Relay>);
