//! A reply of HTTP/1.1 that is being received (RFC 9112), with the status 200 and a body of stated length.

use anyhow::{Context, ensure};

const HEAD_END: &[u8] = b"\r\n\r\n";
const STATUS: &[u8] = b"HTTP/1.1 200 ";

/// A reply, as much of it as has come.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// Where what comes is appended.
    pub(crate) bytes: Vec<u8>,
}

impl Reply {
    /// Returns the body, if it is there as a whole.
    ///
    /// # Errors
    /// It is no reply of this kind, or has more bytes than it states.
    pub(crate) fn body(&self) -> anyhow::Result<Option<&[u8]>> {
        let Some(end) = self.bytes.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END) else { return Ok(None) };
        let (head, body) = (&self.bytes[..end], &self.bytes[end + HEAD_END.len()..]);
        let text = || String::from_utf8_lossy(head).into_owned();
        ensure!(head.starts_with(STATUS), "a reply is {:?}", text());
        let length = content_length(head).with_context(|| format!("a reply has no length: {:?}", text()))?;
        ensure!(body.len() <= length, "a reply has {} bytes, and states {length}", body.len());
        Ok((body.len() == length).then_some(body))
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        let value = name.eq_ignore_ascii_case(b"content-length").then_some(&value[1..])?;
        str::from_utf8(value).ok()?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 5\r\n\r\nhello";

    fn received(bytes: &[u8]) -> Reply {
        Reply { bytes: bytes.to_vec() }
    }

    #[test]
    fn a_reply_has_its_body_when_its_last_byte_is_there() {
        for len in 0..OK.len() {
            assert_eq!(received(&OK[..len]).body().unwrap(), None, "{len} bytes");
        }
        assert_eq!(received(OK).body().unwrap(), Some(&b"hello"[..]));
        assert_eq!(received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").body().unwrap(), Some(&b""[..]));
    }

    #[test]
    fn another_status_no_length_and_too_many_bytes_are_errors() {
        assert!(received(&[OK, b"x"].concat()).body().is_err());
        assert!(received(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n").body().is_err());
        assert!(received(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").body().is_err());
    }
}
