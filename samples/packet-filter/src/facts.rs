//! What a policy may ask about a frame, read once from its headers. No allocation, and no panic on any bytes.
//!
//! Looks past up to two VLAN tags and eight IPv6 extension headers. Checksums are not verified: whoever ends the
//! connection does, and a filter that let a broken packet pass has let nothing pass.

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6FragmentHeader, Ipv6Packet};

/// VLAN tags looked past: one, or a provider's and a customer's.
const VLAN_TAGS_MAX: usize = 2;
/// IPv6 extension headers looked past; all that RFC 8200 defines, once each, are fewer.
const EXTENSIONS_MAX: usize = 8;

const MAC_ADDRESSES: usize = 12;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_SERVICE_VLAN: [u8; 2] = [0x88, 0xa8];

const TCP_HEADER_MIN: usize = 20;
const TCP_FLAGS: usize = 13;
const TCP_RST_OR_ACK: u8 = 0x04 | 0x10;
const UDP_HEADER: usize = 8;

/// Why a frame can't be judged. Such a frame never passes.
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

/// What is known of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Who sends to whom.
    pub addresses: Addresses,
    /// The number of the protocol above IP, which for ICMPv6 is [`IpProtocol::Icmpv6`]'s.
    pub protocol: u8,
    /// What the header of TCP or UDP says; `None` for other protocols, and for all fragments but the first.
    pub transport: Option<Transport>,
}

/// Source and destination, as numbers, so that a prefix is a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Of IPv4.
    V4(Pair<u32>),
    /// Of IPv6.
    V6(Pair<u128>),
}

/// Two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<A> {
    /// The sender's.
    pub source: A,
    /// The receiver's.
    pub destination: A,
}

/// What the header of TCP or UDP says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// A TCP segment that opens no connection: one with ACK or RST.
    pub established: bool,
}

/// Which part of its datagram a packet is.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// All of it, or the start.
    Head,
    /// What lies that many bytes behind the start.
    Later(usize),
}

impl Facts {
    /// Reads an Ethernet frame.
    ///
    /// # Errors
    ///
    /// It is nothing that a policy could judge.
    #[inline]
    pub fn of(frame: &[u8]) -> Result<Self, Unreadable> {
        let mut rest = frame.get(MAC_ADDRESSES..).ok_or(Unreadable::Malformed)?;
        for _ in 0..=VLAN_TAGS_MAX {
            let (ethertype, payload) = rest.split_first_chunk::<2>().ok_or(Unreadable::Malformed)?;
            match *ethertype {
                ETHERTYPE_IPV4 => return of_ipv4(payload),
                ETHERTYPE_IPV6 => return of_ipv6(payload),
                ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => rest = payload.get(2..).ok_or(Unreadable::Malformed)?,
                _ => return Err(Unreadable::NotIp),
            }
        }
        Err(Unreadable::TooManyHeaders)
    }
}

#[inline]
fn of_ipv4(bytes: &[u8]) -> Result<Facts, Unreadable> {
    let ip = Ipv4Packet::new_checked(bytes).map_err(|_| Unreadable::Malformed)?;
    if ip.version() != 4 {
        return Err(Unreadable::Malformed);
    }
    let part = match ip.frag_offset() {
        0 => Part::Head,
        offset => Part::Later(usize::from(offset)),
    };
    let addresses = Addresses::V4(Pair { source: ip.src_addr().to_bits(), destination: ip.dst_addr().to_bits() });
    let transport = transport(ip.next_header(), ip.payload(), part)?;
    Ok(Facts { addresses, protocol: ip.next_header().into(), transport })
}

fn of_ipv6(bytes: &[u8]) -> Result<Facts, Unreadable> {
    let ip = Ipv6Packet::new_checked(bytes).map_err(|_| Unreadable::Malformed)?;
    if ip.version() != 6 {
        return Err(Unreadable::Malformed);
    }
    let (protocol, payload, part) = skip_extensions(ip.next_header(), ip.payload())?;
    let addresses = Addresses::V6(Pair { source: ip.src_addr().to_bits(), destination: ip.dst_addr().to_bits() });
    Ok(Facts { addresses, protocol: protocol.into(), transport: transport(protocol, payload, part)? })
}

fn skip_extensions(first: IpProtocol, bytes: &[u8]) -> Result<(IpProtocol, &[u8], Part), Unreadable> {
    let (mut protocol, mut rest) = (first, bytes);
    for _ in 0..=EXTENSIONS_MAX {
        match protocol {
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                let header = Ipv6ExtHeader::new_checked(rest).map_err(|_| Unreadable::Malformed)?;
                let len = (usize::from(header.header_len()) + 1) * 8;
                protocol = header.next_header();
                rest = rest.get(len..).ok_or(Unreadable::Malformed)?;
            }
            IpProtocol::Ipv6Frag => {
                let (header, behind) = rest.split_at_checked(8).ok_or(Unreadable::Malformed)?;
                let fields = Ipv6FragmentHeader::new_checked(&header[2..]).map_err(|_| Unreadable::Malformed)?;
                protocol = IpProtocol::from(header[0]);
                rest = behind;
                // Behind another fragment's start there is no header to be read, nor is one to be trusted.
                if fields.frag_offset() != 0 {
                    return Ok((protocol, rest, Part::Later(usize::from(fields.frag_offset()) * 8)));
                }
            }
            _ => return Ok((protocol, rest, Part::Head)),
        }
    }
    Err(Unreadable::TooManyHeaders)
}

#[inline]
fn transport(protocol: IpProtocol, payload: &[u8], part: Part) -> Result<Option<Transport>, Unreadable> {
    let (header_min, tcp) = match protocol {
        IpProtocol::Tcp => (TCP_HEADER_MIN, true),
        IpProtocol::Udp => (UDP_HEADER, false),
        _ => return Ok(None),
    };
    match part {
        Part::Later(offset) if tcp && offset < header_min => Err(Unreadable::OverlappingFragment),
        Part::Later(_) => Ok(None),
        Part::Head => {
            let header = payload.get(..header_min).ok_or(Unreadable::Malformed)?;
            Ok(Some(Transport {
                source_port: u16::from_be_bytes([header[0], header[1]]),
                destination_port: u16::from_be_bytes([header[2], header[3]]),
                established: tcp && header[TCP_FLAGS] & TCP_RST_OR_ACK != 0,
            }))
        }
    }
}
