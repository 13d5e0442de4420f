//! HTTP/2 requests as clients in other languages write them, byte by byte. They are answered whatever their authority
//! is.

use std::path::Path;
use std::time::Duration;

use crate::support::Served;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(20);
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a field with the name at this index of HPACK's table and this value, to be added to the table.
fn field(place: u8, value: &[u8]) -> Vec<u8> {
    [&[0x40 | place, value.len() as u8], value].concat()
}

/// Encodes the fields of a request for the node's health except for its authority, which is the first field added to
/// the table.
fn rest_of_fields() -> Vec<u8> {
    let path = field(4, b"/grpc.health.v1.Health/Check");
    let content_type = field(31, b"application/grpc");
    let te = [&b"\x40\x02te\x08"[..], b"trailers"].concat();
    // :method POST, :scheme http
    [&[0x83, 0x86][..], &path, &content_type, &te].concat()
}

/// Returns an empty message, which asks for the health of the whole node.
fn question(stream: u32) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, &[0; 5])
}

struct Connection {
    socket: UnixStream,
}

impl Connection {
    async fn to(socket: &Path) -> Self {
        let mut socket = UnixStream::connect(socket).await.unwrap();
        socket.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).await.unwrap();
        Self { socket }
    }

    /// Sends a request of these frames, and returns the answer's message.
    async fn answer(&mut self, stream: u32, frames: &[u8]) -> Result<Vec<u8>, String> {
        self.socket.write_all(frames).await.unwrap();
        tokio::time::timeout(PATIENCE, self.read(stream)).await.map_err(|_| "nothing came".to_owned())?
    }

    async fn read(&mut self, stream: u32) -> Result<Vec<u8>, String> {
        let mut message = Vec::new();
        loop {
            let mut header = [0; 9];
            self.socket.read_exact(&mut header).await.map_err(|error| error.to_string())?;
            let [a, b, c, kind, flags, of @ ..] = header;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.socket.read_exact(&mut payload).await.map_err(|error| error.to_string())?;
            let is_of_it = u32::from_be_bytes(of) == stream;
            match kind {
                RST_STREAM | GOAWAY => return Err(format!("a frame of kind {kind}: {payload:02x?}")),
                DATA if is_of_it => message.extend(payload),
                _ => {}
            }
            if is_of_it && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
                return Ok(message);
            }
        }
    }
}

/// The message for the status SERVING.
const HEALTHY: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];

#[tokio::test]
async fn a_request_is_answered_whatever_authority_it_names() {
    let served = Served::start().await;
    let path = served.socket.to_str().unwrap().to_owned();
    let encoded = path.replace('/', "%2F");
    for authority in [
        &b"localhost"[..],
        path.as_bytes(),
        encoded.as_bytes(),
        b"unix:/run/pinion/pinion.sock",
        b"[",
        b"user@",
        b"a b",
        b"\x01\xff",
        b"",
    ] {
        let mut connection = Connection::to(&served.socket).await;
        let fields = [field(1, authority), rest_of_fields()].concat();
        let request = [frame(HEADERS, END_HEADERS, 1, &fields), question(1)].concat();
        let answer = connection.answer(1, &request).await;
        assert_eq!(answer.as_deref(), Ok(&HEALTHY[..]), "{:?}", String::from_utf8_lossy(authority));
    }
    // A request without an authority.
    let mut connection = Connection::to(&served.socket).await;
    let request = [frame(HEADERS, END_HEADERS, 1, &rest_of_fields()), question(1)].concat();
    assert_eq!(connection.answer(1, &request).await.as_deref(), Ok(&HEALTHY[..]));
}

#[tokio::test]
async fn further_requests_of_a_connection_may_refer_to_the_fields_of_the_first() {
    let served = Served::start().await;
    let mut connection = Connection::to(&served.socket).await;
    let fields = [field(1, b"%2Frun%2Fpinion.sock"), rest_of_fields()].concat();
    let first = [frame(HEADERS, END_HEADERS, 1, &fields), question(1)].concat();
    assert_eq!(connection.answer(1, &first).await.as_deref(), Ok(&HEALTHY[..]));
    // Newest first: te, content-type, :path, :authority.
    for stream in (3..40).step_by(2) {
        let fields = [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];
        let request = [frame(HEADERS, END_HEADERS, stream, &fields), question(stream)].concat();
        assert_eq!(connection.answer(stream, &request).await.as_deref(), Ok(&HEALTHY[..]), "stream {stream}");
    }
    // The name of the first field with another value, which is not added to the table.
    let fields = [&[0x83, 0x86, 0x0f, 65 - 15, 4][..], b"/x/y", &[0x80 | 64, 0x80 | 63, 0x80 | 62]].concat();
    let request = [frame(HEADERS, END_HEADERS, 41, &fields), question(41)].concat();
    assert_eq!(connection.answer(41, &request).await.as_deref(), Ok(&HEALTHY[..]));
}

#[tokio::test]
async fn a_header_block_in_pieces_is_answered() {
    let served = Served::start().await;
    let mut connection = Connection::to(&served.socket).await;
    let fields = [field(1, b"/run/pinion.sock"), rest_of_fields()].concat();
    for (number, cut) in (1..fields.len()).step_by(7).enumerate() {
        let stream = 2 * number as u32 + 1;
        let (first, second) = fields.split_at(cut);
        let mut request = frame(HEADERS, 0, stream, first);
        request.extend(frame(CONTINUATION, 0, stream, &[]));
        request.extend(frame(CONTINUATION, END_HEADERS, stream, second));
        request.extend(question(stream));
        let (begin, end) = request.split_at(request.len() / 2);
        connection.socket.write_all(begin).await.unwrap();
        assert_eq!(connection.answer(stream, end).await.as_deref(), Ok(&HEALTHY[..]), "cut at {cut}");
    }
}

#[tokio::test]
async fn malformed_requests_are_still_refused() {
    let served = Served::start().await;
    // No path; a header block that ends in the middle of a field; an unknown pseudo-header.
    for fields in
        [&[0x83, 0x86, 0x41, 1, b'x'][..], &[0x83, 0x86, 0x41, 9, b'x'], &[0x83, 0x86, 0x40, 2, b':', b'x', 1, b'y']]
    {
        let mut connection = Connection::to(&served.socket).await;
        let answer = connection.answer(1, &frame(HEADERS, END_HEADERS | END_STREAM, 1, fields)).await;
        assert!(answer.is_err(), "{fields:02x?}: {answer:?}");
    }
}
