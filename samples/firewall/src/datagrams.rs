//! Datagrams in fragments whose first fragment has passed, and the fragments of each that have come since.
//!
//! ```text
//!   first --judged like a whole packet--> begin --> an entry for 30 s
//!   later --> follow --> new, or seen before: passes
//!                    --> overlaps another: the datagram ends, no more of it passes
//! ```
//!
//! Only the first fragment tells what the datagram is: later fragments of IPv6 may carry any protocol (RFC 8200, 4.5).
//! The headers that were judged must be those that the receiver reassembles, however it treats overlaps. So a fragment
//! that overlaps ends its datagram, as it does with receivers (RFC 5722; Linux does the same with IPv4).

use core::ops::Range;

use pinion_sdk::headers::{FlowKey, Fragment, Headers};
use pinion_sdk::table::Table;

/// Most datagrams whose other fragments may still come.
const DATAGRAMS_MAX: usize = 256;
/// How long they are remembered, which is as long as receivers wait for fragments.
const DATAGRAM_NS: u64 = 30_000_000_000;
/// Most fragments of a datagram: more than the longest datagram has with the least MTU of IPv6.
const PARTS_MAX: usize = 64;
/// The longest datagram.
const BYTES_MAX: usize = 65_535;

/// Result for a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It belongs to a known datagram.
    GoesOn,
    /// There is no such datagram, or it has ended.
    Nothing,
}

/// What the fragments of a datagram have in common: addresses, in IPv4 the protocol, and the identification.
type Key = (FlowKey, u32);

/// The datagrams whose first fragment has passed.
#[derive(Debug)]
pub struct Datagrams {
    table: Table<Key, Datagram>,
}

/// The fragments of a datagram that have come.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    /// Start and end of each; the first fragment is at index 0.
    parts: [(u16, u16); PARTS_MAX],
    count: usize,
    is_over: bool,
}

impl Datagram {
    fn begun_by(first: (u16, u16)) -> Self {
        let mut parts = [(0, 0); PARTS_MAX];
        parts[0] = first;
        Self { parts, count: 1, is_over: false }
    }

    fn end(&mut self) -> Part {
        self.is_over = true;
        Part::Nothing
    }

    fn add(&mut self, part: (u16, u16)) -> Part {
        let seen = &self.parts[..self.count];
        if self.is_over {
            Part::Nothing
        } else if seen.contains(&part) {
            // A duplicate frame.
            Part::GoesOn
        } else if self.count == PARTS_MAX || seen.iter().any(|(start, end)| part.0 < *end && *start < part.1) {
            self.end()
        } else {
            self.parts[self.count] = part;
            self.count += 1;
            Part::GoesOn
        }
    }
}

impl Datagrams {
    /// Makes an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { table: Table::new(DATAGRAMS_MAX, &[DATAGRAM_NS]) }
    }

    /// Draws the table's hash key.
    pub fn start(&mut self) {
        self.table.start();
    }

    /// Adds the datagram of a first fragment that may pass. Refuses it if the datagram has ended, or if its first
    /// fragment differs from the earlier one.
    ///
    /// IPv4 has so few identifications that a busy host uses them again within the time. So there a first fragment
    /// always begins another datagram.
    pub fn begin(&mut self, headers: &Headers, fragment: Fragment, frame: &[u8], now_ns: u64) -> Part {
        let (key, Some(part)) = (key(headers, fragment), part(headers, frame)) else { return Part::Nothing };
        let is_v6 = headers.addresses.source().is_ipv6();
        if let Some(known) = self.table.get(&key, now_ns).filter(|_| is_v6) {
            return if known.parts[0] == part { known.add(part) } else { known.end() };
        }
        if self.table.insert(key, Datagram::begun_by(part), 0, now_ns).is_err() {
            self.table.evict(0);
            let _ = self.table.insert(key, Datagram::begun_by(part), 0, now_ns);
        }
        Part::GoesOn
    }

    /// Adds a later fragment; returns whether its datagram is still valid with it.
    pub fn follow(&mut self, headers: &Headers, fragment: Fragment, frame: &[u8], now_ns: u64) -> Part {
        let Some(datagram) = self.table.get(&key(headers, fragment), now_ns) else { return Part::Nothing };
        match part(headers, frame) {
            Some(part) => datagram.add(part),
            None => datagram.end(),
        }
    }
}

impl Default for Datagrams {
    fn default() -> Self {
        Self::new()
    }
}

fn key(headers: &Headers, fragment: Fragment) -> Key {
    (headers.without_ports(), fragment.id)
}

/// Returns start and end of a fragment's bytes; none if it has none, or if they are beyond the longest datagram.
fn part(headers: &Headers, frame: &[u8]) -> Option<(u16, u16)> {
    let Range { start, end } = headers.part(frame)?;
    let is_possible = start < end && end <= BYTES_MAX;
    is_possible.then_some((start as u16, end as u16))
}
