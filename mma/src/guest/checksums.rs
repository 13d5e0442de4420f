//! Checksums of frames that guests leave to the node: of the IPv4 header, and of TCP, UDP, ICMP and ICMPv6.
//!
//! ```text
//!   | addresses | VLAN tags, up to 2 | IPv4 and options, or IPv6 and extension headers | TCP, UDP, ICMP | padding |
//!                                      checksum of the header (IPv4)                     checksum of all up to the packet's end
//! ```
//!
//! A frame that is not such a packet, whole and well-formed, stays as it is, as far as it is not understood. Of a
//! fragment, only the IPv4 header's checksum is computed. Nothing is allocated; the time is that of one pass over the
//! frame. The bytes may have any values: they are a guest's.

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;
const VLANS_MAX: usize = 2;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// A packet with more extension headers stays as it is.
const EXTENSIONS_MAX: usize = 8;

const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;

/// Writes the checksums of the packet in a frame.
pub(crate) fn complete(frame: &mut [u8]) {
    let Some((ethertype, start)) = network(frame) else { return };
    let packet = &mut frame[start..];
    match ethertype {
        TYPE_IPV4 => complete_v4(packet),
        TYPE_IPV6 => complete_v6(packet),
        _ => None,
    };
}

/// Returns the type of what follows the Ethernet header and its tags, and where that starts.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let mut start = ETHERNET_BYTES;
    let mut ethertype = load(frame, start - 2)?;
    for _ in 0..VLANS_MAX {
        if !TYPES_VLAN.contains(&ethertype) {
            break;
        }
        start += VLAN_BYTES;
        ethertype = load(frame, start - 2)?;
    }
    (start <= frame.len()).then_some((ethertype, start))
}

fn complete_v4(packet: &mut [u8]) -> Option<()> {
    let first = *packet.first()?;
    let header_bytes = usize::from(first & 15) * 4;
    let total = usize::from(load(packet, 2)?);
    if first >> 4 != 4 || header_bytes < IPV4_BYTES || total < header_bytes || total > packet.len() {
        return None;
    }
    let packet = &mut packet[..total];
    store(packet, 10, 0)?;
    let of_header = !fold(sum(&packet[..header_bytes]));
    store(packet, 10, of_header)?;
    // A fragment has a part of what the checksum behind the header is of.
    if load(packet, 6)? & 0x3fff != 0 {
        return None;
    }
    let protocol = packet[9];
    let (header, payload) = packet.split_at_mut(header_bytes);
    let pseudo = if protocol == ICMP { 0 } else { pseudo_sum(&header[12..20], payload.len(), protocol) };
    if protocol == ICMPV6 { None } else { complete_payload(protocol, pseudo, payload) }
}

fn complete_v6(packet: &mut [u8]) -> Option<()> {
    let end = IPV6_BYTES + usize::from(load(packet, 4)?);
    if packet.first()? >> 4 != 6 || end > packet.len() {
        return None;
    }
    let packet = &mut packet[..end];
    let (protocol, start) = behind_extensions(packet)?;
    let (headers, payload) = packet.split_at_mut(start);
    let pseudo = pseudo_sum(&headers[8..IPV6_BYTES], payload.len(), protocol);
    if protocol == ICMP { None } else { complete_payload(protocol, pseudo, payload) }
}

/// Returns the protocol behind an IPv6 packet's extension headers, and where that starts. None of a fragment, and none if
/// a routing header has stops to come: the checksum is of the last one's address.
fn behind_extensions(packet: &[u8]) -> Option<(u8, usize)> {
    let (mut protocol, mut start) = (packet[6], IPV6_BYTES);
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(protocol, HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS) {
            return Some((protocol, start));
        }
        if protocol == ROUTING && *packet.get(start + 3)? != 0 {
            return None;
        }
        protocol = *packet.get(start)?;
        start += (usize::from(*packet.get(start + 1)?) + 1) * 8;
        if start > packet.len() {
            return None;
        }
    }
    None
}

/// Writes the checksum of what an IP packet carries; `pseudo` is the sum of its pseudo header.
fn complete_payload(protocol: u8, pseudo: u64, payload: &mut [u8]) -> Option<()> {
    let (at, bytes_min) = match protocol {
        TCP => (16, 20),
        UDP => (6, 8),
        ICMP | ICMPV6 => (2, 4),
        _ => return None,
    };
    // The two lengths of a datagram are the same but in malformed ones.
    if payload.len() < bytes_min || (protocol == UDP && usize::from(load(payload, 4)?) != payload.len()) {
        return None;
    }
    store(payload, at, 0)?;
    let checksum = match !fold(pseudo + sum(payload)) {
        // That would say that there is no checksum.
        0 if protocol == UDP => u16::MAX,
        checksum => checksum,
    };
    store(payload, at, checksum)
}

/// Returns the sum of the pseudo header of so many bytes between these addresses.
fn pseudo_sum(addresses: &[u8], bytes: usize, protocol: u8) -> u64 {
    // As the sum of loaded words is: of big-endian numbers in the machine's order.
    sum(addresses) + u64::from((bytes as u16).to_be()) + u64::from(u16::from(protocol).to_be())
}

/// Returns the sum of 16-bit words of bytes, not folded: at most 2^48. An odd last byte counts as if a zero followed it.
/// Words are in the machine's order, which for this sum is as good as the network's.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let (mut low, mut high) = (0_u64, 0_u64);
    for word in words {
        let word = u64::from_ne_bytes(*word);
        low += word & 0xffff_ffff;
        high += word >> 32;
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let last = u64::from_ne_bytes(last);
    low + high + (last & 0xffff_ffff) + (last >> 32)
}

/// Folds a sum to 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_be()
}

fn load(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

fn store(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, IpAddress, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

    use super::*;

    const V4: [[u8; 4]; 2] = [[10, 0, 0, 1], [192, 0, 2, 7]];
    const V6: [[u8; 16]; 2] = [
        [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, 0xcd, 0xef, 9],
    ];

    /// A packet to be made.
    #[derive(Clone, Debug)]
    struct Plan {
        is_v4: bool,
        protocol: u8,
        tags: usize,
        /// Words of IPv4 options, or extension headers of IPv6.
        extras: usize,
        data: Vec<u8>,
        padding: usize,
    }

    impl Plan {
        fn ethernet(&self) -> Vec<u8> {
            let mut frame = vec![2; 12];
            for tag in 0..self.tags {
                frame.extend(TYPES_VLAN[1 - tag.min(1)].to_be_bytes());
                frame.extend([0, 7]);
            }
            frame.extend(if self.is_v4 { TYPE_IPV4 } else { TYPE_IPV6 }.to_be_bytes());
            frame
        }

        /// What the packet carries, with a wrong checksum.
        fn payload(&self) -> Vec<u8> {
            let mut payload = match self.protocol {
                TCP => [&[0x1f, 0x90, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0][..], &[9; 4]].concat(),
                UDP => {
                    let len = (8 + self.data.len() as u16).to_be_bytes();
                    vec![0x1f, 0x90, 0, 53, len[0], len[1], 9, 9]
                }
                ICMP => vec![8, 0, 9, 9, 0, 1, 0, 2],
                _ => vec![128, 0, 9, 9, 0, 1, 0, 2],
            };
            payload.extend(&self.data);
            payload
        }

        fn frame(&self) -> Vec<u8> {
            let (mut frame, payload) = (self.ethernet(), self.payload());
            if self.is_v4 {
                let header = 20 + self.extras * 4;
                let total = ((header + payload.len()) as u16).to_be_bytes();
                frame.extend([
                    0x40 | (header / 4) as u8,
                    0,
                    total[0],
                    total[1],
                    0,
                    1,
                    0x40,
                    0,
                    64,
                    self.protocol,
                    9,
                    9,
                ]);
                frame.extend(V4.concat());
                frame.extend(vec![1; self.extras * 4]);
            } else {
                let extensions = self.extras * 8;
                let len = ((extensions + payload.len()) as u16).to_be_bytes();
                let protocols: Vec<u8> = [HOP_BY_HOP, DESTINATION_OPTIONS, ROUTING][..self.extras].into();
                let next = |at: usize| protocols.get(at).copied().unwrap_or(self.protocol);
                frame.extend([0x60, 0, 0, 0, len[0], len[1], next(0), 64]);
                frame.extend(V6.concat());
                (0..self.extras).for_each(|at| frame.extend([next(at + 1), 0, 1, 0, 0, 0, 0, 0]));
            }
            frame.extend(payload);
            frame.extend(vec![0xee; self.padding]);
            frame
        }

        fn start(&self) -> usize {
            ETHERNET_BYTES + self.tags * VLAN_BYTES
        }

        /// Returns the packet's payload in a frame.
        fn payload_of<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
            let start = self.start() + if self.is_v4 { 20 + self.extras * 4 } else { 40 + self.extras * 8 };
            &frame[start..frame.len() - self.padding]
        }

        fn is_right(&self, frame: &[u8]) -> bool {
            let addresses: [IpAddress; 2] = if self.is_v4 {
                V4.map(|address| IpAddress::v4(address[0], address[1], address[2], address[3]))
            } else {
                V6.map(|address| std::net::Ipv6Addr::from(address).into())
            };
            let payload = self.payload_of(frame);
            let [source, destination] = &addresses;
            let is_header_right =
                !self.is_v4 || Ipv4Packet::new_checked(&frame[self.start()..]).unwrap().verify_checksum();
            is_header_right
                && match self.protocol {
                    TCP => TcpPacket::new_checked(payload).unwrap().verify_checksum(source, destination),
                    UDP => {
                        let datagram = UdpPacket::new_checked(payload).unwrap();
                        datagram.checksum() != 0 && datagram.verify_checksum(source, destination)
                    }
                    ICMP => Icmpv4Packet::new_checked(payload).unwrap().verify_checksum(),
                    _ => {
                        let addresses = V6.map(std::net::Ipv6Addr::from);
                        Icmpv6Packet::new_checked(payload).unwrap().verify_checksum(&addresses[0], &addresses[1])
                    }
                }
        }
    }

    fn plan() -> impl Strategy<Value = Plan> {
        let data = proptest::collection::vec(any::<u8>(), 0..200);
        (any::<bool>(), 0..3_usize, 0..3_usize, 0..3_usize, data, 0..20_usize).prop_map(
            |(is_v4, protocol, tags, extras, data, padding)| {
                let protocol = [TCP, UDP, if is_v4 { ICMP } else { ICMPV6 }][protocol];
                Plan { is_v4, protocol, tags, extras, data, padding }
            },
        )
    }

    proptest! {
        #[test]
        fn checksums_of_any_packet_become_right_and_nothing_else_changes(plan in plan()) {
            let before = plan.frame();
            let mut frame = before.clone();
            complete(&mut frame);
            prop_assert!(plan.is_right(&frame), "{frame:x?}");
            let changed = before.iter().zip(&frame).filter(|(old, new)| old != new).count();
            prop_assert!(changed <= 4, "two checksums");
            let completed = frame.clone();
            complete(&mut frame);
            prop_assert_eq!(frame, completed, "they are right already");
        }

        #[test]
        fn a_packet_that_is_cut_or_changed_anywhere_harms_nothing(
            plan in plan(), cut in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut frame = plan.frame();
            *at.get_mut(&mut frame) = byte;
            let len = cut.index(frame.len() + 1);
            let rest = frame[len..].to_vec();
            complete(&mut frame[..len]);
            prop_assert_eq!(&frame[len..], &rest[..]);
        }

        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            complete(&mut bytes);
        }
    }

    fn small(is_v4: bool, protocol: u8) -> Plan {
        Plan { is_v4, protocol, tags: 0, extras: 0, data: vec![1, 2, 3], padding: 0 }
    }

    #[test]
    fn a_datagram_whose_sum_is_zero_does_not_say_that_it_has_no_checksum() {
        for is_v4 in [true, false] {
            let mut plan = small(is_v4, UDP);
            plan.data = vec![0, 0];
            let mut frame = plan.frame();
            complete(&mut frame);
            // With its own checksum as its data, the sum is all ones.
            plan.data = plan.payload_of(&frame)[6..8].to_vec();
            let mut frame = plan.frame();
            complete(&mut frame);
            assert_eq!(plan.payload_of(&frame)[6..8], [0xff, 0xff]);
            assert!(plan.is_right(&frame));
        }
    }

    #[test]
    fn of_fragments_only_the_ip_header_is_completed() {
        for fragment in [[0x20, 0], [0, 1], [0x20, 9]] {
            let plan = small(true, UDP);
            let mut frame = plan.frame();
            frame[ETHERNET_BYTES + 6..ETHERNET_BYTES + 8].copy_from_slice(&fragment);
            let before = frame.clone();
            complete(&mut frame);
            assert!(Ipv4Packet::new_checked(&frame[ETHERNET_BYTES..]).unwrap().verify_checksum());
            assert_eq!(plan.payload_of(&frame), plan.payload_of(&before));
        }
        // A fragment header of IPv6.
        let mut frame = small(false, UDP).frame();
        frame[ETHERNET_BYTES + 6] = 44;
        let before = frame.clone();
        complete(&mut frame);
        assert_eq!(frame, before);
    }

    #[test]
    fn what_is_no_whole_packet_stays_as_it_is() {
        let mut cases = vec![vec![], vec![0; 13], vec![0x5a; 60]];
        for (is_v4, protocol) in [(true, TCP), (true, UDP), (false, TCP), (false, ICMPV6)] {
            let frame = small(is_v4, protocol).frame();
            // One byte is missing, or the version is that of the other protocol.
            cases.push(frame[..frame.len() - 1].to_vec());
            let mut other = frame.clone();
            other[ETHERNET_BYTES] ^= 0x20;
            cases.push(other);
        }
        for before in cases {
            let mut frame = before.clone();
            complete(&mut frame);
            assert_eq!(frame, before);
        }
        // With stops to come, the last address is not in the header.
        let routed = Plan { extras: 3, ..small(false, TCP) };
        let mut frame = routed.frame();
        frame[ETHERNET_BYTES + 40 + 16 + 3] = 1;
        let before = frame.clone();
        complete(&mut frame);
        assert_eq!(frame, before);
        assert!(Ipv6Packet::new_checked(&frame[ETHERNET_BYTES..]).is_ok());
    }
}
