//! A private key: read from PEM, kept as PKCS#8, and used for handshakes only.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ring::digest;
use ring::signature::RsaKeyPair;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::SigningKey;
use rustls::{ProtocolVersion, SignatureAlgorithm, SignatureScheme};
use zeroize::{Zeroize, Zeroizing};

use crate::{encoding, handshake};

/// The longest PEM file of a key, in bytes.
pub const PEM_BYTES_MAX: usize = 64 * 1024;
/// The longest signature, in bytes: that of an RSA key of 4096 bits.
pub const SIGNATURE_BYTES_MAX: usize = 512;

/// Bits of RSA keys.
const RSA_BITS: std::ops::RangeInclusive<u16> = 2048..=4096;

/// A private key. What it keeps of the key is erased when it is dropped, but for the form in which ring computes with it, which ring does
/// not erase. `Debug` shows algorithm and digest of the public key.
pub struct PrivateKey {
    /// PKCS#8.
    der: Zeroizing<Vec<u8>>,
    signer: Arc<dyn SigningKey>,
    algorithm: Algorithm,
    /// A `SubjectPublicKeyInfo`.
    public: Vec<u8>,
}

/// The algorithm of a key. `Display` writes it as the API does: `ecdsa-p256`, `rsa-2048`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// ECDSA over P-256.
    EcdsaP256,
    /// ECDSA over P-384.
    EcdsaP384,
    /// EdDSA over Curve25519.
    Ed25519,
    /// RSA.
    Rsa {
        /// Bits of the modulus.
        bits: u16,
    },
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EcdsaP256 => f.write_str("ecdsa-p256"),
            Self::EcdsaP384 => f.write_str("ecdsa-p384"),
            Self::Ed25519 => f.write_str("ed25519"),
            Self::Rsa { bits } => write!(f, "rsa-{bits}"),
        }
    }
}

/// Why there is no key. No variant holds anything of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file is too long.
    #[error("a key's file has at most {PEM_BYTES_MAX} bytes, and this one has {0}")]
    TooLong(usize),
    /// It is no PEM.
    #[error(
        "it is no PEM: a key's file has lines of Base64 between `-----BEGIN PRIVATE KEY-----` and `-----END PRIVATE KEY-----`"
    )]
    NotPem,
    /// There is no key in it.
    #[error("it contains no private key: it needs a section `PRIVATE KEY`, `EC PRIVATE KEY` or `RSA PRIVATE KEY`")]
    NoKey,
    /// The key in it is encrypted.
    #[error(
        "its private key is encrypted with a passphrase: decrypt it first, with `openssl pkey -in FILE -out OTHER`"
    )]
    Encrypted,
    /// There are several keys in it.
    #[error("it contains several private keys: keep one")]
    Several,
    /// The key cannot be read, or is of another kind.
    #[error(
        "its private key is damaged or of another kind: use ECDSA with P-256 or P-384, Ed25519, or RSA of 2048 to 4096 bits"
    )]
    Unsupported,
}

/// Why there is no signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The message is no CertificateVerify and no ServerKeyExchange.
    #[error("the message is nothing that a TLS server signs in a handshake")]
    NoHandshake,
    /// The key, or the message's version of TLS, has no such scheme.
    #[error("this key does not sign by scheme {0:#06x} in this version of TLS")]
    Scheme(u16),
    /// The library failed, because the machine has no randomness.
    #[error("signing failed")]
    Failed,
}

/// A signature, as TLS carries it; at most [`SIGNATURE_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature(Vec<u8>);

impl Deref for Signature {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl PrivateKey {
    /// Reads the one private key of a PEM file (RFC 7468): PKCS#8, SEC1 or PKCS#1, of ECDSA with P-256 or P-384, RSA of 2048 to 4096 bits, or
    /// Ed25519. Other sections, such as certificates, are skipped.
    ///
    /// # Errors
    /// Returns why there is no such key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        if pem.len() > PEM_BYTES_MAX {
            return Err(KeyError::TooLong(pem.len()));
        }
        let mut keys = PrivateKeyDer::pem_slice_iter(pem);
        let mut key = match keys.next() {
            Some(Ok(key)) => key,
            Some(Err(pem::Error::NoItemsFound)) | None if has_encrypted(pem) => return Err(KeyError::Encrypted),
            Some(Err(pem::Error::NoItemsFound)) | None => return Err(KeyError::NoKey),
            Some(Err(_)) => return Err(KeyError::NotPem),
        };
        let result = match keys.next() {
            None => Self::from_encoding(&key),
            Some(Ok(mut other)) => {
                other.zeroize();
                Err(KeyError::Several)
            }
            Some(Err(_)) => Err(KeyError::NotPem),
        };
        key.zeroize();
        result
    }

    fn from_encoding(key: &PrivateKeyDer<'_>) -> Result<Self, KeyError> {
        match key {
            PrivateKeyDer::Pkcs8(key) => Self::from_bytes(key.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(key) => Self::from_bytes(&encoding::of_pkcs1(key.secret_pkcs1_der())),
            PrivateKeyDer::Sec1(key) => {
                let [first, second] = encoding::of_sec1(key.secret_sec1_der());
                Self::from_bytes(&first).or_else(|_| Self::from_bytes(&second))
            }
            _ => Err(KeyError::Unsupported),
        }
    }

    /// Reads a key in the form of [`PrivateKey::to_bytes`].
    ///
    /// # Errors
    /// [`KeyError::Unsupported`].
    pub fn from_bytes(der: &[u8]) -> Result<Self, KeyError> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
        let signer = any_supported_type(&key).map_err(|_| KeyError::Unsupported)?;
        let algorithm = algorithm(&*signer, der).ok_or(KeyError::Unsupported)?;
        let public = signer.public_key().ok_or(KeyError::Unsupported)?.to_vec();
        Ok(Self { der: Zeroizing::new(der.to_vec()), signer, algorithm, public })
    }

    /// Returns the key as PKCS#8 in DER, to be sealed ([`crate::Seal`]) and for nothing else.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        self.der.clone()
    }

    /// Returns the key's algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the public key, as a `SubjectPublicKeyInfo` (RFC 5280, section 4.1) in DER.
    #[must_use]
    pub fn public_key(&self) -> &[u8] {
        &self.public
    }

    /// Returns the SHA-256 digest of [`PrivateKey::public_key`], by which the API names the key.
    #[must_use]
    pub fn public_digest(&self) -> [u8; 32] {
        let digest = digest::digest(&digest::SHA256, &self.public);
        digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Checks that [`PrivateKey::sign`] would sign this if its point is on the curve. Takes less than a microsecond.
    ///
    /// # Errors
    /// As for [`PrivateKey::sign`].
    pub fn check(&self, scheme: u16, message: &[u8]) -> Result<(), SignError> {
        let version = handshake::version(message).ok_or(SignError::NoHandshake)?;
        let is_allowed = match SignatureScheme::from(scheme) {
            // RFC 8446, section 4.2.3: defined for certificates only.
            SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512 => {
                matches!(self.algorithm, Algorithm::Rsa { .. }) && version == ProtocolVersion::TLSv1_2
            }
            SignatureScheme::RSA_PSS_SHA256 | SignatureScheme::RSA_PSS_SHA384 | SignatureScheme::RSA_PSS_SHA512 => {
                matches!(self.algorithm, Algorithm::Rsa { .. })
            }
            SignatureScheme::ECDSA_NISTP256_SHA256 => self.algorithm == Algorithm::EcdsaP256,
            SignatureScheme::ECDSA_NISTP384_SHA384 => self.algorithm == Algorithm::EcdsaP384,
            SignatureScheme::ED25519 => self.algorithm == Algorithm::Ed25519,
            _ => false,
        };
        if is_allowed { Ok(()) } else { Err(SignError::Scheme(scheme)) }
    }

    /// Signs what a TLS server signs in a handshake, by a `SignatureScheme` (RFC 8446, section 4.2.3): the content of a CertificateVerify of
    /// TLS 1.3 (section 4.4.3), or randoms and parameters of a ServerKeyExchange of TLS 1.2 with a named curve (RFC 8422, section 5.4).
    /// Takes some 20 us with P-256, and 1 to 10 ms with RSA; in TLS 1.2 with a curve of the NIST, some 100 us more.
    ///
    /// # Errors
    /// Refuses all other messages, points that are not on their curve, schemes that the key does not have, and PKCS#1 v1.5 in TLS 1.3.
    pub fn sign(&self, scheme: u16, message: &[u8]) -> Result<Signature, SignError> {
        self.check(scheme, message)?;
        if !handshake::is_on_curve(message) {
            return Err(SignError::NoHandshake);
        }
        let signer = self.signer.choose_scheme(&[SignatureScheme::from(scheme)]).ok_or(SignError::Scheme(scheme))?;
        signer.sign(message).map(Signature).map_err(|_| SignError::Failed)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({}, sha256:", self.algorithm)?;
        self.public_digest().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

fn has_encrypted(pem: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";
    pem.windows(BEGIN.len()).any(|part| part == BEGIN)
}

fn algorithm(signer: &dyn SigningKey, der: &[u8]) -> Option<Algorithm> {
    let has = |scheme| signer.choose_scheme(&[scheme]).is_some();
    match signer.algorithm() {
        SignatureAlgorithm::RSA => {
            let key = RsaKeyPair::from_pkcs8(der).ok()?;
            let bits = u16::try_from(key.public().modulus_len() * 8).ok().filter(|bits| RSA_BITS.contains(bits))?;
            Some(Algorithm::Rsa { bits })
        }
        SignatureAlgorithm::ED25519 => Some(Algorithm::Ed25519),
        SignatureAlgorithm::ECDSA if has(SignatureScheme::ECDSA_NISTP256_SHA256) => Some(Algorithm::EcdsaP256),
        SignatureAlgorithm::ECDSA if has(SignatureScheme::ECDSA_NISTP384_SHA384) => Some(Algorithm::EcdsaP384),
        _ => None,
    }
}
