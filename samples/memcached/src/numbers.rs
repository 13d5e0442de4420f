//! Numbers as memcached reads them, which is with C's `strtoull` and `strtol`: whitespace before, a sign, digits, and then the end, a NUL or
//! whitespace, after which anything may follow. Numbers that are too large for their type are cut by C's rules, or refused.

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Reads sign and magnitude; `None` if there is no number, or one of more than 64 bits. The last is whether there is another `-` later.
fn read(bytes: impl Iterator<Item = u8>) -> Option<(bool, u64, bool)> {
    let mut bytes = bytes.skip_while(|byte| is_space(*byte)).take_while(|byte| *byte != 0).peekable();
    let sign = bytes.next_if(|byte| matches!(byte, b'+' | b'-'));
    let mut value: u64 = bytes.next_if(u8::is_ascii_digit).map(|digit| (digit - b'0').into())?;
    while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
        value = value.checked_mul(10)?.checked_add((digit - b'0').into())?;
    }
    match bytes.next() {
        Some(byte) if !is_space(byte) => None,
        // A large number is only accepted without any `-`, and those are seldom; so only then the rest is searched.
        Some(_) => Some((sign == Some(b'-'), value, value > i64::MAX as u64 && bytes.any(|byte| byte == b'-'))),
        None => Some((sign == Some(b'-'), value, false)),
    }
}

/// Reads an unsigned number of 64 bits.
pub(crate) fn unsigned(bytes: impl Iterator<Item = u8>) -> Option<u64> {
    let (is_negative, magnitude, has_dash_later) = read(bytes)?;
    let value = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    let is_large = value > i64::MAX as u64;
    if is_large && (is_negative || has_dash_later) { None } else { Some(value) }
}

/// Reads an unsigned number of 32 bits: the low ones of 64.
pub(crate) fn unsigned_32(token: &[u8]) -> Option<u32> {
    unsigned(token.iter().copied()).map(|value| value as u32)
}

/// Reads an unsigned number of 64 bits.
pub(crate) fn unsigned_64(token: &[u8]) -> Option<u64> {
    unsigned(token.iter().copied())
}

/// Reads a signed number of 32 bits: the low ones of 64.
pub(crate) fn signed_32(token: &[u8]) -> Option<i32> {
    let (is_negative, magnitude, _) = read(token.iter().copied())?;
    let limit = i64::MAX as u64 + u64::from(is_negative);
    let value = if is_negative { magnitude.wrapping_neg() } else { magnitude };
    (magnitude <= limit).then_some(value as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_does() {
        for (text, unsigned, signed) in [
            ("0", Some(0), Some(0)),
            ("+7", Some(7), Some(7)),
            ("\t12\rx", Some(12), Some(12)),
            ("-1", None, Some(-1)),
            ("-0", Some(0), Some(0)),
            ("", None, None),
            ("-", None, None),
            ("1x", None, None),
            ("1\0x", Some(1), Some(1)),
            ("4294967297", Some(4_294_967_297), Some(1)),
            ("9223372036854775807", Some(i64::MAX as u64), Some(-1)),
            ("9223372036854775808", Some(1 << 63), None),
            ("9223372036854775808 -", None, None),
            ("-9223372036854775808", None, Some(0)),
            ("-18446744073709551615", Some(1), None),
            ("18446744073709551615", Some(u64::MAX), None),
            ("18446744073709551616", None, None),
        ] {
            assert_eq!(unsigned_64(text.as_bytes()), unsigned, "{text:?}");
            assert_eq!(signed_32(text.as_bytes()), signed, "{text:?}");
        }
        assert_eq!(unsigned_32(b"4294967297"), Some(1));
    }
}
