//! Accepts requests with any `:authority`: a Unix socket has no host to name, so clients write different things there.
//!
//! Many HTTP/2 clients put the path of the socket into `:authority`, as it is or percent-encoded (gRPC for C++, Python,
//! Ruby, Java). That is not a valid authority of a URI, so the HTTP/2 library refuses the request before this crate
//! sees it, and has no setting to allow it. Nothing here uses the authority. So a connection is read through
//! [`AnyAuthority`], which gives each request the same valid authority:
//!
//! ```text
//!   socket --bytes--> frames --HEADERS, CONTINUATION--> a whole header block --fields--> :authority replaced --> HTTP/2 library
//!                       `------- all others as they are ------------------------------------------------------^
//! ```
//!
//! A header block (HPACK, RFC 7541) is not decoded for that. Fields are passed on as they are encoded; only the value
//! of a field named `:authority` is replaced. The replacement is the shortest possible value, so each entry that the
//! library adds to its dynamic table is no longer than the client assumes. Therefore the library has every entry that
//! the client may refer to. This module keeps only one thing of the table: which entries are named `:authority`.
//! Malformed input is passed on unchanged, for the library to refuse.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

#[cfg(test)]
mod tests;

/// The authority that every request gets.
const AUTHORITY: u8 = b'-';

const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// The longest payload of a frame, as no other limit is negotiated.
const PAYLOAD_BYTES_MAX: usize = 1 << 14;
/// The longest header block in encoded form: more than the library accepts in decoded form.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// The maximum number of frames of a header block.
const BLOCK_FRAMES_MAX: usize = 64;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

const READ_BYTES: usize = 8 << 10;

/// A connection on which each request appears to name the same authority.
#[derive(Debug)]
pub(super) struct AnyAuthority<S> {
    inner: S,
    frames: Frames,
    /// Bytes ready to be read, from an offset on.
    ready: Vec<u8>,
    at: usize,
}

impl<S> AnyAuthority<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, frames: Frames::default(), ready: Vec::new(), at: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { inner, frames, ready, at } = self.get_mut();
        while ready.is_empty() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut *inner).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            frames.take(read.filled(), ready)?;
        }
        let some = out.remaining().min(ready.len() - *at);
        out.put_slice(&ready[*at..*at + some]);
        *at += some;
        if *at == ready.len() {
            ready.clear();
            *at = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

impl<S: Connected> Connected for AnyAuthority<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}

/// What is expected next on a connection.
#[derive(Debug)]
enum Next {
    /// The rest of the preface, or of a frame's payload, which is passed on unchanged.
    Plain { left: usize },
    /// The header of a frame.
    Header,
    /// The payload, of this length, of a frame that carries a part of a header block.
    Block { len: usize },
}

/// Parses the frames of a connection as their bytes arrive.
#[derive(Debug)]
struct Frames {
    next: Next,
    /// The received part of a frame that was not passed on yet: its header, and the payload if that is inspected.
    frame: Vec<u8>,
    /// A header block that is not complete yet.
    begun: Option<Block>,
    fields: Fields,
}

/// The received part of a header block.
#[derive(Debug)]
struct Block {
    stream: [u8; 4],
    flags: u8,
    priority: Vec<u8>,
    encoded: Vec<u8>,
    frames: usize,
}

impl Default for Frames {
    fn default() -> Self {
        let next = Next::Plain { left: PREFACE_BYTES };
        Self { next, frame: Vec::new(), begun: None, fields: Fields::default() }
    }
}

impl Frames {
    /// Consumes received bytes, and appends the bytes to pass on.
    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.next {
                Next::Plain { left } => {
                    let (some, rest) = bytes.split_at(left.min(bytes.len()));
                    out.extend(some);
                    bytes = rest;
                    self.next = after_plain(left - some.len());
                }
                Next::Header => {
                    bytes = self.gather(bytes, FRAME_HEADER_BYTES);
                    if self.frame.len() == FRAME_HEADER_BYTES {
                        self.begin_frame(out);
                    }
                }
                Next::Block { len } => {
                    bytes = self.gather(bytes, FRAME_HEADER_BYTES + len);
                }
            }
            if let Next::Block { len } = self.next
                && self.frame.len() == FRAME_HEADER_BYTES + len
            {
                let frame = std::mem::take(&mut self.frame);
                self.next = Next::Header;
                self.take_block(&frame, out)?;
            }
        }
        Ok(())
    }

    /// Moves bytes to the frame until it has `len`, and returns the remaining bytes.
    fn gather<'b>(&mut self, bytes: &'b [u8], len: usize) -> &'b [u8] {
        let (some, rest) = bytes.split_at((len - self.frame.len()).min(bytes.len()));
        self.frame.extend(some);
        rest
    }

    fn begin_frame(&mut self, out: &mut Vec<u8>) {
        let len = self.frame[..3].iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
        let is_of_block = match self.frame[3] {
            HEADERS => self.begun.is_none(),
            CONTINUATION => self.begun.as_ref().is_some_and(|block| block.stream == self.frame[5..]),
            _ => false,
        };
        if is_of_block && len <= PAYLOAD_BYTES_MAX {
            self.next = Next::Block { len };
            return;
        }
        // Other frames between the parts of a block are an error, which the library reports.
        if let Some(block) = self.begun.take() {
            block.write(&block.encoded, 0, out);
        }
        out.append(&mut self.frame);
        self.next = after_plain(len);
    }

    /// Handles a complete frame with a part of a header block.
    fn take_block(&mut self, frame: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let (header, payload) = frame.split_at(FRAME_HEADER_BYTES);
        let (kind, flags) = (header[3], header[4]);
        let mut block = match self.begun.take() {
            Some(block) => block,
            None => {
                let stream = [header[5], header[6], header[7], header[8]];
                Block { stream, flags: 0, priority: Vec::new(), encoded: Vec::new(), frames: 0 }
            }
        };
        if kind == HEADERS {
            let Some((priority, part)) = unpadded(flags, payload) else {
                out.extend(frame);
                return Ok(());
            };
            block.flags = flags & !(PADDED | END_HEADERS);
            block.priority.extend(priority);
            block.encoded.extend(part);
        } else {
            block.encoded.extend(payload);
        }
        block.frames += 1;
        if block.encoded.len() > BLOCK_BYTES_MAX || block.frames > BLOCK_FRAMES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a header block is longer than any may be"));
        }
        if flags & END_HEADERS == 0 {
            self.begun = Some(block);
            return Ok(());
        }
        let replaced = self.fields.replaced(&block.encoded);
        block.write(replaced.as_ref().unwrap_or(&block.encoded), END_HEADERS, out);
        Ok(())
    }
}

fn after_plain(left: usize) -> Next {
    if left == 0 { Next::Header } else { Next::Plain { left } }
}

/// Returns the priority, if there is one, and the part of the block in the payload of a HEADERS frame; none if the
/// payload is malformed.
fn unpadded(flags: u8, payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (padding, rest) =
        if flags & PADDED == 0 { (0, payload) } else { payload.split_first().map(|(n, rest)| (*n, rest))? };
    let (priority, rest) = rest.split_at_checked(if flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES })?;
    Some((priority, rest.get(..rest.len().checked_sub(padding.into())?)?))
}

impl Block {
    /// Appends frames with this block. `end` is the flag of the last one.
    fn write(&self, encoded: &[u8], end: u8, out: &mut Vec<u8>) {
        let (first, rest) = encoded.split_at(encoded.len().min(PAYLOAD_BYTES_MAX - self.priority.len()));
        let mut write = |kind: u8, flags: u8, parts: [&[u8]; 2]| {
            let len = parts.map(<[u8]>::len).iter().sum::<usize>() as u32;
            out.extend(&len.to_be_bytes()[1..]);
            out.extend([kind, flags]);
            out.extend(self.stream);
            parts.iter().for_each(|part| out.extend(*part));
        };
        write(HEADERS, self.flags | if rest.is_empty() { end } else { 0 }, [&self.priority, first]);
        let mut parts = rest.chunks(PAYLOAD_BYTES_MAX).peekable();
        while let Some(part) = parts.next() {
            write(CONTINUATION, if parts.peek().is_none() { end } else { 0 }, [&[], part]);
        }
    }
}

/// What is known of the header fields of a connection's requests.
#[derive(Debug, Default)]
struct Fields {
    /// Which entries of the client's dynamic table are named `:authority`, one bit each, the newest entry in the lowest
    /// bit. An entry counts as at least 32 bytes, and the table has 4096, so 128 bits are enough.
    authorities: u128,
}

/// The index of `:authority` with no value in the static table, and the first index of the dynamic table.
const STATIC_AUTHORITY: u64 = 1;
const DYNAMIC_FIRST: u64 = 62;
/// The name, plain and Huffman-coded.
const NAME: &[u8] = b":authority";
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

impl Fields {
    /// Returns the same header block with another authority; none if it is malformed.
    fn replaced(&mut self, mut block: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(block.len() + 1);
        while let Some(first) = block.first() {
            let whole = block;
            let copied = |rest: &[u8]| &whole[..whole.len() - rest.len()];
            match first {
                0x80.. => {
                    let index = integer(&mut block, 7)?;
                    if index == STATIC_AUTHORITY {
                        out.extend([STATIC_AUTHORITY as u8, 1, AUTHORITY]);
                    } else {
                        out.extend(copied(block));
                    }
                }
                // A dynamic table size update.
                0x20..0x40 => {
                    integer(&mut block, 5)?;
                    out.extend(copied(block));
                }
                0x40.. => {
                    let is_authority = self.name(&mut block, 6)?;
                    self.value(whole, &mut block, is_authority, &mut out)?;
                    self.authorities = self.authorities << 1 | u128::from(is_authority);
                }
                _ => {
                    let is_authority = self.name(&mut block, 4)?;
                    self.value(whole, &mut block, is_authority, &mut out)?;
                }
            }
        }
        Some(out)
    }

    /// Skips the name of a field, and returns whether it is `:authority`.
    fn name(&self, block: &mut &[u8], prefix_bits: u32) -> Option<bool> {
        let index = integer(block, prefix_bits)?;
        if index > 0 {
            let added = index.checked_sub(DYNAMIC_FIRST).filter(|place| *place < u128::BITS.into());
            return Some(index == STATIC_AUTHORITY || added.is_some_and(|place| self.authorities >> place & 1 == 1));
        }
        let is_coded = *block.first()? & 0x80 != 0;
        let name = string(block)?;
        Some(name == if is_coded { NAME_CODED } else { NAME })
    }

    /// Skips the value of a field, and appends the field, which begins at `whole`.
    fn value(&self, whole: &[u8], block: &mut &[u8], is_authority: bool, out: &mut Vec<u8>) -> Option<()> {
        let named = whole.len() - block.len();
        string(block)?;
        if is_authority {
            out.extend(&whole[..named]);
            out.extend([1, AUTHORITY]);
        } else {
            out.extend(&whole[..whole.len() - block.len()]);
        }
        Some(())
    }
}

/// Decodes an integer with a prefix of this many bits (RFC 7541, 5.1).
fn integer(bytes: &mut &[u8], prefix_bits: u32) -> Option<u64> {
    let mask = (1_u8 << prefix_bits) - 1;
    let mut next = || {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(*first)
    };
    let mut value = u64::from(next()? & mask);
    if value < mask.into() {
        return Some(value);
    }
    for shift in (0..35).step_by(7) {
        let byte = next()?;
        value += u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Consumes a string (RFC 7541, 5.2), and returns it as it is encoded.
fn string<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = integer(bytes, 7)?;
    let (text, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    *bytes = rest;
    Some(text)
}
