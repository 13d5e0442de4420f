//! Modules that keep exceeding their budgets: their chains serve nobody for a time that grows.
//!
//! One overrun is a client's doing as much as the function's. Several of the same module in a short time are the module's, and each
//! instance of it that is given to a client costs others a budget's time before it is ended.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pinion_control::model::{ModuleName, TenantName};

/// Overruns that are borne, within this time.
const BORNE: u32 = 3;
const MEMORY: Duration = Duration::from_secs(60);
/// The first ban, of which each further one is twice as long as the one before, and the longest.
const BAN_MIN: Duration = Duration::from_secs(1);
const BAN_MAX: Duration = Duration::from_secs(600);
/// A module that goes without an overrun for so many times its last ban begins anew.
const FORGIVEN_AFTER: u32 = 10;

/// A tenant's module.
pub type ModuleKey = (TenantName, ModuleName);

#[derive(Debug)]
struct Record {
    /// When the first of those came that count.
    since: Instant,
    overruns: u32,
    /// The last ban, if there was any.
    ban: Option<Ban>,
}

#[derive(Debug, Clone, Copy)]
struct Ban {
    length: Duration,
    until: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Bans(HashMap<ModuleKey, Record>);

impl Bans {
    /// Notes that an FWP of a module has exceeded its budget. If the module is banned for that, until when.
    pub(super) fn overran(&mut self, module: ModuleKey, now: Instant) -> Option<Instant> {
        let record = self.0.entry(module).or_insert(Record { since: now, overruns: 0, ban: None });
        record.ban = record.ban.filter(|ban| now < ban.until + ban.length * FORGIVEN_AFTER);
        // Those that were under way when it was banned are part of what it was banned for.
        if record.ban.is_some_and(|ban| now < ban.until) {
            return None;
        }
        if now.saturating_duration_since(record.since) > MEMORY {
            (record.since, record.overruns) = (now, 0);
        }
        record.overruns += 1;
        // After a ban nothing more is borne.
        if record.ban.is_none() && record.overruns <= BORNE {
            return None;
        }
        let length = record.ban.map_or(BAN_MIN, |ban| (ban.length * 2).min(BAN_MAX));
        let until = now + length;
        record.ban = Some(Ban { length, until });
        Some(until)
    }

    /// Forgets modules that nobody has any more.
    pub(super) fn retain(&mut self, mut is_there: impl FnMut(&ModuleKey) -> bool) {
        self.0.retain(|module, _| is_there(module));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module() -> ModuleKey {
        (TenantName::new("mallory").unwrap(), ModuleName::new("hog").unwrap())
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn some_overruns_are_borne_and_further_ones_banned_for_a_growing_time() {
        let (mut bans, mut now) = (Bans::default(), Instant::now());
        for _ in 0..BORNE {
            assert_eq!(bans.overran(module(), now), None);
        }
        for length in [1, 2, 4, 8] {
            assert_eq!(bans.overran(module(), now), Some(now + length * S));
            assert_eq!(bans.overran(module(), now + length * S / 2), None, "it is banned already");
            now += length * S;
        }
    }

    #[test]
    fn no_ban_is_longer_than_the_longest() {
        let (mut bans, mut now) = (Bans::default(), Instant::now());
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            if let Some(until) = bans.overran(module(), now) {
                longest = longest.max(until - now);
                now = until;
            }
        }
        assert_eq!(longest, BAN_MAX);
    }

    #[test]
    fn overruns_far_apart_are_borne_and_a_module_that_behaves_begins_anew() {
        let (mut bans, mut now) = (Bans::default(), Instant::now());
        for _ in 0..20 {
            assert_eq!(bans.overran(module(), now), None);
            now += MEMORY / 2;
        }
        assert_eq!((0..=BORNE).filter_map(|_| bans.overran(module(), now)).count(), 1);
        now += S + S * FORGIVEN_AFTER + MEMORY;
        assert_eq!(bans.overran(module(), now), None);
    }
}
