//! Source NAT with ports (NAPT) for IPv4: inside hosts share a few outside addresses.
//!
//! ```text
//!   inside                                                        outside
//!   10.0.0.7:5000  --translate.rs-->  203.0.113.1:31337  ------>  any peer
//!                          |
//!                     mappings.rs: the mappings, with timeouts;  connections.rs: TCP connections
//!                          |
//!   10.0.0.7:5000  <--translate.rs--  203.0.113.1:31337  <------  any peer
//! ```
//!
//! The SDK's table of fragments has the later fragments of a datagram follow the first one, which has the ports. One
//! instance must see all packets of both directions: the rules that lead to its chain are `shared`.

#![forbid(unsafe_code)]

pub mod config;
pub mod connections;
mod counters;
pub mod mappings;
pub mod ports;
pub mod translate;

use config::{Config, Link};
pub use counters::Counters;
use counters::PacketCounters;
use mappings::Mappings;
use pinion_sdk::fragments::{Arrival, Fragments, Limits};
use pinion_sdk::headers::{Addresses, Headers, Pair};
use pinion_sdk::{Batch, Function, InitError, KeepAlive, Packet, Side, Slots, clock, info, warn};
use translate::{Transit, Untranslated};

/// Time between two log lines.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// The function.
#[derive(Debug)]
pub struct Nat {
    /// Network and mask of each inside network.
    inside: Vec<(u32, u32)>,
    inside_ports: Vec<u16>,
    to_inside: Link,
    to_outside: Link,
    mappings: Mappings,
    /// For each datagram in fragments, the addresses that its first fragment has now.
    fragments: Fragments<Pair<u32>>,
    counters: PacketCounters,
    reported: (u64, Counters),
    keep_alive: KeepAlive,
    believed: Believed,
}

/// The node's ports on which packets came that only their source address tells to be from inside.
#[derive(Clone, Copy, Debug, Default)]
struct Believed {
    port: Option<u16>,
    warned: bool,
}

impl Believed {
    /// Warns once if there are several ports: one of them may lead outside, and `inside` addresses from there are
    /// forged.
    #[inline]
    fn note(&mut self, port: u16) {
        let first = *self.port.get_or_insert(port);
        if first != port && !self.warned {
            self.warned = true;
            warn!(
                "packets with `inside` source addresses come by the node's ports {first} and {port}, so forged ones cannot be detected: \
                 set `inside_ports`, or use a chain with `reverse`"
            );
        }
    }
}

/// The side from which a packet came, as the node knows it.
#[derive(Clone, Copy, Debug)]
struct Origin {
    side: Side,
    /// Another stage of the chain has made the packet, so its source may be of any network.
    is_reply: bool,
}

impl Function for Nat {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config: Config = pinion_sdk::config::parse(config)?;
        config.check()?;
        Ok(Self {
            inside: config.inside.iter().map(|net| (net.network().to_bits(), net.netmask().to_bits())).collect(),
            inside_ports: config.inside_ports.clone(),
            to_inside: config.to_inside,
            to_outside: config.to_outside,
            mappings: Mappings::new(&config),
            fragments: Fragments::new("nat", Limits::default()),
            counters: PacketCounters::new(),
            reported: (0, Counters::default()),
            keep_alive: KeepAlive::default(),
            believed: Believed::default(),
        })
    }

    fn start(&mut self) {
        self.mappings.rekey();
        self.fragments.start();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let (slots, now_ns) = (batch.slots(), clock::now_ns());
        self.mappings.expire(now_ns);
        self.fragments.expire(now_ns);
        for packet in batch {
            self.translate(packet, slots, now_ns);
        }
        if self.counters() != self.reported.1 {
            self.report(now_ns);
        }
        // The chain's idle time is meant for instances that remember nothing.
        self.keep_alive.until(self.mappings.needed_until_ns());
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.fragments.deadline_ns()
    }

    fn expire(&mut self, _slots: Slots<'_>) {
        self.fragments.expire(clock::now_ns());
    }
}

impl Nat {
    /// Returns the counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.values(self.fragments.dropped())
    }

    /// Returns the number of mappings.
    #[must_use]
    pub fn mapping_count(&self) -> usize {
        self.mappings.len()
    }

    /// Returns the number of TCP connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.mappings.connection_count()
    }

    /// Translates a packet and sends it on. A first fragment takes the later ones with it that came before.
    fn translate(&mut self, packet: Packet<'_>, slots: Slots<'_>, now_ns: u64) {
        // The table of fragments refuses those that overlap.
        let Ok(headers) = Headers::of_part(packet.data()) else {
            return self.counters.count(Untranslated::Unsupported);
        };
        let Addresses::V4(addresses) = headers.addresses else {
            return self.counters.count(Untranslated::Unsupported);
        };
        let origin = packet.side(&self.inside_ports).map(|side| Origin { side, is_reply: packet.is_reply() });
        let passage = match self.passage(addresses, origin) {
            Ok(passage) => passage,
            Err(why) => return self.counters.count(why),
        };
        match self.fragments.arrive(packet, &headers, passage as u16, now_ns) {
            Arrival::Whole(mut packet) => match self.pass(&mut packet, headers, addresses, passage, now_ns) {
                Ok(_) => self.send(packet, passage),
                Err(why) => self.counters.count(why),
            },
            Arrival::First(mut packet, first) => {
                let translated = self.pass(&mut packet, headers, addresses, passage, now_ns);
                let passes = self.fragments.decide(first, translated.ok(), now_ns);
                let now = match translated {
                    Ok(now) => now,
                    Err(why) => return self.counters.count(why),
                };
                if passes {
                    self.send(packet, passage);
                }
                while let Some(later) = self.fragments.next_held(first, slots, now_ns) {
                    self.follow(later, now, passage);
                }
            }
            Arrival::Later(packet, now) => self.follow(packet, now, passage),
            Arrival::Taken => {}
        }
    }

    /// Returns which way a packet with these addresses goes.
    fn passage(&self, addresses: Pair<u32>, origin: Option<Origin>) -> Result<Passage, Untranslated> {
        let Pair { source, destination } = addresses;
        let (is_inside, to_outside) = (self.is_inside(source), self.mappings.is_outside(destination));
        let side = match origin {
            // The source is believed if nothing else tells the side.
            None if is_inside => Side::Inside,
            None => Side::Outside,
            Some(Origin { side, is_reply: false }) if is_inside != (side == Side::Inside) => {
                return Err(Untranslated::Spoofed);
            }
            Some(Origin { side, .. }) => side,
        };
        match side {
            Side::Inside if !is_inside => Err(Untranslated::Unsupported),
            // From an inside host to another one by its outside address (RFC 4787, section 6).
            Side::Inside if to_outside => Ok(Passage::Turned),
            Side::Inside if is_public(destination) && !self.is_inside(destination) => Ok(Passage::Out),
            // Nothing but the translator sends from its addresses.
            Side::Outside if self.mappings.is_outside(source) && !origin.is_some_and(|it| it.is_reply) => {
                Err(Untranslated::Spoofed)
            }
            Side::Outside if to_outside => Ok(Passage::In),
            _ => Err(Untranslated::Unsupported),
        }
    }

    /// Translates a packet that is whole, or a first fragment; returns the addresses that it has then.
    fn pass(
        &mut self,
        packet: &mut Packet<'_>,
        headers: Headers,
        addresses: Pair<u32>,
        passage: Passage,
        now_ns: u64,
    ) -> Result<Pair<u32>, Untranslated> {
        let mut transit = Transit { frame: packet.data_mut(), headers, addresses };
        if passage != Passage::In {
            transit.outward(&mut self.mappings, now_ns)?;
        }
        if passage != Passage::Out {
            transit.inward(&mut self.mappings, now_ns)?;
        }
        Ok(transit.addresses)
    }

    /// Gives a later fragment the addresses of its first one, and sends it the same way. It has no ports, and no
    /// checksum but that of its IP header.
    fn follow(&mut self, mut packet: Packet<'_>, now: Pair<u32>, passage: Passage) {
        let translated = Headers::of_part(packet.data())
            .ok()
            .and_then(|mut headers| headers.set_addresses(packet.data_mut(), Addresses::V4(now)).ok());
        match translated {
            Some(()) => self.send(packet, passage),
            None => self.counters.count(Untranslated::Unsupported),
        }
    }

    fn send(&mut self, mut packet: Packet<'_>, passage: Passage) {
        self.counters.translated.increment();
        if passage != Passage::In && packet.side(&self.inside_ports).is_none() {
            self.believed.note(packet.ingress_port());
        }
        let link = if passage == Passage::Out { self.to_outside } else { self.to_inside };
        if let (Some(mac), Some(to)) = (link.mac, packet.data_mut().get_mut(..6)) {
            to.copy_from_slice(&mac.0);
        }
        if let (Some(mac), Some(from)) = (link.source_mac, packet.data_mut().get_mut(6..12)) {
            from.copy_from_slice(&mac.0);
        }
        // If one output leads both ways, as in a chain with a way back, that output would lead the packet on.
        if passage == Passage::Turned && self.to_inside.output == self.to_outside.output {
            packet.reply();
        } else {
            packet.send_to(link.output);
        }
    }

    fn is_inside(&self, address: u32) -> bool {
        self.inside.iter().any(|(network, mask)| address & mask == *network)
    }

    #[cold]
    fn report(&mut self, now_ns: u64) {
        if self.reported.1 == Counters::default() || now_ns - self.reported.0 >= REPORT_INTERVAL_NS {
            let counters = self.counters();
            let Counters { no_room, no_mapping, bad_errors, fragments, spoofed, unsupported } = counters;
            let spoofed = match spoofed {
                0 => String::new(),
                _ => format!(", {spoofed} with a source of the other side"),
            };
            info!(
                "{} mappings; dropped so far: {no_room} without a free port or entry, {no_mapping} without a mapping, \
                 {bad_errors} ICMP errors about none, {fragments} fragments, {unsupported} others{spoofed}",
                self.mappings.len()
            );
            self.reported = (now_ns, counters);
        }
    }
}

/// The sides between which a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    /// From inside to outside.
    Out,
    /// From outside to inside.
    In,
    /// From inside to inside, by an outside address.
    Turned,
}

/// Returns whether it is the address of a single host elsewhere: not multicast, broadcast, loopback or this network.
fn is_public(address: u32) -> bool {
    let first = address >> 24;
    first != 0 && first != 127 && first < 224
}

pinion_sdk::export!(Nat);
