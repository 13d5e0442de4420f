//! What is said and answered.

mod common;

use common::dialogues::{DIALOGUES, expand};
use common::{Client, Server, masked};
use memcached::session::Status;

#[test]
fn every_known_request_has_its_known_answer() {
    for (description, exchanges) in DIALOGUES {
        let mut server = Server::new("");
        let mut client = Client::default();
        for (request, answer) in *exchanges {
            let request = expand(request).replace('#', &"x".repeat(1_100_000));
            let answered = server.ask(&mut client, request.as_bytes());
            let shown = &request[..request.len().min(80)];
            assert_eq!(masked(&answered), expand(answer), "{description}: {shown:?}");
        }
    }
}

#[test]
fn a_connection_ends_with_quit_a_request_of_http_the_binary_protocol_or_its_end() {
    for (request, answer) in
        [("version\r\nquit\r\nversion\r\n", "VERSION 1.6.18\r\n"), ("GET / HTTP/1.1\r\n\r\n", ""), ("\u{80}", "")]
    {
        let mut server = Server::new("");
        let mut client = Client::default();
        let bytes: Vec<u8> = request.chars().map(|character| character as u8).collect();
        assert_eq!(server.ask(&mut client, &bytes), answer.as_bytes(), "{request:?}");
        assert_eq!(client.status, Status::Closed, "{request:?}");
    }
    let mut server = Server::new("");
    let mut client = Client::default();
    client.wire.is_ended = true;
    assert_eq!(server.ask(&mut client, b"version\r\nvers"), b"VERSION 1.6.18\r\n");
    assert_eq!(client.status, Status::Closed);
}

#[test]
fn items_expire_at_their_second() {
    let mut server = Server::new("");
    let mut client = Client::default();
    let mut ask =
        |server: &mut Server, request: &str| String::from_utf8(server.ask(&mut client, request.as_bytes())).unwrap();
    let now_s = server.now_ns / 1_000_000_000;
    ask(&mut server, "set relative 0 10 1\r\n1\r\nset longest 0 2592000 1\r\n1\r\nset never 0 0 1\r\n1\r\n");
    ask(&mut server, &format!("set absolute 0 {} 1\r\n1\r\nset past 0 {} 1\r\n1\r\n", now_s + 20, now_s - 1));
    let keys = "get relative absolute longest never past\r\n";
    let found = |answer: String| answer.matches("VALUE").count();
    assert_eq!(ask(&mut server, "mg relative t\r\nmg absolute t\r\n"), "HD t10\r\nHD t20\r\n");
    server.pass(9);
    assert_eq!(ask(&mut server, "mg relative t l h u\r\n"), "HD t1 l9 h1\r\n");
    assert_eq!(found(ask(&mut server, keys)), 4);
    server.pass(1);
    assert_eq!(found(ask(&mut server, keys)), 3);
    assert_eq!(
        ask(&mut server, "gat 100 absolute\r\nmg absolute t\r\n"),
        "VALUE absolute 0 1\r\n1\r\nEND\r\nHD t100\r\n"
    );
    server.pass(99);
    assert_eq!(found(ask(&mut server, keys)), 3);
    server.pass(1);
    assert_eq!(found(ask(&mut server, keys)), 2);
    server.pass(2_592_000);
    assert_eq!(found(ask(&mut server, keys)), 1);
}

#[test]
fn a_flush_may_be_delayed() {
    let mut server = Server::new("");
    assert_eq!(server.ask_anew("set a 0 0 1\r\n1\r\nflush_all 10\r\n"), "STORED\r\nOK\r\n");
    server.pass(8);
    assert_eq!(server.ask_anew("get a\r\n"), "VALUE a 0 1\r\n1\r\nEND\r\n");
    server.pass(2);
    assert_eq!(server.ask_anew("get a\r\nset a 0 0 1\r\n2\r\n"), "END\r\nSTORED\r\n");
    server.pass(100);
    assert_eq!(server.ask_anew("get a\r\n"), "VALUE a 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn statistics_are_of_what_happened() {
    let mut server = Server::new("memory = \"2m\"\nport = 1234\nudp = true\nitem_size_max = \"64k\"");
    server.ask_anew(
        "set a 0 0 3\r\nabc\r\nget a b c\r\nincr a 1\r\nincr b 1\r\ndelete a\r\ndelete a\r\nset b 0 0 1\r\n1\r\n",
    );
    server.ask_anew(
        "touch b 0\r\ntouch c 0\r\ncas b 0 0 1 9\r\n1\r\nflush_all 100\r\nincr b 1\r\nmg b\r\nset c 0 0 70000\r\n",
    );
    server.pass(30);
    let stats = server.ask_anew("stats\r\n");
    let value = |stats: &str, name: &str| {
        let found = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")).map(str::to_owned));
        found.unwrap_or_else(|| panic!("there is no {name} in {stats}"))
    };
    for (name, expected) in [
        ("uptime", "30"),
        ("time", "1767225630"),
        ("version", "1.6.18"),
        ("cmd_get", "4"),
        ("get_hits", "2"),
        ("get_misses", "2"),
        ("cmd_set", "3"),
        ("cmd_touch", "2"),
        ("touch_hits", "1"),
        ("touch_misses", "1"),
        ("cmd_flush", "1"),
        ("delete_hits", "1"),
        ("delete_misses", "1"),
        ("incr_hits", "1"),
        ("incr_misses", "1"),
        ("cas_badval", "1"),
        ("store_too_large", "1"),
        ("curr_items", "1"),
        ("total_items", "2"),
        ("bytes", "61"),
        ("limit_maxbytes", "2097152"),
    ] {
        assert_eq!(value(&stats, name), expected, "{name}");
    }
    let slabs = server.ask_anew("stats slabs\r\n");
    assert_eq!((value(&slabs, "1:used_chunks"), value(&slabs, "total_malloced")), ("1".into(), "65536".into()));
    let items = server.ask_anew("stats items\r\n");
    assert_eq!((value(&items, "items:1:number"), value(&items, "items:1:age")), ("1".into(), "30".into()));
    let settings = server.ask_anew("stats settings\r\n");
    for (name, expected) in
        [("tcpport", "1234"), ("udpport", "1234"), ("item_size_max", "65536"), ("maxbytes", "2097152")]
    {
        assert_eq!(value(&settings, name), expected, "{name}");
    }
    assert_eq!(server.ask_anew("stats reset\r\n"), "RESET\r\n");
    assert_eq!(value(&server.ask_anew("stats\r\n"), "get_hits"), "0");
}
