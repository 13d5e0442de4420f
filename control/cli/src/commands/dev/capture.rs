//! Captures of Ethernet frames: pcap and pcapng are read, pcap with nanoseconds is written.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::BadInput;

/// What a pcapng file begins with, whichever byte order it has.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The longest frame that a capture says it may hold: what the kernel hands out at most, and some.
const SNAPLEN: u32 = 0x4_0000;

/// A frame, and when it was captured: since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Captured {
    pub(super) time: Duration,
    pub(super) frame: Vec<u8>,
}

/// A capture's frames, in its order.
pub(super) struct Frames {
    path: PathBuf,
    reader: Format,
}

enum Format {
    Pcap(PcapReader<BufReader<File>>),
    PcapNg(PcapNgReader<BufReader<File>>),
}

impl Frames {
    /// Those of a file.
    pub(super) fn of(path: &Path) -> Result<Self, BadInput> {
        let unreadable = |error| BadInput::Unreadable { path: path.to_owned(), error };
        let mut file = File::open(path).map_err(unreadable)?;
        let mut magic = [0; 4];
        let len = file.read(&mut magic).map_err(unreadable)?;
        file.rewind().map_err(unreadable)?;
        let file = BufReader::new(file);
        let reader = if len == magic.len() && magic == PCAPNG {
            PcapNgReader::new(file).map(Format::PcapNg)
        } else {
            PcapReader::new(file).map(Format::Pcap)
        };
        let path = path.to_owned();
        let reader = reader.map_err(|error| bad(&path, format!("it is neither pcap nor pcapng: {error}")))?;
        match &reader {
            Format::Pcap(pcap) if pcap.header().datalink != DataLink::ETHERNET => Err(no_ethernet(&path)),
            Format::Pcap(_) | Format::PcapNg(_) => Ok(Self { path, reader }),
        }
    }
}

impl Iterator for Frames {
    type Item = Result<Captured, BadInput>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = &self.path;
        let damaged = |error: PcapError| bad(path, format!("it is damaged: {error}"));
        match &mut self.reader {
            Format::Pcap(pcap) => {
                let packet = pcap.next_packet()?.map_err(damaged);
                Some(packet.map(|packet| Captured { time: packet.timestamp, frame: packet.data.into_owned() }))
            }
            Format::PcapNg(pcap) => loop {
                match pcap.next_block()?.map_err(damaged).map(Block::into_owned) {
                    Err(error) => return Some(Err(error)),
                    Ok(block) => {
                        if let Some(captured) = captured(path, pcap, block).transpose() {
                            return Some(captured);
                        }
                    }
                }
            },
        }
    }
}

/// The frame that a block is, if it is one.
fn captured<R: Read>(path: &Path, pcap: &PcapNgReader<R>, block: Block<'_>) -> Result<Option<Captured>, BadInput> {
    let interface = |id: u32| {
        let interface = pcap.interfaces().get(id as usize);
        let interface = interface.ok_or_else(|| bad(path, format!("it is damaged: a frame of interface {id}")))?;
        if interface.linktype == DataLink::ETHERNET { Ok(interface) } else { Err(no_ethernet(path)) }
    };
    match block {
        Block::EnhancedPacket(packet) => {
            let of = &interface(packet.interface_id)?.options;
            let resolution = of.iter().find_map(|option| match option {
                InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                _ => None,
            });
            // The reader takes all units for nanoseconds.
            let time = time(packet.timestamp.as_nanos(), resolution.unwrap_or(6));
            Ok(Some(Captured { time, frame: packet.data.into_owned() }))
        }
        Block::SimplePacket(packet) => {
            interface(0)?;
            let mut frame = packet.data.into_owned();
            // What follows is there to fill the block.
            frame.truncate(packet.original_len as usize);
            Ok(Some(Captured { time: Duration::ZERO, frame }))
        }
        _ => Ok(None),
    }
}

/// A time in units of which an interface says how many a second has: a power of ten, or of two if the highest bit is set.
fn time(units: u128, resolution: u8) -> Duration {
    let exponent = u32::from(resolution & 0x7f);
    let base = if resolution & 0x80 == 0 { 10_u128 } else { 2 };
    let per_second = base.checked_pow(exponent).unwrap_or(u128::MAX);
    let nanos = (units % per_second).saturating_mul(1_000_000_000) / per_second;
    Duration::new((units / per_second).try_into().unwrap_or(u64::MAX), nanos.try_into().unwrap_or(0))
}

fn bad(path: &Path, problem: String) -> BadInput {
    BadInput::Capture { path: path.to_owned(), problem }
}

fn no_ethernet(path: &Path) -> BadInput {
    bad(path, "its frames are not Ethernet's, and functions get no others".to_owned())
}

/// Where frames are written to.
pub(super) struct Sink(PcapWriter<BufWriter<Box<dyn Write + Send>>>);

impl Sink {
    /// A file, made anew; or nothing at all.
    pub(super) fn new(path: Option<&Path>) -> Result<Self, BadInput> {
        let to: Box<dyn Write + Send> = match path {
            None => Box::new(std::io::sink()),
            Some(path) => {
                let made = File::create(path);
                Box::new(made.map_err(|error| BadInput::Unreadable { path: path.to_owned(), error })?)
            }
        };
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            snaplen: SNAPLEN,
            endianness: Endianness::native(),
            ..PcapHeader::default()
        };
        let written = PcapWriter::with_header(BufWriter::new(to), header);
        written.map(Self).map_err(|error| bad(path.unwrap_or(Path::new("-")), cannot_write(&error)))
    }

    /// Adds a frame.
    pub(super) fn write(&mut self, time: Duration, frame: &[u8]) -> Result<(), String> {
        let packet = PcapPacket::new(time, frame.len() as u32, frame);
        self.0.write_packet(&packet).map(|_| ()).map_err(|error| cannot_write(&error))
    }

    /// Sees to it that all is written.
    pub(super) fn finish(self) -> Result<(), String> {
        self.0.into_writer().flush().map_err(|error| format!("it cannot be written: {error}"))
    }
}

fn cannot_write(error: &PcapError) -> String {
    match error {
        PcapError::IoError(error) => format!("it cannot be written: {error}"),
        error => format!("it cannot be written: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;

    use super::*;

    fn frames(path: &Path) -> Result<Vec<Captured>, BadInput> {
        Frames::of(path)?.collect()
    }

    #[test]
    fn what_is_written_is_read_again_with_its_times() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let captured = [(1, 60_u8), (2, 200)]
            .map(|(s, len)| Captured { time: Duration::new(s, 123_456_789), frame: vec![len; usize::from(len)] });
        let mut sink = Sink::new(Some(file.path())).unwrap();
        captured.iter().for_each(|it| sink.write(it.time, &it.frame).unwrap());
        sink.finish().unwrap();
        assert_eq!(frames(file.path()).unwrap(), captured);
    }

    #[test]
    fn the_times_of_pcapng_are_in_units_of_their_interface() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = PcapNgWriter::new(File::create(file.path()).unwrap()).unwrap();
        for resolution in [None, Some(9), Some(0x80 | 10)] {
            let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
            interface.options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
            writer.write_block(&Block::InterfaceDescription(interface)).unwrap();
        }
        for (interface_id, units) in [(0, 1_500_000), (1, 1_500_000_000), (2, 1536)] {
            let block = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::from_nanos(units),
                original_len: 3,
                data: b"abc".into(),
                options: Vec::new(),
            };
            writer.write_block(&Block::EnhancedPacket(block)).unwrap();
        }
        let time = Duration::from_millis(1500);
        assert_eq!(frames(file.path()).unwrap(), vec![Captured { time, frame: b"abc".to_vec() }; 3]);
    }

    #[test]
    fn what_is_no_capture_or_no_ethernet_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, problem) in [(&b""[..], "it is neither pcap nor pcapng"), (&[0x55; 100], "it is neither pcap")] {
            std::fs::write(file.path(), bytes).unwrap();
            let error = frames(file.path()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: {problem}", file.path().display())), "{error}");
        }
        let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
        drop(PcapWriter::with_header(File::create(file.path()).unwrap(), header).unwrap());
        let error = frames(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("its frames are not Ethernet's, and functions get no others"), "{error}");
    }

    #[test]
    fn a_capture_that_ends_within_a_frame_is_damaged() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = Sink::new(Some(file.path())).unwrap();
        sink.write(Duration::ZERO, &[7; 100]).unwrap();
        sink.finish().unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        std::fs::write(file.path(), &whole[..whole.len() - 1]).unwrap();
        let error = frames(file.path()).unwrap_err().to_string();
        assert!(error.contains("it is damaged: "), "{error}");
    }
}
