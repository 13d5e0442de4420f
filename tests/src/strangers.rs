//! Packets of clients that do not exist.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet,
    Ipv4Repr,
};

use crate::bed::Bed;
use crate::frames::send;

const ETHERNET: usize = 14;
const SENDER: EthernetAddress = EthernetAddress([0x02, 0, 0, 0, 0, 0x78]);

/// Sends the node's port an echo request to an address of the node from each of these addresses.
///
/// # Panics
/// If the node does not run.
#[track_caller]
pub fn ask(bed: &Bed, to: &str, from: impl Iterator<Item = Ipv4Addr>) {
    let mac = bed.node.cli().status()["ports"][0]["mac"].as_str().expect("a port has an address").to_owned();
    let station = mac.parse().expect("an Ethernet address");
    let to = to.parse().expect("an address");
    let frames: Vec<Vec<u8>> = from.map(|source| echo_request(station, source, to)).collect();
    send(bed.switch(), bed.wire(), &frames);
}

fn echo_request(station: EthernetAddress, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 1, data: b"is anyone there?" };
    let packet = Ipv4Repr {
        src_addr: source,
        dst_addr: destination,
        next_header: IpProtocol::Icmp,
        payload_len: request.buffer_len(),
        hop_limit: 64,
    };
    let mut frame = vec![0; ETHERNET + packet.buffer_len() + request.buffer_len()];
    let ethernet = EthernetRepr { src_addr: SENDER, dst_addr: station, ethertype: EthernetProtocol::Ipv4 };
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[ETHERNET..]);
    packet.emit(&mut ip, &checksums);
    request.emit(&mut Icmpv4Packet::new_unchecked(ip.payload_mut()), &checksums);
    frame
}
