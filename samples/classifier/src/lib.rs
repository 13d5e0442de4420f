//! Says what an image shows: over HTTP by `POST /classify`, and for messages. The node runs the network; this function reads images and answers.
//!
//! ```text
//!   bytes --> exchange.rs   head and content of a request --+
//!                                                           +--> image.rs  32 x 32 pixels --> verdict.rs  the model, its answer as JSON
//!   message ------------------------------------------------+
//! ```
//!
//! A connection holds at most one request, of which the content has at most [`image::CONTENT_BYTES_MAX`] bytes. The instance sleeps while the
//! node runs the model, so a client's requests are answered one after another.

#![forbid(unsafe_code)]

mod exchange;
pub mod image;
pub mod verdict;

use std::io::{ErrorKind, Read, Write};

pub use exchange::Connection;
use exchange::{Answer, HEAD_ROOM, Step};
use pinion_sdk::net::{Server, Service, Settings, Sockets, Stream};
use pinion_sdk::{InitError, Message, Packet, clock, config};
use serde::Deserialize;
use verdict::Classifier;

/// Bytes that are read from a connection at a time.
const PART_BYTES: usize = 4096;

/// A configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    /// The port on which the function listens.
    port: u16,
    /// Most connections at once.
    connections: u16,
    /// The name under which the stage was granted the model.
    model: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { port: 80, connections: 64, model: "cifar".to_owned() }
    }
}

/// The service.
pub struct ClassifierService {
    classifier: Classifier,
}

impl Service for ClassifierService {
    type Connection = Connection;

    fn init(config: &[u8]) -> Result<(Self, Settings), InitError> {
        let Config { port, connections, model } = config::parse(config)?;
        let settings = Settings { tcp_ports: vec![port], connections_max: connections, ..Settings::default() };
        Ok((Self { classifier: Classifier::new(&model)? }, settings))
    }

    fn accept(&mut self, _stream: &mut Stream<'_>) -> Connection {
        Connection::new(clock::now_ns())
    }

    fn ready(&mut self, connection: &mut Connection, stream: &mut Stream<'_>) {
        let mut part = [0; PART_BYTES];
        loop {
            // A client that does not take its answers gets no further ones.
            if stream.room() < HEAD_ROOM {
                return stream.wake_at(Some(connection.deadline_ns()));
            }
            let answer = match connection.step() {
                Step::Classify => {
                    let verdict = self.classifier.classify(connection.content());
                    connection.answer(&verdict, clock::now_ns())
                }
                Step::Answer(answer) => answer,
                Step::More => match stream.read(&mut part) {
                    Ok(count @ 1..) => {
                        connection.receive(&part[..count]);
                        continue;
                    }
                    Err(error)
                        if error.kind() == ErrorKind::WouldBlock && clock::now_ns() < connection.deadline_ns() =>
                    {
                        return stream.wake_at(Some(connection.deadline_ns()));
                    }
                    _ => return stream.close(),
                },
            };
            let Answer { bytes, is_last } = answer;
            if stream.write_all(&bytes).is_err() {
                return stream.abort();
            }
            if is_last {
                return stream.close();
            }
        }
    }

    fn packet(&mut self, packet: Packet<'_>, sockets: Sockets<'_>) {
        match Message::of(packet) {
            Ok(message) => {
                let verdict = self.classifier.classify(message.payload());
                // All verdicts are shorter than a message.
                let _ = message.answer(verdict.to_json().as_bytes());
            }
            Err(other) => sockets.refuse(other),
        }
    }
}

pinion_sdk::export!(Server<ClassifierService>);
