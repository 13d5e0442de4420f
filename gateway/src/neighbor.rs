//! Answers requests for a port's addresses: ARP for IPv4, neighbour discovery for IPv6 (RFC 4861).
//!
//! The gateway does this itself. So no FWP has to know about links to make its chain reachable, and no tenant can
//! answer for another's address. The answer is written over the request, in the request's own buffer.
//!
//! The gateway calls this for frames that [`crate::headers`] recognised, none of which are in a VLAN. A priority-only
//! tag is skipped and not repeated in the answer. Allocates nothing. Never sends requests of its own: FWPs address the
//! frames that leave, as replies to stations that they heard from.

pub(crate) mod answer_rate;

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv6Message,
    Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

use crate::drops::DropReason;
use crate::headers::payload_offset;

const ETHERNET_HEADER: usize = 14;
const IPV6_HEADER: usize = 40;
/// Neighbour discovery stays on the link: a router that forwarded a message would have decreased the hop limit.
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The addresses that one port answers for.
#[derive(Debug)]
pub struct Neighbors {
    station: EthernetAddress,
    ipv4: Box<[Ipv4Addr]>,
    ipv6: Box<[Ipv6Addr]>,
}

impl Neighbors {
    /// Makes an answerer for these addresses (the addresses themselves, not the rest of their prefixes), with the
    /// hardware address `station`.
    #[must_use]
    pub fn new(station: EthernetAddress, addresses: &[IpNet]) -> Self {
        let mut ipv4: Vec<_> = addresses.iter().filter_map(ipv4_of).collect();
        let mut ipv6: Vec<_> = addresses.iter().filter_map(ipv6_of).collect();
        // Sorted for binary search, as there may be hundreds.
        ipv4.sort_unstable();
        ipv6.sort_unstable();
        Self { station, ipv4: ipv4.into(), ipv6: ipv6.into() }
    }

    /// Sets the port's hardware address, which changes with its device.
    pub(crate) fn set_station(&mut self, station: EthernetAddress) {
        self.station = station;
    }

    /// Returns the port's hardware address.
    #[must_use]
    pub fn station(&self) -> EthernetAddress {
        self.station
    }

    /// Turns an ARP request of `len` bytes at the start of `space` into its answer. Returns the answer's length.
    ///
    /// Probes (from 0.0.0.0) are answered like any request, which is what defends the address.
    ///
    /// # Errors
    /// The reason why there is no answer. `space` is then unchanged.
    pub fn answer_arp(&self, space: &mut [u8], len: usize) -> Result<usize, DropReason> {
        let frame = space.get(..len).ok_or(DropReason::Truncated)?;
        let question = frame.get(payload_offset(frame)..).ok_or(DropReason::Truncated)?;
        let packet = ArpPacket::new_checked(question).map_err(|_| DropReason::Truncated)?;
        let ArpRepr::EthernetIpv4 {
            operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, ..
        } = ArpRepr::parse(&packet).map_err(|_| DropReason::BadNeighborMessage)?
        else {
            return Err(DropReason::BadNeighborMessage);
        };
        if !source_hardware_addr.is_unicast() || source_protocol_addr.is_multicast() {
            return Err(DropReason::BadSource);
        }
        if self.ipv4.binary_search(&source_protocol_addr).is_ok() {
            return Err(DropReason::AddressConflict);
        }
        if operation != ArpOperation::Request || self.ipv4.binary_search(&target_protocol_addr).is_err() {
            return Err(DropReason::NotForUs);
        }
        let answer = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: self.station,
            source_protocol_addr: target_protocol_addr,
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: source_protocol_addr,
        };
        let answer_len = ETHERNET_HEADER + answer.buffer_len();
        let space = space.get_mut(..answer_len).ok_or(DropReason::Truncated)?;
        let mut frame = self.address_frame(space, source_hardware_addr, EthernetProtocol::Arp);
        answer.emit(&mut ArpPacket::new_unchecked(frame.payload_mut()));
        Ok(answer_len)
    }

    /// Turns a neighbour solicitation of `len` bytes at the start of `space` into the advertisement that it asks for.
    /// Returns the advertisement's length, which can be greater.
    ///
    /// The answer to a probe for duplicate addresses (from `::`) goes to all nodes on the link, because the prober has
    /// no address yet. Other messages of neighbour and router discovery have no answer.
    ///
    /// # Errors
    /// The reason why there is no answer. `space` is then unchanged.
    pub fn answer_solicitation(&self, space: &mut [u8], len: usize) -> Result<usize, DropReason> {
        let Solicitation { asker, asker_station, target } = self.solicitation(space, len)?;
        let (to, to_station, solicited) = if asker.is_unspecified() {
            (ALL_NODES, EthernetAddress([0x33, 0x33, 0, 0, 0, 1]), NdiscNeighborFlags::empty())
        } else {
            (asker, asker_station, NdiscNeighborFlags::SOLICITED)
        };
        let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags: solicited | NdiscNeighborFlags::OVERRIDE,
            target_addr: target,
            lladdr: Some(self.station.into()),
        });
        let header = Ipv6Repr {
            src_addr: target,
            dst_addr: to,
            next_header: IpProtocol::Icmpv6,
            payload_len: message.buffer_len(),
            hop_limit: HOP_LIMIT,
        };
        let answer_len = ETHERNET_HEADER + IPV6_HEADER + message.buffer_len();
        let space = space.get_mut(..answer_len).ok_or(DropReason::Truncated)?;
        let mut frame = self.address_frame(space, to_station, EthernetProtocol::Ipv6);
        let mut packet = Ipv6Packet::new_unchecked(frame.payload_mut());
        header.emit(&mut packet);
        let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
        message.emit(&target, &to, &mut icmp, &ChecksumCapabilities::default());
        Ok(answer_len)
    }

    /// Reads and validates a solicitation as RFC 4861, section 7.1.1, requires.
    fn solicitation(&self, space: &[u8], len: usize) -> Result<Solicitation, DropReason> {
        let frame = space.get(..len).ok_or(DropReason::Truncated)?;
        let packet = frame.get(payload_offset(frame)..).ok_or(DropReason::Truncated)?;
        let frame = EthernetFrame::new_checked(frame).map_err(|_| DropReason::Truncated)?;
        let packet = Ipv6Packet::new_checked(packet).map_err(|_| DropReason::Truncated)?;
        // No compliant sender puts these messages behind extension headers, least of all in fragments (RFC 6980).
        if packet.next_header() != IpProtocol::Icmpv6 || packet.hop_limit() != HOP_LIMIT {
            return Err(DropReason::BadNeighborMessage);
        }
        let icmp = Icmpv6Packet::new_checked(packet.payload()).map_err(|_| DropReason::Truncated)?;
        let (asker, receiver) = (packet.src_addr(), packet.dst_addr());
        if !icmp.verify_checksum(&asker, &receiver) {
            return Err(DropReason::BadChecksum);
        }
        if icmp.msg_type() != Icmpv6Message::NeighborSolicit {
            return Err(DropReason::NotForUs);
        }
        let message = Icmpv6Repr::parse(&asker, &receiver, &icmp, &ChecksumCapabilities::ignored());
        let Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr: target, lladdr })) = message else {
            return Err(DropReason::BadNeighborMessage);
        };
        if self.ipv6.binary_search(&target).is_err() {
            return Err(DropReason::NotForUs);
        }
        let mut asker_station = frame.src_addr();
        if asker.is_unspecified() {
            if lladdr.is_some() || receiver != solicited_node(target) {
                return Err(DropReason::BadNeighborMessage);
            }
        } else if self.ipv6.binary_search(&asker).is_ok() {
            return Err(DropReason::AddressConflict);
        } else if let Some(stated) = lladdr {
            let stated = stated.as_bytes().try_into().map_err(|_| DropReason::BadNeighborMessage)?;
            asker_station = EthernetAddress(stated);
        }
        if !asker_station.is_unicast() {
            return Err(DropReason::BadSource);
        }
        Ok(Solicitation { asker, asker_station, target })
    }

    fn address_frame<'a>(
        &self,
        space: &'a mut [u8],
        to: EthernetAddress,
        ethertype: EthernetProtocol,
    ) -> EthernetFrame<&'a mut [u8]> {
        let mut frame = EthernetFrame::new_unchecked(space);
        EthernetRepr { src_addr: self.station, dst_addr: to, ethertype }.emit(&mut frame);
        frame
    }
}

/// A valid solicitation for one of the port's addresses.
struct Solicitation {
    asker: Ipv6Addr,
    asker_station: EthernetAddress,
    target: Ipv6Addr,
}

/// The multicast group in which a holder of the address listens for solicitations.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

fn ipv4_of(net: &IpNet) -> Option<Ipv4Addr> {
    match net {
        IpNet::V4(net) => Some(net.addr()),
        IpNet::V6(_) => None,
    }
}

fn ipv6_of(net: &IpNet) -> Option<Ipv6Addr> {
    match net {
        IpNet::V4(_) => None,
        IpNet::V6(net) => Some(net.addr()),
    }
}

#[cfg(test)]
mod tests;
