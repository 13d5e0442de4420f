//! The keyed hash of a field's keys.
//!
//! Each 32-bit half of the key's words, and the key's length, gets a random number added. The sums are multiplied in pairs and added up
//! (MULTILINEAR-HM of Lemire and Kaser, "Strongly universal string hashing is fast"). Over the choice of the random numbers, any two
//! different keys have the same sum with a probability of at most 2^-33. Multiplications by further random numbers spread the sums of
//! consecutive keys. A client that chooses keys sees neither the random numbers nor a hash. To learn of a collision would gain it little,
//! because a lookup inspects sixteen entries for any key.

use std::hash::{BuildHasher, RandomState};

use pinion_guest::calls::state::Key;

/// Hashes keys with random numbers of its own.
#[derive(Debug)]
pub(super) struct Hasher {
    /// One for the sum, then one for each half of a word, and two for the length.
    keys: [u64; 19],
    /// Odd.
    spreads: [u64; 3],
}

/// A key's hashes: 32 bits each, practically independent of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hashes(pub(super) [u32; 3]);

impl Hasher {
    pub(super) fn new() -> Self {
        // As random as the keys of the standard library's hash maps.
        let random = RandomState::new();
        Self {
            keys: std::array::from_fn(|number| random.hash_one(number)),
            spreads: std::array::from_fn(|number| random.hash_one(("spread", number)) | 1),
        }
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &Key) -> Hashes {
        let (first, pairs) = (self.keys[0], self.keys[1..].as_chunks::<2>().0);
        let words = key.padded().as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let words = words.chain([u64::from(key.len())]);
        let products = words.zip(pairs).map(|(word, [first, second])| {
            let (low, high) = (u64::from(word as u32), word >> 32);
            first.wrapping_add(low).wrapping_mul(second.wrapping_add(high))
        });
        let sum = products.fold(first, u64::wrapping_add);
        let folded = sum ^ (sum >> 32);
        Hashes(self.spreads.map(|spread| (folded.wrapping_mul(spread) >> 32) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64, len: usize) -> Key {
        Key::new(&[&number.to_be_bytes()[..], &[0; 56]].concat()[..len]).unwrap()
    }

    #[test]
    fn consecutive_keys_fill_all_buckets_evenly_by_each_hash() {
        for which in 0..3 {
            for _ in 0..30 {
                let (hasher, mut buckets) = (Hasher::new(), [0_i32; 64]);
                (0..64 * 1024).for_each(|number| {
                    buckets[hasher.hash(&key(number, 13)).0[which] as usize >> 26] += 1;
                });
                // 1024 each on average, with a standard deviation of 32: nine times that has a probability of less than 2^-55.
                assert!(buckets.iter().all(|count| (1024 - 300..1024 + 300).contains(count)), "{buckets:?}");
            }
        }
    }

    #[test]
    fn keys_that_differ_only_in_length_have_different_hashes() {
        let hasher = Hasher::new();
        let hashes: Vec<Hashes> = (8..=64).map(|len| hasher.hash(&key(7, len))).collect();
        assert!(hashes.iter().enumerate().all(|(at, hash)| !hashes[..at].contains(hash)));
    }

    #[test]
    fn hashers_have_different_random_numbers() {
        let hashes: Vec<Hashes> = (0..8).map(|_| Hasher::new().hash(&key(1, 8))).collect();
        assert!(hashes.iter().any(|hash| *hash != hashes[0]));
    }
}
