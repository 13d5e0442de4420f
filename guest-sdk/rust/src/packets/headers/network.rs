//! The IP header alone: [`Ip`].

use core::ops::Range;

use super::{Addresses, CannotRewrite, Headers, Unreadable, ip};
use crate::checksum;
use crate::packets::packet::Checksum;

const IPV4_TTL_AT: usize = 8;
const IPV4_PROTOCOL_AT: usize = 9;
const IPV4_CHECKSUM_AT: usize = 10;
const IPV6_NEXT_HEADER_AT: usize = 6;
const IPV6_HOP_LIMIT_AT: usize = 7;

/// Greatest code point of differentiated services, of six bits.
const DSCP_MAX: u8 = 63;

/// The part of the IP header that says how a packet is treated on its way: hop limit, DSCP and ECN.
///
/// Reading it is all that a router needs ([`Ip::of`]); a function that reads the other headers as well has it from
/// [`Headers::ip`]. The methods take the frame that it was read from, and read or write it in place. They return `None` or
/// [`CannotRewrite::OtherFrame`] for a frame that is shorter than that one.
///
/// ```
/// use pinion_sdk::headers::Ip;
/// use pinion_sdk::testing::Frame;
///
/// let mut frame = Frame::udp("10.0.0.1:5000", "10.0.0.2:53").dscp(46).bytes();
/// let ip = Ip::of(&frame).unwrap();
/// assert_eq!((ip.hop_limit(&frame), ip.dscp(&frame), ip.len), (Some(64), Some(46), 28));
/// assert_eq!(ip.decrement_hop_limit(&mut frame), Ok(63));
/// assert_eq!(ip.checksum(&frame), pinion_sdk::Checksum::Good);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source and destination address.
    pub addresses: Addresses,
    /// The header's offset in the frame.
    pub at: usize,
    /// Length of the header in bytes: with its options for IPv4, without extension headers for IPv6.
    pub header_len: usize,
    /// Length of the packet in bytes, without the frame's padding. Of a [quoted](Headers::quoted) packet, what is there of it.
    pub len: usize,
}

/// What a packet says about congestion (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Its sender does not use ECN: a congested router drops the packet.
    #[default]
    NotCapable = 0,
    /// ECT(1).
    Capable1 = 1,
    /// ECT(0): a congested router may mark the packet instead of dropping it.
    Capable0 = 2,
    /// CE: a router on the way was congested.
    CongestionExperienced = 3,
}

impl Ip {
    /// Reads the IP header of an Ethernet frame, and nothing behind it. So a packet is not refused for what follows, as
    /// [`Headers::of`] does, and each fragment is read alike. Of IPv4 the checksum is not verified: see [`Ip::checksum`].
    ///
    /// # Errors
    ///
    /// The frame is not an IP packet, not a whole one, or has more than two VLAN tags.
    #[inline]
    pub fn of(frame: &[u8]) -> Result<Self, Unreadable> {
        super::behind_tags(frame, |at, _| ip::only_v4(frame, at), |at, _| ip::only_v6(frame, at))
    }

    /// Returns the bytes of the packet: the frame without Ethernet header and padding.
    #[inline]
    #[must_use]
    pub fn packet<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        frame.get(self.range())
    }

    /// Returns the number of the protocol behind this header; for IPv6 it may be an extension header's. A function that handles one protocol
    /// can ignore other packets by it before it reads [`Headers`].
    #[inline]
    #[must_use]
    pub fn protocol(&self, frame: &[u8]) -> Option<u8> {
        self.packet(frame)?.get(if self.is_v4() { IPV4_PROTOCOL_AT } else { IPV6_NEXT_HEADER_AT }).copied()
    }

    /// Returns the TTL of IPv4, or the hop limit of IPv6.
    #[inline]
    #[must_use]
    pub fn hop_limit(&self, frame: &[u8]) -> Option<u8> {
        self.packet(frame)?.get(if self.is_v4() { IPV4_TTL_AT } else { IPV6_HOP_LIMIT_AT }).copied()
    }

    /// Returns the code point of differentiated services, 0 to 63.
    #[inline]
    #[must_use]
    pub fn dscp(&self, frame: &[u8]) -> Option<u8> {
        self.traffic_class(frame).map(|class| class >> 2)
    }

    /// Returns what the packet says about congestion.
    #[inline]
    #[must_use]
    pub fn ecn(&self, frame: &[u8]) -> Option<Ecn> {
        Some(match self.traffic_class(frame)? & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::Capable1,
            2 => Ecn::Capable0,
            _ => Ecn::CongestionExperienced,
        })
    }

    /// Verifies the checksum of an IPv4 header. [`Checksum::Unknown`] for IPv6, which has none, and for another frame. A function
    /// need not verify it if the receiving device has: see [`Packet::ip_checksum`](crate::Packet::ip_checksum).
    #[inline]
    #[must_use]
    pub fn checksum(&self, frame: &[u8]) -> Checksum {
        let header = self.packet(frame).and_then(|packet| packet.get(..self.header_len));
        match header {
            Some(header) if self.is_v4() && checksum::of(header) == 0 => Checksum::Good,
            Some(_) if self.is_v4() => Checksum::Bad,
            _ => Checksum::Unknown,
        }
    }

    /// Replaces the TTL or hop limit. An IPv4 header's checksum stays as correct as it was.
    ///
    /// # Errors
    ///
    /// The frame is another one.
    #[inline]
    pub fn set_hop_limit(&self, frame: &mut [u8], hop_limit: u8) -> Result<(), CannotRewrite> {
        if self.is_v4() {
            self.set_word_v4(frame, IPV4_TTL_AT, |[_, protocol]| [hop_limit, protocol])?;
        } else {
            self.header_mut::<{ ip::IPV6_HEADER }>(frame)?[IPV6_HOP_LIMIT_AT] = hop_limit;
        }
        Ok(())
    }

    /// Takes one from the TTL or hop limit, as a router does, and returns what is left. An IPv4 header's checksum stays as correct as
    /// it was.
    ///
    /// A router forwards no packet whose hop limit was 1 or 0, and sends an ICMP error that quotes it as it was received (RFC 1812,
    /// 5.3.1; RFC 8200, 3). So look at [`Ip::hop_limit`] first.
    ///
    /// # Errors
    ///
    /// The hop limit is 0, or the frame is another one. It is unchanged.
    #[inline]
    pub fn decrement_hop_limit(&self, frame: &mut [u8]) -> Result<u8, CannotRewrite> {
        let left = |old: u8| old.checked_sub(1).ok_or(CannotRewrite::NoHopLeft);
        if self.is_v4() {
            let header = self.header_mut::<{ ip::IPV4_HEADER_MIN }>(frame)?;
            let left = left(header[IPV4_TTL_AT])?;
            put_word_v4(header, IPV4_TTL_AT, [left, header[IPV4_TTL_AT + 1]]);
            return Ok(left);
        }
        let hop_limit = &mut self.header_mut::<{ ip::IPV6_HEADER }>(frame)?[IPV6_HOP_LIMIT_AT];
        *hop_limit = left(*hop_limit)?;
        Ok(*hop_limit)
    }

    /// Replaces the code point of differentiated services. ECN stays. An IPv4 header's checksum stays as correct as it was.
    ///
    /// # Errors
    ///
    /// The code point is greater than 63, or the frame is another one.
    pub fn set_dscp(&self, frame: &mut [u8], dscp: u8) -> Result<(), CannotRewrite> {
        if dscp > DSCP_MAX {
            return Err(CannotRewrite::NoSuchDscp);
        }
        self.set_traffic_class(frame, |class| (class & 3) | (dscp << 2))
    }

    /// Replaces what the packet says about congestion. DSCP stays. An IPv4 header's checksum stays as correct as it was. Only a packet
    /// whose sender uses ECN may be marked with [`Ecn::CongestionExperienced`].
    ///
    /// # Errors
    ///
    /// The frame is another one.
    pub fn set_ecn(&self, frame: &mut [u8], ecn: Ecn) -> Result<(), CannotRewrite> {
        self.set_traffic_class(frame, |class| (class & !3) | ecn as u8)
    }

    #[inline]
    fn is_v4(&self) -> bool {
        matches!(self.addresses, Addresses::V4(_))
    }

    #[inline]
    fn range(&self) -> Range<usize> {
        self.at..self.at.saturating_add(self.len)
    }

    /// Returns DSCP and ECN: the second byte of IPv4, and of IPv6 the second four bits and the third.
    #[inline]
    fn traffic_class(&self, frame: &[u8]) -> Option<u8> {
        let [first, second] = *self.packet(frame)?.first_chunk::<2>()?;
        Some(if self.is_v4() { second } else { (first << 4) | (second >> 4) })
    }

    fn set_traffic_class(&self, frame: &mut [u8], change: impl FnOnce(u8) -> u8) -> Result<(), CannotRewrite> {
        if self.is_v4() {
            return self.set_word_v4(frame, 0, |[first, class]| [first, change(class)]);
        }
        let class = change(self.traffic_class(frame).ok_or(CannotRewrite::OtherFrame)?);
        let [first, second] = self.header_mut::<2>(frame)?;
        (*first, *second) = ((*first & 0xf0) | (class >> 4), (*second & 0x0f) | (class << 4));
        Ok(())
    }

    /// Changes two bytes of an IPv4 header, and its checksum.
    #[inline]
    fn set_word_v4(
        &self,
        frame: &mut [u8],
        at: usize,
        change: impl FnOnce([u8; 2]) -> [u8; 2],
    ) -> Result<(), CannotRewrite> {
        let header = self.header_mut::<{ ip::IPV4_HEADER_MIN }>(frame)?;
        put_word_v4(header, at, change([header[at], header[at + 1]]));
        Ok(())
    }

    #[inline]
    fn header_mut<'f, const LEN: usize>(&self, frame: &'f mut [u8]) -> Result<&'f mut [u8; LEN], CannotRewrite> {
        frame.get_mut(self.range()).and_then(<[u8]>::first_chunk_mut).ok_or(CannotRewrite::OtherFrame)
    }
}

impl Headers {
    /// Returns the IP header alone, for what is in it beside addresses: hop limit, DSCP and ECN.
    ///
    /// ```
    /// # use pinion_sdk::testing::Frame;
    /// use pinion_sdk::headers::{Ecn, Headers};
    ///
    /// let mut frame = Frame::tcp("10.0.0.1:5000", "10.0.0.2:80").ecn(Ecn::Capable0).bytes();
    /// let ip = Headers::of(&frame).unwrap().ip();
    /// if ip.ecn(&frame) == Some(Ecn::Capable0) {
    ///     ip.set_ecn(&mut frame, Ecn::CongestionExperienced).unwrap();
    /// }
    /// assert_eq!((ip.ecn(&frame), ip.header_len, ip.len), (Some(Ecn::CongestionExperienced), 20, 40));
    /// ```
    #[inline]
    #[must_use]
    pub fn ip(&self) -> Ip {
        let header_len = match self.addresses {
            Addresses::V4(_) => self.at.transport.saturating_sub(self.at.network),
            Addresses::V6(_) => ip::IPV6_HEADER,
        };
        Ip {
            addresses: self.addresses,
            at: self.at.network,
            header_len,
            len: self.at.end.saturating_sub(self.at.network),
        }
    }
}

/// Changes two bytes of an IPv4 header at an even offset, and its checksum.
#[inline]
fn put_word_v4(header: &mut [u8; ip::IPV4_HEADER_MIN], at: usize, new: [u8; 2]) {
    let old = u16::from_be_bytes([header[at], header[at + 1]]);
    header[at..at + 2].copy_from_slice(&new);
    if old.to_be_bytes() == new {
        return;
    }
    // RFC 1624, equation 3. The header is never all zero, so a sum of zero has the checksum 0x0000.
    let before = u16::from_be_bytes([header[IPV4_CHECKSUM_AT], header[IPV4_CHECKSUM_AT + 1]]);
    let sum = u32::from(!before) + u32::from(!old) + u32::from(u16::from_be_bytes(new));
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    let checksum = if sum == 0 { 0 } else { !sum };
    header[IPV4_CHECKSUM_AT..IPV4_CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
}
