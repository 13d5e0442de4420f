//! The body of a request, which ends in an error if a message is too long or if it stops arriving.
//!
//! Messages in gRPC have a prefix: a byte of flags, and four with the length. The length is judged as soon as it has
//! arrived, so that nothing of a message that is too long is kept, and its elements before they are decoded.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;

use super::accounts::RequestBytes;
use super::elements::Elements;
use crate::access::Row;

const PREFIX_BYTES: usize = 5;
/// How long all pauses of a request may be together, as a multiple of the longest.
const PAUSES: u32 = 4;

/// See the module.
pub(super) struct RequestBody {
    inner: Body,
    row: &'static Row,
    bytes_max: u64,
    /// What the message under way takes, until the call ends. None on the Unix socket.
    taken: Option<Arc<RequestBytes>>,
    next: Next,
    pauses: Pauses,
}

/// What the next byte is.
enum Next {
    Prefix { bytes: [u8; PREFIX_BYTES], len: usize },
    Message { left: u64, elements: Elements },
}

const PREFIX: Next = Next::Prefix { bytes: [0; PREFIX_BYTES], len: 0 };

impl RequestBody {
    /// `bytes_max` is the length of the longest message, and `stall` the longest pause.
    pub(super) fn new(
        inner: Body,
        row: &'static Row,
        bytes_max: u64,
        taken: Option<Arc<RequestBytes>>,
        stall: Duration,
    ) -> Self {
        let pauses = Pauses { longest: stall, left: stall * PAUSES, current: None };
        Self { inner, row, bytes_max, taken, next: PREFIX, pauses }
    }

    /// Follows the messages in the bytes, and refuses one that is too long or has too many elements.
    fn judge(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            match &mut self.next {
                Next::Message { left, elements } => {
                    let (some, rest) = data.split_at(data.len().min(usize::try_from(*left).unwrap_or(usize::MAX)));
                    (*left, data) = (*left - some.len() as u64, rest);
                    let before = elements.decoded_bytes();
                    elements.read(some)?;
                    if let Some(taken) = &self.taken {
                        taken.grow(elements.decoded_bytes() - before)?;
                    }
                }
                Next::Prefix { bytes, len } => {
                    let some = data.len().min(PREFIX_BYTES - *len);
                    bytes[*len..*len + some].copy_from_slice(&data[..some]);
                    (*len, data) = (*len + some, &data[some..]);
                    if *len == PREFIX_BYTES {
                        let left = u64::from(u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]));
                        self.begin_message(left)?;
                    }
                }
            }
            if matches!(self.next, Next::Message { left: 0, .. }) {
                self.next = PREFIX;
            }
        }
        Ok(())
    }

    fn begin_message(&mut self, bytes: u64) -> Result<(), Status> {
        let max = self.bytes_max;
        if bytes > max {
            let method = self.row.method();
            return Err(Status::resource_exhausted(format!(
                "{method} takes messages of at most {max} bytes, and this one has {bytes}: send less at once"
            )));
        }
        if let Some(taken) = &self.taken {
            // The message before has been passed on.
            taken.begin(bytes)?;
        }
        self.next = Next::Message { left: bytes, elements: Elements::new(self.row, bytes) };
        Ok(())
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Pending => this.pauses.poll(context).map(|error| Some(Err(error))),
            Poll::Ready(frame) => {
                this.pauses.end();
                if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref())
                    && let Err(refused) = this.judge(&data.clone())
                {
                    return Poll::Ready(Some(Err(refused)));
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The time in which the server waited for the client to send more.
struct Pauses {
    longest: Duration,
    /// Of all pauses together.
    left: Duration,
    current: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Pauses {
    /// Goes on with a pause, and fails once it, or all together, took too long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let max = self.longest.min(self.left);
        let (_, timer) = self.current.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(max))));
        ready!(timer.as_mut().poll(context));
        let (longest_ms, all_ms) = (self.longest.as_millis(), (self.longest * PAUSES).as_millis());
        Poll::Ready(Status::deadline_exceeded(format!(
            "the request did not arrive in time: it may pause for {longest_ms} ms, and for {all_ms} ms in all; send it again"
        )))
    }

    fn end(&mut self) {
        if let Some((began, _)) = self.current.take() {
            self.left = self.left.saturating_sub(began.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes_max: u64) -> RequestBody {
        // Its messages are not followed further.
        let row = Row::of("/grpc.health.v1.Health/Check").unwrap();
        RequestBody::new(Body::empty(), row, bytes_max, None, Duration::from_secs(1))
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_at_its_prefix_however_the_bytes_are_divided() {
        let fits: Vec<u8> = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0]].concat();
        let stream = [&fits[..], &fits, &[0, 0, 0, 0, 4]].concat();
        for part_bytes in 1..stream.len() {
            let mut body = body(3);
            let mut parts = stream.chunks(part_bytes).peekable();
            while let Some(part) = parts.next() {
                match (body.judge(part), parts.peek()) {
                    (Ok(()), Some(_)) => {}
                    (Err(refused), None) => {
                        assert!(refused.message().contains("at most 3 bytes, and this one has 4"), "{refused}");
                    }
                    (judged, _) => panic!("{judged:?} of parts of {part_bytes} bytes"),
                }
            }
        }
    }
}
