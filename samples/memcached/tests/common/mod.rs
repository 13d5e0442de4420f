//! The server without a transport: bytes in, bytes out.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod dialogues;
pub(crate) mod requests;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use memcached::config::Config;
use memcached::datagram::{Answers, DATAGRAM_BYTES_MAX};
use memcached::protocol::Settings;
use memcached::session::{Session, Status};
use memcached::store::Store;

/// 2026-01-01.
pub(crate) const START_NS: u64 = 1_767_225_600_000_000_000;

/// What a client has sent and received.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) input: VecDeque<u8>,
    /// Most bytes that a read returns.
    pub(crate) read_max: usize,
    pub(crate) output: Vec<u8>,
    /// Bytes that can be written.
    pub(crate) room: usize,
    pub(crate) is_ended: bool,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(self.input.len()).min(self.read_max);
        for (byte, from) in buffer.iter_mut().zip(self.input.drain(..len)) {
            *byte = from;
        }
        if len > 0 || self.is_ended { Ok(len) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.room);
        self.output.extend_from_slice(&bytes[..len]);
        self.room -= len;
        if len > 0 { Ok(len) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) wire: Wire,
    pub(crate) status: Status,
}

impl Default for Client {
    fn default() -> Self {
        let wire = Wire { read_max: usize::MAX, room: usize::MAX, ..Wire::default() };
        Self { session: Session::default(), wire, status: Status::Open }
    }
}

/// The server.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) now_ns: u64,
}

impl Server {
    pub(crate) fn new(config: &str) -> Self {
        let config = Config::parse(config.as_bytes()).unwrap();
        let mut store = Store::new(config.memory, config.item_size_max);
        store.start(START_NS, &[7; 16]);
        Self { store, settings: config.settings(), now_ns: START_NS }
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now_ns += seconds * 1_000_000_000;
    }

    /// Has a client's session do what it can.
    pub(crate) fn run(&mut self, client: &mut Client) {
        self.store.set_now(self.now_ns);
        if client.status == Status::Open {
            client.status = client.session.ready(&mut self.store, &self.settings, &mut client.wire);
        }
    }

    /// Sends bytes; returns all that is answered.
    pub(crate) fn ask(&mut self, client: &mut Client, bytes: &[u8]) -> Vec<u8> {
        client.wire.input.extend(bytes);
        self.run(client);
        std::mem::take(&mut client.wire.output)
    }

    /// The same on a new connection.
    pub(crate) fn ask_anew(&mut self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = Client::default();
        String::from_utf8(self.ask(&mut client, bytes.as_ref())).unwrap()
    }

    /// Sends bytes in parts of these lengths, and takes what is answered in parts of these; both repeat.
    pub(crate) fn ask_in_parts(
        &mut self,
        client: &mut Client,
        bytes: &[u8],
        sent: &[usize],
        taken: &[usize],
    ) -> Vec<u8> {
        client.wire.input.extend(bytes);
        client.wire.room = 0;
        let mut taken = taken.iter().copied().cycle();
        for part in sent.iter().copied().cycle() {
            let before = (client.wire.input.len(), client.wire.output.len());
            client.wire.read_max = part;
            // Like a peer from whom no more comes before it has read.
            client.wire.room = taken.next().unwrap();
            self.run(client);
            let is_idle = before == (client.wire.input.len(), client.wire.output.len());
            if client.wire.input.is_empty() && client.wire.room > 0 && is_idle || client.status == Status::Closed {
                break;
            }
        }
        std::mem::take(&mut client.wire.output)
    }

    /// Sends a datagram; returns those of the answers.
    pub(crate) fn ask_datagram(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        self.store.set_now(self.now_ns);
        let Some(mut answers) = Answers::new(datagram) else { return vec![] };
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        std::iter::from_fn(|| {
            answers.next(&mut self.store, &self.settings, &mut buffer).map(|len| buffer[..len].to_vec())
        })
        .collect()
    }
}

/// Replaces the numbers that depend on the time, or on how memory is divided.
pub(crate) fn masked(answer: &[u8]) -> String {
    let text: String = answer.iter().copied().map(char::from).collect();
    let mut masked = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let name = [" la=", " t", " l", "exp=", "cls="].into_iter().find(|name| rest.starts_with(name));
        let (start, after) = rest.split_at(name.map_or(rest.chars().next().unwrap().len_utf8(), str::len));
        masked.push_str(start);
        let digits =
            after.trim_start_matches(|byte: char| byte.is_ascii_digit() || byte == '-' && name == Some("exp="));
        if name.is_some() && digits.len() < after.len() {
            masked.push('#');
            rest = digits;
        } else {
            rest = after;
        }
    }
    masked
}
