//! Private keys of TLS servers, which stay with the node: it signs handshakes, and seals and opens session tickets.
//!
//! A key is uploaded through the node's API and granted to a stage by name. The function never has it in its memory, so a function that an
//! attacker has taken over cannot give it away; and the node signs nothing but what a TLS server signs in a handshake.
//!
//! ```toml
//! [key.site]
//! file = "site.key.pem"
//!
//! [[chain]]
//! name = "web"
//! stage = [{ module = "tls-proxy", keys = ["site"] }]
//! ```
//!
//! ```
//! use pinion_sdk::keys::{Key, SignError};
//! use pinion_sdk::testing::{FakeKey, grant_key};
//!
//! // In tests the test grants the key, with a signature of its own.
//! grant_key(FakeKey::new("site", |scheme, message| (scheme == 0x0403).then(|| message[..4].to_vec())));
//! let key = Key::open("site").unwrap();
//! assert_eq!(key.sign(0x0403, b"what a server signs").as_deref(), Ok(&b"what"[..]));
//! assert_eq!(key.sign(0x0804, b"what a server signs"), Err(SignError::Refused));
//! let ticket = key.seal_ticket(b"a session").unwrap();
//! assert_eq!(key.open_ticket(&ticket).as_deref(), Some(&b"a session"[..]));
//! ```
//!
//! All instances with one key open each other's tickets. So a client resumes its session with any of them.

use core::fmt;

use pinion_abi::{Errno, KEY_SIGNATURE_BYTES_MAX, TICKET_OVERHEAD_BYTES};

use super::calls;
use crate::InitError;

/// The longest content of a ticket, in bytes.
pub const TICKET_BYTES_MAX: usize = pinion_abi::TICKET_PLAIN_BYTES_MAX;
/// For how long a ticket is opened at least, in seconds.
pub const TICKET_LIFETIME_S: u32 = 6 * 60 * 60;

/// Why there is no signature, or no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignError {
    /// The message is nothing that a TLS server signs, or the key does not sign it by this scheme.
    Refused,
    /// The tenant asks for more signatures than it may. Later it may be possible.
    Busy,
    /// Not allowed in [`Function::init`](crate::Function::init), and signatures only once the function has waited for packets.
    NotNow,
    /// The content of a ticket is longer than [`TICKET_BYTES_MAX`].
    TooLong,
}

impl fmt::Display for SignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "the node signs no such message with this key",
            Self::Busy => "the tenant asks for more signatures than it may",
            Self::NotNow => "keys cannot be used before the function has waited for packets",
            Self::TooLong => "the content of a ticket is too long",
        })
    }
}

impl std::error::Error for SignError {}

impl SignError {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::Refused => Self::Refused,
            Errno::NotNow => Self::NotNow,
            Errno::TooLong => Self::TooLong,
            // The number is a key's, and addresses lie within this memory.
            _ => Self::Busy,
        }
    }
}

/// A private key that the stage was granted. See [the module](self).
#[derive(Clone, Copy, Debug)]
pub struct Key {
    number: i32,
}

impl Key {
    /// Opens the key of this name. Call it in [`Function::init`](crate::Function::init): then a chain that does not grant the key is refused
    /// when it is applied.
    ///
    /// # Errors
    ///
    /// The stage was not granted the key; the message names it.
    pub fn open(name: &str) -> Result<Self, InitError> {
        match call(|| calls::key_open(name)) {
            Ok(number) => Ok(Self { number }),
            Err(_) => Err(InitError::new(format_args!(
                "key {name:?}: the stage is granted no private key of this name: grant it in the chain's manifest"
            ))),
        }
    }

    /// Signs a message by a `SignatureScheme` of TLS (RFC 8446, section 4.2.3): the content of a CertificateVerify of TLS 1.3 (section 4.4.3), or
    /// the randoms and parameters of a ServerKeyExchange of TLS 1.2 with x25519, secp256r1 or secp384r1 (RFC 8422, section 5.4). The function
    /// sleeps meanwhile: tens of microseconds and more.
    ///
    /// # Errors
    ///
    /// See [`SignError`].
    pub fn sign(&self, scheme: u16, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let mut signature = vec![0; KEY_SIGNATURE_BYTES_MAX];
        let len = call(|| calls::key_sign(self.number, scheme, message, &mut signature)).map_err(SignError::of)?;
        signature.truncate(len as usize);
        Ok(signature)
    }

    /// Seals the content of a session ticket.
    ///
    /// # Errors
    ///
    /// See [`SignError`].
    pub fn seal_ticket(&self, plain: &[u8]) -> Result<Vec<u8>, SignError> {
        let mut sealed = vec![0; plain.len() + TICKET_OVERHEAD_BYTES];
        let len = call(|| calls::ticket_seal(self.number, plain, &mut sealed)).map_err(SignError::of)?;
        sealed.truncate(len as usize);
        Ok(sealed)
    }

    /// Opens a session ticket. `None` if it has expired, was forged, or is of another key.
    #[must_use]
    pub fn open_ticket(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut plain = vec![0; sealed.len().checked_sub(TICKET_OVERHEAD_BYTES)?];
        let len = call(|| calls::ticket_open(self.number, sealed, &mut plain)).ok()?;
        plain.truncate(len as usize);
        Some(plain)
    }
}

/// Repeats a call until the result is not [`Errno::Again`]. The node lets others run between two calls.
fn call(mut host: impl FnMut() -> i32) -> Result<i32, Errno> {
    loop {
        let returned = host();
        match Errno::of_returned(returned) {
            None => return Ok(returned),
            Some(Errno::Again) => {}
            Some(errno) => return Err(errno),
        }
    }
}
