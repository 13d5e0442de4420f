//! A function that is in its client's hands, and all that it can be made to do.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::ops::Range;
use std::time::{Duration, Instant};

use pinion_tests::network::bed::{Client, NODE};
use pinion_tests::until::SOON;

/// Bytes of an order before its contents, and the most of these.
const HEAD_BYTES: usize = 36;
const CONTENTS_BYTES_MAX: usize = 1_024;
/// After each such time without an answer an order is repeated.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes in a row that tell a secret.
const RUN_BYTES: usize = 8;

/// Orders of the guest `puppet`.
const MEMORY_SIZE: u32 = 0;
const SCRATCH: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 3;

/// Calls of the node that it makes.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Call {
    KeyOpen = 16,
    KeySign,
    TicketSeal,
    TicketOpen,
    Config,
    Random,
    NnLoad,
    NnLoadByName,
    NnInitExecutionContext,
    NnSetInput,
    NnCompute,
    NnGetOutput,
    FdRead,
    FdPrestatGet,
    EnvironSizesGet,
    EnvironGet,
    ArgsSizesGet,
    ArgsGet,
}

/// An instance of the guest, with its client.
pub(crate) struct Puppet {
    socket: UdpSocket,
    number: u32,
    /// The start of the memory of which nothing else is made: 1 MiB and more.
    pub(crate) scratch: u32,
    /// All that it was ever answered.
    heard: Vec<u8>,
}

impl Puppet {
    /// Connects a client to a puppet at this port of the node.
    #[track_caller]
    pub(crate) fn new(client: &Client, port: u16) -> Self {
        let socket = client.namespace.inside(|| {
            let socket = UdpSocket::bind((client.address.as_str(), 0)).expect("the client has the address");
            socket.connect((NODE, port)).expect("the node is in the client's network");
            socket
        });
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        let mut puppet = Self { socket, number: 0, scratch: 0, heard: Vec::new() };
        puppet.scratch = puppet.order(SCRATCH, &[], &mut []) as u32;
        puppet
    }

    /// Gives an order with these words, and exchanges the bytes that belong to it. Returns the result.
    #[track_caller]
    fn order(&mut self, order: u32, words: &[u32], bytes: &mut [u8]) -> i32 {
        self.number += 1;
        let words: Vec<u32> = words.iter().copied().chain([0; 7]).take(7).collect();
        let head = [self.number, order].into_iter().chain(words.iter().copied()).flat_map(u32::to_le_bytes);
        let asked: Vec<u8> = head.chain(bytes.iter().copied()).collect();
        let (mut answer, began) = ([0; 2_048], Instant::now());
        self.socket.send(&asked).expect("the interface takes a datagram");
        loop {
            match self.socket.recv(&mut answer) {
                Ok(len) if len == asked.len() && answer[..8] == asked[..8] => break,
                // The answer to an order that was repeated.
                Ok(_) => {}
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
                    assert!(began.elapsed() < SOON, "order {order} with {words:?} was not answered");
                    self.socket.send(&asked).expect("the interface takes a datagram");
                }
            }
        }
        self.heard.extend_from_slice(&answer[8..asked.len()]);
        bytes.copy_from_slice(&answer[HEAD_BYTES..asked.len()]);
        i32::from_le_bytes([answer[8], answer[9], answer[10], answer[11]])
    }

    /// Makes a call of the node with these arguments.
    #[track_caller]
    pub(crate) fn call(&mut self, call: Call, arguments: &[u32]) -> i32 {
        self.order(call as u32, arguments, &mut [])
    }

    /// Writes bytes to the place of this number in its scratch memory, which is another one for each; returns their address.
    #[track_caller]
    pub(crate) fn write(&mut self, place: u32, bytes: &[u8]) -> u32 {
        let address = self.place(place);
        for (part, at) in bytes.chunks(CONTENTS_BYTES_MAX).zip((0..).step_by(CONTENTS_BYTES_MAX)) {
            self.order(WRITE, &[address + at, part.len() as u32], &mut part.to_vec());
        }
        address
    }

    /// Returns the address of a place of 8 KiB.
    pub(crate) fn place(&self, number: u32) -> u32 {
        self.scratch + number * 8_192
    }

    /// Reads bytes of its memory.
    #[track_caller]
    pub(crate) fn read(&mut self, range: Range<u32>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        for (part, at) in bytes.chunks_mut(CONTENTS_BYTES_MAX).zip((range.start..).step_by(CONTENTS_BYTES_MAX)) {
            self.order(READ, &[at, part.len() as u32], part);
        }
        bytes
    }

    /// Returns all its memory, and behind it all that it was ever answered.
    #[track_caller]
    pub(crate) fn dump(&mut self) -> Vec<u8> {
        let end = self.order(MEMORY_SIZE, &[], &mut []) as u32;
        let mut heard = std::mem::take(&mut self.heard);
        // A reference is never null.
        let mut dump = self.read(1..end);
        dump.append(&mut heard);
        dump
    }

    /// Opens a key by its name.
    #[track_caller]
    pub(crate) fn open(&mut self, name: &[u8]) -> i32 {
        let at = self.write(0, name);
        self.call(Call::KeyOpen, &[at, name.len() as u32])
    }

    /// Asks for a signature of a message by a scheme; returns what it gets.
    #[track_caller]
    pub(crate) fn sign(&mut self, key: u32, scheme: u32, message: &[u8]) -> i32 {
        let (at, to) = (self.write(0, message), self.place(1));
        self.call(Call::KeySign, &[key, scheme, at, message.len() as u32, to, 512])
    }

    /// Seals a ticket with a key.
    #[track_caller]
    pub(crate) fn seal(&mut self, key: u32, content: &[u8]) -> Vec<u8> {
        let (at, to) = (self.write(0, content), self.place(1));
        let len = self.call(Call::TicketSeal, &[key, at, content.len() as u32, to, 8_192]);
        assert_eq!(len as usize, content.len() + 32, "it was not sealed");
        self.read(to..to + len as u32)
    }

    /// Opens a ticket with a key. Returns the content, or the negative errno.
    #[track_caller]
    pub(crate) fn unseal(&mut self, key: u32, ticket: &[u8]) -> Result<Vec<u8>, i32> {
        let (at, to) = (self.write(2, ticket), self.place(3));
        let len = self.call(Call::TicketOpen, &[key, at, ticket.len() as u32, to, 8_192]);
        if len < 0 { Err(len) } else { Ok(self.read(to..to + len as u32)) }
    }
}

/// Bytes that must not be in a dump, by their names.
#[derive(Default)]
pub(crate) struct Secrets(Vec<(String, HashSet<[u8; RUN_BYTES]>)>);

impl Secrets {
    /// Adds a secret: no eight bytes of it in a row may be found.
    pub(crate) fn add(&mut self, name: &str, secret: &[u8]) {
        self.0.push((name.to_owned(), secret.array_windows::<RUN_BYTES>().copied().collect()));
    }

    /// Returns the names of the secrets of which a part is in the dump.
    pub(crate) fn found_in(&self, dump: &[u8]) -> Vec<&str> {
        let is_in = |runs: &HashSet<[u8; RUN_BYTES]>| dump.array_windows::<RUN_BYTES>().any(|run| runs.contains(run));
        self.0.iter().filter(|(_, runs)| is_in(runs)).map(|(name, _)| name.as_str()).collect()
    }
}
