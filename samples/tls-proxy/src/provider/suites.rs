//! The cipher suites: ring's, of which those with SHA-256 hash by another library.

use std::sync::LazyLock;

use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::ring::cipher_suite as ring;
use rustls::crypto::tls12::PrfUsingHmac;
use rustls::crypto::tls13::HkdfUsingHmac;
use rustls::{SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite};

use super::sha256::{HmacSha256, Sha256};

static TLS13_CHACHA20: LazyLock<Tls13CipherSuite> = LazyLock::new(|| tls13(ring::TLS13_CHACHA20_POLY1305_SHA256));
static TLS13_AES_128: LazyLock<Tls13CipherSuite> = LazyLock::new(|| tls13(ring::TLS13_AES_128_GCM_SHA256));
static ECDSA_CHACHA20: LazyLock<Tls12CipherSuite> =
    LazyLock::new(|| tls12(ring::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256));
static RSA_CHACHA20: LazyLock<Tls12CipherSuite> =
    LazyLock::new(|| tls12(ring::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256));
static ECDSA_AES_128: LazyLock<Tls12CipherSuite> =
    LazyLock::new(|| tls12(ring::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256));
static RSA_AES_128: LazyLock<Tls12CipherSuite> = LazyLock::new(|| tls12(ring::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256));

/// Returns all suites, the preferred first: ChaCha20, as AES has no hardware behind it in WebAssembly.
pub(crate) fn all() -> Vec<SupportedCipherSuite> {
    vec![
        SupportedCipherSuite::Tls13(&TLS13_CHACHA20),
        SupportedCipherSuite::Tls13(&TLS13_AES_128),
        ring::TLS13_AES_256_GCM_SHA384,
        SupportedCipherSuite::Tls12(&ECDSA_CHACHA20),
        SupportedCipherSuite::Tls12(&RSA_CHACHA20),
        SupportedCipherSuite::Tls12(&ECDSA_AES_128),
        SupportedCipherSuite::Tls12(&RSA_AES_128),
        ring::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ring::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ]
}

fn tls13(suite: SupportedCipherSuite) -> Tls13CipherSuite {
    let SupportedCipherSuite::Tls13(suite) = suite else { unreachable!("{suite:?} is of TLS 1.3") };
    Tls13CipherSuite {
        common: with_sha256(&suite.common),
        hkdf_provider: &HkdfUsingHmac(&HmacSha256),
        aead_alg: suite.aead_alg,
        quic: None,
    }
}

fn tls12(suite: SupportedCipherSuite) -> Tls12CipherSuite {
    let SupportedCipherSuite::Tls12(suite) = suite else { unreachable!("{suite:?} is of TLS 1.2") };
    Tls12CipherSuite {
        common: with_sha256(&suite.common),
        prf_provider: &PrfUsingHmac(&HmacSha256),
        kx: suite.kx,
        sign: suite.sign,
        aead_alg: suite.aead_alg,
    }
}

fn with_sha256(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: common.suite,
        hash_provider: &Sha256,
        confidentiality_limit: common.confidentiality_limit,
    }
}
