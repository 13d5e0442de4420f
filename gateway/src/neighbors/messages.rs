//! Messages between neighbours: ARP for IPv4, neighbour discovery for IPv6 (RFC 4861). Reads those of others and writes
//! the node's own.
//!
//! The gateway does this itself. So no FWP has to know about links to make its chain reachable, and no tenant can
//! answer for another's address. An answer is written over the question, in the question's own buffer.
//!
//! The gateway calls this for frames that [`crate::headers`] recognised. A priority-only tag is skipped and not repeated
//! in the answer; the tags of a VLAN are, with their types. Allocates nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, Icmpv6Message, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use super::link_header::{self, LINK_HEADER_MAX, Tags};
use super::listener_report;
use super::network::Network;
use crate::drops::DropReason;
use crate::headers::payload_offset;

const ETHERTYPE_ARP: u16 = 0x0806;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ARP_BYTES: usize = 28;
const IPV6_HEADER: usize = 40;
/// A neighbour solicitation or advertisement with one option.
const DISCOVERY_BYTES: usize = IPV6_HEADER + 32;
/// Neighbour discovery stays on the link: a router that forwarded a message would have decreased the hop limit.
const HOP_LIMIT: u8 = 255;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Bytes that a message of the node may need, whichever it is.
pub const MESSAGE_BYTES_MAX: usize = LINK_HEADER_MAX + listener_report::PACKET_BYTES;
const _: () = assert!(DISCOVERY_BYTES <= listener_report::PACKET_BYTES && ARP_BYTES <= DISCOVERY_BYTES);

/// What a message of a neighbour says, and the length of the answer that was written over it, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Which station has which address.
    pub told: Option<Told>,
    /// In bytes.
    pub answer_len: Option<usize>,
}

/// Which station has an address, as a neighbour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The address.
    pub address: IpAddr,
    /// The station that has it.
    pub station: EthernetAddress,
    /// How it was said.
    pub how: How,
}

/// How a neighbour says which station has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As the answer to a question of the node: it is there now.
    Answer,
    /// Of itself, when it asks for another address or announces its own.
    Unasked,
    /// As [`How::Answer`], but only if no other station was known to have the address (an advertisement without the
    /// override flag).
    AnswerUnlessKnown,
    /// As [`How::Unasked`], with the same condition.
    UnaskedUnlessKnown,
}

/// Reads an ARP message of `len` bytes at the start of `space`. Turns a request for an address of the node into its
/// answer.
///
/// Probes (from 0.0.0.0) are answered like any request, which is what defends the address.
///
/// # Errors
/// The reason why it is dropped. `space` is then unchanged.
pub fn read_arp(
    network: &Network,
    station: EthernetAddress,
    space: &mut [u8],
    len: usize,
) -> Result<Heard, DropReason> {
    let frame = space.get(..len).ok_or(DropReason::Truncated)?;
    let message = frame.get(payload_offset(frame)..).ok_or(DropReason::Truncated)?;
    let packet = ArpPacket::new_checked(message).map_err(|_| DropReason::Truncated)?;
    let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, target_protocol_addr, .. } =
        ArpRepr::parse(&packet).map_err(|_| DropReason::BadNeighborMessage)?
    else {
        return Err(DropReason::BadNeighborMessage);
    };
    if !source_hardware_addr.is_unicast() || source_protocol_addr.is_multicast() {
        return Err(DropReason::BadSource);
    }
    if network.has_v4(source_protocol_addr) {
        return Err(claim_by(source_hardware_addr, station));
    }
    let is_to_us = frame.get(..6) == Some(&station.0[..]);
    let how = if operation == ArpOperation::Reply && is_to_us { How::Answer } else { How::Unasked };
    let told = (!source_protocol_addr.is_unspecified()).then_some(Told {
        address: source_protocol_addr.into(),
        station: source_hardware_addr,
        how,
    });
    if operation != ArpOperation::Request || !network.has_v4(target_protocol_addr) {
        return Ok(Heard { told, answer_len: None });
    }
    let answer = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: station,
        source_protocol_addr: target_protocol_addr,
        target_hardware_addr: source_hardware_addr,
        target_protocol_addr: source_protocol_addr,
    };
    let tags = Tags::of(frame, network.vlan());
    let space = space.get_mut(..MESSAGE_BYTES_MAX).ok_or(DropReason::Truncated)?;
    Ok(Heard { told, answer_len: Some(write_arp(tags, space, (source_hardware_addr, station), &answer)) })
}

/// Reads a message of neighbour or router discovery, of `len` bytes at the start of `space`. Turns a solicitation of an
/// address of the node into the advertisement that it asks for, which can be longer. Messages of router discovery say
/// nothing to the node.
///
/// The answer to a probe for duplicate addresses (from `::`) goes to all nodes on the link, because the prober has
/// no address yet.
///
/// # Errors
/// The reason why it is dropped. `space` is then unchanged.
pub fn read_discovery(
    network: &Network,
    station: EthernetAddress,
    space: &mut [u8],
    len: usize,
) -> Result<Heard, DropReason> {
    let message = discovery(space, len)?;
    match message.message {
        NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
            let Solicitation { told, asker_station } = solicitation((network, station), &message, target_addr, lladdr)?;
            if !network.has_v6(target_addr) {
                return Ok(Heard { told, answer_len: None });
            }
            let asked = NdiscNeighborFlags::OVERRIDE;
            let (to, to_station, flags) = if message.from.is_unspecified() {
                (ALL_NODES, group_station(ALL_NODES), asked)
            } else {
                (message.from, asker_station, asked | NdiscNeighborFlags::SOLICITED)
            };
            let answer = NdiscRepr::NeighborAdvert { flags, target_addr, lladdr: Some(station.into()) };
            let tags = Tags::of(space, network.vlan());
            let space = space.get_mut(..MESSAGE_BYTES_MAX).ok_or(DropReason::Truncated)?;
            let answer_len = write_discovery(tags, space, (to_station, station), (target_addr, to), answer);
            Ok(Heard { told, answer_len: Some(answer_len) })
        }
        NdiscRepr::NeighborAdvert { flags, target_addr, lladdr } => {
            let told = advertisement((network, station), &message, flags, target_addr, lladdr)?;
            Ok(Heard { told: Some(told), answer_len: None })
        }
        _ => Err(DropReason::NotForUs),
    }
}

/// Returns why a message is dropped by which a station claims an address of the node's. The node's own messages may come
/// back to it.
fn claim_by(station: EthernetAddress, own: EthernetAddress) -> DropReason {
    if station == own { DropReason::NotForUs } else { DropReason::AddressConflict }
}

/// Returns the address of the node's that is claimed by a message that was refused as [`DropReason::AddressConflict`].
pub(crate) fn claimed(frame: &[u8]) -> Option<IpAddr> {
    let message = frame.get(payload_offset(frame)..)?;
    let v6 = |at: usize| Some(IpAddr::V6(message.get(at..)?.first_chunk::<16>().copied()?.into()));
    match frame.get(payload_offset(frame) - 2..)?.first_chunk().copied().map(u16::from_be_bytes)? {
        ETHERTYPE_ARP => Some(IpAddr::V4(message.get(14..)?.first_chunk::<4>().copied()?.into())),
        _ if *message.get(IPV6_HEADER)? == u8::from(Icmpv6Message::NeighborAdvert) => v6(IPV6_HEADER + 8),
        _ => v6(8),
    }
}

/// Writes a request for the station that has `target` to the start of `space`, which holds at least
/// [`MESSAGE_BYTES_MAX`] bytes: to all that may have it, or to the one that had it. Returns its length; `None` if the
/// node has no address to ask from.
pub(crate) fn write_request(
    network: &Network,
    station: EthernetAddress,
    space: &mut [u8],
    target: IpAddr,
    had: Option<EthernetAddress>,
) -> Option<usize> {
    match (target, network.asker_for(target)?) {
        (IpAddr::V4(target), IpAddr::V4(from)) => {
            let to = had.unwrap_or(EthernetAddress::BROADCAST);
            Some(write_arp(network.tags(), space, (to, station), &arp_question(station, from, target)))
        }
        (IpAddr::V6(target), IpAddr::V6(from)) => {
            let (to, to_station) = match had {
                Some(station) => (target, station),
                None => (solicited_node(target), group_station(solicited_node(target))),
            };
            let question = NdiscRepr::NeighborSolicit { target_addr: target, lladdr: Some(station.into()) };
            Some(write_discovery(network.tags(), space, (to_station, station), (from, to), question))
        }
        _ => None,
    }
}

/// Writes the announcement of an address of the node to the start of `space`, as above. Returns its length. Neighbours
/// that know another station for it learn of the node's (RFC 5227, section 3; RFC 4861, section 7.2.6).
pub(crate) fn write_announcement(
    network: &Network,
    station: EthernetAddress,
    space: &mut [u8],
    address: IpAddr,
) -> usize {
    match address {
        IpAddr::V4(address) => {
            let message = arp_question(station, address, address);
            write_arp(network.tags(), space, (EthernetAddress::BROADCAST, station), &message)
        }
        IpAddr::V6(address) => {
            let flags = NdiscNeighborFlags::OVERRIDE;
            let message = NdiscRepr::NeighborAdvert { flags, target_addr: address, lladdr: Some(station.into()) };
            write_discovery(network.tags(), space, (group_station(ALL_NODES), station), (address, ALL_NODES), message)
        }
    }
}

/// Returns the station address of a multicast group (RFC 1112, RFC 2464), or broadcast's.
pub(crate) fn station_of_group(group: IpAddr) -> EthernetAddress {
    match group {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            EthernetAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(_) => EthernetAddress::BROADCAST,
        IpAddr::V6(group) => group_station(group),
    }
}

pub(super) fn group_station(group: Ipv6Addr) -> EthernetAddress {
    let [.., a, b, c, d] = group.octets();
    EthernetAddress([0x33, 0x33, a, b, c, d])
}

fn arp_question(station: EthernetAddress, from: Ipv4Addr, target: Ipv4Addr) -> ArpRepr {
    ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: station,
        source_protocol_addr: from,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: target,
    }
}

fn write_arp(tags: Tags, space: &mut [u8], stations: (EthernetAddress, EthernetAddress), message: &ArpRepr) -> usize {
    let at = link_header::write(space, stations, tags, ETHERTYPE_ARP);
    message.emit(&mut ArpPacket::new_unchecked(&mut space[at..at + ARP_BYTES]));
    at + ARP_BYTES
}

fn write_discovery(
    tags: Tags,
    space: &mut [u8],
    stations: (EthernetAddress, EthernetAddress),
    (from, to): (Ipv6Addr, Ipv6Addr),
    message: NdiscRepr<'_>,
) -> usize {
    let message = Icmpv6Repr::Ndisc(message);
    let header = Ipv6Repr {
        src_addr: from,
        dst_addr: to,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let at = link_header::write(space, stations, tags, ETHERTYPE_IPV6);
    let end = at + IPV6_HEADER + message.buffer_len();
    let mut packet = Ipv6Packet::new_unchecked(&mut space[at..end]);
    header.emit(&mut packet);
    let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
    message.emit(&from, &to, &mut icmp, &ChecksumCapabilities::default());
    end
}

/// A message of neighbour or router discovery, with what was around it.
struct Discovery<'a> {
    frame_from: EthernetAddress,
    from: Ipv6Addr,
    to: Ipv6Addr,
    message: NdiscRepr<'a>,
}

/// Reads and validates a message as RFC 4861, sections 7.1.1 and 7.1.2, requires.
fn discovery(space: &[u8], len: usize) -> Result<Discovery<'_>, DropReason> {
    let frame = space.get(..len).ok_or(DropReason::Truncated)?;
    let packet = frame.get(payload_offset(frame)..).ok_or(DropReason::Truncated)?;
    let frame = EthernetFrame::new_checked(frame).map_err(|_| DropReason::Truncated)?;
    // The payload of the packet without what pads the frame.
    let checked = Ipv6Packet::new_checked(packet).map_err(|_| DropReason::Truncated)?;
    // No compliant sender puts these messages behind extension headers, least of all in fragments (RFC 6980).
    if checked.next_header() != IpProtocol::Icmpv6 || checked.hop_limit() != HOP_LIMIT {
        return Err(DropReason::BadNeighborMessage);
    }
    let (from, to) = (checked.src_addr(), checked.dst_addr());
    let icmp = packet.get(IPV6_HEADER..IPV6_HEADER + usize::from(checked.payload_len()));
    let icmp = Icmpv6Packet::new_checked(icmp.ok_or(DropReason::Truncated)?).map_err(|_| DropReason::Truncated)?;
    if !icmp.verify_checksum(&from, &to) {
        return Err(DropReason::BadChecksum);
    }
    if !matches!(icmp.msg_type(), Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert) {
        return Err(DropReason::NotForUs);
    }
    if icmp.msg_code() != 0 {
        return Err(DropReason::BadNeighborMessage);
    }
    let icmp = Icmpv6Packet::new_unchecked(icmp.into_inner());
    match Icmpv6Repr::parse(&from, &to, &icmp, &ChecksumCapabilities::ignored()) {
        Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr })) => {
            let message = NdiscRepr::NeighborSolicit { target_addr, lladdr };
            Ok(Discovery { frame_from: frame.src_addr(), from, to, message })
        }
        Ok(Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr })) => {
            let message = NdiscRepr::NeighborAdvert { flags, target_addr, lladdr };
            Ok(Discovery { frame_from: frame.src_addr(), from, to, message })
        }
        _ => Err(DropReason::BadNeighborMessage),
    }
}

/// What a solicitation says of the one that asks.
struct Solicitation {
    told: Option<Told>,
    asker_station: EthernetAddress,
}

fn solicitation(
    (network, station): (&Network, EthernetAddress),
    message: &Discovery<'_>,
    target: Ipv6Addr,
    stated: Option<RawHardwareAddress>,
) -> Result<Solicitation, DropReason> {
    let asker = message.from;
    if target.is_multicast() {
        return Err(DropReason::BadNeighborMessage);
    }
    let asker_station = stated.map_or(Ok(message.frame_from), station_of)?;
    if asker.is_unspecified() {
        if stated.is_some() || message.to != solicited_node(target) {
            return Err(DropReason::BadNeighborMessage);
        }
    } else if network.has_v6(asker) {
        return Err(claim_by(asker_station, station));
    }
    if !asker_station.is_unicast() {
        return Err(DropReason::BadSource);
    }
    // Without the option it is not said that the station is the asker's.
    let says = stated.is_some() && !asker.is_unspecified();
    let told = says.then_some(Told { address: asker.into(), station: asker_station, how: How::Unasked });
    Ok(Solicitation { told, asker_station })
}

fn advertisement(
    (network, own): (&Network, EthernetAddress),
    message: &Discovery<'_>,
    flags: NdiscNeighborFlags,
    target: Ipv6Addr,
    stated: Option<RawHardwareAddress>,
) -> Result<Told, DropReason> {
    let is_solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
    if target.is_multicast() || (is_solicited && message.to.is_multicast()) {
        return Err(DropReason::BadNeighborMessage);
    }
    let station = stated.map_or(Ok(message.frame_from), station_of)?;
    if network.has_v6(target) {
        return Err(claim_by(station, own));
    }
    if !station.is_unicast() {
        return Err(DropReason::BadSource);
    }
    let how = match (flags.contains(NdiscNeighborFlags::OVERRIDE), is_solicited) {
        (true, true) => How::Answer,
        (true, false) => How::Unasked,
        (false, true) => How::AnswerUnlessKnown,
        (false, false) => How::UnaskedUnlessKnown,
    };
    Ok(Told { address: target.into(), station, how })
}

fn station_of(stated: RawHardwareAddress) -> Result<EthernetAddress, DropReason> {
    stated.as_bytes().try_into().map(EthernetAddress).map_err(|_| DropReason::BadNeighborMessage)
}

/// The multicast group in which a holder of the address listens for solicitations.
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

#[cfg(test)]
mod tests;
