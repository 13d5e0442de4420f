//! The Internet checksum of IPv4 headers and ICMP messages.

/// Returns the checksum of these bytes; 0 if they contain their own valid one.
pub(crate) fn internet_checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_wrap_around_and_an_odd_byte_is_a_high_one() {
        assert_eq!(internet_checksum(&[0x45, 0x00, 0xff]), !0x4401);
        assert_eq!(internet_checksum(&[]), 0xffff);
    }
}
