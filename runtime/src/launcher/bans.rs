//! Bans: chains that serve no new clients, for a time that grows with each ban, because of what they cost other tenants.
//!
//! Modules are banned that keep exceeding their budgets. A single overrun may be caused by a client's packets. Several overruns of one module
//! in a short time are the module's fault, and each further instance of it takes a whole budget of processor time from others before it is
//! ended.
//!
//! Chains are banned in whose turns workers panicked. Each such panic ends all instances of a worker, so a chain is allowed one only, and a
//! ban ends its instances on all workers.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_control::model::{Chain, TenantName};
use pinion_mma::id::FwpId;

use super::Launcher;
use crate::fwp::end_reason::EndReason;
use crate::ids::{ChainKey, ModuleKey};

/// The longest ban. Each ban is twice as long as the one before.
const BAN_MAX: Duration = Duration::from_secs(600);
/// The last ban is forgotten after so many times its length without a further occurrence.
const FORGIVEN_AFTER: u32 = 10;

/// How many records of a tenant are kept of what it has deleted, beside those with a ban in force.
const DELETED_MAX: usize = 256;

/// Which of occurrences lead to a ban.
#[derive(Debug, Clone, Copy)]
struct BanPolicy {
    /// Occurrences that are tolerated within `memory`.
    tolerated: u32,
    memory: Duration,
    /// The first ban.
    ban_min: Duration,
}

/// Overruns of modules.
const OVERRUNS: BanPolicy =
    BanPolicy { tolerated: 3, memory: Duration::from_secs(60), ban_min: Duration::from_secs(1) };

/// Panics of workers in turns of chains.
const WORKER_PANICS: BanPolicy =
    BanPolicy { tolerated: 1, memory: Duration::from_secs(600), ban_min: Duration::from_secs(10) };

#[derive(Debug)]
struct Record {
    /// When the first occurrence that counts came.
    since: Instant,
    count: u32,
    /// The last ban, if there was any.
    ban: Option<Ban>,
}

impl Record {
    fn is_in_force(&self, now: Instant) -> bool {
        self.ban.is_some_and(|ban| now < ban.until)
    }

    /// Returns until when it matters for a further occurrence.
    fn counts_until(&self, policy: BanPolicy) -> Instant {
        let tolerated = self.since + policy.memory;
        self.ban.map_or(tolerated, |ban| tolerated.max(ban.until + ban.length * FORGIVEN_AFTER))
    }
}

#[derive(Debug, Clone, Copy)]
struct Ban {
    length: Duration,
    until: Instant,
}

/// All modules with overruns, or all chains in whose turns workers panicked; see the module.
#[derive(Debug)]
pub(super) struct Bans<K> {
    policy: BanPolicy,
    records: HashMap<K, Record>,
}

impl Bans<ModuleKey> {
    /// Returns bans for overruns; there are none yet.
    pub(super) fn of_modules() -> Self {
        Self { policy: OVERRUNS, records: HashMap::new() }
    }
}

impl Bans<ChainKey> {
    /// Returns bans for panics of workers; there are none yet.
    pub(super) fn of_chains() -> Self {
        Self { policy: WORKER_PANICS, records: HashMap::new() }
    }
}

impl<K: Eq + Hash> Bans<K> {
    /// Notes an occurrence: an overrun, or a panic. Returns until when its cause is banned for that, if it is.
    pub(super) fn note(&mut self, cause: K, now: Instant) -> Option<Instant> {
        let BanPolicy { tolerated, memory, ban_min } = self.policy;
        let record = self.records.entry(cause).or_insert(Record { since: now, count: 0, ban: None });
        record.ban = record.ban.filter(|ban| now < ban.until + ban.length * FORGIVEN_AFTER);
        // What comes of instances that were running when the ban began is part of its cause, and does not count again.
        if record.ban.is_some_and(|ban| now < ban.until) {
            return None;
        }
        if now.saturating_duration_since(record.since) > memory {
            (record.since, record.count) = (now, 0);
        }
        record.count += 1;
        // After a ban nothing is tolerated.
        if record.ban.is_none() && record.count <= tolerated {
            return None;
        }
        let length = record.ban.map_or(ban_min, |ban| (ban.length * 2).min(BAN_MAX));
        let until = now + length;
        record.ban = Some(Ban { length, until });
        Some(until)
    }

    /// Returns what is banned now, and until when.
    pub(super) fn in_force(&self, now: Instant) -> impl Iterator<Item = (&K, Instant)> {
        let until = move |record: &Record| record.ban.map(|ban| ban.until).filter(|until| now < *until);
        self.records.iter().filter_map(move |(cause, record)| Some((cause, until(record)?)))
    }
}

impl<N: Eq + Hash> Bans<(TenantName, N)> {
    /// Forgets what counts no more. What was deleted may come back, and is what it was then: only of a tenant that has deleted much are the
    /// records forgotten that would count for the shortest time.
    pub(super) fn retain(&mut self, is_there: impl Fn(&(TenantName, N)) -> bool, now: Instant) {
        let Self { policy, records } = self;
        records.retain(|_, record| now <= record.counts_until(*policy));
        let is_deleted = |cause: &(TenantName, N), record: &Record| !is_there(cause) && !record.is_in_force(now);
        let mut deleted: HashMap<&TenantName, Vec<Instant>> = HashMap::new();
        for (cause, record) in records.iter().filter(|(cause, record)| is_deleted(cause, record)) {
            deleted.entry(&cause.0).or_default().push(record.counts_until(*policy));
        }
        deleted.retain(|_, ends| ends.len() > DELETED_MAX);
        let least = |(tenant, mut ends): (&TenantName, Vec<Instant>)| {
            ends.sort_unstable();
            (tenant.clone(), ends[ends.len() - DELETED_MAX])
        };
        let least: HashMap<TenantName, Instant> = deleted.into_iter().map(least).collect();
        if !least.is_empty() {
            records.retain(|cause, record| {
                let is_kept = |least: &Instant| *least <= record.counts_until(*policy);
                !is_deleted(cause, record) || least.get(&cause.0).is_none_or(is_kept)
            });
        }
    }
}

impl Launcher {
    /// Handles that a worker panicked while it worked for an FWP. The FWP's chain is named in the log, and banned if that happens again: it
    /// serves no new clients for a while, and its instances on all workers end.
    pub(super) fn worker_panicked(&mut self, id: FwpId) {
        let Some((index, stage)) = self.instances.stage_of(id) else { return };
        let Some(entry) = self.catalogue.chain_mut(index) else { return };
        let (now, spec) = (Instant::now(), Arc::clone(&entry.spec));
        let (tenant, chain) = (&spec.tenant, &spec.name);
        let module = spec.stages.get(stage).map_or("-", |stage| stage.module.as_str());
        tracing::error!(%tenant, %chain, module, fwp = %id, "a worker panicked in a turn of this chain");
        let key = (tenant.clone(), chain.clone());
        let Some(until) = self.chain_bans.note(key.clone(), now) else { return };
        let seconds = until.saturating_duration_since(now).as_secs();
        tracing::error!(%tenant, %chain, seconds, "workers panicked in its turns again and again: it serves no new clients");
        entry.rest_until(until);
        self.instances.end_chain(index, &EndReason::ChainBanned);
        self.status_table.entries().chain_banned(key, until);
    }

    /// Lets chains rest that are banned, and that may have been made anew meanwhile.
    pub(super) fn keep_bans(&mut self, now: Instant) {
        let Self { chain_bans, catalogue, .. } = self;
        for ((tenant, name), until) in chain_bans.in_force(now) {
            let is_it = |spec: &Chain| (&spec.tenant, &spec.name) == (tenant, name);
            let index = catalogue.chains().find(|(_, entry)| is_it(&entry.spec)).map(|(index, _)| index);
            if let Some(entry) = index.and_then(|index| catalogue.chain_mut(index)) {
                entry.rest_until(until);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pinion_control::model::ModuleName;

    use super::*;

    fn module() -> ModuleKey {
        (TenantName::new("mallory").unwrap(), ModuleName::new("hog").unwrap())
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn some_overruns_are_tolerated_and_further_ones_ban_for_a_growing_time() {
        let (mut bans, mut now) = (Bans::of_modules(), Instant::now());
        for _ in 0..OVERRUNS.tolerated {
            assert_eq!(bans.note(module(), now), None);
        }
        for length in [1, 2, 4, 8] {
            assert_eq!(bans.note(module(), now), Some(now + length * S));
            assert_eq!(bans.note(module(), now + length * S / 2), None, "it is banned already");
            now += length * S;
        }
    }

    #[test]
    fn no_ban_is_longer_than_the_longest() {
        let (mut bans, mut now) = (Bans::of_modules(), Instant::now());
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            if let Some(until) = bans.note(module(), now) {
                longest = longest.max(until - now);
                now = until;
            }
        }
        assert_eq!(longest, BAN_MAX);
    }

    #[test]
    fn overruns_far_apart_are_tolerated_and_an_old_ban_is_forgotten() {
        let (mut bans, mut now) = (Bans::of_modules(), Instant::now());
        for _ in 0..20 {
            assert_eq!(bans.note(module(), now), None);
            now += OVERRUNS.memory / 2;
        }
        assert_eq!((0..=OVERRUNS.tolerated).filter_map(|_| bans.note(module(), now)).count(), 1);
        now += S + S * FORGIVEN_AFTER + OVERRUNS.memory;
        assert_eq!(bans.note(module(), now), None);
    }

    fn chain(number: u64) -> ChainKey {
        (TenantName::new("mallory").unwrap(), format!("hog-{number}").parse().unwrap())
    }

    #[test]
    fn what_was_deleted_and_comes_back_has_its_panics_and_bans_until_their_time_is_over() {
        let (mut bans, now) = (Bans::of_chains(), Instant::now());
        assert_eq!(bans.note(chain(1), now), None);
        bans.retain(|_| false, now + S);
        let again = now + 2 * S;
        assert_eq!(bans.note(chain(1), again), Some(again + 10 * S), "that is its second");
        bans.retain(|_| false, again + 11 * S);
        assert_eq!(bans.note(chain(1), again + 12 * S), Some(again + 32 * S), "its next ban is longer");
        bans.retain(|_| false, again + 33 * S);
        assert_eq!(bans.records.len(), 1);
        bans.retain(|_| false, again + 33 * S + 20 * S * FORGIVEN_AFTER + WORKER_PANICS.memory);
        assert!(bans.records.is_empty());
    }

    #[test]
    fn of_what_a_tenant_has_deleted_the_last_records_are_kept_and_all_of_what_is_there_or_banned() {
        let (mut bans, start) = (Bans::of_chains(), Instant::now());
        let other: ChainKey = (TenantName::new("other").unwrap(), "once".parse().unwrap());
        bans.note(other.clone(), start);
        for _ in 0..=WORKER_PANICS.tolerated {
            bans.note(chain(1), start);
        }
        let mut now = start;
        for number in 0..DELETED_MAX as u64 + 9 {
            now += Duration::from_millis(1);
            bans.note(chain(number), now);
        }
        let is_there = |cause: &ChainKey| *cause == chain(0);
        bans.retain(is_there, now);
        // Those that are there, banned, and of another tenant.
        assert_eq!(bans.records.len(), DELETED_MAX + 3);
        assert!(
            [chain(0), chain(1), other, chain(DELETED_MAX as u64 + 8)].iter().all(|it| bans.records.contains_key(it))
        );
        assert!(!bans.records.contains_key(&chain(2)));
    }

    #[test]
    fn a_chain_in_whose_turns_workers_panicked_is_banned_for_longer_from_the_second_panic_on() {
        let chain = || (TenantName::new("mallory").unwrap(), "hog".parse().unwrap());
        let (mut bans, now) = (Bans::of_chains(), Instant::now());
        assert_eq!((bans.note(chain(), now), bans.in_force(now).count()), (None, 0));
        assert_eq!(bans.note(chain(), now + WORKER_PANICS.memory + S), None, "the first was long ago");
        let again = now + WORKER_PANICS.memory + 2 * S;
        assert_eq!(bans.note(chain(), again), Some(again + 10 * S));
        assert_eq!(bans.in_force(again + 9 * S).collect::<Vec<_>>(), [(&chain(), again + 10 * S)]);
        assert_eq!(bans.in_force(again + 10 * S).count(), 0);
        assert_eq!(bans.note(chain(), again + 10 * S), Some(again + 30 * S));
    }
}
