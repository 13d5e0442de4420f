//! A load balancer: each flow goes to one of several backends, and stays there.
//!
//! ```text
//!   configuration --config.rs--> Backends, and the table of maglev.rs                        once, when the chain is made
//!   frame --> its flow --backends.rs--> remembered, or by the table --> the backend's MAC    for each packet
//!   message: `drain web1` ...                                                                now and then
//! ```
//!
//! Only the frame's hardware addresses are changed: backends have the service's address themselves, and answer clients
//! directly. The SDK's table of fragments has the later fragments of a datagram follow the first one, which has the ports.

#![forbid(unsafe_code)]

pub mod backends;
pub mod config;
pub mod maglev;

use backends::{Backends, FLOW_SILENT_NS, State};
use config::{BackendConfig, Config, Mac};
use maglev::Backend;
use pinion_sdk::fragments::{Arrival, Fragments, Limits};
use pinion_sdk::headers::{Headers, TcpFlags};
use pinion_sdk::metrics::Counter;
use pinion_sdk::{Batch, Function, InitError, KeepAlive, Message, PAYLOAD_BYTES_MAX, Packet, Slots, clock, info};

/// The function.
#[derive(Debug)]
pub struct Balancer {
    backends: Backends,
    fragments: Fragments<Backend>,
    dropped: Dropped,
    mac: Option<Mac>,
    keep_alive: KeepAlive,
}

/// Packets that went to no backend, by reason.
#[derive(Debug)]
struct Dropped {
    unreadable: Counter,
    bad_error: Counter,
    no_backend: Counter,
}

impl Dropped {
    fn new() -> Self {
        let help = "Packets that were sent to no backend, by reason.";
        let [unreadable, bad_error, no_backend] = ["unreadable", "bad-error", "no-backend"]
            .map(|reason| Counter::with_labels("balancer_packets_dropped", help, &[("reason", reason)]));
        Self { unreadable, bad_error, no_backend }
    }
}

impl Function for Balancer {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config = Config::parse(config)?;
        Ok(Self {
            mac: config.mac,
            backends: Backends::new(config),
            fragments: Fragments::new("balancer", Limits::default()),
            dropped: Dropped::new(),
            keep_alive: KeepAlive::default(),
        })
    }

    fn start(&mut self) {
        self.backends.rekey();
        self.fragments.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.fragments.expire(now_ns);
        for packet in batch {
            match Message::of(packet) {
                Ok(message) => self.answer(message),
                Err(packet) => self.balance(packet, slots, now_ns),
            }
        }
        // The chain's idle time is meant for instances that remember nothing.
        self.keep_alive.until((self.flow_count() > 0).then_some(now_ns + FLOW_SILENT_NS));
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.fragments.deadline_ns()
    }

    fn expire(&mut self, _slots: Slots<'_>) {
        self.fragments.expire(clock::now_ns());
    }
}

impl Balancer {
    /// Returns the number of remembered flows.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.backends.flow_count()
    }

    /// Sends a packet to its flow's backend. A first fragment takes the later ones with it that came before.
    fn balance(&mut self, packet: Packet<'_>, slots: Slots<'_>, now_ns: u64) {
        let Ok(headers) = Headers::of_part(packet.data()) else { return self.dropped.unreadable.increment() };
        // Flows do not depend on the way that packets come by, and neither do fragments.
        match self.fragments.arrive(packet, &headers, 0, now_ns) {
            Arrival::Whole(packet) => {
                if let Some(backend) = self.choose(&headers, packet.data(), now_ns) {
                    self.send(packet, backend);
                }
            }
            Arrival::First(packet, first) => {
                let chosen = self.choose(&headers, packet.data(), now_ns);
                let passes = self.fragments.decide(first, chosen, now_ns);
                let Some(backend) = chosen else { return };
                if passes {
                    self.send(packet, backend);
                }
                while let Some(later) = self.fragments.next_held(first, slots, now_ns) {
                    self.send(later, backend);
                }
            }
            Arrival::Later(packet, backend) => self.send(packet, backend),
            Arrival::Taken => {}
        }
    }

    /// Chooses the backend for a packet that is whole, or a first fragment. Counts the packet if there is none.
    fn choose(&mut self, headers: &Headers, frame: &[u8], now_ns: u64) -> Option<Backend> {
        let portless = headers.without_ports();
        match headers.reported(frame) {
            Ok(None) => {
                let flow = headers.flow().unwrap_or(portless);
                let chosen = self.backends.choose(flow, is_syn(headers.tcp_flags), now_ns);
                match chosen {
                    // For errors that quote a fragment without ports of the answer.
                    Some(backend) if headers.fragment.is_some() => self.backends.remember(portless, backend, now_ns),
                    Some(_) => {}
                    None => self.dropped.no_backend.increment(),
                }
                chosen
            }
            // The quoted packet went from a backend to a client, so the flow of its answers is the known one.
            Ok(Some(quoted)) => {
                let portless = quoted.without_ports().reversed();
                let chosen = self.backends.choose_for_error(quoted.flow().map(|flow| flow.reversed()), portless);
                if chosen.is_none() {
                    self.dropped.bad_error.increment();
                }
                chosen
            }
            Err(_) => {
                self.dropped.bad_error.increment();
                None
            }
        }
    }

    fn send(&mut self, mut packet: Packet<'_>, backend: Backend) {
        let Some(BackendConfig { mac, output, .. }) = self.backends.take(backend) else {
            return self.dropped.no_backend.increment();
        };
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

fn is_syn(flags: Option<TcpFlags>) -> bool {
    flags.is_some_and(|flags| flags.syn() && !flags.ack())
}

pinion_sdk::export!(Balancer);
