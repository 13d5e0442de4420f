//! Clients that do not keep to the protocol: each gets the alert that fits, or is closed, and others are served.

mod common;

use std::io::Write;
use std::sync::Arc;

use common::{Authority, Bed, FRONT, Kind, SITE, fatal_alert, hello};
use pinion_sdk::testing::{FakeKey, grant_key};
use rustls::{AlertDescription, ClientConfig, Error};

const SECOND_NS: u64 = 1_000_000_000;
/// Alerts of RFC 8446, section 6.
const DECODE_ERROR: u8 = 50;
const HANDSHAKE_FAILURE: u8 = 40;
const PROTOCOL_VERSION: u8 = 70;
const UNEXPECTED_MESSAGE: u8 = 10;
/// What is no TLS: plain HTTP, and a client's hello of SSL 2 with one suite.
const HTTP: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
const SSL2: &[u8] =
    &[0x80, 0x1c, 1, 0, 2, 0, 3, 0, 0, 0, 16, 7, 0, 0xc0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];
/// A record with the alert that nothing more comes.
const CLOSE_NOTIFY: [u8; 7] = [21, 3, 3, 0, 2, 1, 0];

fn bed() -> (Authority, Bed, Arc<ClientConfig>) {
    let authority = Authority::new();
    let bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let config = Arc::new(authority.any_client());
    (authority, bed, config)
}

/// Makes a hello of an old version, with these extensions.
fn old_hello(minor: u8, extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, minor];
    body.extend([7; 32]);
    // No session; two suites with RSA and AES; no compression.
    body.extend([0, 0, 4, 0, 0x2f, 0, 0x35, 1, 0]);
    body.extend(extensions);
    let mut record = vec![22, 3, minor, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    record.extend(body);
    record
}

#[test]
fn what_is_no_tls_gets_an_alert() {
    let (_authority, mut bed, config) = bed();
    for garbage in [HTTP, b"SSH-2.0-x\r\n", SSL2, &[0; 100], &[0xff; 3000]] {
        let (answer, is_ended) = bed.ask_raw(garbage);
        assert_eq!(fatal_alert(&answer), Some(DECODE_ERROR), "{garbage:?}");
        assert!(is_ended);
    }
    bed.assert_serves(&config);
}

#[test]
fn versions_before_1_2_are_refused() {
    let (_authority, mut bed, config) = bed();
    // That for schemes of signatures, which TLS 1.2 has brought: RSA with SHA-256.
    let schemes = [0, 8, 0, 13, 0, 4, 0, 2, 4, 1];
    for (extensions, alert) in [(&schemes[..], PROTOCOL_VERSION), (&[], HANDSHAKE_FAILURE)] {
        for minor in 0..=2 {
            let (answer, is_ended) = bed.ask_raw(&old_hello(minor, extensions));
            assert_eq!(fatal_alert(&answer), Some(alert), "3.{minor}");
            assert!(is_ended);
        }
    }
    bed.assert_serves(&config);
}

#[test]
fn a_hello_may_come_by_bytes_and_in_records_of_a_byte() {
    let (_authority, mut bed, config) = bed();
    let hello = hello(&config);
    let socket = bed.socket();
    for byte in &hello {
        bed.0.send(socket, &[*byte]);
        bed.0.let_pass_ns(1_000);
    }
    bed.0.settle();
    assert_eq!(bed.0.received(socket)[0], 22, "the server's hello");
    let records: Vec<u8> = hello[5..].iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
    let (answer, _) = bed.ask_raw(&records);
    assert_eq!(answer[0], 22, "the server's hello");
    bed.assert_serves(&config);
}

#[test]
fn records_and_messages_that_are_too_long_are_refused() {
    let (_authority, mut bed, config) = bed();
    let record = [&[22, 3, 3, 0x48, 1][..], &[1; 20_000]].concat();
    let (answer, is_ended) = bed.ask_raw(&record);
    assert_eq!(fatal_alert(&answer), Some(DECODE_ERROR));
    assert!(is_ended);
    let message = [&[22, 3, 3, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[1; 16_380]].concat();
    let (answer, is_ended) = bed.ask_raw(&message);
    assert_eq!(fatal_alert(&answer), Some(DECODE_ERROR));
    assert!(is_ended);
    // The same in records of a byte, of which the length is known after four.
    let records: Vec<u8> = [1, 1, 0, 0, 1].iter().flat_map(|byte| [22, 3, 1, 0, 1, *byte]).collect();
    let (answer, is_ended) = bed.ask_raw(&records);
    assert_eq!(fatal_alert(&answer), Some(DECODE_ERROR));
    assert!(is_ended);
    bed.assert_serves(&config);
}

#[test]
fn messages_out_of_order_get_an_alert() {
    let (_authority, mut bed, config) = bed();
    let finished = [22, 3, 3, 0, 8, 20, 0, 0, 4, 1, 2, 3, 4];
    let (answer, is_ended) = bed.ask_raw(&finished);
    assert_eq!(fatal_alert(&answer), Some(UNEXPECTED_MESSAGE));
    assert!(is_ended);
    bed.assert_serves(&config);
}

#[test]
fn other_records_between_those_of_one_message_and_empty_ones_get_an_alert() {
    let (_authority, mut bed, config) = bed();
    let between = [22, 3, 1, 0, 4, 1, 0, 1, 0, 21, 3, 1, 0, 2, 1, 0];
    let empty = [22, 3, 1, 0, 0];
    for (records, alert) in [(&between[..], UNEXPECTED_MESSAGE), (&empty, DECODE_ERROR)] {
        let (answer, is_ended) = bed.ask_raw(records);
        assert_eq!(fatal_alert(&answer), Some(alert), "{records:?}");
        assert!(is_ended, "{records:?}");
    }
    bed.assert_serves(&config);
}

#[test]
fn a_client_that_is_silent_after_the_servers_hello_is_closed_in_time() {
    let (_authority, mut bed, config) = bed();
    let socket = bed.socket();
    bed.0.send(socket, &hello(&config));
    bed.0.let_pass_ns(9 * SECOND_NS);
    assert!(bed.0.is_connected(socket));
    bed.assert_serves(&config);
    bed.0.let_pass_ns(2 * SECOND_NS);
    bed.0.received(socket);
    assert!(bed.0.is_ended(socket));
}

#[test]
fn a_connection_that_ends_within_a_record_is_closed() {
    let (_authority, mut bed, config) = bed();
    let hello = hello(&config);
    for len in [1, 5, hello.len() / 2, hello.len() - 1] {
        let socket = bed.socket();
        bed.0.send(socket, &hello[..len]);
        bed.0.close(socket);
        bed.0.settle();
        assert!(bed.0.is_ended(socket), "{len} bytes");
    }
    let mut client = bed.connect(&config, "a.example");
    bed.pump(&mut client).unwrap();
    client.tls.writer().write_all(FRONT.as_bytes()).unwrap();
    let mut record = Vec::new();
    client.tls.write_tls(&mut record).unwrap();
    bed.0.send(client.socket, &record[..record.len() - 1]);
    bed.0.close(client.socket);
    bed.0.settle();
    bed.pump(&mut client).unwrap();
    assert!(client.received.is_empty(), "no request has come");
    assert!(bed.0.is_ended(client.socket));
    bed.assert_serves(&config);
}

#[test]
fn a_record_that_was_changed_on_its_way_gets_an_alert_and_is_not_answered() {
    let (_authority, mut bed, config) = bed();
    let mut client = bed.connect(&config, "a.example");
    bed.pump(&mut client).unwrap();
    client.tls.writer().write_all(FRONT.as_bytes()).unwrap();
    let mut record = Vec::new();
    client.tls.write_tls(&mut record).unwrap();
    *record.last_mut().unwrap() ^= 1;
    bed.0.send(client.socket, &record);
    assert_eq!(bed.pump(&mut client), Err(Error::AlertReceived(AlertDescription::BadRecordMac)));
    assert!(bed.0.is_ended(client.socket));
    bed.assert_serves(&config);
}

#[test]
fn a_handshake_that_takes_too_long_is_closed_however_its_bytes_come() {
    let (_authority, mut bed, config) = bed();
    let hello = hello(&config);
    let (silent, slow) = (bed.socket(), bed.socket());
    for byte in &hello[..9] {
        bed.0.send(slow, &[*byte]);
        bed.0.let_pass_ns(SECOND_NS);
    }
    assert!(bed.0.is_connected(silent) && bed.0.is_connected(slow));
    bed.assert_serves(&config);
    bed.0.let_pass_ns(2 * SECOND_NS);
    for socket in [silent, slow] {
        assert_eq!(bed.0.received(socket), CLOSE_NOTIFY);
        assert!(bed.0.is_ended(socket));
    }
}

#[test]
fn a_client_without_requests_is_closed_with_the_word_that_this_is_all() {
    let (_authority, mut bed, config) = bed();
    let mut client = bed.connect(&config, "a.example");
    assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"));
    bed.0.let_pass_ns(16 * SECOND_NS);
    bed.pump(&mut client).unwrap();
    assert!(client.tls.process_new_packets().unwrap().peer_has_closed());
    assert!(bed.0.is_ended(client.socket));
}

#[test]
fn a_client_that_takes_nothing_of_its_file_is_reset() {
    let (_authority, mut bed, config) = bed();
    let mut client = bed.connect(&config, "a.example");
    bed.pump(&mut client).unwrap();
    client.tls.writer().write_all(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut record = Vec::new();
    client.tls.write_tls(&mut record).unwrap();
    bed.0.send(client.socket, &record);
    bed.0.let_pass_ns(59 * SECOND_NS);
    assert!(bed.0.is_connected(client.socket));
    bed.0.let_pass_ns(62 * SECOND_NS);
    assert!(!bed.0.is_connected(client.socket));
}

#[test]
fn a_handshake_for_which_the_node_does_not_sign_is_closed_with_a_line_in_the_log() {
    let authority = Authority::new();
    let certificate = authority.grant_as("a", "a.example", Kind::P256);
    let mut bed = Bed::new(&format!("{certificate}{SITE}"));
    grant_key(FakeKey::new("a", |_, _| None));
    let config = Arc::new(authority.any_client());
    let mut client = bed.connect(&config, "a.example");
    bed.pump(&mut client).unwrap();
    assert!(bed.0.is_ended(client.socket));
    assert_eq!(pinion_sdk::testing::take_log()[0].1, "no signature: the node signs no such message with this key");
}
