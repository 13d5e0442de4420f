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
//! active chain declares it in the same way, and its memory as long as an instance uses it. All of its memory is allocated before a guest
//! may call, within the tenant's limit.
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

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinion_control::model::{Chain, DesiredState, Field, FieldName, TenantName};
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
}

impl StateLimits {
    fn of(&self, tenant: &TenantName) -> u64 {
        self.by_name.get(tenant).copied().unwrap_or(self.default_bytes)
    }

    /// Returns whether a tenant may have all of these fields.
    fn check<'f>(&self, tenant: &TenantName, fields: impl Iterator<Item = &'f Field>) -> Result<(), String> {
        let (mut bytes, mut each) = (0, String::new());
        for field in fields {
            bytes += Table::bytes(field);
            let _ = write!(each, ", {} {} KiB", field.name, Table::bytes(field).div_ceil(1024));
        }
        let limit = self.of(tenant);
        if bytes <= limit {
            return Ok(());
        }
        Err(format!(
            "the tenant's state would take {} KiB ({}), and the node grants the tenant {} KiB: declare fewer entries or \
             smaller values, or ask the operator to raise the tenant's state_mib",
            bytes.div_ceil(1024),
            each.trim_start_matches(", "),
            limit / 1024,
        ))
    }
}

/// The registry. See the module.
#[derive(Debug)]
pub struct StateStore {
    limits: StateLimits,
    fields: Mutex<BTreeMap<TenantName, BTreeMap<FieldName, Arc<StateField>>>>,
}

impl StateStore {
    /// Creates a registry without fields, with these limits for tenants.
    #[must_use]
    pub fn new(limits: StateLimits) -> Self {
        Self { limits, fields: Mutex::default() }
    }

    /// Checks whether each tenant may have all fields that its chains declare, if these differ from before.
    ///
    /// # Errors
    /// Which tenant may not, and what to do.
    pub fn check(&self, before: &DesiredState, state: &DesiredState) -> Result<(), String> {
        let before = declared(before);
        for (tenant, fields) in
            declared(state).into_iter().filter(|(tenant, fields)| before.get(tenant) != Some(fields))
        {
            let checked = self.limits.check(tenant, fields.into_values());
            checked.map_err(|reason| format!("tenant {tenant}: {reason}"))?;
        }
        Ok(())
    }

    /// Drops fields that no chain of the state declares; instances that have such a field still use it. Creates missing fields, within
    /// their tenants' limits. Takes as long as touching their memory takes.
    pub fn prepare(&self, state: &DesiredState) {
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
            fields.retain(|name, field| declared.and_then(|all| all.get(name)) == Some(&&field.declared));
            !fields.is_empty()
        });
    }

    /// Returns the grants of each stage of a chain. Creates missing fields.
    ///
    /// # Errors
    /// If the tenant's limit does not allow it: a sentence for the tenant.
    pub fn open(&self, chain: &Chain) -> Result<Vec<Grants>, String> {
        let mut all = self.lock();
        if !chain.fields.is_empty() {
            let fields = all.entry(chain.tenant.clone()).or_default();
            let others = fields.values().map(|field| &field.declared);
            let others = others.filter(|field| chain.fields.iter().all(|ours| ours.name != field.name));
            self.limits.check(&chain.tenant, others.chain(&chain.fields))?;
            for declared in &chain.fields {
                if fields.get(&declared.name).is_none_or(|there| there.declared != *declared) {
                    fields.insert(declared.name.clone(), Arc::new(StateField::new(declared.clone())));
                }
            }
        }
        let fields = all.get(&chain.tenant);
        let of_name = |name: &FieldName| fields.and_then(|fields| fields.get(name)).cloned();
        Ok(chain.stages.iter().map(|stage| Grants::new(&stage.state, of_name)).collect())
    }

    /// Returns a tenant's fields, by name, and the limit of their memory.
    #[must_use]
    pub fn of_tenant(&self, tenant: &TenantName) -> (Vec<StateFieldStatus>, u64) {
        let fields =
            self.lock().get(tenant).into_iter().flat_map(BTreeMap::values).map(|field| field.status()).collect();
        (fields, self.limits.of(tenant) / 1024)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TenantName, BTreeMap<FieldName, Arc<StateField>>>> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns all fields that a state's chains declare. Fields of the same tenant and name are equal.
fn declared(state: &DesiredState) -> BTreeMap<&TenantName, BTreeMap<&FieldName, &Field>> {
    let mut declared: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for chain in state.chains().values().filter(|chain| !chain.fields.is_empty()) {
        declared.entry(&chain.tenant).or_default().extend(chain.fields.iter().map(|field| (&field.name, field)));
    }
    declared
}
