//! Hellos that no client would send: each gets the alert that fits, or is served, and others are served beside.

mod common;

use std::sync::Arc;

use common::{Authority, Bed, Kind, fatal_alert, hello, with_extension};
use rustls::crypto::ring::kx_group::{SECP256R1, X25519};
use rustls::crypto::{CryptoProvider, ring};

/// Extensions, by their numbers.
const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
/// Alerts of RFC 8446, section 6.
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;

/// Makes the value of a server's name of this type, with its length right.
fn server_name(kind: u8, name: &[u8]) -> Vec<u8> {
    let entry = [&[kind][..], &(name.len() as u16).to_be_bytes(), name].concat();
    [&(entry.len() as u16).to_be_bytes(), &entry[..]].concat()
}

/// Makes the value of a share of a key in a group.
fn key_share(group: u16, key: &[u8]) -> Vec<u8> {
    let entry = [&group.to_be_bytes()[..], &(key.len() as u16).to_be_bytes(), key].concat();
    [&(entry.len() as u16).to_be_bytes(), &entry[..]].concat()
}

#[test]
fn malformed_extensions_get_the_alert_that_fits() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let config = Arc::new(authority.any_client());
    let hello_of = |groups| {
        let provider = CryptoProvider { kx_groups: groups, ..ring::default_provider() };
        hello(&Arc::new(authority.client(provider, rustls::ALL_VERSIONS)))
    };
    let (x25519, p256) = (hello_of(vec![X25519]), hello_of(vec![SECP256R1]));
    let no_point = [&[4][..], &[7; 64]].concat();
    let compressed = [&[2][..], &[7; 32]].concat();
    for (what, hello, kind, value, alert) in [
        ("no name in the list", &x25519, SERVER_NAME, vec![0, 0], DECODE_ERROR),
        ("a name that is cut off", &x25519, SERVER_NAME, vec![0, 9, 0, 0, 9, b'a'], DECODE_ERROR),
        ("unknown versions", &x25519, SUPPORTED_VERSIONS, vec![4, 3, 5, 0x7f, 0x1c], PROTOCOL_VERSION),
        ("old versions", &x25519, SUPPORTED_VERSIONS, vec![6, 3, 2, 3, 1, 3, 0], PROTOCOL_VERSION),
        ("unknown groups", &x25519, SUPPORTED_GROUPS, vec![0, 2, 0x7f, 0x1c], HANDSHAKE_FAILURE),
        ("a key of zeros", &x25519, KEY_SHARE, key_share(29, &[0; 32]), ILLEGAL_PARAMETER),
        ("a short key", &x25519, KEY_SHARE, key_share(29, &[7; 31]), ILLEGAL_PARAMETER),
        ("no point of the curve", &p256, KEY_SHARE, key_share(23, &no_point), ILLEGAL_PARAMETER),
        ("a compressed point", &p256, KEY_SHARE, key_share(23, &compressed), ILLEGAL_PARAMETER),
    ] {
        let (answer, is_ended) = bed.ask_raw(&with_extension(hello, kind, &value));
        assert_eq!(fatal_alert(&answer), Some(alert), "{what}");
        assert!(is_ended, "{what}");
    }
    bed.assert_serves(&config);
}

#[test]
fn names_that_are_no_host_names_are_ignored_or_refused() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let config = Arc::new(authority.any_client());
    let hello = hello(&config);
    for name in [&b"10.0.0.2"[..], b"", b"a..example", b"a\0.example", b"\xff\xfe", &[b'a'; 300]] {
        let (answer, is_ended) = bed.ask_raw(&with_extension(&hello, SERVER_NAME, &server_name(0, name)));
        let is_refused = fatal_alert(&answer).is_some() && is_ended;
        assert!(is_refused || answer[0] == 22 && !is_ended, "{name:?}: {answer:?}");
    }
    bed.assert_serves(&config);
}

#[test]
fn a_hello_with_another_byte_anywhere_is_answered_or_refused_and_others_are_served() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let config = Arc::new(authority.any_client());
    let hello = hello(&config);
    for at in 0..hello.len() {
        let mut changed = hello.clone();
        changed[at] ^= 0x81;
        let socket = bed.socket();
        bed.0.send(socket, &changed);
        bed.0.settle();
        let answer = bed.0.received(socket);
        // A longer length leaves the server waiting for the rest.
        let is_waiting = answer.is_empty() && bed.0.is_connected(socket);
        let is_refused = fatal_alert(&answer).is_some() && bed.0.is_ended(socket);
        assert!(is_waiting || is_refused || answer[0] == 22, "byte {at}: {answer:?}");
        bed.0.abort(socket);
    }
    bed.assert_serves(&config);
}
