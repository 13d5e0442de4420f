//! TCP and UDP checksums that were left to hardware which does not exist: recognised, and computed.
//!
//! A kernel that sends to a virtual device leaves these checksums to it (`CHECKSUM_PARTIAL`): the field then holds the
//! sum of the pseudo-header, folded and not inverted. Ports compute the whole checksum before a function or another
//! machine sees the frame. Some devices mark such frames, others do not; there the field's value tells.
//!
//! Fragments, damaged packets and other protocols are left as they are. Allocates nothing; the work is bounded by the
//! frame's length.

use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};

use crate::headers::{EXTENSIONS_MAX, payload_offset};

/// What became of a frame's TCP or UDP checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It was computed and written.
    Completed,
    /// The frame is unchanged: it has no such checksum, is a fragment or damaged, or its checksum is whole already.
    Unchanged,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_CHECKSUM_AT: usize = 16;
const UDP_CHECKSUM_AT: usize = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// Computes and writes the TCP or UDP checksum of the IPv4 or IPv6 packet in an Ethernet frame with up to two tags,
/// whatever its field holds.
pub fn complete_checksums(frame: &mut [u8]) -> Completion {
    match Segment::of(frame) {
        Some(mut segment) => segment.fill(),
        None => Completion::Unchanged,
    }
}

/// As [`complete_checksums`], for frames that carry no mark: only if the field holds exactly the sum of the
/// pseudo-header. A whole checksum that happens to have this value is right, and stays.
pub fn complete_partial_checksums(frame: &mut [u8]) -> Completion {
    match Segment::of(frame) {
        Some(mut segment) if segment.is_partial() && !segment.is_right() => segment.fill(),
        _ => Completion::Unchanged,
    }
}

/// A TCP segment or UDP datagram that is whole, and the addresses of its pseudo-header.
struct Segment<'a> {
    source: IpAddress,
    destination: IpAddress,
    protocol: u8,
    bytes: &'a mut [u8],
}

impl<'a> Segment<'a> {
    fn of(frame: &'a mut [u8]) -> Option<Self> {
        let packet = frame.get_mut(payload_offset(frame)..)?;
        let segment = match packet.first()? >> 4 {
            4 => Self::of_ipv4(packet)?,
            6 => Self::of_ipv6(packet)?,
            _ => return None,
        };
        segment.is_whole().then_some(segment)
    }

    fn of_ipv4(packet: &'a mut [u8]) -> Option<Self> {
        let header = Ipv4Packet::new_checked(&*packet).ok()?;
        if header.more_frags() || header.frag_offset() != 0 {
            return None;
        }
        let (source, destination) = (header.src_addr().into(), header.dst_addr().into());
        let (protocol, payload) = (header.next_header().into(), header.header_len().into()..header.total_len().into());
        Some(Self { source, destination, protocol, bytes: packet.get_mut(payload)? })
    }

    fn of_ipv6(packet: &'a mut [u8]) -> Option<Self> {
        const HEADER: usize = 40;
        let header = Ipv6Packet::new_checked(&*packet).ok()?;
        let (source, destination) = (header.src_addr().into(), header.dst_addr().into());
        let (first, end) = (header.next_header().into(), HEADER + usize::from(header.payload_len()));
        let payload = packet.get_mut(HEADER..end)?;
        let (protocol, at) = behind_extensions(first, payload)?;
        Some(Self { source, destination, protocol, bytes: payload.get_mut(at..)? })
    }

    fn is_whole(&self) -> bool {
        match self.protocol {
            TCP => TcpPacket::new_checked(&*self.bytes).is_ok(),
            UDP => UdpPacket::new_checked(&*self.bytes)
                .is_ok_and(|datagram| usize::from(datagram.len()) == self.bytes.len()),
            _ => false,
        }
    }

    /// Returns whether the field holds the sum of the pseudo-header, as a kernel leaves it.
    fn is_partial(&self) -> bool {
        let at = if self.protocol == TCP { TCP_CHECKSUM_AT } else { UDP_CHECKSUM_AT };
        self.bytes.get(at..at + 2) == Some(&self.pseudo_header_sum().to_be_bytes())
    }

    fn pseudo_header_sum(&self) -> u16 {
        let words = |address: IpAddress| match address {
            IpAddress::Ipv4(address) => sum_of(&address.octets()),
            IpAddress::Ipv6(address) => sum_of(&address.octets()),
        };
        let mut sum = words(self.source) + words(self.destination) + u32::from(self.protocol) + self.bytes.len() as u32;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    fn is_right(&self) -> bool {
        let (from, to) = (&self.source, &self.destination);
        match self.protocol {
            TCP => TcpPacket::new_unchecked(&*self.bytes).verify_checksum(from, to),
            _ => UdpPacket::new_unchecked(&*self.bytes).verify_checksum(from, to),
        }
    }

    fn fill(&mut self) -> Completion {
        let (from, to) = (&self.source, &self.destination);
        match IpProtocol::from(self.protocol) {
            IpProtocol::Tcp => TcpPacket::new_unchecked(&mut *self.bytes).fill_checksum(from, to),
            _ => UdpPacket::new_unchecked(&mut *self.bytes).fill_checksum(from, to),
        }
        Completion::Completed
    }
}

fn sum_of(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

/// Returns the protocol behind the extension headers, and where it begins. A fragment has none, nor has a packet that
/// is on its way to another destination first: its pseudo-header has the last one (RFC 8200, 8.1).
fn behind_extensions(first: u8, payload: &[u8]) -> Option<(u8, usize)> {
    let (mut protocol, mut at) = (first, 0);
    for _ in 0..=EXTENSIONS_MAX {
        let header = match protocol {
            HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS => payload.get(at..)?.first_chunk::<8>()?,
            _ => return Some((protocol, at)),
        };
        let [next, len, two, three, ..] = *header;
        at += match protocol {
            // The offset, and whether more follow: a packet in one fragment (RFC 6946) is whole.
            FRAGMENT if (two, three & 0xf9) != (0, 0) => return None,
            FRAGMENT => 8,
            // Segments left.
            ROUTING if three != 0 => return None,
            _ => (usize::from(len) + 1) * 8,
        };
        protocol = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The checksum as RFC 1071 describes it, over the pseudo-header and the segment, whose field counts as zero.
    fn checksum_of(addresses: &[u8], protocol: u8, segment: &[u8], at: usize) -> u16 {
        let mut all = [addresses, &[0, protocol], &(segment.len() as u16).to_be_bytes(), segment].concat();
        let field = addresses.len() + 4 + at;
        all[field..field + 2].fill(0);
        if all.len() % 2 == 1 {
            all.push(0);
        }
        let sum: u64 = all.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1])).sum();
        let folded = (0..4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
        match !(folded as u16) {
            0 if protocol == UDP => 0xffff,
            sum => sum,
        }
    }

    /// The sum of the pseudo-header alone.
    fn partial(addresses: &[u8], protocol: u8, len: usize) -> u16 {
        let all = [addresses, &[0, protocol], &(len as u16).to_be_bytes()].concat();
        let sum: u64 = all.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair[1])).sum();
        (0..4).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16)) as u16
    }

    #[derive(Clone, Debug)]
    struct Case {
        tags: Vec<u8>,
        is_v6: bool,
        protocol: u8,
        /// IPv4 options, or an IPv6 header of destination options.
        extended: bool,
        payload: Vec<u8>,
        padding: usize,
    }

    impl Case {
        fn plain(is_v6: bool, protocol: u8) -> Self {
            Self { tags: Vec::new(), is_v6, protocol, extended: false, payload: vec![7; 33], padding: 0 }
        }

        fn field_at(&self) -> usize {
            if self.protocol == TCP { TCP_CHECKSUM_AT } else { UDP_CHECKSUM_AT }
        }

        fn addresses(&self) -> Vec<u8> {
            if self.is_v6 { (1..=32).collect() } else { vec![10, 0, 0, 1, 192, 168, 255, 254] }
        }

        /// Returns the frame with this field, and where its segment is.
        fn frame(&self, field: u16) -> (Vec<u8>, std::ops::Range<usize>) {
            let mut segment = vec![0x12, 0x34, 0x56, 0x78];
            if self.protocol == TCP {
                segment.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
            } else {
                segment.extend((8 + self.payload.len() as u16).to_be_bytes());
                segment.extend([0, 0]);
            }
            segment.extend(&self.payload);
            segment[self.field_at()..][..2].copy_from_slice(&field.to_be_bytes());
            let more: &[u8] = if self.extended { &[self.protocol, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
            let len = (segment.len() + more.len()) as u16;
            let mut frame = [[2; 12].as_slice(), &self.tags].concat();
            if self.is_v6 {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(len.to_be_bytes());
                frame.extend([if self.extended { DESTINATION_OPTIONS } else { self.protocol }, 64]);
                frame.extend(self.addresses());
                frame.extend(more);
            } else {
                frame.extend([8, 0, if self.extended { 0x47 } else { 0x45 }, 0]);
                frame.extend((len + 20).to_be_bytes());
                frame.extend([0, 1, 0x40, 0, 64, self.protocol, 0, 0]);
                frame.extend(self.addresses());
                frame.extend(more.iter().map(|_| 1));
            }
            let from = frame.len();
            frame.extend(&segment);
            let range = from..frame.len();
            frame.extend(vec![0xee; self.padding]);
            (frame, range)
        }

        fn right(&self) -> u16 {
            let (frame, segment) = self.frame(0);
            checksum_of(&self.addresses(), self.protocol, &frame[segment], self.field_at())
        }

        fn left(&self) -> u16 {
            partial(&self.addresses(), self.protocol, self.frame(0).1.len())
        }
    }

    fn cases() -> impl Strategy<Value = Case> {
        let tags = prop_oneof![Just(vec![]), Just(vec![0x81, 0, 0, 5]), Just(vec![0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]),];
        (tags, any::<bool>(), prop_oneof![Just(TCP), Just(UDP)], any::<bool>(), vec(any::<u8>(), 0..200), 0..40_usize)
            .prop_map(|(tags, is_v6, protocol, extended, payload, padding)| Case {
                tags,
                is_v6,
                protocol,
                extended,
                payload,
                padding,
            })
    }

    proptest! {
        #[test]
        fn a_checksum_that_was_left_partial_is_completed_with_and_without_a_mark(case in cases()) {
            let whole = case.frame(case.right()).0;
            for complete in [complete_checksums, complete_partial_checksums] {
                let mut frame = case.frame(case.left()).0;
                // By chance the sum of the pseudo-header can be the checksum.
                let is_right = case.left() == case.right();
                let completed = complete(&mut frame);
                prop_assert!(completed == Completion::Completed || is_right);
                prop_assert_eq!(&frame, &whole);
            }
        }

        #[test]
        fn a_whole_checksum_stays_right_or_wrong(case in cases(), field in any::<u16>()) {
            prop_assume!(field != case.left());
            for field in [field, case.right()] {
                let (mut frame, _) = case.frame(field);
                let before = frame.clone();
                complete_partial_checksums(&mut frame);
                prop_assert_eq!(frame, before);
            }
        }

        #[test]
        fn no_bytes_are_too_strange(mut frame in vec(any::<u8>(), 0..120)) {
            complete_checksums(&mut frame);
            complete_partial_checksums(&mut frame);
        }
    }

    #[test]
    fn fragments_damaged_packets_and_other_protocols_stay_as_they_are() {
        let v4 = Case::plain(false, UDP).frame(0x1234).0;
        let with = |frame: &[u8], at: usize, bytes: &[u8]| {
            let mut frame = frame.to_vec();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        let extended = Case { extended: true, ..Case::plain(true, TCP) }.frame(0x1234).0;
        let strange = [
            // More fragments, a later fragment, ICMP, a total length beyond the frame, a UDP length beyond the packet.
            with(&v4, 20, &[0x20, 0]),
            with(&v4, 20, &[0, 1]),
            with(&v4, 23, &[1]),
            with(&v4, 16, &[2, 0]),
            with(&v4, 38, &[2, 0]),
            // A fragment of IPv6, and a packet that a router on its way is to forward.
            with(&extended, 20, &[FRAGMENT, 64]).into_iter().collect(),
            with(&with(&extended, 20, &[ROUTING]), 57, &[1]),
            vec![2; 60],
            v4[..30].to_vec(),
            Vec::new(),
        ];
        for frame in strange {
            let mut same = frame.clone();
            assert_eq!(complete_checksums(&mut same), Completion::Unchanged, "{frame:02x?}");
            assert_eq!(same, frame);
        }
    }

    #[test]
    fn a_computed_udp_checksum_is_never_the_zero_that_means_none() {
        let zero = (0..=u16::MAX).map(|word| Case { payload: word.to_be_bytes().to_vec(), ..Case::plain(false, UDP) });
        let case = zero.into_iter().find(|case| case.right() == 0xffff).expect("one word gives each sum");
        let mut frame = case.frame(case.left()).0;
        assert_eq!(complete_checksums(&mut frame), Completion::Completed);
        assert_eq!(frame, case.frame(0xffff).0);
    }
}
