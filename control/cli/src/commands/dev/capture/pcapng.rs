//! pcapng: sections of blocks. A section has its own byte order and its own interfaces, each with its link type and unit of time.
//!
//! Read as libpcap does, but with support for different interfaces in a section, and for different sections, at which
//! libpcap gives up. Only the options that affect times are read. Options end with their block, or before it.

use std::io::Read;

use super::fields::{Fields, Order, up_to};
use super::{ETHERNET, FRAME_BYTES_MAX, Failure, LeftOut, Record, Time, bound, record};

/// The type of a section header, the same in either byte order.
pub(super) const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
/// Obsolete: no current program writes it.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Blocks without frames: names, statistics, a journal, secrets, a process, and vendor-specific content.
const WITHOUT_FRAMES: [u32; 7] = [4, 5, 9, 10, 0x8000_0001, 0xbad, 0x4000_0bad];
/// The length of a block besides its content: its type, and its length twice.
const FRAME_OF_BLOCK_BYTES: u32 = 12;
/// The longest block, and the longest section header, that libpcap reads.
const BLOCK_BYTES_MAX: u32 = 16 << 20;
const SECTION_BYTES_MAX: u32 = 1 << 20;

const OPTIONS_END: u16 = 0;
const OPTION_TIME_UNIT: u16 = 9;
const OPTION_TIME_OFFSET: u16 = 14;

/// Reads blocks.
pub(super) struct PcapNg<R> {
    reader: R,
    order: Order,
    interfaces: Vec<Interface>,
}

/// The description of an interface in a section.
struct Interface {
    link_type: u16,
    frame_bytes_max: u32,
    unit: Unit,
    offset_seconds: i64,
}

/// The unit of an interface's times, in seconds: a negative power of ten, or of two if the highest bit is set.
#[derive(Clone, Copy)]
struct Unit(u8);

/// A block with a frame.
struct Packet<'a> {
    interface: u32,
    time: u64,
    captured: u32,
    original: u32,
    /// The frame, followed by padding and options.
    data: &'a [u8],
}

impl<R: Read> PcapNg<R> {
    /// Reads the first section header, whose type has been read.
    pub(super) fn open(mut reader: R) -> Result<Self, Failure> {
        let (content, order) = section(&mut reader, None)?;
        let mut opened = Self { reader, order, interfaces: Vec::new() };
        match opened.begin_section(&content, order)? {
            (1, 0 | 2) => Ok(opened),
            (major, minor) => Err(other_version(major, minor)),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<Record>, Failure> {
        while let Some((kind, content)) = self.block()? {
            let fields = Fields::new(&content, self.order);
            let too_short = || Failure::Damaged(format!("a block of type {kind} has {} bytes only", content.len()));
            let packet = match kind {
                SECTION => None,
                INTERFACE => {
                    let interface = Interface::read(fields).ok_or_else(too_short)??;
                    self.interfaces.push(interface);
                    None
                }
                ENHANCED_PACKET => Some(enhanced(fields).ok_or_else(too_short)?),
                PACKET => Some(obsolete(fields).ok_or_else(too_short)?),
                SIMPLE_PACKET => Some(self.simple(fields).ok_or_else(too_short)?),
                kind if WITHOUT_FRAMES.contains(&kind) => None,
                _ => return Ok(Some(Record::UnknownBlock)),
            };
            if let Some(packet) = packet {
                return self.record(&packet).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the next block's type and content; none at the end. Applies section headers itself.
    fn block(&mut self) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        let kind = up_to(&mut self.reader, 4)?;
        if kind.is_empty() {
            return Ok(None);
        }
        let kind = <[u8; 4]>::try_from(kind).map_err(|_| cut_off())?;
        let kind = self.order.u32(kind);
        if kind != SECTION {
            let len = self.order.u32(exactly(&mut self.reader)?);
            let (content, again) = content(&mut self.reader, self.order, len, BLOCK_BYTES_MAX, Vec::new())?;
            check_end(len, again)?;
            return Ok(Some((kind, content)));
        }
        let (content, order) = section(&mut self.reader, Some(self.order))?;
        match self.begin_section(&content, order)? {
            (1, _) => Ok(Some((kind, content))),
            (major, minor) => Err(other_version(major, minor)),
        }
    }

    /// Applies a section header to the following blocks, and returns its version.
    fn begin_section(&mut self, content: &[u8], order: Order) -> Result<(u16, u16), Failure> {
        let mut fields = Fields::new(content, order);
        let mut version = || {
            fields.bytes(4)?;
            let version = (fields.u16()?, fields.u16()?);
            // The length of the section, which may be unknown; blocks tell where they end.
            fields.u64().map(|_| version)
        };
        let version = version().ok_or_else(|| Failure::Damaged("a section's header is too short".to_owned()))?;
        self.order = order;
        self.interfaces.clear();
        Ok(version)
    }

    /// Parses a frame of the first interface, without a time, with at most the interface's maximum length.
    fn simple<'a>(&self, mut fields: Fields<'a>) -> Option<Packet<'a>> {
        let original = fields.u32()?;
        let data = fields.rest();
        let limit = self.interfaces.first().map_or(0, |interface| interface.frame_bytes_max);
        let captured = original.min(limit).min(data.len().try_into().unwrap_or(u32::MAX));
        Some(Packet { interface: 0, time: 0, captured, original, data })
    }

    fn record(&self, packet: &Packet<'_>) -> Result<Record, Failure> {
        let &Packet { interface, time, captured, original, data } = packet;
        let Some(of) = self.interfaces.get(interface as usize) else {
            return Err(Failure::Damaged(format!("a frame is of interface {interface}, which nothing describes")));
        };
        let Some(frame) = data.get(..captured as usize) else {
            let problem = format!("a frame is to have {captured} bytes, and its block has {}", data.len());
            return Err(Failure::Damaged(problem));
        };
        if u32::from(of.link_type) != ETHERNET {
            return Ok(Record::LeftOut(LeftOut::NotEthernet));
        }
        if captured > FRAME_BYTES_MAX {
            return Ok(Record::LeftOut(LeftOut::TooLong));
        }
        Ok(record(of.unit.time(time, of.offset_seconds), frame.to_vec(), original))
    }
}

impl Interface {
    /// Returns none if there are too few bytes.
    fn read(mut fields: Fields<'_>) -> Option<Result<Self, Failure>> {
        let link_type = fields.u16()?;
        // Reserved, and not always 0.
        fields.u16()?;
        let frame_bytes_max = bound(fields.u32()?);
        let (mut unit, mut offset_seconds) = (Unit(6), 0);
        while !fields.rest().is_empty() {
            let (code, len) = (fields.u16()?, fields.u16()?);
            let value = fields.bytes(usize::from(len).next_multiple_of(4))?.get(..usize::from(len))?;
            match code {
                OPTIONS_END => break,
                OPTION_TIME_UNIT => match value {
                    [exponent] => unit = Unit(*exponent),
                    _ => return Some(Err(bad_option("unit of time", len))),
                },
                OPTION_TIME_OFFSET => match fields.number(value) {
                    Some(offset) => offset_seconds = offset as i64,
                    None => return Some(Err(bad_option("offset of times", len))),
                },
                _ => {}
            }
        }
        Some(Ok(Self { link_type, frame_bytes_max, unit, offset_seconds }))
    }
}

impl Unit {
    /// Converts this number of units to a time.
    fn time(self, units: u64, offset_seconds: i64) -> Time {
        let exponent = u32::from(self.0 & 0x7f);
        let base = if self.0 & 0x80 == 0 { 10_u128 } else { 2 };
        // If the power overflows, any number of units is less than a second, as it is with the largest u128.
        let per_second = base.checked_pow(exponent).unwrap_or(u128::MAX);
        let units = u128::from(units);
        let nanos = (units % per_second) * 1_000_000_000 / per_second;
        let seconds = i128::try_from(units / per_second).unwrap_or(i128::MAX);
        Time::new(seconds + i128::from(offset_seconds), nanos as u64)
    }
}

fn enhanced(mut fields: Fields<'_>) -> Option<Packet<'_>> {
    let (interface, high, low) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (captured, original) = (fields.u32()?, fields.u32()?);
    Some(Packet { interface, time: u64::from(high) << 32 | u64::from(low), captured, original, data: fields.rest() })
}

/// As the one above, with a shorter interface number and a drop count.
fn obsolete(mut fields: Fields<'_>) -> Option<Packet<'_>> {
    let interface = fields.u16()?.into();
    fields.u16()?;
    let (high, low, captured, original) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
    Some(Packet { interface, time: u64::from(high) << 32 | u64::from(low), captured, original, data: fields.rest() })
}

/// Returns the content and the byte order of a section header, whose type has been read.
fn section(reader: &mut impl Read, before: Option<Order>) -> Result<(Vec<u8>, Order), Failure> {
    let (len, magic) = (exactly(reader)?, exactly(reader)?);
    let Some(order) = Order::of(magic, BYTE_ORDER) else {
        let what = if before.is_some() { "a section" } else { "its begin" };
        return Err(Failure::Damaged(format!("{what} is none of pcapng's: its byte order is {magic:02x?}")));
    };
    let len = order.u32(len);
    let (content, again) = content(reader, order, len, SECTION_BYTES_MAX, magic.to_vec())?;
    // libpcap does not look at the end of the first section header either.
    if before.is_some() {
        check_end(len, again)?;
    }
    Ok((content, order))
}

/// Returns the content of a block of this length, whose type, length and first bytes of content have been read, and the
/// length at the block's end.
fn content(
    reader: &mut impl Read,
    order: Order,
    len: u32,
    bytes_max: u32,
    mut content: Vec<u8>,
) -> Result<(Vec<u8>, u32), Failure> {
    let least = FRAME_OF_BLOCK_BYTES + content.len() as u32;
    if len < least || len > bytes_max || !len.is_multiple_of(4) {
        let problem = format!("a block is to have {len} bytes: it must be {least} to {bytes_max}, and a multiple of 4");
        return Err(Failure::Damaged(problem));
    }
    let missing = (len - least) as usize;
    let rest = up_to(reader, missing)?;
    if rest.len() < missing {
        return Err(cut_off());
    }
    content.extend(rest);
    Ok((content, order.u32(exactly(reader)?)))
}

fn check_end(len: u32, again: u32) -> Result<(), Failure> {
    let problem = || Failure::Damaged(format!("a block has {len} bytes by its begin, and {again} by its end"));
    if again == len { Ok(()) } else { Err(problem()) }
}

fn exactly<const N: usize>(reader: &mut impl Read) -> Result<[u8; N], Failure> {
    up_to(reader, N)?.try_into().map_err(|_| cut_off())
}

fn cut_off() -> Failure {
    Failure::Damaged("the file ends within a block".to_owned())
}

fn other_version(major: u16, minor: u16) -> Failure {
    Failure::OtherVersion(format!("a section is of version {major}.{minor}, and 1.0 and 1.2 are read"))
}

fn bad_option(what: &str, len: u16) -> Failure {
    Failure::Damaged(format!("an interface's {what} has {len} bytes"))
}
