//! The status table: what operators and tenants see of the data plane. The launcher writes it and control threads read it; no data-plane
//! thread ever takes its lock. Traffic counters are shared with their writers and read in place.
//!
//! Those who read take the lock for a part of the table at a time ([`StatusTable::read`]); none has it twice while the launcher waits for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pinion_control::model::{Chain, ChainName, ModuleName, TenantName};
use pinion_control::node::{
    ChainInstanceStatus, ChainStatus, FwpCounters, FwpState, FwpStatus, LatencyStatus, MeterStatus,
};
use pinion_gateway::drops::DropsByChain;
use pinion_gateway::flows::ClientLabel;
use pinion_gateway::id::{ChainIndex, FunctionRef, InstanceId};
use pinion_mma::id::{FwpId, TenantIndex};

use crate::cores::plan::CoreId;
use crate::fwp::end_reason::EndReason;
use crate::fwp::instance_states::{Life, TemplateLife};
use crate::fwp::{Fwp, FwpShared};
use crate::ids::{ChainKey, ModuleKey};
use crate::instruments::latencies::{self, Latencies};
use crate::instruments::log::Origin;
use crate::instruments::metrics::Readings;
use crate::memory::pressure::Level;
use crate::reports::drop_ledger::{ChainCounts, Counting, DropLedger};
use crate::reports::fwp_shares::FwpShares;
use crate::reports::instance_counts::{Counts, InstanceCounts};
use crate::reports::metric_sums::{ChainSums, Stages, Sums};

/// Most ended instances that are still listed: the latest, of all chains together.
const ENDED_LISTED: usize = 256;

/// The status table; see the module.
pub struct StatusTable {
    entries: Mutex<Entries>,
    preparations: Latencies,
}

/// The contents of the status table.
pub struct Entries {
    instances: BTreeMap<InstanceId, InstanceEntry>,
    counts: InstanceCounts,
    ended: VecDeque<InstanceEntry>,
    /// Failures of chains, in the order of their names.
    chains: BTreeMap<ChainKey, ChainHealth>,
    /// The templates of the chains.
    templates: BTreeMap<ChainKey, Templates>,
    /// Packets that the chains lost.
    drops: DropLedger,
    /// Metrics that the chains' functions count.
    metrics: Sums,
    /// The references by which the chains of the state in effect are invoked.
    pub functions: HashMap<ChainKey, Callable>,
    /// The version of the desired state in effect.
    pub followed_version: u64,
    /// What of the desired state could not be applied, a sentence each.
    pub warnings: Vec<String>,
    /// Modules that are banned because they exceed their budgets, and until when.
    banned: BTreeMap<ModuleKey, Instant>,
    /// Chains that are banned because workers panicked in their turns, and until when.
    banned_chains: BTreeMap<ChainKey, Instant>,
    /// The level of memory pressure.
    pub memory_level: Level,
    /// Tenants' shares of the node's FWPs.
    pub fwp_shares: FwpShares,
    /// The tenants with chains, and their weights.
    pub weights: Arc<[(TenantIndex, u32)]>,
}

/// By what a chain is invoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Callable {
    /// How callers name it.
    pub function: FunctionRef,
    /// The tenant that its calls are charged to.
    pub tenant: TenantIndex,
}

/// The templates of a chain. All its stages' templates are loaded and unloaded together.
pub(super) struct Templates {
    modules: Vec<ModuleName>,
    life: TemplateLife,
    since: Instant,
}

impl Templates {
    /// Returns the status of each stage's template.
    pub(super) fn statuses(&self, (tenant, chain): &ChainKey) -> impl Iterator<Item = FwpStatus> {
        self.modules.iter().enumerate().map(move |(stage, module)| FwpStatus {
            id: format!("{tenant}/{chain}/{stage}"),
            tenant: tenant.clone(),
            chain: chain.clone(),
            module: module.clone(),
            stage: stage as u32,
            chain_instance: 0,
            client: None,
            state: self.life.state(),
            worker_core: 0,
            memory_kib: 0,
            age_ms: self.since.elapsed().as_millis() as u64,
            counters: FwpCounters::default(),
            run_queue_wait: LatencyStatus::default(),
        })
    }
}

/// The failures of a chain.
#[derive(Debug, Clone, Default)]
pub struct ChainHealth {
    /// Instances that ended by a fault of their own, or could not be prepared.
    pub failures: u64,
    /// The reason of the latest failure.
    pub last_failure: Option<String>,
    /// Why its last instance to end did so.
    last_end: Option<String>,
    /// When a failure was last logged, and how many were not logged since.
    logged: Option<(Instant, u64)>,
}

/// The least time between two logged failures of a chain: functions can fail with every packet.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl ChainHealth {
    /// Counts a failure. If it is to be logged, returns how many before it were not.
    fn failed(&mut self, because: String, now: Instant) -> Option<u64> {
        self.failures += 1;
        self.last_failure = Some(because);
        match &mut self.logged {
            Some((at, silent)) if now.saturating_duration_since(*at) < LOG_INTERVAL => {
                *silent += 1;
                None
            }
            logged => Some(logged.replace((now, 0)).map_or(0, |(_, silent)| silent)),
        }
    }
}

/// Returns the seconds until then, rounded up.
fn seconds_until(until: Instant, now: Instant) -> f64 {
    until.saturating_duration_since(now).as_secs_f64().ceil()
}

/// One chain instance.
pub struct InstanceEntry {
    /// Its id.
    pub id: InstanceId,
    /// Its chain.
    pub chain: ChainKey,
    /// Its worker's core.
    pub core: CoreId,
    /// The client that it serves; none while it is cached.
    pub client: Option<ClientLabel>,
    /// Its FWPs, by stage.
    pub fwps: Vec<FwpEntry>,
    /// Whether it holds packets that find no free slot.
    pub holds: bool,
    /// When it was prepared.
    pub made: Instant,
    /// Its state.
    pub life: Life,
    /// Why it ended, if it did.
    pub ended_because: Option<String>,
}

/// One FWP.
pub struct FwpEntry {
    id: FwpId,
    module: ModuleName,
    shared: Arc<FwpShared>,
    counters: Arc<pinion_mma::accounts::counters::FwpCounters>,
    readings: Option<Arc<Readings>>,
}

impl FwpEntry {
    /// Creates the entry of an FWP of this module.
    #[must_use]
    pub fn new(fwp: &Fwp, module: ModuleName) -> Self {
        let (shared, counters) = (Arc::clone(fwp.shared()), Arc::clone(fwp.counters()));
        Self { id: fwp.id(), module, shared, counters, readings: fwp.readings().cloned() }
    }

    fn counters(&self) -> FwpCounters {
        let (moved, guest) = (&self.counters.moved, &self.counters.guest);
        FwpCounters {
            received: moved.received.value(),
            received_bytes: moved.received_bytes.value(),
            sent: moved.sent.value(),
            sent_bytes: moved.sent_bytes.value(),
            dropped_by_guest: guest.dropped.value(),
            dropped_no_slot: moved.dropped_no_slot.value(),
            dropped_too_long: moved.dropped_too_long.value(),
            dropped_egress: moved.dropped_egress.value(),
            dropped_instance_ended: moved.dropped_instance_ended.value(),
            dropped_by_graph: moved.dropped_by_graph.value(),
            resumes: guest.resumes.value(),
            preemptions: guest.preemptions.value(),
            cpu_us: guest.cpu_ns.value() / 1000,
            wait_us: guest.wait_ns.value() / 1000,
            activations: 0,
        }
    }
}

impl InstanceEntry {
    fn state(&self) -> FwpState {
        self.life.state(self.fwps.iter().all(|fwp| fwp.shared.waits()))
    }

    fn fwp_state(&self, fwp: &FwpEntry) -> FwpState {
        self.life.state(fwp.shared.waits())
    }

    fn client(&self) -> Option<String> {
        self.client.filter(|client| *client != ClientLabel::All).map(|client| client.to_string())
    }

    fn age_ms(&self) -> u64 {
        self.made.elapsed().as_millis() as u64
    }

    /// Returns its status.
    pub(super) fn status(&self) -> ChainInstanceStatus {
        ChainInstanceStatus {
            id: self.id.0,
            tenant: self.chain.0.clone(),
            chain: self.chain.1.clone(),
            state: self.state(),
            client: self.client(),
            fwp_ids: self.fwps.iter().map(|fwp| fwp.id.to_string()).collect(),
            worker_core: u32::from(self.core.0),
            age_ms: self.age_ms(),
            ended_because: self.ended_because.clone(),
        }
    }

    /// Returns the status of each of its FWPs.
    pub(super) fn fwp_statuses(&self) -> impl Iterator<Item = FwpStatus> {
        self.fwps.iter().enumerate().map(|(stage, fwp)| FwpStatus {
            id: fwp.id.to_string(),
            tenant: self.chain.0.clone(),
            chain: self.chain.1.clone(),
            module: fwp.module.clone(),
            stage: stage as u32,
            chain_instance: self.id.0,
            client: self.client(),
            state: self.fwp_state(fwp),
            worker_core: u32::from(self.core.0),
            memory_kib: (fwp.shared.memory_bytes() + fwp.shared.files_bytes()) / 1024,
            age_ms: self.age_ms(),
            counters: FwpCounters { activations: self.client.is_some().into(), ..fwp.counters() },
            run_queue_wait: latencies::wait_status(&fwp.counters.guest.waits),
        })
    }
}

impl Entries {
    /// Lists these chains, and no others.
    pub fn follow<'c>(&mut self, chains: impl Iterator<Item = &'c Chain> + Clone) {
        let mut old = std::mem::take(&mut self.chains);
        let mut old_templates = std::mem::take(&mut self.templates);
        for chain in chains.clone() {
            let key = (chain.tenant.clone(), chain.name.clone());
            let health = old.remove(&key).unwrap_or_default();
            let modules: Vec<ModuleName> = chain.stages.iter().map(|stage| stage.module.clone()).collect();
            let templates = old_templates.remove(&key).filter(|templates| templates.modules == modules);
            let object = || Templates { modules, life: TemplateLife::Object, since: Instant::now() };
            self.templates.insert(key.clone(), templates.unwrap_or_else(object));
            self.chains.insert(key, health);
        }
        self.fwp_shares.retain(|key| self.chains.contains_key(key));
        self.drops.follow(chains.clone());
        self.metrics.follow(chains);
    }

    /// Notes the chain that the gateway will know by an index.
    pub fn set_index(&mut self, index: ChainIndex, chain: &Chain) {
        self.drops.set_index(index, (chain.tenant.clone(), chain.name.clone()));
    }

    /// Notes whether a chain's templates are loaded.
    pub fn set_template(&mut self, chain: &Chain, life: TemplateLife) {
        let key = (chain.tenant.clone(), chain.name.clone());
        if let Some(templates) = self.templates.get_mut(&key).filter(|templates| templates.life != life) {
            (templates.life, templates.since) = (life, Instant::now());
        }
    }

    /// Adds an instance.
    pub fn add(&mut self, entry: InstanceEntry) {
        let counters = |fwp: &FwpEntry| (fwp.module.clone(), Arc::clone(&fwp.counters));
        self.fwp_shares.found_room(&entry.chain);
        let stages = entry.fwps.iter().map(counters).collect();
        self.drops.open(entry.id, entry.chain.clone(), Counting { holds: entry.holds, stages });
        let readings = |fwp: &FwpEntry| (fwp.module.clone(), fwp.readings.clone());
        self.metrics.open(entry.id, entry.chain.clone(), Stages(entry.fwps.iter().map(readings).collect()));
        self.counts.add(&entry.chain, entry.life, entry.fwps.len());
        self.instances.insert(entry.id, entry);
    }

    /// Notes the client that an instance serves.
    pub fn taken(&mut self, id: InstanceId, client: ClientLabel) {
        // The instance may have ended before this event arrives.
        if let Some(entry) = self.entry(id) {
            entry.client = Some(client);
        }
    }

    /// Returns the client of an instance that has not ended, if it has one.
    #[must_use]
    pub fn client(&self, id: InstanceId) -> Option<ClientLabel> {
        self.instances.get(&id)?.client
    }

    /// Notes the state of an instance.
    pub fn set_life(&mut self, id: InstanceId, life: Life) {
        if let Some(entry) = self.instances.get(&id) {
            self.counts.remove(&entry.chain, entry.life, entry.fwps.len());
            self.counts.add(&entry.chain, life, entry.fwps.len());
        }
        if let Some(entry) = self.entry(id) {
            entry.life = life;
        }
    }

    /// Returns the entry of an instance, as long as it is listed.
    fn entry(&mut self, id: InstanceId) -> Option<&mut InstanceEntry> {
        let ended = &mut self.ended;
        self.instances.get_mut(&id).or_else(|| ended.iter_mut().find(|entry| entry.id == id))
    }

    /// Returns the tenant and the chain of an instance that has not ended.
    #[must_use]
    pub fn name_of(&self, id: InstanceId) -> Option<ChainKey> {
        self.instances.get(&id).map(|entry| entry.chain.clone())
    }

    /// Returns the origin that log lines about an FWP carry.
    pub fn origin_of(&self, id: InstanceId, fwp: FwpId) -> Option<Origin> {
        let InstanceEntry { chain: (tenant, chain), fwps, .. } = self.instances.get(&id)?;
        let stage = fwps.iter().position(|entry| entry.id == fwp)?;
        let (tenant, chain, module) = (tenant.clone(), chain.clone(), fwps[stage].module.clone());
        Some(Origin { tenant, chain, stage: stage as u32, module, fwp: fwp.to_string() })
    }

    /// Moves an instance to the ended ones.
    pub fn ended(&mut self, id: InstanceId, reason: &EndReason) {
        if let Some(mut entry) = self.instances.remove(&id) {
            let because = reason.account();
            self.counts.remove(&entry.chain, entry.life, entry.fwps.len());
            // An instance that no client had, and that others ended, is not the one that callers ask for.
            if let Some(health) = self.chains.get_mut(&entry.chain)
                && (entry.client.is_some() || !reason.is_of_others_doing())
            {
                health.last_end = Some(because.clone());
            }
            entry.ended_because = Some(because);
            self.ended.truncate(ENDED_LISTED - 1);
            self.ended.push_front(entry);
        }
    }

    /// Notes that the counters of an ended instance are final.
    pub fn settle(&mut self, id: InstanceId) {
        self.drops.settle(id);
        self.metrics.settle(id);
    }

    /// Returns the metrics of the functions of those of the chains behind this one in the order of names, or of all, for which `is_meant` holds.
    pub(super) fn metrics_after(
        &self,
        after: Option<&ChainKey>,
        is_meant: impl Fn(&ChainKey) -> bool,
    ) -> impl Iterator<Item = ChainSums> {
        self.metrics.after(after, is_meant)
    }

    /// Counts a chain's failure. If it is to be logged, returns how many before it were not.
    pub fn failed(&mut self, tenant: &TenantName, chain: &ChainName, because: String) -> Option<u64> {
        self.chains.entry((tenant.clone(), chain.clone())).or_default().failed(because, Instant::now())
    }

    /// Notes that a module is banned until `until`.
    pub fn banned(&mut self, module: ModuleKey, until: Instant) {
        let now = Instant::now();
        self.banned.retain(|_, until| *until > now);
        self.banned.insert(module, until);
    }

    /// Notes that a chain is banned until `until`. The chain's status says so, too.
    pub fn chain_banned(&mut self, chain: ChainKey, until: Instant) {
        let now = Instant::now();
        if let Some(health) = self.chains.get_mut(&chain) {
            let seconds = seconds_until(until, now);
            health.last_failure = Some(format!(
                "workers panicked in its turns again and again: it serves no new clients for {seconds} s"
            ));
        }
        self.banned_chains.retain(|_, until| *until > now);
        self.banned_chains.insert(chain, until);
    }

    /// Returns a sentence for each banned module and chain.
    pub fn bans(&self) -> impl Iterator<Item = String> {
        let now = Instant::now();
        let modules = self.banned.iter().filter(move |(_, until)| **until > now).map(move |((tenant, module), until)| {
            let seconds = seconds_until(*until, now);
            format!("module {tenant}/{module} exceeds its budgets again and again: for {seconds} s its chains serve no new clients")
        });
        let chains = self.banned_chains.iter().filter(move |(_, until)| **until > now);
        modules.chain(chains.map(move |((tenant, chain), until)| {
            let seconds = seconds_until(*until, now);
            format!("workers panicked in turns of chain {tenant}/{chain} again and again: for {seconds} s it serves no new clients")
        }))
    }

    /// Notes that an instance could not be prepared because of a memory limit. This recurs while memory is in use, so it is counted, and
    /// `true` returned, only if the reason differs from the last failure's.
    pub fn over_limit(&mut self, tenant: &TenantName, chain: &ChainName, because: &str) -> bool {
        let health = self.chains.entry((tenant.clone(), chain.clone())).or_default();
        let is_news = health.last_failure.as_deref() != Some(because);
        if is_news {
            health.failures += 1;
            health.last_failure = Some(because.to_owned());
        }
        is_news
    }

    /// Returns the templates of the chains behind this one in the order of names, or of all.
    pub(super) fn templates_after(&self, after: Option<&ChainKey>) -> impl Iterator<Item = (&ChainKey, &Templates)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.templates.range::<ChainKey, _>((from, Bound::Unbounded))
    }

    /// Returns the instances that were added after this one, or all, but for those that have ended.
    pub(super) fn instances_after(&self, after: Option<InstanceId>) -> impl Iterator<Item = &InstanceEntry> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.instances.range((from, Bound::Unbounded)).map(|(_, entry)| entry)
    }

    /// Returns the last instance that was added, if it has not ended.
    pub(super) fn newest(&self) -> Option<InstanceId> {
        self.instances.last_key_value().map(|(id, _)| *id)
    }

    /// Returns the latest instances that have ended, the last one first.
    pub(super) fn ended_instances(&self) -> impl Iterator<Item = &InstanceEntry> {
        self.ended.iter()
    }

    /// Returns why the last instance of a chain to end did so.
    #[must_use]
    pub fn last_end(&self, key: &ChainKey) -> Option<&str> {
        let of_chain = || self.chains.get(key)?.last_end.as_deref();
        // A chain that was deleted is no longer there when its instances end.
        of_chain().or_else(|| self.ended.iter().find(|entry| entry.chain == *key)?.ended_because.as_deref())
    }

    /// Returns the reason of a chain's latest failure: why an instance could not be prepared or ended by a fault of its own.
    #[must_use]
    pub fn last_failure(&self, key: &ChainKey) -> Option<&str> {
        self.chains.get(key)?.last_failure.as_deref()
    }

    /// Returns how many instances of a tenant there are that have not ended, and their FWPs.
    #[must_use]
    pub fn counts_of(&self, tenant: &TenantName) -> Counts {
        self.counts.of_tenant(tenant)
    }

    /// Returns what each of a tenant's chains has counted.
    pub fn chain_counts_of(&self, tenant: &TenantName) -> impl Iterator<Item = ChainCounts> {
        self.drops.counts_of_tenant(tenant)
    }

    /// Returns the statuses of the chains behind this one in the order of names, or of all, but for what they have lost and used. The former,
    /// and the bytes that were copied, follow from what each has counted.
    pub(super) fn chains_after(
        &self,
        after: Option<&ChainKey>,
    ) -> impl Iterator<Item = (ChainStatus, Option<ChainCounts>)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let chains = self.chains.range::<ChainKey, _>((from, Bound::Unbounded));
        chains.map(|(key, health)| (self.status_of(key, health), self.drops.counts(key)))
    }

    fn status_of(&self, key: &ChainKey, health: &ChainHealth) -> ChainStatus {
        let Counts { serving, cached, .. } = self.counts.of_chain(key);
        ChainStatus {
            tenant: key.0.clone(),
            chain: key.1.clone(),
            ready: cached as u32,
            active: serving as u32,
            failures: health.failures,
            last_failure: health.last_failure.clone(),
            memory_kib: 0,
            memory_limit_kib: None,
            meter: MeterStatus::default(),
            drops: Vec::new(),
        }
    }
}

impl StatusTable {
    /// Creates an empty status table; `gateway` has the drops that the gateway counts by chain.
    #[must_use]
    pub fn new(gateway: Arc<DropsByChain>) -> Self {
        let entries = Entries {
            instances: BTreeMap::new(),
            counts: InstanceCounts::default(),
            ended: VecDeque::new(),
            chains: BTreeMap::new(),
            templates: BTreeMap::new(),
            drops: DropLedger::new(gateway),
            metrics: Sums::default(),
            functions: HashMap::new(),
            followed_version: 0,
            warnings: Vec::new(),
            banned: BTreeMap::new(),
            banned_chains: BTreeMap::new(),
            memory_level: Level::Calm,
            fwp_shares: FwpShares::default(),
            weights: Arc::default(),
        };
        Self { entries: Mutex::new(entries), preparations: Latencies::default() }
    }

    /// Returns how long it took to prepare each chain instance: from the instantiation of its first stage until all stages had run to
    /// their first wait and the data plane was told.
    #[must_use]
    pub fn preparations(&self) -> &Latencies {
        &self.preparations
    }

    /// Locks the entries for the launcher. Those that a panicking writer leaves behind are still valid one by one.
    pub fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }

    /// Reads a part of the entries; a small one, as the launcher may wait for the lock. If it does, it has its turn before this thread reads
    /// on.
    pub fn read<R>(&self, read: impl FnOnce(&Entries) -> R) -> R {
        let entries = self.entries.lock();
        let part = read(&entries);
        MutexGuard::unlock_fair(entries);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_fails_all_the_time_is_logged_once_a_second_with_the_number_of_failures_not_logged() {
        let (mut health, start) = (ChainHealth::default(), Instant::now());
        let after_ms = |ms| start + Duration::from_millis(ms);
        let logged: Vec<_> =
            [0, 1, 999, 1_000, 1_001, 5_000, 5_500].map(|ms| health.failed(format!("at {ms} ms"), after_ms(ms))).into();
        assert_eq!(logged, [Some(0), None, None, Some(2), None, Some(1), None]);
        assert_eq!((health.failures, health.last_failure.as_deref()), (7, Some("at 5500 ms")));
    }
}
