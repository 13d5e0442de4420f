//! Changes addresses, ports and kinds of ICMP message in place, with all checksums that cover them.
//!
//! A checksum is updated, not recomputed (RFC 1624): a wrong one stays wrong, so that the receiver still detects that the packet was
//! damaged before.

use core::fmt;

use super::{Addresses, Echo, Headers, ICMP, ICMPV6, Icmp, Pair, TCP, UDP};
use crate::checksum;

const IPV4_CHECKSUM_AT: usize = 10;
const IPV4_ADDRESSES_AT: usize = 12;
const IPV6_ADDRESSES_AT: usize = 8;
const ECHO_ID_AT: usize = 4;

/// Why a packet cannot be changed as requested. The packet is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotRewrite {
    /// The new addresses are of the other version of IP.
    OtherVersion,
    /// The packet has no ports.
    NoPorts,
    /// The frame is not the one that the headers were read from.
    OtherFrame,
    /// The frame has no Ethernet header.
    TooShort,
    /// The frame has no such VLAN tag.
    NoTag,
    /// No VLAN has this id.
    NoSuchVlan,
    /// The hop limit is 0.
    NoHopLeft,
    /// No code point of differentiated services is so great.
    NoSuchDscp,
    /// The packet is no ICMP message of its version of IP, or too short for one.
    NoIcmp,
}

impl fmt::Display for CannotRewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherVersion => "an IPv4 packet cannot have IPv6 addresses, nor the other way round",
            Self::NoPorts => "the packet has no ports: it is neither TCP, UDP nor an echo, or a fragment but the first",
            Self::OtherFrame => "the frame is shorter than the one that the headers were read from",
            Self::TooShort => "the frame is shorter than its hardware addresses, 12 bytes",
            Self::NoTag => "the frame has no such VLAN tag: at most two can be changed, and none is added",
            Self::NoSuchVlan => "no VLAN has this id: 0 to 4094 are possible",
            Self::NoHopLeft => "the hop limit is 0 already: a router drops the packet",
            Self::NoSuchDscp => "DSCP is 0 to 63",
            Self::NoIcmp => "the packet is no ICMP message, or is a fragment but the first",
        })
    }
}

impl std::error::Error for CannotRewrite {}

impl Headers {
    /// Replaces the packet's addresses by others of the same version of IP. The checksums of IPv4, TCP, UDP and ICMPv6 stay as correct as
    /// they were, in fragments as well. A UDP checksum of zero, which means that there is none, stays zero. With an IPv6 routing header,
    /// the transport's checksum may cover another destination.
    ///
    /// # Errors
    ///
    /// The addresses are of the other version, or the frame is another one.
    pub fn set_addresses(&mut self, frame: &mut [u8], addresses: Addresses) -> Result<(), CannotRewrite> {
        let network = self.at.network;
        match (self.addresses, addresses) {
            (Addresses::V4(old), Addresses::V4(new)) => {
                self.put(frame, network + IPV4_ADDRESSES_AT, &bytes_v4(new))?;
                if let Some(change) = Change::of_v4(old, new) {
                    update(&mut frame[network..], IPV4_CHECKSUM_AT, change, Zeros::NotAll);
                    self.update_transport(frame, change, Covers::PseudoHeader);
                }
            }
            (Addresses::V6(old), Addresses::V6(new)) => {
                self.put(frame, network + IPV6_ADDRESSES_AT, &bytes_v6(new))?;
                if let Some(change) = Change::of_v6(old, new) {
                    self.update_transport(frame, change, Covers::PseudoHeader);
                }
            }
            _ => return Err(CannotRewrite::OtherVersion),
        }
        self.addresses = addresses;
        Ok(())
    }

    /// Replaces the ports of TCP or UDP. For an ICMP echo, replaces the identifier by `ports.source`.
    ///
    /// # Errors
    ///
    /// The packet has no ports, or the frame is another one.
    pub fn set_ports(&mut self, frame: &mut [u8], ports: Pair<u16>) -> Result<(), CannotRewrite> {
        let transport = self.at.transport;
        if let Some(old) = self.ports {
            self.put(frame, transport, &number_of_ports(ports).to_be_bytes())?;
            if let Some(change) = Change::of_ports(old, ports) {
                self.update_transport(frame, change, Covers::Header);
            }
            self.ports = Some(ports);
        } else if let Some((icmp, echo)) = self.icmp.and_then(|icmp| icmp.echo.map(|echo| (icmp, echo))) {
            self.put(frame, transport + ECHO_ID_AT, &ports.source.to_be_bytes())?;
            if let Some(change) = Change::of_word(echo.id, ports.source) {
                self.update_transport(frame, change, Covers::Header);
            }
            self.icmp = Some(Icmp { echo: Some(Echo { id: ports.source, ..echo }), ..icmp });
        } else {
            return Err(CannotRewrite::NoPorts);
        }
        Ok(())
    }

    /// Replaces addresses and ports, as [`Headers::set_addresses`] and [`Headers::set_ports`] do one after the other.
    /// This takes fewer steps, as each checksum is updated once.
    ///
    /// # Errors
    ///
    /// As these two. The packet is unchanged.
    pub fn set_ends(&mut self, frame: &mut [u8], addresses: Addresses, ports: Pair<u16>) -> Result<(), CannotRewrite> {
        let (Addresses::V4(old), Addresses::V4(new), Some(old_ports)) = (self.addresses, addresses, self.ports) else {
            let has_ports = self.ports.is_some() || self.icmp.is_some_and(|icmp| icmp.echo.is_some());
            if !has_ports {
                return Err(CannotRewrite::NoPorts);
            }
            self.set_addresses(frame, addresses)?;
            return self.set_ports(frame, ports);
        };
        if frame.len() < self.at.end {
            return Err(CannotRewrite::OtherFrame);
        }
        self.put(frame, self.at.transport, &number_of_ports(ports).to_be_bytes())?;
        self.put(frame, self.at.network + IPV4_ADDRESSES_AT, &bytes_v4(new))?;
        let of_addresses = Change::of_v4(old, new);
        if let Some(change) = of_addresses {
            update(&mut frame[self.at.network..], IPV4_CHECKSUM_AT, change, Zeros::NotAll);
        }
        if let Some(change) = Change::both(of_addresses, Change::of_ports(old_ports, ports)) {
            self.update_transport(frame, change, Covers::Header);
        }
        (self.addresses, self.ports) = (addresses, Some(ports));
        Ok(())
    }

    /// Turns the packet around: swaps its addresses, and its ports if it has any. An echo keeps its identifier. No checksum changes, as each sums
    /// up to the same. For an answer, swap the hardware addresses as well ([`swap_macs`](super::swap_macs)) and set the hop limit.
    ///
    /// ```
    /// # use pinion_sdk::testing::Frame;
    /// use pinion_sdk::headers::Headers;
    ///
    /// let mut frame = Frame::udp("10.0.0.1:5000", "10.0.0.2:53").payload(b"hello").bytes();
    /// Headers::of(&frame).unwrap().reverse(&mut frame).unwrap();
    /// assert_eq!(frame, Frame::udp("10.0.0.2:53", "10.0.0.1:5000").payload(b"hello").bytes());
    /// ```
    ///
    /// # Errors
    ///
    /// The frame is another one.
    #[inline(always)]
    pub fn reverse(&mut self, frame: &mut [u8]) -> Result<(), CannotRewrite> {
        let packet = frame.get_mut(self.at.network..self.at.end).ok_or(CannotRewrite::OtherFrame)?;
        let (network, transport) = packet
            .split_at_mut_checked(self.at.transport.saturating_sub(self.at.network))
            .ok_or(CannotRewrite::OtherFrame)?;
        match self.addresses {
            Addresses::V4(_) => swap::<8>(network, IPV4_ADDRESSES_AT)?,
            Addresses::V6(_) => swap::<32>(network, IPV6_ADDRESSES_AT)?,
        }
        if let Some(ports) = &mut self.ports {
            swap::<4>(transport, 0)?;
            *ports = ports.reversed();
        }
        self.addresses = self.addresses.reversed();
        Ok(())
    }

    /// Replaces the type and code of an ICMP message, to make a reply of an echo request for example. Its checksum stays as correct as it
    /// was.
    ///
    /// ```
    /// # use pinion_sdk::testing::Frame;
    /// use pinion_sdk::headers::Headers;
    ///
    /// let mut frame = Frame::echo_request("10.0.0.1", "10.0.0.2").payload(b"ping").bytes();
    /// let mut headers = Headers::of(&frame).unwrap();
    /// headers.set_icmp(&mut frame, 0, 0).unwrap();
    /// headers.set_addresses(&mut frame, headers.addresses.reversed()).unwrap();
    /// assert_eq!(frame, Frame::echo_reply("10.0.0.2", "10.0.0.1").payload(b"ping").bytes());
    /// ```
    ///
    /// # Errors
    ///
    /// The packet is no ICMP message, or the frame is another one.
    #[inline(always)]
    pub fn set_icmp(&mut self, frame: &mut [u8], kind: u8, code: u8) -> Result<(), CannotRewrite> {
        let old = self.icmp.ok_or(CannotRewrite::NoIcmp)?;
        self.put(frame, self.at.transport, &[kind, code])?;
        let word = |kind, code| u16::from_be_bytes([kind, code]);
        if let Some(change) = Change::of_word(word(old.kind, old.code), word(kind, code)) {
            self.update_transport(frame, change, Covers::Header);
        }
        self.icmp = Icmp::of(self.protocol, &frame[self.at.transport..]);
        Ok(())
    }

    #[inline]
    fn put<const LEN: usize>(&self, frame: &mut [u8], at: usize, bytes: &[u8; LEN]) -> Result<(), CannotRewrite> {
        let rest = frame.get_mut(..self.at.end).and_then(|packet| packet.get_mut(at..));
        *rest.and_then(<[u8]>::first_chunk_mut).ok_or(CannotRewrite::OtherFrame)? = *bytes;
        Ok(())
    }

    /// Updates the transport's checksum, if the packet contains it.
    #[inline(always)]
    fn update_transport(&self, frame: &mut [u8], change: Change, covers: Covers) {
        if self.fragment.is_some_and(|fragment| !fragment.is_first()) {
            return;
        }
        let (offset, zeros) = match (self.protocol, self.addresses, covers) {
            (TCP, ..) => (16, Zeros::NotAll),
            (UDP, ..) => (6, Zeros::None),
            (ICMP, Addresses::V4(_), Covers::Header) => (2, Zeros::Any),
            (ICMPV6, Addresses::V6(_), _) => (2, Zeros::NotAll),
            _ => return,
        };
        if let Some(message) = frame.get_mut(self.at.transport..self.at.end) {
            update(message, offset, change, zeros);
        }
    }
}

/// Which data have changed, of those that a transport's checksum covers.
#[derive(Clone, Copy, PartialEq)]
enum Covers {
    /// The addresses, which the checksum of IPv4's ICMP does not cover.
    PseudoHeader,
    Header,
}

/// The meaning of the [two zeros](checksum#two-zeros) in a checksum's field.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Zeros {
    /// The data are never all zero, as they contain a version or a pseudo header. If their sum is zero, the checksum is 0x0000.
    NotAll,
    /// Likewise, but 0x0000 means that there is no checksum, so 0xffff is used.
    None,
    /// The data may be all zero: then the checksum is 0xffff, otherwise 0x0000.
    Any,
}

/// What has changed of the data that a checksum covers: the sum of the old words' complements and of the new words
/// (RFC 1624, equation 3).
#[derive(Clone, Copy)]
pub(super) struct Change(u32);

impl Change {
    fn of_v4(old: Pair<u32>, new: Pair<u32>) -> Option<Self> {
        let words = |pair: Pair<u32>| words(pair.source) + words(pair.destination);
        (old != new).then(|| Self(4 * 0xffff - words(old) + words(new)))
    }

    fn of_v6(old: Pair<u128>, new: Pair<u128>) -> Option<Self> {
        let words_of = |address: u128| (0..4).map(|at| words((address >> (32 * at)) as u32)).sum::<u32>();
        let words = |pair: Pair<u128>| words_of(pair.source) + words_of(pair.destination);
        (old != new).then(|| Self(16 * 0xffff - words(old) + words(new)))
    }

    fn of_ports(old: Pair<u16>, new: Pair<u16>) -> Option<Self> {
        let (old, new) = (number_of_ports(old), number_of_ports(new));
        (old != new).then(|| Self(2 * 0xffff - words(old) + words(new)))
    }

    #[inline]
    pub(super) fn of_word(old: u16, new: u16) -> Option<Self> {
        (old != new).then(|| Self(0xffff - u32::from(old) + u32::from(new)))
    }

    fn both(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(Self(one)), Some(Self(other))) => Some(Self(one + other)),
            (one, other) => one.or(other),
        }
    }
}

/// Returns the sum of a number's two words.
fn words(number: u32) -> u32 {
    (number >> 16) + (number & 0xffff)
}

/// Updates the checksum at an offset of the data that it covers, after a change of these. `data` may be only the start
/// of these.
#[inline]
pub(super) fn update(data: &mut [u8], at: usize, change: Change, zeros: Zeros) {
    let Some(field) = data.get(at..).and_then(<[u8]>::first_chunk::<2>) else { return };
    let before = u16::from_be_bytes(*field);
    if zeros == Zeros::None && before == 0 {
        return;
    }
    let sum = match (!checksum::fold(u64::from(u32::from(!before) + change.0)), zeros) {
        (0 | 0xffff, Zeros::NotAll) => 0,
        (0 | 0xffff, Zeros::None) => 0xffff,
        (0 | 0xffff, Zeros::Any) => {
            let is_zero = data[..at].iter().chain(&data[at + 2..]).all(|byte| *byte == 0);
            if is_zero { 0xffff } else { 0 }
        }
        (sum, _) => sum,
    };
    data[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Swaps the two halves of a field of so many bytes.
#[inline]
fn swap<const LEN: usize>(header: &mut [u8], at: usize) -> Result<(), CannotRewrite> {
    let field = header.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<LEN>).ok_or(CannotRewrite::OtherFrame)?;
    field.rotate_left(LEN / 2);
    Ok(())
}

fn number_of_ports(ports: Pair<u16>) -> u32 {
    (u32::from(ports.source) << 16) | u32::from(ports.destination)
}

fn bytes_v4(pair: Pair<u32>) -> [u8; 8] {
    ((u64::from(pair.source) << 32) | u64::from(pair.destination)).to_be_bytes()
}

fn bytes_v6(pair: Pair<u128>) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&pair.source.to_be_bytes());
    bytes[16..].copy_from_slice(&pair.destination.to_be_bytes());
    bytes
}
