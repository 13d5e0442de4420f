//! Base64 as memcached reads it: bytes that are not of its alphabet are skipped, and padding ends the text. Libraries refuse such text, so
//! a client could reach an item with one server and not with the other.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        b'=' => Some(0),
        _ => None,
    }
}

/// Decodes a text; `None` if it is empty or incomplete, or has too much padding.
#[must_use]
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.iter().filter(|byte| digit(**byte).is_some()).count();
    if digits == 0 || digits % 4 != 0 || digits / 4 * 3 > text.len() {
        return None;
    }
    let mut decoded = Vec::with_capacity(digits / 4 * 3);
    let mut group = 0_u32;
    let (mut count, mut padding) = (0, 0);
    for &byte in text {
        let Some(value) = digit(byte) else { continue };
        padding += usize::from(byte == b'=');
        group = group << 6 | u32::from(value);
        count += 1;
        if count == 4 {
            let [_, bytes @ ..] = group.to_be_bytes();
            decoded.extend_from_slice(&bytes[..3_usize.checked_sub(padding).filter(|len| *len > 0)?]);
            if padding > 0 {
                break;
            }
            (group, count) = (0, 0);
        }
    }
    Some(decoded)
}

/// Appends the text of `bytes`.
pub fn encode(bytes: &[u8], text: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let [a, b, c] = core::array::from_fn(|at| u32::from(group.get(at).copied().unwrap_or(0)));
        let bits = a << 16 | b << 8 | c;
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at)) as usize & 63;
            text.push(if at <= group.len() { ALPHABET[index] } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_as_memcached_does_and_encoded_as_the_rfc_says() {
        for (text, bytes) in [
            ("Zm9vYg==", Some("foob")),
            ("Zm9vYmE=", Some("fooba")),
            ("Zm9vYmFy", Some("foobar")),
            ("Zm9v-Yg=-=", Some("foob")),
            ("Zm9vYg==Zm9v", Some("foob")),
            ("Zm9", None),
            ("", None),
            ("Z===", None),
            ("----", None),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), bytes.map(str::as_bytes), "{text:?}");
        }
        for (bytes, text) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            let mut encoded = Vec::new();
            encode(bytes.as_bytes(), &mut encoded);
            assert_eq!(encoded, text.as_bytes());
        }
    }
}
