//! State that functions keep outside their instances: fields of entries, by key, which are granted to a tenant's chains.
//!
//! ```text
//!   manifest  [state.counters]                 stage: state = { counters = "write" }
//!                  |                                       |
//!   StateStore  (tenant, name) -> Arc<StateField>  -->  Grants: the stage's fields, by number
//!                  table, counts                           |
//!   guest      state_get(0, key, value)  ------------------'    on a worker, through `imports`
//! ```
//!
//! The [`StateStore`] has a lock, taken by threads that apply changes and by reports, never by a guest's call. A field exists as long as an
//! active chain declares it in the same way. Its memory is allocated before a guest may call, within the tenant's limit, and is there, and
//! counts, as long as a chain or an instance uses it.
//!
//! | module | room |
//! |---|---|
//! | `table` | a field's entries, used by all cores at once |
//! | `hash` | the position of a key in a table |
//! | `grants` | what a stage may do with which field |

mod grants;
mod hash;
mod table;
#[cfg(test)]
mod table_tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

use pinion_control::model::{Chain, DesiredState, Field, FieldName, Tenant, TenantName, leaves_room, little_of};
use pinion_control::node::StateFieldStatus;

pub use grants::Grants;
use table::Table;

/// A field and its entries.
#[derive(Debug)]
pub struct StateField {
    declared: Field,
    table: Table,
    /// Calls that were refused for want of a grant.
    denied: AtomicU64,
}

impl StateField {
    /// Creates an empty field.
    #[must_use]
    pub fn new(declared: Field) -> Self {
        Self { table: Table::new(&declared), denied: AtomicU64::new(0), declared }
    }

    fn status(&self) -> StateFieldStatus {
        let counted = self.table.counted();
        StateFieldStatus {
            name: self.declared.name.clone(),
            entries: counted.entries,
            entries_max: u64::from(self.declared.entries),
            memory_kib: Table::bytes(&self.declared).div_ceil(1024),
            hits: counted.hits,
            misses: counted.misses,
            writes: counted.writes,
            denied: self.denied.load(Ordering::Relaxed),
            full: counted.full,
            evicted: counted.evicted,
        }
    }
}

/// The operator's limits on tenants' memory for state.
#[derive(Debug, Clone)]
pub struct StateLimits {
    /// For each tenant without an entry.
    pub default_bytes: u64,
    /// By tenant name.
    pub by_name: HashMap<TenantName, u64>,
    /// Of all tenants together, for changes.
    pub total_bytes: u64,
}

impl StateLimits {
    /// Returns the limits by a desired state, with the same default and total.
    fn by(&self, state: &DesiredState) -> Self {
        let limits = state.tenants().iter().filter_map(|(name, terms)| Some((name.clone(), terms.state_mib?)));
        let by_name = limits.map(|(name, mib)| (name, u64::from(mib) << 20)).collect();
        Self { by_name, ..*self }
    }

    /// Checks that a tenant may be granted so much state.
    fn check_grant(&self, terms: &Tenant) -> Result<(), String> {
        let most_mib = (self.total_bytes >> 20) * 3 / 4;
        match terms.state_mib.filter(|mib| u64::from(*mib) > most_mib) {
            Some(mib) => Err(format!(
                "tenant {}: state_mib is {mib}, and three quarters of limits.state_mib, for all tenants, are {most_mib}: raise \
                 limits.state_mib, or grant less",
                terms.name
            )),
            None => Ok(()),
        }
    }

    fn of(&self, tenant: &TenantName) -> u64 {
        self.by_name.get(tenant).copied().unwrap_or(self.default_bytes)
    }

    /// Returns whether a tenant may have all of these fields, besides former ones of so many bytes.
    fn check<'f>(
        &self,
        tenant: &TenantName,
        fields: impl Iterator<Item = &'f Field>,
        former_bytes: u64,
    ) -> Result<(), String> {
        let (mut bytes, mut each) = (former_bytes, String::new());
        for field in fields {
            bytes += Table::bytes(field);
            let _ = write!(each, ", {} {} KiB", field.name, Table::bytes(field).div_ceil(1024));
        }
        let limit = self.of(tenant);
        if bytes <= limit {
            return Ok(());
        }
        if former_bytes > 0 {
            let kib = former_bytes.div_ceil(1024);
            let _ = write!(
                each,
                ", and {kib} KiB of fields that would no longer be declared so, as long as chains and their instances use them"
            );
        }
        Err(format!(
            "the tenant's state would take {} KiB ({}), and the node grants the tenant {} KiB: declare fewer entries or \
             smaller values, delete chains and wait for their instances to end, or ask the operator to raise the tenant's state_mib",
            bytes.div_ceil(1024),
            each.trim_start_matches(", "),
            limit / 1024,
        ))
    }

    /// Returns whether a tenant that had `before` may have `bytes`, if all have `total` then.
    fn check_total(&self, bytes: u64, before: u64, total: u64) -> Result<(), String> {
        if total <= self.total_bytes && leaves_room(bytes, before, total, self.total_bytes) {
            return Ok(());
        }
        Err(format!(
            "its state would take {} KiB. Of the {} KiB that the node has room for, each tenant is sure of {} KiB, and gets more only \
             while there is enough to spare, which there is not: declare fewer entries or smaller values, or ask the operator to raise \
             limits.state_mib",
            bytes.div_ceil(1024),
            self.total_bytes / 1024,
            little_of(self.total_bytes) / 1024,
        ))
    }
}

/// The fields of one tenant.
#[derive(Debug, Default)]
struct TenantFields {
    declared: BTreeMap<FieldName, Arc<StateField>>,
    /// Those that are no longer declared like that, as long as active chains or instances use them.
    former: Vec<Weak<StateField>>,
}

impl TenantFields {
    /// Makes those fields former ones that are not declared so.
    fn retain(&mut self, is_declared: impl Fn(&Field) -> bool) {
        let former = self.declared.extract_if(.., |_, field| !is_declared(&field.declared));
        self.former.extend(former.map(|(_, field)| Arc::downgrade(&field)));
        self.former.retain(|field| field.strong_count() > 0);
    }

    /// Returns the memory of former fields, and of those that would be if only these fields were declared.
    fn former_bytes(&self, is_declared: impl Fn(&Field) -> bool) -> u64 {
        let former = self.former.iter().filter_map(Weak::upgrade);
        let in_use = self.declared.values().filter(|field| Arc::strong_count(field) > 1).cloned();
        let ending = in_use.filter(|field| !is_declared(&field.declared));
        former.chain(ending).map(|field| Table::bytes(&field.declared)).sum()
    }

    /// Returns those of these fields that there are not yet.
    fn missing<'f>(&self, fields: &'f [Field]) -> impl Iterator<Item = &'f Field> {
        fields.iter().filter(|field| self.declared.get(&field.name).is_none_or(|there| there.declared != **field))
    }
}

/// The registry. See the module.
#[derive(Debug)]
pub struct StateStore {
    limits: RwLock<StateLimits>,
    fields: Mutex<BTreeMap<TenantName, TenantFields>>,
}

impl StateStore {
    /// Creates a registry without fields, with these limits for tenants.
    #[must_use]
    pub fn new(limits: StateLimits) -> Self {
        Self { limits: RwLock::new(limits), fields: Mutex::default() }
    }

    /// Checks whether each tenant may have all fields that its chains declare, if these differ from before, besides those that its
    /// instances still use; by the terms of `state`. Also that no tenant is granted more than there is.
    ///
    /// # Errors
    /// Which tenant may not, and what to do.
    pub fn check(&self, before: &DesiredState, state: &DesiredState) -> Result<(), String> {
        let limits = self.limits().by(state);
        let mut changed = state.tenants().iter().filter(|(name, terms)| before.tenant(name) != Some(terms));
        changed.try_for_each(|(_, terms)| limits.check_grant(terms))?;
        let (before, after, none) = (declared(before), declared(state), TenantFields::default());
        let all = self.lock();
        // What a tenant has by a state, with what it does not declare and its instances use.
        let bytes_of = |tenant: &TenantName, state: &Declared<'_>| {
            let fields = state.get(tenant);
            let is_declared = |field: &Field| fields.and_then(|fields| fields.get(&field.name)) == Some(&field);
            let former = all.get(tenant).unwrap_or(&none).former_bytes(is_declared);
            (fields.into_iter().flatten().map(|(_, field)| Table::bytes(field)).sum::<u64>() + former, former)
        };
        let tenants: BTreeSet<&TenantName> = all.keys().chain(after.keys().copied()).collect();
        let total = tenants.into_iter().map(|tenant| bytes_of(tenant, &after).0).sum();
        for (tenant, fields) in after.iter().filter(|(tenant, fields)| before.get(*tenant) != Some(*fields)) {
            let (bytes, former) = bytes_of(tenant, &after);
            // Also a tenant to which the operator grants less than before may declare less.
            let had = before.get(*tenant);
            if fields.iter().all(|(name, field)| had.and_then(|had| had.get(name)) == Some(field)) {
                continue;
            }
            let checked = limits.check(tenant, fields.values().copied(), former);
            let had_bytes = bytes_of(tenant, &before).0;
            let checked = checked.and_then(|()| limits.check_total(bytes, had_bytes, total));
            checked.map_err(|reason| format!("tenant {tenant}: {reason}"))?;
        }
        Ok(())
    }

    /// Sets the tenants' limits to those of the state. Drops fields that no chain of the state declares; instances that have such a field
    /// still use it. Creates missing fields, within their tenants' limits. Takes as long as touching their memory takes.
    pub fn prepare(&self, state: &DesiredState) {
        let limits = self.limits().by(state);
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
        self.retain(state);
        for chain in state.chains().values() {
            // A refusal is found again, and reported, when the chain is to become active.
            let _ = self.open(chain);
        }
    }

    fn retain(&self, state: &DesiredState) {
        let declared = declared(state);
        self.lock().retain(|tenant, fields| {
            let declared = declared.get(tenant);
            fields.retain(|field| declared.and_then(|all| all.get(&field.name)) == Some(&field));
            !fields.declared.is_empty() || !fields.former.is_empty()
        });
    }

    /// Returns the grants of each stage of a chain. Creates missing fields, for which no lock is held if they are there to stay.
    ///
    /// # Errors
    /// If the tenant's limit does not allow it: a sentence for the tenant.
    pub fn open(&self, chain: &Chain) -> Result<Vec<Grants>, String> {
        let named = |field: Field| (field.name.clone(), Arc::new(StateField::new(field)));
        let mut made: BTreeMap<_, _> = self.missing(chain)?.into_iter().map(named).collect();
        let mut all = self.lock();
        if !chain.fields.is_empty() {
            let fields = all.entry(chain.tenant.clone()).or_default();
            // Another thread may have made some meanwhile, or taken others away.
            let missing: Vec<&Field> = fields.missing(&chain.fields).collect();
            fields.retain(|field| missing.iter().all(|missing| missing.name != field.name));
            for field in missing {
                let made = made.remove(&field.name).unwrap_or_else(|| named(field.clone()).1);
                fields.declared.insert(field.name.clone(), made);
            }
        }
        let fields = all.get(&chain.tenant);
        let of_name = |name: &FieldName| fields.and_then(|fields| fields.declared.get(name)).cloned();
        Ok(chain.stages.iter().map(|stage| Grants::new(&stage.state, of_name)).collect())
    }

    /// Returns the fields that a chain declares and that there are not yet, if its tenant may have them. Former fields do not count here:
    /// [`StateStore::check`] has judged them with the change, and there are only fewer since then.
    fn missing(&self, chain: &Chain) -> Result<Vec<Field>, String> {
        if chain.fields.is_empty() {
            return Ok(Vec::new());
        }
        let (all, none) = (self.lock(), TenantFields::default());
        let fields = all.get(&chain.tenant).unwrap_or(&none);
        // What is there stays, also if the tenant is granted less than when it was declared.
        if fields.missing(&chain.fields).next().is_none() {
            return Ok(Vec::new());
        }
        let others = fields.declared.values().map(|field| &field.declared);
        let others = others.filter(|field| chain.fields.iter().all(|ours| ours.name != field.name));
        self.limits().check(&chain.tenant, others.chain(&chain.fields), 0)?;
        Ok(fields.missing(&chain.fields).cloned().collect())
    }

    /// Returns a tenant's fields, by name, and the limit of their memory.
    #[must_use]
    pub fn of_tenant(&self, tenant: &TenantName) -> (Vec<StateFieldStatus>, u64) {
        let all = self.lock();
        let fields = all.get(tenant).into_iter().flat_map(|fields| fields.declared.values());
        (fields.map(|field| field.status()).collect(), self.limits().of(tenant) / 1024)
    }

    /// Returns the memory of a tenant's fields that are no longer declared and that instances still use.
    #[must_use]
    pub fn former_kib(&self, tenant: &TenantName) -> u64 {
        self.lock().get(tenant).map_or(0, |fields| fields.former_bytes(|_| true).div_ceil(1024))
    }

    fn limits(&self) -> RwLockReadGuard<'_, StateLimits> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantName, TenantFields>> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fields that a state's chains declare, by tenant and name.
type Declared<'s> = BTreeMap<&'s TenantName, BTreeMap<&'s FieldName, &'s Field>>;

/// Returns all fields that a state's chains declare. Fields of the same tenant and name are equal.
fn declared(state: &DesiredState) -> Declared<'_> {
    let mut declared: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for chain in state.chains().values().filter(|chain| !chain.fields.is_empty()) {
        declared.entry(&chain.tenant).or_default().extend(chain.fields.iter().map(|field| (&field.name, field)));
    }
    declared
}
