//! Frames for tests: [`Frame`].

mod addresses;
mod bytes;

use core::net::{IpAddr, SocketAddr};

pub use addresses::Address;

use crate::headers::{Ecn, ICMP, ICMPV6, Mac, Pair, TCP, TcpFlags, UDP, Vlan, VlanKind};

/// A frame to be made for a test, with correct lengths and checksums, unless some are set wrong on purpose.
///
/// Start with the message: [`Frame::udp`], [`Frame::tcp`], [`Frame::echo_request`] and others; the version of IP is that of the
/// addresses. Then change what the test is about, and take the [bytes](Frame::bytes).
///
/// ```
/// use pinion_sdk::headers::{Headers, vlans};
/// use pinion_sdk::testing::Frame;
///
/// let syn = Frame::tcp("10.0.0.1:5000", "10.0.0.2:80");
/// let tagged = syn.clone().vlan(7).hop_limit(1).bytes();
/// assert_eq!(vlans(&tagged)[0].id, 7);
/// assert_eq!(Headers::of(&tagged).unwrap().ip().hop_limit(&tagged), Some(1));
///
/// // Only the checksum of TCP is wrong:
/// let damaged = syn.payload(b"hello").checksum(0x1234).bytes();
/// assert_eq!(damaged[50..52], [0x12, 0x34]);
/// ```
///
/// | field | as long as nothing else is said |
/// |---|---|
/// | hardware addresses | from 02:00:00:00:00:01 to 02:00:00:00:00:02 |
/// | VLAN tags, IP options, extension headers, payload, padding | none |
/// | TTL or hop limit, DSCP, ECN | 64, 0, not capable |
/// | identification and fragment | 1; not a fragment, and may be fragmented |
/// | TCP | flag SYN, sequence number 1, acknowledges 0, window 65,535, no options |
/// | echo | identifier 1, sequence number 1 |
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Frame {
    macs: Pair<Mac>,
    tags: Vec<Vlan>,
    addresses: Pair<IpAddr>,
    network: Network,
    message: Message,
    payload: Vec<u8>,
    padded_to: usize,
    wrong: Wrong,
}

/// The fields of the IP header that are the same in both versions, and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    hop_limit: u8,
    dscp: u8,
    ecn: Ecn,
    /// Options of IPv4, padded.
    options: Vec<u8>,
    /// Extension headers of IPv6: the number of each, and its bytes from the third one on.
    extensions: Vec<(u8, Vec<u8>)>,
    id: u32,
    fragment: Option<Part>,
    dont_fragment: bool,
}

/// A fragment's place in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    offset: u16,
    more: bool,
}

/// What IP carries.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Udp(Pair<u16>),
    Tcp(Tcp),
    /// The first eight bytes of an ICMP message, with a checksum of zero.
    Icmp([u8; 8]),
    Other(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Tcp {
    ports: Pair<u16>,
    sequence: u32,
    acknowledged: u32,
    flags: TcpFlags,
    window: u16,
    options: Vec<u8>,
}

/// Values that are written in place of the right ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wrong {
    ethertype: Option<u16>,
    ip_version: Option<u8>,
    ip_header_len: Option<u8>,
    ip_len: Option<u16>,
    ip_checksum: Option<u16>,
    protocol: Option<u8>,
    message_len: Option<u16>,
    checksum: Option<u16>,
}

/// Starting points.
impl Frame {
    /// A UDP datagram between two ends, each given as text or as a value: see [`Address`].
    ///
    /// # Panics
    ///
    /// As all starting points: if a text is no such address, or the addresses are of different versions of IP.
    pub fn udp(source: impl Address<SocketAddr>, destination: impl Address<SocketAddr>) -> Self {
        let (addresses, ports) = ends(source, destination);
        Self::new(addresses, Message::Udp(ports))
    }

    /// A TCP segment between two ends: a SYN, if nothing else is said.
    pub fn tcp(source: impl Address<SocketAddr>, destination: impl Address<SocketAddr>) -> Self {
        let (addresses, ports) = ends(source, destination);
        let (flags, options) = (TcpFlags(0x02), Vec::new());
        Self::new(addresses, Message::Tcp(Tcp { ports, sequence: 1, acknowledged: 0, flags, window: 0xffff, options }))
    }

    /// An ICMP or ICMPv6 echo request, as `ping` sends it.
    pub fn echo_request(source: impl Address<IpAddr>, destination: impl Address<IpAddr>) -> Self {
        Self::of_kinds(source, destination, [8, 128], 0, [0, 1, 0, 1])
    }

    /// The reply to an echo request.
    pub fn echo_reply(source: impl Address<IpAddr>, destination: impl Address<IpAddr>) -> Self {
        Self::of_kinds(source, destination, [0, 129], 0, [0, 1, 0, 1])
    }

    /// A message of ICMP, or of ICMPv6, with this type and code. `rest` is what its header has behind the checksum.
    pub fn icmp(
        source: impl Address<IpAddr>,
        destination: impl Address<IpAddr>,
        kind: u8,
        code: u8,
        rest: [u8; 4],
    ) -> Self {
        Self::of_kinds(source, destination, [kind; 2], code, rest)
    }

    /// A router's error to the sender of a packet: destination unreachable, which quotes the packet. For an error of another kind, use
    /// [`Frame::icmp`] with the quoted packet as payload.
    ///
    /// ```
    /// use pinion_sdk::headers::Headers;
    /// use pinion_sdk::testing::Frame;
    ///
    /// let about = Frame::udp("10.0.0.1:5000", "10.0.0.2:53");
    /// let error = Frame::unreachable("10.0.0.9", &about).bytes();
    /// let quoted = Headers::of(&error).unwrap().reported(&error).unwrap().unwrap();
    /// assert_eq!(quoted.ports.unwrap().destination, 53);
    /// ```
    pub fn unreachable(router: impl Address<IpAddr>, about: &Self) -> Self {
        Self::of_kinds(router, about.addresses.source, [3, 1], 0, [0; 4]).payload(&about.packet())
    }

    /// A packet of another protocol, all of whose bytes are the payload.
    pub fn other(protocol: u8, source: impl Address<IpAddr>, destination: impl Address<IpAddr>) -> Self {
        Self::new(Pair { source: source.address(), destination: destination.address() }, Message::Other(protocol))
    }

    fn of_kinds(
        source: impl Address<IpAddr>,
        destination: impl Address<IpAddr>,
        [v4, v6]: [u8; 2],
        code: u8,
        [a, b, c, d]: [u8; 4],
    ) -> Self {
        let addresses = Pair { source: source.address(), destination: destination.address() };
        let kind = if addresses.source.is_ipv4() { v4 } else { v6 };
        Self::new(addresses, Message::Icmp([kind, code, 0, 0, a, b, c, d]))
    }

    fn new(addresses: Pair<IpAddr>, message: Message) -> Self {
        let Pair { source, destination } = addresses;
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{source} and {destination} are of two versions of IP");
        let network = Network {
            hop_limit: 64,
            dscp: 0,
            ecn: Ecn::NotCapable,
            options: Vec::new(),
            extensions: Vec::new(),
            id: 1,
            fragment: None,
            dont_fragment: false,
        };
        let macs = Pair { source: Mac([2, 0, 0, 0, 0, 1]), destination: Mac([2, 0, 0, 0, 0, 2]) };
        let (tags, payload, wrong) = (Vec::new(), Vec::new(), Wrong::default());
        Self { macs, tags, addresses, network, message, payload, padded_to: 0, wrong }
    }
}

/// Fields.
impl Frame {
    /// Sets the hardware addresses.
    pub fn macs(mut self, source: impl Address<Mac>, destination: impl Address<Mac>) -> Self {
        self.macs = Pair { source: source.address(), destination: destination.address() };
        self
    }

    /// Adds a customer's VLAN tag with this id, behind those that are there.
    pub fn vlan(self, id: u16) -> Self {
        self.tag(Vlan { id, ..Vlan::default() })
    }

    /// Adds a provider's VLAN tag with this id, behind those that are there.
    pub fn service_vlan(self, id: u16) -> Self {
        self.tag(Vlan { id, kind: VlanKind::Service, ..Vlan::default() })
    }

    /// Adds a VLAN tag, behind those that are there. More than two are possible.
    pub fn tag(mut self, tag: Vlan) -> Self {
        self.tags.push(tag);
        self
    }

    /// Sets the TTL or hop limit.
    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.network.hop_limit = hop_limit;
        self
    }

    /// Sets the code point of differentiated services, 0 to 63.
    pub fn dscp(mut self, dscp: u8) -> Self {
        self.network.dscp = dscp;
        self
    }

    /// Sets what the packet says about congestion.
    pub fn ecn(mut self, ecn: Ecn) -> Self {
        self.network.ecn = ecn;
        self
    }

    /// Sets the options of an IPv4 header. They are padded by zeros to a multiple of four bytes.
    pub fn ip_options(mut self, options: &[u8]) -> Self {
        self.network.options = padded(options, 4);
        self
    }

    /// Adds an extension header of IPv6 with this number, behind those that are there: hop-by-hop (0), routing (43) or destination options
    /// (60). `rest` is what follows its first two bytes; it is padded by zeros.
    pub fn extension(mut self, number: u8, rest: &[u8]) -> Self {
        self.network.extensions.push((number, rest.to_vec()));
        self
    }

    /// Sets the identification that the fragments of a datagram share. IPv4 has 16 bits for it.
    pub fn id(mut self, id: u32) -> Self {
        self.network.id = id;
        self
    }

    /// Makes it a fragment that begins at this offset of its datagram, in bytes, a multiple of 8. In a first fragment (offset 0) the message's
    /// header precedes the payload; any other consists of the payload. Lengths and checksum of the message are those of a message that
    /// ends with this fragment.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        assert!(offset.is_multiple_of(8), "a fragment begins at a multiple of 8, and {offset} is none");
        self.network.fragment = Some(Part { offset, more });
        self
    }

    /// Splits the packet into fragments, in their order, each with at most so many bytes of the message, a multiple of 8. The checksum is in the
    /// first one, and covers the whole message. IPv6 needs an [identification](Frame::id) of its own for each datagram.
    ///
    /// ```
    /// use pinion_sdk::headers::Headers;
    /// use pinion_sdk::testing::Frame;
    ///
    /// let parts = Frame::udp("10.0.0.1:5000", "10.0.0.2:53").payload(&[7; 40]).id(9).fragments(24);
    /// let fragment = |part: &Frame| Headers::of(&part.bytes()).unwrap().fragment.unwrap();
    /// assert!(parts.iter().map(|part| (fragment(part).offset, fragment(part).more)).eq([(0, true), (24, false)]));
    /// ```
    ///
    /// # Panics
    ///
    /// If `bytes` is 0 or no multiple of 8.
    #[must_use]
    pub fn fragments(&self, bytes: usize) -> Vec<Self> {
        assert!(bytes > 0 && bytes.is_multiple_of(8), "a fragment has a multiple of 8 bytes, and {bytes} is none");
        let message = self.message();
        let protocol = self.message.protocol(self.addresses.source.is_ipv4());
        let count = message.len().div_ceil(bytes);
        let part = |(number, piece): (usize, &[u8])| {
            let part = Self { message: Message::Other(protocol), ..self.clone() };
            part.payload(piece).fragment((number * bytes) as u16, number + 1 < count)
        };
        message.chunks(bytes).enumerate().map(part).collect()
    }

    /// Sets the flag of IPv4 that forbids routers to fragment the packet.
    pub fn dont_fragment(mut self) -> Self {
        self.network.dont_fragment = true;
        self
    }

    /// Sets the flags of a TCP segment, as in its header: 0x01 FIN, 0x02 SYN, 0x04 RST, 0x08 PSH, 0x10 ACK.
    ///
    /// # Panics
    ///
    /// As all methods for TCP: if it is no segment.
    pub fn tcp_flags(self, flags: u8) -> Self {
        self.with_tcp(|tcp| tcp.flags = TcpFlags(flags))
    }

    /// Sets the sequence number of a TCP segment.
    pub fn sequence(self, sequence: u32) -> Self {
        self.with_tcp(|tcp| tcp.sequence = sequence)
    }

    /// Sets the number that a TCP segment acknowledges, and adds the flag ACK.
    pub fn acknowledged(self, acknowledged: u32) -> Self {
        self.with_tcp(|tcp| (tcp.acknowledged, tcp.flags) = (acknowledged, TcpFlags(tcp.flags.0 | 0x10)))
    }

    /// Sets the window of a TCP segment.
    pub fn window(self, window: u16) -> Self {
        self.with_tcp(|tcp| tcp.window = window)
    }

    /// Sets the options of a TCP segment. They are padded by zeros to a multiple of four bytes.
    pub fn tcp_options(self, options: &[u8]) -> Self {
        self.with_tcp(|tcp| tcp.options = padded(options, 4))
    }

    /// Sets identifier and sequence number of an ICMP echo.
    ///
    /// # Panics
    ///
    /// If it is no ICMP message.
    pub fn echo(mut self, id: u16, sequence: u16) -> Self {
        let Message::Icmp(header) = &mut self.message else { panic!("this is no ICMP message: {self:?}") };
        header[4..6].copy_from_slice(&id.to_be_bytes());
        header[6..].copy_from_slice(&sequence.to_be_bytes());
        self
    }

    /// Sets the payload.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Pads the frame by zeros to this length, 60 for example, if it is shorter.
    pub fn padded_to(mut self, len: usize) -> Self {
        self.padded_to = len;
        self
    }

    fn with_tcp(mut self, change: impl FnOnce(&mut Tcp)) -> Self {
        let Message::Tcp(tcp) = &mut self.message else { panic!("this is no TCP segment: {self:?}") };
        change(tcp);
        self
    }
}

/// Fields that are wrong on purpose. Checksums that cover such a field are those of its wrong value, so that only one thing is wrong.
impl Frame {
    /// Writes this in place of the type of the network's protocol.
    pub fn ethertype(mut self, ethertype: u16) -> Self {
        self.wrong.ethertype = Some(ethertype);
        self
    }

    /// Writes this version into the IP header.
    pub fn ip_version(mut self, version: u8) -> Self {
        self.wrong.ip_version = Some(version);
        self
    }

    /// Writes this length into an IPv4 header, in words of four bytes.
    pub fn ip_header_len(mut self, words: u8) -> Self {
        self.wrong.ip_header_len = Some(words);
        self
    }

    /// Writes this as total length of IPv4, or as payload length of IPv6.
    pub fn ip_len(mut self, len: u16) -> Self {
        self.wrong.ip_len = Some(len);
        self
    }

    /// Writes this as checksum of an IPv4 header.
    pub fn ip_checksum(mut self, checksum: u16) -> Self {
        self.wrong.ip_checksum = Some(checksum);
        self
    }

    /// Writes this as number of the protocol above IP.
    pub fn protocol(mut self, protocol: u8) -> Self {
        self.wrong.protocol = Some(protocol);
        self
    }

    /// Writes this as length of a UDP datagram, or as header length of a TCP segment in words of four bytes.
    pub fn message_len(mut self, len: u16) -> Self {
        self.wrong.message_len = Some(len);
        self
    }

    /// Writes this as checksum of TCP, UDP or ICMP. A UDP datagram with 0 has none.
    pub fn checksum(mut self, checksum: u16) -> Self {
        self.wrong.checksum = Some(checksum);
        self
    }
}

impl Message {
    fn protocol(&self, is_v4: bool) -> u8 {
        match self {
            Self::Udp(_) => UDP,
            Self::Tcp(_) => TCP,
            Self::Icmp(_) if is_v4 => ICMP,
            Self::Icmp(_) => ICMPV6,
            Self::Other(protocol) => *protocol,
        }
    }
}

fn ends(source: impl Address<SocketAddr>, destination: impl Address<SocketAddr>) -> (Pair<IpAddr>, Pair<u16>) {
    let (source, destination) = (source.address(), destination.address());
    (
        Pair { source: source.ip(), destination: destination.ip() },
        Pair { source: source.port(), destination: destination.port() },
    )
}

fn padded(bytes: &[u8], to: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(to), 0);
    bytes
}
