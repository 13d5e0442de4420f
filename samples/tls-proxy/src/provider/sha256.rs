//! SHA-256 (FIPS 180-4) and HMAC by it (RFC 2104), which a handshake uses some 30 times.

use hmac::{KeyInit, Mac};
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::hmac::{Hmac, Key, Tag};
use sha2::Digest;

/// The hash.
pub(crate) struct Sha256;

impl Hash for Sha256 {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Hashing(sha2::Sha256::new()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        Output::new(&sha2::Sha256::digest(data))
    }

    fn output_len(&self) -> usize {
        sha2::Sha256::output_size()
    }

    fn algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }
}

struct Hashing(sha2::Sha256);

impl Context for Hashing {
    fn fork_finish(&self) -> Output {
        Output::new(&self.0.clone().finalize())
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self(self.0.clone()))
    }

    fn finish(self: Box<Self>) -> Output {
        Output::new(&self.0.finalize())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }
}

/// The authentication code.
pub(crate) struct HmacSha256;

impl Hmac for HmacSha256 {
    fn with_key(&self, key: &[u8]) -> Box<dyn Key> {
        Box::new(Keyed(hmac::Hmac::new_from_slice(key).expect("a key may have any length")))
    }

    fn hash_output_len(&self) -> usize {
        sha2::Sha256::output_size()
    }
}

struct Keyed(hmac::Hmac<sha2::Sha256>);

impl Key for Keyed {
    fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> Tag {
        let mut code = self.0.clone();
        code.update(first);
        middle.iter().for_each(|part| code.update(part));
        code.update(last);
        Tag::new(&code.finalize().into_bytes())
    }

    fn tag_len(&self) -> usize {
        sha2::Sha256::output_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_hash_in_pieces_is_that_of_the_whole_and_can_be_taken_on_the_way() {
        let mut context = Sha256.start();
        context.update(b"a");
        let early = context.fork_finish();
        context.update(b"bc");
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(context.fork().finish().as_ref()), expected);
        assert_eq!(hex(context.finish().as_ref()), expected);
        assert_eq!(early.as_ref(), Sha256.hash(b"a").as_ref());
    }

    #[test]
    fn a_code_is_that_of_rfc_4231() {
        let key = HmacSha256.with_key(b"Jefe");
        let tag = key.sign_concat(b"what do ", &[b"ya want ", b"for "], b"nothing?");
        assert_eq!(hex(tag.as_ref()), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
