//! The other fields of a TCP segment: [`Segment`].

use super::{Headers, TcpFlags};

/// The sequence numbers of a TCP segment, for functions that track connections.
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
/// let segment = Segment::of(&Headers::of(&frame).unwrap(), &frame).unwrap();
/// assert_eq!((segment.sequence, segment.acknowledged, segment.len), (u32::MAX - 1, 9, 3));
/// assert_eq!(segment.end(), 2, "three bytes and a FIN later");
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
}

impl Segment {
    /// Reads the segment of a frame with these headers. `None` if it is not a segment, or is a fragment without the TCP header.
    #[must_use]
    pub fn of(headers: &Headers, frame: &[u8]) -> Option<Self> {
        let flags = headers.tcp_flags?;
        let word = |at: usize| Some(u32::from_be_bytes(*frame.get(headers.at.transport + at..)?.first_chunk()?));
        let len = headers.at.end.saturating_sub(headers.at.payload) as u32;
        Some(Self { flags, sequence: word(4)?, acknowledged: word(8)?, len })
    }

    /// Returns the sequence number after the segment: a SYN and a FIN take one each.
    #[must_use]
    pub fn end(self) -> u32 {
        let flags = u32::from(self.flags.syn()) + u32::from(self.flags.fin());
        self.sequence.wrapping_add(self.len).wrapping_add(flags)
    }
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
