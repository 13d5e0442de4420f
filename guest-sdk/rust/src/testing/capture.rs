//! Captures of frames in pcap files: [`Capture`].

use core::time::Duration;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use crate::clock;

/// The greatest length of a frame in a capture, as libpcap has it for Ethernet.
const FRAME_BYTES_MAX: u32 = 0x4_0000;
/// What a file of pcapng begins with.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Frames in a pcap file, as `tcpdump -w` writes it and Wireshark reads it. With the feature `pcap`.
///
/// ```
/// use pinion_sdk::testing::{Capture, Frame, Harness, Outcome};
/// # use pinion_sdk::{InitError, Packet, PacketFunction};
/// # struct Forward;
/// # impl PacketFunction for Forward {
/// #     fn init(_config: &[u8]) -> Result<Self, InitError> {
/// #         Ok(Self)
/// #     }
/// #     fn handle(&mut self, packet: Packet<'_>) {
/// #         packet.send();
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// # let path = |name: &str| std::env::temp_dir().join(format!("pinion-sdk-{}-{name}", std::process::id()));
/// # let (input, output) = (path("in.pcap"), path("out.pcap"));
/// # Capture::from_iter([Frame::echo_request("10.0.0.1", "10.0.0.2").bytes()]).write(&input)?;
/// let mut harness = Harness::<Forward>::new(b"").unwrap();
/// let mut left = Capture::default();
/// for verdict in harness.deliver(&Capture::read(&input)?.frames()) {
///     if verdict.outcome == Outcome::Sent {
///         left.push(&verdict.bytes);
///     }
/// }
/// left.write(&output)?;
/// # assert_eq!(Capture::read(&output)?.frames(), Capture::read(&input)?.frames());
/// # std::fs::remove_file(input)?;
/// # std::fs::remove_file(output)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// The frames, in the order of the file.
    pub records: Vec<Captured>,
}

/// A frame of a [`Capture`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When it was captured, since 1970. The time of the test's [`clock`](crate::clock) for frames that the test has captured.
    pub time: Duration,
    /// The frame was longer on the wire, by so many bytes.
    pub cut_bytes: u32,
    /// The frame, from its Ethernet header on.
    pub bytes: Vec<u8>,
}

impl Capture {
    /// Reads a pcap file of Ethernet frames.
    ///
    /// # Errors
    ///
    /// It cannot be read, is damaged, is of pcapng, or its frames are not Ethernet's.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        File::open(path).and_then(|file| Self::read_from(BufReader::new(file))).map_err(named)
    }

    /// Reads the bytes of a pcap file, as [`Capture::read`] does.
    ///
    /// # Errors
    ///
    /// As [`Capture::read`].
    pub fn read_from(mut reader: impl Read) -> io::Result<Self> {
        let mut magic = [0; 4];
        reader.read_exact(&mut magic).map_err(|error| damaged(PcapError::IoError(error)))?;
        if magic == PCAPNG {
            return Err(invalid("it is pcapng, and pcap is read: convert it by `editcap -F pcap`"));
        }
        let mut reader = PcapReader::new(magic.chain(reader)).map_err(damaged)?;
        let link = reader.header().datalink;
        if link != DataLink::ETHERNET {
            return Err(invalid(&format!(
                "its frames are of the link type {}, and only Ethernet is read",
                u32::from(link)
            )));
        }
        let mut records = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let PcapPacket { timestamp, orig_len, data } = packet.map_err(damaged)?;
            let cut_bytes = orig_len.saturating_sub(data.len() as u32);
            records.push(Captured { time: timestamp, cut_bytes, bytes: data.into_owned() });
        }
        Ok(Self { records })
    }

    /// Writes the frames as a pcap file with times in nanoseconds. A file that is there is replaced.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let mut writer = BufWriter::new(File::create(path).map_err(named)?);
        self.write_to(&mut writer).and_then(|()| writer.flush()).map_err(named)
    }

    /// Writes the bytes of a pcap file, as [`Capture::write`] does.
    ///
    /// # Errors
    ///
    /// They cannot be written, or a frame is longer than a capture's may be.
    pub fn write_to(&self, writer: impl Write) -> io::Result<()> {
        let header = PcapHeader {
            snaplen: FRAME_BYTES_MAX,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(writer, header).map_err(damaged)?;
        for Captured { time, cut_bytes, bytes } in &self.records {
            let packet = PcapPacket::new(*time, bytes.len() as u32 + cut_bytes, bytes);
            writer.write_packet(&packet).map_err(damaged)?;
        }
        Ok(())
    }

    /// Adds a frame, captured at the present time of the test's [`clock`](crate::clock).
    pub fn push(&mut self, frame: &[u8]) {
        let time = Duration::from_nanos(clock::now_ns());
        self.records.push(Captured { time, cut_bytes: 0, bytes: frame.to_vec() });
    }

    /// Returns the frames, to be delivered.
    #[must_use]
    pub fn frames(&self) -> Vec<&[u8]> {
        self.records.iter().map(|captured| captured.bytes.as_slice()).collect()
    }
}

impl<F: AsRef<[u8]>> FromIterator<F> for Capture {
    fn from_iter<I: IntoIterator<Item = F>>(frames: I) -> Self {
        let mut capture = Self::default();
        frames.into_iter().for_each(|frame| capture.push(frame.as_ref()));
        capture
    }
}

fn damaged(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => error,
        PcapError::IoError(_) | PcapError::IncompleteBuffer => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "it ends within its header or a frame")
        }
        other => invalid(&format!("it is no capture that can be read: {other}")),
    }
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::{Capture, Captured, FRAME_BYTES_MAX};
    use crate::testing::{Frame, advance_clock_ns};
    use core::time::Duration;

    fn written(capture: &Capture) -> Vec<u8> {
        let mut bytes = Vec::new();
        capture.write_to(&mut bytes).unwrap();
        bytes
    }

    fn refusal(bytes: &[u8]) -> String {
        Capture::read_from(bytes).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read_with_its_times() {
        let mut capture = Capture::default();
        advance_clock_ns(1_700_000_000_123_456_000);
        capture.push(&Frame::udp("10.0.0.1:5000", "10.0.0.2:53").bytes());
        advance_clock_ns(7_000);
        capture.push(&[7; 60]);
        capture.records.push(Captured {
            time: Duration::new(4_000_000_000, 999_999_999),
            cut_bytes: 1440,
            bytes: vec![1; 60],
        });
        assert_eq!(capture.records[1].time - capture.records[0].time, Duration::from_nanos(7_000));
        assert_eq!(Capture::read_from(&written(&capture)[..]).unwrap(), capture);
    }

    #[test]
    fn a_capture_of_another_program_is_read_in_either_byte_order_and_unit() {
        // Version 2.4, snaplen 262,144, Ethernet; a frame of 3 of 60 bytes, at 1 s and 5 units.
        let numbers = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0x4_0000, 1, 1, 5, 3, 60_u32];
        let little = [&numbers.map(u32::to_le_bytes).concat()[..], &[7, 8, 9]].concat();
        let numbers = [0xa1b2_3c4d, 0x0002_0004, 0, 0, 0x4_0000, 1, 1, 5, 3, 60_u32];
        let big = [&numbers.map(u32::to_be_bytes).concat()[..], &[7, 8, 9]].concat();
        for (file, nanos) in [(little, 5_000), (big, 5)] {
            let records = Capture::read_from(&file[..]).unwrap().records;
            assert_eq!(records, [Captured { time: Duration::new(1, nanos), cut_bytes: 57, bytes: vec![7, 8, 9] }]);
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_reason() {
        let file = written(&Capture::from_iter([[7; 60]]));
        for len in (0..24).chain([file.len() - 1]) {
            assert_eq!(refusal(&file[..len]), "it ends within its header or a frame");
        }
        let mut other_link = file.clone();
        other_link[20] = 101;
        assert_eq!(refusal(&other_link), "its frames are of the link type 101, and only Ethernet is read");
        let pcapng = [&[0x0a, 0x0d, 0x0d, 0x0a][..], &[0; 24]].concat();
        assert_eq!(refusal(&pcapng), "it is pcapng, and pcap is read: convert it by `editcap -F pcap`");
        assert!(refusal(&[7; 40]).starts_with("it is no capture that can be read: "));
        assert!(Capture::read("/no/such/file").unwrap_err().to_string().starts_with("/no/such/file: "));
    }

    #[test]
    fn a_frame_that_no_capture_holds_is_refused() {
        let too_long = Capture::from_iter([vec![0; FRAME_BYTES_MAX as usize + 1]]);
        assert!(too_long.write_to(Vec::new()).is_err());
    }
}
