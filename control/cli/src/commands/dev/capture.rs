//! Captures of Ethernet frames. Reads pcap and pcapng as far as libpcap does; writes pcap with nanoseconds.
//!
//! Every record of a capture is a frame for the function, or is left out for a reason that is counted. Nothing after
//! the first damage can be read: the frames before it are delivered, as by `tcpdump -r`, and then the damage is
//! reported.
//!
//! | file | what it holds |
//! |---|---|
//! | `fields` | numbers in either byte order |
//! | `pcap`, `pcapng` | the two formats |
//! | `sink` | the output file |

mod fields;
mod pcap;
mod pcapng;
mod sink;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use self::pcap::Pcap;
use self::pcapng::PcapNg;
pub(super) use self::sink::Sink;
use super::BadInput;

/// The longest frame that libpcap accepts in an Ethernet capture.
const FRAME_BYTES_MAX: u32 = 0x4_0000;
/// The link type number of Ethernet in captures.
const ETHERNET: u32 = 1;
/// The name of standard input, as for `tcpdump -r`.
const STANDARD_INPUT: &str = "-";

/// A frame, and its capture time since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Captured {
    pub(super) time: Time,
    pub(super) frame: Vec<u8>,
    /// The frame was longer on the wire than in the capture.
    pub(super) is_cut: bool,
}

/// A time that a pcap file can represent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) since_1970: Duration,
    /// The record's own time is before 1970 or after February 2106, and this is the nearest representable time.
    pub(super) is_clamped: bool,
}

impl Time {
    /// Creates a time from whole seconds and nanoseconds, which may be more than a second.
    fn new(seconds: i128, nanos: u64) -> Self {
        const NANOS: u64 = 1_000_000_000;
        let seconds = seconds + i128::from(nanos / NANOS);
        match u32::try_from(seconds) {
            Ok(whole) => Self { since_1970: Duration::new(whole.into(), (nanos % NANOS) as u32), is_clamped: false },
            Err(_) if seconds < 0 => Self { since_1970: Duration::ZERO, is_clamped: true },
            Err(_) => Self { since_1970: Duration::new(u32::MAX.into(), NANOS as u32 - 1), is_clamped: true },
        }
    }
}

/// One record of a capture, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Frame(Captured),
    LeftOut(LeftOut),
    /// A block of pcapng of an unknown type.
    UnknownBlock,
}

/// Why the function does not get a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LeftOut {
    /// It is from an interface with another link type.
    NotEthernet,
    /// It has no bytes.
    Empty,
    /// It has more bytes than libpcap reads, or than a port accepts.
    TooLong,
}

impl LeftOut {
    /// Returns the text for the output.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::NotEthernet => "not-ethernet",
            Self::Empty => "empty",
            Self::TooLong => "too-long",
        }
    }
}

/// Why the rest cannot be read.
#[derive(Debug)]
enum Failure {
    Read(io::Error),
    Damaged(String),
    /// It has an unsupported version.
    OtherVersion(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// A capture that can be read several times.
pub(super) struct Capture {
    path: PathBuf,
    file: File,
}

impl Capture {
    /// Opens a file. A pipe, `-` or another non-regular file is copied into a temporary file first.
    pub(super) fn open(path: &Path) -> Result<Self, BadInput> {
        let unreadable = |error| BadInput::Unreadable { path: path.to_owned(), error };
        let file = if path == Path::new(STANDARD_INPUT) {
            copied(io::stdin().lock()).map_err(unreadable)?
        } else {
            let file = File::open(path).map_err(unreadable)?;
            let kind = file.metadata().map_err(unreadable)?.file_type();
            if kind.is_file() || kind.is_dir() { file } else { copied(file).map_err(unreadable)? }
        };
        Ok(Self { path: path.to_owned(), file })
    }

    /// Returns a reader of its records, from the first one on. Only one such reader may be used at a time.
    pub(super) fn records(&self) -> Result<Records, BadInput> {
        let path = &self.path;
        let unreadable = |error| BadInput::Unreadable { path: path.clone(), error };
        let mut file = self.file.try_clone().map_err(unreadable)?;
        file.rewind().map_err(unreadable)?;
        Records::of(path, BufReader::new(file))
    }
}

/// Copies the bytes to a temporary file, which is removed when it is closed.
fn copied(mut from: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut from, &mut file)?;
    Ok(file)
}

/// Reads a capture, record by record. Ends after an error.
pub(super) struct Records<R = BufReader<File>> {
    path: PathBuf,
    format: Option<Format<R>>,
    /// The number of records read.
    count: u64,
}

enum Format<R> {
    Pcap(Pcap<R>),
    PcapNg(PcapNg<R>),
}

impl<R: Read> Records<R> {
    fn of(path: &Path, reader: R) -> Result<Self, BadInput> {
        let format = match Format::open(reader) {
            Ok(Some(Format::Pcap(pcap))) if pcap.link_type() != ETHERNET => return Err(no_ethernet(path)),
            Ok(Some(format)) => format,
            Ok(None) => {
                let problem = "it is neither pcap nor pcapng: it does not begin as either does".to_owned();
                return Err(BadInput::Capture { path: path.to_owned(), problem });
            }
            Err(failure) => return Err(failed(path, failure)),
        };
        Ok(Self { path: path.to_owned(), format: Some(format), count: 0 })
    }
}

impl<R: Read> Format<R> {
    /// Returns none if it is neither format.
    fn open(mut reader: R) -> Result<Option<Self>, Failure> {
        let Ok(magic) = <[u8; 4]>::try_from(fields::up_to(&mut reader, 4)?) else { return Ok(None) };
        if magic == pcapng::SECTION.to_ne_bytes() {
            return Ok(Some(Self::PcapNg(PcapNg::open(reader)?)));
        }
        Ok(Pcap::open(magic, reader)?.map(Self::Pcap))
    }

    fn next(&mut self) -> Result<Option<Record>, Failure> {
        match self {
            Self::Pcap(pcap) => pcap.next(),
            Self::PcapNg(pcap) => pcap.next(),
        }
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = Result<Record, BadInput>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.format.as_mut()?.next() {
            Ok(Some(record)) => {
                self.count += u64::from(record != Record::UnknownBlock);
                return Some(Ok(record));
            }
            Ok(None) => self.format = None,
            Err(failure) => {
                self.format = None;
                let failure = match failure {
                    Failure::Damaged(what) => Failure::Damaged(format!("behind record {}, {what}", self.count)),
                    other => other,
                };
                return Some(Err(failed(&self.path, failure)));
            }
        }
        None
    }
}

/// Returns the maximum length of a frame from a file's snaplen. 0, and values beyond an `int`, mean no limit.
fn bound(snaplen: u32) -> u32 {
    match snaplen {
        1..=0x7fff_ffff => snaplen,
        _ => FRAME_BYTES_MAX,
    }
}

/// Creates a record of an Ethernet frame with these bytes, and this length on the wire.
fn record(time: Time, frame: Vec<u8>, wire_bytes: u32) -> Record {
    match frame.len() {
        0 => Record::LeftOut(LeftOut::Empty),
        len => Record::Frame(Captured { time, frame, is_cut: len < wire_bytes as usize }),
    }
}

fn failed(path: &Path, failure: Failure) -> BadInput {
    let path = path.to_owned();
    match failure {
        Failure::Read(error) => BadInput::Unreadable { path, error },
        Failure::Damaged(what) => BadInput::Capture { path, problem: format!("it is damaged: {what}") },
        Failure::OtherVersion(problem) => BadInput::Capture { path, problem },
    }
}

pub(super) fn no_ethernet(path: &Path) -> BadInput {
    let problem = "its frames are not Ethernet's, and functions get no others".to_owned();
    BadInput::Capture { path: path.to_owned(), problem }
}
