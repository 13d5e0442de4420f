//! ICMP errors (RFC 792, 1812 and 4443): decides whether one may be sent, and turns the packet into it in its own slot.
//!
//! ```text
//!   received   | Ethernet, tags | datagram ...........................|
//!   sent   | Ethernet, tags | IP | ICMP | as much of the datagram as fits |      the datagram stays where it lies
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pinion_sdk::headers::{Addresses, ICMP, ICMPV6, Ip, Mac, Pair, macs, set_macs};
use pinion_sdk::{InitError, NoRoom, Packet, checksum};

use crate::config::FOUND_BY_NODE;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const ICMP_HEADER: usize = 8;
/// Longest error over IPv4 (RFC 1812, 4.3.2.3), and over IPv6, where it is the least MTU.
const IPV4_ERROR_MAX: usize = 576;
const IPV6_ERROR_MAX: usize = 1280;
const HOP_LIMIT: u8 = 64;
/// Second byte of the IPv4 header: precedence 6, internetwork control (RFC 1812, 4.3.2.5).
const INTERNETWORK_CONTROL: u8 = 0xc0;
/// Most IPv6 extension headers that are skipped.
const EXTENSIONS_MAX: usize = 8;

/// Why a packet is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Its hop limit is used up.
    TimeExceeded,
    /// There is no route for it.
    NoRoute,
    /// It is longer than its next hop's MTU, and may not be fragmented.
    TooBig {
        /// The MTU, in bytes.
        mtu: u16,
    },
}

impl Problem {
    /// Returns the first eight bytes of the message, without its checksum: type, code, and what depends on these.
    fn message_v4(self) -> [u8; ICMP_HEADER] {
        match self {
            Self::TimeExceeded => [11, 0, 0, 0, 0, 0, 0, 0],
            Self::NoRoute => [3, 0, 0, 0, 0, 0, 0, 0],
            Self::TooBig { mtu } => {
                let [high, low] = mtu.to_be_bytes();
                [3, 4, 0, 0, 0, 0, high, low]
            }
        }
    }

    fn message_v6(self) -> [u8; ICMP_HEADER] {
        match self {
            Self::TimeExceeded => [3, 0, 0, 0, 0, 0, 0, 0],
            Self::NoRoute => [1, 0, 0, 0, 0, 0, 0, 0],
            Self::TooBig { mtu } => {
                let [high, low] = mtu.to_be_bytes();
                [2, 0, 0, 0, 0, 0, high, low]
            }
        }
    }
}

/// Returns whether an ICMP error may be sent about this datagram: not if it is an ICMP error itself, nor a fragment
/// other than the first. Of IPv6, *packet too big* may be about a later fragment as well (RFC 4443, 2.4): the first one
/// may have been short enough, and no error is so long that it is too big for a link. Datagrams from or to
/// group addresses are refused earlier, by [`datagram::read`](crate::datagram::read).
#[must_use]
pub fn may_be_told(frame: &[u8], datagram: &Ip, problem: Problem) -> bool {
    let Some(bytes) = datagram.packet(frame) else { return false };
    match datagram.addresses {
        Addresses::V4(_) => {
            let is_first = u16::from_be_bytes([bytes[6], bytes[7]]) & 0x1fff == 0;
            let message_type = bytes.get(datagram.header_len);
            // Unreachable, quench, redirect, time exceeded, parameter problem.
            is_first && (bytes[9] != ICMP || message_type.is_some_and(|kind| !matches!(kind, 3 | 4 | 5 | 11 | 12)))
        }
        Addresses::V6(_) => match upper_layer(bytes) {
            // Errors are all below 128, and 137 is a redirect.
            Some(Upper::Protocol(ICMPV6, message)) => message.first().is_some_and(|kind| *kind >= 128 && *kind != 137),
            Some(Upper::Protocol(..)) => true,
            Some(Upper::LaterFragment) => matches!(problem, Problem::TooBig { .. }),
            None => false,
        },
    }
}

/// What follows the headers of IPv6.
enum Upper<'a> {
    /// A protocol and its bytes.
    Protocol(u8, &'a [u8]),
    /// Bytes of a datagram whose protocol is in another fragment.
    LaterFragment,
}

/// Returns what follows the headers of IPv6; none if these do not tell.
fn upper_layer(datagram: &[u8]) -> Option<Upper<'_>> {
    let mut protocol = *datagram.get(6)?;
    let mut rest = datagram.get(IPV6_HEADER..)?;
    for _ in 0..=EXTENSIONS_MAX {
        let len = match protocol {
            // Hop-by-hop, routing, destination options.
            0 | 43 | 60 => (usize::from(*rest.get(1)?) + 1) * 8,
            // Authentication.
            51 => (usize::from(*rest.get(1)?) + 2) * 4,
            // Fragment.
            44 if u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]) & 0xfff8 == 0 => 8,
            44 => return Some(Upper::LaterFragment),
            _ => return Some(Upper::Protocol(protocol, rest)),
        };
        protocol = *rest.first()?;
        rest = rest.get(len..)?;
    }
    None
}

/// The packet cannot become an error: there is no source address for it, or no room for its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold;

impl From<NoRoom> for Untold {
    fn from(_: NoRoom) -> Self {
        Self
    }
}

/// The source of ICMP errors.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// The router's own; none if the node addresses errors.
    mac: Option<Mac>,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl Sender {
    /// Makes a source with these addresses.
    ///
    /// # Errors
    ///
    /// There are two addresses of one version.
    pub fn new(mac: Option<Mac>, addresses: &[IpAddr]) -> Result<Self, InitError> {
        let mut sender = Self { mac, v4: None, v6: None };
        for address in addresses {
            let there_was_one = match *address {
                IpAddr::V4(address) => sender.v4.replace(address).is_some(),
                IpAddr::V6(address) => sender.v6.replace(address).is_some(),
            };
            if there_was_one {
                return Err(InitError::new(format!("addresses: {address} is the second of its version, remove one")));
            }
        }
        Ok(sender)
    }

    /// Returns whether a datagram is for the router itself.
    #[must_use]
    pub fn is_own(&self, datagram: &Ip) -> bool {
        match datagram.addresses.destination() {
            IpAddr::V4(address) => self.v4 == Some(address),
            IpAddr::V6(address) => self.v6 == Some(address),
        }
    }

    /// Returns whether there is an address for errors about a datagram.
    #[must_use]
    pub fn has_address_for(&self, datagram: &Ip) -> bool {
        match datagram.addresses.source() {
            IpAddr::V4(_) => self.v4.is_some(),
            IpAddr::V6(_) => self.v6.is_some(),
        }
    }

    /// Turns a packet into the ICMP error about it.
    ///
    /// # Errors
    ///
    /// It cannot become one, and must be dropped.
    pub fn turn(&self, packet: &mut Packet<'_>, datagram: &Ip, problem: Problem) -> Result<(), Untold> {
        match datagram.addresses.source() {
            IpAddr::V4(to) => self.turn_v4(packet, datagram, problem, self.v4.ok_or(Untold)?, to),
            IpAddr::V6(to) => self.turn_v6(packet, datagram, problem, self.v6.ok_or(Untold)?, to),
        }
    }

    fn turn_v4(
        &self,
        packet: &mut Packet<'_>,
        datagram: &Ip,
        problem: Problem,
        from: Ipv4Addr,
        to: Ipv4Addr,
    ) -> Result<(), Untold> {
        let len = (datagram.len + IPV4_HEADER + ICMP_HEADER).min(IPV4_ERROR_MAX);
        let error = self.open(packet, datagram, IPV4_HEADER + ICMP_HEADER, len)?;
        let (header, message) = error.split_at_mut(IPV4_HEADER);
        message[..ICMP_HEADER].copy_from_slice(&problem.message_v4());
        let sum = checksum::of(message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        header[..12].copy_from_slice(&[0x45, INTERNETWORK_CONTROL, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, ICMP, 0, 0]);
        header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        let sum = checksum::of(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    fn turn_v6(
        &self,
        packet: &mut Packet<'_>,
        datagram: &Ip,
        problem: Problem,
        from: Ipv6Addr,
        to: Ipv6Addr,
    ) -> Result<(), Untold> {
        let len = (datagram.len + IPV6_HEADER + ICMP_HEADER).min(IPV6_ERROR_MAX);
        let error = self.open(packet, datagram, IPV6_HEADER + ICMP_HEADER, len)?;
        let message_len = (len - IPV6_HEADER) as u16;
        error[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, ICMPV6, HOP_LIMIT]);
        error[4..6].copy_from_slice(&message_len.to_be_bytes());
        error[8..24].copy_from_slice(&from.octets());
        error[24..40].copy_from_slice(&to.octets());
        error[40..48].copy_from_slice(&problem.message_v6());
        // Both addresses are directly before the message; the sum also covers length and protocol.
        let sum = checksum::update(checksum::of(&error[8..]), 0, message_len);
        let sum = checksum::update(sum, 0, ICMPV6.into());
        error[42..44].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    /// Makes room before the datagram, turns the frame back to its sender, and truncates it. Returns the `len` bytes
    /// behind its tags.
    fn open<'p>(
        &self,
        packet: &'p mut Packet<'_>,
        datagram: &Ip,
        headers_len: usize,
        len: usize,
    ) -> Result<&'p mut [u8], Untold> {
        packet.prepend(headers_len)?;
        packet.set_len(datagram.at + len)?;
        let frame = packet.data_mut();
        frame.copy_within(headers_len..headers_len + datagram.at, 0);
        let back = self.mac.zip(macs(frame)).map(|(own, macs)| Pair { source: own, destination: macs.source });
        set_macs(frame, back.unwrap_or(FOUND_BY_NODE)).map_err(|_| Untold)?;
        Ok(&mut frame[datagram.at..])
    }
}
