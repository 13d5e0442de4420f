//! Reads the headers above IP: ports, TCP flags, and kinds of ICMP message.

use super::{Extent, Headers, ICMP, ICMPV6, Pair, TCP, UDP, Unreadable};

pub(super) const TCP_HEADER_MIN: usize = 20;
/// Up to and including the flags.
const TCP_HEADER_JUDGED: usize = 14;
pub(super) const UDP_HEADER: usize = 8;
const ICMP_HEADER: usize = 8;

/// Returns how many bytes of a protocol's header contain the fields that are read here.
#[inline]
pub(super) fn judged_bytes(protocol: u8) -> usize {
    match protocol {
        TCP => TCP_HEADER_JUDGED,
        UDP => UDP_HEADER,
        ICMPV6 => ICMP_HEADER,
        _ => 0,
    }
}

/// The flags of a TCP segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(
    /// The flags as in the header's 14th byte.
    pub u8,
);

impl TcpFlags {
    /// Returns FIN: the sender has no more data.
    #[inline]
    #[must_use]
    pub fn fin(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// Returns SYN: the segment opens a connection, or answers one that does.
    #[inline]
    #[must_use]
    pub fn syn(self) -> bool {
        self.0 & 0x02 != 0
    }

    /// Returns RST: the connection is refused or aborted.
    #[inline]
    #[must_use]
    pub fn rst(self) -> bool {
        self.0 & 0x04 != 0
    }

    /// Returns PSH: the receiver should pass the data on at once.
    #[inline]
    #[must_use]
    pub fn psh(self) -> bool {
        self.0 & 0x08 != 0
    }

    /// Returns ACK: the acknowledgement number is valid.
    #[inline]
    #[must_use]
    pub fn ack(self) -> bool {
        self.0 & 0x10 != 0
    }

    /// Returns URG: the urgent pointer is valid.
    #[inline]
    #[must_use]
    pub fn urg(self) -> bool {
        self.0 & 0x20 != 0
    }

    /// Returns ECE: the receiver reports congestion, or uses ECN if this is a SYN (RFC 3168).
    #[inline]
    #[must_use]
    pub fn ece(self) -> bool {
        self.0 & 0x40 != 0
    }

    /// Returns CWR: the sender has reduced its window after a report of congestion.
    #[inline]
    #[must_use]
    pub fn cwr(self) -> bool {
        self.0 & 0x80 != 0
    }
}

/// An ICMP message, of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Its type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The echo request or reply, if it is one.
    pub echo: Option<Echo>,
    /// Whether it is an error, which [quotes](Headers::quoted) the packet that it is about.
    pub is_error: bool,
}

/// An echo request or reply, as `ping` sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Whether it is the request, and not the reply.
    pub is_request: bool,
    /// The identifier by which the sender of a request recognises the reply.
    pub id: u16,
}

impl Icmp {
    /// Reads a message; `None` if it is too short for one.
    #[inline]
    pub(super) fn of(protocol: u8, message: &[u8]) -> Option<Self> {
        message.first_chunk().map(|header| Self::new(protocol, header))
    }

    #[inline]
    fn new(protocol: u8, header: &[u8; ICMP_HEADER]) -> Self {
        let (kind, code, id) = (header[0], header[1], u16::from_be_bytes([header[4], header[5]]));
        let is_request = match (protocol, kind) {
            (ICMP, 8) | (ICMPV6, 128) => Some(true),
            (ICMP, 0) | (ICMPV6, 129) => Some(false),
            _ => None,
        };
        let is_error = match protocol {
            // Includes redirects, which quote a packet as well.
            ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
            _ => (1..128).contains(&kind),
        };
        Self { kind, code, echo: is_request.map(|is_request| Echo { is_request, id }), is_error }
    }
}

/// Adds the fields of the transport header.
#[inline]
pub(super) fn read(frame: &[u8], headers: Headers, extent: Extent) -> Result<Headers, Unreadable> {
    match headers.protocol {
        TCP => read_tcp(message(frame, &headers)?, headers, extent),
        UDP => read_udp(message(frame, &headers)?, headers, extent),
        // The ICMP of the other version of IP has no meaning.
        protocol if protocol == headers.addresses.icmp() => read_icmp(message(frame, &headers)?, headers, extent),
        _ => message(frame, &headers).map(|_| headers),
    }
}

/// Returns what IP carries.
#[inline]
pub(super) fn message<'f>(frame: &'f [u8], headers: &Headers) -> Result<&'f [u8], Unreadable> {
    frame.get(headers.at.transport..headers.at.end).ok_or(Unreadable::Malformed)
}

#[inline]
fn read_tcp(message: &[u8], mut headers: Headers, extent: Extent) -> Result<Headers, Unreadable> {
    if let Some(header) = message.first_chunk::<TCP_HEADER_MIN>() {
        let len = usize::from(header[12] >> 4) * 4;
        if extent != Extent::Quoted && (len < TCP_HEADER_MIN || len > message.len()) {
            return Err(Unreadable::Malformed);
        }
        headers.tcp_flags = Some(TcpFlags(header[13]));
        headers.at.payload = (headers.at.transport + len).min(headers.at.end);
    } else if extent != Extent::Quoted {
        return Err(Unreadable::Malformed);
    }
    headers.ports = ports(message);
    Ok(headers)
}

#[inline]
pub(super) fn read_udp(message: &[u8], mut headers: Headers, extent: Extent) -> Result<Headers, Unreadable> {
    if message.len() < UDP_HEADER && extent != Extent::Quoted {
        return Err(Unreadable::Malformed);
    }
    headers.ports = ports(message);
    headers.at.payload = (headers.at.transport + UDP_HEADER).min(headers.at.end);
    Ok(headers)
}

#[inline]
pub(super) fn read_icmp(message: &[u8], mut headers: Headers, extent: Extent) -> Result<Headers, Unreadable> {
    if let Some(header) = message.first_chunk::<ICMP_HEADER>() {
        headers.icmp = Some(Icmp::new(headers.protocol, header));
        headers.at.payload = headers.at.transport + ICMP_HEADER;
    } else if headers.fragment.is_some() && extent != Extent::Quoted {
        // A later fragment would bring the type by which the message is judged.
        return Err(Unreadable::Malformed);
    }
    Ok(headers)
}

#[inline]
fn ports(header: &[u8]) -> Option<Pair<u16>> {
    let [a, b, c, d] = *header.first_chunk::<4>()?;
    Some(Pair { source: u16::from_be_bytes([a, b]), destination: u16::from_be_bytes([c, d]) })
}
