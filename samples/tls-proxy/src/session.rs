//! One TLS connection over one of TCP: [`Session`], and its plain text for reads and writes: [`Secure`].
//!
//! ```text
//!   Stream --read_tls--> rustls --> read     at most one record more than was asked for
//!   Stream <--write_tls-- rustls <-- flush <-- write     at most what the stream has room for
//! ```
//!
//! Nothing is kept here that the peer may grow: records wait in TCP's own buffers, and the peer's window closes.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use http_server::Transport;
use pinion_sdk::net::Stream;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection};

/// Most bytes of plain text in a record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 1 << 14;
/// Most bytes by which a record of any offered suite is longer than its plain text: a header of 5, 8 of a nonce in TLS 1.2, a type, a tag.
const OVERHEAD_BYTES: usize = 5 + 8 + 1 + 16;

/// One end of a TLS connection.
#[derive(Debug)]
pub(crate) struct Session(Connection);

/// How far a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// The peer has to send more.
    UnderWay,
    /// Both sides know that it is complete.
    Done,
}

impl Session {
    /// Begins to wait for a client's hello.
    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        ServerConnection::new(config).map(|server| Self(server.into()))
    }

    /// Begins a handshake with a server of this name.
    pub(crate) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        ClientConnection::new(config, name).map(|client| Self(client.into()))
    }

    /// Goes on with the handshake as far as the peer has sent its part.
    ///
    /// # Errors
    ///
    /// What the peer has done wrong; it was sent an alert that says so.
    pub(crate) fn shake_hands(&mut self, stream: &mut Stream<'_>) -> io::Result<Handshake> {
        self.send(stream)?;
        while self.0.is_handshaking() {
            match self.receive(stream)? {
                Received::Bytes => {}
                Received::Nothing => return Ok(Handshake::UnderWay),
                Received::End => return Err(ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(Handshake::Done)
    }

    /// Returns whether the handshake resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.0.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    /// Tells the peer that no more comes (RFC 8446, section 6.1).
    pub(crate) fn end(&mut self, stream: &mut Stream<'_>) {
        self.0.send_close_notify();
        // A peer that has not even room for that gets no more.
        let _ = self.send(stream);
    }

    /// Reads what has come, and sends what answers it.
    fn receive(&mut self, stream: &mut Stream<'_>) -> io::Result<Received> {
        match self.0.read_tls(stream) {
            Ok(0) => return Ok(Received::End),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Received::Nothing),
            Err(error) => return Err(error),
        }
        let outcome = self.0.process_new_packets();
        if let Err(error) = &outcome
            && let Some(alert) = self.missing_alert(error)
        {
            // A peer that has not even room for that gets no alert.
            let _ = stream.write(&alert);
        }
        // Of an error, the alert.
        self.send(stream)?;
        outcome.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        Ok(Received::Bytes)
    }

    /// Returns a record with the alert for an error that rustls has none for, if nothing is encrypted yet (RFC 8446, section 6.2).
    fn missing_alert(&self, error: &Error) -> Option<[u8; 7]> {
        if self.0.wants_write() || self.0.negotiated_cipher_suite().is_some() {
            return None;
        }
        let description = match error {
            Error::InvalidMessage(_) => AlertDescription::DecodeError,
            Error::PeerMisbehaved(_) => AlertDescription::UnexpectedMessage,
            _ => return None,
        };
        Some([21, 3, 3, 0, 2, 2, description.into()])
    }

    /// Sends the records that are ready, as far as there is room.
    fn send(&mut self, stream: &mut Stream<'_>) -> io::Result<()> {
        while self.0.wants_write() {
            match self.0.write_tls(stream) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What was read.
enum Received {
    Bytes,
    Nothing,
    /// The peer sends no more.
    End,
}

/// A session's plain text.
pub(crate) struct Secure<'s, 't> {
    session: &'s mut Session,
    stream: &'s mut Stream<'t>,
    /// Plain text that was written and is not in a record yet.
    plain: &'s mut Vec<u8>,
}

impl<'s, 't> Secure<'s, 't> {
    /// Makes the plain text of a session over a stream. `plain` is memory to work with, whose contents are forgotten.
    pub(crate) fn new(session: &'s mut Session, stream: &'s mut Stream<'t>, plain: &'s mut Vec<u8>) -> Self {
        plain.clear();
        Self { session, stream, plain }
    }

    fn seal(&mut self) -> io::Result<()> {
        let sealed = self.session.0.writer().write_all(self.plain);
        self.plain.clear();
        sealed.and_then(|()| self.session.send(self.stream))
    }
}

impl Read for Secure<'_, '_> {
    /// As of [`Stream`]. An end without the peer's own word that it is one is [`ErrorKind::UnexpectedEof`]: something may be missing.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.0.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if let Received::Nothing = self.session.receive(self.stream)? {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
}

impl Write for Secure<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.room()).min(RECORD_BYTES - self.plain.len());
        if count == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.plain.extend_from_slice(&bytes[..count]);
        if self.plain.len() == RECORD_BYTES {
            self.seal()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.plain.is_empty() { self.session.send(self.stream) } else { self.seal() }
    }
}

impl Transport for Secure<'_, '_> {
    fn room(&mut self) -> usize {
        let room = if self.session.0.wants_write() { 0 } else { self.stream.room() };
        plain_of(room).saturating_sub(self.plain.len())
    }

    fn buffer_room(&mut self) -> usize {
        self.stream.room()
    }
}

/// Returns how many bytes of plain text fit into so many bytes of records.
fn plain_of(sealed: usize) -> usize {
    sealed.saturating_sub(OVERHEAD_BYTES * (sealed / RECORD_BYTES + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_what_there_is_room_for_fit_into_it() {
        for sealed in (0..200_000).step_by(7) {
            let plain = plain_of(sealed);
            let records = plain.div_ceil(RECORD_BYTES);
            assert!(plain + records * OVERHEAD_BYTES <= sealed, "{plain} bytes in {sealed}");
        }
    }
}
