//! Packets of clients that do not exist.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
};

use crate::network::bed::Bed;
use crate::traffic::frames::send;

const ETHERNET: usize = 14;
const HOP_LIMIT: u8 = 64;
const QUESTION: &[u8] = b"is anyone there?";
const SENDER: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x78]);

/// Returns the address of the node's first port.
///
/// # Panics
/// If the node does not run.
#[track_caller]
#[must_use]
pub fn station(bed: &Bed) -> EthernetAddress {
    let mac = bed.node.cli().status()["ports"][0]["mac"].as_str().expect("a port has an address").to_owned();
    mac.parse().expect("an Ethernet address")
}

/// Returns echo requests to an address of the node from each of these addresses, which are of its kind.
///
/// # Panics
/// If the addresses are not of the same kind.
#[track_caller]
#[must_use]
pub fn requests(station: EthernetAddress, to: &str, from: impl Iterator<Item: Into<IpAddr>>) -> Vec<Vec<u8>> {
    let to: IpAddr = to.parse().expect("an address");
    let request = |source: IpAddr| match (source, to) {
        (IpAddr::V4(source), IpAddr::V4(to)) => echo_request(station, source, to),
        (IpAddr::V6(source), IpAddr::V6(to)) => echo_request_v6(station, source, to),
        mixed => panic!("{mixed:?} are not of the same kind"),
    };
    from.map(|source| request(source.into())).collect()
}

/// Sends the node's port an echo request to an address of the node from each of these addresses, which are of its kind.
///
/// # Panics
/// If the node does not run, or the addresses are not of the same kind.
#[track_caller]
pub fn ask(bed: &Bed, to: &str, from: impl Iterator<Item: Into<IpAddr>>) {
    send(bed.switch(), bed.wire(), &requests(station(bed), to, from));
}

fn echo_request(station: EthernetAddress, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 1, data: QUESTION };
    let packet = Ipv4Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmp,
        payload_len: request.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let mut frame = to_station(station, EthernetProtocol::Ipv4, packet.buffer_len() + request.buffer_len());
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[ETHERNET..]);
    packet.emit(&mut ip, &checksums);
    request.emit(&mut Icmpv4Packet::new_unchecked(ip.payload_mut()), &checksums);
    frame
}

fn echo_request_v6(station: EthernetAddress, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    let request = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 1, data: QUESTION };
    let packet = Ipv6Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmpv6,
        payload_len: request.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let mut frame = to_station(station, EthernetProtocol::Ipv6, packet.buffer_len() + request.buffer_len());
    let mut ip = Ipv6Packet::new_unchecked(&mut frame[ETHERNET..]);
    packet.emit(&mut ip);
    let mut message = Icmpv6Packet::new_unchecked(ip.payload_mut());
    request.emit(&source, &destination, &mut message, &ChecksumCapabilities::default());
    frame
}

/// Returns a frame for a packet of so many bytes, with its Ethernet header.
fn to_station(station: EthernetAddress, ethertype: EthernetProtocol, packet: usize) -> Vec<u8> {
    let mut frame = vec![0; ETHERNET + packet];
    let ethernet = EthernetRepr { src_addr: SENDER, dst_addr: station, ethertype };
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    frame
}
