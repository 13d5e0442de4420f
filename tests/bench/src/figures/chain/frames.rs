//! The frames that are sent through chains, and files of them.
//!
//! ```text
//!   Ethernet: to the node, from the client | IPv4 | UDP, one source port per flow | flow, sequence number, filling
//! ```
//!
//! Every byte of a frame follows from its size, flow and sequence number, so each frame can be checked on its own.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// The MAC address that `net_pcap` gives to its first port.
pub(super) const NODE_MAC: [u8; 6] = [0x02, 0x70, 0x63, 0x61, 0x70, 0x00];
/// The address that frames are sent to.
pub(super) const NODE_ADDRESS: &str = "10.77.0.2";
/// The number of flows.
pub(super) const FLOWS: u32 = 16;
/// The frame's identity begins after these headers: Ethernet, IPv4, UDP.
const HEADERS_BYTES: usize = 14 + 20 + 8;
/// The shortest frame: the headers, a flow and a sequence number, and no less than Ethernet allows.
pub(super) const SIZE_MIN: u16 = 60;
/// The longest frame without a VLAN tag, without its checksum.
pub(super) const SIZE_MAX: u16 = 1514;

const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const OTHER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];
const FIRST_SOURCE_PORT: u16 = 10_000;
const DESTINATION_PORT: u16 = 9;

/// The identity of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) flow: u32,
    pub(super) sequence: u64,
}

impl Identity {
    /// Returns the frames of a source that rotates through its flows.
    pub(super) fn nth(number: u64) -> Self {
        Self { flow: (number % u64::from(FLOWS)) as u32, sequence: number / u64::from(FLOWS) }
    }

    /// Returns the frame as it is sent to the node.
    pub(super) fn frame(self, size: u16) -> Vec<u8> {
        let size = usize::from(size);
        let mut frame = Vec::with_capacity(size);
        frame.extend(NODE_MAC);
        frame.extend(CLIENT_MAC);
        frame.extend(0x0800_u16.to_be_bytes());
        frame.extend(ipv4_header((size - 14) as u16));
        for field in [FIRST_SOURCE_PORT + self.flow as u16, DESTINATION_PORT, (size - 34) as u16, 0] {
            frame.extend(field.to_be_bytes());
        }
        frame.extend(self.flow.to_be_bytes());
        frame.extend(self.sequence.to_be_bytes());
        let filling = (frame.len()..size).map(|at| (at as u64 * 7 + self.sequence * 31 + u64::from(self.flow)) as u8);
        frame.extend(filling);
        frame
    }

    /// Returns the identity that this frame states, if the frame is long enough and names an existing flow.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let flow = frame.get(HEADERS_BYTES..HEADERS_BYTES + 4)?;
        let sequence = frame.get(HEADERS_BYTES + 4..HEADERS_BYTES + 12)?;
        let flow = u32::from_be_bytes(flow.try_into().expect("four bytes"));
        let sequence = u64::from_be_bytes(sequence.try_into().expect("eight bytes"));
        (flow < FLOWS).then_some(Self { flow, sequence })
    }

    /// Returns the frame as it must be after so many functions that swap its MAC addresses.
    pub(super) fn frame_after(self, size: u16, swaps: usize) -> Vec<u8> {
        let mut frame = self.frame(size);
        if swaps % 2 == 1 {
            frame[..12].rotate_left(6);
        }
        frame
    }
}

/// Returns a frame for another station: the node drops it as `not-for-us`.
pub(super) fn filler() -> Vec<u8> {
    let mut frame = Identity { flow: 0, sequence: 0 }.frame(SIZE_MIN);
    frame[..6].copy_from_slice(&OTHER_MAC);
    frame
}

fn ipv4_header(len: u16) -> [u8; 20] {
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&len.to_be_bytes());
    header[6] = 0x40; // not to be fragmented
    header[8] = 64;
    header[9] = 17; // UDP
    header[12..16].copy_from_slice(&[10, 77, 0, 11]);
    header[16..20].copy_from_slice(&[10, 77, 0, 2]);
    let checksum = checksum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Returns the header of a pcap file of Ethernet frames, in this machine's byte order.
pub(super) fn pcap_header() -> Vec<u8> {
    let words = [MAGIC_MICROSECONDS, 0x0004_0002, 0, 0, 65_535, 1];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Appends a frame to the bytes of a pcap file.
pub(super) fn add_record(file: &mut Vec<u8>, frame: &[u8]) {
    let len = frame.len() as u32;
    file.extend([0, 0, len, len].iter().flat_map(|word| word.to_ne_bytes()));
    file.extend(frame);
}

/// Writes a file of the first `count` frames.
pub(super) fn write_pcap(path: &Path, size: u16, count: u64) -> anyhow::Result<()> {
    let mut file = pcap_header();
    (0..count).for_each(|number| add_record(&mut file, &Identity::nth(number).frame(size)));
    fs::write(path, file).with_context(|| path.display().to_string())
}

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const PCAP_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;

/// Passes the frames of a pcap file to `take`, in their order.
pub(super) fn for_each_frame(file: &[u8], mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
    let magic = file.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    anyhow::ensure!(
        file.len() >= PCAP_HEADER_BYTES && matches!(magic, Some(MAGIC_MICROSECONDS | MAGIC_NANOSECONDS)),
        "it is no pcap file of this machine's byte order"
    );
    let mut rest = &file[PCAP_HEADER_BYTES..];
    while !rest.is_empty() {
        let frame = rest.split_at_checked(RECORD_HEADER_BYTES).and_then(|(header, after)| {
            let len = u32::from_ne_bytes(header[8..12].try_into().expect("four bytes"));
            after.split_at_checked(len as usize)
        });
        let (frame, after) = frame.context("it ends within a frame")?;
        take(frame);
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_size_and_identity() {
        for size in [SIZE_MIN, 64, 1024, SIZE_MAX] {
            let identity = Identity { flow: 3, sequence: 70_000 };
            let frame = identity.frame(size);
            assert_eq!(frame.len(), usize::from(size));
            assert_eq!(Identity::of(&frame), Some(identity));
        }
    }

    #[test]
    fn the_headers_are_valid() {
        let frame = Identity { flow: 3, sequence: 9 }.frame(64);
        assert_eq!(checksum(&frame[14..34]), 0, "a right header sums up to nothing");
        assert_eq!(frame[16..18], 50_u16.to_be_bytes(), "the length of the IPv4 packet");
        assert_eq!(frame[34..36], 10_003_u16.to_be_bytes(), "a source port per flow");
        assert_eq!(frame[38..40], 30_u16.to_be_bytes(), "the length of the UDP datagram");
    }

    #[test]
    fn frames_of_one_flow_differ_in_their_filling() {
        let frames = [1, 2].map(|sequence| Identity { flow: 0, sequence }.frame(64));
        assert_ne!(frames[0][54..], frames[1][54..]);
    }

    #[test]
    fn two_swaps_are_none() {
        let identity = Identity::nth(17);
        assert_eq!(identity.frame_after(64, 2), identity.frame(64));
        let swapped = identity.frame_after(64, 3);
        assert_eq!((&swapped[..6], &swapped[6..12]), (&CLIENT_MAC[..], &NODE_MAC[..]));
        assert_eq!(swapped[12..], identity.frame(64)[12..]);
    }

    #[test]
    fn flows_take_turns() {
        assert_eq!(Identity::nth(0), Identity { flow: 0, sequence: 0 });
        assert_eq!(Identity::nth(17), Identity { flow: 1, sequence: 1 });
    }

    #[test]
    fn a_short_frame_and_one_without_a_flow_have_no_identity() {
        assert_eq!(Identity::of(&[0; 50]), None);
        assert_eq!(Identity::of(&Identity { flow: FLOWS, sequence: 0 }.frame(64)), None);
    }

    #[test]
    fn a_file_gives_its_frames_back_in_their_order() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write_pcap(file.path(), 64, 40).unwrap();
        let mut numbers = 0..40_u64;
        for_each_frame(&fs::read(file.path()).unwrap(), |frame| {
            assert_eq!(frame, Identity::nth(numbers.next().unwrap()).frame(64));
        })
        .unwrap();
        assert_eq!(numbers.next(), None);
    }

    #[test]
    fn a_file_that_ends_within_a_frame_is_refused() {
        let mut file = pcap_header();
        add_record(&mut file, &filler());
        file.pop();
        assert_eq!(for_each_frame(&file, |_| {}).unwrap_err().to_string(), "it ends within a frame");
    }
}
