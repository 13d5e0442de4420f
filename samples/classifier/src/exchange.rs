//! Requests and answers of one connection, by RFC 9112. The parser of heads is `http-server`'s.

use http_server::request::{self, Content, HEAD_BYTES_MAX, Method, Parsed, Reason, Request};

use crate::image::CONTENT_BYTES_MAX;
use crate::verdict::Verdict;

/// Room for any answer.
pub(crate) const HEAD_ROOM: usize = 2048;
/// How long a client may take for a request, and between two requests.
const REQUEST_NS_MAX: u64 = 10_000_000_000;
/// The path at which images are classified.
const PATH: &str = "/classify";

/// The state of a connection.
#[derive(Debug)]
pub struct Connection {
    received: Vec<u8>,
    /// The request whose content is being received, and the length of its head.
    request: Option<(Request, usize)>,
    deadline_ns: u64,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Receive more.
    More,
    /// Classify [`Connection::content`], and answer.
    Classify,
    /// Answer with this. The request is done with.
    Answer(Answer),
}

/// The bytes of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    /// The connection is closed after it.
    pub(crate) is_last: bool,
}

impl Connection {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { received: Vec::new(), request: None, deadline_ns: now_ns + REQUEST_NS_MAX }
    }

    /// Returns by when the request must be complete, by the node's clock.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
    }

    /// Returns what to do with what was received.
    pub(crate) fn step(&mut self) -> Step {
        if self.request.is_none() {
            match request::parse(&self.received) {
                Parsed::Partial => return Step::More,
                Parsed::Refused(refusal) => return Step::Answer(refuse(status_of(refusal.reason), "")),
                Parsed::Request(request, len) => self.request = Some((request, len)),
            }
        }
        let Some((request, head_len)) = &self.request else { return Step::More };
        let is_ours = request.path == PATH;
        // What is refused is not read to its end, so the connection ends with the answer.
        match (is_ours, request.method, request.content) {
            (false, ..) => Step::Answer(refuse("404 Not Found", "")),
            (true, Method::Get | Method::Head | Method::Other, _) => {
                Step::Answer(refuse("405 Method Not Allowed", "Allow: POST\r\n"))
            }
            (true, Method::Post, Content::Chunked) => Step::Answer(refuse("411 Length Required", "")),
            (true, Method::Post, Content::Length(len)) if len > CONTENT_BYTES_MAX as u64 => {
                Step::Answer(refuse("413 Content Too Large", ""))
            }
            (true, Method::Post, Content::Length(len)) if self.received.len() < head_len + len as usize => Step::More,
            (true, Method::Post, _) => Step::Classify,
        }
    }

    /// Returns the content of the request that is complete.
    pub(crate) fn content(&self) -> &[u8] {
        let Some((request, head_len)) = &self.request else { return &[] };
        &self.received[*head_len..head_len + len_of(request)]
    }

    /// Returns the answer with a verdict, and goes on with the next request.
    pub(crate) fn answer(&mut self, verdict: &Verdict, now_ns: u64) -> Answer {
        let Some((request, head_len)) = self.request.take() else { return refuse("500 Internal Server Error", "") };
        self.received.drain(..head_len + len_of(&request));
        self.deadline_ns = now_ns + REQUEST_NS_MAX;
        let more = if verdict.status().starts_with("503") { "Retry-After: 1\r\n" } else { "" };
        let kept = match (request.is_kept, request.is_old) {
            (false, _) => "Connection: close\r\n",
            (true, true) => "Connection: keep-alive\r\n",
            (true, false) => "",
        };
        let bytes = answer(verdict.status(), &format!("{more}{kept}"), &verdict.to_json());
        Answer { bytes, is_last: !request.is_kept }
    }
}

fn len_of(request: &Request) -> usize {
    match request.content {
        Content::Length(len) => len as usize,
        Content::None | Content::Chunked => 0,
    }
}

/// Returns the last answer of a connection.
fn refuse(status: &'static str, fields: &str) -> Answer {
    let text = match &status[..3] {
        "404" => format!("there is only {PATH} here"),
        "405" => format!("POST an image to {PATH}"),
        "411" => "send the image with its length, not in chunks".to_owned(),
        "413" => format!("a content has at most {CONTENT_BYTES_MAX} bytes"),
        "431" => format!("a head has at most {HEAD_BYTES_MAX} bytes"),
        _ => status.to_owned(),
    };
    let body = format!("{{\"error\":\"{text}\"}}\n");
    Answer { bytes: answer(status, &format!("{fields}Connection: close\r\n"), &body), is_last: true }
}

fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n{fields}\r\n{body}")
        .into_bytes()
}

fn status_of(reason: Reason) -> &'static str {
    match reason {
        Reason::Bad => "400 Bad Request",
        Reason::TargetTooLong => "414 URI Too Long",
        Reason::Expectation => "417 Expectation Failed",
        Reason::Scheme => "421 Misdirected Request",
        Reason::TooLong => "431 Request Header Fields Too Large",
        Reason::UnknownMethod | Reason::Coding => "501 Not Implemented",
        Reason::Version => "505 HTTP Version Not Supported",
    }
}
