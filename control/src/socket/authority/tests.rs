use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const END_STREAM: u8 = 1;
const DATA: u8 = 0;
const SETTINGS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a field that is added to the table, with its name as an index into the table.
fn indexed(place: u8, value: &[u8]) -> Vec<u8> {
    [&[0x40 | place, value.len() as u8], value].concat()
}

/// Encodes a field with a literal name. `kind` tells whether it is added to the table (0x40) or not (0, 0x10).
fn spelled(kind: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[kind, name.len() as u8], name, &[value.len() as u8], value].concat()
}

fn replaced(block: &[u8]) -> Vec<u8> {
    Fields::default().replaced(block).unwrap()
}

/// Returns the bytes that are passed on when the input arrives in these pieces.
fn passed<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> io::Result<Vec<u8>> {
    let (mut frames, mut out) = (Frames::default(), Vec::new());
    pieces.into_iter().try_for_each(|piece| frames.take(piece, &mut out))?;
    Ok(out)
}

#[test]
fn any_authority_of_a_request_is_replaced_and_nothing_else_is() {
    let (method, path) = (vec![0x83], indexed(4, b"/pinion.v1.Control/GetStatus"));
    for authority in [
        &b"localhost"[..],
        b"/run/pinion/pinion.sock",
        b"%2Frun%2Fpinion%2Fpinion.sock",
        b"unix:/run/pinion.sock",
        b"a b",
        b"\x00\xff",
        b"",
    ] {
        let block = [&method[..], &indexed(1, authority), &path].concat();
        assert_eq!(replaced(&block), [&method[..], &indexed(1, b"-"), &path].concat(), "{authority:?}");
    }
    // Huffman-coded.
    let coded = [0x41, 0x89, 0x62, 0xcb, 0x6a, 0x63, 0xca, 0xe8, 0x39, 0x3a, 0xff];
    assert_eq!(replaced(&[&coded[..], &path].concat()), [&indexed(1, b"-"), &path[..]].concat());
    // Values whose length takes one byte, and two.
    for len in [126, 127, 128, 300] {
        let length = if len < 127 {
            vec![len as u8]
        } else {
            vec![127, ((len - 127) & 0x7f) as u8 | 0x80, ((len - 127) >> 7) as u8]
        };
        let block = [&[0x41][..], &length, &vec![b'x'; len], &path].concat();
        assert_eq!(replaced(&block), [&indexed(1, b"-"), &path[..]].concat(), "{len}");
    }
}

#[test]
fn an_authority_is_recognised_in_every_encoding_of_its_name() {
    // Without indexing, or never indexed.
    assert_eq!(replaced(b"\x01\x03a b"), b"\x01\x01-");
    assert_eq!(replaced(b"\x11\x03a b"), b"\x11\x01-");
    // A literal name, plain and Huffman-coded.
    assert_eq!(replaced(&spelled(0x40, NAME, b"/x")), spelled(0x40, NAME, b"-"));
    let coded = [&[0x40, 0x88][..], NAME_CODED, b"\x02/x"].concat();
    assert_eq!(replaced(&coded), [&[0x40, 0x88][..], NAME_CODED, b"\x01-"].concat());
    // Without a value, from the static table.
    assert_eq!(replaced(&[0x81]), b"\x01\x01-");
    // Others are not.
    for other in [
        spelled(0x40, b":authoritx", b"/x"),
        spelled(0, b"authority", b"/x"),
        indexed(4, b"/x"),
        vec![0x82, 0x3f, 0x11],
    ] {
        assert_eq!(replaced(&other), other);
    }
}

#[test]
fn a_name_in_a_clients_table_is_recognised_while_it_can_be_referred_to() {
    let mut fields = Fields::default();
    let other = |number: usize| spelled(0x40, b"x", &[number as u8]);
    let mut first = indexed(1, b"/run/x.sock");
    first.extend((0..3).flat_map(other));
    assert!(fields.replaced(&first).unwrap().starts_with(&indexed(1, b"-")));
    // Three entries were added since: the name is at index 65, the others at 62 to 64, and nothing at 66.
    for (place, is_authority) in [(62, false), (64, false), (65, true), (66, false)] {
        let named = [&[0x0f, place - 15, 2][..], b"/x"].concat();
        let expected = if is_authority { vec![0x0f, place - 15, 1, b'-'] } else { named.clone() };
        assert_eq!(fields.replaced(&named).unwrap(), expected, "{place}");
    }
    // An indexed field has the replaced value.
    assert_eq!(fields.replaced(&[0x80 | 65]).unwrap(), [0x80 | 65]);
    // After 127 newer entries, one more evicts it.
    let more: Vec<u8> = (3..127).flat_map(other).collect();
    fields.replaced(&more).unwrap();
    assert_eq!(fields.replaced(b"\x0f\xae\x01\x02/x").unwrap(), b"\x0f\xae\x01\x01-");
    fields.replaced(&other(0)).unwrap();
    assert_eq!(fields.replaced(b"\x0f\xae\x01\x02/x").unwrap(), b"\x0f\xae\x01\x02/x");
}

#[test]
fn a_malformed_header_block_is_passed_on_for_the_library_to_refuse() {
    for block in [&[0x41][..], &[0x41, 5, b'a'], &[0x40, 0x7f], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0x3f, 0x80]] {
        assert_eq!(Fields::default().replaced(block), None, "{block:02x?}");
        let bytes = [PREFACE, &frame(HEADERS, END_HEADERS, 1, block)].concat();
        assert_eq!(passed([&bytes[..]]).unwrap(), bytes);
    }
    // Padding that is longer than the payload; a priority that is missing.
    for (flags, payload) in [(PADDED | END_HEADERS, &[9, 0x82][..]), (PRIORITY | END_HEADERS, &[0, 0]), (PADDED, &[])] {
        let bytes = [PREFACE, &frame(HEADERS, flags, 1, payload)].concat();
        assert_eq!(passed([&bytes[..]]).unwrap(), bytes);
    }
}

#[test]
fn a_header_block_is_reassembled_from_its_frames_without_padding_and_with_its_priority() {
    let block = [&[0x83][..], &indexed(1, b"/run/x.sock"), &indexed(4, b"/a/b")].concat();
    let expected = [&[0x83][..], &indexed(1, b"-"), &indexed(4, b"/a/b")].concat();
    let priority = [0, 0, 0, 0, 15];
    let padded = [&[3][..], &priority, &block[..4], &[0; 3]].concat();
    let bytes = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]),
        &frame(HEADERS, END_STREAM | PADDED | PRIORITY, 1, &padded),
        &frame(CONTINUATION, 0, 1, &block[4..9]),
        &frame(CONTINUATION, END_HEADERS, 1, &block[9..]),
        &frame(DATA, END_STREAM, 1, &[0; 5]),
    ]
    .concat();
    let expected = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]),
        &frame(HEADERS, END_STREAM | PRIORITY | END_HEADERS, 1, &[&priority[..], &expected].concat()),
        &frame(DATA, END_STREAM, 1, &[0; 5]),
    ]
    .concat();
    assert_eq!(passed([&bytes[..]]).unwrap(), expected);
    assert_eq!(passed(bytes.chunks(1)).unwrap(), expected);
}

#[test]
fn a_header_block_that_is_longer_than_a_frame_is_passed_on_in_several() {
    let value = vec![b'v'; 120];
    let long: Vec<u8> = (0..200).flat_map(|_| spelled(0, b"x-long", &value)).collect();
    let parts: Vec<&[u8]> = long.chunks(PAYLOAD_BYTES_MAX).collect();
    let [first, second] = parts[..] else { panic!("{} parts", parts.len()) };
    let bytes = [PREFACE, &frame(HEADERS, END_STREAM, 1, first), &frame(CONTINUATION, END_HEADERS, 1, second)].concat();
    assert_eq!(passed([&bytes[..]]).unwrap(), bytes);
}

#[test]
fn a_frame_between_the_parts_of_a_header_block_is_left_for_the_library_to_refuse() {
    for between in
        [frame(DATA, 0, 1, &[1]), frame(HEADERS, END_HEADERS, 3, &[0x82]), frame(CONTINUATION, 0, 3, &[0x82])]
    {
        let bytes = [PREFACE, &frame(HEADERS, 0, 1, &[0x82, 0x84]), &between].concat();
        assert_eq!(passed([&bytes[..]]).unwrap(), bytes);
    }
    // A frame that is too long is passed on as well.
    let bytes = [PREFACE, &frame(HEADERS, END_HEADERS, 1, &vec![0x82; PAYLOAD_BYTES_MAX + 1])].concat();
    assert_eq!(passed([&bytes[..]]).unwrap(), bytes);
}

#[test]
fn an_endless_header_block_ends_its_connection_before_it_uses_much_memory() {
    let mut bytes = [PREFACE, &frame(HEADERS, 0, 1, &[0x82])].concat();
    (0..BLOCK_FRAMES_MAX).for_each(|_| bytes.extend(frame(CONTINUATION, 0, 1, &[])));
    assert_eq!(passed([&bytes[..]]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let mut bytes = [PREFACE, &frame(HEADERS, 0, 1, &[0x82])].concat();
    (0..4).for_each(|_| bytes.extend(frame(CONTINUATION, 0, 1, &[0x82; PAYLOAD_BYTES_MAX])));
    assert_eq!(passed([&bytes[..]]).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

proptest! {
    #[test]
    fn the_output_does_not_depend_on_how_the_input_is_split(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        block in prop::collection::vec(any::<u8>(), 0..100),
        piece in 1..50_usize,
    ) {
        let bytes = [PREFACE, &frame(HEADERS, END_HEADERS, 1, &block), &bytes].concat();
        let (whole, pieces) = (passed([&bytes[..]]), passed(bytes.chunks(piece)));
        prop_assert_eq!(whole.is_ok(), pieces.is_ok());
        if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
            prop_assert_eq!(whole, pieces);
        }
    }

    #[test]
    fn a_header_block_grows_only_by_its_empty_authorities(
        block in prop::collection::vec(prop_oneof![Just(0x41_u8), Just(0x81), Just(1), 0..8_u8, any::<u8>()], 0..60),
    ) {
        if let Some(replaced) = Fields::default().replaced(&block) {
            prop_assert!(replaced.len() <= 3 * block.len());
            // Nothing is left to be replaced.
            prop_assert_eq!(Fields::default().replaced(&replaced), Some(replaced));
        }
    }
}

#[tokio::test]
async fn written_bytes_are_unchanged_and_received_bytes_are_read_to_their_end() {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let mut near = AnyAuthority::new(near);
    near.write_all(b"an answer").await.unwrap();
    near.flush().await.unwrap();
    let mut answer = [0; 9];
    far.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"an answer");
    let request =
        [PREFACE, &frame(HEADERS, END_HEADERS, 1, &indexed(1, b"/x")), &frame(DATA, END_STREAM, 1, &[7; 9000])]
            .concat();
    far.write_all(&request).await.unwrap();
    drop(far);
    let mut read = Vec::new();
    near.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, passed([&request[..]]).unwrap());
}
