//! The fields that distinguish flows, in six machine words: cheap to make, to hash and to compare.
//!
//! ```text
//!   word 0, 1   source address, as a number of 128 bits; IPv4 in the lowest 32
//!   word 2, 3   destination address, likewise
//!   word 4, 5   see `Field`
//! ```
//!
//! Equal flows have equal words, and vice versa. Fields that a packet lacks are 0; where 0 is a valid value, another
//! bit tells the two apart.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pinion_mma::id::PortIndex;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

/// Where a field lies in a key's words.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) word: usize,
    shift: u32,
    bits: u32,
}

impl Field {
    pub(crate) const SOURCE_PORT: Self = Self { word: 4, shift: 48, bits: 16 };
    pub(crate) const DESTINATION_PORT: Self = Self { word: 4, shift: 32, bits: 16 };
    pub(crate) const INGRESS_PORT: Self = Self { word: 4, shift: 16, bits: 16 };
    pub(crate) const VLAN: Self = Self { word: 4, shift: 0, bits: 16 };
    pub(crate) const INNER_VLAN: Self = Self { word: 5, shift: 48, bits: 16 };
    pub(crate) const PROTOCOL: Self = Self { word: 5, shift: 40, bits: 8 };
    /// 0 if there is none, else [`ICMP_TYPE_THERE`] and the type.
    pub(crate) const ICMP_TYPE: Self = Self { word: 5, shift: 16, bits: 9 };
    /// 1 for IPv6.
    pub(crate) const IP_VERSION: Self = Self { word: 5, shift: 8, bits: 1 };
    /// 1 if the frame is for a group of stations.
    const RECEIVER: Self = Self { word: 5, shift: 1, bits: 1 };
    /// 1, in a search through the rules, if only rules count that name the destination: see [`Wanted::group`].
    pub(crate) const GROUP_WANTED: Self = Self { word: 5, shift: 2, bits: 1 };
    /// 1, in a search through the rules, if only rules count that name the ICMP type: see [`Wanted::error`].
    pub(crate) const ERROR_WANTED: Self = Self { word: 5, shift: 3, bits: 1 };
    /// 1 if the key is not of a flow but of a datagram in fragments, with its identification in place of the ports.
    const DATAGRAM: Self = Self { word: 5, shift: 0, bits: 1 };
    const IDENTIFICATION: Self = Self { word: 4, shift: 32, bits: 32 };

    /// Returns the highest value of the field.
    pub(crate) const fn max(self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Returns the field's bits in its word.
    pub(crate) const fn mask(self) -> u64 {
        self.max() << self.shift
    }

    /// Returns the word in which the field has this value and all else is 0.
    #[inline]
    pub(crate) const fn with(self, value: u64) -> u64 {
        value << self.shift
    }

    /// Returns the field's value in a key.
    #[inline]
    pub(crate) fn of(self, flow: &FlowKey) -> u64 {
        (flow.words[self.word] >> self.shift) & self.max()
    }
}

/// The bit that says that there is an ICMP type: see [`Field::ICMP_TYPE`].
pub(crate) const ICMP_TYPE_THERE: u64 = 0x100;

/// The VLAN that a frame belongs to, by the ids of its tags. An id is 0 if there is no such tag, or if the tag only
/// carries a priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vlan {
    /// The id of the tag, or of the outer one of two.
    pub id: u16,
    /// The id of the inner one of two.
    pub inner_id: u16,
}

impl Vlan {
    /// No VLAN.
    pub const UNTAGGED: Self = Self { id: 0, inner_id: 0 };
}

impl fmt::Display for Vlan {
    /// `vlan 100`, or `vlan 100.20` for a tag within a tag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNTAGGED => f.write_str("untagged"),
            Self { id, inner_id: 0 } => write!(f, "vlan {id}"),
            Self { id, inner_id } => write!(f, "vlan {id}.{inner_id}"),
        }
    }
}

/// The stations that a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// One station.
    Station = 0,
    /// A group of stations, or all.
    Group = 1,
}

/// What a rule must name to match a flow, in a search through the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The destination: it is a group's, or a broadcast address.
    pub(crate) group: bool,
    /// The ICMP type: it is an error's.
    pub(crate) error: bool,
}

/// What a flow has that the key of its datagrams in fragments lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BeyondDatagram {
    pub(crate) ports: u32,
    pub(crate) icmp_type: u16,
    pub(crate) protocol: u8,
}

/// Where a frame came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// The port of the gateway.
    pub port: PortIndex,
    /// The VLAN on it.
    pub vlan: Vlan,
}

/// What distinguishes a flow: addresses, protocol, ports, ICMP type, and where it came in.
///
/// Ports are 0 where there are none. What comes in frames for a group of stations is a flow of its own.
#[derive(Clone, Copy, Eq)]
pub struct FlowKey {
    words: [u64; 6],
}

impl PartialEq for FlowKey {
    // The derived implementation calls the C library's for 48 bytes.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let [a, b, c, d, e, f] = self.words;
        let [g, h, i, j, k, l] = other.words;
        (a ^ g) | (b ^ h) | (c ^ i) | (d ^ j) | (e ^ k) | (f ^ l) == 0
    }
}

impl FlowKey {
    /// Makes the key of a protocol between two IPv4 addresses, without ports.
    #[inline(always)]
    #[must_use]
    pub fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, ingress: Ingress) -> Self {
        let (source, destination) = (u64::from(source.to_bits()), u64::from(destination.to_bits()));
        let [at, rest] = lower_words(protocol, ingress);
        Self { words: [0, source, 0, destination, at, rest] }
    }

    /// Makes the key of a protocol between two IPv6 addresses, without ports.
    #[inline(always)]
    #[must_use]
    pub fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, ingress: Ingress) -> Self {
        let ([source_high, source_low], [high, low]) = (halves(source.to_bits()), halves(destination.to_bits()));
        let [at, rest] = lower_words(protocol, ingress);
        Self { words: [source_high, source_low, high, low, at, rest | Field::IP_VERSION.with(1)] }
    }

    /// Returns the key with these ports. It must have had none.
    #[inline(always)]
    #[must_use]
    pub fn with_ports(mut self, source: u16, destination: u16) -> Self {
        self.words[4] |= Field::SOURCE_PORT.with(source.into()) | Field::DESTINATION_PORT.with(destination.into());
        self
    }

    /// Returns the key with this ICMP type. It must have had none.
    #[inline(always)]
    #[must_use]
    pub fn with_icmp_type(mut self, icmp_type: u8) -> Self {
        self.words[5] |= Field::ICMP_TYPE.with(ICMP_TYPE_THERE | u64::from(icmp_type));
        self
    }

    /// Returns the key of such a flow whose frames these stations receive. It must have been of frames for one station.
    #[inline(always)]
    pub(crate) fn received_by(mut self, receiver: Receiver) -> Self {
        self.words[5] |= Field::RECEIVER.with(receiver as u64);
        self
    }

    /// Returns whether its frames are for a group of stations.
    pub(crate) fn is_in_group_frames(&self) -> bool {
        Field::RECEIVER.of(self) == Receiver::Group as u64
    }

    /// Returns the key with which rules are searched that name what is wanted.
    pub(crate) fn wanted_by(mut self, Wanted { group, error }: Wanted) -> Self {
        self.words[5] |= Field::GROUP_WANTED.with(group.into()) | Field::ERROR_WANTED.with(error.into());
        self
    }

    /// Returns whether its messages are ICMP or ICMPv6 errors about packets.
    pub(crate) fn is_icmp_error(&self) -> bool {
        self.icmp_type().is_some_and(|icmp_type| is_icmp_error(self.protocol(), icmp_type))
    }

    /// Returns the flow of the answers to this one, by the same port and VLAN. The answer to an echo request is an echo
    /// reply, and vice versa.
    pub(crate) fn reversed(&self) -> Self {
        let [source_high, source_low, high, low, fourth, fifth] = self.words;
        let (source_port, port) = (u64::from(self.source_port()), u64::from(self.destination_port()));
        let ports = Field::SOURCE_PORT.with(port) | Field::DESTINATION_PORT.with(source_port);
        let fourth = fourth & !(Field::SOURCE_PORT.mask() | Field::DESTINATION_PORT.mask()) | ports;
        let reversed = Self { words: [high, low, source_high, source_low, fourth, fifth & !Field::ICMP_TYPE.mask()] };
        match self.icmp_type() {
            Some(icmp_type) => reversed.with_icmp_type(answering_type(self.protocol(), icmp_type)),
            None => reversed,
        }
    }

    /// Returns the key that all fragments of a datagram of this flow share. It never equals a flow's key.
    pub(crate) fn datagram(&self, identification: u32) -> Self {
        let mut words = self.words;
        words[4] &= Field::INGRESS_PORT.mask() | Field::VLAN.mask();
        words[4] |= Field::IDENTIFICATION.with(identification.into());
        words[5] &= !Field::ICMP_TYPE.mask();
        // RFC 8200, section 4.5: the fragments of an IPv6 packet may disagree about what it carries.
        if self.is_ipv6() {
            words[5] &= !Field::PROTOCOL.mask();
        }
        words[5] |= Field::DATAGRAM.with(1);
        Self { words }
    }

    /// Returns what the flow has that the key of its datagrams lacks.
    pub(crate) fn beyond_datagram(&self) -> BeyondDatagram {
        BeyondDatagram {
            ports: (self.words[4] >> 32) as u32,
            icmp_type: Field::ICMP_TYPE.of(self) as u16,
            protocol: self.protocol(),
        }
    }

    /// Returns the flow of a datagram with this key.
    pub(crate) fn of_datagram(&self, beyond: BeyondDatagram) -> Self {
        let BeyondDatagram { ports, icmp_type, protocol } = beyond;
        let mut words = self.words;
        words[4] = words[4] & !Field::IDENTIFICATION.mask() | u64::from(ports) << 32;
        words[5] &= !(Field::DATAGRAM.mask() | Field::PROTOCOL.mask());
        words[5] |= Field::ICMP_TYPE.with(icmp_type.into()) | Field::PROTOCOL.with(protocol.into());
        Self { words }
    }

    /// Returns all words of the key.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; 6] {
        &self.words
    }

    #[inline]
    pub(crate) fn is_ipv6(&self) -> bool {
        Field::IP_VERSION.of(self) == 1
    }

    /// Returns the source address as a number.
    pub(crate) fn source_bits(&self) -> u128 {
        (u128::from(self.words[0]) << 64) | u128::from(self.words[1])
    }

    /// Returns the destination address as a number.
    pub(crate) fn destination_bits(&self) -> u128 {
        (u128::from(self.words[2]) << 64) | u128::from(self.words[3])
    }

    /// Returns the sender's address.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        self.address(self.source_bits())
    }

    /// Returns the receiver's address.
    #[must_use]
    pub fn destination(&self) -> IpAddr {
        self.address(self.destination_bits())
    }

    fn address(&self, bits: u128) -> IpAddr {
        if self.is_ipv6() { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
    }

    /// Returns the IP protocol's number.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        Field::PROTOCOL.of(self) as u8
    }

    /// Returns the sender's port.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        Field::SOURCE_PORT.of(self) as u16
    }

    /// Returns the receiver's port.
    #[must_use]
    pub fn destination_port(&self) -> u16 {
        Field::DESTINATION_PORT.of(self) as u16
    }

    /// Returns the message type, if the protocol is ICMP over IPv4 or ICMPv6 over IPv6.
    #[must_use]
    pub fn icmp_type(&self) -> Option<u8> {
        let icmp_type = Field::ICMP_TYPE.of(self);
        (icmp_type & ICMP_TYPE_THERE != 0).then_some(icmp_type as u8)
    }

    /// Returns where the flow came in.
    #[must_use]
    pub fn ingress(&self) -> Ingress {
        let vlan = Vlan { id: Field::VLAN.of(self) as u16, inner_id: Field::INNER_VLAN.of(self) as u16 };
        Ingress { port: PortIndex(Field::INGRESS_PORT.of(self) as u16), vlan }
    }

    /// Returns the flow without where it came in.
    #[must_use]
    pub fn five_tuple(&self) -> FiveTuple {
        FiveTuple {
            source: self.source(),
            destination: self.destination(),
            protocol: self.protocol(),
            source_port: self.source_port(),
            destination_port: self.destination_port(),
        }
    }
}

/// Returns whether an ICMP or ICMPv6 message of this type is an error about a packet, which it quotes (RFC 792,
/// RFC 4443).
pub(super) fn is_icmp_error(protocol: u8, icmp_type: u8) -> bool {
    match protocol {
        // Destination unreachable, source quench, time exceeded, parameter problem.
        ICMP => matches!(icmp_type, 3 | 4 | 11 | 12),
        // Destination unreachable, packet too big, time exceeded, parameter problem.
        ICMPV6 => matches!(icmp_type, 1..=4),
        _ => false,
    }
}

/// Returns the type of the messages that answer those of this type, or the type itself if that is no echo's.
fn answering_type(protocol: u8, icmp_type: u8) -> u8 {
    match (protocol, icmp_type) {
        (ICMP, 0) => 8,
        (ICMP, 8) => 0,
        (ICMPV6, 128) => 129,
        (ICMPV6, 129) => 128,
        _ => icmp_type,
    }
}

#[inline(always)]
fn lower_words(protocol: u8, ingress: Ingress) -> [u64; 2] {
    let Ingress { port, vlan } = ingress;
    [
        Field::INGRESS_PORT.with(port.0.into()) | Field::VLAN.with(vlan.id.into()),
        Field::INNER_VLAN.with(vlan.inner_id.into()) | Field::PROTOCOL.with(protocol.into()),
    ]
}

#[inline]
fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ingress { port, vlan } = self.ingress();
        write!(f, "{}, port {}, {vlan}", self.five_tuple(), port.0)?;
        if let Some(icmp_type) = self.icmp_type() {
            write!(f, ", type {icmp_type}")?;
        }
        if self.is_in_group_frames() {
            f.write_str(", for a group of stations")?;
        }
        if Field::DATAGRAM.of(self) == 1 { f.write_str(", in fragments") } else { Ok(()) }
    }
}

/// Addresses, protocol and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiveTuple {
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// The IP protocol's number.
    pub protocol: u8,
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
}

impl FiveTuple {
    /// Returns the flow in the opposite direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

impl Hash for FiveTuple {
    // One write of all fields is several times cheaper than the many small writes of the derived implementation.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0; 40];
        bytes[..16].copy_from_slice(&wide(self.source).octets());
        bytes[16..32].copy_from_slice(&wide(self.destination).octets());
        bytes[32..34].copy_from_slice(&self.source_port.to_ne_bytes());
        bytes[34..36].copy_from_slice(&self.destination_port.to_ne_bytes());
        bytes[36] = self.protocol;
        bytes[37] = u8::from(self.source.is_ipv4());
        state.write(&bytes);
    }
}

fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

impl fmt::Display for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, protocol, source_port, destination_port } = *self;
        let (from, to) = (SocketAddr::from((source, source_port)), SocketAddr::from((destination, destination_port)));
        match protocol {
            TCP => write!(f, "tcp {from} -> {to}"),
            UDP => write!(f, "udp {from} -> {to}"),
            ICMP => write!(f, "icmp {source} -> {destination}"),
            ICMPV6 => write!(f, "icmpv6 {source} -> {destination}"),
            _ => write!(f, "protocol {protocol} {source} -> {destination}"),
        }
    }
}
