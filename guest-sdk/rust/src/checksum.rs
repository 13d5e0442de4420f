//! The Internet checksum of RFC 1071, and its update after a change (RFC 1624).

/// The checksum of `data`: what a header's checksum field must hold, with zero in the field while it is computed.
/// Over data that includes a right checksum it gives zero.
///
/// ```
/// use pinion_sdk::checksum;
///
/// let mut message = [8, 0, 0, 0, 0x12, 0x34, 0, 1];
/// let sum = checksum::of(&message);
/// message[2..4].copy_from_slice(&sum.to_be_bytes());
/// assert_eq!(checksum::of(&message), 0);
/// ```
#[must_use]
pub fn of(data: &[u8]) -> u16 {
    let (words, rest) = data.as_chunks::<4>();
    // 2^34 bytes would be needed to overflow.
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_be_bytes(last));
    !fold(sum)
}

/// The checksum after one 16-bit word of the data that it covers changed from `old` to `new`.
///
/// ```
/// use pinion_sdk::checksum;
///
/// let before = checksum::of(&[0x45, 0x00, 0x40, 0x01]);
/// assert_eq!(checksum::update(before, 0x4001, 0x3f01), checksum::of(&[0x45, 0x00, 0x3f, 0x01]));
/// ```
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// The checksum after part of the data that it covers changed from `old` to `new`: an address, for example. The part begins at an even
/// offset of the data, and its length stays.
///
/// # Panics
///
/// If the two are not as long as each other, or of an odd length.
///
/// ```
/// use pinion_sdk::checksum;
///
/// let before = checksum::of(&[10, 0, 0, 1, 0, 7]);
/// assert_eq!(checksum::update_bytes(before, &[10, 0, 0, 1], &[10, 9, 9, 9]), checksum::of(&[10, 9, 9, 9, 0, 7]));
/// ```
#[must_use]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    assert!(
        old.len() == new.len() && old.len().is_multiple_of(2),
        "a part of {} bytes became {}",
        old.len(),
        new.len()
    );
    let words =
        |bytes: &'_ [u8]| bytes.as_chunks::<2>().0.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
    // Each word's complement is what it lacks to 0xffff.
    let complements = (old.len() as u64 / 2) * 0xffff - words(old);
    !fold(u64::from(!checksum) + complements + words(new))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::{of, update, update_bytes};
    use proptest::prelude::*;

    #[test]
    fn the_example_of_rfc_1071_comes_out() {
        assert_eq!(of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn an_odd_byte_counts_as_padded_with_zero() {
        assert_eq!(of(&[0x01, 0x02, 0x03]), of(&[0x01, 0x02, 0x03, 0x00]));
    }

    proptest! {
        #[test]
        fn an_update_gives_what_a_new_computation_gives(
            mut data in proptest::collection::vec(any::<u8>(), 4..200), at in any::<proptest::sample::Index>(), new: u16,
        ) {
            // Data of zeroes only has two representations of its sum; headers never are.
            data[0] |= 1;
            let at = 2 + at.index((data.len() - 2) / 2) * 2;
            let before = of(&data);
            let old = u16::from_be_bytes([data[at], data[at + 1]]);
            data[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), of(&data));
        }

        #[test]
        fn an_update_of_a_part_gives_what_a_new_computation_gives(
            mut data in proptest::collection::vec(any::<u8>(), 40..80), at in 1_usize..4, new: [u8; 32],
        ) {
            data[0] |= 1;
            let part = 2 * at..2 * at + 32;
            let before = of(&data);
            let old = data[part.clone()].to_vec();
            data[part].copy_from_slice(&new);
            prop_assert_eq!(update_bytes(before, &old, &new), of(&data));
        }
    }
}
