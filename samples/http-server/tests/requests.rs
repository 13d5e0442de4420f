//! The parser's results for requests, by RFC 9110 and RFC 9112.

use http_server::conditions::Conditions;
use http_server::request::{Content, HEAD_BYTES_MAX, Method, Parsed, Reason, Refusal, Request, parse};
use proptest::prelude::*;

/// Returns the parser's result in short: path, query, content, and whether the connection is kept, or why the request is
/// refused. A method that no file allows is in the path's place.
fn found(request: &str) -> String {
    match parse(request.as_bytes()) {
        Parsed::Partial => "partial".to_owned(),
        Parsed::Request(Request { method, path, query, is_kept, content, .. }, len) => {
            assert_eq!(len, request.len(), "all of it is the head: {request:?}");
            let query = query.map(|query| format!("?{query}")).unwrap_or_default();
            let is_other = matches!(method, Method::Post | Method::Other);
            let named = if is_other { "Method".to_owned() } else { format!("{path}{query}") };
            let content = match content {
                Content::None => String::new(),
                Content::Length(length) => format!(" with {length}"),
                Content::Chunked => " with chunks".to_owned(),
            };
            format!("{named}{content}{}", if is_kept { "" } else { " and close" })
        }
        Parsed::Refused(Refusal { reason, .. }) => format!("{reason:?}"),
    }
}

/// Returns a request with this line.
fn line(line: &str) -> String {
    format!("{line}\r\nHost: x\r\n\r\n")
}

/// Returns a request with these fields.
fn fields(version: &str, fields: &str) -> String {
    format!("GET / HTTP/{version}\r\n{fields}\r\n")
}

#[test]
fn a_line_has_a_method_a_target_and_a_version_with_a_space_between() {
    for (request, expected) in [
        (line("GET / HTTP/1.1"), "/"),
        (line("\r\nGET / HTTP/1.1"), "/"),
        (line("\r\n\r\n\nGET / HTTP/1.1"), "/"),
        ("GET / HTTP/1.1\nHost: x\n\n".to_owned(), "/"),
        (line("GET / HTTP/1.0"), "/ and close"),
        (line("GET / HTTP/1.2"), "/"),
        (line("GET / HTTP/1.9"), "/"),
        (line("GET / HTTP/0.9"), "Version"),
        (line("GET / HTTP/2.0"), "Version"),
        (line("GET / HTTP/9.9"), "Version"),
        (line("GET / HTTP/1"), "Bad"),
        (line("GET / HTTP/2"), "Bad"),
        (line("GET / HTTP/1.10"), "Bad"),
        (line("GET / HTTP/11.1"), "Bad"),
        (line("GET / HTTP/1.x"), "Bad"),
        (line("GET / http/1.1"), "Bad"),
        (line("GET / HTTPS/1.1"), "Bad"),
        (line("GET / HTTP/1.1 "), "Bad"),
        (line("GET  / HTTP/1.1"), "Bad"),
        (line("GET /  HTTP/1.1"), "Bad"),
        (line(" GET / HTTP/1.1"), "Bad"),
        (line("GET\t/\tHTTP/1.1"), "Bad"),
        (line("GET /a b HTTP/1.1"), "Bad"),
        (line("GET /"), "Bad"),
        (line("GET HTTP/1.1"), "Bad"),
        (line("GET"), "Bad"),
        (line("GET /\0 HTTP/1.1"), "Bad"),
        (line("GET /\r HTTP/1.1"), "Bad"),
        (line("GET / HTTP/1.1\r"), "Bad"),
        (line("G(T / HTTP/1.1"), "Bad"),
        (line("G\u{e9}T / HTTP/1.1"), "Bad"),
        (line("HEAD / HTTP/1.1"), "/"),
        (line("get / HTTP/1.1"), "UnknownMethod"),
        (line("GETT / HTTP/1.1"), "UnknownMethod"),
        (line("BREW / HTTP/1.1"), "UnknownMethod"),
        (line("M-SEARCH * HTTP/1.1"), "UnknownMethod"),
        (line("POST / HTTP/1.1"), "Method"),
        (line("PUT / HTTP/1.1"), "Method"),
        (line("DELETE / HTTP/1.1"), "Method"),
        (line("PATCH / HTTP/1.1"), "Method"),
        (line("TRACE / HTTP/1.1"), "Method"),
        (line("OPTIONS / HTTP/1.1"), "Method"),
    ] {
        assert_eq!(found(&request), expected, "{request:?}");
    }
}

#[test]
fn a_target_has_one_of_four_forms() {
    for (target, expected) in [
        ("/", "/"),
        ("/?", "/?"),
        ("/a/b?c=d/../e?f", "/a/b?c=d/../e?f"),
        ("/a%20b%2Ec", "/a b.c"),
        ("/%C3%A9", "/\u{e9}"),
        ("/a:b@c", "/a:b@c"),
        ("/...", "/..."),
        ("/?a|b[]={}", "/?a|b[]={}"),
        ("/#top", "Bad"),
        ("/?a#top", "Bad"),
        ("/..", "Bad"),
        ("/../a", "Bad"),
        ("/a/../b", "/b"),
        ("/./a", "/a"),
        ("/a/.", "/a/"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/a/b/../c/./d", "/a/c/d"),
        ("/a/../..", "Bad"),
        ("/a/../../a", "Bad"),
        ("/a/%2E%2e/b", "/b"),
        ("/a//../b", "/b"),
        ("//..", "Bad"),
        ("/%2e%2e/a", "Bad"),
        ("/.%2E/a", "Bad"),
        ("/a%2f..%2fb", "Bad"),
        ("/a%5c..%5cb", "Bad"),
        ("/a\\b", "Bad"),
        ("//a", "/a"),
        ("//", "/"),
        ("//a//", "/a/"),
        ("/a//b", "/a/b"),
        ("/%2fa", "Bad"),
        ("/a%2Fb", "Bad"),
        ("/%00", "Bad"),
        ("/a%00.html", "Bad"),
        ("/%c0%ae%c0%ae/a", "Bad"),
        ("/%ff", "Bad"),
        ("/%zz", "Bad"),
        ("/%1", "Bad"),
        ("/%", "Bad"),
        ("/%+1", "Bad"),
        ("http://x", "/"),
        ("http://x/", "/"),
        ("HtTp://x/a", "/a"),
        ("http://x?p=/f.txt", "/?p=/f.txt"),
        ("http://x?", "/?"),
        ("http://x:80/a?b", "/a?b"),
        ("http://x:/a", "/a"),
        ("http://[::1]:80/a", "/a"),
        ("http://x/http://y/", "/http:/y/"),
        ("http://x/../a", "Bad"),
        ("http://x//a", "/a"),
        ("http://x#a", "Bad"),
        ("http://", "Bad"),
        ("http:///a", "Bad"),
        ("http://:80/a", "Bad"),
        ("http://?a", "Bad"),
        ("http://u@x/a", "Bad"),
        ("http://u:p@x/a", "Bad"),
        ("http://x:a/", "Bad"),
        ("http://x:65536/", "Bad"),
        ("http://[::1/", "Bad"),
        ("http:/a", "Bad"),
        ("http:a", "Bad"),
        ("://x/", "Bad"),
        ("1http://x/", "Bad"),
        ("https://x/", "Scheme"),
        ("ftp://x/", "Scheme"),
        ("a", "Bad"),
        ("?a", "Bad"),
        ("*", "Bad"),
        ("x:80", "Bad"),
    ] {
        for method in ["GET", "HEAD"] {
            let request = line(&format!("{method} {target} HTTP/1.1"));
            assert_eq!(found(&request), expected, "{request:?}");
        }
    }
    for (request, expected) in [
        ("OPTIONS *", "Method"),
        ("OPTIONS http://x", "Method"),
        ("OPTIONS a", "Bad"),
        ("POST *", "Bad"),
        ("CONNECT x:80", "Method and close"),
        ("CONNECT [::1]:443", "Method and close"),
        ("CONNECT x", "Bad"),
        ("CONNECT x:", "Bad"),
        ("CONNECT /", "Bad"),
        ("CONNECT *", "Bad"),
        ("CONNECT http://x/", "Bad"),
    ] {
        assert_eq!(found(&line(&format!("{request} HTTP/1.1"))), expected, "{request}");
    }
}

#[test]
fn there_is_one_host_and_it_is_possible() {
    let right = [
        "x",
        "x:80",
        "x:",
        "x:0080",
        "EXAMPLE.org.",
        "10.0.0.1:8080",
        "a_b",
        "a-b.c~d",
        "x!$&'()*+,;=",
        "%41%7e",
        "[::1]",
        "[::1]:80",
        "[::ffff:10.0.0.1]",
        "[v1.a:b]",
        "\t x \t",
        "",
    ];
    for host in right {
        for version in ["1.1", "1.0"] {
            let expected = if version == "1.1" { "/" } else { "/ and close" };
            assert_eq!(found(&fields(version, &format!("Host: {host}\r\n"))), expected, "{host:?}");
        }
    }
    let wrong = [
        "a/b",
        "u@h",
        "u:p@h",
        "a b",
        "a\tb",
        "a?b",
        "a#b",
        "http://x",
        "x:a",
        "x:80a",
        "x:-1",
        "x:+80",
        "x:65536",
        "x:0",
        "x:80:80",
        ":80",
        ":",
        "::1",
        "[",
        "[]",
        "[::1",
        "::1]",
        "[::1]x",
        "[::1]:x",
        "[x]",
        "[1.2.3.4]",
        "[fe80::1%25eth0]",
        "[::1:2:3:4:5:6:7:8]",
        "[v.a]",
        "[v1.]",
        "%",
        "%4",
        "%zz",
        "a\\b",
        "a\"b",
        "<x>",
        "a|b",
        "a^b",
        "{x}",
        "`x`",
        "\u{e9}",
        "x, y/z",
    ];
    for host in wrong {
        for version in ["1.1", "1.0"] {
            assert_eq!(found(&fields(version, &format!("Host: {host}\r\n"))), "Bad", "{host:?}");
        }
        let absolute = format!("GET http://x/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(found(&absolute), "Bad", "another host in the target makes up for nothing: {host:?}");
    }
    assert_eq!(found(&fields("1.1", "")), "Bad");
    assert_eq!(found("GET http://x/ HTTP/1.1\r\n\r\n"), "Bad");
    assert_eq!(found(&fields("1.0", "")), "/ and close");
    for version in ["1.0", "1.1", "1.2"] {
        assert_eq!(found(&fields(version, "Host: x\r\nHost: y\r\n")), "Bad");
        assert_eq!(found(&fields(version, "Host: x\r\nhOST: x\r\n")), "Bad");
    }
}

#[test]
fn a_body_has_one_length_or_is_chunked() {
    for (lines, expected) in [
        ("Content-Length: 0\r\n", "/"),
        ("Content-Length: 000\r\n", "/"),
        ("Content-Length: 5\r\n", "/ with 5"),
        ("Content-Length:5\r\n", "/ with 5"),
        ("Content-Length: 1048575\r\n", "/ with 1048575"),
        ("Content-Length: 1048576\r\n", "/ with 1048576 and close"),
        ("content-length: \t5\t \r\n", "/ with 5"),
        ("Content-Length: 18446744073709551615\r\n", "/ with 18446744073709551615 and close"),
        ("Content-Length: 18446744073709551616\r\n", "Bad"),
        ("Content-Length: 99999999999999999999999999\r\n", "Bad"),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", "/ with 5"),
        ("Content-Length: 5, 5\r\n", "/ with 5"),
        ("Content-Length: 5\r\nContent-Length: 6\r\n", "Bad"),
        ("Content-Length: 0\r\nContent-Length: 5\r\n", "Bad"),
        ("Content-Length: 5, 6\r\n", "Bad"),
        ("Content-Length: 5,\r\n", "Bad"),
        ("Content-Length: ,5\r\n", "Bad"),
        ("Content-Length:\r\n", "Bad"),
        ("Content-Length: -1\r\n", "Bad"),
        ("Content-Length: +5\r\n", "Bad"),
        ("Content-Length: 0x5\r\n", "Bad"),
        ("Content-Length: 5.0\r\n", "Bad"),
        ("Content-Length: 5 5\r\n", "Bad"),
        ("Content-Length: 5a\r\n", "Bad"),
        ("Content-Length: \u{665}\r\n", "Bad"),
        ("Transfer-Encoding: chunked\r\n", "/ with chunks"),
        ("Transfer-Encoding: CHUNKED\r\n", "/ with chunks"),
        ("Transfer-Encoding: , chunked ,\r\n", "/ with chunks"),
        ("Transfer-Encoding: gzip\r\n", "Coding"),
        ("Transfer-Encoding: identity\r\n", "Coding"),
        ("Transfer-Encoding: xchunked\r\n", "Coding"),
        ("Transfer-Encoding: \"chunked\"\r\n", "Coding"),
        ("Transfer-Encoding: chunked;q=1\r\n", "Coding"),
        ("Transfer-Encoding: gzip, chunked\r\n", "Coding"),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "Coding"),
        ("Transfer-Encoding: chunked, gzip\r\n", "Bad"),
        ("Transfer-Encoding: chunked, chunked\r\n", "Bad"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "Bad"),
        ("Transfer-Encoding:\r\n", "Bad"),
        ("Transfer-Encoding: ,\r\n", "Bad"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "Bad"),
        ("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "Bad"),
        ("Expect: 100-continue\r\n", "/"),
        ("Expect: 100-Continue\r\nContent-Length: 5\r\n", "/ with 5 and close"),
        ("Expect: tea\r\n", "Expectation"),
        ("Expect: 100-continue, tea\r\n", "Expectation"),
    ] {
        assert_eq!(found(&fields("1.1", &format!("Host: x\r\n{lines}"))), expected, "{lines:?}");
    }
    assert_eq!(found(&fields("1.0", "Transfer-Encoding: chunked\r\n")), "Bad", "HTTP/1.0 has no codings");
    assert_eq!(found(&fields("1.0", "Expect: tea\r\n")), "/ and close", "nor expectations");
}

#[test]
fn fields_are_lines_of_a_name_a_colon_and_a_value() {
    for (lines, expected) in [
        ("X: y\r\n", "/"),
        ("X:y\r\n", "/"),
        ("X:\r\n", "/"),
        ("X: \u{e9}\r\n", "/"),
        ("!#$%&'*+-.^_`|~9: y\r\n", "/"),
        ("X : y\r\n", "Bad"),
        ("X\t: y\r\n", "Bad"),
        (" X: y\r\n", "Bad"),
        ("X: y\r\n z\r\n", "Bad"),
        ("X: y\r\n\tz\r\n", "Bad"),
        ("X\r\n", "Bad"),
        (": y\r\n", "Bad"),
        ("X(: y\r\n", "Bad"),
        ("X\u{e9}: y\r\n", "Bad"),
        ("X: a\0b\r\n", "Bad"),
        ("X: a\rb\r\n", "Bad"),
        ("X: a\r\r\n", "Bad"),
        ("X: a\x07b\r\n", "Bad"),
        ("X: a\x7fb\r\n", "Bad"),
    ] {
        assert_eq!(found(&fields("1.1", &format!("Host: x\r\n{lines}"))), expected, "{lines:?}");
    }
    assert_eq!(found("GET / HTTP/1.1\r\n Host: x\r\n\r\n"), "Bad", "nothing is folded into the line");
}

#[test]
fn a_connection_is_kept_as_the_client_says() {
    for (version, lines, is_kept) in [
        ("1.1", "", true),
        ("1.2", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: CLOSE\r\n", false),
        ("1.1", "Connection: foo,Close , bar\r\n", false),
        ("1.1", "Connection: close, keep-alive\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("1.1", "Connection: keep-alive\r\n", true),
        ("1.1", "Connection: closed\r\n", true),
        ("1.1", "X: close\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: foo\r\nConnection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Keep-Alive: 300\r\n", false),
    ] {
        let expected = if is_kept { "/" } else { "/ and close" };
        assert_eq!(found(&fields(version, &format!("Host: x\r\n{lines}"))), expected, "{version} {lines:?}");
    }
}

#[test]
fn fields_with_conditions_are_joined_if_they_are_lists_and_else_count_if_there_is_one() {
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    for (lines, expected) in [
        ("IF-MATCH:  \"a\" \r\n", Conditions { if_match: bytes("\"a\""), ..Conditions::default() }),
        (
            "If-None-Match: \"a\"\r\nX: y\r\nIf-None-Match: W/\"b\"\r\n",
            Conditions { if_none_match: bytes("\"a\",W/\"b\""), ..Conditions::default() },
        ),
        (
            "If-Modified-Since: a\r\nIf-Unmodified-Since: b\r\n",
            Conditions { if_modified_since: bytes("a"), if_unmodified_since: bytes("b"), ..Conditions::default() },
        ),
        ("If-Modified-Since: a\r\nIf-Modified-Since: a\r\n", Conditions::default()),
        (
            "Range: bytes=0-1\r\nIf-Range: a\r\n",
            Conditions { range: bytes("bytes=0-1"), if_range: bytes("a"), ..Conditions::default() },
        ),
        ("Range: bytes=0-1\r\nRange: bytes=2-3\r\n", Conditions::default()),
    ] {
        let request = fields("1.1", &format!("Host: x\r\n{lines}"));
        let Parsed::Request(request, _) = parse(request.as_bytes()) else { panic!("{lines:?}") };
        assert_eq!(request.conditions.as_deref(), Some(&expected), "{lines:?}");
    }
}

#[test]
fn a_part_that_is_too_long_is_refused_by_its_kind() {
    let long = "y".repeat(HEAD_BYTES_MAX);
    let longest = HEAD_BYTES_MAX - "GET / HTTP/1.1\r\nHost: x\r\n\r\n".len();
    for (request, expected) in [
        (line(&format!("GET /{} HTTP/1.1", &long[..longest])), format!("/{}", &long[..longest])),
        (line(&format!("GET /{} HTTP/1.1", &long[..=longest])), "TooLong".to_owned()),
        (format!("GET /{long}"), "TargetTooLong".to_owned()),
        (format!("GET /?{long}"), "TargetTooLong".to_owned()),
        (long.clone(), "TooLong".to_owned()),
        ("\r\n".repeat(HEAD_BYTES_MAX / 2), "TooLong".to_owned()),
        (fields("1.1", &format!("Host: x\r\nX: {long}\r\n")), "TooLong".to_owned()),
        (format!("GET / HTTP/1.1\r\nX: {long}"), "TooLong".to_owned()),
        (fields("1.1", &format!("Host: x\r\n{}", "A: b\r\n".repeat(63))), "/".to_owned()),
        (fields("1.1", &format!("Host: x\r\n{}", "A: b\r\n".repeat(64))), "TooLong".to_owned()),
    ] {
        assert_eq!(found(&request), expected, "{request:.60}");
    }
}

#[test]
fn an_invalid_request_is_refused_before_its_end() {
    for request in ["\u{1}", "GET /\0", "GET / HTTP/1.1\r\nHost", "(", "GET /\ta", " "] {
        let expected = if request.contains("Host") { "partial" } else { "Bad" };
        assert_eq!(found(request), expected, "{request:?}");
    }
    assert_eq!(found("GET / HTTP/2.0\r\n"), "Version");
}

#[test]
fn a_refused_head_is_known_for_one() {
    for (request, is_head) in [
        ("HEAD / HTTP/1.1\r\n\r\n", true),
        ("\r\nHEAD nonsense\r\n", true),
        ("HEAD / HTTP/2.0\r\n", true),
        ("HEADER / HTTP/1.1\r\nHost: x\r\n\r\n", false),
        ("head / HTTP/1.1\r\nHost: x\r\n\r\n", false),
        ("GET / HTTP/1.1\r\n\r\n", false),
    ] {
        let Parsed::Refused(refusal) = parse(request.as_bytes()) else { panic!("{request:?}") };
        assert_eq!(refusal.is_head, is_head, "{request:?}");
    }
}

/// Draws pieces of requests, so that random ones are nearly valid.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "GET ",
        "HEAD ",
        "POST ",
        "/",
        "http://",
        "x",
        ":80",
        "?a",
        "%2e",
        "%",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\n",
        "\r",
        "\r\n\r\n",
        "Host: x",
        "Host:",
        "Content-Length: ",
        "5",
        ",",
        "Transfer-Encoding: chunked",
        "Connection: close",
        " ",
        "\t",
        "\0",
        "[::1]",
        "..",
        "\u{e9}",
        "Expect: 100-continue",
    ]);
    prop::collection::vec(pieces, 0..30).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn no_bytes_make_the_reader_panic_and_no_path_leads_out(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
        let target: String = bytes.iter().map(|byte| format!("%{byte:02x}")).collect();
        if let Parsed::Request(request, _) = parse(line(&format!("GET /{target} HTTP/1.1")).as_bytes()) {
            prop_assert!(request.path.starts_with('/') && request.path.split('/').all(|part| part != ".."));
            prop_assert!(!request.path.contains("//") && !request.path.contains(['\0', '\\']));
        }
    }

    #[test]
    fn a_result_does_not_change_when_more_bytes_follow(bytes in nearly(), rest in nearly()) {
        let more = [&bytes[..], &rest].concat();
        match parse(&bytes) {
            Parsed::Partial => {}
            known => prop_assert_eq!(parse(&more), known),
        }
    }

    #[test]
    fn a_request_is_the_same_however_little_of_what_follows_is_there(rest in ".{0,50}") {
        let request = line("GET /a%20b?c HTTP/1.1");
        let (path, query) = ("/a b".to_owned(), Some("c".to_owned()));
        let (content, conditions) = (Content::None, None);
        let expected = Request { method: Method::Get, path, query, is_kept: true, is_old: false, content, conditions };
        prop_assert_eq!(parse(format!("{request}{rest}").as_bytes()), Parsed::Request(expected, request.len()));
        for len in 0..request.len() {
            prop_assert_eq!(parse(&request.as_bytes()[..len]), Parsed::Partial);
        }
    }
}

#[test]
fn a_refusal_says_why() {
    let refusal = Refusal { reason: Reason::TooLong, is_head: false };
    assert_eq!(parse(&vec![b'a'; HEAD_BYTES_MAX]), Parsed::Refused(refusal));
}
