//! Sends back what comes over TCP (RFC 862), over IPv4 and IPv6: one connection after the other, in code that waits.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};

use pinion_sdk::InitError;
use pinion_sdk::tcp::{Program, Settings, TcpListener, TcpStream};

/// Where echo is expected.
const PORT: u16 = 7;

/// The program.
#[derive(Debug)]
pub struct TcpEcho;

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
        Ok((Self, Settings { port, ..Settings::default() }))
    }

    fn run(&mut self, listener: &TcpListener<'_>) -> io::Result<()> {
        loop {
            let (stream, _peer) = listener.accept()?;
            // What becomes of one connection is nothing to the next.
            let _ = echo(stream);
        }
    }
}

/// Sends back what comes until no more does.
fn echo(mut stream: TcpStream<'_>) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            count => stream.write_all(&bytes[..count])?,
        }
    }
}

pinion_sdk::export_program!(TcpEcho);
