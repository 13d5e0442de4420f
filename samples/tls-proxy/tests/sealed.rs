//! Clients that break the protocol after their handshake, in records that are sealed as they should be.

mod common;

use std::sync::Arc;

use common::{Authority, Bed, FRONT, Kind, TlsClient, hello, number};
use pinion_sdk::net::testing::Client;
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::crypto::ring;
use rustls::version::{TLS12, TLS13};
use rustls::{ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};

/// Alerts of RFC 5246, section 7.2, and RFC 8446, section 6.
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const DECODE_ERROR: u8 = 50;
const NO_RENEGOTIATION: u8 = 100;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// A client whose handshake is done, and which seals and opens records itself.
struct Sealer {
    socket: Client,
    sealed: u64,
    opened: u64,
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
}

impl Sealer {
    fn of(client: TlsClient) -> Self {
        let TlsClient { tls, socket, .. } = client;
        let suite = tls.negotiated_cipher_suite().unwrap();
        let secrets = tls.dangerous_extract_secrets().unwrap();
        let ((sealed, tx), (opened, rx)) = (secrets.tx, secrets.rx);
        let (
            ConnectionTrafficSecrets::Chacha20Poly1305 { key: tx_key, iv: tx_iv },
            ConnectionTrafficSecrets::Chacha20Poly1305 { key: rx_key, iv: rx_iv },
        ) = (tx, rx)
        else {
            panic!("{suite:?} is not what the server prefers")
        };
        let (encrypter, decrypter) = match suite {
            SupportedCipherSuite::Tls12(suite) => (
                suite.aead_alg.encrypter(tx_key, tx_iv.as_ref(), &[]),
                suite.aead_alg.decrypter(rx_key, rx_iv.as_ref()),
            ),
            SupportedCipherSuite::Tls13(suite) => {
                (suite.aead_alg.encrypter(tx_key, tx_iv), suite.aead_alg.decrypter(rx_key, rx_iv))
            }
        };
        Self { socket, sealed, opened, encrypter, decrypter }
    }

    /// Sends a record of this type, and returns the types and contents of those that answer.
    fn ask(&mut self, bed: &mut Bed, typ: ContentType, payload: &[u8]) -> Vec<(ContentType, Vec<u8>)> {
        let payload = OutboundChunks::Single(payload);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let record = self.encrypter.encrypt(message, self.sealed).unwrap().encode();
        self.sealed += 1;
        bed.0.send(self.socket, &record);
        bed.0.settle();
        let mut answer = bed.0.received(self.socket);
        let mut rest = &mut answer[..];
        let mut opened = Vec::new();
        while !rest.is_empty() {
            let (typ, len) = (ContentType::from(rest[0]), number(rest, 3));
            let (record, after) = rest.split_at_mut(5 + len);
            let record = InboundOpaqueMessage::new(typ, ProtocolVersion::TLSv1_2, &mut record[5..]);
            let record = self.decrypter.decrypt(record, self.opened).unwrap();
            self.opened += 1;
            opened.push((record.typ, record.payload.to_vec()));
            rest = after;
        }
        opened
    }

    /// Asks for a page, and returns whether it came.
    fn is_served(&mut self, bed: &mut Bed) -> bool {
        let answer = self.ask(bed, ContentType::ApplicationData, FRONT.as_bytes());
        answer.iter().any(|(typ, text)| *typ == ContentType::ApplicationData && text.ends_with(b"front"))
    }
}

/// Connects a client of one version, which has been served.
fn connect(authority: &Authority, bed: &mut Bed, version: &'static SupportedProtocolVersion) -> Sealer {
    let mut config = authority.client(ring::default_provider(), &[version]);
    config.enable_secret_extraction = true;
    let mut client = bed.connect(&Arc::new(config), "a.example");
    assert!(bed.ask(&mut client, FRONT).unwrap().ends_with("front"));
    Sealer::of(client)
}

fn alert(level: u8, description: u8) -> Vec<(ContentType, Vec<u8>)> {
    vec![(ContentType::Alert, vec![level, description])]
}

fn bed() -> (Authority, Bed) {
    let authority = Authority::new();
    let bed = Bed::of_site(&authority, "a.example", Kind::P256);
    (authority, bed)
}

#[test]
fn renegotiation_is_declined_once_and_ends_the_connection_if_it_is_asked_for_again() {
    let (authority, mut bed) = bed();
    let config = Arc::new(authority.any_client());
    let hello = hello(&config);
    let mut client = connect(&authority, &mut bed, &TLS12);
    assert_eq!(client.ask(&mut bed, ContentType::Handshake, &hello[5..]), alert(WARNING, NO_RENEGOTIATION));
    assert!(client.is_served(&mut bed), "the session goes on");
    client.ask(&mut bed, ContentType::Handshake, &hello[5..]);
    assert!(bed.0.is_ended(client.socket));
    bed.assert_serves(&config);
}

#[test]
fn what_may_not_come_after_a_handshake_gets_an_alert() {
    let (authority, mut bed) = bed();
    let config = Arc::new(authority.any_client());
    let hello = hello(&config);
    // A heartbeat (RFC 6520) that says it is longer than it is.
    let heartbeat = [1, 0x40, 0, 1];
    let finished = [20, 0, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    for (version, typ, payload, description) in [
        (&TLS13, ContentType::Handshake, &hello[5..], UNEXPECTED_MESSAGE),
        (&TLS13, ContentType::Heartbeat, &heartbeat, DECODE_ERROR),
        (&TLS12, ContentType::Heartbeat, &heartbeat, DECODE_ERROR),
        // It is read without being opened, and is not one then.
        (&TLS12, ContentType::ChangeCipherSpec, &[1], DECODE_ERROR),
        (&TLS12, ContentType::Handshake, &finished, UNEXPECTED_MESSAGE),
    ] {
        let mut client = connect(&authority, &mut bed, version);
        let answer = client.ask(&mut bed, typ, payload);
        assert_eq!(answer, alert(FATAL, description), "{version:?}, {typ:?}");
        assert!(bed.0.is_ended(client.socket), "{version:?}, {typ:?}");
    }
    bed.assert_serves(&config);
}

#[test]
fn a_record_that_holds_more_than_it_may_gets_an_alert() {
    let (authority, mut bed) = bed();
    for version in [&TLS13, &TLS12] {
        let mut client = connect(&authority, &mut bed, version);
        let answer = client.ask(&mut bed, ContentType::ApplicationData, &[b'x'; (1 << 14) + 1]);
        assert_eq!(answer, alert(FATAL, RECORD_OVERFLOW), "{version:?}");
        assert!(bed.0.is_ended(client.socket), "{version:?}");
    }
    bed.assert_serves(&Arc::new(authority.any_client()));
}

#[test]
fn empty_records_and_warnings_without_end_end_the_connection() {
    let (authority, mut bed) = bed();
    let user_canceled = [WARNING, 90];
    for version in [&TLS13, &TLS12] {
        for (typ, payload) in [(ContentType::ApplicationData, &[][..]), (ContentType::Alert, &user_canceled)] {
            let mut client = connect(&authority, &mut bed, version);
            for _ in 0..40 {
                if bed.0.is_ended(client.socket) {
                    break;
                }
                client.ask(&mut bed, typ, payload);
            }
            assert!(bed.0.is_ended(client.socket), "{version:?}, {typ:?}");
        }
    }
    bed.assert_serves(&Arc::new(authority.any_client()));
}

#[test]
fn a_client_that_says_it_is_done_gets_the_same_word_and_is_closed() {
    let (authority, mut bed) = bed();
    for version in [&TLS13, &TLS12] {
        let mut client = connect(&authority, &mut bed, version);
        let answer = client.ask(&mut bed, ContentType::Alert, &[WARNING, CLOSE_NOTIFY]);
        assert_eq!(answer, alert(WARNING, CLOSE_NOTIFY), "{version:?}");
        assert!(bed.0.is_ended(client.socket), "{version:?}");
    }
}
