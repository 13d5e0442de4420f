//! pcap: a file header, then a header before each frame.
//!
//! Read as libpcap does. The first three versions have the two lengths in the opposite order, and Kuznetzov's variant
//! has longer headers. The upper six bits of the link type describe checksums at the end of frames. Bytes of a record
//! beyond the file's own limit of captured bytes (snaplen) are not part of the frame.

use std::io::Read;

use super::fields::{Fields, Order, up_to};
use super::{FRAME_BYTES_MAX, Failure, Record, Time, bound, record};

/// The magic number for times in microseconds.
const MICROS: u32 = 0xa1b2_c3d4;
/// The magic number for times in nanoseconds.
const NANOS: u32 = 0xa1b2_3c4d;
/// Alexey Kuznetzov's variant: times in microseconds, and record headers with 8 more bytes.
const KUZNETZOV: u32 = 0xa1b2_cd34;
/// The length of the file header after the magic number.
const HEADER_BYTES: usize = 20;
/// The bits of the link type field that hold the link type. The rest is about frames' checksums.
const LINK_TYPE_BITS: u32 = 0x03ff_ffff;

/// The file header.
#[derive(Debug)]
struct Header {
    order: Order,
    record_header_bytes: usize,
    /// The unit of the fraction of a second, in nanoseconds.
    unit_ns: u64,
    lengths: Lengths,
    /// The maximum number of bytes of a frame that are read.
    frame_bytes_max: u32,
    link_type: u32,
}

/// The order of a record's captured and original length.
#[derive(Debug)]
enum Lengths {
    CapturedFirst,
    OriginalFirst,
    /// Files of version 2.3 exist in both orders. The captured length is never more than the original one.
    ShorterIsCaptured,
}

/// Reads records.
pub(super) struct Pcap<R> {
    header: Header,
    reader: R,
}

impl<R: Read> Pcap<R> {
    /// Reads the file header, which begins with `magic`; none if it is not that of a pcap file.
    pub(super) fn open(magic: [u8; 4], mut reader: R) -> Result<Option<Self>, Failure> {
        let kind = [MICROS, NANOS, KUZNETZOV].into_iter().find_map(|kind| Some((kind, Order::of(magic, kind)?)));
        let Some((kind, order)) = kind else { return Ok(None) };
        let bytes = up_to(&mut reader, HEADER_BYTES)?;
        let header = Header::read(kind, Fields::new(&bytes, order), order);
        let header = header.ok_or_else(|| Failure::Damaged("the file ends within its header".to_owned()))??;
        Ok(Some(Self { header, reader }))
    }

    pub(super) fn link_type(&self) -> u32 {
        self.header.link_type
    }

    pub(super) fn next(&mut self) -> Result<Option<Record>, Failure> {
        let Header { order, record_header_bytes, unit_ns, frame_bytes_max, .. } = self.header;
        let bytes = up_to(&mut self.reader, record_header_bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let cut_off = |of: &str, had: usize, has: usize| {
            Failure::Damaged(format!("the file ends within {of}: {has} of {had} bytes are there"))
        };
        let mut fields = Fields::new(&bytes, order);
        let mut number = || fields.u32().filter(|_| bytes.len() == record_header_bytes);
        let (Some(seconds), Some(fraction), Some(first), Some(second)) = (number(), number(), number(), number())
        else {
            return Err(cut_off("a record's header", record_header_bytes, bytes.len()));
        };
        let (captured, original) = self.header.lengths.in_order(first, second);
        if captured > FRAME_BYTES_MAX {
            let problem = format!("a frame is to have {captured} bytes, and {FRAME_BYTES_MAX} are allowed");
            return Err(Failure::Damaged(problem));
        }
        let mut frame = up_to(&mut self.reader, captured as usize)?;
        if frame.len() < captured as usize {
            return Err(cut_off("a frame", captured as usize, frame.len()));
        }
        frame.truncate(frame_bytes_max as usize);
        let time = Time::new(seconds.into(), u64::from(fraction) * unit_ns);
        Ok(Some(record(time, frame, original.max(captured))))
    }
}

impl Header {
    /// Returns none if there are too few bytes.
    fn read(kind: u32, mut fields: Fields<'_>, order: Order) -> Option<Result<Self, Failure>> {
        let version = (fields.u16()?, fields.u16()?);
        // A time zone and an accuracy, which are always 0.
        fields.bytes(8)?;
        let (snaplen, link_type) = (fields.u32()?, fields.u32()?);
        let lengths = match version {
            (2, 0..=2) | (543, 0) => Lengths::OriginalFirst,
            (2, 3) => Lengths::ShorterIsCaptured,
            (2, 4) => Lengths::CapturedFirst,
            (major, minor) => {
                let problem = format!("its version is {major}.{minor}, and 2.0 to 2.4 are read");
                return Some(Err(Failure::OtherVersion(problem)));
            }
        };
        // An interface that adds an Ethernet header of its own does so after the frame was cut.
        let added = if kind == KUZNETZOV { 14 } else { 0 };
        Some(Ok(Self {
            order,
            record_header_bytes: if kind == KUZNETZOV { 24 } else { 16 },
            unit_ns: if kind == NANOS { 1 } else { 1000 },
            lengths,
            frame_bytes_max: bound(snaplen).saturating_add(added),
            link_type: link_type & LINK_TYPE_BITS,
        }))
    }
}

impl Lengths {
    /// Returns the captured and the original length.
    fn in_order(&self, first: u32, second: u32) -> (u32, u32) {
        match self {
            Self::CapturedFirst => (first, second),
            Self::OriginalFirst => (second, first),
            Self::ShorterIsCaptured => (first.min(second), first.max(second)),
        }
    }
}
