//! Properties of the server under any bytes, in any pieces.

mod site;

use http_server::request::Content;
use http_server::request::content::Rest;
use proptest::prelude::*;
use site::{Site, get};

const PAGES: &str = "page / front\npage /ten 012345678\nfill /empty 0\nfill /some 100000\n";

/// Requests after which a connection is kept.
fn requests(tag: &str) -> Vec<String> {
    let mut requests: Vec<_> = ["/", "/ten", "/empty", "/some", "/none", "/x/../ten?y"].map(get).into();
    let line = |method: &str, path: &str, rest: &str| format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{rest}");
    requests.extend([
        line("HEAD", "/some", "\r\n"),
        line("HEAD", "/none", "\r\n"),
        line("GET", "/ten", &format!("If-None-Match: {tag}\r\n\r\n")),
        line("GET", "/ten", "If-Match: \"x\"\r\n\r\n"),
        line("GET", "/some", "Range: bytes=-70000\r\n\r\n"),
        line("GET", "/some", "Range: bytes=100000-\r\n\r\n"),
        line("OPTIONS", "*", "\r\n"),
        line("POST", "/", &format!("Content-Length: {}\r\n\r\n{}", get("/").len(), get("/"))),
        line(
            "GET",
            "/ten",
            "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nX: y\r\n\r\n",
        ),
        format!("\r\n{}", get("/ten")),
    ]);
    requests
}

/// Draws bytes like those of requests.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let words = "GET |HEAD |POST |/|/ten|/some|http://x| HTTP/1.1| HTTP/1.0|\r\n|\n|\r|\r\n\r\n|Host: x\r\n|Range: bytes=|0-1|,\
                 |If-None-Match: |If-Range: |\"|W/|*|Content-Length: |5\r\n|Transfer-Encoding: chunked\r\n|0\r\n\r\n|3\r\nabc\r\n|%|..|:|\0|\u{e9}";
    let words: Vec<Vec<u8>> = words.split('|').map(|word| word.as_bytes().to_vec()).collect();
    let piece = prop_oneof![4 => prop::sample::select(words), 1 => prop::collection::vec(any::<u8>(), 1..8)];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// Splits bytes into pieces of these lengths, which are repeated.
fn pieces<'b>(bytes: &'b [u8], lens: &[usize]) -> Vec<&'b [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    for len in lens.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*len).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn no_bytes_in_any_pieces_stop_the_server(
        sent in prop_oneof![nearly(), prop::collection::vec(any::<u8>(), 0..2_000)],
        lens in prop::collection::vec(1_usize..200, 1..5),
    ) {
        let mut site = Site::new(PAGES);
        let client = site.connect();
        let mut received = Vec::new();
        for piece in pieces(&sent, &lens) {
            if site.0.is_connected(client) {
                site.0.send(client, piece);
            }
            site.0.settle();
            received.extend(site.0.received(client));
        }
        prop_assert!(received.is_empty() || received.starts_with(b"HTTP/1.1 "));
        prop_assert!(site.ask_anew(get("/ten")).ends_with("\r\n\r\n012345678\n"));
        site.0.let_pass_ns(200_000_000_000);
        prop_assert!(!site.0.is_connected(client), "no connection lasts without requests");
    }

    #[test]
    fn pipelined_requests_get_the_answers_of_separate_ones(
        chosen in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
        lens in prop::collection::vec(1_usize..300, 1..5),
    ) {
        let mut site = Site::new(PAGES);
        let answer = site.ask_anew(get("/ten"));
        let requests = requests(site::field(&answer, "ETag").unwrap());
        let chosen: Vec<_> = chosen.iter().map(|index| index.get(&requests).as_str()).collect();
        let separate: String = chosen.iter().map(|request| site.ask_anew(request)).collect();
        let client = site.connect();
        prop_assert_eq!(&site.ask(client, chosen.concat()), &separate);
        prop_assert!(site.0.is_connected(client));
        let client = site.connect();
        for piece in pieces(chosen.concat().as_bytes(), &lens) {
            site.0.send(client, piece);
        }
        prop_assert_eq!(site.answers(client), separate);
    }

    #[test]
    fn content_ends_at_the_same_byte_in_whatever_pieces_it_comes(
        sent in prop_oneof![
            prop::collection::vec(prop::sample::select(vec!["0\r\n", "\r\n", "3\r\nabc\r\n", "A;x\r\n0123456789\r\n", "X: y\r\n", "z", "\n"]), 0..12)
                .prop_map(|words| words.concat().into_bytes()),
            prop::collection::vec(any::<u8>(), 0..100),
        ],
        len in 1_usize..20,
        length in prop_oneof![Just(None), (1_u64..100).prop_map(Some)],
    ) {
        let content = length.map_or(Content::Chunked, Content::Length);
        let mut whole = Rest::of(content).unwrap();
        let expected = whole.skip(&sent).map(|count| (count, whole.is_over()));
        let mut rest = Rest::of(content).unwrap();
        let (mut start, mut found) = (0, Ok(()));
        for end in (0..sent.len()).step_by(len).chain([sent.len()]) {
            match rest.skip(&sent[start..end]) {
                Ok(count) => start += count,
                Err(error) => {
                    found = Err(error);
                    break;
                }
            }
        }
        prop_assert_eq!(found.map(|()| (start, rest.is_over())), expected);
    }
}
