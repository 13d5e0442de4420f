//! Requests and answers over UDP.

mod common;

use common::{Client, Server};

fn request(id: u16, text: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes()[..], &[0, 0, 0, 1, 0, 0], text].concat()
}

/// Joins the datagrams of one answer, whose headers must be right.
fn joined(id: u16, datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (sequence, datagram) in datagrams.iter().enumerate() {
        let (header, data) = datagram.split_at(8);
        let numbers = [id, sequence as u16, datagrams.len() as u16, 0].map(u16::to_be_bytes);
        assert_eq!(header, numbers.as_flattened(), "datagram {sequence}");
        assert!(datagram.len() <= 1400 && !data.is_empty());
        assert!(datagram.len() == 1400 || sequence + 1 == datagrams.len(), "datagram {sequence} has room");
        text.extend_from_slice(data);
    }
    text
}

#[test]
fn an_answer_has_as_many_datagrams_as_it_needs() {
    let mut server = Server::new("");
    assert_eq!(joined(7, &server.ask_datagram(&request(7, b"set a 0 0 3\r\nabc\r\n"))), b"STORED\r\n");
    assert_eq!(joined(65535, &server.ask_datagram(&request(65535, b"get a b\r\n"))), b"VALUE a 0 3\r\nabc\r\nEND\r\n");
    let mut client = Client::default();
    // The answer around a value of 1 byte has 23.
    for len in [1, 1300, 1366, 1367, 1368, 2760, 100_000, 1_000_000] {
        let value: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        server.ask(&mut client, &[format!("set large 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat());
        let expected = server.ask(&mut client, b"get large a large\r\n");
        let datagrams = server.ask_datagram(&request(1, b"get large a large\r\n"));
        assert_eq!(joined(1, &datagrams), expected, "{len}");
        assert_eq!(datagrams.len(), expected.len().div_ceil(1392), "{len}");
    }
}

#[test]
fn each_command_of_a_datagram_has_an_answer_of_its_own() {
    let mut server = Server::new("");
    let datagrams =
        server.ask_datagram(&request(9, b"set a 0 0 1\r\n1\r\nset b 0 0 1 noreply\r\n1\r\nget a b\r\nget x\r\n"));
    let texts: Vec<Vec<u8>> = datagrams.iter().map(|datagram| joined(9, std::slice::from_ref(datagram))).collect();
    assert_eq!(texts, [&b"STORED\r\n"[..], b"VALUE a 0 1\r\n1\r\nVALUE b 0 1\r\n1\r\nEND\r\n", b"END\r\n"]);
}

#[test]
fn datagrams_that_are_no_whole_request_are_ignored() {
    let mut server = Server::new("");
    let whole = request(1, b"version\r\n");
    for len in 0..whole.len() {
        assert!(server.ask_datagram(&whole[..len]).is_empty(), "{len} bytes were answered");
    }
    for (description, text) in [("of several", [0, 0, 0, 2, 0, 0]), ("of none", [0, 0, 0, 0, 0, 0])] {
        assert!(
            server.ask_datagram(&[&[0, 1][..], &text, b"version\r\n"].concat()).is_empty(),
            "one {description} was answered"
        );
    }
    assert!(server.ask_datagram(&request(1, b"\x80\x0b\r\n")).is_empty());
    assert!(server.ask_datagram(&request(1, b"quit\r\nversion\r\n")).is_empty());
    assert!(server.ask_datagram(&request(1, b"set a 0 0 10\r\nabc\r\n")).is_empty());
    assert_eq!(joined(2, &server.ask_datagram(&request(2, b"get a\r\n"))), b"END\r\n");
}

#[test]
fn an_answer_that_is_given_up_gives_back_what_it_held() {
    let mut server = Server::new("");
    server.ask_anew(format!("set a 0 0 100000\r\n{}\r\n", "x".repeat(100_000)));
    let mut answers = memcached::datagram::Answers::new(&request(1, b"get a a a\r\n")).unwrap();
    let mut buffer = [0; 1400];
    assert_eq!(answers.next(&mut server.store, &server.settings, &mut buffer), Some(1400));
    server.ask_anew("delete a\r\n");
    assert!(server.store.arena().used() > 800);
    drop(answers);
    server.ask_anew("version\r\n");
    assert_eq!(server.store.arena().used(), 0);
}
