//! The server as clients of another TCP stack see it.

mod site;

use std::fs;

use http_server::HttpServer;
use http_server::config::Config;
use pinion_sdk::net::Server;
use pinion_sdk::{Function, clock};
use site::{Site, body, field, get, status};

const PAGES: &str = "page / <h1>hello</h1>\npage /style.css body { margin: 0 }\nfill /big.bin 5242880\nfill /empty 0\n";

#[test]
fn a_page_comes_with_its_length_and_type_and_the_connection_is_kept() {
    let mut site = Site::new(PAGES);
    let client = site.connect();
    for _ in 0..3 {
        let answer = site.ask(client, get("/"));
        assert_eq!(
            answer,
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nETag: \"{}\"\r\nAccept-Ranges: bytes\r\n\
                 Content-Length: 15\r\n\r\n<h1>hello</h1>\n",
                // Of SHA-256, the first half.
                "186ea20da38447cf0c59fa62a9dfaea3"
            )
        );
    }
    let answer = site.ask(client, get("/style.css?v=2"));
    assert!(answer.contains("Content-Type: text/css; charset=utf-8\r\n") && answer.ends_with("body { margin: 0 }\n"));
    assert!(site.0.is_connected(client));
}

#[test]
fn a_head_request_gets_the_head_alone() {
    let mut site = Site::new(PAGES);
    let client = site.connect();
    let answer = site.ask(client, "HEAD /big.bin HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.contains("Content-Length: 5242880\r\n") && body(&answer).is_empty(), "{answer}");
    assert_eq!(body(&site.ask(client, get("/empty"))), "");
    assert_eq!(body(&site.ask(client, get("/"))), "<h1>hello</h1>\n", "and what comes next is in its place");
}

#[test]
fn an_answer_to_head_is_that_to_get_without_its_body_whatever_it_says() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("docs")).unwrap();
    fs::write(folder.path().join("page.html"), "page").unwrap();
    let mut site = Site::new(&format!("root {}\n", folder.path().display()));
    for (rest, expected) in [
        ("/page.html HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
        ("/none HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"),
        ("/docs?x HTTP/1.1\r\nHost: x\r\n\r\n", "301 Moved Permanently"),
        ("/ HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("/ HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 Bad Request"),
        ("/ HTTP/1.1\r\nHost: x\r\nX : y\r\n\r\n", "400 Bad Request"),
        ("nonsense\r\n", "400 Bad Request"),
        ("/ HTTP/2.0\r\n\r\n", "505 HTTP Version Not Supported"),
        (&"/".repeat(9_000), "414 URI Too Long"),
        (&format!("/ HTTP/1.1\r\nX: {}", "x".repeat(9_000)), "431 Request Header Fields Too Large"),
    ] {
        let (head, got) = (site.ask_anew(format!("HEAD {rest}")), site.ask_anew(format!("GET {rest}")));
        assert_eq!(status(&head), format!("HTTP/1.1 {expected}"), "{rest:.60}");
        let end = got.find("\r\n\r\n").unwrap() + 4;
        assert!(end < got.len(), "GET has a body");
        assert_eq!(head, got[..end], "{rest:.60}");
    }
}

#[test]
fn a_target_for_a_proxy_means_its_path_alone() {
    let mut site = Site::new("page / front\npage /f.txt file\n");
    for (target, content) in [
        ("http://x", "front\n"),
        ("http://x?p=/f.txt", "front\n"),
        ("http://x/?p=/f.txt", "front\n"),
        ("HTTP://x:8080/f.txt?p=/", "file\n"),
        ("/?http://x/f.txt", "front\n"),
    ] {
        let answer = site.ask_anew(get(target));
        assert_eq!((status(&answer), body(&answer)), ("HTTP/1.1 200 OK", content), "{target}");
    }
}

#[test]
fn the_content_of_a_request_is_skipped_to_find_the_next() {
    let mut site = Site::new(PAGES);
    let long =
        format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048575\r\n\r\n{}", "x".repeat(1_048_575 - 200_000));
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", "200 OK"),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", "200 OK"),
        ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /", "405 Method Not Allowed"),
        ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "200 OK"),
        (
            "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\"b\"\r\nhe\r\no\r\n0A \r\n0123456789\r\n\
             000\r\nX: y\r\nZ: 1\r\n\r\n",
            "405 Method Not Allowed",
        ),
        (&long, "405 Method Not Allowed"),
    ] {
        let client = site.connect();
        let answer = if request.len() > 1_000 {
            // The client's buffer holds a mebibyte.
            let first = site.ask(client, request);
            first + &site.ask(client, format!("{}{}", "x".repeat(200_000), get("/style.css")))
        } else {
            site.ask(client, format!("{request}{}", get("/style.css")))
        };
        assert_eq!(status(&answer), format!("HTTP/1.1 {expected}"), "{request:.60}");
        assert!(answer.ends_with("\r\n\r\nbody { margin: 0 }\n"), "{request:.60}: {answer}");
        assert!(site.0.is_connected(client), "{request:.60}");
        // And byte by byte.
        let answer_in_pieces: String = if request.len() > 1_000 {
            answer.clone()
        } else {
            let client = site.connect();
            format!("{request}{}", get("/style.css")).bytes().map(|byte| site.ask(client, [byte])).collect()
        };
        assert_eq!(answer_in_pieces, answer, "{request:.60}");
        site.0.abort(client);
    }
}

#[test]
fn content_whose_end_is_not_certain_ends_the_connection_with_the_answer() {
    let mut site = Site::new(PAGES);
    let chunked = "GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long_line = format!("{chunked}1;{}\r\n", "x".repeat(300));
    let half_and_more = format!("{chunked}80000\r\n{}\r\n80000\r\n", "x".repeat(1 << 19));
    let long_trailers = format!("{chunked}0\r\nX: {}\r\n\r\n", "x".repeat(5_000));
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        &format!("{chunked}\r\n"),
        &format!("{chunked};a\r\n"),
        &format!("{chunked}x\r\n"),
        &format!("{chunked}-1\r\n"),
        &format!("{chunked}+1\r\n"),
        &format!("{chunked} 1\r\n"),
        &format!("{chunked}0x1\r\n"),
        &format!("{chunked}1\na\r\n0\r\n\r\n"),
        &format!("{chunked}1;a\nb\r\na\r\n0\r\n\r\n"),
        &format!("{chunked}1\rXa\r\n0\r\n\r\n"),
        &format!("{chunked}1\r\nab\r\n0\r\n\r\n"),
        &format!("{chunked}1\r\na\n0\r\n\r\n"),
        &format!("{chunked}11111111111111111\r\n"),
        &format!("{chunked}ffffffffffffffff\r\n"),
        &format!("{chunked}100000\r\n"),
        &half_and_more,
        &format!("{chunked}0\r\nX : y\r\n\r\n"),
        &format!("{chunked}0\r\n X: y\r\n\r\n"),
        &long_line,
        &long_trailers,
    ] {
        let client = site.connect();
        // The following bytes may be content as well as a request.
        let answer = site.ask(client, format!("{request}{}", get("/style.css")));
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{request:?}: {answer}");
        assert!(site.0.is_ended(client), "{request:.200?}");
        site.0.abort(client);
    }
}

#[test]
fn content_that_does_not_come_ends_the_connection() {
    let mut site = Site::new(&format!("idle_s 60\n{PAGES}"));
    let client = site.connect();
    let answer = site.ask(client, "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(status(&answer), "HTTP/1.1 200 OK");
    for byte in ["1", "2", "3"] {
        assert!(site.0.is_connected(client));
        site.0.send(client, byte.as_bytes());
        site.0.let_pass_ns(4_000_000_000);
    }
    assert!(site.0.is_ended(client), "it may take 10 s");
}

#[test]
fn clients_that_take_nothing_of_their_answers_make_room_for_others_in_time() {
    let mut site = Site::new(&format!("connections 8\n{PAGES}"));
    let stuck: Vec<_> = (0..8).map(|_| site.connect_with_window(1_000)).collect();
    for client in &stuck {
        // They answer each window probe with a zero window, and send another request.
        site.0.send(*client, get("/big.bin").as_bytes());
    }
    site.0.let_pass_ns(30_000_000_000);
    let late = site.connect();
    assert!(stuck.iter().all(|client| site.0.is_connected(*client)) && !site.0.is_connected(late));
    let since_ns = clock::now_ns();
    site.0.until(|network| network.is_connected(late));
    assert!(clock::now_ns() - since_ns < 64_000_000_000, "a minute, and until it asks again");
    site.0.settle();
    assert!(stuck.iter().all(|client| site.0.is_closed(*client)), "they are reset");
    assert_eq!(status(&site.ask(late, get("/"))), "HTTP/1.1 200 OK");
}

#[test]
fn a_client_that_is_slow_gets_all_of_it() {
    let mut site = Site::new("fill /some 300000\n");
    let client = site.connect_with_window(6_000);
    site.0.send(client, get("/some").as_bytes());
    let (mut received, since_ns) = (0, clock::now_ns());
    while received < 300_000 {
        site.0.let_pass_ns(4_000_000_000);
        let more = site.0.received(client).len();
        assert!(more > 0, "{received} bytes");
        received += more;
    }
    assert!(site.0.is_connected(client));
    assert!(clock::now_ns() - since_ns > 180_000_000_000, "it took longer than a client may take nothing");
}

#[test]
fn a_client_that_takes_less_than_a_kibibyte_a_second_is_reset() {
    // One response that does not fit the send buffer, several that do, and the last one of a connection.
    let close = "GET /some HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned();
    for requests in [get("/big"), get("/some").repeat(3), get("/some").repeat(100), close] {
        let mut site = Site::new("fill /big 1000000\nfill /some 19000\n");
        let client = site.connect_with_window(1_000);
        let since_ns = clock::now_ns();
        site.0.send(client, requests.as_bytes());
        let mut taken = 0;
        while !site.0.is_closed(client) {
            // For TCP this is enough.
            site.0.let_pass_ns(5_000_000_000);
            taken += site.0.received(client).len();
            assert!(clock::now_ns() - since_ns < 130_000_000_000, "{taken} bytes taken of {requests:.60}");
        }
        assert!(taken > 5_000, "{taken}");
    }
}

#[test]
fn a_connection_has_so_many_requests_and_an_hour() {
    let mut site = Site::new(&format!("requests 3\n{PAGES}"));
    let client = site.connect();
    let answers = site.ask(client, get("/style.css").repeat(5));
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3);
    assert_eq!(answers.matches("Connection: close\r\n").count(), 1);
    assert!(answers.rsplit("HTTP/1.1").next().unwrap().contains("Connection: close\r\n") && site.0.is_ended(client));
    let mut site = Site::new(&format!("idle_s 2000\n{PAGES}"));
    let client = site.connect();
    for expected in [None, None, Some("close")] {
        assert_eq!(field(&site.ask(client, get("/")), "Connection"), expected);
        site.0.let_pass_ns(1_900_000_000_000);
    }
    assert!(site.0.is_ended(client));
    let mut site = Site::new(PAGES);
    let client = site.connect();
    let heads = "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1_001);
    assert_eq!(site.ask(client, heads).matches("HTTP/1.1 200 OK").count(), 1_000, "unless it is said");
}

#[test]
fn a_part_of_the_next_request_has_a_requests_time() {
    let mut site = Site::new(&format!("idle_s 60\n{PAGES}"));
    let client = site.connect();
    let answer = site.ask(client, format!("{}GET / HT", get("/")));
    assert_eq!(status(&answer), "HTTP/1.1 200 OK");
    let idle = site.connect();
    assert_eq!(status(&site.ask(idle, format!("\r\n{}\r\n", get("/")))), "HTTP/1.1 200 OK");
    site.0.let_pass_ns(11_000_000_000);
    assert!(site.0.is_ended(client) && site.0.is_connected(idle));
}

#[test]
fn a_large_file_comes_whole() {
    let mut site = Site::new(PAGES);
    let client = site.connect();
    let answer = site.ask(client, get("/big.bin"));
    let body = body(&answer).as_bytes();
    assert_eq!(body.len(), 5 << 20);
    for (number, line) in body.chunks(64).enumerate() {
        assert!(line.starts_with(format!("{number:016x}.").as_bytes()) && line.ends_with(b".\n"), "line {number}");
    }
}

#[test]
fn requests_that_come_at_once_are_answered_in_their_order() {
    let mut site = Site::new(PAGES);
    let client = site.connect();
    let paths = ["/", "/style.css", "/nothing", "/", "/big.bin", "/style.css"];
    let answer = site.ask(client, paths.map(get).concat());
    let mut rest = answer.as_str();
    for path in paths {
        let (head, behind) = rest.split_once("\r\n\r\n").unwrap();
        let expected = if path == "/nothing" { "404 Not Found" } else { "200 OK" };
        assert!(head.starts_with(&format!("HTTP/1.1 {expected}\r\n")), "{path}: {head}");
        let len = head.split("Content-Length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
        rest = &behind[len..];
    }
    assert!(rest.is_empty());
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let mut site = Site::new(PAGES);
    let client = site.connect();
    let request = get("/");
    let (last, first) = request.as_bytes().split_last().unwrap();
    for byte in first {
        assert_eq!(site.ask(client, char::from(*byte).to_string()), "");
    }
    assert_eq!(status(&site.ask(client, char::from(*last).to_string())), "HTTP/1.1 200 OK");
}

#[test]
fn connections_are_closed_when_the_client_wants_it_and_kept_with_old_ones_only_if_they_say_so() {
    let mut site = Site::new(PAGES);
    for (request, is_kept) in [
        ("GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, Close\r\n\r\n", false),
        ("GET / HTTP/1.0\r\n\r\n", false),
        ("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", true),
    ] {
        let client = site.connect();
        let answer = site.ask(client, request);
        assert_eq!(status(&answer), "HTTP/1.1 200 OK");
        assert_eq!(answer.contains("Connection: close\r\n"), !is_kept, "{request}");
        assert_eq!(site.0.is_ended(client), !is_kept, "{request}");
        let is_old = request.contains("1.0");
        assert_eq!(answer.contains("Connection: keep-alive\r\n"), is_kept && is_old, "{request}");
        site.0.abort(client);
    }
}

#[test]
fn an_invalid_request_is_refused_and_its_connection_closed() {
    let mut site = Site::new(PAGES);
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(9000));
    let endless = format!("GET /{}", "y".repeat(9000));
    let many = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(100));
    for (request, expected) in [
        ("nonsense\r\n\r\n", "400 Bad Request"),
        ("\u{1}\u{2}\u{3}", "400 Bad Request"),
        ("GET / HTTP/1.1\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "400 Bad Request"),
        ("GET /../secret HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request"),
        ("GET /%2e%2e/secret HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request"),
        ("GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request"),
        ("GET /a%2fb HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request"),
        ("GET x HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
        (&many, "431 Request Header Fields Too Large"),
        (&endless, "414 URI Too Long"),
        ("GET / HTTP/3.0\r\nHost: x\r\n\r\n", "505 HTTP Version Not Supported"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 HTTP Version Not Supported"),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400 Bad Request"),
        ("BREW / HTTP/1.1\r\nHost: x\r\n\r\n", "501 Not Implemented"),
        ("GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "501 Not Implemented"),
        ("GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", "417 Expectation Failed"),
        ("GET https://x/ HTTP/1.1\r\nHost: x\r\n\r\n", "421 Misdirected Request"),
    ] {
        let client = site.connect();
        let answer = site.ask(client, request);
        assert_eq!(status(&answer), format!("HTTP/1.1 {expected}"), "{request:.60}");
        assert!(answer.contains("Connection: close\r\n") && site.0.is_ended(client), "{request:.60}");
        site.0.close(client);
        site.0.settle();
    }
    assert_eq!(status(&site.ask_anew(get("/"))), "HTTP/1.1 200 OK");
}

#[test]
fn a_directory_is_served_whatever_happens_in_it_and_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("www");
    fs::create_dir_all(root.join("a b/deep")).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    fs::write(root.join("index.html"), "front").unwrap();
    fs::write(root.join("a b/index.html"), "inner").unwrap();
    fs::write(root.join("photo.JPG"), "jpeg").unwrap();
    let mut site = Site::new(&format!("root {}\n", root.display()));
    for (path, expected, content) in [
        ("/", "200 OK", "front"),
        ("/index.html", "200 OK", "front"),
        ("/a%20b/", "200 OK", "inner"),
        ("/photo.JPG", "200 OK", "jpeg"),
        ("/photo.JPG/", "404 Not Found", "404 Not Found\n"),
        ("/a%20b", "301 Moved Permanently", "301 Moved Permanently\n"),
        ("/a%20b/deep/", "404 Not Found", "404 Not Found\n"),
        ("/none", "404 Not Found", "404 Not Found\n"),
        ("/index.html/none", "404 Not Found", "404 Not Found\n"),
        ("http://x/photo.JPG", "200 OK", "jpeg"),
    ] {
        let answer = site.ask_anew(get(path));
        assert_eq!((status(&answer), body(&answer)), (format!("HTTP/1.1 {expected}").as_str(), content), "{path}");
    }
    for (path, location) in [
        ("/a%20b", "/a%20b/"),
        ("/a%20b?x=1", "/a%20b/?x=1"),
        ("/a%20b?", "/a%20b/?"),
        ("/a%20b?x=/y?z|%0d%0a", "/a%20b/?x=/y?z|%0d%0a"),
        ("/a%20b/deep?é", "/a%20b/deep/?%C3%A9"),
        ("http://x/a%20b?x=1", "/a%20b/?x=1"),
        // No location leads to another host.
        ("//a%20b", "/a%20b/"),
        ("http://x//a%20b?//y", "/a%20b/?//y"),
        ("///x/../a%20b", "/a%20b/"),
    ] {
        let answer = site.ask_anew(get(path));
        assert_eq!(status(&answer), "HTTP/1.1 301 Moved Permanently", "{path}");
        assert!(answer.contains(&format!("Location: {location}\r\n")), "{path}: {answer}");
    }
    for path in ["/%2fa%20b", "/%5ca%20b", "/.%2e/a%20b", "//../a%20b"] {
        let answer = site.ask_anew(get(path));
        assert_eq!(status(&answer), "HTTP/1.1 400 Bad Request", "{path}");
        assert!(!answer.contains("Location"), "{path}: it leads to no other host");
    }
    assert!(site.ask_anew(get("/photo.JPG")).contains("Content-Type: image/jpeg\r\n"));
    fs::write(root.join("new.txt"), "new").unwrap();
    assert_eq!(body(&site.ask_anew(get("/new.txt"))), "new");
}

#[test]
fn connections_without_a_complete_request_are_closed() {
    let mut site = Site::new(&format!("idle_s 5\n{PAGES}"));
    let (silent, slow) = (site.connect(), site.connect());
    for line in ["GET / HTTP/1.1\r\n", "Host: x\r\n", "A: b\r\n", "C: d\r\n"] {
        site.0.send(slow, line.as_bytes());
        site.0.let_pass_ns(1_100_000_000);
    }
    assert!(site.0.is_connected(silent) && site.0.is_connected(slow));
    site.0.let_pass_ns(2_000_000_000);
    assert!(site.0.is_ended(silent), "nothing was asked within 5 s");
    assert!(site.0.is_connected(slow), "a request may take 10 s");
    site.0.let_pass_ns(5_000_000_000);
    assert!(site.0.is_ended(slow));
}

#[test]
fn six_connections_of_a_browsers_are_served_side_by_side() {
    let mut site = Site::new(PAGES);
    let clients: Vec<_> = (0..6).map(|_| site.connect()).collect();
    for client in &clients {
        site.0.send(*client, get("/big.bin").as_bytes());
    }
    let mut received = [0; 6];
    site.0.until(|network| {
        for (sum, client) in received.iter_mut().zip(&clients) {
            *sum += network.received(*client).len();
        }
        let (least, most) = (received.iter().min().unwrap(), received.iter().max().unwrap());
        assert!(most - least < 1 << 20, "none is far ahead of the others: {received:?}");
        received.iter().all(|sum| *sum > 5 << 20)
    });
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused_with_its_line() {
    for (config, refusal) in [
        ("", "there is nothing to serve: add a line like `root /www` or `page / Hello`"),
        ("root /a\npage / x", "files come from `root /a`, or from `page` and `fill`: use one of them"),
        ("root www", "configuration, line 1: \"www\" is not the absolute path of a directory"),
        ("# all\nport 0", "configuration, line 2: \"0\" is no number from 1 to 65535"),
        ("port 1\nport 2", "configuration, line 2: `port` is said twice"),
        ("page / a\npage / b", "configuration, line 2: there is / already"),
        ("page a b", "configuration, line 1: \"a\" is not an absolute path"),
        ("requests 0\npage / x", "configuration, line 1: \"0\" is no number from 1 to 1000000000"),
        ("fill /a b", "configuration, line 1: \"b\" is no number from 0 to 1099511627776"),
        (
            "serve /www",
            "configuration, line 1: `serve` is not known: there are `root DIRECTORY`, `port N`, `connections N`, `idle_s N`, \
             `requests N`, `page PATH TEXT` and `fill PATH BYTES`",
        ),
    ] {
        assert_eq!(Config::parse(config.as_bytes()).unwrap_err().to_string(), refusal);
    }
    assert!(Server::<HttpServer>::init(b"page / x\nconnections 5000").is_err());
}
