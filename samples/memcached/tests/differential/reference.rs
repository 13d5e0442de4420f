//! Debian's memcached, on ports of loopback that it chooses.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Runs memcached until the input ends, which it does however this process ends.
const UNTIL_INPUT_ENDS: &str = "memcached \"$@\" & cat; kill -KILL $!; wait 2>/dev/null";
/// How long it may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running memcached, which ends when this is dropped.
pub(crate) struct Memcached {
    child: Child,
    tcp: SocketAddr,
    udp: SocketAddr,
}

impl Memcached {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // It gives up its rights before it writes its ports.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let ports = folder.path().join("ports");
        let found = Command::new("memcached").arg("-V").stdout(Stdio::null()).status();
        if let Err(error) = found {
            panic!("memcached cannot be started ({error}): `tests/setup/install.sh test` installs it");
        }
        let child = Command::new("sh")
            .args([
                "-c",
                UNTIL_INPUT_ENDS,
                "sh",
                "-u",
                "nobody",
                "-l",
                "127.0.0.1",
                "-p",
                "-1",
                "-U",
                "-1",
                "-t",
                "1",
                // Background threads hold items now and then, and a command that finds one held may store it anew.
                "-o",
                "no_lru_crawler,no_lru_maintainer",
            ])
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // From here on, it is ended when this test ends in any way.
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { child, tcp: loopback, udp: loopback };
        let text = server.wait_for(&ports);
        let port = |protocol: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(protocol)?.strip_prefix(" INET: "));
            line.unwrap_or_else(|| panic!("memcached names no port of {protocol} in {text:?}")).parse::<u16>().unwrap()
        };
        server.tcp.set_port(port("TCP"));
        server.udp.set_port(port("UDP"));
        server
    }

    fn wait_for(&self, ports: &Path) -> String {
        let started = Instant::now();
        loop {
            // It is renamed once it is complete.
            if let Ok(text) = fs::read_to_string(ports) {
                return text;
            }
            assert!(started.elapsed() < PATIENCE, "memcached has not started in {PATIENCE:?}; what it says is above");
            thread::yield_now();
        }
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.tcp).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(stream)
    }

    pub(crate) fn datagrams(&self) -> Datagrams {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(self.udp).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Datagrams(socket)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // A failure to wait for it is no failure of what was tested.
        let _ = self.child.wait();
    }
}

/// A connection of TCP.
pub(crate) struct Connection(TcpStream);

impl Connection {
    /// Sends a request that is complete; returns all that it answers.
    pub(crate) fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.ask_in_parts(request, &[usize::MAX])
    }

    /// The same in parts of these lengths, which repeat.
    pub(crate) fn ask_in_parts(&mut self, request: &[u8], lengths: &[usize]) -> Vec<u8> {
        const END: &[u8] = b"VERSION 1.6.18\r\nMN\r\n";
        let request = [request, b"version\r\nmn\r\n"].concat();
        let mut stream = self.0.try_clone().unwrap();
        let lengths = lengths.to_vec();
        // It reads nothing more while what it has answered is not read.
        let sender = thread::spawn(move || {
            let mut rest = &request[..];
            for len in lengths.into_iter().cycle() {
                let (now, later) = rest.split_at(len.min(rest.len()));
                stream.write_all(now).unwrap();
                rest = later;
                if rest.is_empty() {
                    return;
                }
            }
        });
        let mut answer = Vec::new();
        let mut part = vec![0; 1 << 16];
        while !answer.ends_with(END) {
            let count = self.0.read(&mut part).unwrap_or_else(|error| {
                panic!("memcached has answered {:?}, and then: {error}", String::from_utf8_lossy(&answer))
            });
            assert_ne!(count, 0, "memcached has closed the connection after {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..count]);
        }
        sender.join().unwrap();
        answer.truncate(answer.len() - END.len());
        answer
    }

    /// Sends a request after which the connection ends; returns all that it answers.
    pub(crate) fn ask_last(&mut self, request: &[u8]) -> Vec<u8> {
        self.0.write_all(request).unwrap();
        let mut answer = Vec::new();
        self.0.read_to_end(&mut answer).unwrap();
        answer
    }
}

/// A socket of UDP.
pub(crate) struct Datagrams(UdpSocket);

impl Datagrams {
    /// Sends a datagram; returns those of the answer.
    pub(crate) fn ask(&self, datagram: &[u8]) -> Vec<Vec<u8>> {
        const LAST_ID: [u8; 2] = [0xff, 0xff];
        self.0.send(datagram).unwrap();
        self.0.send(&[&LAST_ID[..], &[0, 0, 0, 1, 0, 0], b"mn\r\n"].concat()).unwrap();
        let mut answers = Vec::new();
        let mut buffer = [0; 65_536];
        loop {
            let count = self.0.recv(&mut buffer).unwrap();
            if buffer[..2] == LAST_ID {
                return answers;
            }
            answers.push(buffer[..count].to_vec());
        }
    }
}
