//! Handshakes with clients by rustls: versions, groups, suites, kinds of keys, names, protocols, and resumption.

mod common;

use std::sync::Arc;

use common::{Authority, Bed, FRONT, Kind, SITE};
use rustls::crypto::ring;
use rustls::crypto::ring::kx_group::{SECP256R1, SECP384R1, X25519};
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, CipherSuite, Error, HandshakeKind};

#[test]
fn each_version_and_group_is_served_with_each_kind_of_key_and_the_session_is_resumed() {
    for kind in Kind::ALL {
        let authority = Authority::new();
        for version in [&TLS13, &TLS12] {
            // No more clients than may be connected at once, as each stays.
            let mut bed = Bed::of_site(&authority, "a.example", kind);
            // The last is asked to take another of its groups (RFC 8446, section 4.1.4).
            for groups in [vec![X25519], vec![SECP256R1], vec![SECP384R1, X25519]] {
                let provider = rustls::crypto::CryptoProvider { kx_groups: groups.clone(), ..ring::default_provider() };
                let config = Arc::new(authority.client(provider, &[version]));
                let is_asked = version == &TLS13 && groups.len() > 1;
                let full = if is_asked { HandshakeKind::FullWithHelloRetryRequest } else { HandshakeKind::Full };
                for expected in [full, HandshakeKind::Resumed] {
                    let case = format!("{kind:?}, {version:?}, {groups:?}, {expected:?}");
                    let mut client = bed.connect(&config, "a.example");
                    let answer = bed.ask(&mut client, FRONT).unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert!(
                        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nfront"),
                        "{case}: {answer}"
                    );
                    assert_eq!(client.tls.handshake_kind(), Some(expected), "{case}");
                    assert_eq!(client.tls.protocol_version(), Some(version.version), "{case}");
                }
            }
        }
    }
}

#[test]
fn a_client_without_a_group_in_common_gets_an_alert() {
    let authority = Authority::new();
    for kind in Kind::ALL {
        let mut bed = Bed::of_site(&authority, "a.example", kind);
        for version in [&TLS13, &TLS12] {
            let provider = rustls::crypto::CryptoProvider { kx_groups: vec![SECP384R1], ..ring::default_provider() };
            let config = Arc::new(authority.client(provider, &[version]));
            let mut client = bed.connect(&config, "a.example");
            let expected = Err(Error::AlertReceived(AlertDescription::HandshakeFailure));
            assert_eq!(bed.pump(&mut client), expected, "{kind:?}, {version:?}");
        }
    }
}

#[test]
fn each_suite_is_served_and_chacha20_is_chosen_if_the_client_knows_it() {
    let authority = Authority::new();
    let ecdsa = Bed::of_site(&authority, "a.example", Kind::P256);
    let rsa = Bed::of_site(&authority, "a.example", Kind::Rsa);
    for (mut bed, not) in [(ecdsa, "ECDHE_RSA"), (rsa, "ECDHE_ECDSA")] {
        for suite in ring::ALL_CIPHER_SUITES.iter().filter(|suite| !format!("{suite:?}").contains(not)) {
            let provider = rustls::crypto::CryptoProvider { cipher_suites: vec![*suite], ..ring::default_provider() };
            let config = authority.client(provider, &[if suite.tls13().is_some() { &TLS13 } else { &TLS12 }]);
            let mut client = bed.connect(&Arc::new(config), "a.example");
            assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"), "{suite:?}");
            assert_eq!(client.tls.negotiated_cipher_suite().unwrap().suite(), suite.suite());
        }
        let mut client = bed.connect(&Arc::new(authority.any_client()), "a.example");
        bed.pump(&mut client).unwrap();
        let chosen = client.tls.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(chosen, CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    }
}

#[test]
fn a_client_gets_the_certificate_for_the_name_that_it_asks_for() {
    let authority = Authority::new();
    let certificates = [("a.example", Kind::P256), ("*.b.example", Kind::Rsa), ("*.b.example", Kind::P384)];
    let config: String = certificates.iter().map(|(name, kind)| authority.grant(name, *kind)).collect();
    let mut bed = Bed::new(&format!("{config}{SITE}"));
    let config = Arc::new(authority.any_client());
    for name in ["a.example", "x.b.example", "y.b.example", "A.example"] {
        let mut client = bed.connect(&config, name);
        assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"), "{name}");
    }
}

#[test]
fn a_client_that_asks_for_an_unknown_name_gets_the_first_certificate_and_refuses_it_itself() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let config = Arc::new(authority.any_client());
    let mut client = bed.connect(&config, "c.example");
    assert!(matches!(bed.pump(&mut client), Err(Error::InvalidCertificate(_))));
    let mut client = bed.connect(&config, "a.example");
    assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"), "the next client is served");
}

#[test]
fn clients_agree_on_http_1_1_or_are_told_that_there_is_no_protocol_in_common() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    let mut outcome = |offered: &[&str]| {
        let mut config = authority.any_client();
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut client = bed.connect(&Arc::new(config), "a.example");
        bed.pump(&mut client).map(|()| client.tls.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(outcome(&[]), Ok(None));
    assert_eq!(outcome(&["h2", "http/1.1"]), Ok(Some(b"http/1.1".to_vec())));
    assert_eq!(outcome(&["h2"]), Err(Error::AlertReceived(AlertDescription::NoApplicationProtocol)));
}

#[test]
fn a_session_is_resumed_by_another_instance_with_the_same_key() {
    let authority = Authority::new();
    let certificate = authority.grant("a.example", Kind::P256);
    let config = Arc::new(authority.any_client());
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut bed = Bed::new(&format!("{certificate}{SITE}"));
        let mut client = bed.connect(&config, "a.example");
        bed.ask(&mut client, FRONT).unwrap();
        assert_eq!(client.tls.handshake_kind(), Some(expected));
    }
}

#[test]
fn long_files_come_whole_and_connections_are_kept() {
    let authority = Authority::new();
    let mut bed = Bed::of_site(&authority, "a.example", Kind::P256);
    for version in [&TLS13, &TLS12] {
        let config = Arc::new(authority.client(ring::default_provider(), &[version]));
        let mut client = bed.connect(&config, "a.example");
        for _ in 0..2 {
            let answer = bed.ask(&mut client, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            assert_eq!(body.len(), 1_000_000);
            let is_in_place = |(number, line): (usize, &str)| usize::from_str_radix(&line[..16], 16) == Ok(number);
            assert!(body.lines().enumerate().all(is_in_place));
        }
    }
}
