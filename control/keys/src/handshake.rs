//! The two messages that a TLS server signs, recognised byte by byte. Everything else is refused.
//!
//! ```text
//!   TLS 1.3, RFC 8446 4.4.3    64 spaces | "TLS 1.3, server CertificateVerify" | 0 | hash of the transcript, 32 or 48 bytes
//!   TLS 1.2, RFC 8422 5.4      client random, 32 bytes | server random, 32 | 3 (named curve) | group, 2 | length, 1 | point
//! ```
//!
//! No message is both: one of TLS 1.3 has 130 or 146 bytes, one of TLS 1.2 has 100, 133 or 165. The randoms are free, so a signature of TLS 1.2
//! covers 64 bytes of a function's choice; its point has to be on the curve. No other protocol that signs something of these lengths with a 3 and a
//! group behind 64 bytes is known.

use ring::agreement::{self, ECDH_P256, ECDH_P384, EphemeralPrivateKey, UnparsedPublicKey};
use ring::rand::SystemRandom;
use rustls::{NamedGroup, ProtocolVersion};

/// The longest message that is signed, in bytes.
pub const MESSAGE_BYTES_MAX: usize = RANDOMS_BYTES + CURVE_BYTES + 97;

const PADDING: [u8; 64] = [b' '; 64];
const CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify\0";
/// Bytes of SHA-256 and SHA-384, the hashes of all cipher suites of TLS 1.3 (RFC 8446, appendix B.4).
const HASH_BYTES: [usize; 2] = [32, 48];

/// Bytes of both randoms.
const RANDOMS_BYTES: usize = 64;
/// Bytes of the type of the curve, its name and the length of the point.
const CURVE_BYTES: usize = 4;
const NAMED_CURVE: u8 = 3;
/// The first byte of a point that is not compressed, the only form of RFC 8422 (section 5.4.1).
const UNCOMPRESSED: u8 = 4;

/// Returns the version of TLS whose server signs this message, if there is one.
pub(crate) fn version(message: &[u8]) -> Option<ProtocolVersion> {
    if is_certificate_verify(message) {
        Some(ProtocolVersion::TLSv1_3)
    } else if is_server_key_exchange(message) {
        Some(ProtocolVersion::TLSv1_2)
    } else {
        None
    }
}

fn is_certificate_verify(message: &[u8]) -> bool {
    let hash = message.strip_prefix(&PADDING).and_then(|rest| rest.strip_prefix(CONTEXT));
    hash.is_some_and(|hash| HASH_BYTES.contains(&hash.len()))
}

fn is_server_key_exchange(message: &[u8]) -> bool {
    let Some((&[kind, high, low, len], point)) = message.get(RANDOMS_BYTES..).and_then(|rest| rest.split_first_chunk())
    else {
        return false;
    };
    let is_whole = kind == NAMED_CURVE && usize::from(len) == point.len();
    is_whole
        && match NamedGroup::from(u16::from_be_bytes([high, low])) {
            NamedGroup::X25519 => point.len() == 32,
            NamedGroup::secp256r1 => point.len() == 65 && point[0] == UNCOMPRESSED,
            NamedGroup::secp384r1 => point.len() == 97 && point[0] == UNCOMPRESSED,
            _ => false,
        }
}

/// Returns whether the point of a message of which [`version`] is known is on its curve, as clients check, too (RFC 8422, section 5.11). Of TLS 1.3,
/// and with X25519, each is. The library checks a point where it computes with it: that takes as long as a few signatures.
pub(crate) fn is_on_curve(message: &[u8]) -> bool {
    let Some((&[_, high, low, _], point)) = message.get(RANDOMS_BYTES..).and_then(|rest| rest.split_first_chunk())
    else {
        return true;
    };
    let algorithm = match NamedGroup::from(u16::from_be_bytes([high, low])) {
        NamedGroup::secp256r1 if is_server_key_exchange(message) => &ECDH_P256,
        NamedGroup::secp384r1 if is_server_key_exchange(message) => &ECDH_P384,
        _ => return true,
    };
    EphemeralPrivateKey::generate(algorithm, &SystemRandom::new())
        .and_then(|own| agreement::agree_ephemeral(own, &UnparsedPublicKey::new(algorithm, point), |_| ()))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tls13(hash_bytes: usize) -> Vec<u8> {
        [&PADDING[..], CONTEXT, &vec![0xab; hash_bytes]].concat()
    }

    fn tls12(group: u16, point: &[u8]) -> Vec<u8> {
        let group = group.to_be_bytes();
        [&[0x5a; 64][..], &[NAMED_CURVE, group[0], group[1], point.len() as u8], point].concat()
    }

    fn point(len: usize) -> Vec<u8> {
        [&[UNCOMPRESSED][..], &vec![9; len - 1]].concat()
    }

    #[test]
    fn what_servers_sign_is_recognised_in_both_versions() {
        for hash_bytes in HASH_BYTES {
            assert_eq!(version(&tls13(hash_bytes)), Some(ProtocolVersion::TLSv1_3), "{hash_bytes}");
        }
        for message in [tls12(29, &[9; 32]), tls12(23, &point(65)), tls12(24, &point(97))] {
            assert_eq!(version(&message), Some(ProtocolVersion::TLSv1_2), "{message:?}");
            assert!(message.len() <= MESSAGE_BYTES_MAX);
        }
    }

    #[test]
    fn a_point_has_to_be_on_its_curve() {
        for (group, algorithm) in [(23, &ECDH_P256), (24, &ECDH_P384)] {
            let own = EphemeralPrivateKey::generate(algorithm, &SystemRandom::new()).unwrap();
            let mut point = own.compute_public_key().unwrap().as_ref().to_vec();
            assert!(is_on_curve(&tls12(group, &point)));
            *point.last_mut().unwrap() ^= 1;
            assert!(!is_on_curve(&tls12(group, &point)));
            assert_eq!(version(&tls12(group, &point)), Some(ProtocolVersion::TLSv1_2), "it looks like one");
        }
        assert!(is_on_curve(&tls12(29, &[9; 32])) && is_on_curve(&tls13(32)));
    }

    #[test]
    fn what_clients_sign_is_refused() {
        let text = String::from_utf8(tls13(32)[..98].to_vec()).unwrap().replace("server", "client");
        assert_eq!(version(&[text.as_bytes(), &[0xab; 32]].concat()), None);
    }

    #[test]
    fn hashes_of_other_lengths_are_refused() {
        for hash_bytes in (0..200).filter(|bytes| !HASH_BYTES.contains(bytes)) {
            assert_eq!(version(&tls13(hash_bytes)), None, "{hash_bytes}");
        }
    }

    #[test]
    fn hashes_without_their_context_are_refused() {
        for message in [vec![0xab; 32], vec![0xab; 48], vec![0xab; 64], CONTEXT.to_vec(), PADDING.to_vec(), Vec::new()]
        {
            assert_eq!(version(&message), None, "{} bytes", message.len());
        }
    }

    #[test]
    fn certificates_and_requests_for_them_are_refused() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["example.org".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let request = params.serialize_request(&key).unwrap();
        for der in [certificate.der().as_ref(), request.der().as_ref()] {
            // What was signed is the first element within the outer one.
            for start in 0..8 {
                for end in start..der.len() {
                    assert_eq!(version(&der[start..end]), None, "{start}..{end}");
                }
            }
        }
    }

    #[test]
    fn other_groups_and_points_of_other_lengths_are_refused() {
        // secp521r1, x448, ffdhe2048, none, X25519MLKEM768
        for (group, bytes) in [(25, 133), (30, 56), (256, 32), (0, 32), (4588, 32)] {
            assert_eq!(version(&tls12(group, &point(bytes))), None, "{group}");
        }
        for (group, right) in [(29, 32), (23, 65), (24, 97)] {
            for bytes in (1..=255).filter(|bytes| *bytes != right) {
                assert_eq!(version(&tls12(group, &point(bytes))), None, "{group} with {bytes} bytes");
            }
        }
    }

    #[test]
    fn points_that_are_compressed_and_curves_without_a_name_are_refused() {
        for (group, bytes) in [(23, 65), (24, 97)] {
            let mut compressed = point(bytes);
            compressed[0] = 2;
            assert_eq!(version(&tls12(group, &compressed)), None);
        }
        for kind in (0..=255).filter(|kind| *kind != NAMED_CURVE) {
            let mut message = tls12(29, &[9; 32]);
            message[RANDOMS_BYTES] = kind;
            assert_eq!(version(&message), None, "{kind}");
        }
    }

    #[test]
    fn messages_with_a_byte_more_or_less_are_refused() {
        for message in [tls13(32), tls13(48), tls12(29, &[9; 32]), tls12(23, &point(65)), tls12(24, &point(97))] {
            assert_eq!(version(&message[1..]), None);
            assert_eq!(version(&message[..message.len() - 1]), None);
            assert_eq!(version(&[&message[..], &[0]].concat()), None);
            assert_eq!(version(&[&[0], &message[..]].concat()), None);
        }
    }

    proptest! {
        #[test]
        fn a_message_with_another_byte_where_none_is_free_is_refused(at in 0_usize..98, other: u8) {
            let mut message = tls13(32);
            prop_assume!(message[at] != other);
            message[at] = other;
            prop_assert_eq!(version(&message), None);
        }

        #[test]
        fn bytes_at_random_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let is_by_chance = bytes.get(RANDOMS_BYTES) == Some(&NAMED_CURVE);
            prop_assert!(version(&bytes).is_none() || is_by_chance);
        }
    }
}
