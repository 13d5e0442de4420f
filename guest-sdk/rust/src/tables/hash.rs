//! The hash of the tables' keys: [`KeyedHash`], a SipHash-1-3 by numbers.
//!
//! As an attacker chooses many of the keys, the hash has a secret key. The standard library's hasher gathers bytes of
//! any length into words of 64 bits. The keys of tables are a few numbers, so here each number is a word, which takes a
//! fraction of the instructions. The number of words is left out, as values of one type never begin with each other.

use core::hash::Hasher;

/// A hasher with a secret key. A copy of it hashes one value.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedHash {
    state: [u64; 4],
}

impl KeyedHash {
    pub(super) fn new(key: [u8; 16]) -> Self {
        let key = u128::from_le_bytes(key);
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        Self {
            state: [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
        }
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.state;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32).wrapping_add(d);
        c = c.wrapping_add(b);
        d = d.rotate_left(21) ^ a;
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.state = [a, b, c, d];
    }

    #[inline]
    fn add(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.state[0] ^= word;
    }
}

impl Hasher for KeyedHash {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
        // The padding must not make two values equal.
        self.add(bytes.len() as u64);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.add(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    #[inline]
    fn write_u128(&mut self, number: u128) {
        self.add(number as u64);
        self.add((number >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        let mut end = *self;
        end.state[2] ^= 0xff;
        for _ in 0..3 {
            end.round();
        }
        end.state.into_iter().fold(0, |sum, word| sum ^ word)
    }
}

#[cfg(test)]
mod tests {
    use core::hash::{Hash, Hasher};
    use std::hash::DefaultHasher;

    use super::KeyedHash;

    /// The oracle is the standard library's hasher, whose key is zero, and which adds the length in a word of its own.
    #[test]
    fn words_have_the_hash_that_the_standard_library_gives_them() {
        for count in 0..5_u64 {
            let (mut ours, mut oracle) = (KeyedHash::new([0; 16]), DefaultHasher::new());
            for number in 0..count {
                let word = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ours.write_u64(word);
                oracle.write_u64(word);
            }
            ours.write_u64((8 * count) << 56);
            assert_eq!(ours.finish(), oracle.finish(), "{count} words");
        }
    }

    #[test]
    fn other_values_and_other_keys_have_other_hashes() {
        let of = |key: u8, value: &dyn Fn(&mut KeyedHash)| {
            let mut hash = KeyedHash::new([key; 16]);
            value(&mut hash);
            hash.finish()
        };
        let hashes = [
            of(0, &|hash| [1_u8, 2].hash(hash)),
            of(1, &|hash| [1_u8, 2].hash(hash)),
            of(0, &|hash| [1_u8, 2, 0].hash(hash)),
            of(0, &|hash| (1_u8, 2_u8).hash(hash)),
            of(0, &|hash| (2_u8, 1_u8).hash(hash)),
            of(0, &|hash| (1_u128, 2_u16).hash(hash)),
            of(0, &|hash| (1_u128 << 64, 2_u16).hash(hash)),
            of(0, &|hash| "a stranger's key".hash(hash)),
            of(0, &|hash| "a stranger's kez".hash(hash)),
        ];
        let different: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(different.len(), hashes.len());
    }
}
