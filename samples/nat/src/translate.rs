//! Translates one packet in place: addresses, ports, echo identifiers, and the packets that ICMP errors quote.
//!
//! All checksums are updated and none is computed, so a damaged packet stays detectable.

use pinion_sdk::checksum;
use pinion_sdk::headers::{Addresses, Headers, Pair, Segment};

use crate::mappings::{Endpoint, Mappings, Protocol, Refusal};

/// The longest IPv4 header and the TCP header: as much of a quoted packet as can change. An even number.
const QUOTED_MAX: usize = 60 + 20;
const ICMP_CHECKSUM_AT: usize = 2;

/// Why a packet is not translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untranslated {
    /// Its protocol or kind of message has no ports.
    Unsupported,
    /// It comes from outside and belongs to no mapping.
    NoMapping,
    /// It is an ICMP error that reports on no packet of a mapping, or of a kind that hosts ignore.
    BadError,
    /// Its source does not belong to the side that it comes from.
    Spoofed,
    /// It needs a mapping, which was refused.
    Refused(Refusal),
}

/// An IPv4 packet in transit: its bytes and its parsed headers.
pub struct Transit<'a> {
    /// The frame.
    pub frame: &'a mut [u8],
    /// The frame's headers.
    pub headers: Headers,
    /// The packet's current addresses.
    pub addresses: Pair<u32>,
}

impl Transit<'_> {
    /// Translates a packet from inside: replaces its source by the outside end.
    ///
    /// # Errors
    ///
    /// The packet is not translated, and must be dropped.
    pub fn outward(&mut self, mappings: &mut Mappings, now_ns: u64) -> Result<(), Untranslated> {
        if let Some(quoted) = self.quoted()? {
            let inside = ends(&quoted).map(|it| it.destination).ok_or(Untranslated::BadError)?;
            let outside = mappings.outside_of(inside, now_ns).ok_or(Untranslated::BadError)?;
            self.rewrite_quoted(quoted, Side::Destination, outside)?;
            return self.set_address(Side::Source, outside.address);
        }
        let Pair { source: inside, destination: peer } = ends(&self.headers).ok_or(Untranslated::Unsupported)?;
        if self.headers.icmp.is_some_and(|icmp| icmp.echo.is_none_or(|echo| !echo.is_request)) {
            return Err(Untranslated::Unsupported);
        }
        let outside = mappings.outward(inside, peer, self.segment(), now_ns).map_err(Untranslated::Refused)?;
        self.set_end(Side::Source, outside)
    }

    /// Translates a packet to an outside address: replaces its destination by the inside end.
    ///
    /// # Errors
    ///
    /// The packet is not translated, and must be dropped.
    pub fn inward(&mut self, mappings: &mut Mappings, now_ns: u64) -> Result<(), Untranslated> {
        if let Some(quoted) = self.quoted()? {
            let outside = ends(&quoted).map(|it| it.source).ok_or(Untranslated::BadError)?;
            let inside = mappings.inside_of(outside, now_ns).ok_or(Untranslated::BadError)?;
            self.rewrite_quoted(quoted, Side::Source, inside)?;
            return self.set_address(Side::Destination, inside.address);
        }
        let Pair { source: peer, destination: outside } = ends(&self.headers).ok_or(Untranslated::Unsupported)?;
        if self.headers.icmp.is_some_and(|icmp| icmp.echo.is_none_or(|echo| echo.is_request)) {
            return Err(Untranslated::Unsupported);
        }
        let inside = mappings.inward(outside, peer, self.segment(), now_ns).ok_or(Untranslated::NoMapping)?;
        self.set_end(Side::Destination, inside)
    }

    fn segment(&self) -> Option<Segment> {
        Segment::of(&self.headers, self.frame)
    }

    /// Returns the headers of the packet that an error reports on; none, if the packet is not an error.
    fn quoted(&self) -> Result<Option<Headers>, Untranslated> {
        self.headers.reported(self.frame).map_err(|_| Untranslated::BadError)
    }

    fn set_end(&mut self, side: Side, end: Endpoint) -> Result<(), Untranslated> {
        put_end(&mut self.headers, self.frame, side, end)?;
        self.addresses = side.replaced(self.addresses, end.address);
        Ok(())
    }

    fn set_address(&mut self, side: Side, address: u32) -> Result<(), Untranslated> {
        self.addresses = side.replaced(self.addresses, address);
        self.headers.set_addresses(self.frame, Addresses::V4(self.addresses)).map_err(|_| Untranslated::Unsupported)
    }

    /// Translates one end of the quoted packet, and updates the checksum of the error, which covers it.
    fn rewrite_quoted(&mut self, mut quoted: Headers, side: Side, end: Endpoint) -> Result<(), Untranslated> {
        let start = self.headers.at.payload;
        // An odd last byte is payload, and does not change.
        let len = (self.headers.at.end - start).min(QUOTED_MAX) & !1;
        let mut before = [0; QUOTED_MAX];
        before[..len].copy_from_slice(&self.frame[start..start + len]);
        put_end(&mut quoted, self.frame, side, end)?;
        let sum_at = self.headers.at.transport + ICMP_CHECKSUM_AT;
        let sum = u16::from_be_bytes([self.frame[sum_at], self.frame[sum_at + 1]]);
        let sum = checksum::update_bytes(sum, &before[..len], &self.frame[start..start + len]);
        self.frame[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}

/// One of the two ends of a packet.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Source,
    Destination,
}

impl Side {
    fn replaced<T>(self, pair: Pair<T>, new: T) -> Pair<T> {
        match self {
            Self::Source => Pair { source: new, ..pair },
            Self::Destination => Pair { destination: new, ..pair },
        }
    }
}

/// Returns a packet's ends; an echo has its identifier on both.
fn ends(headers: &Headers) -> Option<Pair<Endpoint>> {
    let Addresses::V4(addresses) = headers.addresses else { return None };
    let flow = headers.flow()?;
    let protocol = Protocol::of(flow.protocol)?;
    Some(Pair {
        source: Endpoint { protocol, address: addresses.source, port: flow.ports.source },
        destination: Endpoint { protocol, address: addresses.destination, port: flow.ports.destination },
    })
}

fn put_end(headers: &mut Headers, frame: &mut [u8], side: Side, end: Endpoint) -> Result<(), Untranslated> {
    let Addresses::V4(addresses) = headers.addresses else { return Err(Untranslated::Unsupported) };
    let ports = match headers.ports {
        Some(ports) => side.replaced(ports, end.port),
        None => Pair { source: end.port, destination: end.port },
    };
    let addresses = Addresses::V4(side.replaced(addresses, end.address));
    headers.set_ends(frame, addresses, ports).map_err(|_| Untranslated::Unsupported)
}
