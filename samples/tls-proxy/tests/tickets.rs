//! Tickets that are no good, and data that clients send with them before the handshake: the handshake is full, and goes on.

mod common;

use std::io::Write;
use std::sync::Arc;

use common::{Authority, Bed, FRONT, Kind, SITE, extension, hello, number, with_extension};
use rustls::crypto::ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
use rustls::crypto::ring::kx_group::{SECP384R1, X25519};
use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind, ServerConfig, ServerConnection};

/// Extensions, and a message, by their numbers.
const SESSION_TICKET: u16 = 35;
const PRE_SHARED_KEY: u16 = 41;
const CERTIFICATE: u8 = 11;

#[test]
fn expired_tickets_and_those_of_another_key_lead_to_full_handshakes() {
    let authority = Authority::new();
    for version in [&TLS13, &TLS12] {
        let config = Arc::new(authority.client(ring::default_provider(), &[version]));
        let certificate = |key: &str| format!("{}{SITE}", authority.grant_as(key, "a.example", Kind::P256));
        let (mut bed, mut other) = (Bed::new(&certificate("a")), Bed::new(&certificate("b")));
        let kind = |bed: &mut Bed| {
            let mut client = bed.connect(&config, "a.example");
            bed.ask(&mut client, FRONT).unwrap();
            client.tls.handshake_kind().unwrap()
        };
        assert_eq!(kind(&mut bed), HandshakeKind::Full);
        assert_eq!(kind(&mut bed), HandshakeKind::Resumed);
        bed.0.let_pass_ns(common::TICKET_LIFETIME_NS);
        assert_eq!(kind(&mut bed), HandshakeKind::Full, "{version:?}: the ticket is expired");
        assert_eq!(kind(&mut other), HandshakeKind::Full, "{version:?}: another key has sealed the ticket");
        assert_eq!(kind(&mut other), HandshakeKind::Resumed);
    }
}

/// Sends a hello on a connection of its own. Returns whether the server resumes the session.
fn is_resumed(bed: &mut Bed, hello: &[u8], is_of_tls13: bool) -> bool {
    let socket = bed.socket();
    bed.0.send(socket, hello);
    bed.0.settle();
    let answer = bed.0.received(socket);
    bed.0.abort(socket);
    assert_eq!(answer[0], 22, "the server's hello");
    let record = &answer[5..5 + number(&answer, 3)];
    if is_of_tls13 {
        // Behind version and random: the session, a suite, a compression method, and the extensions' length.
        let mut rest = &record[4 + 34 + 1 + usize::from(record[38]) + 2 + 1 + 2..];
        while let [high, low, ..] = *rest {
            if u16::from_be_bytes([high, low]) == PRE_SHARED_KEY {
                return true;
            }
            rest = &rest[4 + number(rest, 2)..];
        }
        return false;
    }
    // A full handshake of TLS 1.2 has the certificate behind the server's hello.
    let mut records = &answer[..];
    let mut messages = Vec::new();
    while records.first() == Some(&22) {
        let (record, rest) = records[5..].split_at(number(records, 3));
        messages.extend_from_slice(record);
        records = rest;
    }
    let second = 4 + number(&messages, 2);
    messages.get(second) != Some(&CERTIFICATE)
}

#[test]
fn a_ticket_with_another_byte_anywhere_or_cut_off_anywhere_leads_to_a_full_handshake() {
    let authority = Authority::new();
    for version in [&TLS13, &TLS12] {
        let is_of_tls13 = version == &TLS13;
        let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
        let config = Arc::new(authority.client(ring::default_provider(), &[version]));
        bed.assert_serves(&config);
        let hello = hello(&config);
        assert!(is_resumed(&mut bed, &hello, is_of_tls13), "as it is");
        let kind = if is_of_tls13 { PRE_SHARED_KEY } else { SESSION_TICKET };
        let value = extension(&hello, kind).unwrap();
        // The ticket is all of the value in TLS 1.2, and in TLS 1.3 the first of its identities (RFC 8446, section 4.2.11).
        let ticket = if is_of_tls13 {
            value.start + 4..value.start + 4 + number(&hello, value.start + 2)
        } else {
            value.clone()
        };
        for at in ticket.clone() {
            let mut changed = hello.clone();
            changed[at] ^= 1;
            assert!(!is_resumed(&mut bed, &changed, is_of_tls13), "{version:?}: byte {at} of {ticket:?}");
        }
        for len in (1..ticket.len()).step_by(7) {
            let cut = &hello[ticket.start..ticket.start + len];
            let changed = if is_of_tls13 {
                let rest = &hello[ticket.end..value.end];
                // With one identity, its age of four bytes is between it and the binders.
                let lens = [(len + 6) as u16, len as u16].map(u16::to_be_bytes).concat();
                with_extension(&hello, kind, &[&lens, cut, rest].concat())
            } else {
                with_extension(&hello, kind, cut)
            };
            assert!(!is_resumed(&mut bed, &changed, is_of_tls13), "{version:?}: {len} bytes of {ticket:?}");
        }
        bed.assert_serves(&config);
    }
}

/// Gives a client a ticket of another server by that name, which takes early data.
fn take_ticket_for_early_data(authority: &Authority, config: &Arc<ClientConfig>) {
    let mut server = ServerConfig::clone(&authority.server("a.example"));
    server.max_early_data_size = 1 << 20;
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut client = ClientConnection::new(Arc::clone(config), "a.example".try_into().unwrap()).unwrap();
    while client.wants_write() || server.wants_write() {
        let (mut asked, mut answered) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut asked).unwrap();
        }
        let mut rest = &asked[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().unwrap();
        }
        while server.wants_write() {
            server.write_tls(&mut answered).unwrap();
        }
        let mut rest = &answered[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
    }
}

#[test]
fn no_client_may_send_early_data() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let mut config = authority.any_client();
    config.enable_early_data = true;
    let config = Arc::new(config);
    for _ in 0..2 {
        let mut client = bed.connect(&config, "a.example");
        assert!(client.tls.early_data().is_none(), "no ticket allows it");
        assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"));
    }
}

#[test]
fn early_data_that_comes_all_the_same_is_skipped_and_the_handshake_goes_on() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    // The second is asked for another group, and its early data comes before it knows.
    for (groups, kind) in
        [(vec![X25519], HandshakeKind::Full), (vec![SECP384R1, X25519], HandshakeKind::FullWithHelloRetryRequest)]
    {
        // With one suite, as a client withdraws a ticket for a suite of another hash, and no server may go on then (RFC 9846, section 4.2.2).
        let cipher_suites = vec![TLS13_CHACHA20_POLY1305_SHA256];
        let provider = CryptoProvider { kx_groups: groups, cipher_suites, ..ring::default_provider() };
        let mut config = authority.client(provider, &[&TLS13]);
        config.enable_early_data = true;
        let config = Arc::new(config);
        take_ticket_for_early_data(&authority, &config);
        let mut client = bed.connect(&config, "a.example");
        client.tls.early_data().expect("its ticket allows it").write_all(FRONT.as_bytes()).unwrap();
        bed.pump(&mut client).unwrap();
        assert!(!client.tls.is_early_data_accepted() && client.received.is_empty(), "{kind:?}: no answer to it");
        assert_eq!(client.tls.handshake_kind(), Some(kind));
        assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"), "{kind:?}");
    }
}

#[test]
fn early_data_that_is_longer_than_a_record_ends_the_handshake() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let mut config = authority.client(ring::default_provider(), &[&TLS13]);
    config.enable_early_data = true;
    let config = Arc::new(config);
    take_ticket_for_early_data(&authority, &config);
    let mut client = bed.connect(&config, "a.example");
    client.tls.early_data().expect("its ticket allows it").write_all(&[b'x'; 50_000]).unwrap();
    assert_eq!(bed.pump(&mut client), Err(Error::AlertReceived(AlertDescription::BadRecordMac)));
    assert!(bed.0.is_ended(client.socket));
    bed.assert_serves(&Arc::new(authority.any_client()));
}
