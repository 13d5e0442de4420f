//! Transfers bytes over TCP, each of which is checked on arrival.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::network::namespace::Namespace;
use crate::random::Random;
use crate::until::SOON;

const CHUNK: usize = 1 << 16;

/// Pseudo-random bytes, the same ones each time.
struct Pattern(Random);

impl Pattern {
    fn of(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.0.number().to_le_bytes()[..word.len()]);
        }
    }
}

/// Sends so many bytes from one namespace to an address in another, and as many others back at the same time; returns how long it took.
///
/// # Panics
/// If a byte arrives changed, or no byte arrives for long.
#[track_caller]
pub fn both_ways(from: &Namespace, to: &Namespace, address: &str, bytes: u64) -> Duration {
    let address: IpAddr = address.parse().expect("an address");
    let listener = to.inside(|| TcpListener::bind((address, 0))).expect("an address of that host");
    let server = listener.local_addr().expect("a bound socket has an address");
    let start = Instant::now();
    let near = from.inside(|| TcpStream::connect_timeout(&server, SOON)).expect("a connection is made");
    let (far, _) = listener.accept().expect("the connection was made");
    let (there, back) = (0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03);
    thread::scope(|scope| {
        scope.spawn(|| send(&near, Pattern::of(there), bytes));
        scope.spawn(|| send(&far, Pattern::of(back), bytes));
        scope.spawn(|| receive(&far, Pattern::of(there), bytes));
        receive(&near, Pattern::of(back), bytes);
    });
    start.elapsed()
}

fn send(mut stream: &TcpStream, mut pattern: Pattern, bytes: u64) {
    stream.set_write_timeout(Some(SOON)).expect("a socket has timeouts");
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(CHUNK as u64) as usize;
        pattern.fill(&mut chunk[..len]);
        stream.write_all(&chunk[..len]).expect("the other side takes bytes in time");
        left -= len as u64;
    }
    stream.shutdown(Shutdown::Write).expect("a connected socket can be shut down");
}

fn receive(mut stream: &TcpStream, mut pattern: Pattern, bytes: u64) {
    stream.set_read_timeout(Some(SOON)).expect("a socket has timeouts");
    let (mut chunk, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut received = 0;
    while received < bytes {
        let len = (bytes - received).min(CHUNK as u64) as usize;
        stream.read_exact(&mut chunk[..len]).expect("bytes arrive in time");
        pattern.fill(&mut expected[..len]);
        assert!(chunk[..len] == expected[..len], "a byte after the first {received} has changed");
        received += len as u64;
    }
    assert_eq!(stream.read(&mut chunk).expect("the end arrives in time"), 0, "more came than was sent");
}
