//! The ledger of drops: packets that chains lost, by place and reason, since the node started.
//!
//! ```text
//!   an instance's FWPs   count while they live ----settle, once MMA and worker have let go----> the chain's account
//!   the gateway          counts by chain index ----when the index goes to another chain------->        "
//! ```
//!
//! Kept by the board: written by the launcher, read by the control threads. What a chain has lost is its account and what
//! is still being counted for it; each packet is in one of the two, and in no more than one. An account ends with its chain.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_control::model::{Chain, ChainName, ModuleName, TenantName};
use pinion_control::node::ChainDrop;
use pinion_gateway::drops::{ChainDropCounts, DropsByChain};
use pinion_gateway::id::{ChainIndex, InstanceId};
use pinion_mma::counters::FwpCounters;

/// A chain, by its owner and its name.
pub type ChainKey = (TenantName, ChainName);

/// Where a packet was lost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Gateway,
    Stage(usize, ModuleName),
    /// At a stage that the chain has no longer.
    Earlier,
}

impl Place {
    fn text(&self) -> String {
        match self {
            Self::Gateway => "gateway".to_owned(),
            Self::Stage(stage, module) => format!("{stage}/{module}"),
            Self::Earlier => "earlier".to_owned(),
        }
    }
}

/// What was lost, by place and reason.
#[derive(Debug, Clone, Default)]
pub struct Drops(BTreeMap<(Place, &'static str), u64>);

impl Drops {
    fn add(&mut self, place: &Place, reason: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry((place.clone(), reason)).or_default() += count;
        }
    }

    /// For a report.
    #[must_use]
    pub fn report(&self) -> Vec<ChainDrop> {
        let drop = |((place, reason), count): (&(Place, &'static str), &u64)| ChainDrop {
            place: place.text(),
            reason: (*reason).to_owned(),
            count: *count,
        };
        self.0.iter().map(drop).collect()
    }
}

/// What a chain lost where nobody counts any more.
#[derive(Default)]
struct Account {
    /// The chain's stages as they are now.
    modules: Vec<ModuleName>,
    drops: Drops,
    copied_bytes: u64,
}

impl Account {
    fn place(&self, stage: usize, module: &ModuleName) -> Place {
        if self.modules.get(stage) == Some(module) { Place::Stage(stage, module.clone()) } else { Place::Earlier }
    }

    /// Goes on for a chain that may have other stages: accounts do not grow with each change of one.
    fn follow(&mut self, modules: Vec<ModuleName>) {
        if self.modules == modules {
            return;
        }
        self.modules = modules;
        for ((place, reason), count) in std::mem::take(&mut self.drops).0 {
            let place = match place {
                Place::Stage(stage, module) => self.place(stage, &module),
                place => place,
            };
            self.drops.add(&place, reason, count);
        }
    }
}

/// An instance whose counters may still move.
pub struct Counting {
    /// Its chain.
    pub chain: ChainKey,
    /// Whether it holds what finds no slot: then what is dropped was beyond what it holds.
    pub holds: bool,
    /// Its stages.
    pub stages: Vec<(ModuleName, Arc<FwpCounters>)>,
}

impl Counting {
    fn add_to(&self, drops: &mut Drops, place: impl Fn(usize, &ModuleName) -> Place) {
        for (stage, (module, counters)) in self.stages.iter().enumerate() {
            let (place, moved) = (place(stage, module), &counters.moved);
            let no_slot = if self.holds { "hold-full" } else { "no-slot" };
            drops.add(&place, no_slot, moved.dropped_no_slot.value());
            drops.add(&place, "too-long", moved.dropped_too_long.value());
            drops.add(&place, "egress-full", moved.dropped_egress.value());
            drops.add(&place, "gone", moved.dropped_gone.value());
            drops.add(&place, "by-function", counters.guest.dropped.value());
        }
    }
}

impl Counting {
    /// Bytes copied into its first stage, and out of each.
    fn copied_bytes(&self) -> u64 {
        let into_first = self.stages.first().map_or(0, |(_, counters)| counters.moved.received_bytes.value());
        into_first + self.stages.iter().map(|(_, counters)| counters.moved.sent_bytes.value()).sum::<u64>()
    }
}

/// A chain's time at an index of the gateway's.
struct Stint {
    chain: ChainKey,
    /// What was counted at the index before.
    before: ChainDropCounts,
}

impl Stint {
    fn add_to(&self, drops: &mut Drops, now: ChainDropCounts) {
        for ((reason, count), (_, before)) in now.into_iter().zip(self.before) {
            drops.add(&Place::Gateway, reason.name(), count.wrapping_sub(before));
        }
    }
}

/// See the module.
pub struct Ledger {
    gateway: Arc<DropsByChain>,
    accounts: BTreeMap<ChainKey, Account>,
    counting: BTreeMap<InstanceId, Counting>,
    /// A chain that was replaced keeps its index here for as long as no other has it: frames may wait for it still.
    stints: BTreeMap<ChainIndex, Stint>,
}

impl Ledger {
    /// An empty one, beside what the gateway counts.
    #[must_use]
    pub fn new(gateway: Arc<DropsByChain>) -> Self {
        Self { gateway, accounts: BTreeMap::new(), counting: BTreeMap::new(), stints: BTreeMap::new() }
    }

    /// Opens accounts for these chains, and closes all others.
    pub fn follow<'c>(&mut self, chains: impl Iterator<Item = &'c Chain>) {
        let mut old = std::mem::take(&mut self.accounts);
        for chain in chains {
            let key = (chain.tenant.clone(), chain.name.clone());
            let mut account = old.remove(&key).unwrap_or_default();
            account.follow(chain.stages.iter().map(|stage| stage.module.clone()).collect());
            self.accounts.insert(key, account);
        }
        let accounts = &self.accounts;
        self.stints.retain(|_, stint| accounts.contains_key(&stint.chain));
    }

    /// Notes which chain the gateway knows by an index from now on: to be called before the gateway does.
    pub fn set_index(&mut self, index: ChainIndex, chain: ChainKey) {
        if self.stints.get(&index).is_some_and(|stint| stint.chain == chain) {
            return;
        }
        let now = self.gateway.chain(index).counts();
        if let Some(ended) = self.stints.insert(index, Stint { chain, before: now })
            && let Some(account) = self.accounts.get_mut(&ended.chain)
        {
            ended.add_to(&mut account.drops, now);
        }
    }

    /// Notes an instance before anything is counted for it.
    pub fn open(&mut self, id: InstanceId, counting: Counting) {
        self.counting.insert(id, counting);
    }

    /// Adds what was counted for an instance to its chain's account. Everybody who counts for it has let go of it.
    pub fn settle(&mut self, id: InstanceId) {
        let Some(counting) = self.counting.remove(&id) else { return };
        let Some(account) = self.accounts.get_mut(&counting.chain) else { return };
        let mut drops = std::mem::take(&mut account.drops);
        counting.add_to(&mut drops, |stage, module| account.place(stage, module));
        account.drops = drops;
        account.copied_bytes += counting.copied_bytes();
    }

    /// Bytes that were copied for each chain so far.
    #[must_use]
    pub fn copied_bytes(&self) -> BTreeMap<ChainKey, u64> {
        let settled = self.accounts.iter().map(|(chain, account)| (chain.clone(), account.copied_bytes));
        let mut all: BTreeMap<_, _> = settled.collect();
        for counting in self.counting.values() {
            if let Some(bytes) = all.get_mut(&counting.chain) {
                *bytes += counting.copied_bytes();
            }
        }
        all
    }

    /// What each chain lost so far.
    #[must_use]
    pub fn drops(&self) -> BTreeMap<ChainKey, Drops> {
        let mut all: BTreeMap<_, _> =
            self.accounts.iter().map(|(chain, account)| (chain.clone(), account.drops.clone())).collect();
        for counting in self.counting.values() {
            if let Some(drops) = all.get_mut(&counting.chain) {
                counting.add_to(drops, |stage, module| Place::Stage(stage, module.clone()));
            }
        }
        for (index, stint) in &self.stints {
            if let Some(drops) = all.get_mut(&stint.chain) {
                stint.add_to(drops, self.gateway.chain(*index).counts());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_control::model::Stage;

    fn chain(name: &str, modules: &[&str]) -> Chain {
        let stages = modules.iter().map(|module| Stage::new(module.parse().unwrap(), Vec::new())).collect();
        Chain::new("t".parse().unwrap(), name.parse().unwrap(), stages)
    }

    fn key(name: &str) -> ChainKey {
        ("t".parse().unwrap(), name.parse().unwrap())
    }

    fn ledger(chains: &[Chain]) -> Ledger {
        let mut ledger = Ledger::new(Arc::default());
        ledger.follow(chains.iter());
        ledger
    }

    /// Opens an instance of the chain; its stages' counters.
    fn open(ledger: &mut Ledger, id: u64, chain: &Chain, holds: bool) -> Vec<Arc<FwpCounters>> {
        let counters: Vec<Arc<FwpCounters>> = chain.stages.iter().map(|_| Arc::default()).collect();
        let modules = chain.stages.iter().map(|stage| stage.module.clone());
        let stages = modules.zip(counters.iter().cloned()).collect();
        let chain = (chain.tenant.clone(), chain.name.clone());
        ledger.open(InstanceId(id), Counting { chain, holds, stages });
        counters
    }

    /// `place reason count` of each of the chain's drops.
    fn drops(ledger: &Ledger, name: &str) -> Vec<String> {
        let drops = ledger.drops().remove(&key(name)).expect("the chain has an account");
        drops.report().into_iter().map(|drop| format!("{} {} {}", drop.place, drop.reason, drop.count)).collect()
    }

    #[test]
    fn what_an_instance_dropped_stays_counted_when_it_has_ended_and_is_counted_once() {
        let chain = chain("c", &["m", "n"]);
        let mut ledger = ledger(std::slice::from_ref(&chain));
        let first = open(&mut ledger, 1, &chain, false);
        let second = open(&mut ledger, 2, &chain, false);
        first[0].moved.received_bytes.add(100);
        first[0].moved.sent_bytes.add(60);
        first[1].moved.received_bytes.add(60);
        first[1].moved.sent_bytes.add(60);
        first[0].moved.dropped_no_slot.add(5);
        first[1].moved.dropped_egress.add(2);
        second[0].moved.dropped_no_slot.add(10);
        let expected = ["0/m no-slot 15", "1/n egress-full 2"];
        assert_eq!(drops(&ledger, "c"), expected);
        assert_eq!(ledger.copied_bytes()[&key("c")], 220);
        ledger.settle(InstanceId(1));
        assert_eq!(drops(&ledger, "c"), expected);
        assert_eq!(ledger.copied_bytes()[&key("c")], 220);
        ledger.settle(InstanceId(1));
        assert_eq!(drops(&ledger, "c"), expected);
        second[0].guest.dropped.add(1);
        assert_eq!(drops(&ledger, "c"), ["0/m by-function 1", "0/m no-slot 15", "1/n egress-full 2"]);
    }

    #[test]
    fn what_is_counted_up_to_the_moment_of_letting_go_is_in() {
        let chain = chain("c", &["m"]);
        let mut ledger = ledger(std::slice::from_ref(&chain));
        let counters = open(&mut ledger, 1, &chain, true);
        counters[0].moved.dropped_no_slot.add(1);
        counters[0].moved.dropped_gone.add(7);
        counters[0].moved.dropped_too_long.add(3);
        ledger.settle(InstanceId(1));
        assert_eq!(drops(&ledger, "c"), ["0/m gone 7", "0/m hold-full 1", "0/m too-long 3"]);
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
        ledger.gateway.chain(ChainIndex(3)).mma_busy.add(1);
        ledger.follow(std::iter::empty());
        ledger.settle(InstanceId(1));
        assert!(ledger.drops().is_empty());
        ledger.follow([&chain].into_iter());
        assert_eq!(drops(&ledger, "c"), Vec::<String>::new());
    }

    #[test]
    fn a_chain_has_what_the_gateway_dropped_at_its_indices_while_they_were_its_own() {
        let chains = [chain("c", &["m"]), chain("d", &["m"])];
        let mut ledger = ledger(&chains);
        let gateway = Arc::clone(&ledger.gateway);
        gateway.chain(ChainIndex(0)).no_instance.add(100);
        ledger.set_index(ChainIndex(0), key("c"));
        gateway.chain(ChainIndex(0)).no_instance.add(1);
        // The chain is replaced; frames that waited for its older self are given up later.
        ledger.set_index(ChainIndex(1), key("c"));
        ledger.set_index(ChainIndex(1), key("c"));
        gateway.chain(ChainIndex(0)).no_instance.add(1);
        gateway.chain(ChainIndex(1)).pending_full.add(4);
        let expected = ["gateway no-instance 2", "gateway pending-full 4"];
        assert_eq!(drops(&ledger, "c"), expected);
        ledger.set_index(ChainIndex(0), key("d"));
        gateway.chain(ChainIndex(0)).launcher_busy.add(9);
        assert_eq!(drops(&ledger, "c"), expected);
        assert_eq!(drops(&ledger, "d"), ["gateway launcher-busy 9"]);
    }
}
