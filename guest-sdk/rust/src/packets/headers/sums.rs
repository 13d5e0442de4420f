//! Checksums of whole packets, computed in one pass each: to verify them, and to write them after a payload has changed.

use super::segment::udp_len;
use super::transport::TCP_HEADER_MIN;
use super::{Addresses, CannotRewrite, Headers, ICMP, ICMPV6, TCP, UDP, ip};
use crate::checksum::{fold, sum};
use crate::packets::packet::Checksum;

const IPV4_CHECKSUM_AT: usize = 10;
const IPV4_ADDRESSES: core::ops::Range<usize> = 12..20;
const IPV6_ADDRESSES: core::ops::Range<usize> = 8..40;
/// The type, the code and the checksum.
const ICMP_MESSAGE_MIN: usize = 4;

/// A message of TCP, UDP or ICMP with a checksum, all of which is in the packet.
struct Covered {
    /// Its offset in the frame, and its length.
    start: usize,
    len: usize,
    /// The offset of its checksum.
    sum_at: usize,
    /// The sum of the pseudo header, 0 if there is none.
    pseudo: u64,
}

impl Headers {
    /// Verifies the checksum of TCP, UDP, ICMP or ICMPv6, in one pass over the packet. [`Checksum::Unknown`] for other protocols, for
    /// fragments, for a quoted packet that was cut off, for IPv6 packets with stops to come, and for UDP over IPv4 without a checksum.
    /// Over IPv6 such a datagram is [`Checksum::Bad`], and so is one that states an impossible length.
    ///
    /// The receiving device may have verified it already: ask [`Packet::l4_checksum`](crate::Packet::l4_checksum) first.
    ///
    /// ```
    /// # use pinion_sdk::testing::Frame;
    /// use pinion_sdk::Checksum;
    /// use pinion_sdk::headers::Headers;
    ///
    /// let mut frame = Frame::tcp("10.0.0.1:5000", "10.0.0.2:80").payload(b"hello").bytes();
    /// let headers = Headers::of(&frame).unwrap();
    /// assert_eq!(headers.l4_checksum(&frame), Checksum::Good);
    /// frame[headers.at.payload] ^= 1;
    /// assert_eq!(headers.l4_checksum(&frame), Checksum::Bad);
    /// ```
    #[inline(always)]
    #[must_use]
    pub fn l4_checksum(&self, frame: &[u8]) -> Checksum {
        let is_udp = self.protocol == UDP && self.ports.is_some();
        let Some(covered) = self.covered(frame) else {
            return if is_udp && self.is_whole(frame) { Checksum::Bad } else { Checksum::Unknown };
        };
        let message = &frame[covered.start..covered.start + covered.len];
        if is_udp && message[covered.sum_at..covered.sum_at + 2] == [0, 0] {
            return match self.addresses {
                Addresses::V4(_) => Checksum::Unknown,
                Addresses::V6(_) => Checksum::Bad,
            };
        }
        if fold(covered.pseudo + sum(message)) == 0xffff { Checksum::Good } else { Checksum::Bad }
    }

    /// Computes all checksums of the packet and writes them: of the IPv4 header, and of TCP, UDP, ICMP or ICMPv6. For a function that has
    /// changed a payload, or has made a packet. If it has changed lengths as well, read the headers again first.
    ///
    /// A checksum of UDP is never 0, which would mean that there is none. Of a fragment, and of a quoted packet that was cut off, only the
    /// IPv4 header's checksum is computed, as the other covers bytes that are not there. An IPv6 packet with stops to come keeps its checksum,
    /// as that is of the last stop's address, and a datagram that states an impossible length keeps its own.
    ///
    /// | what to use | when |
    /// |---|---|
    /// | [`Headers::set_addresses`] and other setters | a field has changed. They update what covers it in a few steps, and a wrong checksum stays wrong, so that a receiver still notices what was damaged before |
    /// | [`Packet::complete_checksums`](crate::Packet::complete_checksums) | a payload has changed and the packet is sent next. The node computes the same when it moves the packet, faster than code in Wasm |
    /// | this method | the checksums are needed in the function, or the frame is one that is not sent as it is: in a test, or within a tunnel |
    ///
    /// # Errors
    ///
    /// The frame is another one.
    pub fn recompute_checksums(&self, frame: &mut [u8]) -> Result<(), CannotRewrite> {
        let packet = frame.get_mut(self.at.network..self.at.end).ok_or(CannotRewrite::OtherFrame)?;
        if let Addresses::V4(_) = self.addresses {
            let header = packet.get_mut(..self.ip().header_len).ok_or(CannotRewrite::OtherFrame)?;
            write(header, IPV4_CHECKSUM_AT, 0);
            let checksum = !fold(sum(header));
            write(header, IPV4_CHECKSUM_AT, checksum);
        }
        if let Some(covered) = self.covered(frame) {
            let message = &mut frame[covered.start..covered.start + covered.len];
            write(message, covered.sum_at, 0);
            let checksum = match !fold(covered.pseudo + sum(message)) {
                0 if self.protocol == UDP => 0xffff,
                checksum => checksum,
            };
            write(message, covered.sum_at, checksum);
        }
        Ok(())
    }

    /// Returns what the checksum above IP covers, if all of it is there.
    #[inline(always)]
    fn covered(&self, frame: &[u8]) -> Option<Covered> {
        let rest = frame.get(self.at.transport..self.at.end)?;
        if !self.is_whole(frame) {
            return None;
        }
        let (sum_at, len) = match (self.protocol, self.addresses) {
            (TCP, _) if rest.len() >= TCP_HEADER_MIN => (16, rest.len()),
            (UDP, _) => (6, udp_len(rest)?),
            (ICMP, Addresses::V4(_)) | (ICMPV6, Addresses::V6(_)) if rest.len() >= ICMP_MESSAGE_MIN => (2, rest.len()),
            _ => return None,
        };
        // Of the frame, as a caller may have changed them there.
        let addresses = match self.addresses {
            Addresses::V4(_) if self.protocol == ICMP => None,
            Addresses::V4(_) => Some(IPV4_ADDRESSES),
            Addresses::V6(_) => Some(IPV6_ADDRESSES),
        };
        let pseudo = match addresses {
            Some(addresses) => {
                sum(frame.get(self.at.network..)?.get(addresses)?) + len as u64 + u64::from(self.protocol)
            }
            None => 0,
        };
        Some(Covered { start: self.at.transport, len, sum_at, pseudo })
    }

    /// Returns whether the packet has all that a checksum above IP covers: it is no fragment, was not cut off, and has no stops to come.
    #[inline(always)]
    fn is_whole(&self, frame: &[u8]) -> bool {
        let stated = match self.addresses {
            Addresses::V4(_) => stated_len(frame, self.at.network + 2),
            Addresses::V6(_) => stated_len(frame, self.at.network + 4).map(|len| len + ip::IPV6_HEADER),
        };
        let has_stops = || matches!(self.addresses, Addresses::V6(_)) && ip::has_stops_to_come(frame, self);
        let is_there = frame.len() >= self.at.end && stated.is_some_and(|len| self.at.network + len == self.at.end);
        is_there && self.fragment.is_none() && !has_stops()
    }
}

/// Returns the length at an offset of the frame.
#[inline]
fn stated_len(frame: &[u8], at: usize) -> Option<usize> {
    frame.get(at..)?.first_chunk().map(|len| u16::from_be_bytes(*len).into())
}

fn write(data: &mut [u8], at: usize, checksum: u16) {
    data[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}
