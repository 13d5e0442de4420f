//! Addresses of names that were looked up lately: at most [`ENTRIES_MAX`], each for as long as its answer allows, an hour at most.

use core::net::IpAddr;

use super::{IpVersion, Name};

const ENTRIES_MAX: usize = 32;
const TTL_S_MAX: u32 = 3_600;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct Cache(Vec<Entry>);

struct Entry {
    name: Name,
    version: IpVersion,
    addresses: Vec<IpAddr>,
    until_ns: u64,
}

impl Cache {
    pub(super) fn find(&self, name: &Name, version: IpVersion, now_ns: u64) -> Option<Vec<IpAddr>> {
        let is_it = |entry: &&Entry| entry.version == version && entry.until_ns > now_ns && entry.name == *name;
        self.0.iter().find(is_it).map(|entry| entry.addresses.clone())
    }

    /// Keeps a name's addresses, in place of an older answer or of the entry that would expire first. With a time to live of 0 they are
    /// not kept (RFC 1035, section 3.2.1).
    pub(super) fn keep(&mut self, name: &Name, version: IpVersion, addresses: &[IpAddr], ttl_s: u32, now_ns: u64) {
        self.0.retain(|entry| entry.until_ns > now_ns && !(entry.version == version && entry.name == *name));
        if ttl_s == 0 {
            return;
        }
        if self.0.len() >= ENTRIES_MAX {
            let first = (0..self.0.len()).min_by_key(|at| self.0[*at].until_ns);
            first.into_iter().for_each(|at| _ = self.0.swap_remove(at));
        }
        let until_ns = now_ns + u64::from(ttl_s.min(TTL_S_MAX)) * SECOND_NS;
        self.0.push(Entry { name: name.clone(), version, addresses: addresses.to_vec(), until_ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_NS: u64 = 77;

    fn name(number: usize) -> Name {
        Name::of(&format!("host{number}")).unwrap()
    }

    #[test]
    fn an_answer_is_kept_for_its_time_to_live_and_an_hour_at_most() {
        let mut cache = Cache::default();
        let addresses = [IpAddr::from([192, 0, 2, 1])];
        for (number, (ttl_s, lives_s)) in [(0, 0), (10, 10), (u32::MAX, 3_600)].into_iter().enumerate() {
            cache.keep(&name(number), IpVersion::V4, &addresses, ttl_s, NOW_NS);
            let end_ns = NOW_NS + lives_s * SECOND_NS;
            assert_eq!(cache.find(&name(number), IpVersion::V4, end_ns - 1).is_some(), ttl_s > 0);
            assert_eq!(cache.find(&name(number), IpVersion::V4, end_ns), None);
            assert_eq!(cache.find(&name(number), IpVersion::V6, NOW_NS), None);
        }
    }

    #[test]
    fn a_full_cache_forgets_what_would_expire_first() {
        let mut cache = Cache::default();
        for number in 0..=ENTRIES_MAX {
            cache.keep(&name(number), IpVersion::V4, &[], 100 - number as u32, NOW_NS);
        }
        let kept = (0..=ENTRIES_MAX).filter(|number| cache.find(&name(*number), IpVersion::V4, NOW_NS).is_some());
        assert!(kept.eq((0..=ENTRIES_MAX).filter(|number| *number != ENTRIES_MAX - 1)));
    }
}
