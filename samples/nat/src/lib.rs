//! Source NAT with ports for IPv4: hosts inside share a few addresses outside.
//!
//! ```text
//!   inside                                                        outside
//!   10.0.0.7:5000  --translate.rs-->  203.0.113.1:31337  ------>  anybody
//!                          |
//!                     mappings.rs: by either end, with a timeout
//!                          |
//!   10.0.0.7:5000  <--translate.rs--  203.0.113.1:31337  <------  anybody
//! ```
//!
//! One instance is to have all packets of both directions: the rules that lead to its chain are `shared`.

#![forbid(unsafe_code)]

pub mod config;
pub mod mappings;
pub mod ports;
pub mod translate;

use config::{Config, Link};
use mappings::{Mappings, Refusal};
use pinion_sdk::headers::{Addresses, Headers};
use pinion_sdk::{Batch, Function, InitError, Packet, clock, info};
use translate::{Transit, Untranslated};

/// Time between two log lines.
const REPORT_INTERVAL_NS: u64 = 10_000_000_000;

/// What became of packets that were not translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// They would have needed a port, or a place in the table, and there was none.
    pub no_room: u64,
    /// They belong to nothing that began inside.
    pub no_mapping: u64,
    /// They have no ports that could be found: later fragments.
    pub fragments: u64,
    /// Not IPv4, neither from inside nor to outside, or of another protocol.
    pub unsupported: u64,
}

/// The function.
#[derive(Debug)]
pub struct Nat {
    /// Network and mask of each.
    inside: Vec<(u32, u32)>,
    to_inside: Link,
    to_outside: Link,
    mappings: Mappings,
    counters: Counters,
    reported: (u64, Counters),
}

impl Function for Nat {
    fn init(config: &[u8]) -> Result<Self, InitError> {
        let config: Config = pinion_sdk::config::parse(config)?;
        config.check()?;
        Ok(Self {
            inside: config.inside.iter().map(|net| (net.network().to_bits(), net.netmask().to_bits())).collect(),
            to_inside: config.to_inside,
            to_outside: config.to_outside,
            mappings: Mappings::new(&config),
            counters: Counters::default(),
            reported: (0, Counters::default()),
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
    }
}

impl Nat {
    /// What became of packets so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Mappings there are.
    #[must_use]
    pub fn mapping_count(&self) -> usize {
        self.mappings.len()
    }

    fn translate(&mut self, mut packet: Packet<'_>, now_ns: u64) {
        let Ok(headers) = Headers::of(packet.data()) else { return self.counters.unsupported += 1 };
        let Addresses::V4(addresses) = headers.addresses else { return self.counters.unsupported += 1 };
        if headers.fragment.is_some_and(|fragment| !fragment.is_first()) {
            return self.counters.fragments += 1;
        }
        let mut transit = Transit { frame: packet.data_mut(), headers, addresses };
        match self.pass(&mut transit, now_ns) {
            Ok(passage) => {
                let link = if passage == Passage::Out { self.to_outside } else { self.to_inside };
                if let (Some(mac), Some(to)) = (link.mac, packet.data_mut().get_mut(..6)) {
                    to.copy_from_slice(&mac.0);
                }
                if let (Some(mac), Some(from)) = (link.source_mac, packet.data_mut().get_mut(6..12)) {
                    from.copy_from_slice(&mac.0);
                }
                // Where one output leads both ways, as in a chain with a way back, it would lead a packet on.
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
            Err(Untranslated::Unsupported) => self.counters.unsupported += 1,
        }
    }

    /// Which way the packet goes, once it is translated.
    fn pass(&mut self, transit: &mut Transit<'_>, now_ns: u64) -> Result<Passage, Untranslated> {
        let to_outside = self.mappings.is_outside(transit.addresses.destination);
        match self.is_inside(transit.addresses.source) {
            true if to_outside => {
                // From one host inside to another by its outside address (RFC 4787, section 6).
                transit.outward(&mut self.mappings, now_ns)?;
                transit.inward(&mut self.mappings, now_ns)?;
                Ok(Passage::Turned)
            }
            true if is_public(transit.addresses.destination) && !self.is_inside(transit.addresses.destination) => {
                transit.outward(&mut self.mappings, now_ns)?;
                Ok(Passage::Out)
            }
            false if to_outside => {
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
            let Counters { no_room, no_mapping, fragments, unsupported } = self.counters;
            info!(
                "{} mappings; dropped so far: {no_room} for want of ports or places, {no_mapping} that belong to nothing, \
                 {fragments} later fragments, {unsupported} others",
                self.mappings.len()
            );
            self.reported = (now_ns, self.counters);
        }
    }
}

/// Between which sides a packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    /// From inside to outside.
    Out,
    /// From outside to inside.
    In,
    /// From inside to inside, by an address outside.
    Turned,
}

/// Of one host somewhere: no group, broadcast, loopback or this network.
fn is_public(address: u32) -> bool {
    let first = address >> 24;
    first != 0 && first != 127 && first < 224
}

pinion_sdk::export!(Nat);
