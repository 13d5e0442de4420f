//! The tenants of a node's configuration: the first ones of a new store.
//!
//! They are added durably when the node starts, and from then on are changed by `pinion apply` only. The status tells
//! which of them are not in force as the configuration has them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::SystemTime;

use super::lock;
use crate::model::{Author, Change, DesiredState, Tenant, TenantName};
use crate::store::{Signature, Store};

/// See the module.
#[derive(Default)]
pub(super) struct FirstTenants {
    tenants: Vec<Tenant>,
    /// Those that could not be added, and why.
    not_added: Mutex<BTreeMap<TenantName, String>>,
}

impl FirstTenants {
    pub(super) fn new(tenants: Vec<Tenant>) -> Self {
        Self { tenants, not_added: Mutex::default() }
    }

    /// Adds those tenants to the store that it does not have, and returns the state that is durable then. A tenant whose
    /// terms contradict what is stored is left out.
    pub(super) fn add_to(&self, store: &Store, stored: DesiredState) -> DesiredState {
        let (mut added, mut state) = (Change::default(), stored.clone());
        for tenant in self.tenants.iter().filter(|tenant| stored.tenant(&tenant.name).is_none()) {
            match state.apply(&Change { tenants: vec![tenant.clone()], ..Change::default() }) {
                Ok(applied) => {
                    state = applied.state;
                    added.tenants.push(tenant.clone());
                }
                Err(invalid) => self.note(tenant, &invalid),
            }
        }
        if added.tenants.is_empty() {
            return stored;
        }
        let author = Author::operator("the node's configuration");
        let refused = match stored.apply(&added) {
            Ok(applied) => match store.commit(&applied, &Signature { author, time: SystemTime::now() }) {
                Ok(()) => return applied.state,
                Err(error) => error.to_string(),
            },
            Err(invalid) => invalid.to_string(),
        };
        added.tenants.iter().for_each(|tenant| self.note(tenant, &refused));
        stored
    }

    fn note(&self, tenant: &Tenant, reason: &dyn ToString) {
        let reason = reason.to_string();
        tracing::error!(tenant = %tenant.name, "a tenant of the node's configuration could not be added: {reason}");
        lock(&self.not_added).insert(tenant.name.clone(), reason);
    }

    /// Returns a warning for each tenant that is not in force as the configuration has it.
    pub(super) fn warnings(&self, desired: &DesiredState) -> Vec<String> {
        self.tenants.iter().filter_map(|tenant| self.warning(tenant, desired)).collect()
    }

    fn warning(&self, tenant: &Tenant, desired: &DesiredState) -> Option<String> {
        let name = &tenant.name;
        let Some(stored) = desired.tenant(name) else {
            return Some(match lock(&self.not_added).get(name) {
                Some(reason) => format!(
                    "tenant {name} of the node's configuration is not in force: {reason}: apply it (pinion apply), or start the \
                     node again once that is mended"
                ),
                None => format!(
                    "tenant {name} was deleted, and is added again when the node starts: remove its [[tenant]] from the node's \
                     configuration"
                ),
            });
        };
        let differences = stored.differences(tenant);
        (!differences.is_empty()).then(|| {
            format!(
                "tenant {name} has other terms than in the node's configuration ({}): what was applied is in force; apply it as \
                 it should be (pinion apply), and make the [[tenant]] of the configuration alike or remove it",
                differences.join(", ")
            )
        })
    }
}
