//! Bans of modules that keep exceeding their budgets: their chains serve no new clients, for a time that grows with each ban.
//!
//! A single overrun may be caused by a client's packets. Several overruns of one module in a short time are the module's fault, and each
//! further instance of it takes a whole budget of processor time from others before it is ended.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::ids::ModuleKey;

/// Overruns that are tolerated within this time.
const BORNE: u32 = 3;
const MEMORY: Duration = Duration::from_secs(60);
/// The first ban and the longest. Each ban is twice as long as the one before.
const BAN_MIN: Duration = Duration::from_secs(1);
const BAN_MAX: Duration = Duration::from_secs(600);
/// The last ban is forgotten after so many times its length without an overrun.
const FORGIVEN_AFTER: u32 = 10;

#[derive(Debug)]
struct Record {
    /// When the first overrun that counts came.
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

/// All modules with overruns; see the module.
#[derive(Debug, Default)]
pub(super) struct Bans(HashMap<ModuleKey, Record>);

impl Bans {
    /// Notes that an FWP of a module has exceeded its budget. Returns until when the module is banned for that, if it is.
    pub(super) fn overran(&mut self, module: ModuleKey, now: Instant) -> Option<Instant> {
        let record = self.0.entry(module).or_insert(Record { since: now, overruns: 0, ban: None });
        record.ban = record.ban.filter(|ban| now < ban.until + ban.length * FORGIVEN_AFTER);
        // Overruns of instances that were running when the ban began are part of its cause, and do not count again.
        if record.ban.is_some_and(|ban| now < ban.until) {
            return None;
        }
        if now.saturating_duration_since(record.since) > MEMORY {
            (record.since, record.overruns) = (now, 0);
        }
        record.overruns += 1;
        // After a ban no overrun is tolerated.
        if record.ban.is_none() && record.overruns <= BORNE {
            return None;
        }
        let length = record.ban.map_or(BAN_MIN, |ban| (ban.length * 2).min(BAN_MAX));
        let until = now + length;
        record.ban = Some(Ban { length, until });
        Some(until)
    }

    /// Forgets modules that no longer exist.
    pub(super) fn retain(&mut self, mut is_there: impl FnMut(&ModuleKey) -> bool) {
        self.0.retain(|module, _| is_there(module));
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::model::{ModuleName, TenantName};

    use super::*;

    fn module() -> ModuleKey {
        (TenantName::new("mallory").unwrap(), ModuleName::new("hog").unwrap())
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn some_overruns_are_tolerated_and_further_ones_ban_for_a_growing_time() {
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
    fn overruns_far_apart_are_tolerated_and_an_old_ban_is_forgotten() {
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
