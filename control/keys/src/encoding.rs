//! PKCS#8 (RFC 5208, section 5) around the two older encodings of private keys, as all keys are kept in one.

use rustls::pki_types::{AlgorithmIdentifier, alg_id};
use zeroize::Zeroizing;

const INTEGER_ZERO: &[u8] = &[0x02, 0x01, 0x00];
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// Returns the PKCS#8 encodings that an `ECPrivateKey` (RFC 5915, section 3) may stand for, one for each curve: the curve may be left out of
/// it, and only the one of the right curve is a key.
pub(crate) fn of_sec1(key: &[u8]) -> [Zeroizing<Vec<u8>>; 2] {
    [alg_id::ECDSA_P256, alg_id::ECDSA_P384].map(|algorithm| of(algorithm, key))
}

/// Returns the PKCS#8 encoding of an `RSAPrivateKey` (RFC 8017, appendix A.1.2).
pub(crate) fn of_pkcs1(key: &[u8]) -> Zeroizing<Vec<u8>> {
    of(alg_id::RSA_ENCRYPTION, key)
}

fn of(algorithm: AlgorithmIdentifier, key: &[u8]) -> Zeroizing<Vec<u8>> {
    let algorithm = element(SEQUENCE, &[&algorithm]);
    let key = element(OCTET_STRING, &[key]);
    element(SEQUENCE, &[INTEGER_ZERO, &algorithm, &key])
}

/// Returns an element of DER (X.690, section 10.1) with this tag.
fn element(tag: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let octets = len.to_be_bytes();
    let octets = &octets[octets.iter().take_while(|octet| **octet == 0).count()..];
    // Allocated once, as what a vector leaves behind when it grows is not erased.
    let mut element = Zeroizing::new(Vec::with_capacity(2 + size_of::<usize>() + len));
    element.push(tag);
    if len < 0x80 {
        element.push(len as u8);
    } else {
        element.push(0x80 | octets.len() as u8);
        element.extend_from_slice(octets);
    }
    parts.iter().for_each(|part| element.extend_from_slice(part));
    element
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_as_short_as_they_can_be() {
        let head = |len: usize| element(OCTET_STRING, &[&vec![7; len]])[1..][..3].to_vec();
        assert_eq!([head(2), head(127)], [[2, 7, 7], [127, 7, 7]]);
        assert_eq!([head(128), head(255)], [[0x81, 128, 7], [0x81, 255, 7]]);
        assert_eq!([head(256), head(0xabcd)], [[0x82, 1, 0], [0x82, 0xab, 0xcd]]);
    }
}
