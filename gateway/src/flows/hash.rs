//! The keyed hash of flows.
//!
//! It has two steps. First, a random number is added to each of the key's twelve half words; these are multiplied in
//! pairs and summed up (MULTILINEAR-HM of Lemire and Kaser, "Strongly universal string hashing is fast"). Over the
//! choice of the random numbers, any two different flows have the same sum with a probability of at most 2^-33. But
//! consecutive flows have sums in arithmetic progression, which would fill buckets unevenly. So, second, a shift breaks
//! the progression, and a multiplication by another random number spreads the sums.
//!
//! Clients choose addresses and ports, but see neither the random numbers nor a hash, so they cannot aim at each
//! other's buckets. This does not suffice for tables that walk whole chains of colliding entries: an attacker who
//! learned of one collision could make more. Such tables use SipHash. Tables with this hash look at sixteen entries at
//! most. A known collision then gains nothing but the eviction of an entry that is found again through the rules. In
//! return, the hash takes seven multiplications, six of which are independent, where SipHash takes ten dependent
//! rounds.

use std::hash::{BuildHasher, RandomState};

use crate::headers::FlowKey;

/// Hashes flows with its own random numbers.
pub(crate) struct FlowHasher {
    /// One for the sum, then one for each half word.
    keys: [u64; 13],
    /// The multiplier of the second step; odd.
    spread: u64,
}

/// A flow's hash. Only valid for the hasher that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowHash(pub(crate) u32);

impl FlowHasher {
    pub(crate) fn new() -> Self {
        // As random as the keys of the standard library's hash maps.
        let random = RandomState::new();
        Self { keys: std::array::from_fn(|number| random.hash_one(number)), spread: random.hash_one("spread") | 1 }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &FlowKey) -> FlowHash {
        let pairs = self.keys[1..].as_chunks::<2>().0;
        let products = key.words().iter().zip(pairs).map(|(word, [first, second])| {
            let (low, high) = (u64::from(*word as u32), word >> 32);
            first.wrapping_add(low).wrapping_mul(second.wrapping_add(high))
        });
        let sum = products.fold(self.keys[0], u64::wrapping_add);
        let spread = (sum ^ (sum >> 32)).wrapping_mul(self.spread);
        FlowHash((spread >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{Ingress, Vlan};
    use pinion_mma::id::PortIndex;
    use std::net::Ipv4Addr;

    const INGRESS: Ingress = Ingress { port: PortIndex(0), vlan: Vlan::UNTAGGED };

    fn flow(number: u32) -> FlowKey {
        FlowKey::ipv4(Ipv4Addr::from_bits(number), Ipv4Addr::LOCALHOST, 17, INGRESS).with_ports(1, 2)
    }

    #[test]
    fn flows_that_differ_in_one_bit_meet_as_rarely_as_by_chance() {
        // 0.5 % of all trials on average; that there are more than 3 % has a probability of less than 2^-100.
        let (mut met, mut trials) = (0, 0);
        for _ in 0..64 {
            let hasher = FlowHasher::new();
            for bit in 0..32 {
                let (one, other) = (hasher.hash(&flow(0x0a00_0001)), hasher.hash(&flow(0x0a00_0001 ^ 1 << bit)));
                trials += 1;
                met += u32::from(one.0 % 200 == other.0 % 200);
            }
        }
        assert!(met * 100 <= trials * 3, "{met} of {trials}");
    }

    #[test]
    fn flows_in_a_row_fill_all_buckets_alike() {
        // Consecutive by addresses, by ports, and by both.
        let rows: [fn(u32) -> FlowKey; 3] = [
            flow,
            |number| {
                FlowKey::ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, INGRESS).with_ports(number as u16, 53)
            },
            |number| flow(number / 256).with_ports((number % 256) as u16 * 4, 0),
        ];
        for row in rows {
            for _ in 0..100 {
                let (hasher, mut buckets) = (FlowHasher::new(), [0_i32; 64]);
                (0..64 * 1024).for_each(|number| buckets[hasher.hash(&row(number)).0 as usize >> 26] += 1);
                // 1024 each on average, with a deviation of 32: nine times that has a probability of less than 2^-55.
                let (least, most) = (buckets.iter().min().unwrap(), buckets.iter().max().unwrap());
                assert!(*least > 1024 - 300 && *most < 1024 + 300, "{least} to {most}");
            }
        }
    }

    #[test]
    fn hashers_do_not_agree() {
        let hashes: Vec<FlowHash> = (0..8).map(|_| FlowHasher::new().hash(&flow(1))).collect();
        assert!(hashes.iter().any(|hash| *hash != hashes[0]));
    }
}
