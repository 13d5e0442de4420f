//! The other fields of a TCP segment, and payloads: [`Segment`], [`Headers::payload`].

use super::transport::{TCP_HEADER_MIN, UDP_HEADER};
use super::{Headers, TcpFlags, UDP};

/// The fields of a TCP segment, for functions that track connections.
///
/// ```
/// use pinion_sdk::headers::{Headers, Segment, TCP};
///
/// let mut frame = vec![0; 14 + 20 + 20 + 3];
/// frame[12..14].copy_from_slice(&[0x08, 0x00]);
/// frame[14..34].copy_from_slice(&[0x45, 0, 0, 43, 0, 1, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
/// // Sequence number, acknowledgement number, header length and flags: FIN and ACK.
/// frame[38..48].copy_from_slice(&[0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 9, 0x50, 0x11]);
///
/// frame[48..50].copy_from_slice(&[0x10, 0]);
///
/// let segment = Segment::of(&Headers::of(&frame).unwrap(), &frame).unwrap();
/// assert_eq!((segment.sequence, segment.acknowledged, segment.len), (u32::MAX - 1, 9, 3));
/// assert_eq!(segment.end(), 2, "three bytes and a FIN later");
/// assert_eq!((segment.window, segment.header_len), (4096, 20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its flags.
    pub flags: TcpFlags,
    /// The sequence number of its first byte, or of its SYN.
    pub sequence: u32,
    /// The number that it acknowledges, if it has the flag ACK.
    pub acknowledged: u32,
    /// Bytes of its payload that are in this packet: a first fragment contains only a part.
    pub len: u32,
    /// Bytes that its sender is ready to receive, before the scale that the connection's SYNs have agreed on.
    pub window: u16,
    /// Length of its header in bytes, with options. In a [quoted](Headers::quoted) packet it may be more than is there.
    pub header_len: usize,
}

impl Segment {
    /// Reads the segment of a frame with these headers. `None` if it is not a segment, or is a fragment without the TCP header.
    #[inline]
    #[must_use]
    pub fn of(headers: &Headers, frame: &[u8]) -> Option<Self> {
        let flags = headers.tcp_flags?;
        let header = frame.get(headers.at.transport..)?.first_chunk::<TCP_HEADER_MIN>()?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        Some(Self {
            flags,
            sequence: word(4),
            acknowledged: word(8),
            len: headers.at.end.saturating_sub(headers.at.payload) as u32,
            window: u16::from_be_bytes([header[14], header[15]]),
            header_len: usize::from(header[12] >> 4) * 4,
        })
    }

    /// Returns the sequence number after the segment: a SYN and a FIN take one each.
    #[must_use]
    pub fn end(self) -> u32 {
        let flags = u32::from(self.flags.syn()) + u32::from(self.flags.fin());
        self.sequence.wrapping_add(self.len).wrapping_add(flags)
    }
}

impl Headers {
    /// Returns the fields of a TCP segment, as [`Segment::of`] does.
    #[inline]
    #[must_use]
    pub fn segment(&self, frame: &[u8]) -> Option<Segment> {
        Segment::of(self, frame)
    }

    /// Returns the payload of the packet's last header that was read: of TCP, UDP or ICMP, or of IP for other protocols and for fragments after
    /// the first. The frame's padding is no part of it, nor is what lies in the packet behind a UDP datagram. `None` if the frame is not the
    /// one that was read.
    ///
    /// ```
    /// # use pinion_sdk::testing::Frame;
    /// use pinion_sdk::headers::Headers;
    ///
    /// let mut frame = Frame::udp("10.0.0.1:5000", "10.0.0.2:53").payload(b"question").padded_to(60).bytes();
    /// let headers = Headers::of(&frame).unwrap();
    /// assert_eq!(headers.payload(&frame), Some(&b"question"[..]));
    ///
    /// // To change it, and what covers it:
    /// headers.payload_mut(&mut frame).unwrap().make_ascii_uppercase();
    /// headers.recompute_checksums(&mut frame).unwrap();
    /// assert_eq!(frame, Frame::udp("10.0.0.1:5000", "10.0.0.2:53").payload(b"QUESTION").padded_to(60).bytes());
    /// ```
    #[inline]
    #[must_use]
    pub fn payload<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        frame.get(self.at.payload..self.payload_end(frame)?)
    }

    /// Returns the payload, as [`Headers::payload`] does, to be changed in place. The checksum that covers it is not updated: see
    /// [`Headers::recompute_checksums`] and [`Packet::complete_checksums`](crate::Packet::complete_checksums).
    #[inline]
    #[must_use]
    pub fn payload_mut<'f>(&self, frame: &'f mut [u8]) -> Option<&'f mut [u8]> {
        let end = self.payload_end(frame)?;
        frame.get_mut(self.at.payload..end)
    }

    #[inline]
    fn payload_end(&self, frame: &[u8]) -> Option<usize> {
        let message = frame.get(self.at.transport..self.at.end)?;
        // A first fragment states the length of the whole datagram.
        let len = if self.protocol == UDP && self.ports.is_some() { udp_len(message) } else { None };
        Some(self.at.transport + len.unwrap_or(message.len()))
    }
}

/// Returns the length that a UDP datagram states, if that is one and there is so much of it.
#[inline]
pub(super) fn udp_len(datagram: &[u8]) -> Option<usize> {
    let [_, _, _, _, high, low] = *datagram.first_chunk()?;
    Some(u16::from_be_bytes([high, low]).into()).filter(|len| (UDP_HEADER..=datagram.len()).contains(len))
}

/// Returns whether two sequence numbers, which wrap around, differ by at most `distance_max`.
///
/// ```
/// use pinion_sdk::headers::is_near;
///
/// assert!(is_near(5, u32::MAX - 4, 10) && is_near(u32::MAX - 4, 5, 10));
/// assert!(!is_near(5, u32::MAX - 4, 9));
/// ```
#[must_use]
pub fn is_near(one: u32, other: u32, distance_max: u32) -> bool {
    one.wrapping_sub(other).min(other.wrapping_sub(one)) <= distance_max
}
