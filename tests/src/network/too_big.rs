//! What a router answers to a packet that is too long for the way ahead: *fragmentation needed* (RFC 1191) and *packet too big* (RFC 4443).

use std::net::{Ipv4Addr, Ipv6Addr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, Icmpv4Packet, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr,
};

use crate::network::weather::ETHERNET;

/// The router's addresses, which are no other host's in a test bed.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// See [`ROUTER`].
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
const HOP_LIMIT: u8 = 64;
/// The header of an ICMP error, and what follows a quoted IPv4 header without options.
const ICMP_HEADER: usize = 8;
const QUOTED_V4: usize = 20 + 8;
/// As much as the least MTU of IPv6 has room for.
const QUOTED_V6_MAX: usize = 1280 - 40 - ICMP_HEADER;

/// Returns the frame that tells a frame's sender how long a packet may be.
///
/// # Panics
/// If the frame holds no packet of IPv4 or IPv6.
#[track_caller]
#[must_use]
pub fn report(frame: &[u8], mtu: usize) -> Vec<u8> {
    let mtu = u16::try_from(mtu).expect("an MTU of 16 bits");
    let packet = &frame[ETHERNET..];
    let answer = if packet[0] >> 4 == 4 { report_v4(packet, mtu) } else { report_v6(packet, mtu) };
    let ethernet = EthernetFrame::new_unchecked(frame);
    [ethernet.src_addr().as_bytes(), ethernet.dst_addr().as_bytes(), &frame[12..ETHERNET], &answer].concat()
}

fn report_v4(packet: &[u8], mtu: u16) -> Vec<u8> {
    let checksums = ChecksumCapabilities::default();
    let header = Ipv4Repr {
        src_addr: ROUTER,
        dst_addr: Ipv4Packet::new_unchecked(packet).src_addr(),
        next_header: IpProtocol::Icmp,
        payload_len: ICMP_HEADER + QUOTED_V4,
        hop_limit: HOP_LIMIT,
    };
    let mut answer = vec![0; header.buffer_len() + header.payload_len];
    let mut ip = Ipv4Packet::new_unchecked(&mut answer[..]);
    header.emit(&mut ip, &checksums);
    let message = ip.payload_mut();
    // smoltcp does not write the field for the MTU.
    message[..2].copy_from_slice(&[3, 4]);
    message[6..ICMP_HEADER].copy_from_slice(&mtu.to_be_bytes());
    message[ICMP_HEADER..].copy_from_slice(&packet[..QUOTED_V4]);
    Icmpv4Packet::new_unchecked(message).fill_checksum();
    answer
}

fn report_v6(packet: &[u8], mtu: u16) -> Vec<u8> {
    let refused = Ipv6Packet::new_unchecked(packet);
    let to = refused.src_addr();
    let header = Ipv6Repr {
        src_addr: to,
        dst_addr: refused.dst_addr(),
        next_header: refused.next_header(),
        payload_len: usize::from(refused.payload_len()),
        hop_limit: refused.hop_limit(),
    };
    let quoted = &packet[40..packet.len().min(QUOTED_V6_MAX)];
    let message = Icmpv6Repr::PktTooBig { mtu: mtu.into(), header, data: quoted };
    let header = Ipv6Repr {
        src_addr: ROUTER_V6,
        dst_addr: to,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: HOP_LIMIT,
    };
    let mut answer = vec![0; header.buffer_len() + header.payload_len];
    let mut ip = Ipv6Packet::new_unchecked(&mut answer[..]);
    header.emit(&mut ip);
    let mut icmp = Icmpv6Packet::new_unchecked(ip.payload_mut());
    message.emit(&ROUTER_V6, &to, &mut icmp, &ChecksumCapabilities::default());
    answer
}

#[cfg(test)]
pub(crate) mod tests {
    use smoltcp::wire::{Icmpv4DstUnreachable, Icmpv4Message};

    use super::*;

    const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const RECEIVER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Returns a segment over IPv4 with so many bytes of payload. Its checksums are wrong.
    pub(crate) fn segment(payload_bytes: usize) -> Vec<u8> {
        let mut tcp = vec![0; 20 + payload_bytes];
        tcp[12] = 5 << 4;
        let [high, low] = (20 + tcp.len() as u16).to_be_bytes();
        let ip = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 11, 10, 77, 0, 2];
        [&RECEIVER[..], &SENDER, &[0x08, 0x00], &ip, &tcp].concat()
    }

    #[test]
    fn over_ipv4_the_sender_is_told_the_mtu_of_the_next_hop_and_which_segment_it_was() {
        let refused = segment(1_000);
        let report = report(&refused, 576);
        assert_eq!((&report[..6], &report[6..12]), (&SENDER[..], &RECEIVER[..]));
        let ip = Ipv4Packet::new_checked(&report[ETHERNET..]).expect("a packet");
        assert!(ip.verify_checksum());
        assert_eq!((ip.src_addr(), ip.dst_addr()), (ROUTER, Ipv4Addr::new(10, 77, 0, 11)));
        let icmp = Icmpv4Packet::new_checked(ip.payload()).expect("a message");
        assert!(icmp.verify_checksum());
        let kind = (icmp.msg_type(), icmp.msg_code());
        assert_eq!(kind, (Icmpv4Message::DstUnreachable, Icmpv4DstUnreachable::FragRequired.into()));
        assert_eq!(ip.payload()[6..8], 576_u16.to_be_bytes());
        assert_eq!(ip.payload()[8..], refused[ETHERNET..][..28]);
    }

    #[test]
    fn over_ipv6_the_sender_is_told_the_mtu_and_which_segment_it_was() {
        let ip: Vec<u8> = [&[0x60, 0, 0, 0, 5, 20, 6, 64][..], &[0xfd; 16], &[0xfe; 16], &[7; 1_300]].concat();
        let refused = [&RECEIVER[..], &SENDER, &[0x86, 0xdd], &ip].concat();
        let report = report(&refused, 1280);
        assert_eq!(report.len(), ETHERNET + 1280);
        let ip = Ipv6Packet::new_checked(&report[ETHERNET..]).expect("a packet");
        let icmp = Icmpv6Packet::new_checked(ip.payload()).expect("a message");
        let read = Icmpv6Repr::parse(&ip.src_addr(), &ip.dst_addr(), &icmp, &ChecksumCapabilities::default());
        let Ok(Icmpv6Repr::PktTooBig { mtu: 1280, data, .. }) = read else { panic!("{read:?}") };
        assert!(data.iter().all(|byte| *byte == 7) && data.len() > 20);
    }
}
