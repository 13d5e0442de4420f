//! The TCP echo service (RFC 862), over IPv4 and IPv6: one connection after the other, in blocking code.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};

use pinion_sdk::InitError;
use pinion_sdk::metrics::Counter;
use pinion_sdk::net::{Net, Program, Settings, TcpStream};

/// The echo service's well-known port.
const PORT: u16 = 7;

/// The program, with its counters.
#[derive(Debug)]
pub struct TcpEcho {
    connections: Counter,
    bytes: Counter,
}

impl Program for TcpEcho {
    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let port = match config.trim_ascii() {
            b"" => PORT,
            other => {
                let port = str::from_utf8(other).ok().and_then(|text| text.parse().ok());
                let refuse =
                    || InitError::new(format!("tcp-echo takes a port, and was given `{}`", other.escape_ascii()));
                port.ok_or_else(refuse)?
            }
        };
        let program = Self {
            connections: Counter::new("tcp_echo_connections", "Connections that were accepted."),
            bytes: Counter::new("tcp_echo_bytes", "Bytes that were sent back."),
        };
        Ok((program, Settings { tcp_ports: vec![port], ..Settings::default() }))
    }

    fn run(&mut self, net: &Net<'_>) -> io::Result<()> {
        loop {
            let (stream, _peer) = net.accept()?;
            self.connections.increment();
            // A failed connection does not affect the next one.
            let _ = self.echo(stream);
        }
    }
}

impl TcpEcho {
    /// Sends back what is received until the peer closes.
    fn echo(&self, mut stream: TcpStream<'_>) -> io::Result<()> {
        let mut bytes = [0; 4096];
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                count => {
                    stream.write_all(&bytes[..count])?;
                    self.bytes.add(count as u64);
                }
            }
        }
    }
}

pinion_sdk::export_program!(TcpEcho);
