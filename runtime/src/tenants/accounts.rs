//! Accounts of memory: the use of all FWPs of a chain together, and of a tenant together, against their limits.
//!
//! ```text
//!   FWP   limit of the chain's manifest (memory_limit_kib)        its own, no account needed
//!    |--> chain's account    memory_total_kib
//!    `--> tenant's account   the operator's: the tenant's memory_mib, limits.tenant_memory_mib
//! ```
//!
//! Limits of a chain's author are of what functions see: linear memory, and changed files. The operator's is of all that the node has for
//! them: also what it keeps for each FWP beside that, which is its stack, its table and the engine's record of it; templates, as their
//! code and the files that their instances see; and models, loaded and while they run ([`Charge`]).
//!
//! Each FWP's store has a [`Holding`]. It charges both accounts when memory is made or grows, and releases the charge when the store is
//! dropped. Charging is a compare-and-exchange, from whichever thread runs the guest: no limit is ever exceeded, no lock is taken, and no
//! packet passes here (`account`). The registry, [`Accounts`], has a lock, taken by the launcher when chains change and by reports.

mod account;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinion_control::model::{Chain, DesiredState, Digest, Files, TenantName};

use crate::ids::ChainKey;

use account::UNLIMITED;
pub use account::{Account, Charge, Holding, MemoryAccounts, OverLimit, Scope, Usage};

/// The operator's memory limits for tenants.
#[derive(Debug, Clone, Default)]
pub struct TenantLimits {
    /// For each tenant without an entry; none means no limit.
    pub default_bytes: Option<u64>,
    /// By tenant name.
    pub by_name: HashMap<TenantName, u64>,
}

impl TenantLimits {
    /// Returns the limit of a tenant.
    fn of(&self, tenant: &TenantName) -> Option<u64> {
        self.by_name.get(tenant).copied().or(self.default_bytes)
    }

    /// Returns the limits by a desired state, with the same default.
    fn by(&self, state: &DesiredState) -> Self {
        let limits = state.tenants().iter().filter_map(|(name, terms)| Some((name.clone(), terms.memory_mib?)));
        let by_name = limits.map(|(name, mib)| (name, u64::from(mib) << 20)).collect();
        Self { default_bytes: self.default_bytes, by_name }
    }
}

/// The registry. See the module.
#[derive(Debug, Default)]
pub struct Accounts {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    limits: TenantLimits,
    tenants: BTreeMap<TenantName, Arc<Account>>,
    chains: BTreeMap<ChainKey, Arc<Account>>,
    files: HashMap<(TenantName, Digest), Weak<Charge>>,
}

impl Open {
    fn tenant(&mut self, name: &TenantName) -> Arc<Account> {
        tenant_account(&mut self.tenants, &self.limits, name)
    }

    fn set_limits(&self) {
        self.tenants.iter().for_each(|(name, account)| account.set_limit(self.limits.of(name)));
    }
}

/// Returns a tenant's account, which is opened if there is none.
fn tenant_account(
    tenants: &mut BTreeMap<TenantName, Arc<Account>>,
    limits: &TenantLimits,
    name: &TenantName,
) -> Arc<Account> {
    let account = tenants.entry(name.clone()).or_insert_with(|| {
        let account = Account::default();
        account.set_limit(limits.of(name));
        Arc::new(account)
    });
    Arc::clone(account)
}

impl Accounts {
    /// Creates a registry without accounts, with these limits for tenants.
    #[must_use]
    pub fn new(limits: TenantLimits) -> Self {
        Self { open: Mutex::new(Open { limits, ..Open::default() }) }
    }

    /// Sets the tenants' limits to those of a desired state. Memory beyond a lower limit stays in use, and growth is refused until there is
    /// less.
    pub fn follow(&self, state: &DesiredState) {
        let mut open = self.lock();
        open.limits = open.limits.by(state);
        open.set_limits();
    }

    /// Raises the tenants' limits to those of a desired state that is not in force yet, so that what it needs can be loaded before.
    /// [`Accounts::follow`] sets them as they are again.
    pub fn raise(&self, state: &DesiredState) {
        let mut open = self.lock();
        let wanted = open.limits.by(state);
        let more = |tenant: &TenantName| {
            let (limit, wanted) = (open.limits.of(tenant)?, wanted.of(tenant).unwrap_or(UNLIMITED));
            (wanted > limit).then(|| (tenant.clone(), wanted))
        };
        let more: Vec<_> = open.limits.by_name.keys().chain(wanted.by_name.keys()).filter_map(more).collect();
        open.limits.by_name.extend(more);
        open.set_limits();
    }

    /// Returns the accounts for a chain's FWPs. An older version of the chain, whose FWPs may still be ending, shares them, and has the new
    /// limit from now on.
    pub fn open(&self, chain: &Chain) -> MemoryAccounts {
        let mut open = self.lock();
        let Open { tenants, chains, limits, .. } = &mut *open;
        let tenant = tenant_account(tenants, limits, &chain.tenant);
        let of_chain = Arc::clone(chains.entry((chain.tenant.clone(), chain.name.clone())).or_default());
        of_chain.set_limit(chain.memory_total_kib.map(|kib| u64::from(kib) * 1024));
        MemoryAccounts { chain: of_chain, tenant }
    }

    /// Charges a tenant with memory that is not one FWP's.
    ///
    /// # Errors
    /// The tenant's limit, if it does not allow it.
    pub fn charge(&self, tenant: &TenantName, bytes: u64) -> Result<Charge, OverLimit> {
        Charge::new(self.lock().tenant(tenant), bytes)
    }

    /// Charges a tenant with an archive of files that is in memory: once, for all that use it at a time.
    ///
    /// # Errors
    /// The tenant's limit, if it does not allow it.
    pub fn charge_files(&self, tenant: &TenantName, files: &Files) -> Result<Arc<Charge>, OverLimit> {
        let mut open = self.lock();
        let key = (tenant.clone(), files.digest);
        if let Some(charge) = open.files.get(&key).and_then(Weak::upgrade) {
            return Ok(charge);
        }
        let account = open.tenant(tenant);
        let new = Arc::new(Charge::new(account, files.size_bytes)?);
        open.files.insert(key, Arc::downgrade(&new));
        Ok(new)
    }

    /// Closes accounts that no chain, no template and no FWP uses any more.
    pub fn close_unused(&self) {
        let mut open = self.lock();
        open.tenants.retain(|_, account| Arc::strong_count(account) > 1);
        open.chains.retain(|_, account| Arc::strong_count(account) > 1);
        open.files.retain(|_, charge| charge.strong_count() > 0);
    }

    /// Returns the memory use of a chain's FWPs, if the chain has an account.
    #[must_use]
    pub fn of_chain(&self, chain: &ChainKey) -> Option<Usage> {
        self.lock().chains.get(chain).map(|account| account.usage())
    }

    /// Returns the memory use of tenants' FWPs, in the order of their names.
    #[must_use]
    pub fn of_tenants(&self) -> Vec<(TenantName, Usage)> {
        let used = |(_, account): &(&TenantName, &Arc<Account>)| Arc::strong_count(account) > 1;
        self.lock().tenants.iter().filter(used).map(|(tenant, account)| (tenant.clone(), account.usage())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_control::model::{Change, Stage, Tenant};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const PAGE: u64 = 64 * 1024;

    fn chain(tenant: &str, name: &str, memory_total_kib: Option<u32>) -> Chain {
        let stage = Stage::new("m".parse().unwrap(), Vec::new());
        let chain = Chain::new(tenant.parse().unwrap(), name.parse().unwrap(), vec![stage]);
        Chain { memory_total_kib, ..chain }
    }

    fn accounts(tenant_pages: Option<u64>) -> Accounts {
        Accounts::new(TenantLimits { default_bytes: tenant_pages.map(|pages| pages * PAGE), by_name: HashMap::new() })
    }

    fn used_kib(accounts: &Accounts) -> Vec<u64> {
        accounts.of_tenants().into_iter().map(|(_, usage)| usage.used_kib).collect()
    }

    #[test]
    fn each_limit_holds_and_a_refusal_names_it_and_changes_nothing() {
        let accounts = accounts(Some(6));
        let (small, large) = (accounts.open(&chain("t", "a", Some(256))), accounts.open(&chain("t", "b", None)));
        let mut first = Holding::new(small.clone(), 3 * PAGE, 0);
        let mut second = Holding::new(small, 3 * PAGE, 0);
        let mut third = Holding::new(large, 100 * PAGE, 0);
        assert_eq!(first.resize(4 * PAGE), Err(OverLimit { scope: Scope::Fwp, limit_kib: 192, wanted_kib: 256 }));
        first.resize(3 * PAGE).unwrap();
        assert_eq!(second.resize(2 * PAGE), Err(OverLimit { scope: Scope::Chain, limit_kib: 256, wanted_kib: 128 }));
        second.resize(PAGE).unwrap();
        assert_eq!(third.resize(3 * PAGE), Err(OverLimit { scope: Scope::Tenant, limit_kib: 384, wanted_kib: 192 }));
        third.resize(2 * PAGE).unwrap();
        assert_eq!(used_kib(&accounts), [6 * 64]);
        let of_chain = |name: &str| accounts.of_chain(&("t".parse().unwrap(), name.parse().unwrap()));
        assert_eq!(of_chain("a"), Some(Usage { used_kib: 256, limit_kib: Some(256), refused: 1 }));
        assert_eq!(of_chain("b"), Some(Usage { used_kib: 128, limit_kib: None, refused: 0 }));
        drop(first);
        second.resize(0).unwrap();
        third.resize(6 * PAGE).unwrap();
        drop((second, third));
        assert_eq!(of_chain("a").map(|usage| usage.used_kib), Some(0));
    }

    #[test]
    fn what_is_kept_for_an_fwp_is_charged_to_its_tenant_once_and_not_to_its_chain() {
        const KEPT: u64 = 3 * PAGE;
        let accounts = accounts(Some(8));
        let memory = accounts.open(&chain("t", "a", None));
        let of_chain = || accounts.of_chain(&("t".parse().unwrap(), "a".parse().unwrap())).unwrap().used_kib;
        let mut first = Holding::new(memory.clone(), 100 * PAGE, KEPT);
        assert_eq!(used_kib(&accounts), [0]);
        for (pages, charged) in [(1, 4), (3, 6), (2, 5)] {
            first.resize(pages * PAGE).unwrap();
            assert_eq!((of_chain(), used_kib(&accounts)), (pages * 64, vec![charged * 64]));
        }
        let mut second = Holding::new(memory, 100 * PAGE, KEPT);
        let refused = OverLimit { scope: Scope::Tenant, limit_kib: 8 * 64, wanted_kib: 4 * 64 };
        assert_eq!(second.resize(PAGE), Err(refused));
        drop((first, second));
        assert_eq!((of_chain(), used_kib(&accounts)), (0, vec![]));
    }

    #[test]
    fn what_is_charged_to_a_tenant_leaves_its_fwps_less() {
        let accounts = accounts(Some(4));
        let memory = accounts.open(&chain("t", "a", None));
        let charge = accounts.charge(&"t".parse().unwrap(), 3 * PAGE).unwrap();
        let mut holding = Holding::new(memory, 100 * PAGE, 0);
        assert!(holding.resize(2 * PAGE).is_err());
        let over = OverLimit { scope: Scope::Tenant, limit_kib: 256, wanted_kib: 128 };
        assert_eq!(accounts.charge(&"t".parse().unwrap(), 2 * PAGE).unwrap_err(), over);
        drop(charge);
        holding.resize(2 * PAGE).unwrap();
        assert_eq!(used_kib(&accounts), [128]);
    }

    #[test]
    fn a_charge_that_the_limit_does_not_allow_to_grow_stays_as_it_was() {
        let accounts = accounts(Some(4));
        let mut charge = accounts.charge(&"t".parse().unwrap(), PAGE).unwrap();
        let another = charge.another(2 * PAGE).unwrap();
        let over = OverLimit { scope: Scope::Tenant, limit_kib: 256, wanted_kib: 192 };
        assert_eq!(
            (charge.resize(3 * PAGE), charge.another(2 * PAGE).err().map(|over| over.wanted_kib)),
            (Err(over), Some(128))
        );
        assert_eq!(used_kib(&accounts), [192]);
        drop(another);
        charge.resize(4 * PAGE).unwrap();
        charge.resize(PAGE / 2).unwrap();
        assert_eq!(used_kib(&accounts), [32]);
        drop(charge);
        assert!(used_kib(&accounts).is_empty());
    }

    #[test]
    fn files_are_charged_to_each_tenant_once_however_many_templates_use_them() {
        let accounts = accounts(Some(4));
        let [a, b] = ["a", "b"].map(|name| name.parse::<TenantName>().unwrap());
        let files = Files { digest: Digest::of(b"files"), size_bytes: 3 * PAGE };
        let first = accounts.charge_files(&a, &files).unwrap();
        let second = accounts.charge(&a, PAGE).unwrap().and(Some(accounts.charge_files(&a, &files).unwrap()));
        let others = accounts.charge_files(&b, &files).unwrap();
        assert_eq!(used_kib(&accounts), [256, 192]);
        let more = Files { digest: Digest::of(b"more files"), size_bytes: PAGE };
        assert!(accounts.charge_files(&a, &more).is_err());
        drop(first);
        assert_eq!(used_kib(&accounts), [256, 192]);
        drop(second);
        accounts.charge_files(&a, &more).unwrap();
        drop(others);
        accounts.close_unused();
        assert!(accounts.lock().files.is_empty());
    }

    /// Returns a state in which the tenant `t` has so much memory, or no terms of its own.
    fn state(memory_mib: Option<u32>) -> DesiredState {
        let terms = memory_mib.map(|mib| Tenant { memory_mib: Some(mib), ..Tenant::new("t".parse().unwrap()) });
        let change = Change { tenants: terms.into_iter().collect(), ..Change::default() };
        DesiredState::default().apply(&change).unwrap().state
    }

    #[test]
    fn another_limit_holds_for_what_fwps_that_run_want_from_then_on() {
        const MIB: u64 = 1 << 20;
        let accounts = accounts(None);
        let mut holding = Holding::new(accounts.open(&chain("t", "a", None)), 100 * MIB, 0);
        holding.resize(3 * MIB).unwrap();
        accounts.follow(&state(Some(2)));
        let refused = |wanted_kib| OverLimit { scope: Scope::Tenant, limit_kib: 2048, wanted_kib };
        assert_eq!(holding.resize(4 * MIB), Err(refused(4096)), "what it has stays, and it gets no more");
        holding.resize(MIB).unwrap();
        holding.resize(2 * MIB).unwrap();
        assert_eq!(holding.resize(3 * MIB), Err(refused(3072)));
        accounts.follow(&state(Some(5)));
        holding.resize(5 * MIB).unwrap();
        accounts.follow(&state(None));
        holding.resize(50 * MIB).unwrap();
    }

    #[test]
    fn what_a_change_grants_can_be_used_before_it_is_in_force_and_what_it_takes_away_too() {
        const MIB: u64 = 1 << 20;
        let accounts = accounts(None);
        let t = "t".parse::<TenantName>().unwrap();
        accounts.follow(&state(Some(2)));
        assert!(accounts.charge(&t, 3 * MIB).is_err());
        for more in [Some(3), None] {
            accounts.raise(&state(more));
            drop(accounts.charge(&t, 3 * MIB).unwrap());
            accounts.raise(&state(Some(1)));
            drop(accounts.charge(&t, 3 * MIB).unwrap());
            accounts.follow(&state(Some(2)));
            assert!(accounts.charge(&t, 3 * MIB).is_err());
        }
    }

    #[test]
    fn a_refusal_by_one_account_charges_neither() {
        let accounts = accounts(Some(1));
        let both = accounts.open(&chain("t", "a", Some(1024)));
        let mut holding = Holding::new(both, 100 * PAGE, 0);
        assert!(holding.resize(2 * PAGE).is_err());
        assert_eq!(accounts.of_chain(&("t".parse().unwrap(), "a".parse().unwrap())).unwrap().used_kib, 0);
        holding.resize(PAGE).unwrap();
    }

    #[test]
    fn a_new_version_of_a_chain_shares_the_old_ones_account_and_unused_accounts_are_closed() {
        let accounts = accounts(None);
        let mut old = Holding::new(accounts.open(&chain("t", "a", Some(128))), 100 * PAGE, 0);
        old.resize(2 * PAGE).unwrap();
        let mut new = Holding::new(accounts.open(&chain("t", "a", Some(192))), 100 * PAGE, 0);
        assert!(new.resize(2 * PAGE).is_err());
        new.resize(PAGE).unwrap();
        // Lowered below what is in use: memory in use stays, and growth is refused.
        let lowered = accounts.open(&chain("t", "a", Some(64)));
        assert!(new.resize(2 * PAGE).is_err());
        drop((old, new, lowered));
        accounts.close_unused();
        assert_eq!(accounts.of_chain(&("t".parse().unwrap(), "a".parse().unwrap())), None);
        assert_eq!(used_kib(&accounts), Vec::<u64>::new());
    }

    #[test]
    fn a_tenants_own_limit_overrides_the_default() {
        let by_name = HashMap::from([("big".parse().unwrap(), 10 * PAGE)]);
        let accounts = Accounts::new(TenantLimits { default_bytes: Some(PAGE), by_name });
        let mut big = Holding::new(accounts.open(&chain("big", "a", None)), 100 * PAGE, 0);
        let mut other = Holding::new(accounts.open(&chain("other", "a", None)), 100 * PAGE, 0);
        big.resize(10 * PAGE).unwrap();
        assert!(other.resize(2 * PAGE).is_err());
    }

    /// Threads grow, shrink and end FWPs of two chains of one tenant, each in a random order, while another thread reads the accounts.
    #[test]
    fn growth_on_several_threads_never_exceeds_a_limit_and_all_memory_is_released() {
        const TENANT_PAGES: u64 = 40;
        let accounts = accounts(Some(TENANT_PAGES));
        let chains = [chain("t", "a", Some(20 * 64)), chain("t", "b", None)].map(|chain| accounts.open(&chain));
        let done = AtomicBool::new(false);
        let (granted, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (accounts, chains, done) = (&accounts, &chains, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    assert!(chains[0].chain.usage().used_kib <= 20 * 64);
                    assert!(accounts.of_tenants()[0].1.used_kib <= TENANT_PAGES * 64);
                }
            });
            let workers: Vec<_> = (0..4_u64)
                .map(|seed| {
                    let (granted, refused) = (&granted, &refused);
                    scope.spawn(move || {
                        let mut random = seed * 0x9e37_79b9_7f4a_7c15 + 1;
                        let mut fwps: Vec<Holding> = Vec::new();
                        for _ in 0..50_000 {
                            random ^= random << 13;
                            random ^= random >> 7;
                            random ^= random << 17;
                            let (pages, which) = (random % 12 * PAGE, (random >> 8) as usize);
                            let count = fwps.len();
                            if count < 4 {
                                fwps.push(Holding::new(chains[which % 2].clone(), 10 * PAGE, 0));
                            } else if random % 7 == 0 {
                                fwps.swap_remove(which % count);
                            } else {
                                let grown = fwps[which % count].resize(pages).is_ok();
                                let counter = if grown { granted } else { refused };
                                counter.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        assert!(granted.into_inner() > 1000 && refused.into_inner() > 1000);
        assert_eq!(used_kib(&accounts), [0]);
    }
}
