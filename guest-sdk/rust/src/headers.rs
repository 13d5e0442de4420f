//! What a frame's headers say, read once: [`Headers`]. No allocation, and no panic on any bytes.
//!
//! ```text
//!   | addresses | VLAN tags, 0 to 2 | type | IPv4 or IPv6, with what belongs to it | TCP, UDP, ICMP | payload | padding |
//!                                          ^ at.network                            ^ at.transport   ^ at.payload
//!                                                                                                             ^ at.end
//! ```
//!
//! Looks past up to two VLAN tags and eight IPv6 extension headers. Checksums are not verified: whoever ends the
//! connection does. To change what was read, with checksums that stay right, there are [`Headers::set_addresses`] and
//! [`Headers::set_ports`].

mod flow;
mod ip;
mod rewrite;
mod transport;

use core::net::IpAddr;

pub use flow::FlowKey;
pub use rewrite::CannotRewrite;
pub use transport::{Echo, Icmp, TcpFlags};

/// The number of ICMP, as [`Headers::protocol`] has it.
pub const ICMP: u8 = 1;
/// The number of TCP.
pub const TCP: u8 = 6;
/// The number of UDP.
pub const UDP: u8 = 17;
/// The number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// VLAN tags looked past: one, or a provider's and a customer's.
const VLAN_TAGS_MAX: u8 = 2;

const MAC_ADDRESSES: usize = 12;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

/// Why a frame's headers can't be read. A function that judges frames does well to drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Shorter than its headers say, or these contradict themselves.
    Malformed,
    /// More VLAN tags or extension headers than are looked past.
    TooManyHeaders,
    /// A fragment that would overwrite the TCP header that its datagram is judged by (RFC 3128).
    OverlappingFragment,
}

/// What the headers of an IP packet say.
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
    /// Who sends to whom.
    pub addresses: Addresses,
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// The ports of TCP or UDP; `None` for other protocols, and for all fragments but the first.
    pub ports: Option<Pair<u16>>,
    /// The flags of a TCP segment, where its ports are known as well.
    pub tcp_flags: Option<TcpFlags>,
    /// What an ICMP message is, of either version; `None` for other protocols, all fragments but the first, and what is too short for one.
    pub icmp: Option<Icmp>,
    /// Which part of its datagram it is, if it is not all of it.
    pub fragment: Option<Fragment>,
    /// VLAN tags before the IP header.
    pub vlan_tags: u8,
    /// Where in the frame all this is.
    pub at: Offsets,
}

/// Offsets in the frame, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// The IP header.
    pub network: usize,
    /// What follows it and its options or extension headers: the header of TCP, UDP or ICMP, if the packet has one.
    pub transport: usize,
    /// What that header carries; the same as `transport`, if it was not read.
    pub payload: usize,
    /// The end of the IP packet: behind it is padding.
    pub end: usize,
}

/// A part of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// What all fragments of the datagram have in common, besides addresses and, in IPv4, the protocol.
    pub id: u32,
    /// Where in the datagram it belongs, in bytes.
    pub offset: u16,
    /// Whether others follow it.
    pub more: bool,
}

impl Fragment {
    /// Whether it is the one that has the datagram's ports.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.offset == 0
    }
}

/// Source and destination, as numbers, so that a prefix is a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Addresses {
    /// Of IPv4.
    V4(Pair<u32>),
    /// Of IPv6.
    V6(Pair<u128>),
}

impl Addresses {
    /// The sender's.
    #[inline]
    #[must_use]
    pub fn source(&self) -> IpAddr {
        match self {
            Self::V4(pair) => IpAddr::V4(pair.source.into()),
            Self::V6(pair) => IpAddr::V6(pair.source.into()),
        }
    }

    /// The receiver's.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.reversed().source()
    }

    /// The number of the ICMP of this version of IP.
    #[inline]
    #[must_use]
    pub fn icmp(&self) -> u8 {
        match self {
            Self::V4(_) => ICMP,
            Self::V6(_) => ICMPV6,
        }
    }

    /// With source and destination exchanged.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        match self {
            Self::V4(pair) => Self::V4(pair.reversed()),
            Self::V6(pair) => Self::V6(pair.reversed()),
        }
    }
}

/// Something of the sender's and the same of the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair<T> {
    /// The sender's.
    pub source: T,
    /// The receiver's.
    pub destination: T,
}

impl<T: Copy> Pair<T> {
    /// With source and destination exchanged.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { source: self.destination, destination: self.source }
    }
}

/// Whether all of an IP packet has to be there.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Whole,
    /// Its start will do.
    Quoted,
}

impl Headers {
    /// Reads an Ethernet frame.
    ///
    /// # Errors
    ///
    /// It is no IP packet, or one that nobody should believe.
    #[inline]
    pub fn of(frame: &[u8]) -> Result<Self, Unreadable> {
        let mut at = MAC_ADDRESSES;
        for vlan_tags in 0..=VLAN_TAGS_MAX {
            let ethertype = frame.get(at..).and_then(<[u8]>::first_chunk::<2>).ok_or(Unreadable::Malformed)?;
            match *ethertype {
                ETHERTYPE_IPV4 => return ip::read_v4(frame, at + 2, Extent::Whole).map(|it| Self { vlan_tags, ..it }),
                ETHERTYPE_IPV6 => return ip::read_v6(frame, at + 2, Extent::Whole).map(|it| Self { vlan_tags, ..it }),
                ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => at += 4,
                _ => return Err(Unreadable::NotIp),
            }
        }
        Err(Unreadable::TooManyHeaders)
    }

    /// The headers of the packet that an ICMP error quotes, with their offsets in the same frame; `None`, if this is no such error, or
    /// not enough of that packet is there. Of TCP only the ports are looked for.
    ///
    /// The quoted packet went the other way: who has sent it is to get the error.
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
