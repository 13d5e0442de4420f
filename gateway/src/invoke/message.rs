//! Messages and answers as frames: the only place that writes and reads their header.

use pinion_abi::{
    MESSAGE_CALL_AT, MESSAGE_ETHERTYPE, MESSAGE_HEADER_BYTES, MESSAGE_PAYLOAD_BYTES_MAX, MESSAGE_TOKEN_AT,
    MESSAGE_VERSION, MESSAGE_VERSION_AT,
};

/// Addresses of stations that do not exist, for functions that look at addresses. Locally administered.
const TO: [u8; 6] = [0x02, b'P', b'I', b'N', 0, 1];
const FROM: [u8; 6] = [0x02, b'P', b'I', b'N', 0, 0];

/// Identifies a call. Its message and its answer carry this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallRef {
    /// The call's place in the table.
    pub(super) place: u32,
    /// A secret of this call, which cannot be guessed.
    pub(super) token: u64,
}

/// Writes a message into a buffer. Returns its length, or `None` if the buffer is too small.
pub(super) fn write(space: &mut [u8], call: CallRef, payload: &[u8]) -> Option<u32> {
    let len = MESSAGE_HEADER_BYTES + payload.len();
    let (header, rest) = space.get_mut(..len)?.split_first_chunk_mut::<MESSAGE_HEADER_BYTES>()?;
    *header = [0; MESSAGE_HEADER_BYTES];
    header[..6].copy_from_slice(&TO);
    header[6..12].copy_from_slice(&FROM);
    header[12..14].copy_from_slice(&MESSAGE_ETHERTYPE.to_be_bytes());
    header[MESSAGE_VERSION_AT] = MESSAGE_VERSION;
    header[MESSAGE_TOKEN_AT..MESSAGE_TOKEN_AT + 8].copy_from_slice(&call.token.to_le_bytes());
    header[MESSAGE_CALL_AT..MESSAGE_CALL_AT + 4].copy_from_slice(&call.place.to_le_bytes());
    rest.copy_from_slice(payload);
    Some(len as u32)
}

/// Returns which call a frame answers, and the payload; `None` if the frame is too short or too long for an answer.
pub(super) fn read(frame: &[u8]) -> Option<(CallRef, &[u8])> {
    let (header, payload) = frame.split_first_chunk::<MESSAGE_HEADER_BYTES>()?;
    let token = u64::from_le_bytes(*header[MESSAGE_TOKEN_AT..].first_chunk()?);
    let place = u32::from_le_bytes(*header[MESSAGE_CALL_AT..].first_chunk()?);
    (payload.len() <= MESSAGE_PAYLOAD_BYTES_MAX).then_some((CallRef { place, token }, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_lies_where_the_contract_says() {
        let mut space = [0xff; 64];
        let call = CallRef { place: 0x0102_0304, token: 0x1122_3344_5566_7788 };
        assert_eq!(write(&mut space, call, b"hello"), Some(37));
        let expected =
            b"\x02PIN\0\x01\x02PIN\0\0\x88\xb5\x01\0\x88\x77\x66\x55\x44\x33\x22\x11\x04\x03\x02\x01\0\0\0\0hello";
        assert_eq!(space[..37], expected[..]);
        assert_eq!(read(&space[..37]), Some((call, &b"hello"[..])));
    }

    #[test]
    fn a_frame_too_short_or_too_long_is_no_answer() {
        assert_eq!(read(&[0; MESSAGE_HEADER_BYTES - 1]), None);
        assert!(read(&[0; MESSAGE_HEADER_BYTES]).is_some());
        let longest = MESSAGE_HEADER_BYTES + MESSAGE_PAYLOAD_BYTES_MAX;
        assert!(read(&vec![0; longest]).is_some());
        assert_eq!(read(&vec![0; longest + 1]), None);
        assert_eq!(write(&mut [0; 36], CallRef { place: 0, token: 0 }, b"hello"), None);
    }
}
