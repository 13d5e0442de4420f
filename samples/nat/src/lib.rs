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
//! One instance must see all packets of both directions: the rules that lead to its chain are `shared`.

#![forbid(unsafe_code)]

pub mod config;
pub mod connections;
pub mod mappings;
pub mod ports;
pub mod translate;

use config::{Config, Link};
use mappings::{Mappings, Refusal};
use pinion_sdk::headers::{Addresses, Headers};
use pinion_sdk::{Batch, Function, InitError, KeepAlive, Packet, Side, clock, info, warn};
use translate::{Transit, Untranslated};

/// Time between two log lines.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// Counts of packets that were not translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// No port or table entry was free for them.
    pub no_room: u64,
    /// They belong to no mapping.
    pub no_mapping: u64,
    /// They are later fragments, which have no ports.
    pub fragments: u64,
    /// Their source does not belong to the side that they came from (RFC 3704).
    pub spoofed: u64,
    /// They are not IPv4, neither from inside nor for an outside address, or of another protocol.
    pub unsupported: u64,
}

/// The function.
#[derive(Debug)]
pub struct Nat {
    /// Network and mask of each inside network.
    inside: Vec<(u32, u32)>,
    inside_ports: Vec<u16>,
    to_inside: Link,
    to_outside: Link,
    mappings: Mappings,
    counters: Counters,
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
            counters: Counters::default(),
            reported: (0, Counters::default()),
            keep_alive: KeepAlive::default(),
            believed: Believed::default(),
        })
    }

    fn start(&mut self) {
        self.mappings.rekey();
    }

    fn handle(&mut self, batch: Batch<'_>) {
        let now_ns = clock::now_ns();
        self.mappings.expire(now_ns);
        for packet in batch {
            self.translate(packet, now_ns);
        }
        if self.counters != self.reported.1 {
            self.report(now_ns);
        }
        // The chain's idle time is meant for instances that remember nothing.
        self.keep_alive.until(self.mappings.needed_until_ns());
    }
}

impl Nat {
    /// Returns the counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
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

    fn translate(&mut self, mut packet: Packet<'_>, now_ns: u64) {
        let Ok(headers) = Headers::of(packet.data()) else { return self.counters.unsupported += 1 };
        let Addresses::V4(addresses) = headers.addresses else { return self.counters.unsupported += 1 };
        if headers.fragment.is_some_and(|fragment| !fragment.is_first()) {
            return self.counters.fragments += 1;
        }
        let origin = packet.side(&self.inside_ports).map(|side| Origin { side, is_reply: packet.is_reply() });
        let mut transit = Transit { frame: packet.data_mut(), headers, addresses };
        match self.pass(&mut transit, origin, now_ns) {
            Ok(passage) => {
                if origin.is_none() && passage != Passage::In {
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
            Err(Untranslated::Refused(Refusal::NoConnection) | Untranslated::NoMapping) => {
                self.counters.no_mapping += 1;
            }
            Err(Untranslated::Refused(_)) => self.counters.no_room += 1,
            Err(Untranslated::Spoofed) => self.counters.spoofed += 1,
            Err(Untranslated::Unsupported) => self.counters.unsupported += 1,
        }
    }

    /// Translates the packet; returns which way it goes then.
    fn pass(
        &mut self,
        transit: &mut Transit<'_>,
        origin: Option<Origin>,
        now_ns: u64,
    ) -> Result<Passage, Untranslated> {
        let to_outside = self.mappings.is_outside(transit.addresses.destination);
        let is_inside = self.is_inside(transit.addresses.source);
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
            Side::Inside if to_outside => {
                // From an inside host to another one by its outside address (RFC 4787, section 6).
                transit.outward(&mut self.mappings, now_ns)?;
                transit.inward(&mut self.mappings, now_ns)?;
                Ok(Passage::Turned)
            }
            Side::Inside
                if is_public(transit.addresses.destination) && !self.is_inside(transit.addresses.destination) =>
            {
                transit.outward(&mut self.mappings, now_ns)?;
                Ok(Passage::Out)
            }
            Side::Outside if to_outside => {
                transit.inward(&mut self.mappings, now_ns)?;
                Ok(Passage::In)
            }
            _ => Err(Untranslated::Unsupported),
        }
    }

    fn is_inside(&self, address: u32) -> bool {
        self.inside.iter().any(|(network, mask)| address & mask == *network)
    }

    #[cold]
    fn report(&mut self, now_ns: u64) {
        if self.reported.1 == Counters::default() || now_ns - self.reported.0 >= REPORT_INTERVAL_NS {
            let Counters { no_room, no_mapping, fragments, spoofed, unsupported } = self.counters;
            let spoofed = match spoofed {
                0 => String::new(),
                _ => format!(", {spoofed} with a source of the other side"),
            };
            info!(
                "{} mappings; dropped so far: {no_room} without a free port or entry, {no_mapping} without a mapping, \
                 {fragments} later fragments, {unsupported} others{spoofed}",
                self.mappings.len()
            );
            self.reported = (now_ns, self.counters);
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
