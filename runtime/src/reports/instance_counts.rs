//! How many instances there are that have not ended, and of how many FWPs, by chain and by tenant: kept, so that a report of some chains or
//! of a tenant need not look at all instances.

use std::collections::HashMap;
use std::hash::Hash;

use pinion_control::model::TenantName;

use crate::fwp::instance_states::Life;
use crate::ids::ChainKey;

/// Instances of a chain or of a tenant.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Their FWPs.
    pub fwps: u64,
    /// Those that serve a client.
    pub serving: u64,
    /// Those that wait for a client.
    pub cached: u64,
}

impl Counts {
    fn of(life: Life, fwps: usize) -> Self {
        Self { fwps: fwps as u64, serving: (life == Life::Serving).into(), cached: (life == Life::Cached).into() }
    }
}

/// The counts; see the module.
#[derive(Debug, Default)]
pub(super) struct InstanceCounts {
    of_chains: HashMap<ChainKey, Counts>,
    of_tenants: HashMap<TenantName, Counts>,
}

impl InstanceCounts {
    /// Adds an instance in this state, with so many FWPs.
    pub(super) fn add(&mut self, chain: &ChainKey, life: Life, fwps: usize) {
        let one = Counts::of(life, fwps);
        add_to(&mut self.of_chains, chain, one);
        add_to(&mut self.of_tenants, &chain.0, one);
    }

    /// Removes an instance in this state.
    pub(super) fn remove(&mut self, chain: &ChainKey, life: Life, fwps: usize) {
        let one = Counts::of(life, fwps);
        remove_from(&mut self.of_chains, chain, one);
        remove_from(&mut self.of_tenants, &chain.0, one);
    }

    pub(super) fn of_chain(&self, chain: &ChainKey) -> Counts {
        self.of_chains.get(chain).copied().unwrap_or_default()
    }

    pub(super) fn of_tenant(&self, tenant: &TenantName) -> Counts {
        self.of_tenants.get(tenant).copied().unwrap_or_default()
    }
}

fn add_to<K: Clone + Eq + Hash>(counts: &mut HashMap<K, Counts>, key: &K, one: Counts) {
    let sum = counts.entry(key.clone()).or_default();
    *sum = Counts { fwps: sum.fwps + one.fwps, serving: sum.serving + one.serving, cached: sum.cached + one.cached };
}

/// Forgets the key when nothing is left to count.
fn remove_from<K: Eq + Hash>(counts: &mut HashMap<K, Counts>, key: &K, one: Counts) {
    let Some(sum) = counts.get_mut(key) else { return };
    *sum = Counts { fwps: sum.fwps - one.fwps, serving: sum.serving - one.serving, cached: sum.cached - one.cached };
    if *sum == Counts::default() {
        counts.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_instances_that_there_are_whatever_came_before() {
        const LIVES: [Life; 3] = [Life::Making, Life::Cached, Life::Serving];
        let key = |at: usize| {
            (format!("t{}", at % 2).parse::<TenantName>().unwrap(), format!("c{}", at / 2).parse().unwrap())
        };
        let (mut counts, mut instances) = (InstanceCounts::default(), Vec::new());
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            if instances.len() < 20 && random.bool() {
                let one = (key(random.usize(..6)), LIVES[random.usize(..3)], random.usize(1..4));
                counts.add(&one.0, one.1, one.2);
                instances.push(one);
            } else if !instances.is_empty() {
                let one = instances.swap_remove(random.usize(..instances.len()));
                counts.remove(&one.0, one.1, one.2);
            }
            let sum = |is_meant: &dyn Fn(&ChainKey) -> bool| {
                instances.iter().filter(|one| is_meant(&one.0)).fold(Counts::default(), |sum, one| Counts {
                    fwps: sum.fwps + one.2 as u64,
                    serving: sum.serving + u64::from(one.1 == Life::Serving),
                    cached: sum.cached + u64::from(one.1 == Life::Cached),
                })
            };
            for at in 0..6 {
                assert_eq!(counts.of_chain(&key(at)), sum(&|of| *of == key(at)));
                assert_eq!(counts.of_tenant(&key(at).0), sum(&|of| of.0 == key(at).0));
            }
        }
        for one in std::mem::take(&mut instances) {
            counts.remove(&one.0, one.1, one.2);
        }
        assert!(counts.of_chains.is_empty() && counts.of_tenants.is_empty());
    }
}
