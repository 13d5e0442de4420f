//! Compares the readers with libpcap's own reader, on captures built byte by byte.

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::fields::Order;
use super::*;

const MICROS: u32 = 0xa1b2_c3d4;
const NANOS: u32 = 0xa1b2_3c4d;
const KUZNETZOV: u32 = 0xa1b2_cd34;
const BOTH: [Order; 2] = [Order::Little, Order::Big];

/// A file that is being built.
#[derive(Clone)]
struct Bytes(Order, Vec<u8>);

impl Bytes {
    fn u16(mut self, number: u16) -> Self {
        let bytes = if self.0 == Order::Little { number.to_le_bytes() } else { number.to_be_bytes() };
        self.1.extend(bytes);
        self
    }

    fn u32(mut self, number: u32) -> Self {
        let bytes = if self.0 == Order::Little { number.to_le_bytes() } else { number.to_be_bytes() };
        self.1.extend(bytes);
        self
    }

    fn u32s(self, numbers: &[u32]) -> Self {
        numbers.iter().fold(self, |bytes, number| bytes.u32(*number))
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.1.extend(bytes);
        self
    }

    /// Appends bytes padded to a multiple of 4.
    fn padded(self, bytes: &[u8]) -> Self {
        let mut padded = self.raw(bytes);
        padded.1.extend(&[0xaa; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
        padded
    }

    fn option(self, code: u16, value: &[u8]) -> Self {
        self.u16(code).u16(value.len() as u16).padded(value)
    }

    /// Appends a block of pcapng with this content.
    fn block(self, kind: u32, content: impl FnOnce(Self) -> Self) -> Self {
        let content = content(Self(self.0, Vec::new())).1;
        let len = content.len() as u32 + 12;
        self.u32s(&[kind, len]).raw(&content).u32(len)
    }

    fn section(self) -> Self {
        self.block(0x0a0d_0d0a, |block| block.u32(0x1a2b_3c4d).u16(1).u16(0).u32s(&[u32::MAX, u32::MAX]))
    }

    fn interface(self, link_type: u16, snaplen: u32, options: impl FnOnce(Self) -> Self) -> Self {
        self.block(1, |block| options(block.u16(link_type).u16(0).u32(snaplen)))
    }

    fn enhanced(self, interface: u32, time: u64, original: u32, frame: &[u8]) -> Self {
        let numbers = [interface, (time >> 32) as u32, time as u32, frame.len() as u32, original];
        self.block(6, |block| block.u32s(&numbers).padded(frame))
    }

    fn obsolete(self, interface: u16, time: u64, original: u32, frame: &[u8]) -> Self {
        let numbers = [(time >> 32) as u32, time as u32, frame.len() as u32, original];
        self.block(2, |block| block.u16(interface).u16(7).u32s(&numbers).padded(frame))
    }
}

fn pcap(order: Order, magic: u32, (major, minor): (u16, u16), snaplen: u32, link_type: u32) -> Bytes {
    Bytes(order, Vec::new()).u32(magic).u16(major).u16(minor).u32s(&[0, 0, snaplen, link_type])
}

/// Returns a pcap header of the current version.
fn plain() -> Bytes {
    pcap(Order::Little, MICROS, (2, 4), 65535, 1)
}

fn pcapng(order: Order) -> Bytes {
    Bytes(order, Vec::new()).section()
}

fn no_options(bytes: Bytes) -> Bytes {
    bytes
}

/// Returns the records read from these bytes, and the message on why the rest is not read.
fn read(bytes: &[u8]) -> (Vec<Record>, Option<String>) {
    let records = match Records::of(Path::new("in"), bytes) {
        Ok(records) => records,
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let (mut read, mut problem) = (Vec::new(), None);
    for record in records {
        match record {
            Ok(record) if problem.is_none() => read.push(record),
            Ok(_) => panic!("there is a record behind an error"),
            Err(error) => problem = Some(error.to_string()),
        }
    }
    (read, problem)
}

fn at(time: Duration, frame: &[u8], is_cut: bool) -> Record {
    Record::Frame(Captured { time: Time { since_1970: time, is_clamped: false }, frame: frame.to_vec(), is_cut })
}

fn whole(seconds: u64, nanos: u32, frame: &[u8]) -> Record {
    at(Duration::new(seconds, nanos), frame, false)
}

fn cut(seconds: u64, nanos: u32, frame: &[u8]) -> Record {
    at(Duration::new(seconds, nanos), frame, true)
}

/// Returns what tcpdump writes for a capture, with times in nanoseconds.
fn by_tcpdump(capture: &[u8]) -> Vec<u8> {
    let mut command = Command::new("tcpdump");
    command.args(["--time-stamp-precision=nano", "-r", "-", "-w", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("tcpdump can be run: `make install-test` installs it");
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // It stops reading at an error, so the write may fail.
        scope.spawn(move || _ = stdin.write_all(capture));
        child.wait_with_output().unwrap().stdout
    })
}

/// Checks that everything that libpcap reads is read here.
#[track_caller]
fn as_libpcap(capture: &[u8], expected: &[Record]) {
    assert_eq!(read(capture).0, expected);
    let (theirs, _) = read(&by_tcpdump(capture));
    assert_eq!(theirs, expected, "by tcpdump");
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_all_units_and_versions_that_libpcap_reads() {
    for order in BOTH {
        for (magic, nanos) in [(MICROS, 5000), (NANOS, 5)] {
            let file =
                pcap(order, magic, (2, 4), 65535, 1).u32s(&[7, 5, 3, 3]).raw(b"abc").u32s(&[8, 6, 1, 1]).raw(b"d");
            as_libpcap(&file.1, &[whole(7, nanos, b"abc"), whole(8, nanos / 5 * 6, b"d")]);
        }
        // Longer record headers.
        let file = pcap(order, KUZNETZOV, (2, 4), 65535, 1).u32s(&[7, 5, 3, 3, 1, 2]).raw(b"abc");
        as_libpcap(&file.1, &[whole(7, 5000, b"abc")]);
        // The original length comes first, up to version 2.2; in either order in 2.3.
        for (version, lengths) in [
            ((2, 0), [4, 3]),
            ((2, 2), [4, 3]),
            ((543, 0), [4, 3]),
            ((2, 3), [4, 3]),
            ((2, 3), [3, 4]),
            ((2, 4), [3, 4]),
        ] {
            let file = pcap(order, MICROS, version, 65535, 1).u32s(&[7, 5]).u32s(&lengths).raw(b"abc");
            as_libpcap(&file.1, &[cut(7, 5000, b"abc")]);
        }
    }
    for version in [(1, 2), (2, 5), (3, 0), (543, 1)] {
        let (records, problem) = read(&pcap(Order::Little, MICROS, version, 65535, 1).u32s(&[7, 5, 1, 1]).raw(b"a").1);
        let (major, minor) = version;
        let expected = format!("in: its version is {major}.{minor}, and 2.0 to 2.4 are read");
        assert_eq!((records, problem), (Vec::new(), Some(expected)));
    }
}

#[test]
fn bits_of_a_link_type_that_are_about_checksums_do_not_make_it_another_one() {
    for link_type in [0x2400_0001, 0x0400_0001, 0xf400_0001, 0xfc00_0001] {
        let file = pcap(Order::Little, MICROS, (2, 4), 65535, link_type).u32s(&[7, 5, 3, 3]).raw(b"abc");
        as_libpcap(&file.1, &[whole(7, 5000, b"abc")]);
    }
    for link_type in [0, 101, 113, 0x0100_0001, 0x2400_0065] {
        let (_, problem) = read(&pcap(Order::Little, MICROS, (2, 4), 65535, link_type).1);
        assert_eq!(problem.unwrap(), "in: its frames are not Ethernet's, and functions get no others");
    }
}

#[test]
fn a_truncated_frame_of_a_capture_is_read_as_cut() {
    let long = vec![9; 300];
    // As by `tcpdump -s 96`: the original length is above the file's limit.
    let file = pcap(Order::Little, MICROS, (2, 4), 96, 1).u32s(&[7, 5, 96, 1514]).raw(&long[..96]);
    as_libpcap(&file.1, &[cut(7, 5000, &long[..96])]);
    // Bytes beyond the file's limit are not part of the frame, and the next record begins after them.
    let file = pcap(Order::Big, MICROS, (2, 4), 96, 1).u32s(&[7, 5, 300, 300]).raw(&long).u32s(&[8, 0, 1, 1]).raw(b"d");
    as_libpcap(&file.1, &[cut(7, 5000, &long[..96]), whole(8, 0, b"d")]);
    // In Kuznetzov's variant with room for an Ethernet header.
    let file = pcap(Order::Little, KUZNETZOV, (2, 4), 96, 1).u32s(&[7, 5, 300, 300, 0, 0]).raw(&long);
    as_libpcap(&file.1, &[cut(7, 5000, &long[..110])]);
    // Without a limit, and with a captured length above the original one.
    for snaplen in [0, 0x8000_0000, u32::MAX] {
        let file = pcap(Order::Little, MICROS, (2, 4), snaplen, 1).u32s(&[7, 5, 300, 60]).raw(&long);
        as_libpcap(&file.1, &[whole(7, 5000, &long)]);
    }
    let file = pcapng(Order::Little).interface(1, 96, no_options).enhanced(0, 5, 1514, &long[..96]);
    as_libpcap(&file.1, &[cut(0, 5000, &long[..96])]);
}

#[test]
fn the_longest_frame_that_libpcap_takes_is_read_and_one_byte_more_is_damage() {
    let longest = vec![1; 0x4_0000];
    let file = pcap(Order::Little, MICROS, (2, 4), 0, 1).u32s(&[7, 5, 0x4_0000, 0x4_0000]).raw(&longest);
    as_libpcap(&file.1, &[whole(7, 5000, &longest)]);
    let file = plain().u32s(&[7, 5, 1, 1]).raw(b"a").u32s(&[7, 5, 0x4_0001, 0x4_0001]).raw(&longest).raw(b"a");
    let (records, problem) = read(&file.1);
    assert_eq!(records, [whole(7, 5000, b"a")]);
    assert_eq!(
        problem.unwrap(),
        "in: it is damaged: behind record 1, a frame is to have 262145 bytes, and 262144 are allowed"
    );
    // A block says where it ends, whatever is in it.
    let file = pcapng(Order::Little).interface(1, 0, no_options);
    let file = file.enhanced(0, 0, 0x4_0001, &[1; 0x4_0001]).enhanced(0, 0, 1, b"a");
    assert_eq!(read(&file.1), (vec![Record::LeftOut(LeftOut::TooLong), whole(0, 0, b"a")], None));
}

#[test]
fn a_file_that_ends_within_a_record_gives_those_before_and_then_the_damage() {
    for order in BOTH {
        let one = pcap(order, NANOS, (2, 4), 65535, 1).u32s(&[7, 5, 3, 3]).raw(b"abc");
        let two = one.clone().u32s(&[8, 5, 3, 3]).raw(b"def");
        let block = pcapng(order).interface(1, 0, no_options).enhanced(0, 5, 3, b"abc");
        let blocks = block.clone().enhanced(0, 6, 3, b"def");
        for (one, two, nanos) in [(one, two, 5), (block, blocks, 5000)] {
            let seconds = if nanos == 5 { 7 } else { 0 };
            for len in one.1.len()..two.1.len() {
                let capture = &two.1[..len];
                as_libpcap(capture, &[whole(seconds, nanos, b"abc")]);
                let (_, problem) = read(capture);
                assert_eq!(problem.is_some(), len > one.1.len(), "{len}");
                let sentence = "in: it is damaged: behind record 1, the file ends within ";
                assert!(problem.is_none_or(|problem| problem.starts_with(sentence)));
            }
            assert_eq!(read(&two.1).0.len(), 2);
        }
    }
    for len in 4..24 {
        assert_eq!(read(&plain().1[..len]).1.unwrap(), "in: it is damaged: the file ends within its header");
    }
}

#[test]
fn packets_of_pcapng_are_read_from_all_blocks_that_have_one() {
    for order in BOTH {
        let file = pcapng(order)
            .interface(1, 4, no_options)
            .interface(1, 4, |idb| idb.option(9, &[9]))
            .enhanced(1, 5_000_000_007, 4, b"abcd")
            .obsolete(1, 5_000_000_008, 5, b"efg")
            .block(3, |simple| simple.u32(3).padded(b"hij"))
            // As long as its interface allows.
            .block(3, |simple| simple.u32(1000).padded(b"klmn"))
            .obsolete(0, 5_000_007, 1, b"o");
        let expected =
            [whole(5, 7, b"abcd"), cut(5, 8, b"efg"), whole(0, 0, b"hij"), cut(0, 0, b"klmn"), whole(5, 7000, b"o")];
        as_libpcap(&file.1, &expected);
    }
}

#[test]
fn blocks_of_pcapng_without_packets_are_skipped() {
    for order in BOTH {
        let file = pcapng(order)
            // Reserved, and not 0; options that end with their block.
            .block(1, |idb| idb.u16(1).u16(0xbeef).u32(0).option(2, b"eth0").option(9, &[3]))
            .block(4, |names| names.u16(0).u16(0))
            .block(5, |statistics| statistics.u32s(&[0, 0, 0]).option(4, &[1; 8]))
            .block(6, |packet| {
                packet.u32s(&[0, 0, 5, 3, 3]).padded(b"abc").option(1, b"a comment").option(2, &[1, 0, 0, 0])
            })
            .block(9, |journal| journal.padded(b"MESSAGE=hello\n"))
            .block(10, |secrets| secrets.u32(0x544c_534b).u32(3).padded(b"key"))
            .block(0xbad, |own| own.u32(32473).padded(b"whatever"))
            .block(0x4000_0bad, |own| own.u32(32473))
            .enhanced(0, 6, 3, b"def");
        as_libpcap(&file.1, &[whole(0, 5_000_000, b"abc"), whole(0, 6_000_000, b"def")]);
        let file = file.block(0x7777, no_options).enhanced(0, 7, 3, b"ghi");
        let (records, problem) = read(&file.1);
        assert_eq!((records[2].clone(), problem), (Record::UnknownBlock, None));
        assert_eq!(records[3], whole(0, 7_000_000, b"ghi"));
    }
}

#[test]
fn a_section_has_interfaces_and_a_byte_order_of_its_own() {
    let first = pcapng(Order::Little).interface(1, 0, |idb| idb.option(9, &[9])).enhanced(0, 5, 1, b"a");
    let second = pcapng(Order::Little).interface(1, 0, no_options).enhanced(0, 5, 1, b"b");
    as_libpcap(&[&first.1[..], &second.1].concat(), &[whole(0, 5, b"a"), whole(0, 5000, b"b")]);
    // libpcap gives up at these, without need.
    let other = pcapng(Order::Big).interface(1, 0, no_options).enhanced(0, 5, 1, b"b");
    let expected = vec![whole(0, 5, b"a"), whole(0, 5000, b"b")];
    assert_eq!(read(&[&first.1[..], &other.1].concat()), (expected.clone(), None));
    let versions = Bytes(Order::Little, first.1.clone())
        .block(0x0a0d_0d0a, |block| block.u32(0x1a2b_3c4d).u16(1).u16(9).u32s(&[0, 0]).option(4, b"by hand"))
        .interface(1, 0, no_options)
        .enhanced(0, 5, 1, b"b");
    as_libpcap(&versions.1, &expected);
    // A section does not inherit the interfaces of the section before.
    let (records, problem) = read(&Bytes(Order::Little, first.1).section().enhanced(0, 5, 1, b"b").1);
    assert_eq!(records, [whole(0, 5, b"a")]);
    let sentence = "in: it is damaged: behind record 1, a frame is of interface 0, which nothing describes";
    assert_eq!(problem.unwrap(), sentence);
}

#[test]
fn frames_of_other_link_types_are_left_out_and_ethernet_frames_beside_them_are_read() {
    let file = pcapng(Order::Little)
        .interface(101, 0, no_options)
        .interface(1, 0, no_options)
        .enhanced(0, 5, 2, b"ip")
        .enhanced(1, 6, 2, b"et")
        .obsolete(0, 7, 2, b"ip")
        .block(3, |simple| simple.u32(2).padded(b"ip"))
        .enhanced(1, 8, 0, b"");
    let [other, empty] = [LeftOut::NotEthernet, LeftOut::Empty].map(Record::LeftOut);
    let expected = vec![other.clone(), whole(0, 6000, b"et"), other.clone(), other, empty.clone()];
    assert_eq!(read(&file.1), (expected, None));
    assert_eq!(read(&plain().u32s(&[7, 5, 0, 60]).1), (vec![empty], None));
}

#[test]
fn times_are_in_units_of_their_interface_from_its_offset_on() {
    let offset = |idb: Bytes, seconds: i64| {
        let bytes = if idb.0 == Order::Little { seconds.to_le_bytes() } else { seconds.to_be_bytes() };
        idb.option(14, &bytes)
    };
    for order in BOTH {
        for (unit, units, seconds, nanos) in [
            (6, 1_500_000, 1, 500_000_000),
            (0, 9, 9, 0),
            (3, 1_500, 1, 500_000_000),
            (9, 1_500_000_001, 1, 500_000_001),
            (12, 1_500_000_001_999, 1, 500_000_001),
            (19, 15_000_000_000_000_000_000, 1, 500_000_000),
            (0x80, 9, 9, 0),
            (0x80 | 10, 1536, 1, 500_000_000),
            (0x80 | 30, 3 << 29, 1, 500_000_000),
        ] {
            let file = pcapng(order).interface(1, 0, |idb| idb.option(9, &[unit]).option(0, b""));
            as_libpcap(&file.enhanced(0, units, 1, b"a").1, &[whole(seconds, nanos, b"a")]);
            let file = pcapng(order).interface(1, 0, |idb| offset(idb.option(9, &[unit]), 1_000_000));
            as_libpcap(&file.enhanced(0, units, 1, b"a").1, &[whole(1_000_000 + seconds, nanos, b"a")]);
        }
        // Units that libpcap does not support.
        for unit in [20, 38, 39, 127, 0x80 | 63, 0x80 | 64, 0x80 | 127] {
            let file = pcapng(order).interface(1, 0, |idb| idb.option(9, &[unit])).enhanced(0, 1, 1, b"a");
            assert_eq!(read(&file.1), (vec![whole(0, 0, b"a")], None), "{unit}");
        }
    }
    // More than a second in microseconds, in a file of a careless writer.
    assert_eq!(read(&plain().u32s(&[7, 1_500_000, 1, 1]).raw(b"a").1).0, [whole(8, 500_000_000, b"a")]);
}

#[test]
fn a_time_that_pcap_cannot_represent_becomes_the_nearest_one_and_is_marked() {
    let last = Duration::new(u32::MAX.into(), 999_999_999);
    let read_time = |unit: u8, offset: i64, units: u64| {
        let options = |idb: Bytes| idb.option(9, &[unit]).option(14, &offset.to_le_bytes());
        let file = pcapng(Order::Little).interface(1, 0, options).enhanced(0, units, 1, b"a");
        match &read(&file.1).0[..] {
            [Record::Frame(captured)] => captured.time,
            other => panic!("{other:?}"),
        }
    };
    let (fits, clamped) =
        (|time| Time { since_1970: time, is_clamped: false }, |time| Time { since_1970: time, is_clamped: true });
    assert_eq!(read_time(0, 0, u32::MAX.into()), fits(Duration::from_secs(u32::MAX.into())));
    assert_eq!(read_time(0, 0, 1 << 32), clamped(last));
    assert_eq!(read_time(0, 0, u64::MAX), clamped(last));
    assert_eq!(read_time(0, i64::MAX, u64::MAX), clamped(last));
    assert_eq!(read_time(6, 1 << 33, 0), clamped(last));
    assert_eq!(read_time(6, -1, 1_000_000), fits(Duration::ZERO));
    assert_eq!(read_time(6, -1, 999_999), clamped(Duration::ZERO));
    assert_eq!(read_time(0, i64::MIN, 0), clamped(Duration::ZERO));
    let file = pcap(Order::Little, MICROS, (2, 4), 0, 1).u32s(&[u32::MAX, u32::MAX, 1, 1]).raw(b"a");
    let Record::Frame(captured) = &read(&file.1).0[0] else { panic!("it is a frame") };
    assert_eq!(captured.time, clamped(last));
}

#[test]
fn damage_within_pcapng_is_named_and_the_frames_before_it_are_read() {
    let good = || pcapng(Order::Little).interface(1, 0, no_options).enhanced(0, 5, 1, b"a");
    for (file, sentence) in [
        (good().u32s(&[6, 8, 8]), "a block is to have 8 bytes: it must be 12 to 16777216, and a multiple of 4"),
        (good().u32s(&[6, 14, 0, 0]), "a block is to have 14 bytes"),
        (good().u32s(&[6, u32::MAX - 3, 0, 0]), "a block is to have 4294967292 bytes"),
        (good().u32s(&[5, 12, 16]), "a block has 12 bytes by its begin, and 16 by its end"),
        (good().block(6, |packet| packet.u32s(&[0, 0, 0, 1])), "a block of type 6 has 16 bytes only"),
        (good().block(2, |packet| packet.u32s(&[0, 0])), "a block of type 2 has 8 bytes only"),
        (good().block(3, no_options), "a block of type 3 has 0 bytes only"),
        (good().block(1, |idb| idb.u32(1)), "a block of type 1 has 4 bytes only"),
        (good().interface(1, 0, |idb| idb.u16(2).u16(9)), "a block of type 1 has 12 bytes only"),
        (good().interface(1, 0, |idb| idb.option(9, &[6, 6])), "an interface's unit of time has 2 bytes"),
        (good().interface(1, 0, |idb| idb.option(14, &[6])), "an interface's offset of times has 1 bytes"),
        (good().block(6, |packet| packet.u32s(&[0, 0, 0, 9, 9, 0])), "a frame is to have 9 bytes, and its block has 4"),
        (good().enhanced(1, 5, 1, b"a"), "a frame is of interface 1, which nothing describes"),
        (good().u32s(&[0x0a0d_0d0a, 28, 0x1111_1111]), "a section is none of pcapng's"),
        (good().u32s(&[0x0a0d_0d0a, 16, 0x1a2b_3c4d, 16]), "a section's header is too short"),
        (
            good().block(0x0a0d_0d0a, |block| block.u32(0x1a2b_3c4d).u16(2).u16(0).u32s(&[0, 0])),
            "a section is of version 2.0, and 1.0 and 1.2 are read",
        ),
    ] {
        let (records, problem) = read(&file.1);
        assert_eq!(records, [whole(0, 5000, b"a")], "{sentence}");
        assert!(problem.as_ref().is_some_and(|problem| problem.contains(sentence)), "{sentence}: {problem:?}");
        as_libpcap(&file.1, &records);
    }
    let mut end = good().1;
    end[24..28].fill(0xff);
    as_libpcap(&end, &[whole(0, 5000, b"a")]);
    let other =
        Bytes(Order::Big, Vec::new()).block(0x0a0d_0d0a, |block| block.u32(0x1a2b_3c4d).u16(1).u16(1).u32s(&[0, 0]));
    assert_eq!(read(&other.1).1.unwrap(), "in: a section is of version 1.1, and 1.0 and 1.2 are read");
}

#[test]
fn a_file_that_is_no_capture_is_refused_by_name() {
    for bytes in [&b""[..], b"abc", &[0x55; 100], &[0xa1, 0x2b, 0x3c, 0x4d], b"\x1f\x8b\x08\0\0\0\0\0"] {
        let (_, problem) = read(bytes);
        assert_eq!(problem.unwrap(), "in: it is neither pcap nor pcapng: it does not begin as either does");
    }
}

#[test]
fn written_captures_are_read_back_with_their_times_here_and_by_tcpdump() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let frames = [(1, vec![60; 60]), (u32::MAX.into(), vec![200; 200]), (3, vec![7; 0x4_0000])];
    let mut sink = Sink::new(Some(file.path())).unwrap();
    for (seconds, frame) in &frames {
        sink.write(Duration::new(*seconds, 123_456_789), frame).unwrap();
    }
    sink.finish().unwrap();
    let written = std::fs::read(file.path()).unwrap();
    as_libpcap(&written, &frames.map(|(seconds, frame)| whole(seconds, 123_456_789, &frame)));
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    assert!(Sink::new(Some(Path::new("/dev/full"))).err().unwrap().to_string().starts_with("/dev/full: "));
    assert!(
        Sink::new(Some(Path::new("/nonexistent/out"))).err().unwrap().to_string().starts_with("/nonexistent/out: ")
    );
    Sink::new(None).unwrap().finish().unwrap();
}

#[test]
fn a_capture_is_read_as_often_as_wanted_and_from_a_pipe_too() {
    let file = plain().u32s(&[7, 5, 3, 3]).raw(b"abc");
    let folder = tempfile::tempdir().unwrap();
    let (path, pipe) = (folder.path().join("in.pcap"), folder.path().join("pipe"));
    std::fs::write(&path, &file.1).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writing = std::thread::spawn({
        let (pipe, bytes) = (pipe.clone(), file.1.clone());
        move || std::fs::write(pipe, bytes).unwrap()
    });
    for path in [&path, &pipe] {
        let capture = Capture::open(path).unwrap();
        for _ in 0..2 {
            let records: Vec<Record> = capture.records().unwrap().map(Result::unwrap).collect();
            assert_eq!(records, [whole(7, 5000, b"abc")]);
        }
    }
    writing.join().unwrap();
    let error = Capture::open(folder.path()).unwrap().records().err().unwrap().to_string();
    assert!(error.contains("Is a directory"), "{error}");
}

/// Generates files of each kind, with a few records.
fn any_capture() -> impl Strategy<Value = Vec<u8>> {
    let order = prop_oneof![Just(Order::Little), Just(Order::Big)];
    (order, 0..6_usize).prop_map(|(order, kind)| {
        let long = [5; 200];
        match kind {
            0 => {
                pcap(order, MICROS, (2, 4), 96, 1).u32s(&[7, 5, 3, 3]).raw(b"abc").u32s(&[8, 6, 200, 900]).raw(&long).1
            }
            1 => pcap(order, NANOS, (2, 3), 0, 1).u32s(&[7, 5, 4, 3]).raw(b"abc").u32s(&[8, 6, 1, 1]).raw(b"d").1,
            2 => pcap(order, KUZNETZOV, (2, 4), 65535, 1).u32s(&[7, 5, 3, 3, 1, 2]).raw(b"abc").1,
            3 => {
                pcapng(order)
                    .interface(1, 0, |idb| idb.option(9, &[9]))
                    .enhanced(0, 5, 9, b"abc")
                    .obsolete(0, 6, 1, b"d")
                    .1
            }
            4 => {
                pcapng(order)
                    .interface(1, 4, no_options)
                    .block(3, |simple| simple.u32(9).padded(b"abcd"))
                    .section()
                    .interface(1, 4, no_options)
                    .enhanced(0, 5, 1, b"d")
                    .1
            }
            _ => {
                pcapng(order)
                    .interface(1, 0, no_options)
                    .block(5, |it| it.u32s(&[0; 3]))
                    .interface(101, 0, no_options)
                    .enhanced(1, 5, 3, b"abc")
                    .enhanced(0, 5, 3, b"def")
                    .1
            }
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any bytes, reading ends, with records in bounds and at most one problem.
    #[test]
    fn no_bytes_do_more_than_be_refused(
        mut bytes in any_capture(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        if is_cut {
            bytes.truncate(len.index(bytes.len()));
        }
        let (records, _) = read(&bytes);
        for record in records {
            if let Record::Frame(captured) = record {
                prop_assert!((1..=0x4_0000).contains(&captured.frame.len()));
            }
        }
    }
}

proptest! {
    // Each case runs a program.
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any bytes, the frames that libpcap reads are read here, and possibly more after them.
    #[test]
    fn of_a_damaged_capture_everything_that_libpcap_reads_is_read(
        mut bytes in any_capture(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        let frames = |records: Vec<Record>| {
            let frame = |record| match record {
                Record::Frame(captured) => Some(Some(captured.frame)),
                Record::LeftOut(LeftOut::Empty) => Some(None),
                _ => None,
            };
            records.into_iter().filter_map(frame).collect::<Vec<_>>()
        };
        let theirs = by_tcpdump(&bytes);
        // Frames of other link types are not read here.
        prop_assume!(theirs.get(20..24).is_none_or(|link_type| u32::from_ne_bytes(link_type.try_into().unwrap()) & 0x03ff_ffff == 1));
        let (ours, theirs) = (frames(read(&bytes).0), frames(read(&theirs).0));
        prop_assert!(ours.starts_with(&theirs), "{:02x?}: {:?}, and tcpdump {:?}", bytes, ours, theirs);
    }
}
