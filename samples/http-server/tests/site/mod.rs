//! A server with clients of another TCP stack, and a reader of its answers that shares no code with it.

use http_server::HttpServer;
use pinion_sdk::net::Server;
use pinion_sdk::net::testing::{Client, Network};

pub(crate) struct Site(pub(crate) Network<Server<HttpServer>>);

impl Site {
    pub(crate) fn new(config: &str) -> Self {
        Self(Network::new(config.as_bytes()).unwrap())
    }

    pub(crate) fn connect(&mut self) -> Client {
        let client = self.0.connect("10.0.0.1".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        self.0.settle();
        client
    }

    /// Connects a client that can hold so many bytes.
    #[allow(dead_code)]
    pub(crate) fn connect_with_window(&mut self, window_bytes: usize) -> Client {
        let (from, to) = ("10.0.0.1".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let client = self.0.connect_with_window(from, to, window_bytes);
        self.0.settle();
        client
    }

    /// Sends the request; returns all that comes until nothing more comes, without dates.
    pub(crate) fn ask(&mut self, client: Client, request: impl AsRef<[u8]>) -> String {
        self.0.send(client, request.as_ref());
        self.answers(client)
    }

    /// Returns all that comes until nothing more comes, without dates.
    pub(crate) fn answers(&mut self, client: Client) -> String {
        let mut received = Vec::new();
        loop {
            self.0.settle();
            match self.0.received(client) {
                more if more.is_empty() => return without_dates(&String::from_utf8(received).unwrap()),
                more => received.extend(more),
            }
        }
    }

    /// The same as [`Site::ask`] on a new connection.
    pub(crate) fn ask_anew(&mut self, request: impl AsRef<[u8]>) -> String {
        let client = self.connect();
        let answer = self.ask(client, request);
        self.0.abort(client);
        self.0.settle();
        answer
    }
}

/// Checks the dates of all answers and takes them away: they are those of the machine.
fn without_dates(answers: &str) -> String {
    let mut rest = answers;
    let mut kept = String::with_capacity(answers.len());
    while let Some((before, after)) = rest.split_once("\r\nDate: ") {
        let (date, after) = after.split_once("\r\n").unwrap();
        assert!(date.len() == 29 && date.ends_with(" GMT") && httpdate::parse_http_date(date).is_ok(), "{date}");
        kept.push_str(before);
        kept.push_str("\r\n");
        rest = after;
    }
    kept.push_str(rest);
    kept
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

#[allow(dead_code)]
pub(crate) fn status(answer: &str) -> &str {
    answer.split("\r\n").next().unwrap()
}

#[allow(dead_code)]
pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

/// Returns the value of a field of the first answer.
#[allow(dead_code)]
pub(crate) fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split_once("\r\n\r\n").unwrap().0;
    let mut values = head.split("\r\n").filter_map(|line| line.split_once(": ").filter(|(it, _)| *it == name));
    let value = values.next().map(|(_, value)| value);
    assert!(values.next().is_none(), "{name} twice: {head}");
    value
}
