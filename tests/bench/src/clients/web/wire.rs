//! A client's connection: TCP, or TLS over it. It does not block.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::event::PollFlags;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::clients::web::addresses::await_readiness;

/// A handshake does not take longer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The most bytes read at a time.
const PART_BYTES: usize = 4096;

/// What a client speaks over TCP.
#[derive(Clone, Debug)]
pub(crate) enum Speaks {
    /// Plain text.
    Plain,
    /// TLS, to a server of this name.
    Tls(Arc<ClientConfig>, ServerName<'static>),
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<Secure>),
}

/// A connection by TLS.
#[derive(Debug)]
pub(crate) struct Secure {
    pub(crate) stream: TcpStream,
    pub(crate) session: ClientConnection,
}

/// How far the kernel let a connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Something came.
    Bytes,
    /// There is nothing more now.
    Nothing,
}

impl Wire {
    /// Makes a connection of an open stream; by TLS, when the handshake is complete.
    ///
    /// # Errors
    /// The handshake fails.
    pub(crate) fn new(stream: TcpStream, speaks: &Speaks) -> anyhow::Result<Self> {
        let Speaks::Tls(config, name) = speaks else { return Ok(Self::Plain(stream)) };
        let mut secure = Secure::new(stream, config, name)?;
        secure.send().context("the handshake")?;
        while secure.session.is_handshaking() {
            await_readiness(&secure.stream, PollFlags::IN, HANDSHAKE_MAX).context("the handshake")?;
            secure.receive().context("the handshake")?;
            secure.send().context("the handshake")?;
        }
        Ok(Self::Tls(secure.into()))
    }

    /// Returns its TCP stream.
    pub(crate) fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(secure) => &secure.stream,
        }
    }

    /// Sends this. The last message must have been answered, so that there is room.
    ///
    /// # Errors
    /// There is no room, or the connection is closed.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes).context("a request"),
            Self::Tls(secure) => {
                secure.session.writer().write_all(bytes).context("a request")?;
                secure.send().context("a request")?;
                ensure!(!secure.session.wants_write(), "the kernel has no room for a request");
                Ok(())
            }
        }
    }

    /// Appends what has come, or a part of it.
    ///
    /// # Errors
    /// The connection is closed, or the server broke TLS.
    pub(crate) fn read(&mut self, into: &mut Vec<u8>) -> anyhow::Result<()> {
        match self {
            Self::Plain(stream) => {
                let mut part = [0; PART_BYTES];
                match stream.read(&mut part) {
                    Ok(0) => bail!("the server has closed a connection"),
                    Ok(count) => into.extend_from_slice(&part[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("a reply"),
                }
                Ok(())
            }
            Self::Tls(secure) => {
                secure.receive()?;
                secure.read_plain(into)?;
                secure.send()
            }
        }
    }
}

impl Secure {
    /// Makes a connection whose handshake has not begun.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn new(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
    ) -> anyhow::Result<Self> {
        Ok(Self { stream, session: ClientConnection::new(Arc::clone(config), name.clone())? })
    }

    /// Sends the records that are ready, as far as the kernel takes them.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn send(&mut self) -> anyhow::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes records from the kernel, once.
    ///
    /// # Errors
    /// The connection is closed, or the server broke TLS.
    pub(crate) fn receive(&mut self) -> anyhow::Result<Received> {
        match self.session.read_tls(&mut self.stream) {
            Ok(0) => bail!("the server has closed a connection"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
            Err(error) => return Err(error).context("a record"),
        }
        self.session.process_new_packets().context("a record")?;
        Ok(Received::Bytes)
    }

    /// Appends the plain text of all records that were taken.
    ///
    /// # Errors
    /// The server has ended its side.
    pub(crate) fn read_plain(&mut self, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut part = [0; PART_BYTES];
        loop {
            match self.session.reader().read(&mut part) {
                Ok(0) => bail!("the server has ended a session"),
                Ok(count) => into.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("plain text"),
            }
        }
    }
}
