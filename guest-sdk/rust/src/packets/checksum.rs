//! The Internet checksum of RFC 1071, and its update after a change (RFC 1624).
//!
//! # Two zeros
//!
//! In one's complement, 0x0000 and 0xffff are both zero, but a receiver treats them differently. Data that are all zero sum up to 0x0000,
//! so their checksum is 0xffff, and a receiver refuses 0x0000 in its place. Other data with a sum of zero sum up to 0xffff, so their
//! checksum is 0x0000; a receiver accepts 0xffff as well. [`of`] returns the right one. [`update`] and [`update_bytes`] see only what has
//! changed:
//!
//! | what has changed | the result if the sum is zero |
//! |---|---|
//! | nothing | the checksum as it was |
//! | the new part is not all zero, so the data are not | 0x0000, as from [`of`] |
//! | the new part is all zero, so the data may be | 0xffff, which a receiver accepts in either case |
//!
//! So if a receiver accepted the data before an update, it accepts them after. Some data are never all zero: an IPv4 header, and what is
//! summed with a pseudo header (TCP, UDP, ICMPv6). They never have the checksum 0xffff, and 0x0000 can take its place. Only the ICMP of
//! IPv4 can be all zero: an echo reply with identifier 0, sequence number 0 and a payload of zeros is.
//!
//! UDP has another rule for its checksum field: 0x0000 means that there is no checksum. A checksum of 0x0000 is sent as 0xffff, and a field
//! of 0x0000 is left unchanged (RFC 768). [`Headers::set_addresses`](crate::headers::Headers::set_addresses) and
//! [`Headers::set_ports`](crate::headers::Headers::set_ports) follow these rules.

/// Returns the checksum of `data`: the value for a header's checksum field. The field must be zero while the checksum is computed. Over
/// data that include a correct checksum the result is zero.
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
    !fold(sum(data))
}

/// Returns the sum of the 16-bit words of `data`: at most 0xffff, and 0 only if all are zero. An odd last byte counts as padded with zero.
///
/// The words are summed up as little-endian numbers, eight bytes at a time, as WebAssembly loads them. The sum's bytes are then the wrong way
/// round, and are swapped once (RFC 1071, 2 (B)).
#[inline]
pub(crate) fn sum(data: &[u8]) -> u64 {
    let (words, rest) = data.as_chunks::<8>();
    // Overflow would need 2^34 bytes.
    let mut sum = 0_u64;
    for word in words {
        let word = u64::from_le_bytes(*word);
        sum += (word & 0xffff_ffff) + (word >> 32);
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_le_bytes(*word));
    }
    match *rest {
        [a, b, c] => sum += u64::from(u32::from_le_bytes([a, b, c, 0])),
        [a, b] => sum += u64::from(u16::from_le_bytes([a, b])),
        [a] => sum += u64::from(a),
        _ => {}
    }
    fold(sum).swap_bytes().into()
}

/// Returns the checksum after one 16-bit word of the data that it covers changed from `old` to `new`. Of the [two zeros](self#two-zeros) it
/// returns the one that a receiver accepts.
///
/// ```
/// use pinion_sdk::checksum;
///
/// let before = checksum::of(&[0x45, 0x00, 0x40, 0x01]);
/// assert_eq!(checksum::update(before, 0x4001, 0x3f01), checksum::of(&[0x45, 0x00, 0x3f, 0x01]));
///
/// // An echo request without identifier, sequence number and payload, and its reply.
/// let request = checksum::of(&[8, 0, 0, 0, 0, 0, 0, 0]);
/// assert_eq!(checksum::update(request, 0x0800, 0x0000), 0xffff);
/// ```
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    if old == new {
        return checksum;
    }
    updated(checksum, u64::from(!old), new.into())
}

/// Returns the checksum after part of the data that it covers, an address for example, changed from `old` to `new`. The part must begin at
/// an even offset of the data and keep its length. Of the [two zeros](self#two-zeros) it returns the one that a receiver accepts.
///
/// # Panics
///
/// If the two have different lengths, or an odd length.
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
    if old == new {
        return checksum;
    }
    let words =
        |bytes: &'_ [u8]| bytes.as_chunks::<2>().0.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
    // Each word's complement is its difference from 0xffff.
    let complements = (old.len() as u64 / 2) * 0xffff - words(old);
    updated(checksum, complements, words(new))
}

/// RFC 1624, equation 3, for a part that has changed: takes the sum of the old words' complements and the sum of the new words.
fn updated(checksum: u16, complements: u64, new: u64) -> u16 {
    match !fold(u64::from(!checksum) + complements + new) {
        // The sum is zero, and the data may be all zero.
        0 if new == 0 => 0xffff,
        checksum => checksum,
    }
}

#[inline]
pub(crate) fn fold(mut sum: u64) -> u16 {
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
    fn the_example_of_rfc_1071_has_its_checksum() {
        assert_eq!(of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn an_odd_byte_counts_as_padded_with_zero() {
        assert_eq!(of(&[0x01, 0x02, 0x03]), of(&[0x01, 0x02, 0x03, 0x00]));
    }

    /// Returns whether a receiver accepts data with this checksum: the sum of all is 0xffff.
    fn is_accepted(data: &[u8], checksum: u16) -> bool {
        let mut sum = u64::from(checksum);
        for word in data.chunks(2) {
            sum += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum == 0xffff
    }

    /// Returns all checksums that a receiver accepts with these data: one, or both zeros.
    fn accepted(data: &[u8]) -> Vec<u16> {
        let right = of(data);
        assert!(is_accepted(data, right));
        let other = if right == 0 { 0xffff } else { 0 };
        std::iter::once(right).chain(Some(other).filter(|it| is_accepted(data, *it))).collect()
    }

    /// Returns whether an update's result is correct, given the checksum before it.
    fn holds(before: u16, after: u16, data: &[u8], changed: bool, new_is_zero: bool) -> bool {
        let exact = changed && !(new_is_zero && of(data) == 0);
        is_accepted(data, after) && (!exact || after == of(data)) && (changed || after == before)
    }

    #[test]
    fn data_of_zeros_have_the_checksum_0xffff_and_no_other() {
        for len in [0, 1, 2, 8, 64] {
            assert_eq!(accepted(&vec![0; len]), [0xffff]);
        }
        assert_eq!(accepted(&[0xff, 0xff]), [0x0000, 0xffff]);
    }

    #[test]
    fn the_reply_to_an_echo_request_without_anything_has_the_checksum_0xffff() {
        assert_eq!(update(0xf7ff, 0x0800, 0x0000), 0xffff);
        assert_eq!(update_bytes(0xf7ff, &[8, 0], &[0, 0]), 0xffff);
        assert_eq!(update_bytes(0xf7ff, &[8, 0, 0, 0], &[0, 0, 0, 0]), 0xffff);
        // And back.
        assert_eq!(update(0xffff, 0x0000, 0x0800), 0xf7ff);
    }

    #[test]
    fn no_change_of_zeros_changes_their_checksum() {
        assert_eq!(
            [update(0xffff, 0, 0), update_bytes(0xffff, &[0; 8], &[0; 8]), update(0, 7, 7)],
            [0xffff, 0xffff, 0]
        );
    }

    /// Tests each word with every neighbour that makes a difference: none, and those that bring the sum to either zero.
    #[test]
    fn a_receiver_accepts_each_word_after_each_change() {
        let special = [0, 1, 2, 0x7fff, 0x8000, 0xfffe, 0xffff];
        for word in 0..=u16::MAX {
            for other in special.into_iter().chain([word, !word, 0u16.wrapping_sub(word)]) {
                for beside in [None, Some(0), Some(1), Some(!word), Some(!other), Some(0xffff)] {
                    let data = |word: u16| [&word.to_be_bytes()[..], &beside.map_or([0; 2], u16::to_be_bytes)].concat();
                    for (old, new) in [(word, other), (other, word)] {
                        for before in accepted(&data(old)) {
                            let after = update(before, old, new);
                            assert!(
                                holds(before, after, &data(new), old != new, new == 0),
                                "{old:#x} to {new:#x} beside {beside:?}: {before:#x} to {after:#x}"
                            );
                            let (old, new) = (old.to_be_bytes(), new.to_be_bytes());
                            assert_eq!(update_bytes(before, &old, &new), after);
                        }
                    }
                }
            }
        }
    }

    /// Generates words with sums of zero far more often than by chance.
    fn words() -> impl Strategy<Value = Vec<u8>> {
        let word =
            prop_oneof![4 => Just(0), 2 => Just(0xffff), 1 => Just(0x00ff), 1 => Just(0xff00), 1 => any::<u16>()];
        (proptest::collection::vec(word, 1..12), any::<bool>()).prop_map(|(mut words, to_zero)| {
            if to_zero {
                let sum = words.iter().fold(0u32, |sum, word| sum + u32::from(*word));
                words.push(!(((sum & 0xffff) + (sum >> 16)) as u16));
            }
            words.iter().flat_map(|word| word.to_be_bytes()).collect()
        })
    }

    proptest! {
        #[test]
        fn a_receiver_accepts_the_updated_checksum_of_any_data(
            data in words(), new in words(), at in any::<proptest::sample::Index>(), which in any::<proptest::sample::Index>(),
        ) {
            let (mut data, len) = (data.clone(), new.len().min(data.len()));
            let at = at.index((data.len() - len) / 2 + 1) * 2;
            let before = *which.get(&accepted(&data));
            let old = data[at..at + len].to_vec();
            data[at..at + len].copy_from_slice(&new[..len]);
            let after = update_bytes(before, &old, &new[..len]);
            prop_assert!(holds(before, after, &data, old != new[..len], new[..len].iter().all(|byte| *byte == 0)));
        }

        #[test]
        fn a_wrong_checksum_is_still_wrong_after_an_update(
            mut data in words(), new: u16, wrong: u16,
        ) {
            // Zeros with a checksum of 0x0000 are the one case that the change alone does not show.
            let refuses = !is_accepted(&data, wrong) && data.iter().any(|byte| *byte != 0);
            let old = u16::from_be_bytes([data[0], data[1]]);
            data[..2].copy_from_slice(&new.to_be_bytes());
            prop_assert!(!refuses || !is_accepted(&data, update(wrong, old, new)));
        }

        #[test]
        fn an_update_gives_what_a_new_computation_gives(
            mut data in proptest::collection::vec(any::<u8>(), 4..200), at in any::<proptest::sample::Index>(), new: u16,
        ) {
            let at = at.index(data.len() / 2) * 2;
            let before = of(&data);
            let old = u16::from_be_bytes([data[at], data[at + 1]]);
            data[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert!(holds(before, update(before, old, new), &data, old != new, new == 0));
        }

        #[test]
        fn an_update_of_a_part_gives_what_a_new_computation_gives(
            mut data in proptest::collection::vec(any::<u8>(), 40..80), at in 0_usize..4, new: [u8; 32],
        ) {
            let part = 2 * at..2 * at + 32;
            let before = of(&data);
            let old = data[part.clone()].to_vec();
            data[part].copy_from_slice(&new);
            prop_assert!(holds(before, update_bytes(before, &old, &new), &data, old != new, new == [0; 32]));
        }
    }
}
