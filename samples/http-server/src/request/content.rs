//! The content of requests. No file wants any, so it is skipped, within a bound, to find where the next request begins.

use httparse::{EMPTY_HEADER, Status};

use super::{Content, FIELDS_MAX};

/// Fewest bytes of a content, with its chunks' lines, that are not skipped: the connection is closed instead.
pub const CONTENT_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a chunk's line.
const LINE_BYTES_MAX: usize = 256;
/// Most bytes of the fields after the last chunk.
const TRAILERS_BYTES_MAX: usize = 4 << 10;

/// The rest of a content.
#[derive(Debug)]
pub struct Rest {
    state: State,
    /// How many bytes may still be skipped.
    left_max: u64,
}

#[derive(Debug)]
enum State {
    Bytes(u64),
    ChunkLine,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    Over,
}

/// The content breaks the rules of RFC 9112, section 7.1, or is too long: the connection is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable;

impl Rest {
    /// Returns what follows a head, if something does.
    #[must_use]
    pub fn of(content: Content) -> Option<Self> {
        let state = match content {
            Content::None => return None,
            Content::Length(length) => State::Bytes(length),
            Content::Chunked => State::ChunkLine,
        };
        Some(Self { state, left_max: CONTENT_BYTES_MAX })
    }

    /// Returns whether it was skipped whole.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Skips what is there of it; returns how many of the bytes belong to it. Of a line that is not complete none do yet.
    ///
    /// # Errors
    ///
    /// It cannot be skipped.
    pub fn skip(&mut self, bytes: &[u8]) -> Result<usize, Unusable> {
        let mut at = 0;
        while let Some(count) = self.step(&bytes[at..])? {
            at += count;
            self.left_max = self.left_max.checked_sub(count as u64).ok_or(Unusable)?;
        }
        Ok(at)
    }

    /// Skips one part; returns its length, or none if there is nothing to skip yet.
    fn step(&mut self, bytes: &[u8]) -> Result<Option<usize>, Unusable> {
        let (count, next) = match self.state {
            State::Over => return Ok(None),
            // Nothing may be left of it, and then no byte is needed.
            State::Bytes(0) => (0, State::Over),
            State::Chunk(0) => (0, State::ChunkEnd),
            _ if bytes.is_empty() => return Ok(None),
            State::Bytes(left) | State::Chunk(left) => {
                let count = left.min(bytes.len() as u64);
                let is_chunk = matches!(self.state, State::Chunk(_));
                let rest = left - count;
                (count as usize, if is_chunk { State::Chunk(rest) } else { State::Bytes(rest) })
            }
            State::ChunkLine => match chunk_line(bytes)? {
                Some((count, 0)) => (count, State::Trailers),
                Some((_, size)) if size >= self.left_max => return Err(Unusable),
                Some((count, size)) => (count, State::Chunk(size)),
                None => return Ok(None),
            },
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => (2, State::ChunkLine),
                b"\r" => return Ok(None),
                _ => return Err(Unusable),
            },
            State::Trailers => match trailers(bytes)? {
                Some(count) => (count, State::Over),
                None => return Ok(None),
            },
        };
        self.state = next;
        Ok(Some(count))
    }
}

/// Returns the length of a chunk's line, and the chunk's size.
fn chunk_line(bytes: &[u8]) -> Result<Option<(usize, u64)>, Unusable> {
    let is_digit_first = bytes[0].is_ascii_hexdigit();
    let parsed = httparse::parse_chunk_size(bytes).map_err(|_| Unusable)?;
    let (len, size) = match parsed {
        Status::Complete((len, size)) => (len, Some(size)),
        Status::Partial => (bytes.len(), None),
    };
    // An extension may hold anything for httparse, and where a line ends must be certain.
    let line = bytes[..len].strip_suffix(b"\n").unwrap_or(&bytes[..len]);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_right = is_digit_first && !line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
    if !is_right || len > LINE_BYTES_MAX {
        return Err(Unusable);
    }
    Ok(size.map(|size| (len, size)))
}

/// Returns the length of the fields after the last chunk, with the empty line.
fn trailers(bytes: &[u8]) -> Result<Option<usize>, Unusable> {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(bytes, &mut fields) {
        Ok(Status::Complete((len, _))) if len <= TRAILERS_BYTES_MAX => Ok(Some(len)),
        Ok(Status::Partial) if bytes.len() < TRAILERS_BYTES_MAX => Ok(None),
        _ => Err(Unusable),
    }
}
