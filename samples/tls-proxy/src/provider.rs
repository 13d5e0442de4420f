//! The cryptography of this function: [`provider`], composed of what is fastest in WebAssembly.
//!
//! | what | whose |
//! |---|---|
//! | X25519 | curve25519-dalek |
//! | key agreement by P-256 | p256 |
//! | SHA-256, HMAC | sha2, hmac |
//! | ciphers, SHA-384, verification of signatures | ring |
//! | random bytes | the node's |
//!
//! `docs/performance.md` has the measurements behind that. All of it is written to take the same time for any secret; whether a
//! compiler of WebAssembly and the CPU keep it so is not verified. Private keys of certificates are not at risk: the node signs.

mod p256;
mod sha256;
mod suites;
mod x25519;

use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};

/// Returns the provider. P-384 is not among the groups: an agreement takes 10 ms, and all clients know one of the others.
#[must_use]
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: suites::all(),
        kx_groups: vec![&x25519::X25519, &p256::Secp256r1],
        secure_random: &Node,
        ..ring::default_provider()
    }
}

/// The node's random bytes.
#[derive(Debug)]
struct Node;

impl SecureRandom for Node {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        pinion_sdk::random::fill(buffer);
        Ok(())
    }
}
