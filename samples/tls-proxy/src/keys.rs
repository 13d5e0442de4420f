//! Private keys that the node keeps: [`GrantedKey`] lets the node sign a handshake, and [`Tickets`] seal and open session tickets. No key
//! and no secret of another session is ever in this function's memory.

use pinion_sdk::keys::{Key, TICKET_LIFETIME_S};
use rustls::pki_types::{SubjectPublicKeyInfoDer, alg_id};
use rustls::server::ProducesTickets;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// The private key of a certificate, which this function may use and never sees.
#[derive(Clone, Debug)]
pub(crate) struct GrantedKey {
    key: Key,
    algorithm: SignatureAlgorithm,
    schemes: &'static [SignatureScheme],
    public: SubjectPublicKeyInfoDer<'static>,
}

impl GrantedKey {
    /// Returns the private key for a certificate's public key; `None` for an algorithm other than RSA, P-256, P-384 and Ed25519.
    pub(crate) fn new(key: Key, public: SubjectPublicKeyInfoDer<'static>) -> Option<Self> {
        let (algorithm, schemes) = schemes_of(algorithm_of(&public)?)?;
        Some(Self { key, algorithm, schemes, public })
    }
}

impl SigningKey for GrantedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *self.schemes.iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(Signing { key: self.key, scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.public.clone())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

/// A signature to be made.
#[derive(Debug)]
struct Signing {
    key: Key,
    scheme: SignatureScheme,
}

impl Signer for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.key.sign(self.scheme.into(), message).map_err(|error| {
            pinion_sdk::warn!("no signature: {error}");
            Error::General(error.to_string())
        })
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// Returns the schemes of a key's algorithm, the preferred ones first.
fn schemes_of(algorithm: &[u8]) -> Option<(SignatureAlgorithm, &'static [SignatureScheme])> {
    use SignatureScheme as Scheme;
    let of = |known: rustls::pki_types::AlgorithmIdentifier| known.as_ref() == algorithm;
    if of(alg_id::ECDSA_P256) {
        Some((SignatureAlgorithm::ECDSA, &[Scheme::ECDSA_NISTP256_SHA256]))
    } else if of(alg_id::ECDSA_P384) {
        Some((SignatureAlgorithm::ECDSA, &[Scheme::ECDSA_NISTP384_SHA384]))
    } else if of(alg_id::ED25519) {
        Some((SignatureAlgorithm::ED25519, &[Scheme::ED25519]))
    } else if of(alg_id::RSA_ENCRYPTION) {
        let schemes = &[
            Scheme::RSA_PSS_SHA256,
            Scheme::RSA_PSS_SHA384,
            Scheme::RSA_PSS_SHA512,
            Scheme::RSA_PKCS1_SHA256,
            Scheme::RSA_PKCS1_SHA384,
            Scheme::RSA_PKCS1_SHA512,
        ];
        Some((SignatureAlgorithm::RSA, schemes))
    } else {
        None
    }
}

/// Returns the content of the algorithm's identifier in a public key (RFC 5280, section 4.1).
fn algorithm_of(public: &[u8]) -> Option<&[u8]> {
    sequence(sequence(public)?)
}

/// Returns the content of the sequence in DER that these bytes begin with.
fn sequence(der: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    let (len, rest) = match der {
        [SEQUENCE, len @ 0..=0x7f, rest @ ..] => (usize::from(*len), rest),
        [SEQUENCE, 0x81, len, rest @ ..] => (usize::from(*len), rest),
        [SEQUENCE, 0x82, high, low, rest @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), rest),
        _ => return None,
    };
    rest.get(..len)
}

/// Session tickets, which the node seals and opens. So each instance resumes the sessions of all others.
#[derive(Debug)]
pub(crate) struct Tickets(pub(crate) Key);

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_LIFETIME_S
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        // The session goes on without a ticket, and its client begins anew next time.
        self.0.seal_ticket(plain).ok()
    }

    fn decrypt(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        self.0.open_ticket(sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_algorithm_of_a_public_key_is_found_and_of_other_bytes_none() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let public = rcgen::PublicKeyData::subject_public_key_info(&key);
        let algorithm = algorithm_of(&public).unwrap();
        assert_eq!(schemes_of(algorithm).unwrap().1, [SignatureScheme::ECDSA_NISTP384_SHA384]);
        for len in 0..public.len() {
            assert!(algorithm_of(&public[..len]).is_none(), "{len} bytes of it");
        }
        assert!(schemes_of(b"none of these").is_none());
    }
}
