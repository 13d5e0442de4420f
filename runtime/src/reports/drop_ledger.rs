//! The ledger of drops: packets that chains lost, by place and reason, since the node started.
//!
//! ```text
//!   an instance's FWPs   count while they live ----settle, once MMA and worker released them---> the chain's account
//!   the gateway          counts by chain index ----when the index goes to another chain------->        "
//! ```
//!
//! Part of the status table: written by the launcher, read by control threads. A chain's drops are the sum of its account and of the
//! counters that still move. Each packet is in exactly one of the two. An account ends with its chain (`chain_accounts.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_control::model::{Chain, ModuleName, TenantName};
use pinion_control::node::ChainDrop;
use pinion_gateway::drops::{ChainDropCounts, DropsByChain};
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_mma::accounts::counters::FwpCounters;

use crate::ids::ChainKey;
use crate::reports::chain_accounts::{ChainAccount, ChainAccounts};

/// Where a packet was lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum DropSite {
    Gateway,
    Stage(usize, ModuleName),
    /// At a stage that the chain no longer has.
    Earlier,
}

impl DropSite {
    fn text(&self) -> String {
        match self {
            Self::Gateway => "gateway".to_owned(),
            Self::Stage(stage, module) => format!("{stage}/{module}"),
            Self::Earlier => "earlier".to_owned(),
        }
    }
}

/// Lost packets, by place and reason.
#[derive(Debug, Clone, Default)]
pub struct Drops(BTreeMap<(DropSite, &'static str), u64>);

impl Drops {
    fn add(&mut self, place: &DropSite, reason: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry((place.clone(), reason)).or_default() += count;
        }
    }

    /// Returns how many were for this reason.
    #[must_use]
    pub fn of(&self, reason: &str) -> u64 {
        self.0.iter().filter(|((_, of), _)| *of == reason).map(|(_, count)| count).sum()
    }

    /// Returns the drops as a status reports them.
    #[must_use]
    pub fn report(&self) -> Vec<ChainDrop> {
        let drop = |((place, reason), count): (&(DropSite, &'static str), &u64)| ChainDrop {
            place: place.text(),
            reason: (*reason).to_owned(),
            count: *count,
        };
        self.0.iter().map(drop).collect()
    }
}

/// What a chain lost according to counters that no longer move.
#[derive(Default)]
struct Account {
    /// The chain's stages as they are now.
    modules: Vec<ModuleName>,
    drops: Drops,
    copied_bytes: u64,
    /// The indices at which the gateway knows it, or has known it last.
    lifetimes: Vec<ChainLifetime>,
}

impl Account {
    fn place(&self, stage: usize, module: &ModuleName) -> DropSite {
        if self.modules.get(stage) == Some(module) { DropSite::Stage(stage, module.clone()) } else { DropSite::Earlier }
    }

    /// Adapts the account to the chain's stages. Drops of stages that no longer exist are merged, so that accounts do not grow with each
    /// change.
    fn follow(&mut self, modules: Vec<ModuleName>) {
        if self.modules == modules {
            return;
        }
        self.modules = modules;
        for ((place, reason), count) in std::mem::take(&mut self.drops).0 {
            let place = match place {
                DropSite::Stage(stage, module) => self.place(stage, &module),
                place => place,
            };
            self.drops.add(&place, reason, count);
        }
    }

    /// Ends the chain's lifetime at an index, with these counts.
    fn leave(&mut self, index: ChainIndex, now: ChainDropCounts) {
        if let Some(place) = self.lifetimes.iter().position(|lifetime| lifetime.index == index) {
            self.lifetimes.swap_remove(place).add_to(&mut self.drops, now);
        }
    }
}

/// An instance with counters that may still move.
pub struct Counting {
    /// Whether it holds packets that find no free slot. A packet dropped for lack of a slot then exceeded `hold_frames`.
    pub holds: bool,
    /// Its stages: each one's module and counters.
    pub stages: Vec<(ModuleName, Arc<FwpCounters>)>,
}

impl Counting {
    fn add_to(&self, drops: &mut Drops, place: impl Fn(usize, &ModuleName) -> DropSite) {
        for (stage, (module, counters)) in self.stages.iter().enumerate() {
            let (place, moved) = (place(stage, module), &counters.moved);
            let no_slot = if self.holds { "hold-full" } else { "no-slot" };
            drops.add(&place, no_slot, moved.dropped_no_slot.value());
            drops.add(&place, "too-long", moved.dropped_too_long.value());
            drops.add(&place, "egress-full", moved.dropped_egress.value());
            drops.add(&place, "instance-ended", moved.dropped_instance_ended.value());
            drops.add(&place, "dropped-by-graph", moved.dropped_by_graph.value());
            drops.add(&place, "dropped-by-function", counters.guest.dropped.value());
        }
    }

    /// Returns the bytes copied from the gateway into each stage, and out of each stage.
    fn copied_bytes(&self) -> u64 {
        let of_each = |(_, counters): &(ModuleName, Arc<FwpCounters>)| {
            counters.moved.entered_bytes.value() + counters.moved.sent_bytes.value()
        };
        self.stages.iter().map(of_each).sum()
    }
}

/// A chain's lifetime at one index of the gateway's.
struct ChainLifetime {
    index: ChainIndex,
    /// The index's counts when the lifetime began.
    before: ChainDropCounts,
}

impl ChainLifetime {
    fn add_to(&self, drops: &mut Drops, now: ChainDropCounts) {
        for ((reason, count), (_, before)) in now.into_iter().zip(self.before) {
            drops.add(&DropSite::Gateway, reason.name(), count.wrapping_sub(before));
        }
    }
}

/// What a chain lost and what was copied for it, to be added up without the table's lock: what instances count that settle meanwhile stays
/// as it is.
pub struct ChainCounts {
    drops: Drops,
    copied_bytes: u64,
    counting: Vec<Arc<Counting>>,
}

impl ChainCounts {
    /// Adds up what was copied.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes + self.counting.iter().map(|counting| counting.copied_bytes()).sum::<u64>()
    }

    /// Returns how many instances still count.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.counting.len()
    }

    /// Adds up what was lost.
    #[must_use]
    pub fn into_drops(self) -> Drops {
        let mut drops = self.drops;
        for counting in self.counting {
            counting.add_to(&mut drops, |stage, module| DropSite::Stage(stage, module.clone()));
        }
        drops
    }
}

/// The ledger of drops; see the module.
pub struct DropLedger {
    gateway: Arc<DropsByChain>,
    accounts: ChainAccounts<Account, Arc<Counting>>,
    /// The chains by index. A replaced chain keeps its old index here until another chain gets it, since frames may still wait for the chain
    /// there.
    indices: BTreeMap<ChainIndex, ChainKey>,
}

impl DropLedger {
    /// Creates an empty ledger; `gateway` has the drops that the gateway counts.
    #[must_use]
    pub fn new(gateway: Arc<DropsByChain>) -> Self {
        Self { gateway, accounts: ChainAccounts::default(), indices: BTreeMap::new() }
    }

    /// Opens accounts for these chains, and closes all others.
    pub fn follow<'c>(&mut self, chains: impl Iterator<Item = &'c Chain>) {
        self.accounts.follow(chains, Account::follow);
        let accounts = &self.accounts;
        self.indices.retain(|_, chain| accounts.contains(chain));
    }

    /// Notes that the gateway knows a chain that has an account by this index from now on. Must be called before the gateway is told.
    pub fn set_index(&mut self, index: ChainIndex, chain: ChainKey) {
        if self.indices.get(&index) == Some(&chain) {
            return;
        }
        let before = self.gateway.chain(index).counts();
        let Some(account) = self.accounts.get_mut(&chain) else { return };
        account.settled.lifetimes.push(ChainLifetime { index, before });
        let had = self.indices.insert(index, chain);
        if let Some(account) = had.and_then(|had| self.accounts.get_mut(&had)) {
            account.settled.leave(index, before);
        }
    }

    /// Adds an instance of a chain. Must be called before anything is counted for it.
    pub fn open(&mut self, id: InstanceId, chain: ChainKey, counting: Counting) {
        self.accounts.open(id, chain, Arc::new(counting));
    }

    /// Adds an instance's counters to its chain's account. Must be called after MMA and worker have released the instance.
    pub fn settle(&mut self, id: InstanceId) {
        let Some((_, account, counting)) = self.accounts.settle(id) else { return };
        let account = &mut account.settled;
        let mut drops = std::mem::take(&mut account.drops);
        counting.add_to(&mut drops, |stage, module| account.place(stage, module));
        account.drops = drops;
        account.copied_bytes += counting.copied_bytes();
    }

    /// Returns the counts of a chain, if it has an account.
    #[must_use]
    pub fn counts(&self, chain: &ChainKey) -> Option<ChainCounts> {
        self.accounts.get(chain).map(|account| self.counts_of(account))
    }

    /// Returns the counts of each of a tenant's chains.
    pub fn counts_of_tenant(&self, tenant: &TenantName) -> impl Iterator<Item = ChainCounts> {
        let of_tenant = self.accounts.after(None).filter(move |((of, _), _)| of == tenant);
        of_tenant.map(|(_, account)| self.counts_of(account))
    }

    fn counts_of(&self, ChainAccount { settled, counting }: &ChainAccount<Account, Arc<Counting>>) -> ChainCounts {
        let mut drops = settled.drops.clone();
        for lifetime in &settled.lifetimes {
            lifetime.add_to(&mut drops, self.gateway.chain(lifetime.index).counts());
        }
        ChainCounts { drops, copied_bytes: settled.copied_bytes, counting: counting.values().cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use pinion_gateway::drops::DropReason;

    use super::*;
    use pinion_control::model::Stage;

    fn chain(name: &str, modules: &[&str]) -> Chain {
        let stages = modules.iter().map(|module| Stage::new(module.parse().unwrap(), Vec::new())).collect();
        Chain::new("t".parse().unwrap(), name.parse().unwrap(), stages)
    }

    fn key(name: &str) -> ChainKey {
        ("t".parse().unwrap(), name.parse().unwrap())
    }

    fn ledger(chains: &[Chain]) -> DropLedger {
        let mut ledger = DropLedger::new(Arc::default());
        ledger.follow(chains.iter());
        ledger
    }

    /// Opens an instance of the chain. Returns its stages' counters.
    fn open(ledger: &mut DropLedger, id: u64, chain: &Chain, holds: bool) -> Vec<Arc<FwpCounters>> {
        let counters: Vec<Arc<FwpCounters>> = chain.stages.iter().map(|_| Arc::default()).collect();
        let modules = chain.stages.iter().map(|stage| stage.module.clone());
        let stages = modules.zip(counters.iter().cloned()).collect();
        ledger.open(InstanceId(id), (chain.tenant.clone(), chain.name.clone()), Counting { holds, stages });
        counters
    }

    /// Returns `place reason count` of each of the chain's drops.
    fn drops(ledger: &DropLedger, name: &str) -> Vec<String> {
        let drops = ledger.counts(&key(name)).expect("the chain has an account").into_drops();
        drops.report().into_iter().map(|drop| format!("{} {} {}", drop.place, drop.reason, drop.count)).collect()
    }

    /// Returns the bytes that were copied for all chains.
    fn copied_bytes(ledger: &DropLedger) -> u64 {
        ledger.counts_of_tenant(&key("c").0).map(|counts| counts.copied_bytes()).sum()
    }

    #[test]
    fn drops_of_an_ended_instance_stay_counted_exactly_once() {
        let chain = chain("c", &["m", "n"]);
        let mut ledger = ledger(std::slice::from_ref(&chain));
        let first = open(&mut ledger, 1, &chain, false);
        let second = open(&mut ledger, 2, &chain, false);
        first[0].moved.received_bytes.add(100);
        first[0].moved.entered_bytes.add(100);
        first[0].moved.sent_bytes.add(60);
        first[1].moved.received_bytes.add(60);
        first[1].moved.sent_bytes.add(60);
        first[0].moved.dropped_no_slot.add(5);
        first[1].moved.dropped_egress.add(2);
        second[0].moved.dropped_no_slot.add(10);
        second[1].moved.received_bytes.add(30);
        second[1].moved.entered_bytes.add(30);
        let expected = ["0/m no-slot 15", "1/n egress-full 2"];
        assert_eq!(drops(&ledger, "c"), expected);
        assert_eq!(copied_bytes(&ledger), 250);
        ledger.settle(InstanceId(1));
        assert_eq!(drops(&ledger, "c"), expected);
        assert_eq!(copied_bytes(&ledger), 250);
        ledger.settle(InstanceId(1));
        assert_eq!(drops(&ledger, "c"), expected);
        second[0].guest.dropped.add(1);
        assert_eq!(drops(&ledger, "c"), ["0/m dropped-by-function 1", "0/m no-slot 15", "1/n egress-full 2"]);
    }

    #[test]
    fn drops_counted_until_the_release_of_an_instance_are_included() {
        let chain = chain("c", &["m"]);
        let mut ledger = ledger(std::slice::from_ref(&chain));
        let counters = open(&mut ledger, 1, &chain, true);
        counters[0].moved.dropped_no_slot.add(1);
        counters[0].moved.dropped_instance_ended.add(7);
        counters[0].moved.dropped_too_long.add(3);
        counters[0].moved.dropped_by_graph.add(2);
        ledger.settle(InstanceId(1));
        let expected = ["0/m dropped-by-graph 2", "0/m hold-full 1", "0/m instance-ended 7", "0/m too-long 3"];
        assert_eq!(drops(&ledger, "c"), expected);
    }

    #[test]
    fn a_chain_whose_stages_change_keeps_its_counts_without_growing_with_each_change() {
        let (old, new) = (chain("c", &["m", "n"]), chain("c", &["m", "o"]));
        let mut ledger = ledger(std::slice::from_ref(&old));
        let (ended, ending) = (open(&mut ledger, 1, &old, false), open(&mut ledger, 2, &old, false));
        for counters in ended.iter().chain(&ending) {
            counters.moved.dropped_no_slot.add(1);
        }
        ledger.settle(InstanceId(1));
        ledger.follow([&new].into_iter());
        assert_eq!(drops(&ledger, "c"), ["0/m no-slot 2", "1/n no-slot 1", "earlier no-slot 1"]);
        ledger.settle(InstanceId(2));
        assert_eq!(drops(&ledger, "c"), ["0/m no-slot 2", "earlier no-slot 2"]);
    }

    #[test]
    fn an_account_ends_with_its_chain() {
        let chain = chain("c", &["m"]);
        let mut ledger = ledger(std::slice::from_ref(&chain));
        ledger.set_index(ChainIndex(3), key("c"));
        open(&mut ledger, 1, &chain, false)[0].moved.dropped_no_slot.add(1);
        ledger.gateway.chain(ChainIndex(3)).add(DropReason::MmaBusy, 1);
        ledger.follow(std::iter::empty());
        ledger.settle(InstanceId(1));
        assert!(ledger.counts(&key("c")).is_none() && ledger.counts_of_tenant(&key("c").0).next().is_none());
        ledger.follow([&chain].into_iter());
        assert_eq!(drops(&ledger, "c"), Vec::<String>::new());
    }

    #[test]
    fn a_chain_has_the_gateways_drops_at_its_indices_for_as_long_as_they_were_its_own() {
        let chains = [chain("c", &["m"]), chain("d", &["m"])];
        let mut ledger = ledger(&chains);
        let gateway = Arc::clone(&ledger.gateway);
        gateway.chain(ChainIndex(0)).add(DropReason::NoInstance, 100);
        ledger.set_index(ChainIndex(0), key("c"));
        gateway.chain(ChainIndex(0)).add(DropReason::NoInstance, 1);
        // The chain gets another index; frames that waited at its old index are dropped later.
        ledger.set_index(ChainIndex(1), key("c"));
        ledger.set_index(ChainIndex(1), key("c"));
        gateway.chain(ChainIndex(0)).add(DropReason::NoInstance, 1);
        gateway.chain(ChainIndex(1)).add(DropReason::PendingFull, 4);
        let expected = ["gateway no-instance 2", "gateway pending-full 4"];
        assert_eq!(drops(&ledger, "c"), expected);
        ledger.set_index(ChainIndex(0), key("d"));
        gateway.chain(ChainIndex(0)).add(DropReason::LauncherBusy, 9);
        assert_eq!(drops(&ledger, "c"), expected);
        assert_eq!(drops(&ledger, "d"), ["gateway launcher-busy 9"]);
    }
}
