//! Reads a frame's headers once: [`Headers`]. No allocation, and no panic on any bytes.
//!
//! ```text
//!   | addresses | VLAN tags, 0 to 2 | type | IPv4 or IPv6, with what belongs to it | TCP, UDP, ICMP | payload | padding |
//!                                          ^ at.network                            ^ at.transport   ^ at.payload
//!                                                                                                             ^ at.end
//! ```
//!
//! Skips up to two VLAN tags and eight IPv6 extension headers. Checksums are not verified: that is left to the endpoint of the connection.
//! [`Headers::set_addresses`], [`Headers::set_ports`] and [`Headers::reverse`] change what was read, and keep checksums correct.
//!
//! A function that serves one protocol only reads [whole datagrams](Headers::of_udp) or [ICMP messages](Headers::of_icmp) in less time.
//!
//! Fields that few functions need are read when they are asked for, by methods that take the frame, so they cost nothing otherwise:
//!
//! | field | read | changed |
//! |---|---|---|
//! | hardware addresses | [`macs`] | [`set_macs`], [`swap_macs`] |
//! | VLAN tags | [`vlans`] | [`set_vlan_id`] |
//! | TTL or hop limit, DSCP, ECN, length of the packet and its header | [`Headers::ip`], or [`Ip::of`] without the rest | [`Ip::set_hop_limit`], [`Ip::decrement_hop_limit`], [`Ip::set_dscp`], [`Ip::set_ecn`] |
//! | sequence numbers, flags, window and header length of TCP | [`Headers::segment`] | |
//! | type and code of ICMP | [`Headers::icmp`] | [`Headers::set_icmp`] |
//! | payload | [`Headers::payload`] | [`Headers::payload_mut`] |
//! | checksums | [`Ip::checksum`], [`Headers::l4_checksum`] | [`Headers::recompute_checksums`] |

mod ethernet;
mod flow;
mod ip;
mod network;
mod report;
mod rewrite;
mod segment;
mod sums;
mod transport;

use core::net::IpAddr;
use core::ops::Range;

pub use ethernet::{InvalidMac, Mac, Vlan, VlanKind, Vlans, macs, set_macs, set_vlan_id, swap_macs, vlans};
pub use flow::FlowKey;
pub use network::{Ecn, Ip};
pub use report::NoReport;
pub use rewrite::CannotRewrite;
pub use segment::{Segment, is_near};
pub use transport::{Echo, Icmp, TcpFlags};

/// The number of ICMP, as [`Headers::protocol`] has it.
pub const ICMP: u8 = 1;
/// The number of TCP.
pub const TCP: u8 = 6;
/// The number of UDP.
pub const UDP: u8 = 17;
/// The number of ICMPv6.
pub const ICMPV6: u8 = 58;
/// The number of IPv6's fragment header.
const IPV6_FRAGMENT: u8 = 44;

/// VLAN tags that are skipped: one, or a provider's and a customer's.
const VLAN_TAGS_MAX: u8 = 2;

const MAC_ADDRESSES: usize = 12;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

/// Why a frame's headers cannot be read. A function that filters frames should drop such a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// The frame is shorter than its headers say, or the headers contradict each other.
    Malformed,
    /// More VLAN tags or extension headers than are skipped. Or a first fragment of IPv6 with so many extension headers that the fields by
    /// which it is judged are not in the datagram's first 24 bytes.
    TooManyHeaders,
    /// A fragment that could overwrite the headers by which its datagram is judged (RFC 3128, RFC 5722). For TCP over IPv4 that is a
    /// fragment that begins in the first 20 bytes. For IPv6 it is one that begins in the first 24 bytes, whatever protocol it states. See
    /// [`Headers::of_part`].
    OverlappingFragment,
}

/// The contents of an IP packet's headers.
///
/// ```
/// use pinion_sdk::headers::{Headers, UDP};
///
/// let mut frame = vec![0; 14 + 20 + 8];
/// frame[12..14].copy_from_slice(&[0x08, 0x00]);
/// frame[14..34].copy_from_slice(&[0x45, 0, 0, 28, 0, 1, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
/// frame[34..38].copy_from_slice(&[0x14, 0xe9, 0, 53]);
///
/// let headers = Headers::of(&frame).unwrap();
/// assert_eq!(headers.addresses.source().to_string(), "10.0.0.1");
/// assert_eq!(headers.ports.unwrap().destination, 53);
/// assert_eq!((headers.at.network, headers.at.transport, headers.at.payload), (14, 34, 42));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Source and destination address.
    pub addresses: Addresses,
    /// The number of the protocol above IP. In a later fragment of IPv6 it is the fragment's own statement, which does not count: the
    /// datagram has the protocol that its first fragment states (RFC 8200, 4.5).
    pub protocol: u8,
    /// The ports of TCP or UDP; `None` for other protocols, and for fragments after the first.
    pub ports: Option<Pair<u16>>,
    /// The flags of a TCP segment, if its ports are known as well.
    pub tcp_flags: Option<TcpFlags>,
    /// The ICMP message, of either version; `None` for other protocols, for fragments after the first, and if the packet is too short for
    /// one.
    pub icmp: Option<Icmp>,
    /// The packet's part of its datagram, if it is a fragment.
    pub fragment: Option<Fragment>,
    /// VLAN tags before the IP header.
    pub vlan_tags: u8,
    /// Offsets of the headers in the frame.
    pub at: Offsets,
}

/// Offsets in the frame, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The IP header.
    pub network: usize,
    /// The header after the IP header with its options or extension headers: that of TCP, UDP or ICMP, if the packet has one.
    pub transport: usize,
    /// The payload of that header; equal to `transport` if that header was not read.
    pub payload: usize,
    /// End of the IP packet; padding follows it.
    pub end: usize,
}

/// A part of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The identification that all fragments of the datagram share, besides addresses and, in IPv4, the protocol.
    pub id: u32,
    /// The fragment's offset in its datagram, in bytes.
    pub offset: u16,
    /// Whether more fragments follow it.
    pub more: bool,
}

impl Fragment {
    /// Returns whether this is the first fragment, which contains the datagram's ports.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.offset == 0
    }
}

/// Source and destination, as numbers, so that a prefix is a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Addresses {
    /// IPv4 addresses.
    V4(Pair<u32>),
    /// IPv6 addresses.
    V6(Pair<u128>),
}

impl Addresses {
    /// Returns the sender's address.
    #[inline]
    #[must_use]
    pub fn source(&self) -> IpAddr {
        match self {
            Self::V4(pair) => IpAddr::V4(pair.source.into()),
            Self::V6(pair) => IpAddr::V6(pair.source.into()),
        }
    }

    /// Returns the receiver's address.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.reversed().source()
    }

    /// Returns whether both are addresses of single hosts: neither unspecified, nor multicast, nor the broadcast address of IPv4. A packet with
    /// other addresses must not be answered (RFC 1122, 3.2.1.3 and 3.2.2; RFC 4443, 2.4).
    ///
    /// ```
    /// use pinion_sdk::headers::Headers;
    /// use pinion_sdk::testing::Frame;
    ///
    /// let of = |frame: Frame| Headers::of(&frame.bytes()).unwrap().addresses;
    /// assert!(of(Frame::udp("10.0.0.1:5000", "10.0.0.2:53")).are_unicast());
    /// assert!(!of(Frame::udp("0.0.0.0:68", "255.255.255.255:67")).are_unicast());
    /// assert!(!of(Frame::udp("[fe80::1]:5353", "[ff02::fb]:5353")).are_unicast());
    /// ```
    #[inline]
    #[must_use]
    pub fn are_unicast(&self) -> bool {
        let is_unicast_v4 = |address: u32| address != 0 && address != u32::MAX && address >> 28 != 0b1110;
        let is_unicast_v6 = |address: u128| address != 0 && address >> 120 != 0xff;
        match *self {
            Self::V4(Pair { source, destination }) => is_unicast_v4(source) && is_unicast_v4(destination),
            Self::V6(Pair { source, destination }) => is_unicast_v6(source) && is_unicast_v6(destination),
        }
    }

    /// Returns the protocol number of ICMP for this version of IP.
    #[inline]
    #[must_use]
    pub fn icmp(&self) -> u8 {
        match self {
            Self::V4(_) => ICMP,
            Self::V6(_) => ICMPV6,
        }
    }

    /// Returns the pair with source and destination swapped.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        match self {
            Self::V4(pair) => Self::V4(pair.reversed()),
            Self::V6(pair) => Self::V6(pair.reversed()),
        }
    }
}

/// A value for the sender and the same kind of value for the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair<T> {
    /// The sender's value.
    pub source: T,
    /// The receiver's value.
    pub destination: T,
}

impl<T: Copy> Pair<T> {
    /// Returns the pair with source and destination swapped.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { source: self.destination, destination: self.source }
    }
}

/// How much of an IP packet must be present.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Whole,
    /// The whole packet, but a fragment may overlap others.
    Part,
    /// Only its start.
    Quoted,
}

impl Headers {
    /// Reads the headers of an Ethernet frame.
    ///
    /// # Errors
    ///
    /// The frame is not an IP packet, or a malformed or dangerous one: see [`Unreadable`].
    #[inline]
    pub fn of(frame: &[u8]) -> Result<Self, Unreadable> {
        Self::read(frame, Extent::Whole)
    }

    /// Reads an Ethernet frame as [`Headers::of`] does, if it holds a whole UDP datagram directly behind the IP header. `None` for all other
    /// packets: those of other protocols, fragments, and IPv6 packets with extension headers. It takes less time than [`Headers::of`],
    /// for a function that serves UDP only.
    ///
    /// ```
    /// use pinion_sdk::headers::Headers;
    /// use pinion_sdk::testing::Frame;
    ///
    /// let datagram = Frame::udp("10.0.0.1:5000", "10.0.0.2:53").payload(b"hello");
    /// let headers = Headers::of_udp(&datagram.bytes()).unwrap().unwrap();
    /// assert_eq!(Headers::of(&datagram.bytes()), Ok(headers));
    /// assert_eq!(Headers::of_udp(&datagram.fragments(8)[0].bytes()), Ok(None));
    /// ```
    ///
    /// # Errors
    ///
    /// The frame is not an IP packet, or a malformed one, as far as it was read.
    #[inline(always)]
    pub fn of_udp(frame: &[u8]) -> Result<Option<Self>, Unreadable> {
        Self::of_whole(frame, [UDP; 2], transport::read_udp)
    }

    /// Reads an Ethernet frame as [`Headers::of_udp`] does, if it holds a whole message of its IP version's ICMP. [`Headers::icmp`] is `None`
    /// if the message is too short.
    ///
    /// # Errors
    ///
    /// As [`Headers::of_udp`].
    #[inline(always)]
    pub fn of_icmp(frame: &[u8]) -> Result<Option<Self>, Unreadable> {
        Self::of_whole(frame, [ICMP, ICMPV6], transport::read_icmp)
    }

    /// Reads the packet's message by `read`, if it is whole and has the protocol of its IP version. Always inlined, as are the methods by
    /// which such a packet is verified and answered: so nothing is left of fields that are the same in each such packet, and the others
    /// need no memory.
    #[inline(always)]
    fn of_whole(
        frame: &[u8],
        [v4, v6]: [u8; 2],
        read: impl Fn(&[u8], Self, Extent) -> Result<Self, Unreadable>,
    ) -> Result<Option<Self>, Unreadable> {
        let found = behind_tags(
            frame,
            |at, vlan_tags| Ok(ip::whole_v4(frame, at, v4)?.map(|it| Self { vlan_tags, ..it })),
            |at, vlan_tags| Ok(ip::whole_v6(frame, at, v6)?.map(|it| Self { vlan_tags, ..it })),
        )?;
        found.map(|headers| read(transport::message(frame, &headers)?, headers, Extent::Whole)).transpose()
    }

    /// Reads an Ethernet frame as [`Headers::of`] does, but allows fragments to begin anywhere in their datagram, and first fragments to
    /// have as many headers as other packets. For a function that records which [parts](Headers::part) of a datagram it has seen, and
    /// refuses those that overlap.
    ///
    /// # Errors
    ///
    /// As [`Headers::of`], but never [`Unreadable::OverlappingFragment`].
    pub fn of_part(frame: &[u8]) -> Result<Self, Unreadable> {
        Self::read(frame, Extent::Part)
    }

    /// Returns which bytes of its datagram a fragment contains. `None` if the packet is not a fragment, or the frame is not the one that
    /// was read.
    ///
    /// ```
    /// # use pinion_sdk::headers::{Headers, UDP};
    /// # let mut frame = vec![0; 14 + 20 + 24];
    /// # frame[12..14].copy_from_slice(&[0x08, 0x00]);
    /// # frame[14..34].copy_from_slice(&[0x45, 0, 0, 44, 0, 1, 0x20, 3, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    /// // A fragment of 24 bytes that follows the first 24.
    /// assert_eq!(Headers::of_part(&frame).unwrap().part(&frame), Some(24..48));
    /// ```
    #[must_use]
    pub fn part(&self, frame: &[u8]) -> Option<Range<usize>> {
        let offset = usize::from(self.fragment?.offset);
        let len = self.at.end.checked_sub(ip::part_start(frame, self)?)?;
        Some(offset..offset + len)
    }

    #[inline]
    fn read(frame: &[u8], extent: Extent) -> Result<Self, Unreadable> {
        behind_tags(
            frame,
            |at, vlan_tags| ip::read_v4(frame, at, extent).map(|it| Self { vlan_tags, ..it }),
            |at, vlan_tags| ip::read_v6(frame, at, extent).map(|it| Self { vlan_tags, ..it }),
        )
    }

    /// Reads the headers of the packet that an ICMP error quotes; their offsets refer to the same frame. `None` if this is not such an
    /// error, or if it does not quote the whole IP header with its options or extension headers. For TCP and UDP only the ports are read;
    /// they are `None` if they were cut off. The quoted packet may be a fragment: the first one has ports.
    ///
    /// The quoted packet went in the opposite direction: its sender is the receiver of the error.
    #[must_use]
    pub fn quoted(&self, frame: &[u8]) -> Option<Self> {
        let frame = frame.get(..self.at.end)?;
        if !self.icmp?.is_error {
            return None;
        }
        match self.addresses {
            Addresses::V4(_) => ip::read_v4(frame, self.at.payload, Extent::Quoted).ok(),
            Addresses::V6(_) => ip::read_v6(frame, self.at.payload, Extent::Quoted).ok(),
        }
    }
}

/// Skips the VLAN tags. Reads what follows them, by its offset and the number of tags.
#[inline(always)]
fn behind_tags<T>(
    frame: &[u8],
    read_v4: impl Fn(usize, u8) -> Result<T, Unreadable>,
    read_v6: impl Fn(usize, u8) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    let mut at = MAC_ADDRESSES;
    for vlan_tags in 0..=VLAN_TAGS_MAX {
        let ethertype = frame.get(at..).and_then(<[u8]>::first_chunk::<2>).ok_or(Unreadable::Malformed)?;
        match *ethertype {
            ETHERTYPE_IPV4 => return read_v4(at + 2, vlan_tags),
            ETHERTYPE_IPV6 => return read_v6(at + 2, vlan_tags),
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => at += 4,
            _ => return Err(Unreadable::NotIp),
        }
    }
    Err(Unreadable::TooManyHeaders)
}
