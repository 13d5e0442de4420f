//! A load balancer: each flow goes to one of several backends, and stays there.
//!
//! ```text
//!   configuration --config.rs--> Backends, and the table of maglev.rs                        once, when the chain is made
//!   frame --> its flow --backends.rs--> remembered, or by the table --> the backend's MAC    for each packet
//!   message: `drain web1` ...                                                                now and then
//! ```
//!
//! Only the frame's hardware addresses are changed: backends have the service's address themselves, and answer clients directly.

#![forbid(unsafe_code)]

pub mod backends;
pub mod config;
pub mod maglev;

use backends::{Backends, State};
use config::{BackendConfig, Config, Mac};
use pinion_sdk::headers::{FlowKey, Headers, TcpFlags};
use pinion_sdk::{Batch, Function, InitError, KeepAlive, Message, PAYLOAD_BYTES_MAX, Packet, clock, info};

/// The function.
#[derive(Debug)]
pub struct Balancer {
    backends: Backends,
    mac: Option<Mac>,
    keep_alive: KeepAlive,
}

/// How long a silent flow must still find its backend: as long as established TCP may be silent (RFC 5382, REQ-5).
const FLOW_SILENT_NS: u64 = 7_440 * 1_000_000_000;

impl Function for Balancer {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config = Config::parse(config)?;
        Ok(Self { mac: config.mac, backends: Backends::new(config), keep_alive: KeepAlive::default() })
    }

    fn start(&mut self) {
        self.backends.rekey();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        for packet in batch {
            match Message::of(packet) {
                Ok(message) => self.answer(message),
                Err(packet) => self.balance(packet, now_ns),
            }
        }
        // The chain's idle time is meant for instances that remember nothing.
        self.keep_alive.until((self.flow_count() > 0).then_some(now_ns + FLOW_SILENT_NS));
    }
}

impl Balancer {
    /// Returns the number of remembered flows.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.backends.flow_count()
    }

    fn balance(&mut self, mut packet: Packet<'_>, now_ns: u64) {
        // An unreadable frame belongs to no backend, and is dropped.
        let Ok(headers) = Headers::of(packet.data()) else { return };
        let chosen = match headers.quoted(packet.data()) {
            // A quoted packet went from here to a client, so the flow of its answers is the known one. A backend that
            // answers in
            // fragments may have been asked by an unfragmented packet, so the quoted packet's ports are used if it has
            // them.
            Some(quoted) => {
                let portless = quoted.without_ports();
                self.backends.choose_for_error([quoted.flow().unwrap_or(portless).reversed(), portless.reversed()])
            }
            None if headers.icmp.is_some_and(|icmp| icmp.is_error) => {
                self.backends.choose_for_error([key(&headers), headers.without_ports()])
            }
            None => self.backends.choose(key(&headers), begins(headers.tcp_flags), now_ns),
        };
        let Some(BackendConfig { mac, output, .. }) = chosen else { return };
        let output = *output;
        if let Some(to) = packet.data_mut().first_chunk_mut::<6>() {
            *to = *mac;
        }
        if let (Some(own), Some(from)) = (self.mac, packet.data_mut().get_mut(6..12)) {
            from.copy_from_slice(&own);
        }
        packet.send_to(output);
    }

    #[cold]
    fn answer(&mut self, message: Message<'_>) {
        let words = str::from_utf8(message.payload()).unwrap_or_default();
        let mut words = words.split_ascii_whitespace();
        let answer = match (words.next(), words.next(), words.next()) {
            (Some("status"), None, _) => self.backends.status(),
            (Some("up"), Some(name), None) => self.set(name, State::Up),
            (Some("drain"), Some(name), None) => self.set(name, State::Draining),
            (Some("down"), Some(name), None) => self.set(name, State::Down),
            _ => "say `status`, `up NAME`, `drain NAME` or `down NAME`\n".to_owned(),
        };
        let end = answer.floor_char_boundary(PAYLOAD_BYTES_MAX);
        // It was truncated to what fits.
        let _ = message.answer(&answer.as_bytes()[..end]);
    }

    fn set(&mut self, name: &str, state: State) -> String {
        if !self.backends.set(name, state) {
            return format!("there is no backend {name}\n");
        }
        info!("backend {name} is now {state:?}");
        "ok\n".to_owned()
    }
}

/// Returns the flow of a packet. Fragments, and packets without ports, belong to one flow for each pair of addresses.
fn key(headers: &Headers) -> FlowKey {
    match headers.fragment {
        // All fragments of a datagram must go to one backend, and only the first has ports.
        Some(_) => headers.without_ports(),
        None => headers.flow().unwrap_or(headers.without_ports()),
    }
}

fn begins(flags: Option<TcpFlags>) -> bool {
    flags.is_some_and(|flags| flags.syn() && !flags.ack())
}

pinion_sdk::export!(Balancer);
