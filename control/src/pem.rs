//! The text of a private key's file, on its way from the file to the node.

use std::fmt;

use pinion_keys::{KeyError, PrivateKey};
use zeroize::Zeroizing;

use crate::model::Digest;

/// A file in PEM with a private key. It is erased when it is dropped, and `Debug` does not show it.
pub struct Pem(Zeroizing<Vec<u8>>);

impl Pem {
    /// Takes the text of a file.
    #[must_use]
    pub fn new(text: Vec<u8>) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the digest of the public key, by which a node knows the key.
    ///
    /// # Errors
    /// Returns why no node takes it, without anything of the text.
    pub fn public_digest(&self) -> Result<Digest, KeyError> {
        PrivateKey::from_pem(&self.0).map(|key| Digest::from_bytes(key.public_digest()))
    }

    /// Returns the text, for a message that erases it.
    pub(crate) fn take(mut self) -> Vec<u8> {
        std::mem::take(&mut *self.0)
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem of {} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::UploadKeyRequest;

    #[test]
    fn the_text_of_a_key_is_in_no_debug_output() {
        let pem = || Pem::new(b"-----BEGIN PRIVATE KEY-----".to_vec());
        let request = UploadKeyRequest { tenant: "demo".into(), pem: pem().take(), keep_history: false };
        assert_eq!(format!("{:?}", pem()), "Pem of 27 bytes");
        assert_eq!(format!("{request:?}"), "UploadKeyRequest of demo, 27 bytes");
    }
}
