//! Addresses and ports changed in place, with all checksums that cover them.
//!
//! A checksum is updated and not computed (RFC 1624): so one that was wrong stays wrong, and whoever verifies it still finds out that the
//! packet was damaged before.

use core::fmt;

use super::{Addresses, Echo, Headers, ICMP, ICMPV6, Icmp, Pair, TCP, UDP};
use crate::checksum;

const IPV4_CHECKSUM_AT: usize = 10;
const IPV4_ADDRESSES_AT: usize = 12;
const IPV6_ADDRESSES_AT: usize = 8;
const ECHO_ID_AT: usize = 4;

/// A packet has not what is to be changed. It is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotRewrite {
    /// Addresses of one version of IP are to become those of the other.
    OtherVersion,
    /// Ports are to be set where there are none.
    NoPorts,
    /// These headers are not of that frame.
    OtherFrame,
}

impl fmt::Display for CannotRewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherVersion => "an IPv4 packet cannot have IPv6 addresses, nor the other way round",
            Self::NoPorts => "the packet has no ports: it is neither TCP, UDP nor an echo, or a fragment but the first",
            Self::OtherFrame => "the frame is shorter than the one whose headers these are",
        })
    }
}

impl std::error::Error for CannotRewrite {}

impl Headers {
    /// Has the packet sent from and to other addresses of the same version of IP. The checksums of IPv4, TCP, UDP and ICMPv6 stay as right as
    /// they were, of fragments as well; a UDP checksum that is not there stays away. With an IPv6 routing header the
    /// transport's may be that of another destination.
    ///
    /// # Errors
    ///
    /// The addresses are of the other version, or the frame is another one.
    pub fn set_addresses(&mut self, frame: &mut [u8], addresses: Addresses) -> Result<(), CannotRewrite> {
        let network = self.at.network;
        match (self.addresses, addresses) {
            (Addresses::V4(old), Addresses::V4(new)) => {
                let (old, new) = (bytes_v4(old), bytes_v4(new));
                self.put(frame, network + IPV4_ADDRESSES_AT, &new)?;
                update(frame, network + IPV4_CHECKSUM_AT, &old, &new);
                self.update_transport(frame, &old, &new, Covers::PseudoHeader);
            }
            (Addresses::V6(old), Addresses::V6(new)) => {
                let (old, new) = (bytes_v6(old), bytes_v6(new));
                self.put(frame, network + IPV6_ADDRESSES_AT, &new)?;
                self.update_transport(frame, &old, &new, Covers::PseudoHeader);
            }
            _ => return Err(CannotRewrite::OtherVersion),
        }
        self.addresses = addresses;
        Ok(())
    }

    /// Has the packet sent from and to other ports: those of TCP or UDP, or, of an ICMP echo, with another identifier, which is then the source
    /// port.
    ///
    /// # Errors
    ///
    /// The packet has none, or the frame is another one.
    pub fn set_ports(&mut self, frame: &mut [u8], ports: Pair<u16>) -> Result<(), CannotRewrite> {
        let transport = self.at.transport;
        if let Some(old) = self.ports {
            let (old, new) = (bytes_of_ports(old), bytes_of_ports(ports));
            self.put(frame, transport, &new)?;
            self.update_transport(frame, &old, &new, Covers::Header);
            self.ports = Some(ports);
        } else if let Some((icmp, echo)) = self.icmp.and_then(|icmp| icmp.echo.map(|echo| (icmp, echo))) {
            let (old, new) = (echo.id.to_be_bytes(), ports.source.to_be_bytes());
            self.put(frame, transport + ECHO_ID_AT, &new)?;
            self.update_transport(frame, &old, &new, Covers::Header);
            self.icmp = Some(Icmp { echo: Some(Echo { id: ports.source, ..echo }), ..icmp });
        } else {
            return Err(CannotRewrite::NoPorts);
        }
        Ok(())
    }

    fn put(&self, frame: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), CannotRewrite> {
        let field = frame.get_mut(..self.at.end).and_then(|packet| packet.get_mut(at..at + bytes.len()));
        field.ok_or(CannotRewrite::OtherFrame)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Brings the transport's checksum up to date, where the packet has it.
    fn update_transport(&self, frame: &mut [u8], old: &[u8], new: &[u8], covers: Covers) {
        if self.fragment.is_some_and(|fragment| !fragment.is_first()) {
            return;
        }
        let offset = match (self.protocol, covers) {
            (TCP, _) => 16,
            (UDP, _) => 6,
            (ICMP, Covers::Header) => 2,
            (ICMPV6, _) => 2,
            _ => return,
        };
        let at = self.at.transport + offset;
        let Some(packet) = frame.get_mut(..self.at.end).filter(|packet| packet.len() >= at + 2) else { return };
        if self.protocol != UDP {
            update(packet, at, old, new);
        } else if packet[at..at + 2] != [0, 0] {
            update(packet, at, old, new);
            // Zero would say that there is none.
            if packet[at..at + 2] == [0, 0] {
                packet[at..at + 2].copy_from_slice(&[0xff, 0xff]);
            }
        }
    }
}

/// What has changed, of the data that a transport's checksum covers.
#[derive(Clone, Copy, PartialEq)]
enum Covers {
    /// The addresses, which the ICMP of IPv4 does without.
    PseudoHeader,
    Header,
}

fn update(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    if let Some(field) = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<2>) {
        *field = checksum::update_bytes(u16::from_be_bytes(*field), old, new).to_be_bytes();
    }
}

fn bytes_of_ports(ports: Pair<u16>) -> [u8; 4] {
    ((u32::from(ports.source) << 16) | u32::from(ports.destination)).to_be_bytes()
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
