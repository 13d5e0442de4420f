//! The frames of all scenes: 64 bytes, with right checksums.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, Icmpv4Packet, Icmpv4Repr, IpProtocol, Ipv4Packet,
    Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber, UdpPacket, UdpRepr,
};

pub(super) const FRAME_BYTES: usize = 64;
pub(super) type Bytes = [u8; FRAME_BYTES];

/// The node's port.
pub(super) const STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0xc1];
const IP_AT: usize = 14;
const PAYLOAD_AT: usize = IP_AT + 20;

/// A frame of a client to the server, whose payload `fill` writes.
fn frame(client: Ipv4Addr, next_header: IpProtocol, payload_len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
    let mut frame = [0; FRAME_BYTES];
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress(HOST),
        dst_addr: EthernetAddress(STATION),
        ethertype: EthernetProtocol::Ipv4,
    };
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame[..]));
    let ip = Ipv4Repr { src_addr: client, dst_addr: SERVER, next_header, payload_len, hop_limit: 64 };
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut frame[IP_AT..]), &ChecksumCapabilities::default());
    fill(&mut frame[PAYLOAD_AT..PAYLOAD_AT + payload_len]);
    frame
}

/// A datagram from this port of the client to a port of the server.
pub(super) fn datagram(client: Ipv4Addr, src_port: u16, dst_port: u16) -> Bytes {
    const TEXT: &[u8] = b"fixed payload of 22 by";
    let udp = UdpRepr { src_port, dst_port };
    frame(client, IpProtocol::Udp, udp.header_len() + TEXT.len(), |payload| {
        let fill = |bytes: &mut [u8]| bytes.copy_from_slice(TEXT);
        let mut packet = UdpPacket::new_unchecked(payload);
        udp.emit(&mut packet, &client.into(), &SERVER.into(), TEXT.len(), fill, &ChecksumCapabilities::default());
    })
}

/// An echo request of the client.
pub(super) fn echo_request(client: Ipv4Addr) -> Bytes {
    let icmp = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 1, data: b"fixed payload of 22 by" };
    frame(client, IpProtocol::Icmp, icmp.buffer_len(), |payload| {
        icmp.emit(&mut Icmpv4Packet::new_unchecked(payload), &ChecksumCapabilities::default());
    })
}

/// The first segment of a connection from this port of the client to port 80 of the server.
pub(super) fn syn(client: Ipv4Addr, src_port: u16) -> Bytes {
    let tcp = TcpRepr {
        src_port,
        dst_port: 80,
        control: TcpControl::Syn,
        seq_number: TcpSeqNumber(1000),
        ack_number: None,
        window_len: 64_240,
        window_scale: None,
        max_seg_size: Some(1460),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    frame(client, IpProtocol::Tcp, tcp.buffer_len(), |payload| {
        let mut packet = TcpPacket::new_unchecked(payload);
        tcp.emit(&mut packet, &client.into(), &SERVER.into(), &ChecksumCapabilities::default());
    })
}
