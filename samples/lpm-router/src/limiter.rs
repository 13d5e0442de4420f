//! Limits how many ICMP errors are sent per second: a sender of packets that expire must not cause a flood of errors,
//! and must not keep other senders from theirs.
//!
//! Each source has a bucket of tokens, and all share one. Sources are told apart by a hash, so two of them may have one
//! bucket. An IPv6 /64 network counts as one source, as a host may have any address of it (RFC 8981).

use core::hash::Hasher;
use core::net::IpAddr;
use std::hash::DefaultHasher;

use pinion_sdk::random;

const SECOND_NS: u64 = 1_000_000_000;
/// The buckets of sources.
const BUCKETS: usize = 256;
/// A source may have this part of all errors.
const SOURCE_PART: u64 = 4;

/// How fast a bucket fills, and how far.
#[derive(Clone, Copy, Debug)]
struct Rate {
    interval_ns: u64,
    burst_ns: u64,
}

impl Rate {
    /// Returns whether a bucket has a token. `due_ns` is when its next one would be due if tokens came evenly.
    fn allows(self, due_ns: u64, now_ns: u64) -> bool {
        self.interval_ns != u64::MAX && due_ns.saturating_sub(now_ns) <= self.burst_ns
    }

    fn spend(self, due_ns: &mut u64, now_ns: u64) {
        *due_ns = (*due_ns).max(now_ns) + self.interval_ns;
    }
}

/// A rate limiter: so many errors per second, with a burst of a tenth of that; to a source a quarter of them, with a
/// burst of a fifth of that.
#[derive(Clone, Debug)]
pub struct Limiter {
    all: Rate,
    source: Rate,
    all_due_ns: u64,
    source_due_ns: [u64; BUCKETS],
    /// A hasher with a secret key, so that a source cannot choose whose bucket it has.
    keyed: DefaultHasher,
}

impl Limiter {
    /// Makes an unused limiter; with a rate of zero it lets no error pass.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        let interval_ns = SECOND_NS.checked_div(per_second.into()).unwrap_or(u64::MAX);
        Self {
            all: Rate { interval_ns, burst_ns: SECOND_NS / 10 },
            source: Rate { interval_ns: interval_ns.saturating_mul(SOURCE_PART), burst_ns: SECOND_NS / 5 },
            all_due_ns: 0,
            source_due_ns: [0; BUCKETS],
            keyed: DefaultHasher::new(),
        }
    }

    /// Draws the key.
    pub fn rekey(&mut self) {
        let mut key = [0; 16];
        random::fill(&mut key);
        self.keyed.write(&key);
    }

    /// Returns whether an error may be sent to this source now.
    pub fn allows(&mut self, source: IpAddr, now_ns: u64) -> bool {
        let bucket = self.bucket(source);
        let source_due_ns = &mut self.source_due_ns[bucket];
        let may_pass = self.source.allows(*source_due_ns, now_ns) && self.all.allows(self.all_due_ns, now_ns);
        if may_pass {
            self.source.spend(source_due_ns, now_ns);
            self.all.spend(&mut self.all_due_ns, now_ns);
        }
        may_pass
    }

    fn bucket(&self, source: IpAddr) -> usize {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(match source {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        });
        hasher.finish() as usize % BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::Limiter;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn source(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn the_rate_and_the_burst_of_all_sources_are_limited() {
        let mut limiter = Limiter::new(100);
        let passed = (0..1000).filter(|number| limiter.allows(source(*number), 5_000_000_000)).count();
        assert_eq!(passed, 11);
        let passes = |us: u64| (us * 1_000 + 6_000_000_000, source(us as u32));
        let passed = (0..1_000_000).map(passes).filter(|(now_ns, from)| limiter.allows(*from, *now_ns)).count();
        assert!((100..=111).contains(&passed), "{passed}");
    }

    #[test]
    fn a_source_has_a_quarter_and_leaves_the_others_theirs() {
        let mut limiter = Limiter::new(100);
        let passed = (0..1_000_000).filter(|us| limiter.allows(ONE, 6_000_000_000 + us * 1_000)).count();
        assert!((25..=31).contains(&passed), "{passed}");
        let others = (0..20).filter(|number| limiter.allows(source(*number), 7_000_000_000)).count();
        assert!(others >= 9, "{others}");
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let mut limiter = Limiter::new(1000);
        let address = |last: u128| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8 << 96) | last));
        let passed = (0..1000).filter(|last| limiter.allows(address(*last), 5_000_000_000)).count();
        assert_eq!(passed, 51);
    }

    #[test]
    fn a_limit_of_zero_lets_none_pass() {
        assert!(!Limiter::new(0).allows(ONE, 1));
    }
}
