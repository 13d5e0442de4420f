//! Accounts of chains: what each has counted so far, and what its instances count that may still do so.
//!
//! What an instance counts is its own until MMA and worker have released it, and its chain's from then on. So each count is in exactly one
//! place, and a chain's sum is that of its account and of its instances. All of it ends with the chain.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use pinion_control::model::{Chain, ModuleName};
use pinion_gateway::id::InstanceId;

use crate::ids::ChainKey;

/// An account of each chain, with what has been settled of the type `A` and what an instance counts of the type `C`.
pub(super) struct ChainAccounts<A, C> {
    by_chain: BTreeMap<ChainKey, ChainAccount<A, C>>,
    /// The chains of the instances that count, also of chains that have ended.
    chains: HashMap<InstanceId, ChainKey>,
}

/// The account of a chain.
pub(super) struct ChainAccount<A, C> {
    /// What instances have counted that count no more.
    pub(super) settled: A,
    /// What the others count.
    pub(super) counting: BTreeMap<InstanceId, C>,
}

impl<A, C> Default for ChainAccounts<A, C> {
    fn default() -> Self {
        Self { by_chain: BTreeMap::new(), chains: HashMap::new() }
    }
}

impl<A: Default, C> ChainAccounts<A, C> {
    /// Opens accounts for these chains, and closes all others. `adapt` is told the modules of a chain's stages.
    pub(super) fn follow<'c>(
        &mut self,
        chains: impl Iterator<Item = &'c Chain>,
        mut adapt: impl FnMut(&mut A, Vec<ModuleName>),
    ) {
        let mut old = std::mem::take(&mut self.by_chain);
        for chain in chains {
            let key = (chain.tenant.clone(), chain.name.clone());
            let new = || ChainAccount { settled: A::default(), counting: BTreeMap::new() };
            let mut account = old.remove(&key).unwrap_or_else(new);
            adapt(&mut account.settled, chain.stages.iter().map(|stage| stage.module.clone()).collect());
            self.by_chain.insert(key, account);
        }
    }

    /// Adds an instance. Must be called before anything is counted for it.
    pub(super) fn open(&mut self, id: InstanceId, chain: ChainKey, counting: C) {
        if let Some(account) = self.by_chain.get_mut(&chain) {
            account.counting.insert(id, counting);
            self.chains.insert(id, chain);
        }
    }

    /// Removes an instance. Returns its chain, the account to which its counts are to be added, and what counts them.
    pub(super) fn settle(&mut self, id: InstanceId) -> Option<(ChainKey, &mut ChainAccount<A, C>, C)> {
        let chain = self.chains.remove(&id)?;
        let account = self.by_chain.get_mut(&chain)?;
        let counting = account.counting.remove(&id)?;
        Some((chain, account, counting))
    }

    /// Returns whether there is an account of this chain.
    pub(super) fn contains(&self, chain: &ChainKey) -> bool {
        self.by_chain.contains_key(chain)
    }

    pub(super) fn get(&self, chain: &ChainKey) -> Option<&ChainAccount<A, C>> {
        self.by_chain.get(chain)
    }

    pub(super) fn get_mut(&mut self, chain: &ChainKey) -> Option<&mut ChainAccount<A, C>> {
        self.by_chain.get_mut(chain)
    }

    /// Returns the accounts behind that of this chain in the order of names, or all.
    pub(super) fn after(
        &self,
        chain: Option<&ChainKey>,
    ) -> impl Iterator<Item = (&ChainKey, &ChainAccount<A, C>)> + use<'_, A, C> {
        let from = chain.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        self.by_chain.range((from, Bound::Unbounded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(name: &str) -> Chain {
        Chain::new("t".parse().unwrap(), name.parse().unwrap(), Vec::new())
    }

    fn key(name: &str) -> ChainKey {
        ("t".parse().unwrap(), name.parse().unwrap())
    }

    fn following(chains: &[&str]) -> ChainAccounts<u64, u64> {
        let mut accounts = ChainAccounts::default();
        follow(&mut accounts, chains);
        accounts
    }

    fn follow(accounts: &mut ChainAccounts<u64, u64>, chains: &[&str]) {
        let chains: Vec<Chain> = chains.iter().map(|name| chain(name)).collect();
        accounts.follow(chains.iter(), |_, _| ());
    }

    #[test]
    fn an_instance_settles_once_with_the_account_of_its_chain() {
        let mut accounts = following(&["a", "b"]);
        accounts.open(InstanceId(1), key("a"), 5);
        accounts.open(InstanceId(2), key("b"), 7);
        let (chain, account, counting) = accounts.settle(InstanceId(1)).unwrap();
        account.settled += counting;
        assert_eq!((chain, account.counting.len()), (key("a"), 0));
        assert!(accounts.settle(InstanceId(1)).is_none());
        let settled: Vec<u64> = accounts.after(None).map(|(_, account)| account.settled).collect();
        assert_eq!(settled, [5, 0]);
        assert_eq!(accounts.after(Some(&key("a"))).count(), 1);
    }

    #[test]
    fn an_instance_of_a_chain_that_has_ended_does_not_count_for_another_of_its_name() {
        let mut accounts = following(&["a"]);
        accounts.open(InstanceId(1), key("a"), 5);
        follow(&mut accounts, &[]);
        accounts.open(InstanceId(2), key("a"), 5);
        follow(&mut accounts, &["a"]);
        assert!(accounts.get(&key("a")).unwrap().counting.is_empty());
        assert!(accounts.settle(InstanceId(1)).is_none() && accounts.settle(InstanceId(2)).is_none());
        assert!(accounts.chains.is_empty());
    }
}
