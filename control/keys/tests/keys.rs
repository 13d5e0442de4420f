//! Keys as their owners have them: which files are keys, what is signed with them, and that nothing shows them.
#![forbid(unsafe_code)]

use pinion_keys::{Algorithm, KeyError, PEM_BYTES_MAX, PrivateKey, SIGNATURE_BYTES_MAX, ServerKey, SignError};
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};

const P256: &[u8] = include_bytes!("data/p256.pem");
const P256_SEC1: &[u8] = include_bytes!("data/p256-sec1.pem");
const P384: &[u8] = include_bytes!("data/p384.pem");
const P384_SEC1: &[u8] = include_bytes!("data/p384-sec1.pem");
const ED25519: &[u8] = include_bytes!("data/ed25519.pem");
const RSA_2048: &[u8] = include_bytes!("data/rsa2048.pem");
const RSA_2048_PKCS1: &[u8] = include_bytes!("data/rsa2048-pkcs1.pem");
const RSA_4096: &[u8] = include_bytes!("data/rsa4096.pem");
const ALL: [&[u8]; 8] = [P256, P256_SEC1, P384, P384_SEC1, ED25519, RSA_2048, RSA_2048_PKCS1, RSA_4096];

/// `SignatureScheme`s of RFC 8446, section 4.2.3.
const RSA_PKCS1: [u16; 3] = [0x0401, 0x0501, 0x0601];
const RSA_PSS: [u16; 3] = [0x0804, 0x0805, 0x0806];
const ECDSA_P256_SHA256: u16 = 0x0403;
const ECDSA_P384_SHA384: u16 = 0x0503;
const EDDSA: u16 = 0x0807;

fn key(pem: &[u8]) -> PrivateKey {
    PrivateKey::from_pem(pem).expect("a key")
}

fn certificate_verify() -> Vec<u8> {
    [&[b' '; 64][..], b"TLS 1.3, server CertificateVerify\0", &[0xab; 32]].concat()
}

fn server_key_exchange() -> Vec<u8> {
    [&[0x5a; 64][..], &[3, 0, 29, 32], &[9; 32]].concat()
}

/// Returns the public key itself, of a `SubjectPublicKeyInfo`.
fn raw_public(key: &PrivateKey) -> &[u8] {
    let bytes = match key.algorithm() {
        Algorithm::EcdsaP256 => 65,
        Algorithm::EcdsaP384 => 97,
        Algorithm::Ed25519 => 32,
        // Behind the algorithm, and the heads of two elements.
        _ => key.public_key().len() - 24,
    };
    &key.public_key()[key.public_key().len() - bytes..]
}

fn is_good(key: &PrivateKey, by: &'static dyn VerificationAlgorithm, message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(by, raw_public(key)).verify(message, signature).is_ok()
}

#[test]
fn keys_of_all_three_encodings_are_read() {
    let algorithms = ALL.map(|pem| key(pem).algorithm().to_string());
    let expected =
        ["ecdsa-p256", "ecdsa-p256", "ecdsa-p384", "ecdsa-p384", "ed25519", "rsa-2048", "rsa-2048", "rsa-4096"];
    assert_eq!(algorithms, expected);
    assert_eq!(key(RSA_2048).public_digest(), key(RSA_2048_PKCS1).public_digest(), "one key in two encodings");
    assert_ne!(key(P256).public_digest(), key(P256_SEC1).public_digest());
}

#[test]
fn a_key_that_was_written_for_the_store_is_the_same_key_when_it_is_read_back() {
    for pem in ALL {
        let before = key(pem);
        let after = PrivateKey::from_bytes(&before.to_bytes()).unwrap();
        assert_eq!(
            (after.public_digest(), after.algorithm(), after.to_bytes()),
            (before.public_digest(), before.algorithm(), before.to_bytes())
        );
    }
}

#[test]
fn certificates_beside_a_key_are_skipped_and_a_second_key_is_refused() {
    let certificate = rcgen::generate_simple_self_signed(["example.org".to_owned()]).unwrap().cert.pem();
    let both = [certificate.as_bytes(), P256, certificate.as_bytes()].concat();
    assert_eq!(key(&both).public_digest(), key(P256).public_digest());
    assert_eq!(PrivateKey::from_pem(&[P256, P384].concat()).unwrap_err(), KeyError::Several);
    assert_eq!(PrivateKey::from_pem(certificate.as_bytes()).unwrap_err(), KeyError::NoKey);
}

#[test]
fn files_that_are_no_usable_key_are_refused_with_what_to_do() {
    let refused = |pem: &[u8]| PrivateKey::from_pem(pem).unwrap_err();
    assert_eq!(refused(b""), KeyError::NoKey);
    assert_eq!(refused(&[0xff; 1000]), KeyError::NoKey);
    assert_eq!(refused(&vec![b'-'; PEM_BYTES_MAX + 1]), KeyError::TooLong(PEM_BYTES_MAX + 1));
    assert_eq!(refused(include_bytes!("data/p256-encrypted.pem")), KeyError::Encrypted);
    assert_eq!(refused(include_bytes!("data/rsa1024.pem")), KeyError::Unsupported);
    assert_eq!(refused(include_bytes!("data/p521.pem")), KeyError::Unsupported);
    assert_eq!(refused(b"-----BEGIN PRIVATE KEY-----\n!!!!\n-----END PRIVATE KEY-----\n"), KeyError::NotPem);
    assert_eq!(refused(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), KeyError::Unsupported);
    assert_eq!(refused(&P256[..P256.len() / 2]), KeyError::NotPem);
}

#[test]
fn damaged_keys_are_refused_whatever_byte_is_missing() {
    for pem in [P256, ED25519, RSA_2048] {
        let bytes = key(pem).to_bytes();
        for len in (0..bytes.len()).step_by(if pem == RSA_2048 { 97 } else { 1 }) {
            assert_eq!(PrivateKey::from_bytes(&bytes[..len]).unwrap_err(), KeyError::Unsupported, "{len} bytes");
        }
    }
}

#[test]
fn handshakes_of_both_versions_are_signed_by_the_schemes_of_each_key() {
    let cases: [(&[u8], u16, &'static dyn VerificationAlgorithm); 10] = [
        (P256, ECDSA_P256_SHA256, &signature::ECDSA_P256_SHA256_ASN1),
        (P256_SEC1, ECDSA_P256_SHA256, &signature::ECDSA_P256_SHA256_ASN1),
        (P384, ECDSA_P384_SHA384, &signature::ECDSA_P384_SHA384_ASN1),
        (P384_SEC1, ECDSA_P384_SHA384, &signature::ECDSA_P384_SHA384_ASN1),
        (ED25519, EDDSA, &signature::ED25519),
        (RSA_2048, RSA_PSS[0], &signature::RSA_PSS_2048_8192_SHA256),
        (RSA_2048_PKCS1, RSA_PSS[1], &signature::RSA_PSS_2048_8192_SHA384),
        (RSA_4096, RSA_PSS[2], &signature::RSA_PSS_2048_8192_SHA512),
        (RSA_4096, RSA_PSS[0], &signature::RSA_PSS_2048_8192_SHA256),
        (RSA_2048, RSA_PSS[2], &signature::RSA_PSS_2048_8192_SHA512),
    ];
    for (pem, scheme, by) in cases {
        let key = key(pem);
        for message in [certificate_verify(), server_key_exchange()] {
            let signature = key.sign(scheme, &message).unwrap();
            assert!(signature.len() <= SIGNATURE_BYTES_MAX);
            assert!(is_good(&key, by, &message, &signature), "{key:?} by {scheme:#06x}");
        }
    }
}

#[test]
fn pkcs1_signatures_are_for_tls_12_only() {
    let by: [&'static dyn VerificationAlgorithm; 3] = [
        &signature::RSA_PKCS1_2048_8192_SHA256,
        &signature::RSA_PKCS1_2048_8192_SHA384,
        &signature::RSA_PKCS1_2048_8192_SHA512,
    ];
    let key = key(RSA_2048);
    for (scheme, by) in RSA_PKCS1.into_iter().zip(by) {
        assert_eq!(key.sign(scheme, &certificate_verify()), Err(SignError::Scheme(scheme)));
        let signature = key.sign(scheme, &server_key_exchange()).unwrap();
        assert!(is_good(&key, by, &server_key_exchange(), &signature));
    }
}

#[test]
fn a_key_signs_by_no_scheme_of_another_kind_of_key() {
    let own: [(&[u8], &[u16]); 4] = [
        (P256, &[ECDSA_P256_SHA256]),
        (P384, &[ECDSA_P384_SHA384]),
        (ED25519, &[EDDSA]),
        (RSA_2048, &[0x0401, 0x0501, 0x0601, 0x0804, 0x0805, 0x0806]),
    ];
    for (pem, schemes) in own {
        let key = key(pem);
        for scheme in (0..=0xffff).filter(|scheme| !schemes.contains(scheme)) {
            assert_eq!(key.check(scheme, &server_key_exchange()), Err(SignError::Scheme(scheme)), "{key:?}");
        }
        assert!(schemes.iter().all(|scheme| key.check(*scheme, &server_key_exchange()).is_ok()));
    }
}

#[test]
fn nothing_but_handshakes_is_signed() {
    let key = key(P256);
    let client = [&[b' '; 64][..], b"TLS 1.3, client CertificateVerify\0", &[0xab; 32]].concat();
    for message in [&client[..], &[0xab; 32], b"", b"any text", &certificate_verify()[64..]] {
        assert_eq!(key.sign(ECDSA_P256_SHA256, message), Err(SignError::NoHandshake));
    }
}

#[test]
fn a_key_shows_its_algorithm_and_the_digest_of_its_public_key_only() {
    let key = ServerKey::new(key(P256));
    let shown = format!("{key:?}");
    let digest: String = key.key.public_digest().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown, format!("PrivateKey(ecdsa-p256, sha256:{digest})"));
}
